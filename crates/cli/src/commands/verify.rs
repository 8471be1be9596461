//! `kvant verify`.

use crate::args::VerifyArgs;
use crate::interrupt;
use crate::printer::Printer;
use kvant::{Error, ErrorKind, Verification};

/// Verifies and prints the findings.
///
/// # Errors
/// [`ErrorKind::Unfit`] for a model that does not pass; errors of reading it.
pub fn run(args: &VerifyArgs, printer: &Printer) -> Result<(), Error> {
    interrupt::exit_on_signal();
    let report = Verification::from(args).run()?;
    match printer.is_json() {
        true => printer.json("verify", &report.to_json())?,
        false => printer.data(&printer.sections(&report.sections(args.listing.all)))?,
    }
    if report.passes() { Ok(()) } else { Err(Error::new(ErrorKind::Unfit, report.problem())) }
}
