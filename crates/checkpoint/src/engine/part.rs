//! What a worker makes of an output: a directory under a hidden name beside it, with whole files of the output, pieces of others, and the
//! record of the units of work in them. A later run of the same plan adopts complete parts as its own unfinished work: every byte is
//! checked against its hash, and what is missing or damaged is made again.

use super::folder::part_names;
use super::manifest;
use super::output::{Output, files_of_tensors, give_name};
use super::output_check::{check_source, check_target};
use super::{COPY_BYTES, EngineError, Form, OutputPlan, Share};
use kvant_container::positioned::read_exact_at;
use kvant_container::unfinished::{Claim, Entry, Journal, OutputError, Paths, check_beside, part_beside, remove};
use kvant_container::{
    Durability, Geometry, Look, Manifest, TEMPORARY, Writer, files_beside_manifest, of_record, recorded, write_file,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// One of several workers, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkerId {
    /// Its number.
    pub index: usize,
    /// The number of workers.
    pub count: usize,
}

impl std::fmt::Display for WorkerId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

/// Begins the name of a worker's part.
const WORKER: &str = "worker-";

impl WorkerId {
    /// The path of its part of an output.
    pub fn part_of(self, target: &Path) -> PathBuf {
        part_beside(target, &format!("{WORKER}{}-of-{}", self.index, self.count))
    }

    fn of_name(name: &str) -> Option<WorkerId> {
        let (index, count) = name.strip_prefix(WORKER)?.split_once("-of-")?;
        let worker = WorkerId { index: index.parse().ok()?, count: count.parse().ok()? };
        (worker.index < worker.count).then_some(worker)
    }
}

/// The command that a worker was started with: whoever completes the output repeats it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartCommand {
    /// Its arguments, without those that make it a worker. Names need not be UTF-8: see [`recorded`].
    pub arguments: Vec<String>,
    /// The directory that relative paths among them start from.
    pub directory: String,
}

impl PartCommand {
    /// The command with these arguments in the current directory.
    pub fn here(arguments: Vec<String>) -> PartCommand {
        let directory = std::env::current_dir().unwrap_or_default();
        PartCommand { arguments, directory: recorded(&directory) }
    }

    /// The directory.
    pub fn directory(&self) -> PathBuf {
        of_record(&self.directory)
    }
}

/// The file in a part that describes it.
const RECORD: &str = "part.json";

/// The version of the record's meaning.
const VERSION: u32 = 1;

/// The longest record that is read. It has about a kilobyte for each megabyte of the output.
const MAX_RECORD_LEN: u64 = 1 << 32;

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    kvant_part: u32,
    plan: String,
    tensors: BTreeSet<usize>,
    entries: Vec<Entry>,
    command: PartCommand,
    /// Whether its files are in the unfinished output: the record stays until that has its name, so that whoever completes it next finds
    /// that nothing is missing.
    #[serde(default)]
    gathered: bool,
}

/// A plan cut down to the share of a worker.
#[derive(Debug)]
pub struct PartPlan {
    /// The fingerprint of the whole plan.
    plan: String,
    fingerprint: String,
    geometry: Geometry,
    tensors: BTreeSet<usize>,
    command: PartCommand,
}

impl PartPlan {
    /// The part of a worker with this share.
    pub fn new(plan: &dyn OutputPlan, worker: WorkerId, share: &Share, command: PartCommand) -> PartPlan {
        PartPlan {
            plan: plan.fingerprint().to_owned(),
            fingerprint: format!("{} {worker}", plan.fingerprint()),
            geometry: plan.geometry().part(&share.tensors),
            tensors: share.tensors.clone(),
            command,
        }
    }
}

impl OutputPlan for PartPlan {
    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn geometry(&self) -> Geometry {
        self.geometry.clone()
    }
}

/// The complete part of a worker.
#[derive(Debug)]
pub struct Part {
    /// The worker.
    pub worker: WorkerId,
    path: PathBuf,
    record: Record,
}

impl Part {
    /// The part at a path; `None` where there is none, or none that can be read.
    fn read(path: PathBuf, worker: WorkerId) -> Option<Part> {
        let file = path.join(RECORD);
        let is_plausible = file.metadata().is_ok_and(|found| found.is_file() && found.len() <= MAX_RECORD_LEN);
        let record: Record = serde_json::from_slice(&fs::read(file).ok().filter(|_| is_plausible)?).ok()?;
        (record.kvant_part == VERSION).then_some(Part { worker, path, record })
    }

    /// Returns whether it is of this plan.
    pub fn is_of(&self, plan: &dyn OutputPlan) -> bool {
        self.record.plan == plan.fingerprint()
    }

    /// The fingerprint of the plan that it is of.
    pub fn plan(&self) -> &str {
        &self.record.plan
    }

