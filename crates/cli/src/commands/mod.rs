//! One command, one file. Commands read arguments, call the libraries and print what they answer.

mod completions;
pub mod convert;
mod eval;
mod inspect;
mod list;
pub mod plan;
mod quantize;
mod sensitivity;
mod verify;

use crate::args::Command;
use crate::failure::Failure;
use crate::outputs::{check_conversion, check_plan, check_quantization, check_sensitivity, follow, refuse_missing};
use crate::printer::Printer;

/// Carries out a command line.
///
/// # Errors
/// Whatever keeps the command from being done.
pub fn run(command: Command, printer: &Printer) -> Result<(), Failure> {
    match command {
        Command::Quantize(mut args) => {
            args.output = follow(args.output)?;
            check_quantization(&args)?;
            quantize::run(args, printer)
        }
        Command::Convert(mut args) => {
            args.output = follow(args.output)?;
            check_conversion(&args)?;
            convert::run(&args, printer)
        }
        Command::Plan(mut args) => {
            args.output = follow(args.output)?;
            check_plan(&args.recipe, args.output.as_deref(), args.overwrite)?;
            plan::run(args, printer)
        }
        Command::Inspect(args) => inspect::run(&args, printer),
        Command::Verify(args) => verify::run(&args, printer),
        Command::Eval(args) => {
            refuse_missing([("--data", args.data.as_path())])?;
            eval::run(&args, printer)
        }
        Command::Sensitivity(args) => {
            check_sensitivity(&args)?;
            sensitivity::run(&args, printer)
        }
        Command::List(args) => list::run(&args, printer),
        Command::Completions(args) => completions::run(&args, printer),
        Command::OpenGraph(args) => crate::onnx::opening::run(&args, printer),
    }
}
