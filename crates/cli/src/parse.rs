//! From a command line to the arguments of a command, and what clap says of a wrong one.

use crate::args::{Cli, typed};
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches};
use kvant::{Error, ErrorKind};
use std::ffi::OsString;

/// The command of a command line, with its options as they were typed.
///
/// # Errors
/// Those of clap; help and the version are among them.
pub fn parse(args: &[OsString]) -> Result<Cli, clap::Error> {
    parse_plainly(args).map_err(without_idle_tips)
}

fn parse_plainly(args: &[OsString]) -> Result<Cli, clap::Error> {
    let mut command = Cli::command().mut_subcommands(with_negative_numbers);
    let program = OsString::from("kvant");
    let matches = command.try_get_matches_from_mut(std::iter::once(&program).chain(args))?;
    let typed = typed(&command, &matches);
    let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    Ok(Cli { command: cli.command.with_typed(typed).with_arguments(args), ..cli })
}

/// A command whose options take negative numbers as values, so that an error names the numbers that are possible.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let takes_value = !arg.is_positional() && arg.get_action().takes_values();
        arg.allow_negative_numbers(takes_value)
    });
    command.mut_subcommands(with_negative_numbers)
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

/// An error of clap as one of the library: its message and its tip.
pub fn usage_error(error: &clap::Error) -> Error {
    let text = error.render().to_string();
    let message = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let tip = text.lines().find_map(|line| line.trim_start().strip_prefix("tip: "));
    Error::new(ErrorKind::Usage, message).with_hint(tip.map(str::to_owned))
}
