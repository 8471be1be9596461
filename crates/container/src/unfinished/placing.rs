//! Several files that get their names together, as the last step of a run: a graph, its external data and a report. A run that is
//! killed in between is undone by the next one, so that no file of an unfinished run stays under a final name, and what was there
//! before is there again.

use super::output_error::OutputError;
use super::paths::{Paths, remove};
use crate::new_file::{new_file_for, remove_left};
use crate::path_text::{of_record, recorded};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;
use tempfile::NamedTempFile;

/// A name, and the file that gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placing {
    /// The complete file in the directory where the output is made; none where the name is only vacated.
    pub made: Option<PathBuf>,
    /// The name.
    pub place: PathBuf,
}

/// The same in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Planned {
    made: Option<String>,
    place: String,
    /// Size and time of the file that was made: a file that the user has put under the name since then is not taken for it.
    stamp: Option<String>,
    /// Whether another file had the name before.
    #[serde(default)]
    replaces: bool,
}

impl Placing {
    /// A file that gets a name.
    pub fn of(made: PathBuf, place: &Path) -> Placing {
        Placing { made: Some(made), place: place.to_owned() }
    }

    pub(super) fn planned(&self) -> Planned {
        let text = |path: &Path| recorded(&absolute(path));
        let made = self.made.as_deref();
        let replaces = self.place.symlink_metadata().is_ok();
        Planned { made: made.map(text), place: text(&self.place), stamp: made.and_then(stamp), replaces }
    }

    /// Renames the file. An existing file is moved to `aside`; anything but a regular file, such as a pipe or a device, is written to
    /// directly.
    fn place(&self, aside: &Path) -> Result<(), OutputError> {
        let Placing { made, place } = self;
        let is_special = fs::metadata(place).is_ok_and(|found| !found.is_file() && !found.is_dir());
        if is_special {
            return made.as_ref().map_or(Ok(()), |made| copy(made, place));
        }
        if place.symlink_metadata().is_ok() {
            match fs::rename(place, aside) {
                Err(error) if error.kind() == io::ErrorKind::CrossesDevices => return self.place_across(aside),
                renamed => renamed.map_err(OutputError::io("rename", place))?,
            }
        }
        made.as_ref().map_or(Ok(()), |made| move_file(made, place))
    }

    /// Replaces a file on another file system. That one may have no room: the new file is complete there, and the existing one kept
    /// aside, before anything changes under the name.
    fn place_across(&self, aside: &Path) -> Result<(), OutputError> {
        let Placing { made, place } = self;
        let copied = made.as_ref().map(|made| copy_beside(made, place)).transpose()?;
        let kept = copy_beside(place, aside)?;
        persist(kept, aside)?;
        match (made, copied) {
            (Some(made), Some(copied)) => {
                persist(copied, place)?;
                remove(made)
            }
            _ => remove(place),
        }
    }
}

/// Gives all files their names, in order.
pub(super) fn place_all(paths: &Paths, files: &[Placing]) -> Result<(), OutputError> {
    fs::create_dir_all(&paths.replaced).map_err(OutputError::io("create", &paths.replaced))?;
    files.iter().enumerate().try_for_each(|(number, file)| file.place(&aside(paths, number)))
}

/// Takes the names away from the files that have them already, and gives them back to what was there before.
pub(super) fn undo(paths: &Paths, files: &[Planned]) -> Result<(), OutputError> {
    for (number, file) in files.iter().enumerate().rev() {
        let (place, aside) = (&of_record(&file.place), aside(paths, number));
        remove_left(place).map_err(OutputError::io("remove", place))?;
        if let Some(made) = &file.made.as_deref().map(of_record)
            && place.is_file()
            && stamp(place) == file.stamp
        {
            match made.exists() {
                // A run that was killed after it had copied the file to another file system has left both. Before that, a file that
                // was there has the name, however much it is like the new one.
                true if file.replaces && aside.symlink_metadata().is_err() => {}
                true => remove(place)?,
                false => {
                    fs::create_dir_all(&paths.staging).map_err(OutputError::io("create", &paths.staging))?;
                    move_file(place, made)?;
                }
            }
        }
        if aside.symlink_metadata().is_ok() && place.symlink_metadata().is_err() {
            move_file(&aside, place)?;
        }
    }
    // Files still in there were replaced by the user since.
    remove(&paths.replaced)
}

fn aside(paths: &Paths, number: usize) -> PathBuf {
    paths.replaced.join(number.to_string())
}

