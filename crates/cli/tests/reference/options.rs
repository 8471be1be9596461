//! Commands and options of clap's definitions in Markdown, and that each option has one name and one meaning.

use super::{prose, table};
use crate::args::Cli;
use clap::{Arg, ArgAction, Command, CommandFactory};
use std::collections::BTreeMap;

/// The commands that are documented.
fn visible() -> Vec<Command> {
    let mut cli = Cli::command();
    cli.build();
    shown(&cli).cloned().collect()
}

/// The commands below one.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

/// A command with its full name.
struct Named {
    name: String,
    command: Command,
}

/// The commands that have options: of `kvant graph` its tools.
fn with_options() -> Vec<Named> {
    let named = |command: &Command| {
        let of_tool = |tool: &Command| Named {
            name: format!("{} {}", command.get_name(), tool.get_name()),
            command: tool.clone(),
        };
        let tools: Vec<Named> = shown(command).map(of_tool).collect();
        let alone = || vec![Named { name: command.get_name().to_owned(), command: command.clone() }];
        if tools.is_empty() { alone() } else { tools }
    };
    visible().iter().flat_map(named).collect()
}

fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    command
        .get_arguments()
        .filter(|arg| arg.get_long().is_some_and(|long| long != "help" && long != "version") && !arg.is_hide_set())
}

pub fn commands() -> String {
    let row = |command: &Command| {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        vec![format!("`kvant {}`", command.get_name()), prose(&about)]
    };
    table(&["command", "purpose"], visible().iter().map(row))
}

/// The tools of `kvant graph`.
pub fn tools() -> String {
    let row = |tool: Named| {
        let about = tool.command.get_about().map(ToString::to_string).unwrap_or_default();
        vec![format!("`kvant {}`", tool.name), prose(&about)]
    };
    let tools = with_options().into_iter().filter(|command| command.name.starts_with("graph "));
    table(&["command", "purpose"], tools.map(row))
}

/// An option with its spelling and the commands that have it.
struct Row<'a> {
    arg: Arg,
    commands: Vec<&'a str>,
    /// The defaults, each with the commands that have it.
    defaults: Vec<(String, Vec<&'a str>)>,
}

impl<'a> Row<'a> {
    fn add(&mut self, command: &'a str, default: String) {
        self.commands.push(command);
        match self.defaults.iter_mut().find(|(known, _)| *known == default) {
            Some((_, commands)) => commands.push(command),
            None => self.defaults.push((default, vec![command])),
        }
    }

    /// The default, or the one of most commands and then those of others.
    fn default(&self) -> String {
        let mut defaults: Vec<_> = self.defaults.iter().filter(|(default, _)| !default.is_empty()).collect();
        defaults.sort_by_key(|(_, commands)| std::cmp::Reverse(commands.len()));
        let of_others = |(default, commands): &&(String, Vec<&str>)| format!("; {}: {default}", commands.join(", "));
        let first = defaults.first().map(|(default, _)| default.clone()).unwrap_or_default();
        first + &defaults.iter().skip(1).map(of_others).collect::<String>()
    }
}

/// A table of the options of each heading: an option of several commands has one row.
pub fn by_heading() -> String {
    let commands = with_options();
    let mut order: Vec<String> = Vec::new();
    let mut rows: BTreeMap<String, Vec<Row<'_>>> = BTreeMap::new();
    for Named { name, command } in &commands {
        for arg in options(command) {
            let long = arg.get_long().unwrap_or_default().to_owned();
            let known = rows.values_mut().flatten().find(|row| row.arg.get_long() == Some(&long));
            if let Some(row) = known {
                row.add(name, default(arg));
                continue;
            }
            let heading = arg.get_help_heading().unwrap_or("Other options").to_owned();
            if !order.contains(&heading) {
                order.push(heading.clone());
            }
            let mut row = Row { arg: arg.clone(), commands: Vec::new(), defaults: Vec::new() };
            row.add(name, default(arg));
            rows.entry(heading).or_default().push(row);
        }
    }
    let all = commands.len();
    let part = |heading: &String| {
        let row = |row: &Row<'_>| {
            let commands = if row.commands.len() == all { "all".to_owned() } else { listed(&row.commands) };
            vec![spelling(&row.arg), commands, row.default(), prose(&description(&row.arg))]
        };
        let rows = rows[heading].iter().map(row);
        format!("### {heading}\n\n{}", table(&["option", "commands", "default", "meaning"], rows))
    };
    order.iter().map(part).collect::<Vec<_>>().join("\n")
}

