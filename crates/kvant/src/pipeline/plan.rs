//! Plans a pipeline: a plan for each component that is quantized, and the files that are copied.

use super::choice::{Choice, Fate, choose, pattern_inside};
use super::quantize::LOADER;
use super::{Misnamed, flaws};
use crate::checkpoint::plan::{self as checkpoint_plan, CheckpointPlan};
use crate::error::{Error, ErrorKind};
use crate::events::Reporter;
use crate::findings::failing;
use crate::job::{Format, GivenStatistics, Job};
use crate::json::path as path_json;
use crate::resolve;
use crate::text::shown;
use kvant_checkpoint::finite;
use kvant_checkpoint::recipe::Recipe;
use kvant_container::{Diagnostic, LeftOutFile, Pipeline, PipelineComponent, recorded_name};
use kvant_formats::format::{FormatHandle, OutputFormat};
use kvant_formats::verify::{Options, verify};
use kvant_forward::forward::ForwardError;
use serde_json::{Value, json};
use std::path::PathBuf;
use xxhash_rust::xxh3::Xxh3;

/// The plan of a pipeline.
pub struct PipelinePlan {
    /// The pipeline.
    pub pipeline: Pipeline,
    /// Its components with weights.
    pub components: Vec<PlannedComponent>,
    /// Files that are copied, relative to the pipeline, and their bytes.
    pub(crate) copied: Vec<(PathBuf, u64)>,
    /// Notes on the components, each with the name of one.
    pub notices: Vec<String>,
    /// The files that are not copied, each with the reason.
    pub left_out: Vec<String>,
    pub(crate) fingerprint: String,
}

/// A component.
pub struct PlannedComponent {
    /// Its name and class.
    pub component: PipelineComponent,
    /// Bytes of its tensors.
    pub source_bytes: u64,
    /// Its plan if it is quantized, or the reason that it is kept.
    pub plan: Result<Box<CheckpointPlan>, String>,
    /// The job that quantizes it, whose output is not named yet.
    pub(crate) job: Option<Box<Job>>,
}

impl PlannedComponent {
    /// Bytes of its tensors in the output.
    pub fn output_bytes(&self) -> u64 {
        self.plan.as_ref().map_or(self.source_bytes, |planned| planned.plan.layout().total_size())
    }
}

/// Plans a job whose source is a pipeline.
///
/// # Errors
/// Whatever a run would refuse; errors of components name them.
pub(crate) fn plan(job: &Job, reporter: &Reporter<'_>) -> Result<PipelinePlan, Error> {
    refuse_settings(job)?;
    let pipeline = Pipeline::open(&job.source.model)?;
    if let Some(flaw) = flaws(&pipeline).first() {
        let message = format!("{}: {flaw}", shown(&pipeline.path));
        let hint = "download it again: diffusers does not load the pipeline as it is";
        return Err(Error::new(ErrorKind::Invalid, message).with_hint(Some(hint.to_owned())));
    }
    let (mut components, mut notices) = (Vec::new(), Vec::new());
    let mut left_out: Vec<String> = pipeline.left_out.iter().map(left_out_line).collect();
    let mut files = pipeline.files.clone();
    for Choice { component, checkpoint, bytes, fate } in choose(job, &pipeline)? {
        let (plan, job) = match fate {
            Fate::Kept(reason) => {
                refuse_patterns_of_kept(job, &component.name, &reason)?;
                let inside = checkpoint.all_files()?;
                refuse_other_names(&component, &inside)?;
                files.extend(inside.iter().map(|file| PathBuf::from(&component.name).join(file)));
                let left = checkpoint.left_out_files()?;
                left_out.extend(left.iter().map(|file| format!("{}: {}", component.name, left_out_line(file))));
                if !job.sinks.commit.no_verify {
                    finite::check_vectors(&checkpoint).map_err(|error| of_component(error.into(), &component.name))?;
                }
                (Err(reason), None)
            }
            Fate::Quantized(of_component) => {
                let planned = plan_component(*of_component, &component, job.recipe.statistics.as_ref(), reporter);
                let (job, plan) = planned.map_err(|error| self::of_component(error, &component.name))?;
                notices.extend(plan.plan.notices().iter().map(|notice| format!("{}: {notice}", component.name)));
                (Ok(Box::new(plan)), Some(Box::new(job)))
            }
        };
        components.push(PlannedComponent { component, source_bytes: bytes, plan, job });
    }
    if components.iter().all(|component| component.plan.is_err()) {
        let failure = Error::new(ErrorKind::Invalid, "no component of the pipeline is quantized");
        let hint = match job.recipe.scheme.is_some() {
            true => {
                "‹scheme› is for the large components, which are kept here: name others, e.g. ‹component› text_encoder=int8:channel"
            }
            false => "give ‹scheme› for the large components, or name some, e.g. ‹component› transformer=e4m3:channel",
        };
        return Err(failure.with_hint(Some(hint.to_owned())));
    }
    let size = |file: &PathBuf| pipeline.path.join(file).metadata().map_or(0, |found| found.len());
    let copied: Vec<(PathBuf, u64)> = files.iter().map(|file| (file.clone(), size(file))).collect();
    let fingerprint = fingerprint(&components, &copied);
    Ok(PipelinePlan { pipeline, components, copied, notices, left_out, fingerprint })
}

