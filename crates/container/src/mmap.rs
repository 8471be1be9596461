//! Read-only mapped files and advice to the kernel about them. The only unsafe code of the crate; no file syntax.
#![allow(unsafe_code)]

mod file_state;
mod lost;

pub(crate) use file_state::FileState;
pub use lost::{FileChanges, LostFile};

use std::fs::File;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use crate::error::Error;
use crate::positioned::open_regular;
use crate::supply::{self, Held, Supply};

/// Linux brings in as much as this with a page: `fault_around_bytes`. Thousands of small tensors would keep it for themselves.
#[cfg(unix)]
const AROUND: usize = 64 << 10;

/// A whole file mapped read-only, or bytes in memory that stand for one; dereferences to its bytes.
///
/// The bytes come from the page cache and are not private memory of the process. The file must not be changed by anyone
/// while it is mapped. If it is cut short nevertheless, or its disk fails, bytes that are gone read as zeros on Unix, and
/// [`has_lost_bytes`](Self::has_lost_bytes) and [`FileChanges`] report it; elsewhere the system refuses to cut a mapped file.
#[derive(Debug)]
pub struct MappedFile {
    // Dropped before the map: its range is another's then.
    guard: Option<lost::Guard>,
    map: Option<Mmap>,
    /// Bytes that are not mapped: empty, unless the file exists in memory only.
    owned: Vec<u8>,
    path: PathBuf,
    /// Where bytes come from that are not in the file yet.
    supply: Option<Arc<dyn Supply>>,
}

