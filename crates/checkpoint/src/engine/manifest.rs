//! The files of an output directory: the manifest distinguishes those that Kvant wrote from foreign ones when an output is replaced.

use kvant_container::unfinished::OutputError;
use kvant_container::{
    Durability, Look, MANIFEST_FILE, Manifest, TEMPORARY, directory_of, files_beside_manifest, of_record,
    recorded_name, shown,
};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// The number of names that a message lists before it counts.
const TOLD: usize = 5;

/// Writes the manifest of a directory that is complete.
pub(super) fn write(dir: &Path, durability: Durability) -> Result<(), OutputError> {
    let names = files_beside_manifest(dir).map_err(OutputError::io("read", dir))?;
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
    let recorded = Manifest::read(dir).and_then(|mut manifest| manifest.files.remove(&name));
    recorded.is_some_and(|recorded| recorded.is_unchanged(file, Look::Bytes).unwrap_or(false))
}

fn write_for(dir: &Path, names: Vec<String>, durability: Durability) -> Result<(), OutputError> {
    let manifest = Manifest::of(dir, names).map_err(OutputError::io("read", dir))?;
    let path = dir.join(MANIFEST_FILE);
    let sync = || match durability {
        Durability::Process => Ok(()),
        Durability::Disk => File::open(&path).and_then(|file| file.sync_all()),
    };
    manifest.write(dir).and_then(|()| sync()).map_err(OutputError::io("write", &path))
}

/// Refuses to give a directory its name while it holds anything but what the run wrote: that is somebody's, and would later be taken
/// for Kvant's own. A temporary file of an interrupted run is removed.
pub(super) fn refuse_others(dir: &Path, written: impl IntoIterator<Item = PathBuf>) -> Result<(), OutputError> {
    let written: BTreeSet<String> = written.into_iter().map(|name| recorded_name(&name)).collect();
    if !dir.is_dir() {
        return Ok(());
    }
    for name in files_beside_manifest(dir).map_err(OutputError::io("read", dir))? {
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
    let found = files_beside_manifest(dir)?;
    let Some(manifest) = Manifest::read(dir) else {
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
            Some(recorded) if !recorded.is_unchanged(&dir.join(of_record(&name)), look)? => {
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
    let recorded = || Manifest::read(dir).into_iter().flat_map(|manifest| manifest.files.into_keys());
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
