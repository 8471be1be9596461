//! From a job to the plan of a checkpoint, and of the file that is written from it.

use crate::error::{Error, ErrorKind};
use crate::job::{Format, Job, SourceKind};
use crate::resolve;
use kvant_checkpoint::engine::OutputPlan;
use kvant_checkpoint::gguf::GgufPlan;
use kvant_checkpoint::plan::Plan;
use kvant_checkpoint::recipe::{Recipe, Settings};
use kvant_container::Checkpoint;
use kvant_formats::format::OutputFormat;
use kvant_forward::forward::Decoder;

/// Applies the format of the recipe file where it decides the flow: a format other than a checkpoint counts as if the job
/// itself had named it.
///
/// # Errors
/// If the file cannot be read.
pub fn complete(job: &mut Job) -> Result<(), Error> {
    let Some(path) = job.recipe.file.as_ref().filter(|_| job.sinks.formats.is_empty()) else { return Ok(()) };
    if job.source.kind() != SourceKind::Graph && Settings::read(path)?.format == Some(OutputFormat::Gguf) {
        job.sinks.formats.push(Format::Model(OutputFormat::Gguf));
    }
    Ok(())
}

/// The plan of a job for a checkpoint.
pub struct Planned {
    /// The source.
    pub checkpoint: Checkpoint,
    /// The checkpoint to write.
    pub plan: Plan,
    /// The GGUF file to write from its codes, if one is requested.
    pub file: Option<GgufPlan>,
}

impl Planned {
    /// Refuses output that would not pass verification.
    ///
    /// # Errors
    /// Problems of the source or its name.
    pub fn preflight(&self) -> Result<(), Error> {
        self.plan.preflight(&self.checkpoint)?;
        Ok(self.file.as_ref().map_or(Ok(()), |file| file.preflight(&self.checkpoint))?)
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
    resolve::refuse_checkpoint_settings(job)?;
    let (checkpoint, plan) = plan_for_all(job, calibrated)?;
    resolve::refuse_idle_propagation(job, !plan.blocks().is_empty())?;
    let file = job.sinks.wants_gguf().then(|| GgufPlan::of_codes(&checkpoint, &plan, file)).transpose()?;
    if job.sinks.wants_graph() {
        check_graph(&checkpoint, &plan)?;
    }
    if plan.needs_calibration() || !plan.blocks().is_empty() {
        // The headers show whether the model runs here.
        Decoder::open_any(&checkpoint)?;
    }
    Ok(Planned { checkpoint, plan, file })
}

/// Refuses what a graph of the quantized decoder would not hold: rules of the model, weights and quantized activations.
fn check_graph(checkpoint: &Checkpoint, plan: &Plan) -> Result<(), Error> {
    let layers = plan.layers().iter().map(|layer| (layer.name.as_str(), layer.scheme));
    kvant_checkpoint::onnx::check_schemes(layers, &plan.recipe().attention())?;
    Ok(kvant_checkpoint::onnx::check(&Decoder::open(checkpoint)?, true)?)
}

/// The plan for the first of the formats that are checkpoints.
fn plan_for_all(job: &Job, calibrated: bool) -> Result<(Checkpoint, Plan), Error> {
    let formats = job.sinks.checkpoints();
    if formats == [OutputFormat::PlainFloats] && (job.sinks.wants_gguf() || job.sinks.wants_graph()) {
        let failure = Error::new(ErrorKind::Usage, "‹format› fake has no codes, of which the other formats are made");
        return Err(failure.with_hint(Some("write it in a separate run, or add a format that stores codes".to_owned())));
    }
    let file = job.sinks.wants_gguf().then_some(OutputFormat::Gguf);
    let [first, others @ ..] = formats.as_slice() else { return plan_for(job, None, file.as_slice(), calibrated) };
    let all = || formats.iter().copied().chain(file);
    // Conversions that a further format does not support are refused now, not after the first is written.
    for format in others {
        plan_for(job, Some(*format), &all().filter(|other| other != format).collect::<Vec<_>>(), calibrated)?;
    }
    plan_for(job, Some(*first), &all().skip(1).collect::<Vec<_>>(), calibrated)
}

/// The plan for one of the formats; the others, to which the result is converted, decide on scales too.
fn plan_for(
    job: &Job,
    format: Option<OutputFormat>,
    also: &[OutputFormat],
    calibrated: bool,
) -> Result<(Checkpoint, Plan), Error> {
    resolve::refuse_graph_settings(job)?;
    let recipe = recipe(job, format, also)?.with_calibration(calibrated);
    let checkpoint = job.source.open()?;
    let plan = Plan::new(&checkpoint, recipe)?;
    Ok((checkpoint, plan))
}

fn recipe(job: &Job, format: Option<OutputFormat>, also: &[OutputFormat]) -> Result<Recipe, Error> {
    let (line, file) = resolve::settings(job, format, also)?;
    Ok(Recipe::resolve(&line, &file)?)
}