/// The plan of a component in the format that was asked for; else in torchao's, which diffusers loads, or where that does not hold the
/// scheme as floats.
fn plan_component(
    mut job: Job,
    component: &PipelineComponent,
    given: Option<&GivenStatistics>,
    reporter: &Reporter<'_>,
) -> Result<(Job, CheckpointPlan), Error> {
    refuse_calibration(&job, component, given)?;
    if !job.sinks.formats.is_empty() {
        refuse_unread(&job, component)?;
        let plan = checkpoint_plan::plan(&job, reporter)?;
        return Ok((job, plan));
    }
    job.sinks.formats = vec![Format::Model(OutputFormat::Checkpoint(FormatHandle::TORCHAO))];
    match checkpoint_plan::plan(&job, reporter) {
        Ok(plan) => Ok((job, plan)),
        Err(error) if error.kind == ErrorKind::Unsupported => {
            job.sinks.formats = vec![Format::Model(OutputFormat::PlainFloats)];
            // What is wrong with torchao's layout is not what the user asked about.
            let plan = checkpoint_plan::plan(&job, reporter)?;
            let name = &component.name;
            reporter.note(&format!(
                "{name}: its values are rounded and stay floats, so it does not get smaller: torchao's layout, which diffusers loads, \
                 does not hold all of its layers in their schemes ({})",
                error.message
            ));
            Ok((job, plan))
        }
        Err(error) => Err(error),
    }
}

/// Refuses patterns of layers in a component that is copied: they would change nothing.
fn refuse_patterns_of_kept(job: &Job, component: &str, reason: &str) -> Result<(), Error> {
    let excluded = job.recipe.exclude.iter();
    let mut patterns = excluded.chain(job.recipe.overrides.iter().map(|pattern| &pattern.layers));
    let Some(pattern) = patterns.find(|pattern| pattern_inside(pattern, component).is_some()) else { return Ok(()) };
    let message = format!("`{pattern}` changes nothing: the component {component} is kept ({reason})");
    let hint =
        format!("leave the pattern out, or give the component a scheme, e.g. ‹component› {component}=int8:channel");
    Err(Error::new(ErrorKind::Usage, message).with_hint(Some(hint)))
}

/// Refuses a component that is copied with weights under a name that its library does not look for.
fn refuse_other_names(component: &PipelineComponent, files: &[PathBuf]) -> Result<(), Error> {
    let Some(Misnamed { problem, expected }) = Misnamed::find(component, files) else { return Ok(()) };
    let hint = format!(
        "rename the weights to {expected}, or with an index its files, or quantize the component: ‹component› {}=int8:channel",
        component.name
    );
    Err(Error::new(ErrorKind::Unsupported, problem).with_hint(Some(hint)))
}

