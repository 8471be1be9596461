//! `kvant list`: the tables of the library, for people and as JSON.

use crate::args::ListArgs;
use crate::failure::usage;
use crate::printer::Printer;
use kvant::Error;
use kvant::catalog::schemes_for;
use serde_json::json;

/// Prints a table.
///
/// # Errors
/// If stdout cannot be written.
pub fn run(args: &ListArgs, printer: &Printer) -> Result<(), Error> {
    let list = match &args.loader {
        None => args.topic.table(),
        Some(loader) if args.topic.name == "schemes" => schemes_for(loader),
        Some(_) => return Err(usage("--for applies only to schemes", "use `kvant list schemes --for LOADER`")),
    };
    if printer.is_json() {
        return printer.json("list", &json!({ "topic": args.topic.name, "rows": list.objects() }));
    }
    printer.data(&printer.table(&list.text()))
}