/// Renames a file. To another file system it is copied, and gets its name when it is complete.
fn move_file(from: &Path, to: &Path) -> Result<(), OutputError> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            persist(copy_beside(from, to)?, to)?;
            remove(from)
        }
        renamed => renamed.map_err(OutputError::io("rename", from)),
    }
}

/// Copies a file with its time to a temporary file beside `to`, down to the disk: the original may be removed afterwards. A copy that
/// fails leaves nothing.
fn copy_beside(from: &Path, to: &Path) -> Result<NamedTempFile, OutputError> {
    let copy = || {
        let mut from = fs::File::open(from)?;
        let mut copied = new_file_for(to)?;
        io::copy(&mut from, copied.as_file_mut())?;
        copied.as_file().set_modified(from.metadata()?.modified()?)?;
        copied.as_file().sync_all()?;
        Ok(copied)
    };
    copy().map_err(OutputError::io("write", to))
}

fn persist(copied: NamedTempFile, to: &Path) -> Result<(), OutputError> {
    copied.persist(to).map(drop).map_err(|failed| OutputError::io("write", to)(failed.error))
}

fn copy(from: &Path, to: &Path) -> Result<(), OutputError> {
    let copied = fs::File::open(from).and_then(|mut from| io::copy(&mut from, &mut fs::File::create(to)?));
    copied.map(drop).map_err(OutputError::io("write", to))
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn stamp(path: &Path) -> Option<String> {
    let metadata = path.metadata().ok()?;
    let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(format!("{} {}", metadata.len(), modified.as_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An output with a new report for a name that has an old one.
    struct Replacing {
        directory: tempfile::TempDir,
        paths: Paths,
        report: Placing,
    }

    impl Replacing {
        fn new() -> Replacing {
            let directory = tempfile::tempdir().unwrap();
            let paths = Paths::of(&directory.path().join("out.onnx")).unwrap();
            fs::create_dir(&paths.staging).unwrap();
            fs::create_dir(&paths.replaced).unwrap();
            let made = paths.staging.join("report.json");
            fs::write(&made, "new").unwrap();
            let place = directory.path().join("reports/r.json");
            fs::create_dir(directory.path().join("reports")).unwrap();
            fs::write(&place, "old").unwrap();
            Replacing { paths, report: Placing::of(made, &place), directory }
        }

        fn report(&self) -> String {
            fs::read_to_string(&self.report.place).unwrap()
        }

        fn num_files(&self) -> usize {
            fs::read_dir(self.directory.path().join("reports")).unwrap().count()
        }
    }

    #[test]
    fn failed_copy_to_another_file_system_keeps_the_existing_report() {
        let mut made = Replacing::new();
        // A directory is opened, and fails when it is read: as late as a full disk.
        made.report.made = Some(made.paths.staging.clone());
        let planned = [made.report.planned()];
        made.report.place_across(&aside(&made.paths, 0)).unwrap_err();
        assert_eq!((made.report(), made.num_files()), ("old".to_owned(), 1));
        undo(&made.paths, &planned).unwrap();
        assert_eq!((made.report(), made.num_files()), ("old".to_owned(), 1));
        assert!(copy_beside(&made.paths.staging, &made.directory.path().join("reports/none.json")).is_err());
        assert_eq!(made.num_files(), 1, "no empty file stays");
    }

    #[test]
    fn report_on_another_file_system_is_replaced_and_restored() {
        let made = Replacing::new();
        let planned = [made.report.planned()];
        made.report.place_across(&aside(&made.paths, 0)).unwrap();
        assert_eq!((made.report(), made.num_files()), ("new".to_owned(), 1));
        assert!(!made.report.made.as_ref().unwrap().exists());
        undo(&made.paths, &planned).unwrap();
        assert_eq!((made.report(), made.num_files()), ("old".to_owned(), 1));
    }

    #[test]
    fn killed_copy_to_another_file_system_is_undone() {
        let made = Replacing::new();
        let planned = [made.report.planned()];
        // Both names lead to the new report: the run was killed before it could remove the first.
        let copied = copy_beside(made.report.made.as_ref().unwrap(), &made.report.place).unwrap();
        fs::rename(&made.report.place, aside(&made.paths, 0)).unwrap();
        persist(copied, &made.report.place).unwrap();
        undo(&made.paths, &planned).unwrap();
        assert_eq!((made.report(), made.num_files()), ("old".to_owned(), 1));
    }
}
