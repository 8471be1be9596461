//! The options of a command line by name, as they were typed. A run resumes only the work of a run with the same options.

use clap::{ArgAction, ArgMatches, Command};
use kvant::text::shown;
use kvant_checkpoint::engine::Options;
use std::path::Path;

/// Options on which the bytes of the output do not depend.
const OF_THE_RUN: &[&str] = &[
    "output",
    "overwrite",
    "restart",
    "sync",
    "no_verify",
    "dry_run",
    "threads",
    "max_memory",
    "save_imatrix",
    "save_ranges",
    "ranges_format",
    "report",
    "worker",
    "max_kl",
    "max_perplexity_increase",
    "eval",
    "min_sqnr",
    "yes",
    "metric_timeout",
    "json",
    "quiet",
    "verbose",
    "progress",
    "color",
];

/// The options of a command line, those with usual values included, by name.
pub fn typed(command: &Command, matches: &ArgMatches) -> Options {
    let Some((name, given)) = matches.subcommand() else { return Options::new() };
    let Some(command) = command.find_subcommand(name) else { return Options::new() };
    let options = command.get_arguments().filter(|arg| !OF_THE_RUN.contains(&arg.get_id().as_str()));
    let typed = options.filter_map(|arg| {
        let name = arg.get_long().map_or_else(|| "the source".to_owned(), |long| format!("--{long}"));
        let values = given.try_get_raw(arg.get_id().as_str()).ok().flatten()?;
        let values: Vec<_> = values.map(|value| shown(Path::new(value))).collect();
        let is_unset = matches!(arg.get_action(), ArgAction::SetTrue) && values == ["false"];
        (!is_unset).then(|| (name, values.join(",")))
    });
    let mut typed: Options = typed.collect();
    // Without calibration data it is the length of the sequences that a limit is measured on.
    if !typed.contains_key("--calib") {
        typed.remove("--seq-len");
    }
    typed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    #[test]
    fn sequence_length_of_a_run_without_calibration_data_is_not_recorded() {
        let mut command = Cli::command();
        let line =
            ["kvant", "quantize", "m", "-s", "int4:g32", "-o", "out", "--max-kl", "1", "--eval", "a", "--seq-len", "8"];
        let matches = command.try_get_matches_from_mut(line).unwrap();
        assert!(!typed(&command, &matches).contains_key("--seq-len"));
    }

    #[test]
    fn given_options_are_recorded_with_effective_values() {
        let typed = |more: &[&str]| {
            let mut command = Cli::command();
            let line = ["kvant", "quantize", "model", "-s", "int4:g32", "-o", "out", "--data", "a.txt", "--json"];
            let matches = command.try_get_matches_from_mut([&line[..], more].concat()).unwrap();
            typed(&command, &matches)
        };
        let usual = typed(&["--threads", "3"]);
        for (name, value) in
            [("the source", "model"), ("--scheme", "int4:g32"), ("--calib", "a.txt"), ("--num-samples", "128")]
        {
            assert_eq!(usual.get(name).map(String::as_str), Some(value), "{usual:?}");
        }
        assert!(!usual.contains_key("--threads") && !usual.contains_key("--output") && !usual.contains_key("--json"));
        assert!(!usual.contains_key("--shuffle"));
        assert!(typed(&["--seq-len", "64"]).contains_key("--seq-len"));
        let other = typed(&["--shuffle", "-x", "a", "--exclude", "b"]);
        assert_eq!((other["--shuffle"].as_str(), other["--exclude"].as_str()), ("true", "a,b"));
    }
}
