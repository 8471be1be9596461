//! Reads and writes at positions, space reservation and other file operations whose form depends on the operating system:
//! their only home besides `mmap`. No file syntax.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use crate::error::Error;

/// Writes all bytes at a position, without moving any cursor that another thread could see.
pub fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    system::write_all_at(file, bytes, offset)
}

/// Fills the buffer from a position; `UnexpectedEof` if the file ends before.
pub fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    system::read_exact_at(file, buffer, offset)
}

/// Makes the file `len` bytes long with its space really taken on disk where the system can do so cheaply, so that a disk
/// too small is found here and not in the middle of the work. Where it cannot (some network and FUSE file systems, some
/// systems), the file only gets its length.
pub fn reserve(file: &File, len: u64) -> io::Result<()> {
    let allocated = match len {
        0 => Ok(()),
        _ => system::allocate(file, len),
    };
    match allocated {
        Err(e) if !cannot_allocate(&e) => Err(e),
        _ => file.set_len(len),
    }
}

/// Returns whether the answer to an allocation means "not on this file system" and not "no".
fn cannot_allocate(error: &io::Error) -> bool {
    // EINVAL is the answer of some FUSE file systems.
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput)
}

/// The bytes that can still be written to the file system holding `path`, which need not exist yet: its closest existing
/// ancestor counts. `Unsupported` on systems other than Unix and Windows.
pub fn available_space(path: &Path) -> io::Result<u64> {
    let absolute = std::path::absolute(path)?;
    let existing = absolute.ancestors().find(|p| p.exists()).unwrap_or(&absolute);
    system::available_space(existing)
}

/// Identifies the file system at a path, or at its existing part; `None` if the system does not report it.
pub fn file_system(path: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let absolute = std::path::absolute(path).ok()?;
        absolute.ancestors().find_map(|path| fs::metadata(path).ok()).map(|metadata| metadata.dev())
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        None
    }
}

/// Identifies an existing file regardless of its name; `None` if the system does not report it.
pub fn file_id(path: &Path) -> Option<(u64, u64)> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        None
    }
}

/// Makes the names of a directory durable: files created in it and renames into it. Only the files' bytes are synced by
/// syncing the files. Nothing to do outside Unix.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    #[cfg(unix)]
    File::open(dir)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = dir;
    Ok(())
}

/// Opens a regular file (or a link to one) for reading and returns its length. Opening anything else could block (a FIFO) or
/// have effects (a device), so it is not even tried.
pub(crate) fn open_regular(path: &Path) -> Result<(File, u64), Error> {
    let wrap = |e| Error::io("open", path, None, e);
    if !fs::metadata(path).map_err(wrap)?.is_file() {
        return Err(Error::NotAFile { file: path.to_path_buf() });
    }
    let file = File::open(path).map_err(wrap)?;
    let len = file.metadata().map_err(wrap)?.len();
    Ok((file, len))
}

/// Space on disk, where `fs4` knows about it.
#[cfg(any(unix, windows))]
mod disk {
    use std::fs::File;
    use std::io;
    use std::path::Path;

    pub(super) fn allocate(file: &File, len: u64) -> io::Result<()> {
        fs4::FileExt::allocate(file, len)
    }

    pub(super) fn available_space(path: &Path) -> io::Result<u64> {
        fs4::available_space(path)
    }
}

#[cfg(unix)]
mod system {
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::FileExt;

    pub(super) use super::disk::{allocate, available_space};

    pub(super) fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    pub(super) fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        file.read_exact_at(buffer, offset)
    }
}

#[cfg(windows)]
mod system {
    use std::fs::File;
    use std::io::{self, ErrorKind};
    use std::os::windows::fs::FileExt;

    pub(super) use super::disk::{allocate, available_space};

    // `seek_write` and `seek_read` move the cursor, but take their position from the argument: concurrent calls are fine.

    pub(super) fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match file.seek_write(bytes, offset) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => (bytes, offset) = (&bytes[n..], offset + n as u64),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    pub(super) fn read_exact_at(file: &File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match file.seek_read(buffer, offset) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => (buffer, offset) = (&mut buffer[n..], offset + n as u64),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

#[cfg(any(test, not(any(unix, windows))))]
mod portable;

#[cfg(not(any(unix, windows)))]
use portable as system;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positioned_writes_and_reads_use_their_offsets() {
        for (write, read) in [
            (
                system::write_all_at as fn(&File, &[u8], u64) -> _,
                system::read_exact_at as fn(&File, &mut [u8], u64) -> _,
            ),
            (portable::write_all_at, portable::read_exact_at),
        ] {
            let file = tempfile::tempfile().unwrap();
            write(&file, b"world", 5).unwrap();
            write(&file, b"hello", 0).unwrap();
            let mut buffer = [0; 10];
            read(&file, &mut buffer, 0).unwrap();
            assert_eq!(&buffer, b"helloworld");
            assert_eq!(read(&file, &mut buffer, 1).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn reserve_sets_the_exact_length_and_keeps_bytes() {
        let file = tempfile::tempfile().unwrap();
        for len in [0, 100_000, 100_001, 10] {
            reserve(&file, len).unwrap();
            assert_eq!(file.metadata().unwrap().len(), len);
            write_all_at(&file, b"x", 0).unwrap();
        }
        let mut buffer = [0];
        read_exact_at(&file, &mut buffer, 0).unwrap();
        assert_eq!(&buffer, b"x");
    }

    #[test]
    fn reserving_an_impossible_size_fails() {
        let file = tempfile::tempfile().unwrap();
        assert!(reserve(&file, 1 << 62).is_err());
        assert_eq!(file.metadata().unwrap().len(), 0);
    }

    #[test]
    fn directories_can_be_synced() {
        let dir = tempfile::tempdir().unwrap();
        sync_dir(dir.path()).unwrap();
    }

    #[test]
    fn available_space_of_paths_not_created_yet() {
        let dir = tempfile::tempdir().unwrap();
        assert!(available_space(&dir.path().join("a/b/c")).unwrap() > 0);
        assert!(available_space(Path::new("not/there/yet")).is_ok());
    }
}