/// Commands in a cell; an option that most tools of `kvant graph` have is one of `graph`.
fn listed(commands: &[&str]) -> String {
    let is_tool = |command: &&&str| command.starts_with("graph ");
    let has_most = commands.iter().filter(is_tool).count() > 3;
    let mut names: Vec<&str> =
        commands.iter().map(|command| if has_most && is_tool(&command) { "graph" } else { command }).collect();
    names.dedup();
    names.join(", ")
}

/// `-s`, `--scheme SCHEME`.
fn spelling(arg: &Arg) -> String {
    let short = arg.get_short().map(|short| format!("`-{short}`, ")).unwrap_or_default();
    let value = match arg.get_action() {
        ArgAction::SetTrue => String::new(),
        _ => arg.get_value_names().and_then(|names| names.first()).map(|name| format!(" {name}")).unwrap_or_default(),
    };
    format!("{short}`--{}{value}`", arg.get_long().unwrap_or_default())
}

/// The default that clap knows, or the one that the help states in words.
fn default(arg: &Arg) -> String {
    let known: Vec<String> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    match (arg.get_action(), known.is_empty()) {
        (ArgAction::SetTrue, _) => "off".to_owned(),
        (_, false) => format!("`{}`", known.join(",")),
        (_, true) => stated(&help(arg)).1.unwrap_or_default(),
    }
}

fn help(arg: &Arg) -> String {
    arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default()
}

/// Help without its `[default: ...]`, and that.
fn stated(help: &str) -> (String, Option<String>) {
    match help.split_once(" [default: ") {
        Some((before, rest)) => {
            let (default, after) = rest.split_once(']').unwrap_or((rest, ""));
            (format!("{before}{after}"), Some(default.to_owned()))
        }
        None => (help.to_owned(), None),
    }
}

fn description(arg: &Arg) -> String {
    let (help, _) = stated(&help(arg));
    let paragraphs: Vec<String> =
        help.split("\n\n").map(|part| part.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|_| !matches!(arg.get_action(), ArgAction::SetTrue))
        .map(|value| value.get_name().to_owned())
        .collect();
    let values =
        (!values.is_empty() && !arg.is_hide_possible_values_set()).then(|| format!("Values: {}.", values.join(", ")));
    paragraphs.into_iter().chain(values).map(closed).collect::<Vec<_>>().join(" ")
}

/// A sentence with its full stop.
fn closed(text: String) -> String {
    if text.is_empty() || text.ends_with(['.', ':']) { text } else { format!("{text}.") }
}

pub fn aliases() -> String {
    let mut rows: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for Named { command, .. } in with_options() {
        for arg in options(&command) {
            for alias in arg.get_all_aliases().unwrap_or_default() {
                let long = format!("`--{}`", arg.get_long().unwrap_or_default());
                let aliases = rows.entry(long).or_default();
                let alias = format!("`--{alias}`");
                if !aliases.contains(&alias) {
                    aliases.push(alias);
                }
            }
        }
    }
    table(&["option", "aliases"], rows.into_iter().map(|(option, aliases)| vec![option, aliases.join(", ")]))
}

/// Options whose help is narrower in `kvant sensitivity`, which takes ONNX graphs only; `--max-drop`, which is a target of its search; and
/// `--output`, where it writes a recipe.
const OF_GRAPHS: &[&str] =
    &["max-drop", "scheme", "recipe", "exclude", "algorithm", "override", "calib", "num-samples", "output"];

/// Options that are a target of `kvant search`, which is no limit of a result; and `--output`, where it writes a recipe.
const OF_SEARCH: &[&str] = &["max-kl", "output"];

/// `--data` is the data that a command runs a model on: to calibrate it, or to measure it.
const AMBIGUOUS: &[&str] = &["data"];

