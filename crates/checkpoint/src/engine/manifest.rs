//! The manifest of a directory written by Kvant: `kvant_manifest.json`, with the size and the hash of every file. It distinguishes
//! output files from foreign ones when an output is replaced.

use kvant_container::unfinished::OutputError;
use kvant_container::{
    Durability, MANIFEST_FILE, MissingFolder, TEMPORARY, directory_of, names_below, of_record, positioned,
    recorded_name, shown, write_file,
};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// The version of the fields' meaning.
const VERSION: u32 = 1;

/// Bytes that are hashed at a time: the hash of a file is that of the hashes of such pieces.
const PIECE: u64 = 4 << 20;

/// The number of names that a message lists before it counts.
const TOLD: usize = 5;

#[derive(Serialize, Deserialize)]
struct Manifest {
    kvant_manifest: u32,
    files: BTreeMap<String, Recorded>,
}

#[derive(PartialEq, Serialize, Deserialize)]
struct Recorded {
    bytes: u64,
    /// XXH3 (64 bits) of the little-endian XXH3 of each piece of 4 MiB, in hexadecimal.
    xxh3_of_4mib: String,
}

/// The depth of checking a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Names and sizes.
    Names,
    /// All bytes.
    Bytes,
}

/// Writes the manifest of a directory that is complete.
pub(super) fn write(dir: &Path, durability: Durability) -> Result<(), OutputError> {
    let names = names(dir).map_err(OutputError::io("read", dir))?;
    write_for(dir, names, durability)
}

/// Writes the manifest of files in a directory that Kvant chose for them, so that a later run may replace them.
///
/// # Errors
/// System errors.
pub fn record_files<'p>(
    dir: &Path,
    files: impl IntoIterator<Item = &'p Path>,
    durability: Durability,
) -> Result<(), OutputError> {
    let names = files.into_iter().filter_map(|file| Some(recorded_name(file.strip_prefix(dir).ok()?))).collect();
    write_for(dir, names, durability)
}

/// Returns whether a file is as the manifest beside it says. Reads all of it.
pub fn is_recorded(file: &Path) -> bool {
    let (dir, name) = (directory_of(file), recorded_name(Path::new(file.file_name().unwrap_or_default())));
    let recorded = read(dir).and_then(|mut manifest| manifest.files.remove(&name));
    recorded.is_some_and(|recorded| is_unchanged(file, &recorded, Look::Bytes).unwrap_or(false))
}

fn read(dir: &Path) -> Option<Manifest> {
    let stored = fs::read(dir.join(MANIFEST_FILE)).ok()?;
    serde_json::from_slice(&stored).ok().filter(|manifest: &Manifest| manifest.kvant_manifest == VERSION)
}

fn write_for(dir: &Path, names: Vec<String>, durability: Durability) -> Result<(), OutputError> {
    let path = dir.join(MANIFEST_FILE);
    let failed = |cause| OutputError::Io { action: "write", path: path.clone(), cause };
    let mut files = BTreeMap::new();
    for name in names {
        let file = dir.join(of_record(&name));
        let recorded = recorded(&file).map_err(OutputError::io("read", &file))?;
        files.insert(name, recorded);
    }
    let text = serde_json::to_string_pretty(&Manifest { kvant_manifest: VERSION, files });
    let text = text.map_err(io::Error::from).map_err(failed)?;
    write_file(&path, (text + "\n").as_bytes()).map_err(failed)?;
    match durability {
        Durability::Process => Ok(()),
        Durability::Disk => File::open(&path).and_then(|file| file.sync_all()).map_err(failed),
    }
}

/// Refuses to give a directory its name while it holds anything but what the run wrote: that is somebody's, and would later be taken
/// for Kvant's own. A temporary file of an interrupted run is removed.
pub(super) fn refuse_others(dir: &Path, written: impl IntoIterator<Item = PathBuf>) -> Result<(), OutputError> {
    let written: BTreeSet<String> = written.into_iter().map(|name| recorded_name(&name)).collect();
    if !dir.is_dir() {
        return Ok(());
    }
    for name in names(dir).map_err(OutputError::io("read", dir))? {
        let path = dir.join(of_record(&name));
        if name.starts_with(TEMPORARY) {
            fs::remove_file(&path).map_err(OutputError::io("remove", &path))?;
        } else if !written.contains(&name) {
            return Err(OutputError::InTheWay(path));
        }
    }
    Ok(())
}

/// The differences of a directory from what Kvant wrote, in words; `None` if there are none.
pub(super) fn strangers(dir: &Path, look: Look) -> io::Result<Option<String>> {
    let found = names(dir)?;
    let Some(manifest) = read(dir) else {
        let folders: BTreeSet<&str> = found.iter().map(|name| name.split('/').next().unwrap_or(name)).collect();
        if !folders.is_empty() && folders.iter().all(|folder| dir.join(folder).join(MANIFEST_FILE).is_file()) {
            let folders: Vec<&str> = folders.into_iter().collect();
            return Ok(Some(format!("it holds the outputs of a run with several formats: {}", folders.join(", "))));
        }
        let all = found.into_iter().map(|name| (name, false)).collect::<Vec<_>>();
        return Ok(Some(format!(
            "it has no {MANIFEST_FILE}, which would list Kvant's own files, and contains {}",
            told(&all)
        )));
    };
    let mut strangers = Vec::new();
    for name in found {
        match manifest.files.get(&name) {
            None => strangers.push((name, false)),
            Some(recorded) if !is_unchanged(&dir.join(of_record(&name)), recorded, look)? => {
                strangers.push((name, true))
            }
            Some(_) => {}
        }
    }
    Ok((!strangers.is_empty()).then(|| format!("it contains what Kvant did not write: {}", told(&strangers))))
}

