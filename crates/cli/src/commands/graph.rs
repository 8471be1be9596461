//! `kvant graph`.

use crate::args::{GraphArgs, GraphCommand};
use crate::interrupt;
use crate::printer::Printer;
use crate::progress::Console;
use kvant::{Error, GraphEdit, GraphListing};

/// Shows a graph, or writes what a tool makes of it: the path on stdout, or one object; what was changed on stderr.
///
/// # Errors
/// Files that are no sound graphs or not to be replaced, requests that a graph does not fulfil; then the system's.
pub fn run(args: GraphArgs, printer: &Printer) -> Result<(), Error> {
    if let GraphCommand::Show(args) = &args.tool {
        interrupt::exit_on_signal();
        let listing = GraphListing::of(&args.model, args.list_nodes)?;
        if let Some(file) = &args.svg {
            kvant::write_picture(&args.model, file)?;
        }
        return match printer.is_json() {
            true => printer.json("graph", &listing.to_json()),
            false => printer.data(&printer.sections(&listing.sections())),
        };
    }
    let Some(edit) = Option::<GraphEdit>::from(args.tool) else { return Ok(()) };
    let mut console = Console::new(printer);
    let cancel = console.cancel();
    let report = edit.run(&mut console, &cancel)?;
    drop(console);
    printer.summary(&report.line());
    match printer.is_json() {
        true => printer.json("graph", &report.to_json()),
        false => printer.paths([report.output.as_path()]),
    }
}
