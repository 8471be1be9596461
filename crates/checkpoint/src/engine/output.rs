//! The output directory while it is made: a staging directory beside it, a journal beside that, and one rename at the
//! end. Nothing appears under the final name before it is whole.

use super::manifest;
use super::output_check::{check_source, check_target};
use super::part::{Gathering, Part, WorkerId, parts_of, remove_gathered};
use super::{CompletePlan, EngineError, Form, OutputPlan, Verify};
use crate::plan::CalibratedPlan;
use kvant_container::unfinished::{
    Claim, Entry, Held, Journal, Options, OutputError, Paths, Room, Written, check_beside, remove, remove_written,
};
use kvant_container::{Checkpoint, Durability, Look, Writer, positioned, python_json, recorded_name};
use kvant_formats::import::side_files;
use kvant_quant::finding::Finding;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use xxhash_rust::xxh3::xxh3_64;

/// The start of an output.
#[derive(Debug)]
pub enum Start {
    /// There is work to do.
    Working(Box<Output>),
    /// An earlier run of the same plan finished the work, and was killed before it could report it.
    Finished(Committed),
}

/// An output under its name that its journal still records: a rerun of the same plan finds it done. That is needed as
/// long as there is more to do than this output.
#[derive(Debug)]
pub struct Committed {
    paths: Paths,
    /// What verification warns of in it.
    warnings: Vec<Finding>,
    // Held so that no other run takes it up.
    _journal: Journal,
}

impl Committed {
    /// The output.
    pub fn path(&self) -> &Path {
        &self.paths.target
    }

    /// What verification warned of in the output before it got its name; nothing where it was not verified.
    pub fn warnings(&self) -> &[Finding] {
        &self.warnings
    }

    /// Verifies an output of an earlier run, if requested: what was found there is not recorded. A rejected one loses its name and
    /// becomes unfinished again.
    ///
    /// # Errors
    /// [`EngineError::VerificationFailed`]; system errors.
    pub fn verify(self, plan: &dyn CompletePlan, acceptance: Verify) -> Result<Committed, EngineError> {
        let mut warnings = Vec::new();
        let committed = self.keep_if(&plan.form(), |output| -> Result<(), EngineError> {
            warnings = acceptance.of(plan, output)?;
            Ok(())
        })?;
        Ok(Committed { warnings, ..committed })
    }

    /// Takes the output away, which was needed for something else, and its journal last.
    ///
    /// # Errors
    /// System errors.
    pub fn remove(self) -> Result<(), OutputError> {
        // Half of it under its name would be taken for the whole.
        let Paths { target, replaced, .. } = &self.paths;
        remove(replaced)?;
        fs::rename(target, replaced).map_err(OutputError::io("move", target))?;
        self.paths.clear_away()
    }

    /// Passes an output of an earlier run to `gate`. A rejected one loses its name and becomes unfinished again.
    ///
    /// # Errors
    /// Those of the gate; the system's.
    pub fn keep_if<E: From<OutputError>>(
        self,
        form: &Form,
        gate: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<Committed, E> {
        let Err(rejected) = gate(&self.paths.target) else { return Ok(self) };
        let Paths { target, staging, .. } = &self.paths;
        if let Form::File(_) = form {
            fs::create_dir_all(staging).map_err(OutputError::io("create", staging))?;
        }
        fs::rename(target, made(&self.paths, form)).map_err(OutputError::io("move", target))?;
        Err(rejected)
    }

    /// Ends it: a rerun finds an output that is in its way.
    ///
    /// # Errors
    /// System errors.
    pub fn commit(self) -> Result<PathBuf, OutputError> {
        self.paths.clear_away()?;
        Ok(self.paths.target)
    }
}

/// An unfinished output. Dropped before [`finish`](Self::finish), it is kept for the next run to resume.
#[derive(Debug)]
pub struct Output {
    pub(super) paths: Paths,
    pub(super) journal: Journal,
    pub(super) writer: Writer,
    finished: Mutex<BTreeSet<usize>>,
    /// Those of them that an earlier run has done.
    adopted: BTreeSet<usize>,
    gathered: Vec<Gathered>,
    /// The parts of workers, of which the records stay until the output has its name.
    parts: Vec<PathBuf>,
    overwrite: bool,
}

/// What a run has taken over from a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gathered {
    /// The worker.
    pub worker: WorkerId,
    /// The units of work in its part.
    pub jobs: usize,
    /// Those of them whose bytes are damaged: they are to be done again.
    pub damaged: usize,
}

