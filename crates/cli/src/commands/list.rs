//! `kvant list`: the tables of the library, for people and as JSON.

use crate::args::ListArgs;
use crate::failure::usage;
use crate::printer::Printer;
use crate::table::{Align, Table};
use kvant::Error;
use kvant::catalog::schemes_for;
use serde_json::{Value, json};

/// Prints a table.
///
/// # Errors
/// When stdout cannot be written.
pub fn run(args: &ListArgs, printer: &Printer) -> Result<(), Error> {
    let list = match &args.loader {
        None => args.topic.table(),
        Some(loader) if loader == "onnxruntime" => {
            return Err(usage("ONNX graphs have presets instead of schemes", "use `kvant list presets`"));
        }
        Some(loader) if args.topic.name == "schemes" => schemes_for(loader),
        Some(_) => return Err(usage("--for applies only to schemes", "use `kvant list schemes --for LOADER`")),
    };
    if printer.is_json() {
        return printer.json("list", &json!({ "topic": args.topic.name, "rows": list.objects() }));
    }
    let align = |is_number: bool| if is_number { Align::Right } else { Align::Left };
    let columns: Vec<_> = list.columns.iter().map(|column| (column.name, align(column.is_number))).collect();
    let mut table = Table::new(&columns);
    list.rows.iter().for_each(|row| table.push(row.iter().map(text)));
    printer.data(&table.render(printer.width()))
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(", "),
        Value::Bool(yes) => (if *yes { "yes" } else { "no" }).to_owned(),
        other => other.to_string(),
    }
}
