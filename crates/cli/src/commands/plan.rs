//! `kvant plan`.

use crate::args::PlanArgs;
use crate::interrupt;
use crate::printer::Printer;
use crate::progress::Console;
use kvant::{Error, Job, Plan, json};

/// Plans and prints the plan.
///
/// # Errors
/// Whatever `kvant quantize` would refuse.
pub fn run(args: PlanArgs, printer: &Printer) -> Result<(), Error> {
    let all = args.listing.all;
    show(&Job::from(args), all, printer)
}

/// Prints the plan of a job; `all` has a line for every tensor.
///
/// # Errors
/// See [`run`].
pub fn show(job: &Job, all: bool, printer: &Printer) -> Result<(), Error> {
    interrupt::exit_on_signal();
    let plan = job.plan(&mut Console::new(printer))?;
    let (is_graph, is_pipeline) = (matches!(plan, Plan::Graph(_)), matches!(plan, Plan::Pipeline(_)));
    match printer.is_json() {
        false => printer.data(&printer.sections(&plan.sections(all)))?,
        true if is_graph || is_pipeline => printer.json("plan", &plan.to_json())?,
        true => printer.data(&json::object("plan", &plan.to_json(), "tensors", plan.tensors_json().into_iter()))?,
    }
    // The object of a checkpoint has its notices.
    if is_graph || !printer.is_json() {
        plan.notices().iter().for_each(|notice| printer.note(notice));
    }
    Ok(())
}
