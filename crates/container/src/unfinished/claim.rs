//! A run's hold on an output: the lock that keeps other runs out, and what an earlier run has left there. Work that was done with
//! other options is neither gone on with nor thrown away: the run is refused.

use super::given::{changed, differing, given};
use super::journal::{Found, Given, Journal, Options};
use super::output_error::OutputError;
use super::own::{refuse_strangers, remove_results, remove_written};
use super::paths::{Paths, check_beside, remove};
use super::placing::{Placing, place_all, undo};
use crate::positioned;
use crate::removal::or_gone;
use crate::writer::Durability;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

/// An output that no other run can take up while this is held. Dropped before anything was done for the output, it leaves nothing.
#[derive(Debug)]
pub struct Claim {
    // Dropped before the journal, whose lock keeps others out meanwhile.
    guard: Guard,
    held: Held,
}

/// Removes a journal of nothing.
#[derive(Debug)]
struct Guard(Option<Paths>);

/// The contents of a claim, for the code that writes the output.
#[derive(Debug)]
pub struct Held {
    /// The paths of the output and its work files.
    pub paths: Paths,
    /// The record of the work, locked.
    pub journal: Journal,
    /// The journal's contents when the output was claimed.
    pub found: Found,
    /// The inputs and options of this run.
    pub given: Given,
}

impl Claim {
    /// Refuses an output that another run is writing, or on which an interrupted run has done work with other options, without
    /// touching anything. Where one of the runs states no options they are not compared.
    ///
    /// # Errors
    /// [`OutputError::Busy`], [`OutputError::OtherOptions`], [`OutputError::InTheWay`].
    pub fn check(target: &Path, options: &Options) -> Result<(), OutputError> {
        let paths = Paths::of(target)?;
        if !paths.journal.exists() {
            return Ok(());
        }
        check_beside(&paths)?;
        let (_, found) = open(&paths)?;
        refuse_strangers(&paths, &found.files)?;
        refuse_other_options(&paths, &found, options)
    }

    /// Takes hold of an output.
    ///
    /// # Errors
    /// As [`check`](Self::check), and the system's.
    pub fn take(target: &Path, options: &Options) -> Result<Claim, OutputError> {
        let paths = Paths::of(target)?;
        // Whatever has a name of these and no journal is not ours, and would seem to be once there is one.
        check_beside(&paths)?;
        if let Some(parent) = paths.target.parent() {
            fs::create_dir_all(parent).map_err(OutputError::io("create", parent))?;
        }
        let (journal, mut found) = open(&paths)?;
        refuse_strangers(&paths, &found.files)?;
        refuse_other_options(&paths, &found, options)?;
        if !found.placing.is_empty() {
            undo(&paths, &found.placing)?;
            found.forget_placing();
        }
        let given = given(options);
        let claimed = if has_work(&paths, &found) { journal.hold(&found) } else { journal.begin("", &given) };
        claimed.map_err(OutputError::io("write", &paths.journal))?;
        let guard = Guard(Some(paths.clone()));
        Ok(Claim { guard, held: Held { paths, journal, found, given } })
    }

    /// The output.
    pub fn target(&self) -> &Path {
        &self.held.paths.target
    }

    /// The paths of the output and its work files.
    pub fn paths(&self) -> &Paths {
        &self.held.paths
    }

    /// Returns whether files of an interrupted run already have final names, which [`take`](Self::take) reverts.
    pub fn is_half_placed(target: &Path) -> bool {
        Paths::of(target).is_ok_and(|paths| !Journal::peek(&paths.journal).placing.is_empty())
    }

    /// Begins the work of a plan on an output that is not streamed, or resumes it.
    ///
    /// # Errors
    /// [`OutputError::OtherRun`] where results of another plan are kept; the system's.
    pub fn begin(&self, plan: &str) -> Result<(), OutputError> {
        let Held { paths, journal, found, given } = &self.held;
        if has_work(paths, found) {
            let is_same = found.plan.as_deref() == Some(plan);
            let other = || OutputError::OtherRun { path: paths.target.clone(), changed: changed(&found.given) };
            return is_same.then_some(()).ok_or_else(other);
        }
        journal.begin(plan, given).map_err(OutputError::io("write", &paths.journal))
    }

