//! Determines which files beside an unfinished output are Kvant's. All others are foreign: they are neither removed with the work nor
//! treated as part of it.

use super::output_error::OutputError;
use super::paths::{Paths, ROTATION, SAMPLES};
use crate::directory::{MissingFolder, names_below};
use crate::manifest::MANIFEST_FILE;
use crate::new_file::TEMPORARY;
use crate::path_text::of_record;
use crate::removal::or_gone;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Refuses somebody else's files among unfinished work; `written` are the names that the journal has of files in `name.partial/`.
///
/// # Errors
/// [`OutputError::InTheWay`] with the first of them; the system's.
pub(super) fn refuse_strangers(paths: &Paths, written: &BTreeSet<String>) -> Result<(), OutputError> {
    let blocks = paths.blocks();
    let is_own = |name: &String| is_temporary(name) || name == MANIFEST_FILE || written.contains(name);
    let found = match written.is_empty() {
        // The journal does not say.
        true => Vec::new(),
        false => names(&paths.staging).map_err(OutputError::io("read", &paths.staging))?,
    };
    let of_staging = found.into_iter().find(|name| !is_own(name)).map(|name| paths.staging.join(of_record(&name)));
    let found = names(&blocks).map_err(OutputError::io("read", &blocks))?;
    let mut of_blocks = found.into_iter().map(|name| blocks.join(of_record(&name))).filter(|path| !is_result(path));
    of_staging.or_else(|| of_blocks.next()).map_or(Ok(()), |stranger| Err(OutputError::InTheWay(stranger)))
}

/// Removes the files of a directory that Kvant has written, and the directory if nothing else is in it.
///
/// # Errors
/// System errors.
pub fn remove_written(dir: &Path, written: &BTreeSet<String>) -> Result<(), OutputError> {
    let found = names(dir).map_err(OutputError::io("read", dir))?;
    let own = found.into_iter().filter(|name| is_temporary(name) || name == MANIFEST_FILE || written.contains(name));
    for path in own.map(|name| dir.join(of_record(&name))) {
        or_gone(fs::remove_file(&path)).map_err(OutputError::io("remove", &path))?;
        // Folders of it that are empty now.
        let folders = path.ancestors().skip(1).take_while(|folder| *folder != dir);
        folders.for_each(|folder| _ = fs::remove_dir(folder));
    }
    remove_empty(dir).map_err(OutputError::io("remove", dir))
}

/// Removes the results of a calibrated run so far and its samples from their directory, and the directory if nothing else is in it.
///
/// # Errors
/// System errors.
pub fn remove_results(dir: &Path) -> io::Result<()> {
    remove_results_if(dir, |_| true)
}

/// The same, but keeps what was there before the first block: the samples that the model has written, and what was learned of a rotation.
///
/// # Errors
/// System errors.
pub fn remove_results_of_blocks(dir: &Path) -> io::Result<()> {
    remove_results_if(dir, |name| ![SAMPLES, ROTATION].iter().any(|kept| name.starts_with(kept)))
}

fn remove_results_if(dir: &Path, removes: impl Fn(&str) -> bool) -> io::Result<()> {
    let found = names(dir)?.into_iter().filter(|name| removes(name)).map(|name| dir.join(of_record(&name)));
    found.filter(|path| is_result(path)).try_for_each(|path| or_gone(fs::remove_file(path)))?;
    remove_empty(dir)
}

fn remove_empty(dir: &Path) -> io::Result<()> {
    match fs::remove_dir(dir) {
        Err(cause) if cause.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        removed => or_gone(removed),
    }
}

fn is_temporary(name: &str) -> bool {
    name.starts_with(TEMPORARY)
}

/// Returns whether a file is a result of a calibrated run: by its name, or by its first bytes.
fn is_result(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_named = ["state.", "streams.", SAMPLES, ROTATION, TEMPORARY].iter().any(|own| name.starts_with(own));
    path.symlink_metadata().is_ok_and(|found| found.is_file())
        && (is_named || name.ends_with(".unfinished") || begins_as_result(path))
}

fn begins_as_result(path: &Path) -> bool {
    const HEAD: &[u8; 15] = br#"{"kvant_result""#;
    let mut first = [0; HEAD.len()];
    File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok() && first == *HEAD
}

/// The files below a directory that may not exist.
fn names(dir: &Path) -> io::Result<Vec<String>> {
    names_below(dir, MissingFolder::Skip)
}
