//! An output directory that is assembled from parts. Each part is a directory with its own journal, written under a hidden name beside
//! the output. Complete parts move into the output, other files are copied there, and one rename gives the output its name. Writing
//! the parts is up to the caller.

use super::Form;
use super::manifest;
use super::output::{copy_anew, give_name, is_placed_as};
use super::output_check::{check_source, check_target};
use kvant_container::unfinished::{
    Claim, Entry, Held, Journal, OutputError, Paths, Room, check_beside, part_beside, remove,
};
use kvant_container::{Durability, Look, MissingFolder, directory_of, names_below, of_record, recorded_name};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The start of such an output.
#[derive(Debug)]
pub enum FolderStart {
    /// There is work to do.
    Working(Folder),
    /// An earlier run of the same plan finished the work, and was killed before it could report it.
    Finished,
}

/// An unfinished output of parts. Dropped before [`finish`](Self::finish), it is kept for the next run to resume.
#[derive(Debug)]
pub struct Folder {
    paths: Paths,
    journal: Journal,
    overwrite: bool,
}

impl Folder {
    /// Refuses what cannot become the output, without touching anything. Of each part its name and its bytes are given, and the bytes of
    /// all copied files.
    ///
    /// # Errors
    /// [`OutputError::Exists`], [`OutputError::IsSource`], [`OutputError::InTheWay`], [`OutputError::NoRoom`].
    pub fn check(
        source: &Path,
        target: &Path,
        plan: &str,
        parts: &[(&str, u64)],
        copied: u64,
        overwrite: bool,
    ) -> Result<(), OutputError> {
        let paths = Paths::of(target)?;
        check_source(&paths.target, source)?;
        if is_placed_as(&Form::Directory, plan, &paths) {
            return Ok(());
        }
        check_target(&paths.target, &Form::Directory, overwrite, Look::Bytes)?;
        check_beside(&paths)?;
        let mut room = Room::default();
        for (name, bytes) in parts {
            let part = part_beside(&paths.target, name);
            if !part.exists() && !paths.staging.join(name).exists() {
                room.output(&Paths::of(&part)?, *bytes);
            }
        }
        room.temporary(&paths.target, copied);
        room.check()
    }

    /// Removes what an interrupted run has left of an output and its parts. Where somebody else's files are among the work, nothing is
    /// removed.
    ///
    /// # Errors
    /// [`OutputError::Busy`], [`OutputError::InTheWay`], the system's.
    pub fn discard(target: &Path) -> Result<(), OutputError> {
        let paths = Paths::of(target)?;
        for part in parts_of(&paths.target)? {
            Claim::discard(&part, true)?;
            remove_own(&part)?;
        }
        Claim::discard(&paths.target, false)
    }

    /// Starts an output, or resumes an interrupted one. Parts of another plan are removed.
    ///
    /// # Errors
    /// [`OutputError::OtherRun`], [`OutputError::InTheWay`], the system's.
    pub fn begin(claim: Claim, plan: &str, overwrite: bool) -> Result<FolderStart, OutputError> {
        claim.refuse_other_plan(plan, overwrite)?;
        let Held { paths, journal, found, given } = claim.into_held();
        if is_placed_as(&Form::Directory, plan, &paths) {
            manifest::refuse_changed(&paths.target)?;
            paths.clear_away()?;
            return Ok(FolderStart::Finished);
        }
        let failed = OutputError::io("write", &paths.journal);
        if found.plan.as_deref() == Some(plan) {
            journal.resume(&found).map_err(failed)?;
        } else {
            parts_of(&paths.target)?.iter().try_for_each(|part| remove_own(part))?;
            remove(&paths.staging)?;
            journal.begin(plan, &given).map_err(failed)?;
        }
        fs::create_dir_all(&paths.staging).map_err(OutputError::io("create", &paths.staging))?;
        Ok(FolderStart::Working(Folder { paths, journal, overwrite }))
    }

    /// The path under which a part is to be made.
    pub fn part(&self, name: &str) -> PathBuf {
        part_beside(&self.paths.target, name)
    }

    /// Returns whether a part is complete, written by this run or by an earlier run of the same plan. A part that has changed since may hold
    /// the user's files, and is refused.
    ///
    /// # Errors
    /// [`OutputError::Changed`], the system's.
    pub fn holds(&self, name: &str) -> Result<bool, OutputError> {
        for dir in [self.paths.staging.join(name), self.part(name)] {
            if !dir.is_dir() {
                continue;
            }
            return manifest::refuse_changed(&dir).map(|()| true);
        }
        Ok(false)
    }

    /// Records that a part is complete: from now on a run with other options is refused.
    ///
    /// # Errors
    /// System errors.
    pub fn record(&self, part: usize) -> Result<(), OutputError> {
        let entry = Entry { job: part, pieces: Vec::new() };
        self.journal.record(&entry).map_err(OutputError::io("write", &self.paths.journal))
    }

