//! The top-level modules of a crate depend on each other in one direction only.
//!
//! A top-level module is `src/<name>.rs` or `src/<name>/`. It depends on each module of its crate that its source names
//! in a path: `crate::plan`, `super::super::plan`, `crate::{plan, export::Part}`. A name that `lib.rs` re-exports
//! (`crate::Codes` for `pub use quant_tensor::Codes`) stands for the module that defines it. Comments, strings and code
//! under `#[cfg(test)]` do not count.
//!
//! When this test fails, it prints the modules of each cycle and the lines that hold the cycle together. Usually the
//! remedy is to move a type or a function down to the module that it belongs to, or to pass a value to the lower module
//! instead of letting it ask for one.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)] // Helpers of tests, outside `#[test]` functions.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn top_level_modules_have_no_dependency_cycles() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut report = String::new();
    let mut checked = 0;
    let mut folders: Vec<_> = fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    for folder in folders.iter().filter(|folder| folder.join("src/lib.rs").is_file()) {
        let name = folder.file_name().unwrap().to_str().unwrap();
        let graph = Graph::of_crate(folder);
        assert!(!graph.modules.is_empty(), "no modules found in {name}");
        checked += 1;
        for cycle in graph.cycles() {
            graph.describe(name, &cycle, &mut report);
        }
    }
    assert!(checked >= 5, "expected the libraries of the workspace beside this crate, found {checked}");
    assert!(report.is_empty(), "\n{report}");
}

/// Which top-level module of a crate depends on which, and the lines that say so.
#[derive(Default)]
struct Graph {
    modules: BTreeSet<String>,
    edges: BTreeMap<(String, String), BTreeSet<String>>,
}

impl Graph {
    fn of_crate(folder: &Path) -> Self {
        let mut files = Vec::new();
        read_module(&folder.join("src/lib.rs"), &folder.join("src"), Vec::new(), &mut files);
        let root = files.iter().find(|file| file.module.is_empty()).expect("lib.rs is a file of its crate");
        let modules: BTreeSet<String> = files.iter().filter_map(|file| file.module.first().cloned()).collect();
        let exports = re_exports(&root.tokens, &modules);

        let mut graph = Self { modules, ..Self::default() };
        for file in files.iter().filter(|file| !file.module.is_empty()) {
            let shown = file.path.strip_prefix(folder.parent().unwrap()).unwrap().display();
            for (name, line) in names_at_the_root(file) {
                let target = if graph.modules.contains(&name) {
                    name
                } else {
                    match exports.get(&name) {
                        Some(Some(module)) => module.clone(),
                        Some(None) => continue, // Another crate's.
                        None => {
                            panic!("{shown}:{line}: `crate::{name}` is no module, and lib.rs does not re-export it")
                        }
                    }
                };
                if target != file.module[0] {
                    let lines = graph.edges.entry((file.module[0].clone(), target)).or_default();
                    lines.insert(format!("{shown}:{line}"));
                }
            }
        }
        graph
    }

    /// The strongly connected components of more than one module.
    fn cycles(&self) -> Vec<BTreeSet<String>> {
        let reached: BTreeMap<&String, BTreeSet<&String>> =
            self.modules.iter().map(|module| (module, self.reached_from(module))).collect();
        let mut cycles = Vec::new();
        let mut seen = BTreeSet::new();
        for module in &self.modules {
            let cycle: BTreeSet<String> = reached[module]
                .iter()
                .filter(|other| reached[**other].contains(module))
                .map(|m| m.to_string())
                .collect();
            if cycle.len() > 1 && seen.insert(cycle.clone()) {
                cycles.push(cycle);
            }
        }
        cycles
    }

    fn reached_from<'a>(&'a self, start: &'a String) -> BTreeSet<&'a String> {
        let mut reached = BTreeSet::from([start]);
        let mut next = vec![start];
        while let Some(module) = next.pop() {
            for (from, to) in self.edges.keys() {
                if from == module && reached.insert(to) {
                    next.push(to);
                }
            }
        }
        reached
    }

    fn describe(&self, name: &str, cycle: &BTreeSet<String>, report: &mut String) {
        let modules: Vec<_> = cycle.iter().map(String::as_str).collect();
        writeln!(report, "{} modules of crates/{name} depend on each other: {}", modules.len(), modules.join(", "))
            .unwrap();
        for ((from, to), lines) in &self.edges {
            if cycle.contains(from) && cycle.contains(to) {
                writeln!(report, "  {from} -> {to}").unwrap();
                for line in lines {
                    writeln!(report, "      crates/{line}").unwrap();
                }
            }
        }
        report.push('\n');
    }
}

/// A source file, without comments, strings and tests, and the module that it is.
struct SourceFile {
    path: PathBuf,
    module: Vec<String>,
    tokens: Vec<Token>,
}

