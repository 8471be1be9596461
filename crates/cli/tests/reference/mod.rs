//! The reference pages of docs/: text between `<!-- generated: ... -->` and `<!-- end of generated -->` follows from clap's definitions
//! and from the tables of `kvant list`. `KVANT_UPDATE_DOCS=1 cargo test -p kvant-cli --lib reference` writes it.

mod options;
mod schemes;

use kvant::catalog::{TOPICS, words};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- generated: ";
const END: &str = "<!-- end of generated -->\n";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// All pages of a folder, and of the folders in it.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let pages = entries.flat_map(|path| match path.is_dir() {
        true => pages(&path),
        false => vec![path],
    });
    let mut pages: Vec<PathBuf> = pages.filter(|path| path.extension().is_some_and(|ending| ending == "md")).collect();
    pages.sort();
    pages
}

/// The page with all of its generated parts made again.
fn regenerated(page: &str) -> String {
    let mut parts = page.split(BEGIN);
    let mut made = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (what, rest) = part.split_once(" -->\n").unwrap_or_else(|| panic!("no end of the marker: {part:.80}"));
        let (_, after) = rest.split_once(END).unwrap_or_else(|| panic!("`{what}` is not closed by {END}"));
        made += &format!("{BEGIN}{what} -->\n{}{END}{after}", generated(what));
    }
    made
}

fn generated(what: &str) -> String {
    match what.split_once(' ').unwrap_or((what, "")) {
        ("list", table) => list(table),
        ("commands", "") => options::commands(),
        ("graph", "tools") => options::tools(),
        ("topics", "") => {
            let row = |topic: &kvant::catalog::Topic| {
                vec![format!("`{}`", topic.name), prose(&kvant::spelled(topic.about, |name| format!("`--{name}`")))]
            };
            table(&["`kvant list`", "content"], TOPICS.iter().map(row))
        }
        ("options", "") => options::by_heading(),
        ("aliases", "") => options::aliases(),
        _ => panic!("nothing generates `{what}`"),
    }
}

/// `families`, `schemes name,spelling where format=gguf`: a table of the catalog, some of its columns, and the rows with a value.
fn list(text: &str) -> String {
    let (text, filter) = text.split_once(" where ").map_or((text, None), |(text, filter)| (text, Some(filter)));
    let (name, columns) = text.split_once(' ').map_or((text, None), |(name, columns)| (name, Some(columns)));
    let topic = TOPICS.iter().find(|topic| topic.name == name).unwrap_or_else(|| panic!("no table `{name}`"));
    let listed = topic.table();
    let position = |column: &str| {
        let found = listed.columns.iter().position(|known| known.name == column);
        found.unwrap_or_else(|| panic!("`{name}` has no column `{column}`"))
    };
    let shown: Vec<usize> = match columns {
        Some(columns) => columns.split(',').map(position).collect(),
        None => (0..listed.columns.len()).collect(),
    };
    let holds = |row: &&Vec<Value>| match filter.map(|filter| (filter.split_once("!="), filter.split_once('='))) {
        None => true,
        Some((Some((column, value)), _)) => words(&row[position(column)]) != value,
        Some((None, Some((column, value)))) => words(&row[position(column)]) == value,
        Some((None, None)) => panic!("a filter is COLUMN=VALUE or COLUMN!=VALUE"),
    };
    let titles: Vec<&str> = shown.iter().map(|column| listed.columns[*column].name).collect();
    let cell = |column: usize, value: &Value| match (listed.columns[column].name, value) {
        ("name" | "spelling" | "aliases" | "model_types" | "options" | "layouts", value) => code(value),
        ("about" | "cost" | "needs" | "source" | "refuses" | "loads", Value::Array(all)) => {
            all.iter().map(|value| prose(&words(value))).collect::<Vec<_>>().join("; ")
        }
        (_, value) => prose(&words(value)),
    };
    let rows = listed.rows.iter().filter(holds);
    table(&titles, rows.map(|row| shown.iter().map(|column| cell(*column, &row[*column])).collect()))
}

/// A table in Markdown.
fn table(titles: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let rows: Vec<String> = rows.map(|row| format!("| {} |\n", row.join(" | "))).collect();
    assert!(!rows.is_empty(), "an empty table: {titles:?}");
    format!("| {} |\n|{}\n{}", titles.join(" | "), "---|".repeat(titles.len()), rows.concat())
}

fn code(value: &Value) -> String {
    let quoted = |text: &str| if text.is_empty() { String::new() } else { format!("`{}`", text.replace('|', "\\|")) };
    match value {
        Value::Array(all) => all.iter().map(|value| quoted(&words(value))).collect::<Vec<_>>().join(", "),
        value => quoted(&words(value)),
    }
}

/// Text that Markdown shows as it is; code in backticks stays code.
fn prose(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(at, part)| match at % 2 {
        0 => part.replace('*', "\\*").replace('<', "&lt;").replace('|', "\\|"),
        _ => format!("`{}`", part.replace('|', "\\|")),
    });
    parts.collect()
}

#[test]
fn reference_pages_are_current() {
    let mut stale = Vec::new();
    for page in pages(&docs()) {
        let text = fs::read_to_string(&page).unwrap();
        let made = regenerated(&text);
        if made == text {
            continue;
        }
        match std::env::var_os("KVANT_UPDATE_DOCS") {
            Some(_) => fs::write(&page, made).unwrap(),
            None => stale.push(page.display().to_string()),
        }
    }
    let command = "KVANT_UPDATE_DOCS=1 cargo test -p kvant-cli --lib reference";
    assert!(stale.is_empty(), "`{command}` updates\n{}", stale.join("\n"));
}

#[test]
fn every_table_is_in_the_reference() {
    let text: String = pages(&docs().join("reference")).iter().map(|page| fs::read_to_string(page).unwrap()).collect();
    for topic in TOPICS {
        let is_there = [" ", "\n"].iter().any(|end| {
            text.contains(&format!("{BEGIN}list {}{end}", topic.name))
                || text.contains(&format!("{BEGIN}list {} -->", topic.name))
        });
        assert!(is_there, "no page has the table `{}`", topic.name);
    }
}

#[test]
fn generated_parts_follow_their_tables() {
    let page = format!("before\n{BEGIN}list dtypes name,bits where name=int4 -->\nold\n{END}after\n");
    let made = "before\n<!-- generated: list dtypes name,bits where name=int4 -->\n| name | bits |\n|---|---|\n| `int4` | 4 |\n";
    assert_eq!(regenerated(&page), format!("{made}{END}after\n"));
    assert_eq!(prose("a * of `b*c` <d>"), "a \\* of `b*c` &lt;d>");
}
