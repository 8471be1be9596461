//! The manifest of a directory written by Kvant: `kvant_manifest.json`, with the size and the hash of every file. It applies to that
//! directory only.

use crate::directory::{MissingFolder, names_below};
use crate::new_file::write_file;
use crate::path_text::of_record;
use crate::positioned;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// The file that lists the files Kvant wrote into a directory; it applies to that directory only.
pub const MANIFEST_FILE: &str = "kvant_manifest.json";

/// The version of the fields' meaning.
const VERSION: u32 = 1;

/// Bytes that are hashed at a time: the hash of a file is that of the hashes of such pieces.
const PIECE: u64 = 4 << 20;

/// The files of a directory as Kvant wrote them.
#[derive(Debug, Serialize, Deserialize)]
pub struct Manifest {
    kvant_manifest: u32,
    /// Each file by its name as records have it, see [`of_record`].
    pub files: BTreeMap<String, RecordedFile>,
}

/// A file as it was written.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedFile {
    bytes: u64,
    /// XXH3 (64 bits) of the little-endian XXH3 of each piece of 4 MiB, in hexadecimal.
    xxh3_of_4mib: String,
}

/// The depth of a comparison with a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Names and sizes.
    Names,
    /// All bytes.
    Bytes,
}

impl Manifest {
    /// The manifest in a directory; `None` where there is none that can be read.
    pub fn read(dir: &Path) -> Option<Manifest> {
        let stored = fs::read(dir.join(MANIFEST_FILE)).ok()?;
        serde_json::from_slice(&stored).ok().filter(|manifest: &Manifest| manifest.kvant_manifest == VERSION)
    }

    /// Returns whether a directory has one, which need not be readable.
    pub fn is_in(dir: &Path) -> bool {
        dir.join(MANIFEST_FILE).symlink_metadata().is_ok()
    }

    /// The manifest of files of these names in a directory. Reads all of them.
    ///
    /// # Errors
    /// System errors.
    pub fn of(dir: &Path, names: Vec<String>) -> io::Result<Manifest> {
        let recorded = |name: String| Ok((name.clone(), RecordedFile::of(&dir.join(of_record(&name)))?));
        let files = names.into_iter().map(recorded).collect::<io::Result<_>>()?;
        Ok(Manifest { kvant_manifest: VERSION, files })
    }

    /// Writes it into a directory.
    ///
    /// # Errors
    /// System errors.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        write_file(&dir.join(MANIFEST_FILE), (text + "\n").as_bytes())
    }
}

impl RecordedFile {
    fn of(path: &Path) -> io::Result<RecordedFile> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let hashes = (0..bytes.div_ceil(PIECE)).into_par_iter().map(|piece| {
            let start = piece * PIECE;
            let mut buffer = vec![0; PIECE.min(bytes - start) as usize];
            positioned::read_exact_at(&file, &mut buffer, start)?;
            Ok(xxh3_64(&buffer).to_le_bytes())
        });
        let hashes = hashes.collect::<io::Result<Vec<_>>>()?;
        Ok(RecordedFile { bytes, xxh3_of_4mib: format!("{:016x}", xxh3_64(hashes.as_flattened())) })
    }

    /// Returns whether a file, or what a link leads to, has the bytes that were written.
    ///
    /// # Errors
    /// System errors.
    pub fn is_of(&self, file: &Path) -> io::Result<bool> {
        Ok(file.metadata()?.len() == self.bytes && RecordedFile::of(file)? == *self)
    }

    /// Returns whether a file is still as it was written. A link is not, regardless of its target.
    ///
    /// # Errors
    /// System errors.
    pub fn is_unchanged(&self, file: &Path, look: Look) -> io::Result<bool> {
        let found = file.symlink_metadata()?;
        if !found.is_file() || found.len() != self.bytes {
            return Ok(false);
        }
        Ok(look == Look::Names || RecordedFile::of(file)? == *self)
    }
}

/// All files below a directory but the manifest, and folders without any.
///
/// # Errors
/// System errors.
pub fn files_beside_manifest(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = names_below(dir, MissingFolder::Fail)?;
    names.retain(|name| name != MANIFEST_FILE);
    Ok(names)
}