#[derive(Debug, Clone, PartialEq)]
struct Token {
    text: String,
    line: usize,
}

/// Reads the file of a module and those of the modules that it declares, whose files are in `folder`.
fn read_module(path: &Path, folder: &Path, module: Vec<String>, files: &mut Vec<SourceFile>) {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let tokens = without_tests(tokens_of(&text));
    for (inner, name) in declared_modules(&tokens) {
        let folder = inner.iter().fold(folder.to_path_buf(), |folder, name| folder.join(name));
        let inside = folder.join(&name);
        let file = [folder.join(format!("{name}.rs")), inside.join("mod.rs")].into_iter().find(|file| file.is_file());
        let file = file.unwrap_or_else(|| panic!("{}: no file for `mod {name};`", path.display()));
        read_module(&file, &inside, [&module[..], &inner, &[name]].concat(), files);
    }
    files.push(SourceFile { path: path.to_path_buf(), module, tokens });
}

/// The modules `mod name;` of a file, each with the inline modules around it.
fn declared_modules(tokens: &[Token]) -> Vec<(Vec<String>, String)> {
    let mut declared = Vec::new();
    for (index, inner) in inline_modules(tokens).into_iter().enumerate() {
        if tokens[index].text == "mod" && text_at(tokens, index + 2) == ";" {
            declared.push((inner, tokens[index + 1].text.clone()));
        }
    }
    declared
}

/// For each token, the inline modules (`mod name { ... }`) around it.
fn inline_modules(tokens: &[Token]) -> Vec<Vec<String>> {
    let mut around = Vec::with_capacity(tokens.len());
    let mut open: Vec<Option<String>> = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        around.push(open.iter().flatten().cloned().collect());
        match token.text.as_str() {
            "{" => {
                let is_module = index >= 2 && tokens[index - 2].text == "mod";
                open.push(is_module.then(|| tokens[index - 1].text.clone()));
            }
            "}" => drop(open.pop()),
            _ => {}
        }
    }
    around
}

/// The names after `crate::`, and after as many `super::` as lead to the root, with their lines.
fn names_at_the_root(file: &SourceFile) -> Vec<(String, usize)> {
    let around = inline_modules(&file.tokens);
    let mut names = Vec::new();
    for (index, token) in file.tokens.iter().enumerate() {
        let starts = matches!(token.text.as_str(), "crate" | "self" | "super")
            && text_at(&file.tokens, index + 1) == "::"
            && (index == 0 || file.tokens[index - 1].text != "::")
            && !is_visibility(&file.tokens, index);
        if !starts {
            continue;
        }
        let here = [&file.module[..], &around[index]].concat();
        for path in paths_from(&file.tokens, index) {
            let (segment, line) = absolute(&here, &path);
            names.extend(segment.map(|segment| (segment, line)));
        }
    }
    names
}

/// `pub(in crate::plan)` limits who sees an item; it uses nothing.
fn is_visibility(tokens: &[Token], index: usize) -> bool {
    index >= 2 && tokens[index - 1].text == "in" && tokens[index - 2].text == "("
}

/// The first segment of a path seen from the root of the crate, if the path leads there.
fn absolute(here: &[String], path: &[Token]) -> (Option<String>, usize) {
    let mut base = here.to_vec();
    for token in path {
        match token.text.as_str() {
            "crate" => base.clear(),
            "super" => drop(base.pop()),
            "self" => {}
            _ if base.is_empty() => return (Some(token.text.clone()), token.line),
            _ => break,
        }
    }
    (base.first().cloned(), path[0].line)
}

/// The paths that start at a token: one, or as many as its groups (`a::{b, c::{d, e}}`) have members.
fn paths_from(tokens: &[Token], start: usize) -> Vec<Vec<Token>> {
    let mut paths = Vec::new();
    collect_paths(tokens, start, &[], &mut paths);
    paths
}

/// Adds the paths that start at a token, each behind `before`, and gives the index after them.
fn collect_paths(tokens: &[Token], start: usize, before: &[Token], paths: &mut Vec<Vec<Token>>) -> usize {
    let mut path = before.to_vec();
    let mut index = start;
    loop {
        if text_at(tokens, index) == "{" {
            index += 1;
            while text_at(tokens, index) != "}" {
                index =
                    if text_at(tokens, index) == "," { index + 1 } else { collect_paths(tokens, index, &path, paths) };
            }
            return index + 1;
        }
        path.push(tokens[index].clone());
        index += 1;
        if text_at(tokens, index) == "::" && text_at(tokens, index + 1) != "<" {
            index += 1;
            continue;
        }
        paths.push(path);
        // `a as b`, in a group.
        return if text_at(tokens, index) == "as" && !before.is_empty() { index + 2 } else { index };
    }
}