    /// The command that its worker was started with.
    pub fn command(&self) -> &PartCommand {
        &self.record.command
    }

    /// The units of work in it.
    pub fn jobs(&self) -> BTreeSet<usize> {
        self.record.entries.iter().map(|entry| entry.job).collect()
    }
}

/// The complete parts of an output, of whatever plan, in the order of the workers.
///
/// # Errors
/// System errors.
pub fn parts_of(target: &Path) -> Result<Vec<Part>, OutputError> {
    let parts = part_paths(target)?.into_iter();
    Ok(parts.filter_map(|(worker, path)| Part::read(path, worker)).collect())
}

fn part_paths(target: &Path) -> Result<BTreeMap<WorkerId, PathBuf>, OutputError> {
    let workers = part_names(target)?.into_iter().filter_map(|name| WorkerId::of_name(&name));
    Ok(workers.map(|worker| (worker, worker.part_of(target))).collect())
}

/// Removes the parts of all workers of an output, complete or not.
///
/// # Errors
/// [`OutputError::Busy`], [`OutputError::InTheWay`], the system's.
pub fn discard_parts(target: &Path) -> Result<(), OutputError> {
    part_paths(target)?.into_keys().try_for_each(|worker| discard_part(target, worker))
}

/// The same of one worker.
///
/// # Errors
/// As [`discard_parts`].
pub fn discard_part(target: &Path, worker: WorkerId) -> Result<(), OutputError> {
    let path = worker.part_of(target);
    Claim::discard(&path, false)?;
    remove_part(&path)
}

/// Removes a part that Kvant wrote, damaged or not; nothing if there is none.
fn remove_part(path: &Path) -> Result<(), OutputError> {
    if path.symlink_metadata().is_err() {
        return Ok(());
    }
    refuse_strangers(path)?;
    remove(path)
}

/// Refuses a part with files that Kvant did not write.
fn refuse_strangers(path: &Path) -> Result<(), OutputError> {
    if !path.is_dir() {
        return Err(OutputError::InTheWay(path.to_owned()));
    }
    let names = files_beside_manifest(path).map_err(OutputError::io("read", path))?;
    let manifest = Manifest::read(path).map(|manifest| manifest.files).unwrap_or_default();
    // A process that was killed may have left a temporary file of Kvant's.
    let is_strange = |name: &&String| !manifest.contains_key(*name) && !name.starts_with(TEMPORARY);
    match names.iter().find(is_strange) {
        Some(stranger) => Err(OutputError::InTheWay(path.join(of_record(stranger)))),
        None => Ok(()),
    }
}

/// What a worker finds where its part is to be.
#[derive(Debug, PartialEq, Eq)]
pub enum PartStart {
    /// There is work to do.
    Open,
    /// An earlier run has made it.
    Complete,
}

impl PartPlan {
    /// Looks for a complete part of this plan. A damaged one is removed. Nothing else is changed.
    ///
    /// # Errors
    /// [`OutputError::OtherRun`] for a part of another plan; system errors.
    pub fn start(&self, target: &Path, worker: WorkerId) -> Result<PartStart, OutputError> {
        let path = worker.part_of(target);
        if path.symlink_metadata().is_err() {
            return Ok(PartStart::Open);
        }
        match Part::read(path.clone(), worker) {
            Some(part) if part.record.plan != self.plan => Err(OutputError::OtherRun { path, changed: Vec::new() }),
            Some(part) if part.record.gathered || manifest::refuse_changed(&path).is_ok() => Ok(PartStart::Complete),
            _ => remove_part(&path).map(|()| PartStart::Open),
        }
    }
}

impl Output {
    /// Refuses what cannot become the output of workers, without touching anything. Each worker asks for room for its part alone.
    ///
    /// # Errors
    /// [`OutputError::Exists`], [`OutputError::IsSource`], [`OutputError::InTheWay`].
    pub fn check_for_workers(source: &Path, target: &Path, overwrite: bool) -> Result<(), OutputError> {
        let paths = Paths::of(target)?;
        check_source(&paths.target, source)?;
        check_target(&paths.target, &Form::Directory, overwrite, Look::Names)?;
        check_beside(&paths)
    }

