//! Running and planning jobs: the kind of the source and the recipe decide which flow a job takes.

use crate::cancel::CancelToken;
use crate::checkpoint::worker::{self, Shared};
use crate::checkpoint::{self, CheckpointPlan};
use crate::ending::{Stopped, concluded};
use crate::error::{Error, ErrorKind};
use crate::events::{Events, Reporter};
use crate::gguf::{self, GgufFilePlan};
use crate::job::{Format, Job, Sharing, SourceKind};
use crate::onnx::{self, GraphPlan};
use crate::page;
use crate::pipeline::{self, PipelinePlan};
use crate::remote::{self, OpenedModel};
use crate::report::Report;
use crate::text::shown;
use crate::{paths, quality, quality_level};
use kvant_container::recorded;
use kvant_container::unfinished::blocks_beside;
use kvant_formats::format::OutputFormat;
use serde_json::Value;
use std::path::PathBuf;

/// The plan of a job.
pub enum Plan {
    /// A checkpoint, or outputs derived from one.
    Checkpoint(Box<CheckpointPlan>),
    /// A GGUF file.
    Gguf(Box<GgufFilePlan>),
    /// An ONNX graph.
    Graph(Box<GraphPlan>),
    /// A diffusers pipeline.
    Pipeline(Box<PipelinePlan>),
}

impl Plan {
    /// The plan as an object of `docs/schemas/plan.schema.json`, without its `schema` key and without the tensors.
    pub fn to_json(&self) -> Value {
        match self {
            Plan::Checkpoint(plan) => plan.to_json(),
            Plan::Gguf(plan) => gguf::plan::to_json(&plan.plan, &plan.checkpoint, plan.memory),
            Plan::Graph(plan) => plan.to_json(),
            Plan::Pipeline(plan) => plan.to_json(),
        }
    }

    /// Divides the work among so many workers, which the plan shows then.
    ///
    /// # Errors
    /// Work that cannot be shared.
    pub fn divide(&mut self, job: &Job, workers: usize) -> Result<(), Error> {
        let shares = match self {
            Plan::Checkpoint(planned) => worker::shares(job, Some(&planned.plan), workers)?,
            _ => worker::shares(job, None, workers)?,
        };
        if let Plan::Checkpoint(planned) = self {
            planned.shares = shares;
        }
        Ok(())
    }

    /// Bytes of memory that a run on a checkpoint takes at most.
    pub fn peak_memory(&self) -> Option<u64> {
        match self {
            Plan::Checkpoint(planned) => Some(planned.peak_memory()),
            _ => None,
        }
    }

    /// What verification of the output will warn of. Tokenizers of pipelines are components of their own.
    fn warnings(&self) -> Vec<String> {
        match self {
            Plan::Checkpoint(plan) => plan.warnings.clone(),
            Plan::Pipeline(plan) => plan.warnings(),
            Plan::Gguf(plan) => plan.plan.departures.clone(),
            Plan::Graph(_) => Vec::new(),
        }
    }

    /// Each tensor as JSON; of graphs they are in [`to_json`](Self::to_json), and of pipelines left out.
    pub fn tensors_json(&self) -> Vec<Value> {
        match self {
            Plan::Checkpoint(plan) => plan.tensors_json(),
            Plan::Gguf(plan) => gguf::plan::tensors_json(&plan.plan).collect(),
            Plan::Graph(_) | Plan::Pipeline(_) => Vec::new(),
        }
    }
}

impl Job {
    /// Quantizes the model. An interrupted run resumes when the same job runs again, and makes the same bytes.
    ///
    /// # Errors
    /// Everything that can be refused is refused before anything is written; then what the weights, the data or the system say,
    /// a result that does not pass verification or the quality limits, and a cancelled token. A graph below its least SQNR is
    /// reported: see [`Report::rejection`].
    pub fn run(&self, events: &mut dyn Events, cancel: &CancelToken) -> Result<Report, Error> {
        // A graph that was stopped before it found ranges has left nothing.
        let is_kept = |output: PathBuf| blocks_beside(&output).exists();
        let output = || paths::follow(self.sinks.output.clone()).ok().flatten();
        let resumes = || self.source.kind() != SourceKind::Graph || output().is_some_and(is_kept);
        let stopped = || if resumes() { Stopped::Resumes } else { Stopped::StartsOver };
        concluded(stopped, || self.carry_out(&Reporter::new(events, cancel)))
    }

    fn carry_out(&self, reporter: &Reporter<'_>) -> Result<Report, Error> {
        let remote = remote::open(&self.source.model, self.sinks.output.as_deref(), reporter.cancel())?;
        let job = self.reading(&remote).prepared(true)?;
        let model = job.source.model.clone();
        let report = Self::made(job, reporter)?;
        if !matches!(report, Report::Part(_)) {
            page::write(self.sinks.page.as_deref(), &model, "quantize", &[], || report.to_json())?;
        }
        Ok(report)
    }

