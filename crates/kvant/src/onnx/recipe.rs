//! From a job to the recipe of an ONNX graph.

use super::data::{GraphData, source};
use super::ranges::given;
use super::refuse_idle_library;
use crate::error::{Error, ErrorKind};
use crate::job::{Job, Limits, Precision};
use crate::resolve;
use crate::settings::first_given;
use kvant_checkpoint::blockwise::Propagate;
use kvant_container::Remedy;
use kvant_onnx::settings::{Resolved, Settings};
use kvant_quant::recipe::OverrideEntry;

/// The recipe from a preset, a file and options, with its passes.
///
/// # Errors
/// An unknown preset or type, an invalid file, options that contradict each other or belong to checkpoints.
pub fn recipe(job: &Job) -> Result<Resolved, Error> {
    let settings = settings(job)?;
    // What one format does not have is refused before the work on others.
    for format in job.sinks.graph_formats.iter().skip(1) {
        Settings { layout: Some(*format), ..settings.clone() }.resolve()?;
    }
    Ok(settings.resolve()?)
}

/// The settings: options, then the file.
///
/// # Errors
/// Options that belong to checkpoints, a file that is not a recipe.
pub fn settings(job: &Job) -> Result<Settings, Error> {
    refuse_foreign(job)?;
    refuse_idle_library(&job.limits.engine)?;
    let said = Settings { ranges: given(job)?, ..options(job) };
    match &job.recipe.file {
        Some(file) => Ok(said.over(Settings::try_from(kvant_checkpoint::recipe::read_file(file)?)?)),
        None => Ok(said),
    }
}

/// Refuses what only checkpoints have, so that no option is silently without effect.
fn refuse_foreign(job: &Job) -> Result<(), Error> {
    let foreign = [
        (!job.sinks.formats.is_empty(), "‹format›"),
        (!job.source.adapters.is_empty(), "‹lora›"),
        (job.recipe.pack_method.is_some(), "‹pack-method›"),
        (job.recipe.quality.is_some(), "‹quality›"),
        (!job.recipe.layer_types.is_empty(), "‹layer-type›"),
        (job.recipe.kv_cache.is_some(), "‹kv-cache›"),
        (job.recipe.attention.is_some(), "‹attention›"),
        (job.sinks.max_shard_size.is_some(), "‹max-shard-size›"),
        (job.recipe.no_keep_defaults, "‹no-keep-defaults›"),
        (job.recipe.min_kv_scale.is_some(), "‹min-kv-scale›"),
        (job.recipe.kv_cache_post_rope, "‹kv-cache-post-rope›"),
        (job.recipe.requantize, "‹requantize›"),
        (job.recipe.statistics.is_some(), "‹statistics›"),
        (job.recipe.bias.is_some(), "‹bias› with a scheme"),
        (job.data.precision != Precision::default(), "‹precision›"),
        (job.data.propagate != Propagate::default(), "‹propagate›"),
        (job.limits.memory != Limits::default().memory, "‹max-memory›"),
    ];
    refuse_text_settings(job)?;
    match first_given(&foreign).or_else(|| resolve::gguf_setting(job)) {
        Some(option) => Err(Error::new(ErrorKind::Usage, format!("{option} does not apply to an ONNX graph"))
            .with_hint(Some("`kvant quantize --help` lists what ONNX graphs have".to_owned()))),
        None => Ok(()),
    }
}

/// Refuses what only text has where the data are none, and a seed where nothing is random: samples of files are taken in their order.
fn refuse_text_settings(job: &Job) -> Result<(), Error> {
    let data = match source(&job.data) {
        Ok(Some(GraphData::Text(_))) => return Ok(()),
        data => data,
    };
    let of_text = [
        (job.data.seq_len.is_some(), "‹seq-len›"),
        (job.data.packing.is_some(), "‹packing›"),
        (job.data.column.is_some(), "‹column›"),
        (job.data.shuffle, "‹shuffle›"),
    ];
    if let Some(setting) = first_given(&of_text) {
        let message = format!("{setting} applies only to text, which ONNX graphs of decoders take");
        let hint = "leave it out, or give text with ‹data›".to_owned();
        return Err(Error::new(ErrorKind::Usage, message).with_hint(Some(hint)));
    }
    let is_made_up = matches!(data, Ok(Some(data)) if data.is_made_up());
    if job.data.seed == 0 || is_made_up {
        return Ok(());
    }
    let message = "‹seed› applies only to made-up data (‹data› random) and to text of an ONNX graph";
    Err(Error::new(ErrorKind::Usage, message).with_remedies(vec![Remedy::leave_out("seed")]))
}

/// A switch that is on, or nothing said.
fn on(flag: bool) -> Option<bool> {
    flag.then_some(true)
}

fn options(job: &Job) -> Settings {
    let (recipe, graph) = (&job.recipe, &job.recipe.graph);
    let overrides = recipe.overrides.iter();
    Settings {
        preset: recipe.scheme.clone(),
        weights_only: on(recipe.weights_only),
        activation: graph.activation,
        weight: graph.weight,
        symmetric: graph.symmetric,
        per_channel: on(graph.per_channel),
        per_channel_activations: on(graph.per_channel_activations),
        algorithm: algorithms(job),
        reduce_range: on(graph.reduce_range),
        calibration_method: graph.calibration_method,
        weight_method: graph.weight_method.or(recipe.scales),
        percentile: graph.percentile,
        bias: graph.bias,
        form: graph.form,
        layout: job.sinks.graph_formats.first().copied(),
        boundary: graph.boundary,
        op_types: graph.op_types.clone(),
        more_op_types: graph.more_op_types.clone(),
        exclude_op_types: graph.exclude_op_types.clone(),
        nodes: graph.nodes.clone(),
        exclude: recipe.exclude.clone(),
        exclude_subgraph: graph.exclude_subgraph.iter().map(ToString::to_string).collect(),
        enable_pass: graph.enable_pass.clone(),
        disable_pass: graph.disable_pass.clone(),
        overrides: overrides.map(|o| OverrideEntry::of_tensors(&o.layers, &o.scheme)).collect(),
        ranges: None,
        notes: Vec::new(),
    }
}

/// Equalization is one of them.
fn algorithms(job: &Job) -> Vec<String> {
    let equalize = job.recipe.graph.equalize.then(|| "cle".to_owned());
    equalize.into_iter().chain(job.recipe.algorithm.iter().cloned()).collect()
}