impl Output {
    /// Refuses what cannot become the output, without touching anything.
    ///
    /// # Errors
    /// [`OutputError::Exists`], [`OutputError::IsSource`], [`OutputError::InTheWay`], [`OutputError::NoRoom`].
    pub fn check(plan: &dyn OutputPlan, source: &Path, target: &Path, overwrite: bool) -> Result<(), OutputError> {
        Self::look(plan, source, target, overwrite, Look::Bytes)
    }

    fn look(
        plan: &dyn OutputPlan,
        source: &Path,
        target: &Path,
        overwrite: bool,
        look: Look,
    ) -> Result<(), OutputError> {
        let paths = Paths::of(target)?;
        check_source(&paths.target, source)?;
        if is_placed(plan, &paths) {
            return Ok(());
        }
        check_target(&paths.target, &plan.form(), overwrite, look)?;
        check_beside(&paths)?;
        let mut room = Room::default();
        room.output(&paths, plan.geometry().disk_size());
        room.check()
    }

    /// The same for several outputs of about the plan's size, before any of them is started. One written by an interrupted run is
    /// accepted here: [`begin`](Self::begin) checks whether it is the plan's.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn check_all(
        plan: &dyn OutputPlan,
        source: &Path,
        targets: &[PathBuf],
        overwrite: bool,
    ) -> Result<(), OutputError> {
        for target in targets {
            let paths = Paths::of(target)?;
            check_source(&paths.target, source)?;
            if !Self::is_uncommitted(target)? {
                check_target(&paths.target, &plan.form(), overwrite, Look::Bytes)?;
                check_beside(&paths)?;
            }
        }
        let all: Vec<(&dyn OutputPlan, &Path)> = targets.iter().map(|target| (plan, target.as_path())).collect();
        Self::check_room(&all, &[], &[])
    }

    /// Refuses outputs that a disk has no room for together, besides those that an earlier run has made; `activations` are bytes that
    /// lie beside outputs while these are made, `copied` bytes of files that go into outputs besides tensors.
    ///
    /// # Errors
    /// [`OutputError::NoRoom`], [`OutputError::NoName`].
    pub fn check_room(
        outputs: &[(&dyn OutputPlan, &Path)],
        activations: &[(&Path, u64)],
        copied: &[(&Path, u64)],
    ) -> Result<(), OutputError> {
        let mut room = Room::default();
        for (plan, target) in outputs {
            if !Self::is_uncommitted(target)? {
                let copied = copied.iter().filter(|(path, _)| path == target).map(|(_, bytes)| bytes).sum();
                room.output(&Paths::of(target)?, plan.geometry().disk_size().saturating_add(copied));
            }
        }
        for (target, bytes) in activations {
            if !Self::is_uncommitted(target)? {
                room.beside(&Paths::of(target)?, *bytes);
            }
        }
        room.check()
    }

    /// Whether an earlier run of this plan has written the output, and was interrupted before it could report it.
    ///
    /// # Errors
    /// [`OutputError::NoName`].
    pub fn is_made(plan: &dyn OutputPlan, target: &Path) -> Result<bool, OutputError> {
        Ok(is_placed(plan, &Paths::of(target)?))
    }

    /// The same for any plan.
    ///
    /// # Errors
    /// [`OutputError::NoName`].
    pub fn is_uncommitted(target: &Path) -> Result<bool, OutputError> {
        let paths = Paths::of(target)?;
        Ok(paths.target.exists() && Journal::peek(&paths.journal).whole)
    }

    /// Removes what an interrupted run has left of its outputs, finished ones included, unless `overwrite` lets the next run replace those.
    /// Refused before anything is removed: a finished directory that was changed, which may hold the user's files, and a finished file.
    ///
    /// # Errors
    /// [`OutputError::Changed`], [`OutputError::Exists`]; those of [`Claim::discard`].
    pub fn discard_all(targets: &[&Path], overwrite: bool) -> Result<(), OutputError> {
        let mut finished = Vec::new();
        for target in targets {
            finished.push(Self::is_uncommitted(target)?);
        }
        for (target, _) in targets.iter().zip(&finished).filter(|(_, finished)| **finished) {
            if target.is_dir() {
                manifest::refuse_changed(target)?;
            } else if !overwrite {
                return Err(OutputError::Exists(target.to_path_buf()));
            }
        }
        targets.iter().zip(finished).try_for_each(|(target, finished)| Claim::discard(target, finished && !overwrite))
    }

    /// Starts an output, or resumes an interrupted one: entries of its journal are trusted if the bytes
    /// in the files have the recorded hashes.
    ///
    /// # Errors
    /// As [`check`](Self::check) and [`Claim::take`], and whatever the system says; [`OutputError::OtherRun`].
    pub fn begin(plan: &dyn OutputPlan, source: &Path, target: &Path, overwrite: bool) -> Result<Start, EngineError> {
        Self::look(plan, source, target, overwrite, Look::Names)?;
        Self::begin_claimed(plan, source, Claim::take(target, &Options::new())?, overwrite)
    }

    /// The same of an output that the run has taken hold of already.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn begin_claimed(
        plan: &dyn OutputPlan,
        source: &Path,
        claim: Claim,
        overwrite: bool,
    ) -> Result<Start, EngineError> {
        // All bytes are looked at before the work, and when the output is replaced.
        Self::look(plan, source, claim.target(), overwrite, Look::Names)?;
        claim.refuse_other_plan(plan.fingerprint(), overwrite)?;
        let Held { paths, journal, found, given } = claim.into_held();
        let mut parts: Vec<Part> = parts_of(&paths.target)?.into_iter().filter(|part| part.is_of(plan)).collect();
        let part_paths: Vec<PathBuf> = parts.iter().map(|part| part.path().to_owned()).collect();
        if is_placed(plan, &paths) {
            if plan.form() == Form::Directory {
                manifest::refuse_changed(&paths.target)?;
            }
            remove_gathered(&part_paths)?;
            paths.clear_beside()?;
            return Ok(Start::Finished(Committed { paths, warnings: Vec::new(), _journal: journal }));
        }
        let failed = |cause| OutputError::Io { action: "write", path: paths.journal.clone(), cause };
        parts.iter().try_for_each(Part::refuse_strangers)?;
        let unfinished = Writer::reopen(&paths.staging, plan.geometry()).ok();
        let resumes = !found.entries.is_empty() && (unfinished.is_some() || !parts.is_empty());
        let mut entries = Vec::new();
        if resumes {
            journal.resume(&found).map_err(failed)?;
            entries = found.entries;
        } else {
            remove(&paths.staging)?;
            journal.begin(plan.fingerprint(), &given).map_err(failed)?;
            journal.record_files(names(&files_of_tensors(plan))).map_err(failed)?;
        }
        let writer = match unfinished.filter(|_| resumes) {
            _ if !parts.is_empty() => {
                let (paths, journal, geometry) = (&paths, &journal, plan.geometry());
                let known = entries.iter().map(|entry| entry.job).collect();
                let (writer, made) = Gathering { paths, journal, geometry, parts: &parts, known }.gather()?;
                entries.extend(made);
                writer
            }
            Some(writer) => writer,
            None => Writer::create(&paths.staging, plan.geometry())?,
        };
        let adopted = adopt(&writer, &entries)?;
        let mut gathered = Vec::new();
        for part in &mut parts {
            let jobs = part.jobs();
            let damaged = jobs.difference(&adopted).count();
            gathered.push(Gathered { worker: part.worker, jobs: jobs.len(), damaged });
            part.empty(writer.geometry())?;
        }
        let finished = Mutex::new(adopted.clone());
        let parts = part_paths;
        Ok(Start::Working(Box::new(Output { paths, journal, writer, finished, adopted, gathered, parts, overwrite })))
    }

    /// What was taken over from workers when it was started.
    pub fn gathered(&self) -> &[Gathered] {
        &self.gathered
    }

    /// Returns whether the job is done, in this run or an earlier one.
    pub fn is_finished(&self, job: usize) -> bool {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner).contains(&job)
    }

    /// Returns whether an earlier run has done the job.
    pub fn is_adopted(&self, job: usize) -> bool {
        self.adopted.contains(&job)
    }

    /// Records a finished job, once its bytes are in the files.
    ///
    /// # Errors
    /// System errors.
    pub fn record(&self, entry: &Entry) -> Result<(), EngineError> {
        self.writer.settle()?;
        self.journal.record(entry).map_err(OutputError::io("write", &self.paths.journal))?;
        self.finished.lock().unwrap_or_else(PoisonError::into_inner).insert(entry.job);
        Ok(())
    }

    /// The writer of the tensors.
    pub fn writer(&self) -> &Writer {
        &self.writer
    }

    /// Gives up: removes the unfinished work, which no later run could use, and nothing else.
    ///
    /// # Errors
    /// System errors.
    pub fn discard(self) -> Result<(), OutputError> {
        let Output { paths, writer, .. } = self;
        drop(writer);
        remove_written(&paths.staging, &Journal::peek(&paths.journal).files)?;
        [&paths.replaced, &paths.report, &paths.journal].into_iter().try_for_each(|path| remove(path))
    }

    /// Adds the files beside the tensors and gives the output its name.
    ///
    /// # Errors
    /// The system's; a tensor that was not delivered.
    pub fn finish(
        self,
        plan: &dyn CompletePlan,
        checkpoint: &Checkpoint,
        durability: Durability,
    ) -> Result<PathBuf, EngineError> {
        Ok(self.place(plan, checkpoint, durability, Verify::Skip)?.commit()?)
    }

    /// The same, without the final commit, and verified before if requested. An output that does not pass is kept for
    /// inspection, and a rerun reaches the same point at once.
    ///
    /// # Errors
    /// As [`finish`](Self::finish), and [`EngineError::VerificationFailed`].
    pub fn place(
        self,
        plan: &dyn CompletePlan,
        checkpoint: &Checkpoint,
        durability: Durability,
        acceptance: Verify,
    ) -> Result<Committed, EngineError> {
        self.place_if(plan, checkpoint, durability, acceptance, |_| Ok(()))
    }

    /// The same if `gate` accepts the output at the path it receives.
    ///
    /// # Errors
    /// As [`place`](Self::place), and those of the gate.
    pub fn place_if<E: From<EngineError>>(
        self,
        plan: &dyn CompletePlan,
        checkpoint: &Checkpoint,
        durability: Durability,
        acceptance: Verify,
        gate: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<Committed, E> {
        let made = made(&self.paths, &plan.form());
        let complete = self.complete(plan, checkpoint, durability, acceptance)?;
        gate(&made)?;
        Ok(complete.give_name(plan, durability)?)
    }

    /// Writes the files beside the tensors, and verifies the output if requested.
    fn complete(
        self,
        plan: &dyn CompletePlan,
        checkpoint: &Checkpoint,
        durability: Durability,
        acceptance: Verify,
    ) -> Result<Complete, EngineError> {
        let Output { paths, journal, writer, parts, overwrite, .. } = self;
        let beside = plan.files_beside(checkpoint, &paths.journal)?;
        journal.record_files(names(&beside)).map_err(OutputError::io("write", &paths.journal))?;
        plan.write_files(checkpoint, &beside, &paths.staging)?;
        writer.finish(durability)?;
        manifest::refuse_others(&paths.staging, beside.into_iter().chain(files_of_tensors(plan)))?;
        let warnings = acceptance.of(plan, &made(&paths, &plan.form()))?;
        Ok(Complete { paths, warnings, journal, parts, overwrite })
    }
}

