//! Several files that get their names together, as the last step of a run: a graph, its external data and a report. A run that is
//! killed in between is undone by the next one, so that no file of an unfinished run stays under a final name, and what was there
//! before is there again.

use super::output_error::OutputError;
use super::paths::{Paths, remove};
use crate::path_text::{of_record, recorded};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

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
}

impl Placing {
    /// A file that gets a name.
    pub fn of(made: PathBuf, place: &Path) -> Placing {
        Placing { made: Some(made), place: place.to_owned() }
    }

    pub(super) fn planned(&self) -> Planned {
        let text = |path: &Path| recorded(&absolute(path));
        let made = self.made.as_deref();
        Planned { made: made.map(text), place: text(&self.place), stamp: made.and_then(stamp) }
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
            move_file(place, aside)?;
        }
        made.as_ref().map_or(Ok(()), |made| move_file(made, place))
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
        if let Some(made) = &file.made.as_deref().map(of_record)
            && !made.exists()
            && place.is_file()
            && stamp(place) == file.stamp
        {
            fs::create_dir_all(&paths.staging).map_err(OutputError::io("create", &paths.staging))?;
            move_file(place, made)?;
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

/// Renames a file; copies it with its time where the name is on another disk.
fn move_file(from: &Path, to: &Path) -> Result<(), OutputError> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            copy(from, to)?;
            let time = from.metadata().and_then(|found| found.modified());
            let time = time.and_then(|time| fs::File::options().append(true).open(to)?.set_modified(time));
            time.map_err(OutputError::io("write", to))?;
            fs::remove_file(from).map_err(OutputError::io("remove", from))
        }
        renamed => renamed.map_err(OutputError::io("rename", from)),
    }
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
