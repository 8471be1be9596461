//! `kvant plan`.

use crate::args::{PlanArgs, WorkersArgs};
use crate::interrupt;
use crate::printer::Printer;
use crate::progress::Console;
use crate::scheduler_files::{Workers, quantize_command};
use kvant::text::shown;
use kvant::{Error, Job, Plan, json};
use std::path::Path;

/// Plans and prints the plan.
///
/// # Errors
/// Whatever `kvant quantize` would refuse.
pub fn run(args: PlanArgs, printer: &Printer) -> Result<(), Error> {
    let WorkersArgs { workers, write_jobs, arguments } = args.workers;
    let (all, overwrite) = (args.listing.all, args.replace.overwrite);
    let job = Job::from(PlanArgs { workers: WorkersArgs::default(), ..args });
    let listing = Listing { all, workers: workers.map(|workers| workers as usize) };
    let plan = show(&job, listing, printer)?;
    let Some((directory, count)) = write_jobs.zip(listing.workers) else { return Ok(()) };
    let here = std::env::current_dir().map_err(|error| Error::system(error.to_string()))?;
    let command = quantize_command(&arguments);
    let memory = plan.peak_memory().unwrap_or_default();
    let absolute = |path: &Path| here.join(path);
    let paths = [Some(job.source.model.as_path()), job.sinks.output.as_deref()].into_iter().flatten().map(absolute);
    let (paths, threads) = (paths.collect(), job.limits.threads());
    let files = Workers { count, command: &command, directory: &here, memory, threads, paths };
    for path in files.write(&here.join(directory), overwrite)? {
        printer.note(&format!("wrote {}", shown(&path)));
    }
    Ok(())
}

/// How much of a plan is shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Listing {
    /// A line for every tensor.
    pub all: bool,
    /// What each of so many workers does.
    pub workers: Option<usize>,
}

/// Prints the plan of a job.
///
/// # Errors
/// See [`run`].
pub fn show(job: &Job, listing: Listing, printer: &Printer) -> Result<Plan, Error> {
    interrupt::exit_on_signal();
    let mut plan = job.plan(&mut Console::new(printer))?;
    if let Some(workers) = listing.workers {
        plan.divide(job, workers)?;
    }
    let (is_graph, is_pipeline) = (matches!(plan, Plan::Graph(_)), matches!(plan, Plan::Pipeline(_)));
    match printer.is_json() {
        false => printer.data(&printer.sections(&plan.sections(listing.all)))?,
        true if is_graph || is_pipeline => printer.json("plan", &plan.to_json())?,
        true => printer.data(&json::object("plan", &plan.to_json(), "tensors", plan.tensors_json().into_iter()))?,
    }
    // The object of a checkpoint has its notices.
    if is_graph || !printer.is_json() {
        plan.notices().iter().for_each(|notice| printer.note(notice));
    }
    Ok(plan)
}