/// The names that `lib.rs` re-exports, each with the module it comes from, or nothing for those of another crate.
fn re_exports(tokens: &[Token], modules: &BTreeSet<String>) -> HashMap<String, Option<String>> {
    let mut exports = HashMap::new();
    for (index, _) in tokens.iter().enumerate().filter(|(_, token)| token.text == "use") {
        for path in paths_with_aliases(tokens, index + 1) {
            let from = path.iter().find(|segment| !matches!(segment.as_str(), "crate" | "self")).cloned();
            let name = path.last().cloned().unwrap_or_default();
            assert_ne!(name, "*", "this check does not see through `pub use {}`", path.join("::"));
            exports.insert(name, from.filter(|module| modules.contains(module)));
        }
    }
    exports
}

/// The paths of a `use`, where the last segment of one with an alias is the alias.
fn paths_with_aliases(tokens: &[Token], start: usize) -> Vec<Vec<String>> {
    let mut plain = Vec::new();
    let end = tokens[start..].iter().position(|token| token.text == ";").map_or(tokens.len(), |length| start + length);
    let mut joined: Vec<Token> = Vec::new();
    for token in &tokens[start..end] {
        // `Name as Other` becomes `Name::Other`.
        joined.push(if token.text == "as" { Token { text: "::".to_owned(), line: token.line } } else { token.clone() });
    }
    collect_paths(&joined, 0, &[], &mut plain);
    plain.into_iter().map(|path| path.into_iter().map(|token| token.text).collect()).collect()
}

fn text_at(tokens: &[Token], index: usize) -> &str {
    tokens.get(index).map_or("", |token| token.text.as_str())
}

/// Takes out each item under `#[cfg(test)]` or `#[cfg(all(test, ...))]`.
fn without_tests(tokens: Vec<Token>) -> Vec<Token> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut index = 0;
    while index < tokens.len() {
        if is_test_attribute(&tokens, index) {
            index = end_of_item(&tokens, index);
        } else {
            kept.push(tokens[index].clone());
            index += 1;
        }
    }
    kept
}

fn is_test_attribute(tokens: &[Token], index: usize) -> bool {
    let text = |offset| text_at(tokens, index + offset);
    let is_cfg = [text(0), text(1), text(2), text(3)] == ["#", "[", "cfg", "("];
    is_cfg && (text(4) == "test" && text(5) == ")" || [text(4), text(5), text(6)] == ["all", "(", "test"])
}

/// The index behind the item whose attributes start at a token.
fn end_of_item(tokens: &[Token], mut index: usize) -> usize {
    while text_at(tokens, index) == "#" {
        index = end_of_group(tokens, index + 1);
    }
    let starts_item = matches!(
        text_at(tokens, index),
        "pub"
            | "use"
            | "mod"
            | "fn"
            | "impl"
            | "struct"
            | "enum"
            | "const"
            | "static"
            | "type"
            | "trait"
            | "extern"
            | "macro_rules"
    );
    let is_use = tokens[index..].iter().take_while(|token| token.text != ";").any(|token| token.text == "use")
        && matches!(text_at(tokens, index), "pub" | "use");
    while index < tokens.len() {
        match tokens[index].text.as_str() {
            ";" => return index + 1,
            "," if !starts_item => return index + 1, // A field, a variant or an arm.
            "{" => {
                index = end_of_group(tokens, index);
                if !is_use {
                    return index;
                }
            }
            "(" | "[" => index = end_of_group(tokens, index),
            "}" => return index,
            _ => index += 1,
        }
    }
    index
}

/// The index behind the bracket that closes the one at `index`.
fn end_of_group(tokens: &[Token], mut index: usize) -> usize {
    let mut depth = 0;
    while index < tokens.len() {
        match tokens[index].text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        index += 1;
        if depth == 0 {
            break;
        }
    }
    index
}

/// The words and punctuation of a file, without comments, strings, characters and lifetimes.
fn tokens_of(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let mut line = 1;
    let mut index = 0;
    while index < chars.len() {
        let start = index;
        match chars[index] {
            '/' if chars.get(index + 1) == Some(&'/') => index = line_end(&chars, index),
            '/' if chars.get(index + 1) == Some(&'*') => index = comment_end(&chars, index),
            '"' => index = string_end(&chars, index),
            '\'' => index = quote_end(&chars, index),
            ':' if chars.get(index + 1) == Some(&':') => {
                index += 2;
                tokens.push(Token { text: "::".to_owned(), line });
            }
            c if c.is_alphanumeric() || c == '_' => {
                while chars.get(index).is_some_and(|c| c.is_alphanumeric() || *c == '_') {
                    index += 1;
                }
                let word: String = chars[start..index].iter().collect();
                match (word.as_str(), raw_string_end(&chars, index)) {
                    ("r" | "br" | "cr", Some(end)) => index = end,
                    // `b"..."` and `b'x'`: the quote follows as a token of its own.
                    _ => tokens.push(Token { text: word, line }),
                }
            }
            c => {
                index += 1;
                if !c.is_whitespace() {
                    tokens.push(Token { text: c.to_string(), line });
                }
            }
        }
        line += chars[start..index].iter().filter(|c| **c == '\n').count();
    }
    tokens
}

