//! `kvant generate`.

use crate::args::GenerateArgs;
use crate::printer::Printer;
use crate::progress::Console;
use kvant::{Error, Generation};

/// Continues prompts.
///
/// # Errors
/// Whatever is wrong with the model, its tokenizer, the prompts or the settings.
pub fn run(args: GenerateArgs, printer: &Printer) -> Result<(), Error> {
    let generation = Generation::from(args);
    // Texts of several prompts or models would mix.
    let streams = !printer.is_json() && generation.prompts.len() == 1 && generation.reference.is_none();
    let console = Console::new(printer);
    let mut console = if streams { console.streaming() } else { console };
    let cancel = console.cancel();
    let result = generation.run(&mut console, &cancel);
    if result.is_err() && console.has_streamed() {
        printer.text("")?;
    }
    drop(console);
    let report = result?;
    match (printer.is_json(), streams) {
        (true, _) => printer.json("generate", &report.to_json())?,
        (false, true) => printer.text("")?,
        (false, false) => printer.text(&report.text())?,
    }
    printer.remarks(&report.remarks());
    Ok(())
}
