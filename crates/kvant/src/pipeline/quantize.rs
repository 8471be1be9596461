//! Quantizes a pipeline, component by component, and delivers it as one folder.

use super::plan::{self, PipelinePlan, PlannedComponent, component_json, of_component, of_own_files};
use crate::checkpoint;
use crate::delivery;
use crate::error::{Error, ErrorKind};
use crate::events::{Event, Events, Reporter};
use crate::job::{Job, SourceKind};
use crate::json::path as path_json;
use crate::text::shown;
use crate::{loading, paths};
use kvant_checkpoint::engine::{Folder, FolderStart};
use kvant_container::Durability;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The loader of a pipeline.
pub(crate) const LOADER: &str = "diffusers";

/// The result of quantizing a pipeline.
pub struct PipelineReport {
    /// The plan.
    pub plan: PipelinePlan,
    /// The output.
    pub output: PathBuf,
    /// The number of components that an interrupted run had made.
    pub resumed: usize,
    /// What is to be said of components, each with the name of one.
    pub warnings: Vec<String>,
    /// The duration of the run.
    pub time: Duration,
}

/// Quantizes a pipeline.
///
/// # Errors
/// Whatever can be refused, before anything is written; then what the system or the weights say.
pub(crate) fn run(job: &Job, reporter: &Reporter<'_>) -> Result<Box<PipelineReport>, Error> {
    let begun = Instant::now();
    let output = job.sinks.output.as_deref().ok_or_else(paths::no_directory)?;
    refuse_file_name(output)?;
    let plan = plan::plan(job, reporter)?;
    reporter.notes(&plan.left_out);
    let names: Vec<&str> = plan.quantized().map(|component| component.component.name.as_str()).collect();
    let commit = job.sinks.commit;
    if commit.restart {
        Folder::discard(output)?;
    }
    check_output(job, &plan)?;
    // Last, since it reads weights.
    if !commit.no_verify {
        plan.refuse_damaged()?;
    }
    reporter.started();
    let claim = delivery::claim(output, &job.sinks.settings, commit)?;
    let folder = match Folder::begin(claim, &plan.fingerprint, commit.overwrite)? {
        FolderStart::Finished => {
            let (output, resumed) = (output.to_owned(), names.len());
            let report = PipelineReport { output, resumed, warnings: Vec::new(), time: begun.elapsed(), plan };
            return Ok(Box::new(report));
        }
        FolderStart::Working(folder) => folder,
    };
    let (mut resumed, mut warnings) = (0, Vec::new());
    for (at, component) in plan.quantized().enumerate() {
        let (name, Some(job)) = (component.component.name.as_str(), component.job.as_deref()) else { continue };
        if folder.holds(name)? {
            resumed += 1;
        } else {
            let mut job = job.clone();
            job.sinks.output = Some(folder.part(name));
            // The card of a pipeline is that of the whole.
            job.sinks.no_model_card = true;
            let mut events = ComponentEvents { name, reporter };
            let made = checkpoint::quantize::run(&job, &Reporter::new(&mut events, reporter.cancel()))
                .map_err(|error| of_component(error, name))?;
            warnings.extend(of_own_files(&made.warnings()).map(|warning| format!("{name}: {warning}")));
        }
        folder.record(at)?;
    }
    let durability = if commit.sync { Durability::Disk } else { Durability::Process };
    let files: Vec<PathBuf> = plan.copied.iter().map(|(file, _)| file.clone()).collect();
    let output = folder.finish(&names, &plan.pipeline.path, &files, durability)?;
    Ok(Box::new(PipelineReport { plan, output, resumed, warnings, time: begun.elapsed() }))
}

/// Refuses a folder that cannot be written. Jobs without an output pass.
///
/// # Errors
/// Names what is in the way.
pub(crate) fn check_output(job: &Job, plan: &PipelinePlan) -> Result<(), Error> {
    let Some(output) = job.sinks.output.as_deref() else { return Ok(()) };
    refuse_file_name(output)?;
    delivery::check_runs([output], &job.sinks.settings, job.sinks.commit)?;
    let part = |part: &PlannedComponent| (part.component.name.clone(), part.output_bytes());
    let parts: Vec<(String, u64)> = plan.quantized().map(part).collect();
    let parts: Vec<(&str, u64)> = parts.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
    let copied = plan.copied.iter().map(|(_, bytes)| bytes).sum();
    let overwrite = job.sinks.commit.overwrite;
    Ok(Folder::check(&job.source.model, output, &plan.fingerprint, &parts, copied, overwrite)?)
}

/// Passes on what a component's run says, with the component's name.
struct ComponentEvents<'r, 'e> {
    name: &'r str,
    reporter: &'r Reporter<'e>,
}

impl Events for ComponentEvents<'_, '_> {
    fn event(&mut self, event: Event<'_>) {
        let named = |text: &str| format!("{}: {text}", self.name);
        match event {
            Event::Note(text) => self.reporter.event(Event::Note(&named(text))),
            Event::Warning(text) => self.reporter.event(Event::Warning(&named(text))),
            Event::Detail(text) => self.reporter.event(Event::Detail(&named(text))),
            // The pipeline's run has started.
            Event::Started => {}
            other => self.reporter.event(other),
        }
    }

    fn spell(&self, setting: &str) -> String {
        self.reporter.spelled(&format!("‹{setting}›"))
    }
}

/// Refuses the name of a file: a pipeline is a folder.
fn refuse_file_name(output: &Path) -> Result<(), Error> {
    let is_file = SourceKind::named(output).is_some() || output.extension().is_some_and(|end| end == "safetensors");
    if !is_file {
        return Ok(());
    }
    let message = format!("{} is the name of a file, and a pipeline is a folder", shown(output));
    Err(Error::new(ErrorKind::Usage, message).with_hint(Some("name a folder with ‹output›".to_owned())))
}

impl PipelineReport {
    /// The report as JSON.
    pub(crate) fn to_json(&self) -> Value {
        let (source_bytes, output_bytes) = self.plan.sizes();
        json!({
            "output": path_json(&self.output),
            "pipeline": self.plan.pipeline.class,
            "components": self.plan.components.iter().map(component_json).collect::<Vec<_>>(),
            "resumed_components": self.resumed,
            "source_bytes": source_bytes,
            "output_bytes": output_bytes,
            "seconds": self.time.as_secs_f64(),
            "loading": loading::json(&[LOADER], &self.output),
            "notices": self.plan.all_notices().collect::<Vec<_>>(),
        })
    }
}
