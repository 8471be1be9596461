//! The files of a directory that are not the checkpoint's tensors: which go along with a copy, and which do not.

use std::collections::{BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::code;
use super::modules;
use super::sources::PICKLE_EXTENSIONS;
use crate::error::Error;
use crate::manifest::MANIFEST_FILE;
use crate::mmap::FileState;

/// The model's description, which a copy rewrites.
pub(super) const CONFIG_FILE: &str = "config.json";

/// Weights in formats of other frameworks.
pub(super) const FOREIGN_EXTENSIONS: &[&str] = &["h5", "msgpack", "gguf", "onnx", "ot"];

/// Endings of files that describe a model or its tokenizer.
const DESCRIBING_EXTENSIONS: &[&str] = &["json", "jinja", "model", "tiktoken", "py"];

/// The same for endings that other files have too.
const DESCRIBING_FILES: &[&str] = &["merges.txt", "vocab.txt"];

/// A file or directory beside a checkpoint that is not copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOutFile {
    /// Its name in the checkpoint's directory.
    pub name: PathBuf,
    /// The reason that it is not copied.
    pub reason: LeftOutReason,
}

/// The reason that a file is not copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeftOutReason {
    /// Its name begins with a dot.
    Hidden,
    /// Directories are not followed.
    Directory,
    /// A broken link, a socket, a device.
    NotAFile,
    /// Code that no configuration names.
    Code,
    /// A safetensors file that is not part of the checkpoint.
    OtherSafetensors,
    /// Weights of another format: a copy of the original beside the new ones.
    OtherWeights,
    /// An index of files that are not copied.
    OtherIndex,
    /// Weights of a pipeline that belong to none of its components.
    OutsideComponents,
}

impl fmt::Display for LeftOutReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hidden => "hidden file",
            Self::Directory => "directory",
            Self::NotAFile => "not a regular file",
            Self::Code => "code that no configuration names",
            Self::OtherSafetensors => "safetensors file that is not part of the checkpoint",
            Self::OtherWeights => "weights in another format",
            Self::OtherIndex => "index of other weights",
            Self::OutsideComponents => "weights outside of all components",
        })
    }
}

/// The names in a directory, sorted.
pub(super) fn list_dir(dir: &Path) -> Result<Vec<OsString>, Error> {
    let wrap = |e| Error::io("list", dir, None, e);
    let mut names = fs::read_dir(dir)
        .map_err(wrap)?
        .map(|entry| entry.map(|e| e.file_name()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(wrap)?;
    names.sort();
    Ok(names)
}

/// The files that describe a model or its tokenizer, as they are now. Other files of a directory, such as a log of the run, may grow
/// while it is read.
pub(super) fn describing_files(dir: &Path) -> Vec<FileState> {
    let describes = |name: &str| has_extension(name, DESCRIBING_EXTENSIONS) || DESCRIBING_FILES.contains(&name);
    // A directory that cannot be listed is an error where its files are needed.
    let names = list_dir(dir).unwrap_or_default().into_iter().filter(|name| !is_hidden(name));
    names.filter(|name| describes(&name.to_string_lossy())).filter_map(|name| FileState::at(&dir.join(name))).collect()
}

/// Returns whether the name of a file or folder begins with a dot.
pub(super) fn is_hidden(name: &OsStr) -> bool {
    name.to_string_lossy().starts_with('.')
}

/// Returns whether a name ends in a dot and one of the extensions, ignoring case.
pub(super) fn has_extension(name: &str, extensions: &[&str]) -> bool {
    name.rsplit_once('.').is_some_and(|(_, end)| extensions.iter().any(|e| end.eq_ignore_ascii_case(e)))
}

/// Splits a directory into the files to carry along and those to leave, both sorted. The checkpoint's `own` files and its
/// `config.json` are neither, and neither is a manifest.
pub(super) fn sort_files(dir: &Path, own: &[&Path]) -> Result<(Vec<PathBuf>, Vec<LeftOutFile>), Error> {
    let (mut extra, mut left_out) = (vec![], vec![]);
    // A bare file name means a file in `.`.
    let own: HashSet<PathBuf> = own.iter().map(|own| dir.join(own.strip_prefix(dir).unwrap_or(own))).collect();
    let named: BTreeSet<PathBuf> = code::find(dir).files.into_iter().chain(modules::find(dir)).collect();
    let folders: HashSet<&OsStr> = named.iter().filter_map(|file| file.iter().next()).collect();
    for name in list_dir(dir)? {
        let path = dir.join(&name);
        if name == CONFIG_FILE || name == MANIFEST_FILE || own.contains(&path) {
            continue;
        }
        match reason_to_leave(&path, &name) {
            Some(LeftOutReason::Code) if named.contains(Path::new(&name)) => {}
            Some(LeftOutReason::Directory) if folders.contains(name.as_os_str()) => {}
            Some(reason) => left_out.push(LeftOutFile { name: name.into(), reason }),
            None => extra.push(name.into()),
        }
    }
    extra.extend(named);
    extra.sort();
    Ok((extra, left_out))
}

fn reason_to_leave(path: &Path, name: &OsStr) -> Option<LeftOutReason> {
    if is_hidden(name) {
        return Some(LeftOutReason::Hidden);
    }
    if path.is_dir() {
        return Some(LeftOutReason::Directory);
    }
    if !path.is_file() {
        return Some(LeftOutReason::NotAFile);
    }
    reason_by_name(&name.to_string_lossy())
}

fn reason_by_name(name: &str) -> Option<LeftOutReason> {
    let stem_of_index = name.strip_suffix(".index.json");
    match stem_of_index.unwrap_or(name) {
        indexed if stem_of_index.is_some() && weights(indexed).is_some() => Some(LeftOutReason::OtherIndex),
        name if has_extension(name, &["py"]) => Some(LeftOutReason::Code),
        name => weights(name),
    }
}

fn weights(name: &str) -> Option<LeftOutReason> {
    if has_extension(name, &["safetensors"]) {
        return Some(LeftOutReason::OtherSafetensors);
    }
    let foreign = has_extension(name, PICKLE_EXTENSIONS) || has_extension(name, FOREIGN_EXTENSIONS);
    foreign.then_some(LeftOutReason::OtherWeights)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn left_out_reason_by_file_name() {
        use LeftOutReason::*;
        let cases = [
            ("tokenizer.json", None),
            ("tokenizer.model", None),
            ("chat_template.jinja", None),
            ("vocab.index.json", None),
            ("LICENSE", None),
            ("modeling_x.py", Some(Code)),
            ("MODELING_X.PY", Some(Code)),
            ("consolidated.safetensors", Some(OtherSafetensors)),
            ("pytorch_model.bin", Some(OtherWeights)),
            ("tf_model.h5", Some(OtherWeights)),
            ("pytorch_model.bin.index.json", Some(OtherIndex)),
            ("model.fp8.safetensors.index.json", Some(OtherIndex)),
        ];
        for (name, reason) in cases {
            assert_eq!(reason_by_name(name), reason, "{name}");
        }
    }
}
