//! The command `kvant` as a library: arguments, printing, progress, exit codes. The binary and the Python package run the same command
//! line with [`run`]. Models are quantized by the library `kvant`.
//!
//! Front ends that have no command line use its options nevertheless: [`parameters`] lists those of a command, and [`Request::parse`]
//! reads them.

mod args;
mod commands;
mod crash;
mod failure;
mod hint;
mod interrupt;
mod parameter;
mod parse;
mod printer;
mod progress;
#[cfg(test)]
#[path = "../tests/reference/mod.rs"]
mod reference;
mod request;
mod scheduler_files;

pub use crash::catch;
pub use failure::spelled_for;
pub use parameter::{Parameter, ParameterKind, parameters};
pub use progress::{noun, resumed};
pub use request::{Request, set_program};

use args::{ColorWhen, GlobalArgs, ProgressWhen};
use clap::ValueEnum;
use failure::{exit_code, for_command};
use kvant::{Error, ErrorKind};
use parse::{parse, usage_error};
use printer::Printer;
use std::ffi::OsString;

/// Carries out a command line, and returns the exit code of the process. `args` do not include the name of the program.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    match parse(&args) {
        Ok(cli) => {
            let printer = Printer::new(cli.global);
            let name = cli.command.name();
            let result = crash::catch(|| {
                cli.families.iter().try_for_each(|file| kvant::add_family(file).map(drop))?;
                commands::run(cli.command, &printer)
            });
            conclude(&printer, result.map_err(|error| for_command(error, name)))
        }
        Err(error) => refuse(&error, &args),
    }
}

fn conclude(printer: &Printer, result: Result<(), Error>) -> u8 {
    match result {
        Ok(()) => 0,
        Err(failure) => {
            printer.failure(&failure);
            exit_code(failure.kind)
        }
    }
}

/// Answers a command line that is not to be carried out: help, version or wrong usage.
fn refuse(error: &clap::Error, args: &[OsString]) -> u8 {
    let args = || args.iter().map(|arg| arg.to_string_lossy().into_owned());
    let json = args().any(|arg| arg == "--json");
    let color = typed_color(args());
    let printer = Printer::new(GlobalArgs {
        json,
        quiet: false,
        verbose: false,
        progress: ProgressWhen::Auto,
        color,
        wide: false,
    });
    let text = error.render().ansi().to_string();
    if !error.use_stderr() {
        return conclude(&printer, printer.data(text.trim_end()));
    }
    printer.message(text.trim_end());
    printer.error_object(&usage_error(error));
    exit_code(ErrorKind::Usage)
}

/// The value of `--color` in a command line that failed to parse.
fn typed_color(args: impl Iterator<Item = String>) -> ColorWhen {
    let args: Vec<String> = args.collect();
    let behind = args.windows(2).filter(|pair| pair[0] == "--color").map(|pair| pair[1].as_str());
    let joined = args.iter().filter_map(|arg| arg.strip_prefix("--color="));
    let said = behind.chain(joined).find_map(|when| ColorWhen::from_str(when, false).ok());
    said.unwrap_or(ColorWhen::Auto)
}
