//! Help, version, completions, and how fast they come.

use crate::kvant::Place;
use std::time::{Duration, Instant};

#[test]
fn help_texts() {
    let place = Place::empty();
    for (name, args) in [
        ("help", &["--help"][..]),
        ("help_quantize", &["quantize", "--help"]),
        ("help_quantize_short", &["quantize", "-h"]),
        ("help_plan", &["plan", "-h"]),
        ("help_eval", &["eval", "--help"]),
        ("help_generate", &["generate", "--help"]),
        ("help_report", &["report", "--help"]),
        ("help_graph", &["graph", "--help"]),
        ("help_graph_extract", &["graph", "extract", "--help"]),
        ("help_inspect", &["inspect", "--help"]),
        ("help_verify", &["verify", "--help"]),
        ("help_list", &["list", "--help"]),
        ("help_completions", &["completions", "-h"]),
    ] {
        insta::assert_snapshot!(name, place.show(args));
    }
}

#[test]
fn version_is_printed_to_stdout() {
    let run = Place::empty().succeed(&["--version"]);
    assert_eq!((run.stdout.as_str(), run.stderr.as_str()), (concat!("kvant ", env!("CARGO_PKG_VERSION"), "\n"), ""));
}

#[test]
fn no_arguments_is_a_usage_error() {
    let run = Place::empty().run(&[]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""));
    assert!(run.stderr.contains("Usage: kvant"));
    for command in ["kvant list schemes --for vllm", "kvant quantize Llama-3.2-1B --scheme", "kvant verify"] {
        assert!(run.stderr.contains(command), "{command}");
    }
    assert!(run.stderr.lines().count() <= 40, "{}", run.stderr);
}

#[test]
fn unknown_scheme_names_the_list_commands() {
    let run = Place::new().run(&["plan", "nano_llama", "--scheme", "foo"]);
    assert_eq!(run.code, Some(2));
    for command in ["`kvant list schemes`", "`kvant list schemes --for vllm`", "`kvant plan"] {
        assert!(run.stderr.contains(command), "{}", run.stderr);
    }
}

#[test]
fn completions_contain_the_options() {
    let place = Place::empty();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = place.succeed(&["completions", shell]).stdout;
        assert!(script.contains("kvant") && script.contains("weights-only"), "{shell}");
    }
}

#[test]
fn help_is_shown_at_once() {
    let place = Place::empty();
    let time = |_| {
        let begun = Instant::now();
        place.succeed(&["--help"]);
        begun.elapsed()
    };
    // The best of many: other work on the machine only adds. A release build takes less than 20 ms.
    let best = (0..20).map(time).min().unwrap();
    assert!(best < Duration::from_millis(60), "{best:?}");
}

#[test]
fn colours_follow_the_option() {
    let place = Place::empty();
    let error = |color: &str| place.run(&["inspect", "nowhere", "--color", color]).stderr;
    assert!(error("always").starts_with("\u{1b}["));
    assert!(error("never").starts_with("error: ") && error("auto").starts_with("error: "));
}
