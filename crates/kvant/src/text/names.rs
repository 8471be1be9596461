//! Short names of files in tables.

use super::shown;
use std::collections::HashMap;
use std::path::Path;

/// A short name for each path: the file name, with as many parent folders as it takes to be unique.
pub(crate) fn short_names(paths: &[impl AsRef<Path>]) -> Vec<String> {
    let longest = paths.iter().map(|path| path.as_ref().components().count()).max().unwrap_or(0);
    let ends = |parts: usize| paths.iter().map(move |path| end(path.as_ref(), parts));
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

/// The last parts of a path.
fn end(path: &Path, parts: usize) -> String {
    let all: Vec<String> = path.components().map(|part| shown(Path::new(part.as_os_str()))).collect();
    all[all.len().saturating_sub(parts)..].join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_one_name_are_named_by_their_folders() {
        let names = |paths: &[&str]| short_names(paths);
        assert_eq!(names(&["a/int4", "b/int8.gguf"]), ["int4", "int8.gguf"]);
        assert_eq!(names(&["a/model", "b/model", "c/int4"]), ["a/model", "b/model", "int4"]);
        assert_eq!(names(&["x/a/eval", "y/a/eval"]), ["x/a/eval", "y/a/eval"]);
        assert_eq!(names(&["eval", "old/eval"]), ["eval", "old/eval"]);
        assert_eq!(names(&["eval", "eval"]), ["eval", "eval"]);
        assert_eq!(names(&["..", "a"]), ["..", "a"]);
    }
}
