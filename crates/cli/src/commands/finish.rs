//! `kvant finish`.

use super::quantize;
use crate::args::{Command, FinishPartsArgs};
use crate::parse::{parse, usage_error};
use crate::printer::Printer;
use kvant::text::shown;
use kvant::{Error, ErrorKind, Job, Sharing, parts};
use kvant_checkpoint::engine::{Part, PartCommand};
use kvant_container::of_record;
use std::ffi::OsString;
use std::path::Path;

/// Completes the output of several workers: repeats their command, which finds all the work done.
///
/// # Errors
/// Parts that are missing or of another model; whatever verification finds.
pub fn run(args: &FinishPartsArgs, printer: &Printer) -> Result<(), Error> {
    let output = std::path::absolute(&args.output).map_err(|error| Error::system(error.to_string()))?;
    let parts = parts(&output)?;
    // Of the runs that have left parts, the one of which the fewest are missing.
    let lacking = |part: &&Part| {
        let made = parts.iter().filter(|other| other.worker.count == part.worker.count && other.plan() == part.plan());
        part.worker.count - made.count().min(part.worker.count)
    };
    let Some(part) = parts.iter().min_by_key(lacking) else {
        if output.exists() {
            let message = format!("{} is complete: no worker has left a part", shown(&args.output));
            return Err(Error::new(ErrorKind::Invalid, message).with_hint(Some("there is nothing to do".to_owned())));
        }
        let message = format!("no worker has made a part of {}", shown(&args.output));
        let hint =
            "give the output that the workers were started with, and run them first: `kvant quantize ... --worker 0/4`";
        return Err(Error::new(ErrorKind::Invalid, message).with_hint(Some(hint.to_owned())));
    };
    enter(part.command())?;
    let line: Vec<OsString> = part.command().arguments.iter().map(|text| of_record(text).into_os_string()).collect();
    let cli = parse(&line).map_err(|error| usage_error(&error))?;
    cli.families.iter().try_for_each(|file| kvant::add_family(file).map(drop))?;
    match cli.command {
        Command::Quantize(quantize) if quantize.accuracy.metric.is_none() => {
            let job = Job::from(*quantize);
            let sinks = kvant::Sinks { output: Some(output), ..job.sinks.clone() };
            quantize::carry_out(&Job { sinks, sharing: Sharing::Finish, ..job }, printer)
        }
        _ => {
            let message = format!("the parts of {} do not state a command of a worker", shown(&args.output));
            let hint = "run the command of the workers without --worker: it takes over their parts";
            Err(Error::new(ErrorKind::Invalid, message).with_hint(Some(hint.to_owned())))
        }
    }
}

/// Relative paths of the command start from the directory in which the workers ran.
fn enter(command: &PartCommand) -> Result<(), Error> {
    let directory = command.directory();
    if directory == Path::new("") || std::env::current_dir().is_ok_and(|current| current == directory) {
        return Ok(());
    }
    std::env::set_current_dir(&directory).map_err(|error| {
        let message = format!("cannot enter {}, in which the workers ran: {error}", shown(&directory));
        let hint = "run the command of the workers without --worker instead: it takes over their parts";
        Error::system(message).with_hint(Some(hint.to_owned()))
    })
}
