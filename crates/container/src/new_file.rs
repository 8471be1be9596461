//! Files that appear under their names when they are complete: written beside, then renamed. Their permissions are those of any
//! new file: what the umask leaves.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, TempDir};
use xxhash_rust::xxh3::xxh3_64;

use crate::directory::directory_of;
use crate::removal::or_gone;

/// The prefix of temporary file names.
pub const TEMPORARY: &str = ".kvant-";

/// A file without its final name yet, in the directory of `path`; it goes away where it is dropped. Files that killed processes left
/// for the same path are removed.
///
/// # Errors
/// System errors.
pub fn new_file_for(path: &Path) -> io::Result<NamedTempFile> {
    remove_left(path)?;
    let prefix = format!("{}{}-", of_path(path), std::process::id());
    // Of the default permissions, unlike those of temporary files elsewhere, the system takes away the bits of the umask. Errors are
    // the system's alone: the name of a temporary file says nothing to a user.
    let create = |path: &Path| OpenOptions::new().read(true).write(true).create_new(true).open(path);
    let file = tempfile::Builder::new().prefix(&prefix).make_in(directory_of(path), create)?;
    // Held until the file is closed. Without locks the process alone says that it is in use.
    let _ = file.as_file().try_lock();
    Ok(file)
}

/// A folder for the time of a run that makes `path`, beside it; it goes away where it is dropped. Those that killed processes left for the same
/// path are removed. Where the directory of `path` is not there yet, it is made in the closest one that is.
///
/// # Errors
/// System errors.
pub fn new_folder_for(path: &Path) -> io::Result<TempDir> {
    let absolute = std::path::absolute(path)?;
    let beside = absolute.ancestors().skip(1).find(|folder| folder.is_dir()).unwrap_or(&absolute);
    let prefix = of_path(path);
    let is_left = |folder: &Path| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let process = name.strip_prefix(&prefix).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        process.is_some_and(|process| !is_running(process))
            && folder.symlink_metadata().is_ok_and(|found| found.is_dir())
            && fs::File::open(folder.join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok())
    };
    let folders = fs::read_dir(beside).into_iter().flatten().flatten().map(|entry| entry.path());
    folders.filter(|folder| is_left(folder)).try_for_each(|folder| or_gone(fs::remove_dir_all(folder)))?;
    tempfile::Builder::new().prefix(&format!("{prefix}{}-", std::process::id())).tempdir_in(beside)
}

/// Marks a [`new_folder_for`] a path as in use for as long as the result is not dropped. Without locks the process alone says so.
///
/// # Errors
/// System errors.
pub fn lock_folder(folder: &Path) -> io::Result<fs::File> {
    let lock = fs::File::create(folder.join(LOCK))?;
    let _ = lock.try_lock();
    Ok(lock)
}

/// The file that is locked while a temporary folder is in use.
const LOCK: &str = ".lock";

/// How the names of temporary files for a path begin: with a hash of its name.
fn of_path(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    format!("{TEMPORARY}{:016x}-", xxh3_64(name.as_encoded_bytes()))
}

/// Removes what killed processes left for a path: files with such a name, whose process is gone, and which nobody holds.
pub(crate) fn remove_left(path: &Path) -> io::Result<()> {
    let prefix = of_path(path);
    let is_left = |file: &Path| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let process = name.strip_prefix(&prefix).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        process.is_some_and(|process| !is_running(process))
            && file.symlink_metadata().is_ok_and(|found| found.is_file())
            && fs::File::open(file).is_ok_and(|file| file.try_lock().is_ok())
    };
    // Where the directory cannot be listed, making the file says what is wrong.
    let files = fs::read_dir(directory_of(path)).into_iter().flatten().flatten().map(|entry| entry.path());
    files.filter(|file| is_left(file)).try_for_each(|file| or_gone(fs::remove_file(file)))
}

/// Whether a process is running, where the system lists processes as files; elsewhere the lock of a file decides alone.
fn is_running(process: u32) -> bool {
    process == std::process::id() || Path::new("/proc").join(process.to_string()).exists()
}

/// Writes a file that appears when it is complete, replacing an existing one. Anything but a regular file, such as a pipe
/// or a device, is written to directly; links are kept.
///
/// # Errors
/// System errors.
pub fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = &behind_links(path)?;
    if fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return OpenOptions::new().write(true).open(path)?.write_all(bytes);
    }
    let mut file = new_file_for(path)?;
    // Errors of the file itself do not name it.
    file.as_file_mut().write_all(bytes)?;
    file.persist(path).map(drop).map_err(|failed| failed.error)
}

/// The path that a link leads to; any other path as it is.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] where the link leads to nothing; the system's.
pub fn behind_links(path: &Path) -> io::Result<PathBuf> {
    match path.is_symlink().then(|| path.canonicalize()) {
        // Files without a path, such as the pipe behind /dev/stdout, can only be opened through the link.
        Some(Err(_)) if path.exists() => Ok(path.to_path_buf()),
        Some(behind) => behind,
        None => Ok(path.to_path_buf()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_file_is_atomic_and_replaces() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        write_file(&path, b"one").unwrap();
        write_file(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        drop(new_file_for(&path).unwrap());
        let refused = write_file(&dir.path().join("none/report.json"), b"").unwrap_err();
        assert!(!refused.to_string().contains(TEMPORARY), "{refused}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn files_of_killed_processes_are_removed_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let named = |path: &Path, process: u32| dir.path().join(format!("{}{process}-abc", of_path(path)));
        let left = named(&path, ended.id());
        let of_another_output = named(Path::new("other.json"), ended.id());
        let running = named(&path, 1);
        let of_a_user = dir.path().join(".kvant-notes");
        let locked = dir.path().join(format!("{}{}-held", of_path(&path), ended.id()));
        for file in [&left, &of_another_output, &running, &of_a_user, &locked] {
            fs::write(file, "x").unwrap();
        }
        let holder = fs::File::open(&locked).unwrap();
        holder.try_lock().unwrap();
        let own = new_file_for(&path).unwrap();
        write_file(&path, b"one").unwrap();
        assert!(!left.exists(), "its process is gone, and nobody holds it");
        for file in [&of_another_output, &running, &of_a_user, &locked, &own.path().to_owned()] {
            assert!(file.exists(), "{}", file.display());
        }
    }

    #[cfg(unix)]
    #[test]
    fn folders_of_killed_processes_are_removed_and_those_in_use_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("later/out");
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let named = |ending: &str| dir.path().join(format!("{}{}-{ending}", of_path(&path), ended.id()));
        let (left, used) = (named("left"), named("used"));
        for folder in [&left, &used] {
            fs::create_dir(folder).unwrap();
        }
        drop(lock_folder(&left).unwrap());
        let _lock = lock_folder(&used).unwrap();
        let own = new_folder_for(&path).unwrap();
        assert!(!left.exists() && used.exists() && own.path().parent() == Some(dir.path()));
    }

    #[cfg(unix)]
    #[test]
    fn write_file_keeps_default_permissions_and_follows_links() {
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
