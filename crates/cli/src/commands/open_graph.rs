//! `kvant open-graph`: opens a graph in ONNX Runtime, in this process, which that may crash.

use crate::args::OpenGraphArgs;
use crate::printer::Printer;
use kvant::{Error, open_graph};

/// Opens a graph and says what came of it.
///
/// # Errors
/// If stdout cannot be written.
pub fn run(args: &OpenGraphArgs, printer: &Printer) -> Result<(), Error> {
    printer.json("open-graph", &open_graph(&args.model, args.runtime_library.as_deref()).object())
}