/// An error of a component, with its name before those of its layers.
pub(super) fn of_component(error: Error, name: &str) -> Error {
    let named = |text: &str| {
        let text = text.replace("‹exclude› '", &format!("‹exclude› '{name}."));
        text.replace("kvant inspect MODEL", &format!("kvant inspect MODEL/{name}"))
    };
    let hint = error.hint.as_deref().map(named);
    let message = format!("{name}: {}", error.message);
    Error { message, ..error }.with_hint(hint)
}

/// Refuses algorithms that need calibration data, and static scales without statistics: components do not run here.
fn refuse_calibration(job: &Job, component: &PipelineComponent, given: Option<&GivenStatistics>) -> Result<(), Error> {
    let (line, file) = resolve::settings(job, None, &[])?;
    let recipe = Recipe::resolve(&line, &file)?.with_statistics(resolve::statistics(job)?);
    let algorithms = recipe.algorithms();
    let what = match recipe.default_choice().scheme() {
        _ if algorithms.learned_rotation().is_some() || algorithms.need_data() && !recipe.rounds_with_statistics() => {
            format!("{algorithms}: it needs calibration data")
        }
        Some(scheme) if scheme.needs_calibration() && job.recipe.statistics.is_none() => {
            if let Some(GivenStatistics { path, .. }) = given {
                let name = &component.name;
                let message = format!("`{scheme}` has static scales, and {} has no statistics of {name}", shown(path));
                let hint = format!(
                    "name its tensors {name}.LAYER.input_min and so on, or give a folder with {name}.safetensors; or give the component \
                     another scheme with ‹component›"
                );
                return Err(Error::new(ErrorKind::Invalid, message).with_hint(Some(hint)));
            }
            format!("`{scheme}` has static scales, which need calibration data")
        }
        _ => return Ok(()),
    };
    let message = format!("{what}, and components of pipelines do not run in Kvant");
    let hint = ForwardError::Component { class: component.class.clone() }.hint();
    Err(Error::new(ErrorKind::Unsupported, message).with_hint(hint))
}

/// Refuses a format that the library of a component does not load.
fn refuse_unread(job: &Job, component: &PipelineComponent) -> Result<(), Error> {
    let reads = [OutputFormat::Checkpoint(FormatHandle::TORCHAO), OutputFormat::PlainFloats].map(Format::Model);
    match job.sinks.formats.iter().find(|format| !reads.contains(format)) {
        Some(format) if component.library == LOADER => {
            let message = format!("diffusers does not load the format {}", format.name());
            let hint = "use ‹format› torchao or fake, or leave ‹format› out";
            Err(Error::new(ErrorKind::Unsupported, message).with_hint(Some(hint.to_owned())))
        }
        _ => Ok(()),
    }
}

/// Refuses what a pipeline as a whole has no place for.
fn refuse_settings(job: &Job) -> Result<(), Error> {
    let refuse = |setting: &str, hint: &str| {
        let failure = Error::new(ErrorKind::Usage, format!("{setting} does not apply to a diffusers pipeline"));
        Err(failure.with_hint(Some(hint.to_owned())))
    };
    let quality = &job.limits.quality;
    let is_measured = quality.max_kl.is_some() || quality.max_perplexity_increase.is_some() || quality.eval.is_some();
    if !job.source.adapters.is_empty() {
        return refuse(
            "‹lora›",
            "merge the adapter into the component that it was trained on, which is a folder of the pipeline",
        );
    }
    if job.sinks.wants_gguf() || job.sinks.wants_graph() {
        return refuse("this ‹format›", "name a component of it, or a checkpoint format (`kvant list formats`)");
    }
    if job.sinks.formats.len() > 1 {
        return refuse("more than one ‹format›", "name one format for all components");
    }
    if is_measured {
        return refuse("a limit on the quality of texts", "leave it out: components are no language models");
    }
    Ok(())
}

fn left_out_line(file: &LeftOutFile) -> String {
    format!("{} is not carried along: {}", shown(&file.name), file.reason)
}

