//! One command, one file. Commands read arguments, call the library and print what it answers.

mod completions;
mod convert;
mod eval;
mod finish;
mod generate;
mod graph;
mod inspect;
mod list;
mod open_graph;
mod plan;
mod quantize;
mod report;
mod search;
mod sensitivity;
mod verify;

use crate::args::Command;
use crate::printer::Printer;
use kvant::Error;

/// Carries out a command line.
///
/// # Errors
/// Whatever keeps the command from being done.
pub fn run(command: Command, printer: &Printer) -> Result<(), Error> {
    match command {
        Command::Quantize(args) => quantize::run(*args, printer),
        Command::Finish(args) => finish::run(&args, printer),
        Command::Convert(args) => convert::run(args, printer),
        Command::Plan(args) => plan::run(*args, printer),
        Command::Inspect(args) => inspect::run(&args, printer),
        Command::Verify(args) => verify::run(&args, printer),
        Command::Eval(args) => eval::run(args, printer),
        Command::Generate(args) => generate::run(*args, printer),
        Command::Graph(args) => graph::run(args, printer),
        Command::Sensitivity(args) => sensitivity::run(*args, printer),
        Command::Search(args) => search::run(*args, printer),
        Command::Report(args) => report::run(args, printer),
        Command::List(args) => list::run(&args, printer),
        Command::Completions(args) => completions::run(&args, printer),
        Command::OpenGraph(args) => open_graph::run(&args, printer),
    }
}