/// An output that lacks nothing but its name.
struct Complete {
    paths: Paths,
    warnings: Vec<Finding>,
    journal: Journal,
    parts: Vec<PathBuf>,
    overwrite: bool,
}

impl Complete {
    fn give_name(self, plan: &dyn OutputPlan, durability: Durability) -> Result<Committed, EngineError> {
        let Complete { paths, warnings, journal, parts, overwrite } = self;
        give_name(&paths, &journal, &plan.form(), overwrite, durability)?;
        remove_gathered(&parts)?;
        Ok(Committed { paths, warnings, _journal: journal })
    }
}

/// Gives a complete output its name: nothing but its journal is left beside it then.
pub(super) fn give_name(
    paths: &Paths,
    journal: &Journal,
    form: &Form,
    overwrite: bool,
    durability: Durability,
) -> Result<(), OutputError> {
    if *form == Form::Directory {
        manifest::write(&paths.staging, durability)?;
    }
    journal.record_whole().map_err(OutputError::io("write", &paths.journal))?;
    put_in_place(paths, form, overwrite)?;
    paths.clear_beside()?;
    if let (Durability::Disk, Some(parent)) = (durability, paths.target.parent()) {
        positioned::sync_dir(parent).map_err(OutputError::io("sync", parent))?;
    }
    Ok(())
}

