//! Read-only mapped files and advice to the kernel about them. The only unsafe code of the crate; no file syntax.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memmap2::Mmap;

use crate::error::Error;
use crate::positioned::{file_id, open_regular};

/// A whole file mapped read-only, or bytes in memory that stand for one; dereferences to its bytes.
///
/// The bytes come from the page cache and are no private memory of the process. The file must not be changed by anyone
/// while it is mapped: a file cut short under the map ends the process with a bus error, as with every user of `mmap`.
#[derive(Debug)]
pub struct MappedFile {
    map: Option<Mmap>,
    /// What is not mapped: nothing, unless the file exists in memory only.
    owned: Vec<u8>,
    path: PathBuf,
    /// Which file it was when it was mapped, and its last change.
    mapped: Option<(Option<(u64, u64)>, SystemTime)>,
}

impl MappedFile {
    /// Maps a regular file (or a link to one). An empty file is fine.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let (file, len) = open_regular(path)?;
        Self::of(&file, len, path)
    }

    /// Maps an open file of `len` bytes that need not have a name any more; `path` is for messages.
    pub(crate) fn of(file: &File, len: u64, path: &Path) -> Result<Self, Error> {
        let map = match len {
            0 => None,
            // SAFETY: the map is read-only. That nobody changes the file while it is mapped is the documented condition of
            // this type, which no program can enforce; all offsets used on the bytes are checked against the mapped length.
            _ => Some(unsafe { Mmap::map(file) }.map_err(|e| Error::io("map", path, None, e))?),
        };
        let modified = file.metadata().and_then(|metadata| metadata.modified()).ok();
        let mapped = modified.map(|modified| (file_id(path), modified));
        Ok(Self { map, owned: Vec::new(), path: path.to_path_buf(), mapped })
    }

    /// Bytes that were made of the file at `path` and are to be read like one. Advice about them does nothing.
    pub(crate) fn in_memory(owned: Vec<u8>, path: &Path) -> Self {
        Self { map: None, owned, path: path.to_path_buf(), mapped: None }
    }

    /// Whether the file was written to since it was mapped. One that another file took the place of, or that was removed, was not: its
    /// bytes are still there.
    pub fn has_changed(&self) -> bool {
        let (Some((id, then)), Ok(now)) = (&self.mapped, self.path.metadata()) else { return false };
        let is_same_file = file_id(&self.path) == *id;
        is_same_file && (now.len() != self.len() as u64 || now.modified().is_ok_and(|now| now != *then))
    }

    /// The path it was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Says that a range of bytes will be read soon: start reading it now. Advice only; nothing outside Unix.
    pub fn will_need(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let (Some(map), Some((start, len))) = (&self.map, self.clamp(&range)) {
            let _ = map.advise_range(memmap2::Advice::WillNeed, start, len);
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Gives the pages of a range back to the system, so that bytes already used no longer count as resident memory.
    /// Reading them again is allowed and brings them back. Advice only; nothing outside Unix.
    pub fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let (Some(map), Some((start, len))) = (&self.map, self.clamp(&range)) {
            // SAFETY: `DontNeed` on a read-only map of a file drops the pages; a later access reads the same bytes from the
            // file again. There are no private modifications that could be lost.
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len) };
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// The part of a range that lies inside the file as start and length, if there is any.
    #[cfg(unix)]
    fn clamp(&self, range: &Range<usize>) -> Option<(usize, usize)> {
        let end = range.end.min(self.len());
        (range.start < end).then(|| (range.start, end - range.start))
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&self.owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(bytes: &[u8]) -> (tempfile::TempDir, MappedFile) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, bytes).unwrap();
        let file = MappedFile::open(&path).unwrap();
        (dir, file)
    }

    #[test]
    fn an_empty_file_is_an_empty_slice() {
        let (_dir, file) = mapped(&[]);
        assert_eq!(&file[..], &[] as &[u8]);
        file.will_need(0..10);
        file.release(0..10);
    }

    #[test]
    fn released_bytes_can_be_read_again() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        let (_dir, file) = mapped(&bytes);
        file.will_need(0..usize::MAX);
        assert_eq!(&file[..], &bytes[..]);
        file.release(1..99_999);
        file.release(200_000..300_000);
        assert_eq!(&file[..], &bytes[..]);
    }

    #[test]
    fn directories_and_missing_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(MappedFile::open(dir.path()), Err(Error::NotAFile { .. })));
        let missing = MappedFile::open(&dir.path().join("no")).unwrap_err();
        assert!(missing.to_string().contains("cannot open"), "{missing}");
    }
}
