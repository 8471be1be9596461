//! Hints come from where errors are found, which does not know the command that the user typed. This is the one place that knows
//! both: it leaves out the ways that name options which the command does not have.

use crate::args::Cli;
use clap::{Arg, Command, CommandFactory};

/// A hint without the ways that `command` has no options for. Ways are separated by semicolons; one that names another command
/// in backticks stays, and so do options of other programs.
pub fn of_command(hint: &str, command: &str) -> Option<String> {
    let cli = Cli::command();
    let is_open = |way: &&str| {
        names_another_command(way, command) || options(way).all(|option| !is_foreign(&cli, command, option))
    };
    let ways: Vec<&str> = hint.split("; ").collect();
    let open: Vec<&str> = ways.iter().copied().filter(is_open).collect();
    match open.as_slice() {
        [] => None,
        [only, ..] if !ways.starts_with(&[only]) => Some(without_or(&open.join("; ")).to_owned()),
        _ => Some(open.join("; ")),
    }
}

/// A way that was the last of several needs no `or`.
fn without_or(text: &str) -> &str {
    ["or ", "else "].iter().find_map(|word| text.strip_prefix(word)).unwrap_or(text)
}

/// Returns whether another Kvant command is quoted.
fn names_another_command(way: &str, command: &str) -> bool {
    way.split("`kvant ").skip(1).any(|rest| rest.split([' ', '`']).next().is_some_and(|name| name != command))
}

/// The long options in a text, without their dashes.
fn options(text: &str) -> impl Iterator<Item = &str> {
    let is_end = |c: char| !(c.is_ascii_alphanumeric() || c == '-');
    let words = text.split([' ', '(', '`', '\'', '"']).filter_map(|word| word.strip_prefix("--"));
    words.filter_map(move |word| word.split(is_end).next()).filter(|name| !name.is_empty())
}

/// Returns whether other commands have this option but the current one does not.
fn is_foreign(cli: &Command, command: &str, option: &str) -> bool {
    let has_itself = |owner: &Command| owner.get_arguments().any(|arg| !arg.is_hide_set() && is_called(arg, option));
    // A command with tools has their options.
    let has = |owner: &Command| has_itself(owner) || owner.get_subcommands().any(has_itself);
    let here = cli.find_subcommand(command).is_some_and(has) || has_itself(cli);
    !here && cli.get_subcommands().any(has)
}

fn is_called(arg: &Arg, option: &str) -> bool {
    let aliases = arg.get_all_aliases().unwrap_or_default();
    arg.get_long() == Some(option) || aliases.contains(&option)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_without_an_available_option_are_omitted() {
        let of = |hint: &str, command: &str| of_command(hint, command);
        let hint = "look at config.json; --no-verify writes it all the same";
        assert_eq!(of(hint, "quantize").as_deref(), Some(hint));
        assert_eq!(of(hint, "eval").as_deref(), Some("look at config.json"));
        assert_eq!(of("--no-verify writes it; or choose another", "eval").as_deref(), Some("choose another"));
        assert_eq!(of("accept the loss with --requantize", "eval"), None);
    }

    #[test]
    fn hints_may_name_options_of_other_commands_and_programs() {
        for hint in [
            "`kvant convert --to float` makes one",
            "llama.cpp does it (--cache-type-k)",
            "fewer with --threads",
            "use --json",
        ] {
            assert_eq!(of_command(hint, "eval").as_deref(), Some(hint));
        }
    }

    #[test]
    fn hidden_options_are_not_hinted() {
        assert_eq!(of_command("leave it out with --seq-len 4", "sensitivity"), None);
        assert_eq!(
            of_command("give samples with --data FILE", "sensitivity").as_deref(),
            Some("give samples with --data FILE")
        );
    }
}
