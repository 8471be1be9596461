//! `kvant sensitivity`.

use crate::args::SensitivityArgs;
use crate::printer::Printer;
use crate::progress::Console;
use kvant::text::shown;
use kvant::{Error, Sensitivity};

/// Measures a graph.
///
/// # Errors
/// A model that is not an ONNX graph; errors of the graph, the recipe or the data; a target that no mix reaches.
pub fn run(args: SensitivityArgs, printer: &Printer) -> Result<(), Error> {
    let analysis = Sensitivity::try_from(args)?;
    let mut console = Console::new(printer);
    let cancel = console.cancel();
    let report = analysis.run(&mut console, &cancel)?;
    drop(console);
    if printer.is_json() {
        printer.json("sensitivity", &report.outcome)?;
    } else {
        printer.data(&printer.sections(&report.sections()))?;
        let written = analysis.output.as_deref().filter(|_| report.unwritten.is_none());
        let written = written.map_or_else(String::new, |path| format!("; {}", shown(path)));
        printer.summary(&format!("{}{written}", report.summary()));
    }
    report.unwritten.map_or(Ok(()), Err)
}
