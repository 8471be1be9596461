//! `kvant report`.

use crate::args::ReportArgs;
use crate::interrupt;
use crate::printer::Printer;
use kvant::Error;
use kvant::page::{Page, PageRequest};
use serde_json::json;

/// Writes the report, and prints its path.
///
/// # Errors
/// Results that cannot be read or have no report; a file that is not to be replaced.
pub fn run(args: ReportArgs, printer: &Printer) -> Result<(), Error> {
    interrupt::exit_on_signal();
    let request = PageRequest { results: args.results, output: args.output, overwrite: args.replace.overwrite };
    let page = Page::make(&request)?;
    page.warnings().iter().for_each(|warning| printer.warning(warning));
    let output = &request.output;
    match printer.is_json() {
        true => printer.json("report", &json!({ "output": output.display().to_string() })),
        false => printer.paths([output.as_path()]),
    }
}
