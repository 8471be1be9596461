//! From a job to the plan of a checkpoint, and of what is made of it.

use crate::error::{Error, ErrorKind};
use crate::job::{Format, Job, SourceKind};
use kvant_container::Checkpoint;
use kvant_container::onnx::ExternalData;
use kvant_llm::engine::Deliverable;
use kvant_llm::export::Export;
use kvant_llm::forward::Decoder;
use kvant_llm::gguf::GgufPlan;
use kvant_llm::plan::Plan;
use kvant_llm::recipe::{Recipe, Settings};
use kvant_onnx::runtime::RuntimeChoice;

/// Takes over the format of the recipe file where that decides which flow it is: one that is no checkpoint counts as if the job
/// itself had named it.
///
/// # Errors
/// Where the file cannot be read.
pub fn complete(job: &mut Job) -> Result<(), Error> {
    let Some(path) = job.recipe.file.as_ref().filter(|_| job.sinks.formats.is_empty()) else { return Ok(()) };
    if job.source.kind() != SourceKind::Graph && Settings::read(path)?.format == Some(Export::Gguf) {
        job.sinks.formats.push(Format::Export(Export::Gguf));
    }
    Ok(())
}

/// What a job makes of a checkpoint.
pub struct Planned {
    /// The source.
    pub checkpoint: Checkpoint,
    /// The checkpoint that is made of it.
    pub plan: Plan,
    /// The GGUF file that is made of its codes, where one is asked for.
    pub file: Option<GgufPlan>,
}

impl Planned {
    /// Refuses what would not pass verification.
    ///
    /// # Errors
    /// What is wrong with the source or its name.
    pub fn foresee(&self) -> Result<(), Error> {
        self.plan.foresee(&self.checkpoint)?;
        Ok(self.file.as_ref().map_or(Ok(()), |file| file.foresee(&self.checkpoint))?)
    }
}

/// Plans a job; `file` is the name of a GGUF file.
///
/// # Errors
/// Whatever can be refused before weights are read.
pub fn plan(job: &Job, file: &str) -> Result<Planned, Error> {
    plan_with(job, file, !job.data.files.is_empty())
}

/// The same for looking at alone: calibration data may come later.
///
/// # Errors
/// As [`plan`].
pub fn outline(job: &Job, file: &str) -> Result<Planned, Error> {
    plan_with(job, file, true)
}

fn plan_with(job: &Job, file: &str, calibrated: bool) -> Result<Planned, Error> {
    let repeated = job.sinks.formats.iter().enumerate().find(|(at, format)| job.sinks.formats[..*at].contains(format));
    if let Some((_, format)) = repeated {
        let failure = Error::new(ErrorKind::Usage, format!("‹format› {} is given twice", format.name()));
        return Err(failure.with_hint(Some("name every format once".to_owned())));
    }
    let (checkpoint, plan) = plan_for_all(job, calibrated)?;
    let file = job.sinks.wants_gguf().then(|| GgufPlan::of_codes(&checkpoint, &plan, file)).transpose()?;
    if job.sinks.wants_graph() {
        check_graph(&checkpoint, &plan)?;
    }
    if plan.needs_calibration() || !plan.blocks.is_empty() {
        // Whether the model runs here is told by its headers.
        Decoder::open(&checkpoint)?;
    }
    Ok(Planned { checkpoint, plan, file })
}

/// Refuses what a graph of the quantized decoder would not hold: rules of the model, weights and quantized activations.
fn check_graph(checkpoint: &Checkpoint, plan: &Plan) -> Result<(), Error> {
    let layers = plan.layers.iter().map(|layer| (layer.name.as_str(), layer.scheme));
    kvant_llm::onnx::check_schemes(layers, &plan.recipe.attention())?;
    Ok(kvant_llm::onnx::check(&Decoder::open(checkpoint)?, true)?)
}

