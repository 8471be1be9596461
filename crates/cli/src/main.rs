//! The command `kvant`: arguments, printing, progress, exit codes. Models are quantized by the library of the same name.

mod args;
mod commands;
mod crash;
mod failure;
mod hint;
mod interrupt;
mod printer;
mod progress;
#[cfg(test)]
#[path = "../tests/reference/mod.rs"]
mod reference;
mod request;

use args::{Cli, ColorWhen, GlobalArgs, ProgressWhen, typed};
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, ValueEnum};
use failure::{exit_code, for_command};
use kvant::{Error, ErrorKind};
use printer::Printer;
use std::process::ExitCode;

/// The system's allocator retains more freed memory between live blocks: a fifth of a calibrated run's memory.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let mut command = Cli::command();
    let parsed = command.try_get_matches_from_mut(std::env::args_os()).and_then(|matches| {
        let typed = typed(&command, &matches);
        Ok((Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?, typed))
    });
    match parsed {
        Ok((cli, typed)) => {
            let printer = Printer::new(cli.global);
            let command = cli.command.with_typed(typed);
            let name = command.name();
            let result = crash::catch(|| commands::run(command, &printer));
            conclude(&printer, result.map_err(|error| for_command(error, name)))
        }
        Err(error) => refuse(&without_idle_tips(error)),
    }
}

fn conclude(printer: &Printer, result: Result<(), Error>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            printer.failure(&failure);
            exit_code(failure.kind).into()
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
fn refuse(error: &clap::Error) -> ExitCode {
    let args = || std::env::args_os().map(|arg| arg.to_string_lossy().into_owned());
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
    exit_code(ErrorKind::Usage).into()
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
