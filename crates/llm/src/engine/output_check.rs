//! Whether an output can be made where it is wanted: what stands under its name and beside it, and the room on its disk. Changes
//! nothing.

use super::output_error::OutputError;
use super::output_paths::Paths;
use super::{Deliverable, Form};
use kvant_container::{gguf, positioned};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// What stands under the output's name: nothing, an empty directory, or a model to be replaced.
pub(super) fn check_target(target: &Path, form: &Form, overwrite: bool) -> Result<(), OutputError> {
    if target.symlink_metadata().is_err() || *form == Form::Directory && is_empty_dir(target) {
        return Ok(());
    }
    if let Some(reason) = reason_to_keep(target, form)? {
        return Err(OutputError::NotReplaceable { path: target.to_owned(), reason });
    }
    if overwrite { Ok(()) } else { Err(OutputError::Exists(target.to_owned())) }
}

/// Why what stands under the output's name is not to be replaced; nothing where it is a model.
fn reason_to_keep(target: &Path, form: &Form) -> Result<Option<&'static str>, OutputError> {
    if let Form::File(_) = form {
        return Ok((!gguf::is_gguf(target)).then_some("it is no GGUF file"));
    }
    if !target.is_dir() {
        return Ok(Some("it is not a directory"));
    }
    if std::env::current_dir().is_ok_and(|current| holds(target, &current)) {
        return Ok(Some("it is or holds the current directory"));
    }
    let names = fs::read_dir(target).map_err(OutputError::io("read", target))?;
    let names: Vec<String> = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    let model = names.iter().any(|name| name == "config.json" || name.ends_with(".safetensors"));
    let is_kept = !model || names.iter().any(|name| name == ".git");
    Ok(is_kept.then_some("it holds other things than a model"))
}

/// A source may hold the output, which is made beside its files, but not the other way round.
pub(super) fn check_source(target: &Path, source: &Path) -> Result<(), OutputError> {
    if holds(target, source) { Err(OutputError::IsSource(target.to_owned())) } else { Ok(()) }
}

fn is_empty_dir(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// Whether a directory is or holds another path.
fn holds(target: &Path, source: &Path) -> bool {
    matches!((source.canonicalize(), target.canonicalize()), (Ok(source), Ok(target)) if source.starts_with(&target))
}

/// What is in the way without a journal is not ours to remove.
pub(super) fn check_beside(paths: &Paths) -> Result<(), OutputError> {
    let mut strangers = [&paths.staging, &paths.replaced].into_iter().filter(|path| path.symlink_metadata().is_ok());
    match strangers.next().filter(|_| !paths.journal.exists()) {
        Some(stranger) => Err(OutputError::InTheWay(stranger.clone())),
        None => Ok(()),
    }
}

/// Room for outputs, for those together that lie on one disk.
pub(super) fn check_room(outputs: &[(&dyn Deliverable, Paths)]) -> Result<(), OutputError> {
    let mut disks: BTreeMap<Option<u64>, Vec<&(&dyn Deliverable, Paths)>> = BTreeMap::new();
    for output in outputs {
        disks.entry(positioned::file_system(&output.1.target)).or_default().push(output);
    }
    disks.values().try_for_each(|outputs| check_room_on_one_disk(outputs))
}

fn check_room_on_one_disk(outputs: &[&(&dyn Deliverable, Paths)]) -> Result<(), OutputError> {
    let Some((_, first)) = outputs.first() else { return Ok(()) };
    // An unfinished output has its room already.
    let reserved = |paths: &Paths| -> u64 {
        let entries = fs::read_dir(&paths.staging).into_iter().flatten();
        entries.filter_map(|entry| entry.ok()?.metadata().ok()).map(|metadata| metadata.len()).sum()
    };
    let missing =
        |(plan, paths): &&(&dyn Deliverable, Paths)| plan.geometry().disk_size().saturating_sub(reserved(paths));
    let needed = outputs.iter().map(missing).fold(0, u64::saturating_add);
    match positioned::available_space(&first.target) {
        Ok(available) if available < needed => {
            Err(OutputError::NoRoom { path: first.target.clone(), others: outputs.len() - 1, needed, available })
        }
        // A system that cannot tell lets the work begin; a full disk is reported then.
        _ => Ok(()),
    }
}