    /// Makes what a job whose paths are checked asks for.
    fn made(mut job: Job, reporter: &Reporter<'_>) -> Result<Report, Error> {
        if let Some(note) = quality_level::settle(&mut job)? {
            reporter.note(&note);
            quality_level::refuse_without_data(&job)?;
        }
        quality::check(&job)?;
        if job.sharing != Sharing::Alone {
            let part = match worker::run(&job, reporter)? {
                Shared::Done(part) => return Ok(Report::Part(part)),
                Shared::Complete(part) => part,
            };
            job.sharing = Sharing::Alone;
            // What was to be discarded was the worker's part.
            job.sinks.commit.restart = false;
            let completed = checkpoint::quantize::run(&job, reporter).map(Report::Checkpoint);
            return match part.filter(|_| completed.is_err() && worker::is_completed_elsewhere(&job)) {
                Some(part) => Ok(Report::Part(part)),
                None => completed,
            };
        }
        if job.source.kind() == SourceKind::Graph {
            return onnx::quantize::run(&job, reporter).map(Report::Graph);
        }
        if job.source.kind() == SourceKind::Pipeline {
            return pipeline::quantize::run(&job, reporter).map(Report::Pipeline);
        }
        match gguf::recipe(&job)? {
            Some(recipe) if !recipe.has_algorithms() => gguf::quantize::run(&job, recipe, reporter).map(Report::Gguf),
            Some(_) => checkpoint::quantize::run(&job.of_gguf(), reporter).map(Report::Checkpoint),
            None => checkpoint::quantize::run(&job, reporter).map(Report::Checkpoint),
        }
    }

    /// Plans the job: reads headers and kept floats, and writes nothing. Refuses everything that [`run`](Self::run) would refuse
    /// before its work, except missing calibration data.
    ///
    /// # Errors
    /// See above.
    pub fn plan(&self, events: &mut dyn Events) -> Result<Plan, Error> {
        let reporter = Reporter::new(events, &CancelToken::new());
        let remote = remote::open(&self.source.model, None, reporter.cancel())?;
        let mut job = self.reading(&remote).prepared(false)?;
        quality_level::settle(&mut job)?.iter().for_each(|note| reporter.note(note));
        let plan = remote::looked_at(&job.source.model, || planned(&job, &reporter))?;
        plan.warnings().iter().for_each(|warning| reporter.warning(warning));
        Ok(plan)
    }

    /// The job with the path that its model was opened with.
    fn reading(&self, model: &OpenedModel) -> Job {
        let mut job = self.clone();
        if remote::is_elsewhere(&model.path) {
            // Journals hold what was typed, and an address may hold a password.
            let typed = shown(&self.source.model);
            let settings = job.sinks.settings.values_mut().filter(|value| **value == typed);
            settings.for_each(|value| *value = shown(&model.path));
            if let Sharing::Worker { command, .. } = &mut job.sharing {
                let typed = recorded(&self.source.model);
                let arguments = command.arguments.iter_mut().filter(|argument| **argument == typed);
                arguments.for_each(|argument| *argument = shown(&model.path));
            }
        }
        job.source.model.clone_from(&model.path);
        job
    }

    /// The job with the format that the name of its scheme asks for.
    pub(crate) fn of_gguf(&self) -> Job {
        let mut job = self.clone();
        job.sinks.formats = vec![Format::Model(OutputFormat::Gguf)];
        job
    }

    /// The job with links to outputs followed and its paths checked, and with a format that only the recipe file names.
    fn prepared(&self, writes: bool) -> Result<Job, Error> {
        refuse_components(self)?;
        let mut job = self.clone();
        if job.source.kind() == SourceKind::Graph {
            onnx::accuracy::complete(&mut job);
        }
        job.sinks.output = paths::follow(job.sinks.output)?;
        if writes && job.source.kind() == SourceKind::Graph {
            onnx::recover(&job.sinks)?;
        }
        paths::check_job(&job, writes)?;
        checkpoint::planning::complete(&mut job)?;
        if remote::is_elsewhere(&job.source.model) {
            remote::refuse_settings(&job)?;
            if let Some(recipe) = gguf::recipe(&job)? {
                return Err(remote::refused(&job.source.model, &format!("‹scheme› {}", recipe.ftype())));
            }
        }
        Ok(job)
    }
}

/// The plan of a job whose paths are checked.
fn planned(job: &Job, reporter: &Reporter<'_>) -> Result<Plan, Error> {
    quality::check(job)?;
    if job.source.kind() == SourceKind::Graph {
        return onnx::plan::plan(job).map(|plan| Plan::Graph(Box::new(plan)));
    }
    if job.source.kind() == SourceKind::Pipeline {
        let plan = pipeline::plan::plan(job, reporter)?;
        pipeline::quantize::check_output(job, &plan)?;
        return Ok(Plan::Pipeline(Box::new(plan)));
    }
    match gguf::recipe(job)? {
        Some(recipe) if !recipe.has_algorithms() => {
            gguf::plan::plan(job, recipe, reporter).map(|plan| Plan::Gguf(Box::new(plan)))
        }
        Some(_) => checkpoint::plan::plan(&job.of_gguf(), reporter).map(|plan| Plan::Checkpoint(Box::new(plan))),
        None => checkpoint::plan::plan(job, reporter).map(|plan| Plan::Checkpoint(Box::new(plan))),
    }
}

/// Refuses schemes for components of a model that is not a pipeline.
fn refuse_components(job: &Job) -> Result<(), Error> {
    if job.recipe.components.is_empty() || job.source.kind() == SourceKind::Pipeline {
        return Ok(());
    }
    let failure = Error::new(ErrorKind::Usage, "‹component› applies only to diffusers pipelines");
    Err(failure.with_hint(Some("leave it out, or name a folder with a model_index.json".to_owned())))
}