/// Refuses a directory in which anything was changed, added or removed since Kvant wrote it.
pub(super) fn refuse_changed(dir: &Path) -> Result<(), OutputError> {
    let failed = OutputError::io("read", dir);
    let strangers = strangers(dir, Look::Bytes).map_err(failed)?;
    let recorded = || read(dir).into_iter().flat_map(|manifest| manifest.files.into_keys());
    let lacking = || recorded().map(|name| of_record(&name)).find(|name| !dir.join(name).exists());
    match strangers.or_else(|| Some(format!("it lacks {}", shown(&lacking()?)))) {
        Some(how) => Err(OutputError::Changed { path: dir.to_owned(), how }),
        None => Ok(()),
    }
}

/// The first names, those of changed files marked, and how many more there are.
fn told(strangers: &[(String, bool)]) -> String {
    let first = strangers.iter().take(TOLD);
    let names =
        first.map(|(name, changed)| format!("{}{}", shown(&of_record(name)), if *changed { " (changed)" } else { "" }));
    let names = names.collect::<Vec<_>>().join(", ");
    match strangers.len().saturating_sub(TOLD) {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

fn is_unchanged(file: &Path, expected: &Recorded, look: Look) -> io::Result<bool> {
    // A link is foreign, regardless of its target.
    let found = file.symlink_metadata()?;
    if !found.is_file() || found.len() != expected.bytes {
        return Ok(false);
    }
    Ok(look == Look::Names || recorded(file)? == *expected)
}

fn recorded(path: &Path) -> io::Result<Recorded> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let hashes = (0..bytes.div_ceil(PIECE)).into_par_iter().map(|piece| {
        let start = piece * PIECE;
        let mut buffer = vec![0; PIECE.min(bytes - start) as usize];
        positioned::read_exact_at(&file, &mut buffer, start)?;
        Ok(xxh3_64(&buffer).to_le_bytes())
    });
    let hashes = hashes.collect::<io::Result<Vec<_>>>()?;
    Ok(Recorded { bytes, xxh3_of_4mib: format!("{:016x}", xxh3_64(hashes.as_flattened())) })
}

/// All files below a directory but the manifest, and folders without any.
fn names(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = names_below(dir, MissingFolder::Fail)?;
    names.retain(|name| name != MANIFEST_FILE);
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_several_formats_are_named_as_such() {
        let dir = tempfile::tempdir().unwrap();
        for format in ["awq", "gptq"] {
            fs::create_dir(dir.path().join(format)).unwrap();
            fs::write(dir.path().join(format).join(MANIFEST_FILE), "{}").unwrap();
            fs::write(dir.path().join(format).join("config.json"), "{}").unwrap();
        }
        let told = strangers(dir.path(), Look::Names).unwrap().unwrap();
        assert_eq!(told, "it holds the outputs of a run with several formats: awq, gptq");
        fs::write(dir.path().join("mine"), "").unwrap();
        assert!(strangers(dir.path(), Look::Names).unwrap().unwrap().starts_with("it has no "));
    }

    #[test]
    fn changed_or_added_files_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let look = |look| strangers(dir.path(), look).unwrap();
        fs::write(path("config.json"), "{}").unwrap();
        fs::create_dir(path("inner")).unwrap();
        fs::write(path("inner/weights"), "w").unwrap();
        assert!(look(Look::Names).unwrap().contains("no kvant_manifest.json"));
        write(dir.path(), Durability::Process).unwrap();
        let first = fs::read(path(MANIFEST_FILE)).unwrap();
        write(dir.path(), Durability::Process).unwrap();
        assert_eq!(fs::read(path(MANIFEST_FILE)).unwrap(), first);
        assert_eq!((look(Look::Names), look(Look::Bytes)), (None, None));
        fs::write(path("config.json"), "[]").unwrap();
        assert_eq!(look(Look::Names), None, "the size is the same");
        assert!(look(Look::Bytes).unwrap().ends_with(": config.json (changed)"));
        fs::remove_file(path("config.json")).unwrap();
        assert_eq!(look(Look::Bytes), None, "what is gone is nobody's loss");
        let changed = refuse_changed(dir.path()).unwrap_err().to_string();
        assert!(changed.ends_with("since: it lacks config.json"), "{changed}");
        fs::create_dir(path("logs")).unwrap();
        (0..6).for_each(|n| fs::write(path(&format!("note{n}")), "").unwrap());
        let told = look(Look::Names).unwrap();
        assert!(told.ends_with(": logs, note0, note1, note2, note3 and 2 more"), "{told}");
    }

    #[cfg(unix)]
    #[test]
    fn link_in_place_of_a_file_is_foreign() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("a"), "same").unwrap();
        write(dir.path(), Durability::Process).unwrap();
        let elsewhere = tempfile::NamedTempFile::new().unwrap();
        fs::write(elsewhere.path(), "same").unwrap();
        fs::remove_file(path("a")).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), path("a")).unwrap();
        assert!(strangers(dir.path(), Look::Bytes).unwrap().is_some());
    }
}