    /// An empty directory for files of these names, in which the output is written. Foreign files in it are kept.
    ///
    /// # Errors
    /// System errors.
    pub fn staging(&self, names: BTreeSet<String>) -> Result<&Path, OutputError> {
        let Held { paths, journal, .. } = &self.held;
        journal.record_files(names.clone()).map_err(OutputError::io("write", &paths.journal))?;
        remove_written(&paths.staging, &names)?;
        fs::create_dir_all(&paths.staging).map_err(OutputError::io("create", &paths.staging))?;
        Ok(&paths.staging)
    }

    /// Renames the files together and ends the run: work files beside the output are removed.
    ///
    /// # Errors
    /// System errors. The previous files are restored then, and kept results remain.
    pub fn place(self, files: &[Placing], durability: Durability) -> Result<(), OutputError> {
        let Held { paths, journal, .. } = self.into_held();
        refuse_strangers(&paths, &Journal::peek(&paths.journal).files)?;
        let planned: Vec<_> = files.iter().map(Placing::planned).collect();
        journal.record_placing(planned.clone()).map_err(OutputError::io("write", &paths.journal))?;
        if let Err(error) = place_all(&paths, files) {
            undo(&paths, &planned)?;
            journal.resume(&Journal::peek(&paths.journal)).map_err(OutputError::io("write", &paths.journal))?;
            leave(&paths, true)?;
            return Err(error);
        }
        for directory in files.iter().filter_map(|file| file.place.parent()).filter(|_| durability == Durability::Disk)
        {
            let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
            positioned::sync_dir(directory).map_err(OutputError::io("sync", directory))?;
        }
        clear_all(&paths)
    }

    /// Removes the unfinished files of this run; results that were kept stay for the next one where it `resumes`.
    ///
    /// # Errors
    /// System errors.
    pub fn leave(self, resumes: bool) -> Result<(), OutputError> {
        leave(&self.into_held().paths, resumes)
    }

    /// Gives up the guard: from now on the journal stays until the output is finished or discarded.
    pub fn into_held(self) -> Held {
        let Claim { mut guard, held } = self;
        guard.0 = None;
        held
    }

    /// Refuses to resume or to discard the work of another plan.
    ///
    /// # Errors
    /// [`OutputError::OtherRun`].
    pub fn refuse_other_plan(&self, plan: &str, overwrite: bool) -> Result<(), OutputError> {
        let Held { paths, found, .. } = &self.held;
        let is_other = found.plan.as_deref().is_some_and(|other| !other.is_empty() && other != plan);
        // A complete output under its name is replaced like any other.
        let is_replaced = overwrite && found.whole && paths.target.exists() && !paths.staging.exists();
        if is_other && !is_replaced && has_output(paths, found) {
            Err(OutputError::OtherRun { path: paths.target.clone(), changed: changed(&found.given) })
        } else {
            Ok(())
        }
    }

    /// Removes what an interrupted run has left, if anything: unfinished work, and with `made` a whole output that it could not
    /// acknowledge any more. What it had set aside comes back. Where somebody else's files are among the work, nothing is removed.
    ///
    /// # Errors
    /// [`OutputError::Busy`], [`OutputError::InTheWay`], the system's.
    pub fn discard(target: &Path, made: bool) -> Result<(), OutputError> {
        let paths = Paths::of(target)?;
        if !paths.journal.exists() {
            return Ok(());
        }
        check_beside(&paths)?;
        let (_journal, found) = open(&paths)?;
        let is_placed = found.whole && paths.target.exists();
        refuse_strangers(&paths, &found.files)?;
        let blocks = paths.blocks();
        if !found.placing.is_empty() {
            undo(&paths, &found.placing)?;
        } else if !paths.target.exists() && paths.replaced.exists() {
            fs::rename(&paths.replaced, &paths.target).map_err(OutputError::io("restore", &paths.target))?;
        }
        if is_placed && made {
            remove(&paths.target)?;
        }
        remove_results(&blocks).map_err(OutputError::io("remove", &blocks))?;
        for statistics in paths.all_statistics() {
            or_gone(fs::remove_file(&statistics)).map_err(OutputError::io("remove", &statistics))?;
        }
        paths.clear_away()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(paths) = &self.0 else { return };
        let [beside @ .., journal] = paths.beside();
        let is_placed = Journal::peek(&journal).whole && paths.target.exists();
        if !is_placed && !beside.iter().any(|path| path.exists()) {
            // One that cannot be removed does no harm.
            let _ = fs::remove_file(&journal);
        }
    }
}

