//! What a file was like when it was mapped or first read, from which it follows whether somebody has written to it since.

use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::lost::LostFile;
use crate::positioned::file_id;

/// What a file was like when it was mapped or first read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileState {
    path: PathBuf,
    len: u64,
    /// Which file it was, and its last change; `None` for a file without a name, and where the system does not say.
    version: Option<(Option<(u64, u64)>, SystemTime)>,
}

impl FileState {
    /// An open file that is mapped with `len` bytes.
    pub(super) fn of(file: &File, len: u64, path: &Path) -> FileState {
        let modified = file.metadata().and_then(|metadata| metadata.modified()).ok();
        FileState { path: path.to_owned(), len, version: modified.map(|modified| (file_id(path), modified)) }
    }

    /// A file that has no name any more: nobody else can write to it. `path` is for messages.
    pub(super) fn without_name(len: u64, path: &Path) -> FileState {
        FileState { path: path.to_owned(), len, version: None }
    }

    /// A file that is copied, or read more than once; `None` where there is no regular file.
    pub(crate) fn at(path: &Path) -> Option<FileState> {
        let found = path.metadata().ok().filter(Metadata::is_file)?;
        let version = found.modified().ok().map(|modified| (file_id(path), modified));
        Some(FileState { path: path.to_owned(), len: found.len(), version })
    }

    /// Whether the path leads to other contents: the file was written to since, or another took its place. One that was removed does
    /// not count: reading it is an error.
    pub(crate) fn has_other_contents(&self) -> bool {
        self.path.metadata().is_ok_and(|now| self.differs(&now))
    }

    /// The path that the file was opened with.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file was written to since. One that another file took the place of, or that was removed, was not: bytes that are
    /// mapped are still there.
    pub(crate) fn has_changed(&self) -> bool {
        self.now().is_some_and(|now| self.differs(&now))
    }

    /// Returns whether a file has another size, or was written to at another time. Nothing is known of one without a version.
    fn differs(&self, now: &Metadata) -> bool {
        let Some((_, then)) = &self.version else { return false };
        now.len() != self.len || now.modified().is_ok_and(|now| now != *then)
    }

    /// Returns whether the file has lost its end since.
    pub(super) fn is_shorter(&self) -> bool {
        self.now().is_some_and(|now| now.len() < self.len)
    }

    /// The same file as it is now.
    fn now(&self) -> Option<Metadata> {
        let (id, _) = self.version.as_ref()?;
        let now = self.path.metadata().ok()?;
        (file_id(&self.path) == *id).then_some(now)
    }

    /// The file for a report of lost bytes.
    pub(super) fn as_lost(&self) -> LostFile {
        let is_shorter = self.path.metadata().is_ok_and(|now| now.len() < self.len);
        LostFile { path: self.path.clone(), is_shorter, unsupplied: None }
    }
}