/// Returns whether an earlier run of the plan did everything but clear away its journal.
fn is_placed(plan: &dyn OutputPlan, paths: &Paths) -> bool {
    is_placed_as(&plan.form(), plan.fingerprint(), paths)
}

/// The same of the plan with this fingerprint.
pub(super) fn is_placed_as(form: &Form, plan: &str, paths: &Paths) -> bool {
    let placed = match form {
        Form::Directory => paths.target.is_dir() && !paths.staging.exists(),
        // The directory that it was made in is left empty where the end came before it was removed.
        Form::File(name) => paths.target.is_file() && !paths.staging.join(name).exists(),
    };
    placed && Journal::peek(&paths.journal).is_whole(plan)
}

/// The files that tensors are written to, and their index.
pub(super) fn files_of_tensors(plan: &dyn OutputPlan) -> Vec<PathBuf> {
    let geometry = plan.geometry();
    let index = geometry.index.iter().map(|(name, _)| PathBuf::from(name));
    geometry.files.iter().map(|file| PathBuf::from(&file.name)).chain(index).collect()
}

fn names(files: &[PathBuf]) -> BTreeSet<String> {
    files.iter().map(|file| recorded_name(file)).collect()
}

/// Accepts the jobs of an earlier run whose bytes match its records. A repeated job is recorded twice.
fn adopt(writer: &Writer, entries: &[Entry]) -> Result<BTreeSet<usize>, EngineError> {
    let mut adopted = BTreeSet::new();
    for entry in entries {
        if !adopted.contains(&entry.job) && is_sound(writer, entry) {
            entry.pieces.iter().try_for_each(|piece| writer.mark_delivered(piece.tensor, piece.length))?;
            adopted.insert(entry.job);
        }
    }
    Ok(adopted)
}