    /// Moves the parts into the output, copies `files` from below `source`, and gives the output its name.
    ///
    /// # Errors
    /// System errors.
    pub fn finish(
        self,
        parts: &[&str],
        source: &Path,
        files: &[PathBuf],
        durability: Durability,
    ) -> Result<PathBuf, OutputError> {
        let Folder { paths, journal, overwrite } = self;
        let mut names: BTreeSet<PathBuf> = files.iter().cloned().collect();
        for name in parts {
            for dir in [paths.staging.join(name), part_beside(&paths.target, name)] {
                let inside = names_below(&dir, MissingFolder::Skip).map_err(OutputError::io("read", &dir))?;
                names.extend(inside.iter().map(|inner| Path::new(name).join(of_record(inner))));
            }
        }
        let recorded = names.iter().map(|name| recorded_name(name)).collect();
        journal.record_files(recorded).map_err(OutputError::io("write", &paths.journal))?;
        for (name, part) in parts.iter().map(|name| (name, part_beside(&paths.target, name))) {
            if part.exists() {
                fs::rename(&part, paths.staging.join(name)).map_err(OutputError::io("move", &part))?;
            }
        }
        for name in files {
            let (from, to) = (source.join(name), paths.staging.join(name));
            copy_anew(&from, &to).map_err(OutputError::io("copy", &from))?;
            if durability == Durability::Disk {
                File::open(&to).and_then(|file| file.sync_all()).map_err(OutputError::io("sync", &to))?;
            }
        }
        manifest::refuse_others(&paths.staging, names)?;
        give_name(&paths, &journal, &Form::Directory, overwrite, durability)?;
        paths.clear_away()?;
        Ok(paths.target)
    }
}

/// The complete and unfinished parts beside an output, of whatever plan.
fn parts_of(target: &Path) -> Result<Vec<PathBuf>, OutputError> {
    Ok(part_names(target)?.iter().map(|name| part_beside(target, name)).collect())
}

/// The names of these parts.
pub(super) fn part_names(target: &Path) -> Result<BTreeSet<String>, OutputError> {
    let beside = part_beside(target, "");
    let prefix = beside.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let directory = directory_of(target);
    let failed = || OutputError::io("read", directory);
    let Ok(entries) = fs::read_dir(directory) else { return Ok(BTreeSet::new()) };
    let mut names = BTreeSet::new();
    for entry in entries {
        let name = entry.map_err(failed())?.file_name().to_string_lossy().into_owned();
        if let Some(part) = name.strip_prefix(&prefix) {
            // What is beside a part is called after it.
            names.insert(part.split(".partial").next().unwrap_or(part).to_owned());
        }
    }
    Ok(names)
}

/// Removes a complete part that Kvant wrote; nothing if there is none.
fn remove_own(part: &Path) -> Result<(), OutputError> {
    if part.symlink_metadata().is_err() {
        return Ok(());
    }
    let is_own = part.is_dir() && matches!(manifest::strangers(part, Look::Names), Ok(None));
    if is_own { remove(part) } else { Err(OutputError::InTheWay(part.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_container::unfinished::Options;

    const PARTS: [&str; 2] = ["a", "b"];

    fn make(folder: &Folder, name: &str) {
        let part = folder.part(name);
        fs::create_dir(&part).unwrap();
        fs::write(part.join("weights"), name).unwrap();
        manifest::write(&part, Durability::Process).unwrap();
    }

    fn begin(target: &Path, plan: &str) -> Folder {
        let claim = Claim::take(target, &Options::new()).unwrap();
        match Folder::begin(claim, plan, false).unwrap() {
            FolderStart::Working(folder) => folder,
            FolderStart::Finished => panic!("finished"),
        }
    }

    #[test]
    fn parts_of_an_interrupted_run_are_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let (source, target) = (dir.path().join("source"), dir.path().join("out"));
        fs::create_dir_all(source.join("scheduler")).unwrap();
        fs::write(source.join("scheduler/config.json"), "{}").unwrap();
        let folder = begin(&target, "plan");
        make(&folder, "a");
        folder.record(0).unwrap();
        drop(folder);
        let other = Claim::take(&target, &Options::new()).unwrap();
        let refused = Folder::begin(other, "other", false).unwrap_err();
        assert!(matches!(refused, OutputError::OtherRun { .. }), "{refused}");
        let folder = begin(&target, "plan");
        assert_eq!(PARTS.map(|name| folder.holds(name).unwrap()), [true, false]);
        make(&folder, "b");
        fs::write(folder.part("b").join("weights"), "c").unwrap();
        assert!(matches!(folder.holds("b"), Err(OutputError::Changed { .. })));
        fs::write(folder.part("b").join("weights"), "b").unwrap();
        folder.finish(&PARTS, &source, &["scheduler/config.json".into()], Durability::Process).unwrap();
        assert_eq!(fs::read_to_string(target.join("b/weights")).unwrap(), "b");
        assert!(target.join("scheduler/config.json").exists());
        assert_eq!(manifest::strangers(&target, Look::Bytes).unwrap(), None);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left beside it");
    }

    #[test]
    fn discarded_parts_are_gone_and_files_of_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out");
        let folder = begin(&target, "plan");
        make(&folder, "a");
        folder.record(0).unwrap();
        drop(folder);
        Folder::discard(&target).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let mine = part_beside(&target, "a");
        fs::create_dir(&mine).unwrap();
        fs::write(mine.join("mine"), "").unwrap();
        let claim = Claim::take(&target, &Options::new()).unwrap();
        assert!(matches!(Folder::begin(claim, "plan", false), Err(OutputError::InTheWay(_))));
        assert!(mine.join("mine").exists());
    }
}
