//! Files whose bytes come from elsewhere when they are needed: a sparse file of the right length stands for each, and a [`Supply`] writes
//! into it what is about to be read. How bytes are fetched is not known here.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

/// The bytes behind a file. Ranges count bytes of the file.
///
/// Every map of a registered file asks for the bytes of a tensor before it hands them out, so that nobody reads bytes that were not fetched.
/// What is read while it is [held](Self::hold) is given up when the last holder lets go; what is read without a holder stays until the end.
pub trait Supply: fmt::Debug + Send + Sync {
    /// Identifies the version of the file, the same in every run; part of the identity of a plan.
    fn identity(&self) -> String;

    /// Returns after all bytes of a range are in the file.
    ///
    /// # Errors
    ///
    /// [`Unsupplied`], with which the bytes of the range are zeros.
    fn provide(&self, range: Range<u64>) -> Result<(), Unsupplied>;

    /// Says that a range will be needed after those announced before: it may be fetched ahead.
    fn announce(&self, range: Range<u64>);

    /// Keeps the bytes of a range in the file once they are there.
    fn hold(&self, range: Range<u64>);

    /// Undoes one [`hold`](Self::hold) of the same range: bytes that nobody holds any more may go.
    fn let_go(&self, range: Range<u64>);
}

/// Bytes that a [`Supply`] could not provide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsupplied {
    /// The run was stopped while it waited for them.
    Cancelled,
    /// They could not be fetched: a sentence that names the file and the range.
    Failed(String),
}

/// A range of a file that is kept there until this is dropped.
#[derive(Debug)]
pub struct Held {
    supply: Arc<dyn Supply>,
    range: Range<u64>,
}

impl Held {
    pub(crate) fn new(supply: Arc<dyn Supply>, range: Range<u64>) -> Held {
        supply.hold(range.clone());
        Held { supply, range }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.supply.let_go(self.range.clone());
    }
}

/// The files with a supply, by their paths without links.
static SUPPLIES: LazyLock<RwLock<HashMap<PathBuf, Arc<dyn Supply>>>> = LazyLock::new(RwLock::default);

/// Folders that stand for something else in messages. They are kept: a message may be made after its files are gone.
static NAMES: RwLock<Vec<(PathBuf, String)>> = RwLock::new(Vec::new());

/// A file whose maps read from a supply until this is dropped. Maps that exist by then keep it.
#[derive(Debug)]
pub struct SuppliedFile(PathBuf);

/// Makes a file that exists read from a supply wherever it is mapped from now on.
///
/// # Errors
///
/// Where the file is missing.
pub fn supply(path: &Path, supply: Arc<dyn Supply>) -> std::io::Result<SuppliedFile> {
    let path = path.canonicalize()?;
    SUPPLIES.write().unwrap_or_else(PoisonError::into_inner).insert(path.clone(), supply);
    Ok(SuppliedFile(path))
}

impl Drop for SuppliedFile {
    fn drop(&mut self) {
        let gone = SUPPLIES.write().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
        // Outside of the lock: what it owns may be files that others map.
        drop(gone);
    }
}

/// The supply of a file, if it has one.
pub(crate) fn of(path: &Path) -> Option<Arc<dyn Supply>> {
    let supplies = SUPPLIES.read().unwrap_or_else(PoisonError::into_inner);
    match supplies.is_empty() {
        true => None,
        false => supplies.get(&path.canonicalize().ok()?).cloned(),
    }
}

/// Gives a folder, and with it everything inside, another name in messages and reports: that of what it stands for.
pub fn show_folder_as(folder: &Path, name: &str) {
    NAMES.write().unwrap_or_else(PoisonError::into_inner).push((folder.to_owned(), name.to_owned()));
}

/// What a path stands for in messages, if it is of such a folder.
pub fn shown_name(path: &Path) -> Option<String> {
    let names = NAMES.read().unwrap_or_else(PoisonError::into_inner);
    names.iter().find_map(|(folder, name)| {
        let inside = path.strip_prefix(folder).ok()?;
        let parts = inside.iter().map(|part| part.to_string_lossy());
        Some(parts.fold(name.clone(), |name, part| format!("{}/{part}", name.trim_end_matches('/'))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_shown_by_the_name_of_what_they_stand_for() {
        let folder = Path::new("/stands/for-a-model");
        show_folder_as(folder, "https://host/model/");
        assert_eq!(shown_name(folder).as_deref(), Some("https://host/model/"));
        assert_eq!(shown_name(&folder.join("a/b")).as_deref(), Some("https://host/model/a/b"));
        assert_eq!(shown_name(Path::new("/stands/for-a-model2")), None);
    }
}