fn is_sound(writer: &Writer, entry: &Entry) -> bool {
    entry.pieces.iter().all(|piece| piece_is_sound(writer, piece))
}

fn piece_is_sound(writer: &Writer, piece: &Written) -> bool {
    let place = writer.geometry().places.get(piece.tensor);
    // The length is read from a file: it must fit the tensor before memory is taken for it.
    let fits = place.is_some_and(|place| piece.offset.checked_add(piece.length).is_some_and(|end| end <= place.len));
    let mut bytes = vec![0; if fits { piece.length as usize } else { 0 }];
    fits && writer.read_at(piece.tensor, piece.offset, &mut bytes).is_ok() && xxh3_64(&bytes) == piece.hash
}

/// The names of config.json, the record of the calibration, and the files that are carried along.
pub(super) fn files_beside(
    plan: &CalibratedPlan,
    checkpoint: &Checkpoint,
    journal: &Path,
) -> Result<Vec<PathBuf>, EngineError> {
    // If the output is inside the source, its journal is not a file of the model.
    let own = |name: &Path| journal.file_name() == name.file_name();
    // Files that describe the source's quantization, which no longer applies.
    let stale = |name: &Path| side_files().any(|(file, ..)| name == Path::new(file));
    let mut files: Vec<PathBuf> =
        checkpoint.extra_files()?.into_iter().filter(|name| !own(name) && !stale(name)).collect();
    files.extend(checkpoint.made_files().filter(|(name, _)| *name != CONFIG).map(|(name, _)| name.into()));
    files.extend(plan.written_config().map(|_| CONFIG.into()));
    files.extend(plan.record().map(|_| RECORD.into()));
    Ok(files)
}

