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
    if !printer.is_json() {
        printer.data(&printer.sections(&inspection.sections(args.listing.all)))?;
    } else if let Some(tensors) = inspection.tensors_json() {
        printer.data(&json::object("inspect", &inspection.to_json(), "tensors", tensors.into_iter()))?;
    } else {
        printer.json("inspect", &inspection.to_json())?;
    }
    // The objects of checkpoints and pipelines have their notices.
    if matches!(inspection, Inspection::Graph(_)) || !printer.is_json() {
        inspection.notices().iter().for_each(|notice| printer.note(notice));
    }
    Ok(())
}
