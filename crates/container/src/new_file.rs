//! Files that appear under their names when they are complete: written beside, then renamed. Their permissions are those of any
//! new file: what the umask leaves.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::directory::directory_of;

/// What names of temporary files begin with.
pub const TEMPORARY: &str = ".kvant-";

/// A file without its final name yet, in the directory of `path`; it goes away where it is dropped.
///
/// # Errors
/// The system's.
pub fn new_file_for(path: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(TEMPORARY);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // Temporary files are private by default; of these bits the system takes away those of the umask.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(directory_of(path))
}

/// Writes a file that appears when it is complete, and takes the place of one that is there. What is no regular file, such as a pipe
/// or a device, is written to as it is; a link stays one.
///
/// # Errors
/// The system's.
pub fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = &behind_links(path)?;
    if fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return OpenOptions::new().write(true).open(path)?.write_all(bytes);
    }
    let mut file = new_file_for(path)?;
    file.write_all(bytes)?;
    file.persist(path).map(drop).map_err(|failed| failed.error)
}

/// The path that a link leads to; any other path as it is.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] where the link leads to nothing; the system's.
pub fn behind_links(path: &Path) -> io::Result<PathBuf> {
    match path.is_symlink().then(|| path.canonicalize()) {
        // What has no path, such as the pipe behind /dev/stdout, can be opened by the link alone.
        Some(Err(_)) if path.exists() => Ok(path.to_path_buf()),
        Some(behind) => behind,
        None => Ok(path.to_path_buf()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_or_not_there_and_replaces_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        write_file(&path, b"one").unwrap();
        write_file(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        drop(new_file_for(&path).unwrap());
        assert!(write_file(&dir.path().join("none/report.json"), b"").is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn permissions_are_those_of_any_new_file_and_links_are_followed() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let mode = |name: &str| fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
        fs::write(dir.path().join("plain"), "").unwrap();
        write_file(&dir.path().join("ours"), b"1").unwrap();
        assert_eq!(mode("ours"), mode("plain"));
        std::os::unix::fs::symlink("ours", dir.path().join("link")).unwrap();
        std::os::unix::fs::symlink("gone", dir.path().join("dangling")).unwrap();
        write_file(&dir.path().join("link"), b"2").unwrap();
        assert!(dir.path().join("link").is_symlink() && fs::read(dir.path().join("ours")).unwrap() == b"2");
        assert_eq!(write_file(&dir.path().join("dangling"), b"").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
