//! From a job to the settings of its recipe, and the settings that belong to other kinds of models.

use crate::error::{Error, ErrorKind};
use crate::job::{Data, Job};
use crate::paths::not_a_page;
use crate::settings::first_given;
use kvant_checkpoint::input_statistics::InputStatistics;
use kvant_checkpoint::recipe::Settings;
use kvant_container::Remedy;
use kvant_container::onnx::ExternalData;
use kvant_formats::format::OutputFormat;
use kvant_onnx::recipe::BiasKind;
use kvant_onnx::runtime::RuntimeChoice;
use std::sync::Arc;

/// The settings of a job and those of its recipe file, for one of the formats that were asked for.
///
/// # Errors
/// If the file cannot be read.
pub fn settings(job: &Job, format: Option<OutputFormat>, also: &[OutputFormat]) -> Result<(Settings, Settings), Error> {
    let file = match &job.recipe.file {
        // Formats at the command line take the place of that in the file.
        Some(path) if job.sinks.formats.is_empty() => Settings::read(path)?,
        Some(path) => Settings { format: None, also: Vec::new(), ..Settings::read(path)? },
        None => Settings::default(),
    };
    let line = Settings {
        scheme: job.recipe.scheme.clone(),
        format,
        also: also.to_vec(),
        pack_method: job.recipe.pack_method,
        exclude: job.recipe.exclude.clone(),
        overrides: job.recipe.overrides.clone(),
        layer_types: job.recipe.layer_types.iter().map(|text| (text.kind, text.scheme.clone())).collect(),
        bias: job.recipe.bias.clone(),
        keep_defaults: job.recipe.no_keep_defaults.then_some(false),
        weights_only: job.recipe.weights_only.then_some(true),
        scales: job.recipe.scales,
        kv_cache: job.recipe.kv_cache.clone(),
        kv_cache_post_rope: job.recipe.kv_cache_post_rope.then_some(true),
        min_kv_scale: job.recipe.min_kv_scale,
        queries: job.recipe.attention.clone(),
        probabilities: job.recipe.attention.clone(),
        max_shard_size: job.sinks.max_shard_size,
        requantize: job.recipe.requantize.then_some(true),
        ..Settings::default()
    };
    Ok((line.with_algorithms(&job.recipe.algorithm)?, file))
}

/// The statistics of a job, read from their file.
///
/// # Errors
/// If the file cannot be read, or holds what no inputs have.
pub fn statistics(job: &Job) -> Result<Option<Arc<InputStatistics>>, Error> {
    let Some(given) = &job.recipe.statistics else { return Ok(None) };
    Ok(Some(Arc::new(InputStatistics::open(&given.path, given.component.as_deref())?)))
}

/// Refuses settings that only ONNX graphs have.
///
/// # Errors
/// The first that was given.
pub fn refuse_graph_settings(job: &Job) -> Result<(), Error> {
    if let Some(report) = &job.sinks.report {
        return Err(not_a_page(report));
    }
    let Some(option) = graph_setting(job) else { return Ok(()) };
    let failure = Error::new(ErrorKind::Usage, format!("{option} applies only to ONNX graphs"));
    Err(failure.with_hint(Some("leave it out, or name an .onnx file".to_owned())))
}

/// Refuses to calibrate blocks on something else than the default where no algorithm works block by block.
///
/// # Errors
/// See above.
pub fn refuse_idle_propagation(job: &Job, works_on_blocks: bool) -> Result<(), Error> {
    if works_on_blocks || job.data.propagate == Data::default().propagate {
        return Ok(());
    }
    let failure = Error::new(ErrorKind::Usage, "‹propagate› applies only to algorithms that work block by block");
    Err(failure.with_hint(Some("leave it out, or ask for such an algorithm, e.g. ‹algorithm› gptq".to_owned())))
}

/// Refuses settings of checkpoints where none is among the outputs: the intermediate one of a GGUF file or a graph is removed.
///
/// # Errors
/// The first that was given.
pub fn refuse_checkpoint_settings(job: &Job) -> Result<(), Error> {
    let sinks = &job.sinks;
    if sinks.keeps_checkpoint() {
        return Ok(());
    }
    let given =
        [(sinks.max_shard_size.is_some(), "‹max-shard-size›"), (job.recipe.pack_method.is_some(), "‹pack-method›")];
    let Some(option) = first_given(&given) else { return Ok(()) };
    let failure = Error::new(ErrorKind::Usage, format!("{option} applies only to checkpoints, and none is written"));
    let split = sinks.wants_gguf() && option == "‹max-shard-size›";
    let split = split.then(|| Remedy::command("convert FILE ‹to› gguf ‹max-shard-size› SIZE", "splits the file"));
    let ways =
        [Remedy::text("leave it out"), Remedy::UseFormat("write a checkpoint too, e.g. ‹format› quark".to_owned())];
    Err(failure.with_remedies(ways.into_iter().chain(split).collect()))
}

/// The first setting that only ONNX graphs have, of those without a default.
fn graph_setting(job: &Job) -> Option<&'static str> {
    let (graph, engine) = (&job.recipe.graph, &job.limits.engine);
    let given = [
        (graph.activation.is_some(), "‹activation›"),
        (graph.weight.is_some(), "‹weight›"),
        (graph.symmetric.is_some(), "‹symmetric›"),
        (graph.per_channel, "‹per-channel›"),
        (graph.per_channel_activations, "‹per-channel-activations›"),
        (graph.equalize, "‹equalize›"),
        (graph.reduce_range, "‹reduce-range›"),
        (graph.calibration_method.is_some(), "‹calibration-method›"),
        (graph.weight_method.is_some(), "‹weight-method›"),
        (graph.percentile.is_some(), "‹percentile›"),
        (graph.ranges.is_some(), "‹ranges›"),
        (job.sinks.save_ranges.is_some(), "‹save-ranges›"),
        (graph.bias.is_some_and(|kind| kind != BiasKind::Float), "this ‹bias›"),
        (graph.form.is_some(), "‹op-domain›"),
        (!job.sinks.graph_formats.is_empty(), "‹graph-format›"),
        (graph.boundary.is_some(), "‹io-dtype›"),
        (!graph.op_types.is_empty(), "‹op-types›"),
        (!graph.more_op_types.is_empty(), "‹more-op-types›"),
        (!graph.exclude_op_types.is_empty(), "‹exclude-op-types›"),
        (!graph.nodes.is_empty(), "‹nodes›"),
        (!graph.exclude_subgraph.is_empty(), "‹exclude-subgraph›"),
        (!graph.enable_pass.is_empty(), "‹enable-pass›"),
        (!graph.disable_pass.is_empty(), "‹disable-pass›"),
        (job.data.preprocess.is_some(), "‹preprocess›"),
        (job.limits.quality.min_sqnr.is_some(), "‹min-sqnr›"),
        (job.limits.quality.max_drop.is_some(), "‹max-drop›"),
        (job.limits.quality.metric.is_some(), "‹metric›"),
        (job.limits.quality.labels.is_some(), "‹labels›"),
        (graph.auto, "‹auto›"),
        (job.sinks.external_data != ExternalData::Auto, "‹external-data›"),
        (engine.choice != RuntimeChoice::Auto, "‹runtime›"),
        (engine.library.is_some(), "‹runtime-library›"),
    ];
    first_given(&given)
}

/// The first setting that only GGUF files have.
pub fn gguf_setting(job: &Job) -> Option<&'static str> {
    first_given(&[(job.recipe.imatrix.is_some(), "‹imatrix›"), (job.sinks.save_imatrix.is_some(), "‹save-imatrix›")])
}
