//! `kvant inspect`.

use crate::args::InspectArgs;
use crate::interrupt;
use crate::printer::Printer;
use kvant::{Error, Inspection, inspect, json, suggest_family};
use serde_json::json;

/// Inspects a model; reads headers and configurations only.
///
/// # Errors
/// Errors of the files.
pub fn run(args: &InspectArgs, printer: &Printer) -> Result<(), Error> {
    interrupt::exit_on_signal();
    if args.suggest_family {
        let draft = suggest_family(&args.model)?;
        if let Some(family) = draft.described {
            printer.note(&format!("this architecture has a description, `{family}`: a file is not needed"));
        }
        return match printer.is_json() {
            true => printer.json(
                "inspect",
                &json!({"like": draft.like, "described": draft.described, "open": draft.open, "description": draft.text}),
            ),
            false => printer.data(&draft.text),
        };
    }
    let inspection = inspect(&args.model)?;
    let is_graph = matches!(inspection, Inspection::Graph(_));
    match printer.is_json() {
        false => printer.data(&printer.sections(&inspection.sections(args.listing.all)))?,
        true if is_graph => printer.json("inspect", &inspection.to_json())?,
        true => {
            let tensors = inspection.tensors_json().into_iter();
            printer.data(&json::object("inspect", &inspection.to_json(), "tensors", tensors))?;
        }
    }
    // The object of a checkpoint has its notices.
    if is_graph || !printer.is_json() {
        inspection.notices().iter().for_each(|notice| printer.note(notice));
    }
    Ok(())
}