/// Removes unfinished files, and where a rerun does not resume, all that is beside an output.
fn leave(paths: &Paths, resumes: bool) -> Result<(), OutputError> {
    refuse_strangers(paths, &Journal::peek(&paths.journal).files)?;
    if resumes && paths.blocks().exists() { remove(&paths.staging) } else { clear_all(paths) }
}

/// Removes all that is beside an output, the journal last.
fn clear_all(paths: &Paths) -> Result<(), OutputError> {
    let blocks = paths.blocks();
    remove_results(&blocks).map_err(OutputError::io("remove", &blocks))?;
    paths.clear_away()
}

fn open(paths: &Paths) -> Result<(Journal, Found), OutputError> {
    Journal::open(&paths.journal).map_err(|cause| match cause.kind() {
        io::ErrorKind::WouldBlock => {
            let process = Journal::peek(&paths.journal).process;
            OutputError::Busy { path: paths.target.clone(), process }
        }
        _ => OutputError::Io { action: "open", path: paths.journal.clone(), cause },
    })
}

/// Returns whether there is anything a run could resume from.
fn has_work(paths: &Paths, found: &Found) -> bool {
    has_output(paths, found) || paths.blocks().exists() || paths.statistics().exists()
}

/// Returns whether the output holds results of a plan, complete or not.
fn has_output(paths: &Paths, found: &Found) -> bool {
    !found.entries.is_empty() && paths.staging.exists()
        || found.whole && (paths.staging.exists() || paths.target.exists())
}

