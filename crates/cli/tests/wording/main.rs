//! The words of messages and help, in the sources of all crates: plain English, and no options below the command line.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod literals;

use literals::{Literal, literals};
use std::fs;
use std::path::{Path, PathBuf};

/// Phrases that read as translated, from the glossary. Words are matched whole.
const TRANSLATED: &[&str] = &[
    "tell",
    "tells",
    "told",
    "go on",
    "goes on",
    "going on",
    "anew",
    "all else",
    "all the same",
    "stands in",
    "lies in",
    "shall",
    "no number",
    "has none",
    "is made of",
    "to be had",
    "shared out",
    "its kin",
];

/// The crates that know nothing of the command line.
const LIBRARIES: &[&str] = &["numeric", "quant", "container", "llm", "onnx", "kvant"];

/// Options of other programs that hints name.
const OF_OTHER_PROGRAMS: &[&str] =
    &["--local-dir", "--cache-type-k", "--merge", "--model-path", "--help", "--features"];

#[test]
fn messages_and_help_do_not_read_as_translated() {
    let mut found = Vec::new();
    for source in sources(&[LIBRARIES, &["cli"]].concat()) {
        let text = fs::read_to_string(&source).unwrap();
        let mut texts = literals(&text);
        // What clap prints as help is written as documentation of the arguments.
        if source.components().any(|part| part.as_os_str() == "args") {
            texts.extend(documentation(&text));
        }
        for literal in texts {
            let phrase = TRANSLATED.iter().find(|phrase| has_words(&literal.text, phrase));
            found.extend(phrase.map(|phrase| place(&source, &literal, phrase)));
        }
    }
    assert!(found.is_empty(), "these read as translated; see Style in CONTRIBUTING.md:\n{}", found.join("\n"));
}

#[test]
fn no_message_below_the_command_line_names_an_option() {
    let mut found = Vec::new();
    for source in sources(LIBRARIES) {
        for literal in literals(&fs::read_to_string(&source).unwrap()) {
            let option = options(&literal.text).find(|option| !OF_OTHER_PROGRAMS.contains(option));
            found.extend(option.map(|option| place(&source, &literal, option)));
        }
    }
    assert!(found.is_empty(), "write settings as in ‹calib›:\n{}", found.join("\n"));
}

#[test]
fn settings_in_messages_are_options_of_the_command_line() {
    let help = |command: &str| {
        let run = std::process::Command::new(env!("CARGO_BIN_EXE_kvant"))
            .args([command, "--help", "--features"])
            .output()
            .unwrap();
        String::from_utf8(run.stdout).unwrap()
    };
    let commands = ["quantize", "convert", "plan", "inspect", "verify", "eval", "sensitivity", "list"];
    let help: String = commands.iter().map(|command| help(command)).collect();
    let mut count = 0;
    for source in sources(LIBRARIES) {
        for literal in literals(&fs::read_to_string(&source).unwrap()) {
            for setting in kvant::settings(&literal.text) {
                count += 1;
                let is_option = has_option(&help, &format!("--{setting}"));
                // The library's own examples of settings.
                let is_example = source.ends_with("kvant/src/settings.rs");
                assert!(is_option || is_example, "{}", place(&source, &literal, setting));
            }
        }
    }
    assert!(count > 100, "{count}");
}

fn has_option(help: &str, option: &str) -> bool {
    help.match_indices(option)
        .any(|(at, _)| !help[at + option.len()..].starts_with(|c: char| c == '-' || c.is_alphanumeric()))
}

/// Rust files of crates, their tests left out.
fn sources(crates: &[&str]) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut left: Vec<PathBuf> = crates.iter().map(|name| root.join(name).join("src")).collect();
    let mut found = Vec::new();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
    assert!(found.len() > 5 * crates.len());
    found
}

fn documentation(source: &str) -> Vec<Literal> {
    let line = |(at, line): (usize, &str)| {
        Some(Literal { line: at + 1, text: line.trim_start().strip_prefix("///")?.to_owned() })
    };
    source.lines().enumerate().filter_map(line).collect()
}

/// Whether a text has these words, whole, one behind the other.
fn has_words(text: &str, words: &str) -> bool {
    let is_inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-');
    text.match_indices(words).any(|(at, _)| {
        !is_inside(text[..at].chars().next_back()) && !is_inside(text[at + words.len()..].chars().next())
    })
}

/// The long options in a text.
fn options(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_lowercase() || c == '-'))
        .filter(|word| word.starts_with("--") && word[2..].starts_with(|c: char| c.is_ascii_lowercase()))
}

fn place(source: &Path, literal: &Literal, what: &str) -> String {
    format!("{}:{}: `{what}` in {:?}", source.display(), literal.line, literal.text)
}