const CONFIG: &str = "config.json";
const RECORD: &str = "calibration.json";

/// Writes these files.
pub(super) fn write_files(
    plan: &CalibratedPlan,
    checkpoint: &Checkpoint,
    files: &[PathBuf],
    staging: &Path,
) -> Result<(), EngineError> {
    let source = checkpoint.directory().unwrap_or_else(|| checkpoint.path());
    for name in files {
        let path = staging.join(name);
        let own = match name.to_str() {
            Some(CONFIG) => plan.written_config(),
            Some(RECORD) => plan.record().cloned(),
            _ => None,
        };
        let made = checkpoint.made_files().find(|(made, _)| name == Path::new(made));
        match (own, made) {
            (Some(value), _) => {
                let text = python_json::to_text(&value).map_err(io::Error::from);
                let written = text.and_then(|text| fs::write(&path, text + "\n"));
                written.map_err(OutputError::io("write", &path))?;
            }
            (None, Some((_, bytes))) => fs::write(&path, bytes).map_err(OutputError::io("write", &path))?,
            (None, None) => {
                let from = source.join(name);
                copy_anew(&from, &path).map_err(OutputError::io("copy", &from))?;
            }
        }
    }
    Ok(())
}

/// Copies what a file holds and not its permissions, which may be those of a download or of a read-only disk. Folders are made where
/// there are none.
pub(super) fn copy_anew(from: &Path, to: &Path) -> io::Result<()> {
    to.parent().map_or(Ok(()), fs::create_dir_all)?;
    io::copy(&mut fs::File::open(from)?, &mut fs::File::create(to)?).map(drop)
}

/// The pending renames.
fn made(paths: &Paths, form: &Form) -> PathBuf {
    match form {
        Form::Directory => paths.staging.clone(),
        Form::File(name) => paths.staging.join(name),
    }
}

/// Renames the output to its final name: the staging directory, or the single file in it. An existing output is set aside first, and
/// removed afterwards.
fn put_in_place(paths: &Paths, form: &Form, overwrite: bool) -> Result<(), OutputError> {
    let made = made(paths, form);
    check_target(&paths.target, form, overwrite, Look::Bytes)?;
    if paths.target.symlink_metadata().is_ok() {
        remove(&paths.replaced)?;
        fs::rename(&paths.target, &paths.replaced).map_err(OutputError::io("set aside", &paths.target))?;
    }
    let placed = fs::rename(&made, &paths.target);
    if placed.is_err() && paths.target.symlink_metadata().is_err() {
        // The previous output is restored.
        let _ = fs::rename(&paths.replaced, &paths.target);
    }
    placed.map_err(OutputError::io("rename", &made))
}