fn refuse_other_options(paths: &Paths, found: &Found, options: &Options) -> Result<(), OutputError> {
    if !has_work(paths, found) {
        return Ok(());
    }
    match differing(&found.given, options) {
        none if none.is_empty() => Ok(()),
        differing => Err(OutputError::OtherOptions { path: paths.target.clone(), differing }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostic::Diagnostic;

    fn options(samples: &str) -> Options {
        [("‹num-samples›".to_owned(), samples.to_owned())].into()
    }

    #[test]
    fn unfinished_work_with_other_options_is_kept_until_discarded() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("new/out");
        drop(Claim::take(&target, &options("64")).unwrap());
        assert_eq!(fs::read_dir(dir.path().join("new")).unwrap().count(), 0, "nothing was done");
        let claim = Claim::take(&target, &options("64")).unwrap();
        let busy = Claim::check(&target, &options("64")).unwrap_err().to_string();
        assert!(busy.contains(&format!("process {}", std::process::id())), "{busy}");
        fs::create_dir(dir.path().join("new/out.partial.blocks")).unwrap();
        drop(claim);
        Claim::check(&target, &options("64")).unwrap();
        Claim::check(&target, &Options::new()).unwrap();
        for refused in [Claim::check(&target, &options("63")), Claim::take(&target, &options("63")).map(drop)] {
            let told = refused.unwrap_err().to_string();
            assert!(told.contains("‹num-samples› 64, now ‹num-samples› 63"), "{told}");
        }
        Claim::discard(&target, false).unwrap();
        assert_eq!(fs::read_dir(dir.path().join("new")).unwrap().count(), 0);
        Claim::check(&target, &options("63")).unwrap();
    }

    #[test]
    fn foreign_files_at_work_paths_are_refused() {
        for (name, is_dir) in [
            ("out.partial", true),
            ("out.partial.blocks", true),
            ("out.partial.statistics", false),
            ("out.partial.journal", false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let (target, stranger) = (dir.path().join("out"), dir.path().join(name));
            if is_dir { fs::create_dir(&stranger) } else { fs::write(&stranger, "mine") }.unwrap();
            let refused = Claim::take(&target, &options("1")).unwrap_err();
            assert!(matches!(&refused, OutputError::Unrecorded(paths) if *paths == [stranger.clone()]), "{refused}");
            let _ = Claim::discard(&target, true);
            assert!(stranger.exists(), "{name}");
        }
    }

    #[test]
    fn all_files_without_a_readable_journal_are_named_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out");
        let made = ["out.partial", "out.partial.blocks"].map(|name| dir.path().join(name));
        made.iter().for_each(|path| fs::create_dir(path).unwrap());
        let journal = dir.path().join("out.partial.journal");
        for contents in ["", "damaged"] {
            fs::write(&journal, contents).unwrap();
            let refused = Claim::take(&target, &options("1")).unwrap_err();
            assert!(matches!(&refused, OutputError::Unrecorded(paths) if paths.len() == 3), "{refused}");
            let remedy = refused.remedies()[0].to_string();
            assert!(made.iter().chain([&journal]).all(|path| remedy.contains(&*path.to_string_lossy())), "{remedy}");
        }
    }

    /// An output of two files, the second of which replaces one, and a name that is vacated.
    fn two_files(dir: &Path) -> (Claim, Vec<Placing>) {
        let target = dir.join("out.onnx");
        let claim = Claim::take(&target, &options("1")).unwrap();
        claim.begin("plan").unwrap();
        let staging = claim.paths().staging.clone();
        fs::create_dir(&staging).unwrap();
        fs::create_dir(claim.paths().blocks()).unwrap();
        fs::write(staging.join("out.onnx"), "new graph").unwrap();
        fs::write(staging.join("report"), "new report").unwrap();
        fs::write(dir.join("r.json"), "old report").unwrap();
        fs::write(dir.join("out.onnx.data"), "old data").unwrap();
        let files = vec![
            Placing { made: None, place: dir.join("out.onnx.data") },
            Placing::of(staging.join("out.onnx"), &target),
            Placing::of(staging.join("report"), &dir.join("r.json")),
        ];
        (claim, files)
    }

    fn texts(dir: &Path) -> Vec<(String, String)> {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
        let text = |path: std::path::PathBuf| {
            (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read_to_string(&path).unwrap())
        };
        let mut all: Vec<_> = entries.map(text).filter(|(name, _)| !name.ends_with("journal")).collect();
        all.sort();
        all
    }

    fn pair(name: &str, text: &str) -> (String, String) {
        (name.to_owned(), text.to_owned())
    }

    #[test]
    fn output_files_are_renamed_together() {
        let dir = tempfile::tempdir().unwrap();
        let (claim, files) = two_files(dir.path());
        claim.place(&files, Durability::Disk).unwrap();
        assert_eq!(texts(dir.path()), [pair("out.onnx", "new graph"), pair("r.json", "new report")]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left beside them");
    }

    #[test]
    fn interrupted_placement_is_undone() {
        let before = [pair("out.onnx.data", "old data"), pair("r.json", "old report")];
        for placed in 0..=3 {
            for discards in [false, true] {
                let dir = tempfile::tempdir().unwrap();
                let (claim, files) = two_files(dir.path());
                // As far as a run comes that is killed.
                let Held { paths, journal, .. } = claim.into_held();
                journal.record_placing(files.iter().map(Placing::planned).collect()).unwrap();
                place_all(&paths, &files[..placed]).unwrap();
                drop(journal);
                assert!(Claim::is_half_placed(&paths.target));
                assert!(Claim::take(&paths.target, &options("2")).is_err(), "other options");
                match discards {
                    true => Claim::discard(&paths.target, false).unwrap(),
                    false => drop(Claim::take(&paths.target, &options("1")).unwrap()),
                }
                assert_eq!(texts(dir.path()), before, "{placed} {discards}");
                assert_eq!(paths.blocks().exists(), !discards);
                assert!(!Claim::is_half_placed(&paths.target));
            }
        }
    }

    #[test]
    fn user_file_placed_after_a_killed_run_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (claim, files) = two_files(dir.path());
        let Held { paths, journal, .. } = claim.into_held();
        journal.record_placing(files.iter().map(Placing::planned).collect()).unwrap();
        place_all(&paths, &files).unwrap();
        drop(journal);
        fs::write(&paths.target, "a graph of the user's").unwrap();
        Claim::discard(&paths.target, false).unwrap();
        assert_eq!(fs::read(&paths.target).unwrap(), b"a graph of the user's");
        assert_eq!(fs::read(dir.path().join("r.json")).unwrap(), b"old report");
    }

    #[test]
    fn kept_results_of_another_plan_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out.onnx");
        let claim = Claim::take(&target, &options("1")).unwrap();
        claim.begin("plan").unwrap();
        fs::create_dir(claim.paths().blocks()).unwrap();
        claim.leave(true).unwrap();
        // A run that was killed before it kept anything leaves its plan in the journal, and no more.
        let fresh = dir.path().join("fresh.onnx");
        for _ in 0..2 {
            let claim = Claim::take(&fresh, &options("1")).unwrap();
            claim.begin("plan").unwrap();
            drop(claim.into_held());
        }
        assert_eq!(Journal::peek(&Paths::of(&fresh).unwrap().journal).plan.as_deref(), Some("plan"));
        Claim::take(&fresh, &options("1")).unwrap().leave(false).unwrap();
        let again = Claim::take(&target, &options("1")).unwrap();
        assert!(matches!(again.begin("other plan"), Err(OutputError::OtherRun { .. })));
        again.begin("plan").unwrap();
        again.leave(false).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn foreign_files_in_unfinished_work_are_never_removed() {
        for (folder, name) in
            [("out.partial", "mine.txt"), ("out.partial", "inner/mine"), ("out.partial.blocks", "mine")]
        {
            let dir = tempfile::tempdir().unwrap();
            let (target, folder) = (dir.path().join("out"), dir.path().join(folder));
            let claim = Claim::take(&target, &options("1")).unwrap();
            claim.held.journal.record_files(["model.safetensors".to_owned()].into()).unwrap();
            fs::create_dir_all(dir.path().join("out.partial")).unwrap();
            fs::create_dir_all(dir.path().join("out.partial.blocks")).unwrap();
            for own in
                ["out.partial/model.safetensors", "out.partial.blocks/state.json", "out.partial.blocks/streams.0"]
            {
                fs::write(dir.path().join(own), "own").unwrap();
            }
            let stranger = folder.join(name);
            fs::create_dir_all(stranger.parent().unwrap()).unwrap();
            fs::write(&stranger, "mine").unwrap();
            drop(claim);
            let refused = [
                Claim::check(&target, &options("1")),
                Claim::take(&target, &options("1")).map(drop),
                Claim::discard(&target, true),
            ];
            for refused in refused {
                let refused = refused.unwrap_err();
                assert!(matches!(&refused, OutputError::InTheWay(path) if *path == stranger), "{refused}");
            }
            assert!(stranger.exists() && dir.path().join("out.partial/model.safetensors").exists());
            fs::remove_file(&stranger).unwrap();
            let _ = fs::remove_dir(dir.path().join("out.partial/inner"));
            Claim::discard(&target, true).unwrap();
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn output_set_aside_is_restored() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out");
        let claim = Claim::take(&target, &options("1")).unwrap();
        fs::create_dir(dir.path().join("out.partial")).unwrap();
        fs::create_dir(dir.path().join("out.partial.replaced")).unwrap();
        fs::write(dir.path().join("out.partial.replaced/config.json"), "old").unwrap();
        drop(claim);
        Claim::discard(&target, true).unwrap();
        assert_eq!(fs::read(target.join("config.json")).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
