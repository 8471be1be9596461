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
const LIBRARIES: &[&str] = &[
    "numeric",
    "quant",
    "container",
    "model",
    "weights",
    "gguf",
    "formats",
    "data",
    "forward",
    "checkpoint",
    "onnx",
    "kvant",
];

/// The crates whose documentation of public items is checked.
const DOCUMENTED: &[&str] = &["numeric", "quant", "container", "model", "kvant", "cli"];

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

/// The Markdown files that users and contributors read.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut left = vec![root.join("docs")];
    let mut found =
        ["README.md", "CHANGELOG.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| root.join(name)).to_vec();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|ending| ending == "md" || ending == "json") {
            found.push(path);
        }
    }
    assert!(found.len() > 30);
    found
}

/// Phrases of Markdown, where a sentence goes over several lines. Text in backticks is code.
fn phrases(text: &str) -> impl Iterator<Item = &'static str> {
    let prose =
        text.split('`').step_by(2).collect::<Vec<_>>().join("`").split_whitespace().collect::<Vec<_>>().join(" ");
    let prose = prose.to_lowercase();
    TRANSLATED.iter().copied().filter(move |phrase| has_words(&prose, phrase))
}

#[test]
fn documentation_does_not_read_as_translated() {
    let mut found = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        // Paragraphs and cells: two of them do not make a phrase.
        for part in text.split("\n\n").flat_map(|part| part.split(['|', '"'])) {
            found.extend(phrases(part).map(|phrase| format!("{}: `{phrase}` in {part:?}", page.display())));
        }
    }
    assert!(found.is_empty(), "write it as in the glossary of terms:\n{}", found.join("\n"));
}

#[test]
fn public_documentation_does_not_read_as_translated() {
    let mut found = Vec::new();
    for source in sources(DOCUMENTED) {
        for (line, text) in public_documentation(&fs::read_to_string(&source).unwrap()) {
            found.extend(phrases(&text).map(|phrase| format!("{}:{line}: `{phrase}` in {text:?}", source.display())));
        }
    }
    assert!(found.is_empty(), "write plain technical English:\n{}", found.join("\n"));
}

/// The documentation of modules and public items: the line on which each begins, and its text.
fn public_documentation(source: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = source.lines().map(str::trim_start).collect();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < lines.len() {
        let mark = ["//!", "///"].into_iter().find(|mark| lines[at].starts_with(mark));
        let Some(mark) = mark else {
            at += 1;
            continue;
        };
        let start = at;
        let text: Vec<&str> = lines[at..].iter().map_while(|line| line.strip_prefix(mark)).collect();
        at += text.len();
        let item = lines[at..].iter().find(|line| !line.starts_with("#["));
        if mark == "//!" || item.is_some_and(|item| item.starts_with("pub ")) {
            found.push((start + 1, text.join(" ")));
        }
    }
    found
}

#[test]
fn documentation_of_private_items_is_not_public() {
    let source =
        "//! a\n//! b\n\n/// c\n#[derive(Debug)]\npub struct S;\n/// d\nfn f() {}\n/// e\npub(crate) fn g() {}\n";
    assert_eq!(public_documentation(source), [(1, " a  b".to_owned()), (4, " c".to_owned())]);
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
            .args(command.split(' ').chain(["--help", "--features"]))
            .output()
            .unwrap();
        String::from_utf8(run.stdout).unwrap()
    };
    let commands = [
        "quantize",
        "convert",
        "plan",
        "inspect",
        "verify",
        "eval",
        "generate",
        "graph extract",
        "graph show",
        "sensitivity",
        "search",
        "report",
        "list",
    ];
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

/// Returns whether a text has these words, whole, one behind the other.
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