/// A number for what is made: the plans of components, and names and sizes of the other files.
fn fingerprint(components: &[PlannedComponent], copied: &[(PathBuf, u64)]) -> String {
    let mut hash = Xxh3::new();
    for component in components {
        let plan = component.plan.as_ref().map_or("", |planned| planned.plan.fingerprint());
        hash.update(format!("{}\n{plan}\n", component.component.name).as_bytes());
    }
    for (file, bytes) in copied {
        hash.update(format!("{}\n{bytes}\n", recorded_name(file)).as_bytes());
    }
    format!("{:016x}", hash.digest())
}

impl PipelinePlan {
    /// Refuses a pipeline with a component that is copied and damaged: NaN in a norm would be found only when the result is loaded.
    pub(crate) fn refuse_damaged(&self) -> Result<(), Error> {
        for component in self.components.iter().filter(|component| component.plan.is_err()) {
            let path = self.pipeline.path.join(&component.component.name);
            let report = verify(&path, &Options::default())?;
            if !report.passes() {
                let message = failing(&shown(&path).to_string(), &report.findings);
                let hint = "download the component again, or copy it unchecked with ‹no-verify›";
                return Err(Error::new(ErrorKind::Invalid, message).with_hint(Some(hint.to_owned())));
            }
        }
        Ok(())
    }

    /// The notices of components, and those on files that are not copied.
    pub(crate) fn all_notices(&self) -> impl Iterator<Item = &String> {
        self.notices.iter().chain(&self.left_out)
    }

    /// The warnings of components, each with the name of one.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let of_component = |component: &PlannedComponent| {
            let name = component.component.name.clone();
            let warnings = component.plan.as_ref().map_or(&[][..], |planned| planned.warnings.as_slice());
            of_own_files(warnings).map(|warning| format!("{name}: {warning}")).collect::<Vec<_>>()
        };
        self.quantized().flat_map(of_component).collect()
    }

    /// The names of the components that are quantized.
    pub(crate) fn quantized(&self) -> impl Iterator<Item = &PlannedComponent> {
        self.components.iter().filter(|component| component.plan.is_ok())
    }

    /// Bytes of all tensors before, and after.
    pub fn sizes(&self) -> (u64, u64) {
        let sum = |bytes: fn(&PlannedComponent) -> u64| self.components.iter().map(bytes).sum();
        (sum(|component| component.source_bytes), sum(PlannedComponent::output_bytes))
    }

    /// Bytes of memory that a run takes at most.
    pub fn peak_memory(&self) -> u64 {
        let of = |component: &PlannedComponent| component.plan.as_ref().map_or(0, |planned| planned.peak_memory());
        self.components.iter().map(of).max().unwrap_or(0)
    }

    /// The plan as JSON; the plan of a component has no tensors.
    pub(crate) fn to_json(&self) -> Value {
        let (source_bytes, output_bytes) = self.sizes();
        json!({
            "model": path_json(&self.pipeline.path),
            "pipeline": self.pipeline.class,
            "components": self.components.iter().map(component_json).collect::<Vec<_>>(),
            "copied_files": self.copied.iter().map(|(file, _)| recorded_name(file)).collect::<Vec<_>>(),
            "source_bytes": source_bytes,
            "output_bytes": output_bytes,
            "peak_memory": self.peak_memory(),
            "notices": self.all_notices().collect::<Vec<_>>(),
        })
    }
}

/// The warnings that are not of a tokenizer, which is a component of its own.
pub(super) fn of_own_files<S: AsRef<str>>(warnings: &[S]) -> impl Iterator<Item = &str> {
    warnings.iter().map(AsRef::as_ref).filter(|warning| !warning.starts_with("tokenizer.json"))
}

/// A component with what becomes of it.
pub(super) fn component_json(component: &PlannedComponent) -> Value {
    let planned = component.plan.as_ref().ok();
    json!({
        "name": component.component.name,
        "library": component.component.library,
        "class": component.component.class,
        "reason": component.plan.as_ref().err(),
        "recipe": planned.map(|planned| planned.plan.recipe()),
        "format": planned.map(|planned| planned.format()),
        "loaders": planned.map_or_else(Vec::new, |planned| planned.plan.loaders()),
        "quantized_layers": planned.map_or(0, |planned| planned.plan.layers().len()),
        "source_bytes": component.source_bytes,
        "output_bytes": component.output_bytes(),
    })
}
