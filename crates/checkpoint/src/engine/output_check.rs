//! Whether an output can be made where it is wanted: what stands under its name and beside it, and the room on its disk. Changes
//! nothing.

use super::manifest::{self, Look};
use super::{Form, OutputPlan};
use kvant_container::unfinished::{OutputError, Paths};
use kvant_container::{gguf, positioned};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// What stands under the output's name: nothing, an empty directory, or what Kvant wrote and may replace.
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

/// Why what stands under the output's name is not to be replaced; nothing where Kvant wrote all of it.
fn reason_to_keep(target: &Path, form: &Form, look: Look) -> Result<Option<String>, OutputError> {
    if let Form::File(_) = form {
        return Ok((!gguf::is_gguf(target)).then(|| "it is no GGUF file".to_owned()));
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

/// Whether a directory is or holds another path.
fn holds(target: &Path, source: &Path) -> bool {
    matches!((source.canonicalize(), target.canonicalize()), (Ok(source), Ok(target)) if source.starts_with(&target))
}

/// Room for outputs, for those together that lie on one disk, and for what lies beside some while they are made.
pub(super) fn check_room(outputs: &[(&dyn OutputPlan, Paths)], beside: &[(Paths, u64)]) -> Result<(), OutputError> {
    let mut disks: BTreeMap<Option<u64>, Needed<'_>> = BTreeMap::new();
    for (plan, paths) in outputs {
        let needed = disks.entry(positioned::file_system(&paths.target)).or_insert_with(|| Needed::of(&paths.target));
        // An unfinished output has its room already.
        needed.outputs =
            needed.outputs.saturating_add(plan.geometry().disk_size().saturating_sub(size(&paths.staging)));
        needed.count += 1;
    }
    for (paths, bytes) in beside {
        let needed = disks.entry(positioned::file_system(&paths.target)).or_insert_with(|| Needed::of(&paths.target));
        needed.beside = needed.beside.saturating_add(bytes.saturating_sub(size(&paths.blocks())));
    }
    disks.values().try_for_each(Needed::check)
}

/// What a disk must have room for.
struct Needed<'a> {
    first: &'a Path,
    count: usize,
    outputs: u64,
    beside: u64,
}

impl Needed<'_> {
    fn of(first: &Path) -> Needed<'_> {
        Needed { first, count: 0, outputs: 0, beside: 0 }
    }

    fn check(&self) -> Result<(), OutputError> {
        let (path, needed) = (self.first.to_owned(), self.outputs.saturating_add(self.beside));
        match positioned::available_space(self.first) {
            Ok(available) if available < needed => {
                let others = self.count.saturating_sub(1);
                Err(OutputError::NoRoom { path, others, needed, activations: self.beside, available })
            }
            // A system that cannot tell lets the work begin; a full disk is reported then.
            _ => Ok(()),
        }
    }
}

/// Bytes of the files in a directory.
fn size(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.metadata().ok()).map(|metadata| metadata.len()).sum()
}
