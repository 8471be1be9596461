//! Whether an output can be made where it is wanted: what stands under its name. Changes nothing.

use super::Form;
use super::manifest;
use kvant_container::unfinished::OutputError;
use kvant_container::{Look, gguf};
use std::fs;
use std::path::Path;

/// The existing output: nothing, an empty directory, or one that Kvant wrote and may replace.
pub(super) fn check_target(target: &Path, form: &Form, overwrite: bool, look: Look) -> Result<(), OutputError> {
    if target.symlink_metadata().is_err() || *form == Form::Directory && is_empty_dir(target) {
        return Ok(());
    }
    let look = if overwrite { look } else { Look::Names };
    if let Some(reason) = reason_to_keep(target, form, look)? {
        return Err(OutputError::NotReplaceable { path: target.to_owned(), reason });
    }
    if overwrite { Ok(()) } else { Err(OutputError::Exists(target.to_owned())) }
}

/// The reason that an existing output must not be replaced; `None` if Kvant wrote all of it.
fn reason_to_keep(target: &Path, form: &Form, look: Look) -> Result<Option<String>, OutputError> {
    if let Form::File(_) = form {
        let reason = match gguf::is_gguf(target) {
            false => Some("it is not a GGUF file"),
            true => gguf::is_imatrix(target).then_some("it is an importance matrix, not a model"),
        };
        return Ok(reason.map(str::to_owned));
    }
    if !target.is_dir() {
        return Ok(Some("it is not a directory".to_owned()));
    }
    if std::env::current_dir().is_ok_and(|current| holds(target, &current)) {
        return Ok(Some("it is or holds the current directory".to_owned()));
    }
    manifest::strangers(target, look).map_err(OutputError::io("read", target))
}

/// A source may hold the output, which is made beside its files, but not the other way round.
pub(super) fn check_source(target: &Path, source: &Path) -> Result<(), OutputError> {
    if holds(target, source) { Err(OutputError::IsSource(target.to_owned())) } else { Ok(()) }
}

fn is_empty_dir(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// Returns whether a directory is or holds another path.
fn holds(target: &Path, source: &Path) -> bool {
    matches!((source.canonicalize(), target.canonicalize()), (Ok(source), Ok(target)) if source.starts_with(&target))
}