#[test]
fn option_has_the_same_meaning_in_all_commands() {
    let mut known: BTreeMap<String, (String, String, Option<char>, String)> = BTreeMap::new();
    for Named { name, command } in with_options() {
        for arg in options(&command) {
            let long = arg.get_long().unwrap_or_default().to_owned();
            if name == "sensitivity" && OF_GRAPHS.contains(&long.as_str()) {
                continue;
            }
            if name == "search" && OF_SEARCH.contains(&long.as_str()) {
                continue;
            }
            // These name types of codes here; elsewhere a checkpoint format, and how biases are stored.
            if name == "graph retype" && ["to", "bias"].contains(&long.as_str()) {
                continue;
            }
            // These write a report, and a graph.
            let is_other_file = name == "report" || name.starts_with("graph ");
            if is_other_file && long == "output" {
                continue;
            }
            // Defaults may depend on the command.
            let help = stated(&arg.get_help().map(ToString::to_string).unwrap_or_default()).0;
            let value = spelling(arg);
            let meaning = (name.clone(), help, arg.get_short(), value);
            let first = known.entry(long.clone()).or_insert_with(|| meaning.clone());
            assert_eq!(
                (&first.1, first.2, &first.3),
                (&meaning.1, meaning.2, &meaning.3),
                "--{long} of {} and {}",
                first.0,
                meaning.0
            );
        }
    }
    assert!(known.len() > 60, "{}", known.len());
}

#[test]
fn meaning_has_the_same_option_name_in_all_commands() {
    let (mut names, mut helps, mut shorts) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for Named { command, .. } in with_options() {
        for arg in options(&command) {
            let long = arg.get_long().unwrap_or_default().to_owned();
            let help = stated(&arg.get_help().map(ToString::to_string).unwrap_or_default()).0;
            let same = helps.entry(help.clone()).or_insert_with(|| long.clone());
            let is_measured = help.starts_with("Data to measure");
            assert!(*same == long || is_measured, "--{same} and --{long}: {help}");
            // An alias is the name of no other option.
            for name in arg.get_all_aliases().unwrap_or_default().into_iter().chain([long.as_str()]) {
                let owner = names.entry(name.to_owned()).or_insert_with(|| long.clone()).clone();
                let formats = [owner.as_str(), long.as_str()].iter().all(|name| ["format", "to"].contains(name));
                assert!(owner == long || AMBIGUOUS.contains(&name) || formats, "--{name} is --{owner} and --{long}");
            }
            if let Some(short) = arg.get_short() {
                let owner = shorts.entry(short).or_insert_with(|| long.clone());
                assert_eq!(*owner, long, "-{short}");
            }
        }
    }
}

/// The lines of a help text at a width.
fn lines(command: &str, width: &str) -> Vec<String> {
    let mut cli = Cli::command().term_width(width.parse().unwrap());
    let help = cli.try_get_matches_from_mut(["kvant", command, "-h"]).unwrap_err().render().to_string();
    help.trim_end().lines().map(str::to_owned).collect()
}

#[test]
fn short_help_fits_on_one_screen() {
    for command in ["quantize", "plan"] {
        let lines = lines(command, "100");
        assert!(lines.len() <= 40, "{command}: {} lines\n{}", lines.len(), lines.join("\n"));
        assert!(lines.iter().all(|line| line.chars().count() <= 100), "{command}");
    }
}

/// The words of a command line, up to a pipe or a redirection. Quotes hold words together.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in line.chars().chain([' ']) {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, ' ') if !word.is_empty() => words.push(std::mem::take(&mut word)),
            (None, ' ') => {}
            (None, '|' | '>') => break,
            (_, c) => word.push(c),
        }
    }
    words
}

/// The command lines of a page: indented ones, and those in backticks that write an output.
fn command_lines(page: &str) -> Vec<&str> {
    let indented = page.lines().filter(|line| line.starts_with("    kvant ")).map(str::trim);
    let inline = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let inline =
        inline.filter(|code| code.starts_with("kvant ") && code.contains(" -o ") && code.split(' ').count() > 5);
    indented.chain(inline).filter(|line| !line.contains("...")).collect()
}

#[test]
fn documented_command_lines_parse() {
    let mut count = 0;
    for page in super::pages(&super::docs()).into_iter().chain([super::docs().join("../README.md")]) {
        let text = std::fs::read_to_string(&page).unwrap();
        for line in command_lines(&text) {
            count += 1;
            let result = Cli::command().try_get_matches_from(words(line));
            let is_help =
                |kind| matches!(kind, clap::error::ErrorKind::DisplayHelp | clap::error::ErrorKind::DisplayVersion);
            if let Err(error) = result.map(|_| ()) {
                assert!(is_help(error.kind()), "{}: {line}\n{error}", page.display());
            }
        }
    }
    assert!(count > 80, "{count}");
}
