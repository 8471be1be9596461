//! Names of results, by the names of their files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A name for each file: its own without its end, and of files of the same name as much of their folders as tells them apart.
pub(super) fn of_files(files: &[PathBuf]) -> Vec<String> {
    let longest = files.iter().map(|file| file.components().count()).max().unwrap_or(0);
    let ends = |parts: usize| files.iter().map(move |file| end(file, parts));
    let mut names: Vec<String> = ends(1).collect();
    for parts in 2..=longest {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        names.iter().for_each(|name| *counts.entry(name).or_default() += 1);
        let is_shared: Vec<bool> = names.iter().map(|name| counts[name.as_str()] > 1).collect();
        for ((name, longer), is_shared) in names.iter_mut().zip(ends(parts)).zip(is_shared) {
            if is_shared {
                *name = longer;
            }
        }
    }
    names
}

/// The last parts of a path, without the end of the file's name.
fn end(file: &Path, parts: usize) -> String {
    let whole = file.with_extension("");
    let all: Vec<String> = whole.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    all[all.len().saturating_sub(parts)..].join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_name_are_named_by_their_folders() {
        let names = |files: &[&str]| of_files(&files.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(names(&["a/int4.json", "b/int8.json"]), ["int4", "int8"]);
        assert_eq!(names(&["a/eval.json", "b/eval.json", "b/other.json"]), ["a/eval", "b/eval", "other"]);
        assert_eq!(names(&["x/a/eval.json", "y/a/eval.json"]), ["x/a/eval", "y/a/eval"]);
        assert_eq!(names(&["eval.json", "old/eval.json"]), ["eval", "old/eval"]);
        assert_eq!(names(&["eval.json", "eval.json"]), ["eval", "eval"]);
    }
}