impl MappedFile {
    /// Maps a regular file (or a link to one). An empty file is fine.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let (file, len) = open_regular(path)?;
        let Some(supply) = supply::of(path) else { return Self::of(&file, len, FileState::of(&file, len, path)) };
        // Its supply writes to it, and knows which version of the file behind it that is.
        let mut map = Self::of(&file, len, FileState::without_name(len, path))?;
        map.supply = Some(supply);
        Ok(map)
    }

    /// Maps an open file of `len` bytes that has no name any more; `path` is for messages.
    pub(crate) fn without_name(file: &File, len: u64, path: &Path) -> Result<Self, Error> {
        Self::of(file, len, FileState::without_name(len, path))
    }

    fn of(file: &File, len: u64, state: FileState) -> Result<Self, Error> {
        let path = state.path().to_owned();
        let map = match len {
            0 => None,
            // SAFETY: the map is read-only. That nobody changes the file while it is mapped is the documented condition of
            // this type, which no program can enforce; all offsets used on the bytes are checked against the mapped length.
            _ => Some(unsafe { Mmap::map(file) }.map_err(|e| Error::io("map", &path, None, e))?),
        };
        let guard = map.as_ref().map(|map| lost::Guard::over(map, state));
        Ok(Self { guard, map, owned: Vec::new(), path, supply: None })
    }

    /// Bytes derived from the file at `path`, to be read like a file. Advice about them does nothing.
    pub(crate) fn in_memory(owned: Vec<u8>, path: &Path) -> Self {
        Self { guard: None, map: None, owned, path: path.to_path_buf(), supply: None }
    }

    /// Whether the file was written to since it was mapped. One that another file took the place of, or that was removed, was not: the
    /// mapped bytes are still there. [`FileChanges::first_changed`] reports it too, also after the map is gone.
    pub fn has_changed(&self) -> bool {
        self.guard.as_ref().is_some_and(|guard| guard.file().has_changed())
    }

    /// Whether bytes of the file could not be read since it was mapped, and read as zeros: it was cut short, or its disk failed.
    pub fn has_lost_bytes(&self) -> bool {
        self.guard.as_ref().is_some_and(lost::Guard::has_lost_bytes)
    }

    /// The bytes of a range, fetched first where they are not in the file yet. Those that cannot be fetched count as lost: they read as zeros,
    /// and [`has_lost_bytes`](Self::has_lost_bytes) reports it.
    ///
    /// # Panics
    ///
    /// If the range is not inside the file, like a slice.
    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        if let Some(supply) = &self.supply
            && let Err(cause) = supply.provide(range.start as u64..range.end as u64)
        {
            self.guard.iter().for_each(|guard| guard.mark_lost(&cause));
        }
        &self[range]
    }

    /// The version of a file whose bytes are fetched when they are needed; `None` for all others.
    pub fn supplied_identity(&self) -> Option<String> {
        self.supply.as_ref().map(|supply| supply.identity())
    }

    /// Says that a range will be read after those announced before: see [`Supply::announce`]. Nothing for files that are whole.
    pub(crate) fn announce(&self, range: Range<usize>) {
        if let Some(supply) = &self.supply {
            supply.announce(range.start as u64..range.end as u64);
        }
    }

    /// Keeps a range in a file whose bytes are fetched when they are needed; `None` for files that are whole.
    pub(crate) fn hold(&self, range: Range<usize>) -> Option<Held> {
        Some(Held::new(Arc::clone(self.supply.as_ref()?), range.start as u64..range.end as u64))
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
        if let (Some(map), Some((start, len))) = (&self.map, self.clamp(&self.around(&range))) {
            // SAFETY: `DontNeed` on a read-only map of a file drops the pages; a later access reads the same bytes from the
            // file again. There are no private modifications that could be lost.
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len) };
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// A range with the bytes that the system brings in with it: with a page those around it whose addresses begin alike.
    #[cfg(unix)]
    fn around(&self, range: &Range<usize>) -> Range<usize> {
        let base = self.as_ptr().addr();
        let start = (base + range.start.min(self.len())) / AROUND * AROUND;
        let end = (base + range.end.min(self.len())).next_multiple_of(AROUND);
        start.saturating_sub(base)..end - base
    }

    /// The part of a range that lies inside the file as start and length, if there is any.
    #[cfg(unix)]
    fn clamp(&self, range: &Range<usize>) -> Option<(usize, usize)> {
        let end = range.end.min(self.len());
        (range.start < end).then(|| (range.start, end - range.start))
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        if let Some(guard) = &self.guard {
            guard.note_changes();
        }
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
    fn empty_file_maps_to_an_empty_slice() {
        let (_dir, file) = mapped(&[]);
        assert_eq!(&file[..], &[] as &[u8]);
        file.will_need(0..10);
        file.release(0..10);
    }

    #[test]
    fn released_pages_can_be_read_again() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        let (_dir, file) = mapped(&bytes);
        file.will_need(0..usize::MAX);
        assert_eq!(&file[..], &bytes[..]);
        file.release(1..99_999);
        file.release(200_000..300_000);
        assert_eq!(&file[..], &bytes[..]);
    }

    #[test]
    fn a_file_that_is_rewritten_has_changed_and_one_that_is_replaced_has_not() {
        let (dir, file) = mapped(&[7; 9000]);
        assert!(!file.has_changed());
        let copy = dir.path().join("copy");
        std::fs::copy(file.path(), &copy).unwrap();
        std::fs::rename(&copy, file.path()).unwrap();
        assert!(!file.has_changed(), "its bytes are still mapped");
        let (_dir, file) = mapped(&[7; 9000]);
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(9);
        std::fs::File::options().append(true).open(file.path()).unwrap().set_modified(later).unwrap();
        assert!(file.has_changed());
    }

    #[cfg(unix)]
    #[test]
    fn truncated_mapping_reads_zeros_and_is_reported() {
        let bytes = vec![7u8; 1 << 20];
        let (dir, file) = mapped(&bytes);
        let (_other_dir, other) = mapped(&bytes);
        let lost = FileChanges::from_now_on();
        let cut = std::fs::OpenOptions::new().write(true).open(file.path()).unwrap();
        cut.set_len(10_000).unwrap();
        assert_eq!(file[9_999], 7);
        assert!(!file.has_lost_bytes() && lost.first().is_none(), "nothing was read that is gone");
        // From several threads at once, as weights are read.
        let sums: Vec<u64> = std::thread::scope(|scope| {
            let sum = || file[500_000..].iter().map(|byte| u64::from(*byte)).sum();
            let readers: Vec<_> = (0..4).map(|_| scope.spawn(sum)).collect();
            readers.into_iter().map(|reader| reader.join().unwrap()).collect()
        });
        assert_eq!(sums, [0; 4]);
        assert!(file.has_lost_bytes() && file.has_changed() && !other.has_lost_bytes());
        assert_eq!(&other[..], &bytes[..]);
        let path = dir.path().join("file");
        assert_eq!(lost.first(), Some(LostFile { path, is_shorter: true, unsupplied: None }));
        drop(file);
        assert!(lost.first().is_some(), "it is known after the map is gone");
        let lost = FileChanges::from_now_on();
        assert!(lost.first().is_none());
        // Reads by the kernel raise no signal, so the map is checked when it is dropped.
        let (_dir, file) = mapped(&[7; 9000]);
        std::fs::OpenOptions::new().write(true).open(file.path()).unwrap().set_len(10).unwrap();
        drop(file);
        assert!(lost.first().is_none() && lost.first_shortened().is_some_and(|file| file.is_shorter));
    }

    #[test]
    fn mapping_directories_and_missing_files_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(MappedFile::open(dir.path()), Err(Error::NotAFile { .. })));
        let missing = MappedFile::open(&dir.path().join("no")).unwrap_err();
        assert!(missing.to_string().contains("cannot open"), "{missing}");
    }
}
