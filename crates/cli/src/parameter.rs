//! The options of a command as a list, from which other front ends derive their own parameters. Options of the terminal are left out.

use crate::args::Cli;
use clap::builder::ValueParser;
use clap::{Arg, ArgAction, CommandFactory};
use std::any::TypeId;
use std::path::PathBuf;

/// Options that describe the output of the command line, or are for schedulers that start it.
const OF_THE_TERMINAL: &[&str] =
    &["dry_run", "all", "by_position", "suggest_family", "then", "help", "version", "worker", "workers", "write_jobs"];

/// An option or argument of a command.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// The name of its value in the code, such as `overrides`.
    pub id: String,
    /// The option without dashes, such as `override`; `None` for an argument without a name.
    pub option: Option<String>,
    /// Other names of the option that the help shows.
    pub aliases: Vec<String>,
    /// The type of its value.
    pub kind: ParameterKind,
    /// Whether it takes several values.
    pub is_list: bool,
    /// Whether the command needs it.
    pub is_required: bool,
    /// The values that it takes, if these can be listed.
    pub values: Vec<String>,
    /// The value if it is not given.
    pub default: Option<String>,
    /// Its meaning in a line.
    pub about: String,
    /// The group of options that it belongs to.
    pub heading: Option<String>,
}

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    /// An option without a value.
    Flag,
    /// Yes or no.
    YesNo,
    /// A whole number.
    Whole,
    /// A number.
    Number,
    /// A file or directory.
    Path,
    /// Anything else.
    Text,
}

/// The options and arguments of a command, in the order of its help. The list of an unknown command is empty.
pub fn parameters(command: &str) -> Vec<Parameter> {
    let cli = Cli::command();
    let command = cli.find_subcommand(command);
    let args = command.into_iter().flat_map(|command| command.get_arguments());
    let shown = args.filter(|arg| !arg.is_hide_set() && !OF_THE_TERMINAL.contains(&arg.get_id().as_str()));
    shown.map(Parameter::of).collect()
}

impl Parameter {
    fn of(arg: &Arg) -> Parameter {
        let owned = |text: &str| text.to_owned();
        let default = arg.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
        let is_flag = matches!(arg.get_action(), ArgAction::SetTrue);
        let possible = arg.get_possible_values();
        Parameter {
            id: arg.get_id().to_string(),
            option: arg.get_long().map(owned),
            aliases: arg.get_visible_aliases().unwrap_or_default().into_iter().map(owned).collect(),
            kind: if is_flag { ParameterKind::Flag } else { ParameterKind::of(arg.get_value_parser()) },
            is_list: matches!(arg.get_action(), ArgAction::Append),
            is_required: arg.is_required_set(),
            values: if is_flag { Vec::new() } else { possible.iter().map(|value| owned(value.get_name())).collect() },
            default: default.filter(|_| !is_flag),
            about: arg.get_help().map(ToString::to_string).unwrap_or_default(),
            heading: arg.get_help_heading().map(owned),
        }
    }
}

impl ParameterKind {
    fn of(parser: &ValueParser) -> ParameterKind {
        let id = parser.type_id();
        let is = |types: &[TypeId]| types.iter().any(|known| id == *known);
        if is(&[TypeId::of::<bool>()]) {
            ParameterKind::YesNo
        } else if is(&[TypeId::of::<usize>(), TypeId::of::<u16>(), TypeId::of::<u32>(), TypeId::of::<u64>()]) {
            ParameterKind::Whole
        } else if is(&[TypeId::of::<f32>(), TypeId::of::<f64>()]) {
            ParameterKind::Number
        } else if is(&[TypeId::of::<PathBuf>()]) {
            ParameterKind::Path
        } else {
            ParameterKind::Text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_the_types_of_their_options() {
        let all = parameters("quantize");
        let of = |id: &str| all.iter().find(|parameter| parameter.id == id).unwrap();
        let kinds =
            ["model", "overwrite", "symmetric", "num_samples", "threads", "seed", "max_kl", "min_kv_scale", "scheme"]
                .map(|id| of(id).kind);
        use ParameterKind::{Flag, Number, Path, Text, Whole, YesNo};
        assert_eq!(kinds, [Path, Flag, YesNo, Whole, Whole, Whole, Number, Number, Text]);
        assert_eq!((of("overrides").option.as_deref(), of("overrides").is_list), (Some("override"), true));
        assert_eq!((of("calib").aliases.as_slice(), of("calib").is_list), (&["data".to_owned()][..], true));
        assert_eq!(of("num_samples").default.as_deref(), Some("128"));
        assert_eq!(of("pack_method").values, ["reorder", "order"]);
        assert!(of("model").option.is_none() && of("model").is_required);
        assert!(all.iter().all(|parameter| parameter.id != "dry_run"));
        // Sensitivity refuses what only models have that are written.
        assert!(parameters("sensitivity").iter().all(|parameter| parameter.id != "format"));
        assert!(parameters("no such command").is_empty());
    }
}
