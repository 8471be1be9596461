//! `kvant search`.

use super::quantize;
use crate::args::SearchArgs;
use crate::printer::Printer;
use crate::progress::Console;
use kvant::{Error, Search};

/// Searches for a mix, and runs the command that is to use it.
///
/// # Errors
/// Whatever is wrong with the model, the options or the data; a target that no mix reaches; errors of the command behind the search.
pub fn run(args: SearchArgs, printer: &Printer) -> Result<(), Error> {
    let search = Search::try_from(args)?;
    let mut console = Console::new(printer);
    let cancel = console.cancel();
    let report = search.run(&mut console, &cancel)?;
    drop(console);
    if printer.is_json() {
        printer.json("search", &report.to_json())?;
    } else {
        printer.data(&printer.sections(&report.sections()))?;
        printer.summary(&report.summary());
    }
    match report.quantized {
        None => Ok(()),
        Some(Err(error)) => Err(error),
        Some(Ok(quantized)) => {
            if !printer.is_json() {
                quantize::show(&quantized, printer)?;
            }
            quantized.rejection().map_or(Ok(()), |rejection| Err(rejection.clone()))
        }
    }
}
