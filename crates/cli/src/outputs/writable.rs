//! Further files that a run writes besides its outputs, such as reports: that they can be, before the work.

use crate::escape::printable;
use crate::failure::{Failure, Kind};
use kvant_container::directory_of;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Refuses a further file that could not be written, before the work whose result it is to hold.
///
/// # Errors
/// Its directory is missing or read-only, or the name is that of a directory.
pub fn check_writable(path: &Path) -> Result<(), Failure> {
    let directory = directory_of(path);
    let refused = |reason: &str, hint: &str| {
        let message = format!("cannot write {}: {reason}", printable(&path.to_string_lossy()));
        Err(Failure::new(Kind::Usage, message).with_hint(Some(hint.to_owned())))
    };
    match fs::metadata(directory) {
        _ if path.is_dir() => refused("it is a directory", "name a file in it"),
        Ok(found) if found.is_dir() => match probe(path, directory) {
            Ok(()) => Ok(()),
            Err(cause) => refused(&cause.to_string(), "name another place"),
        },
        _ => refused("its directory is missing", "make the directory first, or name another place"),
    }
}

/// Makes and removes a file in the directory, and opens one that is there: permissions alone do not tell, since the owner, the file
/// system and the device have a say too.
fn probe(path: &Path, directory: &Path) -> io::Result<()> {
    if path.exists() {
        OpenOptions::new().append(true).open(path)?;
    }
    let probe = directory.join(format!(".kvant.{}.probe", std::process::id()));
    match OpenOptions::new().write(true).create_new(true).open(&probe) {
        // Left by a process that was killed just there.
        Err(cause) if cause.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(cause) => Err(cause),
        Ok(_) => fs::remove_file(&probe),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(check_writable(&folder.path().join("report.json")).is_ok());
        for (path, reason) in [("none/report.json", "missing"), ("", "a directory")] {
            let failure = check_writable(&folder.path().join(path)).unwrap_err();
            assert!(failure.kind == Kind::Usage && failure.message.contains(reason), "{}", failure.message);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    /// Not even its owner, with all permissions, makes files there.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_directory_that_only_looks_writable_is_refused() {
        let directory = Path::new("/sys/kernel");
        if directory.is_dir() {
            let failure = check_writable(&directory.join("report.json")).unwrap_err();
            assert!(failure.message.contains("/sys/kernel/report.json: "), "{}", failure.message);
        }
    }
}
