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
    let mut console = Console::new(printer);
    let cancel = console.cancel();
    let report = Generation::from(args).run(&mut console, &cancel)?;
    drop(console);
    match printer.is_json() {
        true => printer.json("generate", &report.to_json())?,
        false => printer.text(&report.text())?,
    }
    printer.remarks(&report.remarks());
    Ok(())
}
