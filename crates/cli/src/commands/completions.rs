//! `kvant completions`.

use crate::args::{Cli, CompletionsArgs};
use crate::printer::Printer;
use clap::CommandFactory;
use kvant::Error;

/// Prints the script for a shell.
///
/// # Errors
/// If stdout cannot be written.
pub fn run(args: &CompletionsArgs, printer: &Printer) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "kvant", &mut script);
    printer.data(String::from_utf8_lossy(&script).trim_end())
}
