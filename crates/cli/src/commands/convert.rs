//! `kvant convert`.

use crate::args::ConvertArgs;
use crate::printer::Printer;
use crate::progress::Console;
use kvant::{Conversion, Error};

/// Converts a model: the path on stdout, or one object; the summary on stderr.
///
/// # Errors
/// Conversions that the target does not support, before anything is written; then errors of the system or the weights.
pub fn run(args: ConvertArgs, printer: &Printer) -> Result<(), Error> {
    let is_dry_run = args.output.dry_run;
    let conversion = Conversion::from(args);
    let mut console = Console::new(printer);
    let cancel = console.cancel();
    let report = match is_dry_run {
        true => conversion.plan(&mut console)?,
        false => conversion.run(&mut console, &cancel)?,
    };
    drop(console);
    printer.summary(&printer.sections(&report.sections()));
    match (report.output(), printer.is_json()) {
        (_, true) => printer.json("convert", &report.to_json()),
        (Some(output), false) => printer.paths([output]),
        (None, false) => Ok(()),
    }
}
