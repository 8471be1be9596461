//! `kvant eval`.

use crate::args::EvalArgs;
use crate::printer::Printer;
use crate::progress::Console;
use kvant::{Error, Evaluation};

/// Evaluates models.
///
/// # Errors
/// Whatever is wrong with the model, its tokenizer or the data.
pub fn run(args: EvalArgs, printer: &Printer) -> Result<(), Error> {
    let mut console = Console::new(printer);
    let cancel = console.cancel();
    let by_position = args.by_position;
    let report = Evaluation::from(args).run(&mut console, &cancel)?;
    drop(console);
    printer.remarks(&report.remarks());
    if by_position && !report.has_positions() {
        printer.note("--by-position applies only to language models on text");
    }
    match printer.is_json() {
        true => printer.json("eval", &report.to_json()),
        false => printer.data(&printer.sections(&report.sections(by_position))),
    }
}
