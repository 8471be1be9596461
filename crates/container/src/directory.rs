//! The directory of a file, and the files of a directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::path_text::recorded_name;

/// The directory of a model that is named by its directory or by one of its files.
pub fn model_directory(model: &Path) -> &Path {
    if model.is_file() { directory_of(model) } else { model }
}

/// The directory of a file, which is `.` where the path is a name alone.
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// How to treat a folder that does not exist when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingFolder {
    /// As an error.
    Fail,
    /// As a folder without files.
    Skip,
}

/// All files below a directory, and folders without any, sorted, with `/` between folders, as records name them.
///
/// # Errors
/// System errors, and missing folders with [`MissingFolder::Fail`].
pub fn names_below(dir: &Path, missing: MissingFolder) -> io::Result<Vec<String>> {
    let is_missing = |cause: &io::Error| matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    let (mut names, mut left) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(folder) = left.pop() {
        let entries = match fs::read_dir(dir.join(&folder)) {
            Err(cause) if missing == MissingFolder::Skip && is_missing(&cause) => continue,
            entries => entries?.collect::<io::Result<Vec<_>>>()?,
        };
        if entries.is_empty() && folder != Path::new("") {
            names.push(folder);
            continue;
        }
        for entry in entries {
            let name = folder.join(entry.file_name());
            match entry.file_type()?.is_dir() {
                true => left.push(name),
                false => names.push(name),
            }
        }
    }
    let mut names: Vec<String> = names.iter().map(|name| recorded_name(name)).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_of_bare_file_name_is_dot() {
        let of = |path: &str| directory_of(Path::new(path)).to_str().unwrap().to_owned();
        assert_eq!(["model.onnx", "out/model.onnx", "/model.onnx"].map(of), [".", "out", "/"]);
    }
}
