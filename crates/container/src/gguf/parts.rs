//! Models in several files, as llama.cpp splits them: `NAME-00001-of-00003.gguf` and so on. Each is a GGUF file with a share of the
//! tensors; the first has the model's metadata.

use std::path::{Path, PathBuf};

use super::{Metadata, Value};
use crate::error::{GgufError, GgufLayoutError};
use crate::numbered_name::NumberedName;

/// The number of the part, counted from 0 (`u16`).
const NUMBER: &str = "split.no";

/// The number of parts (`u16`).
const COUNT: &str = "split.count";

/// The number of tensors of all parts (`i32`).
const TENSORS: &str = "split.tensors.count";

/// How the names of parts end.
const EXTENSION: &str = "gguf";

/// What a file says of the parts that it is one of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartOf {
    /// Counted from 0.
    number: u64,
    pub count: u64,
    /// The tensors of all parts together, where that is stated.
    pub tensors: Option<u64>,
}

impl PartOf {
    /// One of so many parts, which have so many tensors together.
    pub fn new(number: usize, count: usize, tensors: usize) -> Result<PartOf, GgufLayoutError> {
        let counted = u16::try_from(count).is_ok() && i32::try_from(tensors).is_ok();
        let part = PartOf { number: number as u64, count: count as u64, tensors: Some(tensors as u64) };
        if counted { Ok(part) } else { Err(GgufLayoutError::TooManyParts { parts: count, tensors }) }
    }

    /// Adds what a file says of the parts that it is one of. The numbers were checked to fit.
    pub fn describe(self, mut metadata: Metadata) -> Metadata {
        metadata.set(NUMBER, self.number as u16);
        metadata.set(COUNT, self.count as u16);
        metadata.set(TENSORS, self.tensors.unwrap_or(0) as i32);
        metadata
    }

    /// The name of its file.
    pub fn file_name(self, stem: &str) -> String {
        NumberedName { prefix: stem, count: self.count, number: 0 }.with_number(self.number + 1, EXTENSION)
    }

    /// That of some metadata; `None` for whole models.
    pub fn of(metadata: &Metadata) -> Option<PartOf> {
        let number = |key| metadata.get(key).and_then(Value::as_u64);
        let count = number(COUNT).filter(|&count| count > 1)?;
        Some(PartOf { number: number(NUMBER).unwrap_or(0), count, tensors: number(TENSORS) })
    }

    /// Removes what is said of parts.
    pub fn forget(metadata: &mut Metadata) {
        [NUMBER, COUNT, TENSORS].iter().for_each(|key| metadata.remove(key));
    }

    /// The paths of all parts, by that of one.
    pub fn paths(self, path: &Path) -> Result<Vec<PathBuf>, GgufError> {
        let misnamed = || GgufError::PartName { number: self.number.saturating_add(1), count: self.count };
        let own = named(path).filter(|name| name.number == self.number + 1 && name.count == self.count);
        own.map(|name| all(path, name)).ok_or_else(misnamed)
    }

    /// Checks that the part at a place is that part.
    pub fn check(self, place: usize, found: Option<PartOf>) -> Result<(), GgufError> {
        let is_right = found.is_some_and(|found| found.number == place as u64 && found.count == self.count);
        let stated = || found.map_or("a whole model".to_owned(), |f| format!("part {} of {}", f.number + 1, f.count));
        if is_right { Ok(()) } else { Err(GgufError::OtherPart { stated: stated() }) }
    }
}

/// The name of a part.
fn named(path: &Path) -> Option<NumberedName<'_>> {
    let name = NumberedName::of(path.file_name()?.to_str()?, EXTENSION)?;
    (1..=name.count).contains(&name.number).then_some(name)
}

/// The paths of all parts, by that of one and its name.
fn all(path: &Path, name: NumberedName<'_>) -> Vec<PathBuf> {
    (1..=name.count).map(|number| path.with_file_name(name.with_number(number, EXTENSION))).collect()
}

/// The paths of the model that a file is a part of by its name, that file among them; none for other names.
///
/// ```
/// let paths = kvant_container::gguf::parts_named(std::path::Path::new("a/m-00002-of-00002.gguf"));
/// assert_eq!(paths[0], std::path::Path::new("a/m-00001-of-00002.gguf"));
/// ```
pub fn parts_named(path: &Path) -> Vec<PathBuf> {
    named(path).map(|name| all(path, name)).unwrap_or_default()
}