fn line_end(chars: &[char], index: usize) -> usize {
    chars[index..].iter().position(|c| *c == '\n').map_or(chars.len(), |length| index + length)
}

fn comment_end(chars: &[char], mut index: usize) -> usize {
    let mut depth = 0;
    while index < chars.len() {
        match (chars[index], chars.get(index + 1)) {
            ('/', Some('*')) => (depth, index) = (depth + 1, index + 2),
            ('*', Some('/')) => (depth, index) = (depth - 1, index + 2),
            _ => index += 1,
        }
        if depth == 0 {
            break;
        }
    }
    index
}

fn string_end(chars: &[char], mut index: usize) -> usize {
    index += 1;
    while index < chars.len() && chars[index] != '"' {
        index += if chars[index] == '\\' { 2 } else { 1 };
    }
    index + 1
}

/// Behind a character, or behind the quote of a lifetime.
fn quote_end(chars: &[char], index: usize) -> usize {
    if chars.get(index + 1) == Some(&'\\') {
        return chars[index + 3..].iter().position(|c| *c == '\'').map_or(chars.len(), |length| index + length + 4);
    }
    if chars.get(index + 2) == Some(&'\'') { index + 3 } else { index + 1 }
}

/// The end of a raw string whose prefix (`r`, `br`) ends at `index`, if it is one.
fn raw_string_end(chars: &[char], index: usize) -> Option<usize> {
    let hashes = chars[index..].iter().take_while(|c| **c == '#').count();
    if chars.get(index + hashes) != Some(&'"') {
        return None;
    }
    let mut at = index + hashes + 1;
    while at < chars.len() {
        if chars[at] == '"' && chars[at + 1..].iter().take_while(|c| **c == '#').count() >= hashes {
            return Some(at + 1 + hashes);
        }
        at += 1;
    }
    Some(chars.len())
}

/// The names at the root in `text`, read as the module `plan::build`.
fn names(text: &str) -> Vec<String> {
    let module = vec!["plan".to_owned(), "build".to_owned()];
    let file = SourceFile { path: PathBuf::new(), module, tokens: without_tests(tokens_of(text)) };
    names_at_the_root(&file).into_iter().map(|(name, _)| name).collect()
}

#[test]
fn paths_are_resolved_through_groups_super_and_inline_modules() {
    assert_eq!(names("use crate::{a, b::{c, d as e}, f};"), ["a", "b", "b", "f"]);
    assert_eq!(names("use super::super::a::b; use super::layer; use self::x;"), ["a", "plan", "plan"]);
    assert_eq!(names("mod inner { use super::super::super::a; }"), ["a"]);
    assert_eq!(names("fn f() -> crate::a::B<'_> { crate::c::<u8>(crate::d!()) }"), ["a", "c", "d"]);
    assert_eq!(names("pub(in crate::plan) fn f() { for x in crate::a::B {} }"), ["a"]);
}

#[test]
fn comments_strings_and_tests_are_no_dependencies() {
    assert!(names("// crate::a\n/* crate::b /* */ crate::c */ /// [`crate::d`]").is_empty());
    assert!(names(r####"const A: [&str; 2] = ["\"crate::a", r#""crate::b"#]; const C: char = '"';"####).is_empty());
    assert!(names("#[cfg(test)]\n#[allow(x)]\nmod tests { use crate::a; fn f() { {} } }").is_empty());
    assert!(
        names("#[cfg(test)] use crate::{a, b}; #[cfg(all(test, unix))] pub fn f<A, B>() -> crate::a::A {}").is_empty()
    );
    assert_eq!(names("#[cfg(test)] use crate::{a, b}; use crate::c;"), ["c"]);
    assert_eq!(names("#[cfg(not(test))] use crate::a;"), ["a"]);
}

#[test]
fn re_exports_resolve_to_the_defining_module() {
    let modules = BTreeSet::from(["plan".to_owned(), "export".to_owned()]);
    let text = "pub use plan::{A, inner::B as C}; pub use self::export::D; pub use other_crate::E;";
    let exports = re_exports(&tokens_of(text), &modules);
    assert_eq!(exports["A"], Some("plan".to_owned()));
    assert_eq!(exports["C"], Some("plan".to_owned()));
    assert_eq!(exports["D"], Some("export".to_owned()));
    assert_eq!(exports["E"], None);
}
