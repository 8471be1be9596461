//! Short names of models in tables.

use super::shown;
use std::path::Path;

/// The names of files without their directories, or the whole paths where some of these are equal.
pub(crate) fn short_names(paths: &[&Path]) -> Vec<String> {
    let short: Vec<String> =
        paths.iter().map(|path| path.file_name().map_or_else(|| shown(path), |name| shown(Path::new(name)))).collect();
    let is_unique = |name: &String| short.iter().filter(|other| *other == name).count() == 1;
    match short.iter().all(is_unique) {
        true => short,
        false => paths.iter().map(|path| shown(path)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_files_unless_some_are_equal() {
        let names = |paths: &[&str]| short_names(&paths.iter().map(Path::new).collect::<Vec<_>>());
        assert_eq!(names(&["a/int4", "b/int8.gguf"]), ["int4", "int8.gguf"]);
        assert_eq!(names(&["a/model", "b/model", "c/int4"]), ["a/model", "b/model", "c/int4"]);
        assert_eq!(names(&["..", "a"]), ["..", "a"]);
    }
}
