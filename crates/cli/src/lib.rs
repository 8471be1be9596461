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
mod printer;
mod progress;
#[cfg(test)]
#[path = "../tests/reference/mod.rs"]
mod reference;
mod request;

pub use crash::catch;
pub use failure::spelled_for;
pub use parameter::{Parameter, ParameterKind, parameters};
pub use progress::{noun, resumed};
pub use request::{Request, set_program};

use args::{Cli, ColorWhen, GlobalArgs, ProgressWhen, typed};
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, ValueEnum};
use failure::{exit_code, for_command};
use kvant::{Error, ErrorKind};
use printer::Printer;
use std::ffi::OsString;

/// Carries out a command line, and returns the exit code of the process. `args` do not include the name of the program.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    match parse(&args) {
        Ok(cli) => {
            let printer = Printer::new(cli.global);
            let name = cli.command.name();
            let result = crash::catch(|| commands::run(cli.command, &printer));
            conclude(&printer, result.map_err(|error| for_command(error, name)))
        }
        Err(error) => refuse(&without_idle_tips(error), &args),
    }
}

/// The command of a command line, with its options as they were typed.
fn parse(args: &[OsString]) -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    let program = OsString::from("kvant");
    let matches = command.try_get_matches_from_mut(std::iter::once(&program).chain(args))?;
    let typed = typed(&command, &matches);
    let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    Ok(Cli { command: cli.command.with_typed(typed), ..cli })
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

/// Takes away the tip to put an argument behind `--`: no command takes values there.
fn without_idle_tips(mut error: clap::Error) -> clap::Error {
    let kind = ContextKind::Suggested;
    match error.remove(kind) {
        Some(ContextValue::StyledStrs(tips)) => {
            let helps = |tip: &StyledStr| !tip.to_string().contains("as a value, use '--");
            let tips: Vec<StyledStr> = tips.into_iter().filter(helps).collect();
            if !tips.is_empty() {
                error.insert(kind, ContextValue::StyledStrs(tips));
            }
        }
        Some(other) => _ = error.insert(kind, other),
        None => {}
    }
    error
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
    printer.error_object(&usage_failure(&error.render().to_string()));
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

/// The message and the tip in what clap prints.
fn usage_failure(text: &str) -> Error {
    let message = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let tip = text.lines().find_map(|line| line.trim_start().strip_prefix("tip: "));
    Error::new(ErrorKind::Usage, message).with_hint(tip.map(str::to_owned))
}