/// The plan for the first of the formats that are checkpoints.
fn plan_for_all(job: &Job, calibrated: bool) -> Result<(Checkpoint, Plan), Error> {
    let exports = job.sinks.checkpoints();
    if exports == [Export::Fake] && (job.sinks.wants_gguf() || job.sinks.wants_graph()) {
        let failure = Error::new(ErrorKind::Usage, "‹format› fake has no codes, of which the other formats are made");
        return Err(failure.with_hint(Some("write it in a run of its own, or name a format of codes too".to_owned())));
    }
    let file = job.sinks.wants_gguf().then_some(Export::Gguf);
    let [first, others @ ..] = exports.as_slice() else { return plan_for(job, None, file.as_slice(), calibrated) };
    let all = || exports.iter().copied().chain(file);
    // What another format does not hold is refused now, not when the first is made.
    for export in others {
        plan_for(job, Some(*export), &all().filter(|other| other != export).collect::<Vec<_>>(), calibrated)?;
    }
    plan_for(job, Some(*first), &all().skip(1).collect::<Vec<_>>(), calibrated)
}

/// The plan for one of the formats; the others, to which the result is converted, decide on scales too.
fn plan_for(job: &Job, export: Option<Export>, also: &[Export], calibrated: bool) -> Result<(Checkpoint, Plan), Error> {
    refuse_graph_settings(job)?;
    let recipe = recipe(job, export, also)?.with_calibration(calibrated);
    let checkpoint = job.source.open()?;
    let plan = Plan::new(&checkpoint, recipe)?;
    Ok((checkpoint, plan))
}

/// Refuses options that only ONNX graphs have.
///
/// # Errors
/// The first that was given.
pub fn refuse_graph_settings(job: &Job) -> Result<(), Error> {
    let Some(option) = graph_setting(job) else { return Ok(()) };
    let failure = Error::new(ErrorKind::Usage, format!("{option} applies only to ONNX graphs"));
    Err(failure.with_hint(Some("leave it out, or name an .onnx file".to_owned())))
}

fn recipe(job: &Job, export: Option<Export>, also: &[Export]) -> Result<Recipe, Error> {
    let (line, file) = settings(job, export, also)?;
    Ok(Recipe::resolve(&line, &file)?)
}

/// What command line and recipe file say, each for itself, of one of the formats that were asked for.
///
/// # Errors
/// Where the file cannot be read.
pub fn settings(job: &Job, export: Option<Export>, also: &[Export]) -> Result<(Settings, Settings), Error> {
    let file = match &job.recipe.file {
        // Formats at the command line take the place of that in the file.
        Some(path) if job.sinks.formats.is_empty() => Settings::read(path)?,
        Some(path) => Settings { format: None, also: Vec::new(), ..Settings::read(path)? },
        None => Settings::default(),
    };
    let line = Settings {
        scheme: job.recipe.scheme.clone(),
        format: export,
        also: also.to_vec(),
        pack_method: job.recipe.pack_method,
        exclude: job.recipe.exclude.clone(),
        overrides: job.recipe.overrides.clone(),
        keep_defaults: job.recipe.no_keep_defaults.then_some(false),
        weights_only: job.recipe.weights_only.then_some(true),
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
        (graph.bias.is_some(), "‹bias›"),
        (graph.form.is_some(), "‹op-domain›"),
        (graph.layout.is_some(), "‹graph-format›"),
        (graph.boundary.is_some(), "‹io-dtype›"),
        (!graph.op_types.is_empty(), "‹op-types›"),
        (!graph.more_op_types.is_empty(), "‹more-op-types›"),
        (!graph.exclude_op_types.is_empty(), "‹exclude-op-types›"),
        (!graph.nodes.is_empty(), "‹nodes›"),
        (!graph.exclude_subgraph.is_empty(), "‹exclude-subgraph›"),
        (!graph.enable_pass.is_empty(), "‹enable-pass›"),
        (!graph.disable_pass.is_empty(), "‹disable-pass›"),
        (job.data.preprocess.is_some(), "‹preprocess›"),
        (job.sinks.report.is_some(), "‹report›"),
        (job.limits.quality.min_sqnr.is_some(), "‹min-sqnr›"),
        (job.sinks.external_data != ExternalData::Auto, "‹external-data›"),
        (engine.choice != RuntimeChoice::Auto, "‹runtime›"),
        (engine.library.is_some(), "‹runtime-library›"),
    ];
    crate::first_given(&given)
}
