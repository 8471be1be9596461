//! `kvant quantize`.

use super::plan;
use crate::args::QuantizeArgs;
use crate::printer::Printer;
use crate::progress::Console;
use kvant::{Error, Job, Report, Sharing};

/// Quantizes a model: the path on stdout, or one object; the summary on stderr.
///
/// # Errors
/// Whatever can be refused, before anything is written; then what the system or the weights say.
pub fn run(args: QuantizeArgs, printer: &Printer) -> Result<(), Error> {
    let is_dry_run = args.output.dry_run;
    let job = Job::from(args);
    if is_dry_run {
        let workers = match &job.sharing {
            Sharing::Worker { worker, .. } => Some(worker.count),
            Sharing::Alone | Sharing::Finish => None,
        };
        return plan::show(&job, plan::Listing { workers, ..plan::Listing::default() }, printer).map(drop);
    }
    carry_out(&job, printer)
}

/// Carries out a job, and shows what was made.
///
/// # Errors
/// See [`run`].
pub(super) fn carry_out(job: &Job, printer: &Printer) -> Result<(), Error> {
    let mut console = Console::new(printer);
    let cancel = console.cancel();
    let report = job.run(&mut console, &cancel)?;
    drop(console);
    show(&report, printer)?;
    report.rejection().map_or(Ok(()), |rejection| Err(rejection.clone()))
}

/// Shows what was made.
///
/// # Errors
/// Those of writing to stdout.
pub(super) fn show(report: &Report, printer: &Printer) -> Result<(), Error> {
    // The object of a graph has its remarks.
    if !(matches!(report, Report::Graph(_)) && printer.is_json()) {
        printer.summary(&printer.sections(&report.losses()));
        printer.remarks(&report.remarks());
        printer.summary(&printer.sections(&report.sections()));
    }
    if printer.is_json() {
        return printer.json("quantize", &report.to_json());
    }
    printer.paths(report.outputs())
}