    /// Gives the output of a [`PartPlan`] its name, with the record of its units of work.
    ///
    /// # Errors
    /// The system's; a tensor that was not delivered.
    pub fn place_part(self, plan: &PartPlan, durability: Durability) -> Result<PathBuf, EngineError> {
        let Output { paths, journal, writer, .. } = self;
        let written = [PathBuf::from(RECORD)].into_iter().chain(files_of_tensors(plan));
        journal.record_files([RECORD.to_owned()].into()).map_err(OutputError::io("write", &paths.journal))?;
        writer.finish(durability)?;
        let record = Record {
            kvant_part: VERSION,
            plan: plan.plan.clone(),
            tensors: plan.tensors.clone(),
            entries: Journal::peek(&paths.journal).entries,
            command: plan.command.clone(),
            gathered: false,
        };
        let path = paths.staging.join(RECORD);
        let text = serde_json::to_vec(&record).map_err(io::Error::from);
        let placed = text.and_then(|text| fs::write(&path, text)).and_then(|()| match durability {
            Durability::Process => Ok(()),
            Durability::Disk => File::open(&path)?.sync_all(),
        });
        placed.map_err(OutputError::io("write", &path))?;
        manifest::refuse_others(&paths.staging, written)?;
        give_name(&paths, &journal, &Form::Directory, false, durability)?;
        paths.clear_away()?;
        Ok(paths.target)
    }
}

/// The parts of a plan that a run takes up.
pub(super) struct Gathering<'a> {
    pub paths: &'a Paths,
    pub journal: &'a Journal,
    pub geometry: Geometry,
    pub parts: &'a [Part],
    /// The units of work that the journal has already.
    pub known: BTreeSet<usize>,
}

impl Gathering<'_> {
    /// Makes the contents of parts unfinished work of the output, which has a journal and a staging directory. A run that is killed
    /// meanwhile does so again. Returns the writer, and the units of work in the parts.
    pub fn gather(self) -> Result<(Writer, Vec<Entry>), EngineError> {
        let Gathering { paths, journal, geometry, parts, known } = self;
        let failed = |cause| OutputError::Io { action: "write", path: paths.journal.clone(), cause };
        // First of all: work without a record would be thrown away by the next run.
        let entries = parts.iter().flat_map(|part| &part.record.entries);
        for entry in entries.filter(|entry| !known.contains(&entry.job)) {
            journal.record(entry).map_err(failed)?;
        }
        fs::create_dir_all(&paths.staging).map_err(OutputError::io("create", &paths.staging))?;
        let contents: Vec<Geometry> = parts.iter().map(|part| geometry.part(&part.record.tensors)).collect();
        for (part, content) in parts.iter().zip(&contents) {
            for file in content.files.iter().filter(|file| !file.is_piece()) {
                let (from, to) = (part.path.join(&file.name), paths.staging.join(&file.name));
                let is_as_planned =
                    from.symlink_metadata().is_ok_and(|found| found.is_file() && found.len() == file.len);
                if is_as_planned {
                    fs::rename(&from, &to).map_err(OutputError::io("move", &from))?;
                }
            }
        }
        let writer = Writer::complete(&paths.staging, geometry)?;
        parts.iter().zip(&contents).try_for_each(|(part, content)| part.copy_pieces(content, &writer))?;
        Ok((writer, parts.iter().flat_map(|part| part.record.entries.iter().cloned()).collect()))
    }
}

impl Part {
    /// Copies the tensors of files that several workers have written. What is missing is found by its hash later.
    fn copy_pieces(&self, content: &Geometry, writer: &Writer) -> Result<(), EngineError> {
        let mut buffer = vec![0; COPY_BYTES];
        for (shard, file) in content.files.iter().enumerate().filter(|(_, file)| file.is_piece()) {
            let Ok(piece) = File::open(self.path.join(&file.name)) else { continue };
            for (tensor, place) in content.places.iter().enumerate().filter(|(_, p)| p.shard == shard && p.len > 0) {
                let mut at = 0;
                while at < place.len {
                    let length = COPY_BYTES.min((place.len - at) as usize);
                    if read_exact_at(&piece, &mut buffer[..length], place.offset + at).is_err() {
                        break;
                    }
                    writer.restore_at(tensor, at, &buffer[..length])?;
                    at += length as u64;
                }
            }
        }
        writer.settle()?;
        Ok(())
    }

    /// Refuses a part with files that Kvant did not write, before anything of it moves.
    pub(super) fn refuse_strangers(&self) -> Result<(), OutputError> {
        refuse_strangers(&self.path)
    }

    /// Leaves nothing of it but its record, once its contents are in the unfinished output.
    pub(super) fn empty(&mut self, geometry: &Geometry) -> Result<(), OutputError> {
        self.record.gathered = true;
        let path = self.path.join(RECORD);
        let text = serde_json::to_vec(&self.record).map_err(io::Error::from);
        text.and_then(|text| write_file(&path, &text)).map_err(OutputError::io("write", &path))?;
        geometry.part(&self.record.tensors).files.iter().try_for_each(|file| remove(&self.path.join(&file.name)))
    }

    /// Its directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Removes the records of the parts of an output that has its name.
pub(super) fn remove_gathered(parts: &[PathBuf]) -> Result<(), OutputError> {
    parts.iter().try_for_each(|path| remove_part(path))
}
