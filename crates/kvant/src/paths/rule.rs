//! The rule for every path that a run writes, applied before the work: the path is not, does not contain and is not inside anything
//! that the run reads or another of its outputs; existing files are replaced only with `--overwrite`; and the place is writable. The
//! engine, which knows the manifest, decides what may be replaced in an existing directory.

use super::name::refuse_slash;
use super::page_file::{is_page, page_format};
use crate::error::{Error, ErrorKind};
use crate::job::{Data, Job, SourceKind};
use crate::remote;
use crate::text::shown;
use kvant_checkpoint::engine::paths_beside;
use kvant_checkpoint::gguf::imatrix;
use kvant_container::Remedy;
use kvant_container::gguf::parts_named;
use kvant_container::onnx::{external_data_path, external_files};
use kvant_container::positioned::file_id;
use kvant_container::unfinished::{OutputError, checkpoint_beside, is_report};
use kvant_container::{CheckpointError, behind_links, directory_of, io_hint, model_directory};
use kvant_onnx::data::SampleSource;
use kvant_onnx::ranges::RangesFormat;
use kvant_quant::recipe::RecipeFile;
use std::fs::{self, OpenOptions};
use std::io::{self, BufReader, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::{PoisonError, RwLock};

/// Checks the paths of a job. If it `writes`, whether its outputs can be written is tried; a plan leaves no trace and tries it with a
/// file without a name.
///
/// # Errors
/// The first path that breaks the rule.
pub fn check_job(job: &Job, writes: bool) -> Result<(), Error> {
    let evaluated = job.limits.quality.eval.as_deref();
    let mut paths = Paths::new(job.sinks.commit.overwrite, writes);
    paths.reads_job(job);
    paths.reads("the evaluation text", evaluated);
    paths.writes_model(job.sinks.output.as_deref());
    paths.writes_file("‹report›", job.sinks.report.as_deref(), FileKind::Report);
    paths.writes_page("‹report›", job.sinks.page.as_deref())?;
    paths.writes_file("‹save-ranges›", job.sinks.save_ranges.as_deref(), FileKind::Ranges);
    paths.writes_file("‹save-imatrix›", job.sinks.save_imatrix.as_deref(), FileKind::Importance);
    let evaluated_file = evaluated.and_then(|path| data_file(job.source.kind(), path));
    refuse_missing(named(job).chain(evaluated_file.map(|path| ("‹eval›", path))))?;
    // Those of a pipeline may be a file for each component.
    let statistics = job.recipe.statistics.as_ref().filter(|_| job.source.kind() != SourceKind::Pipeline);
    let statistics = statistics.map(|given| &given.path);
    let files = [
        ("‹imatrix›", job.recipe.imatrix.as_ref()),
        ("‹ranges›", job.recipe.graph.ranges.as_ref()),
        ("‹recipe›", job.recipe.file.as_ref()),
        ("‹statistics›", statistics),
    ];
    for (setting, file) in files {
        if let Some(file) = file.filter(|file| file.is_dir()) {
            let failure = Error::new(ErrorKind::Usage, format!("{setting} {} is a directory", shown(file)));
            return Err(failure.with_hint(Some(format!("name a file with {setting}"))));
        }
    }
    paths.check()
}

/// Refuses data, recipes and other files that were named and are not there.
///
/// # Errors
/// The first that is missing.
pub fn refuse_missing<'p>(files: impl IntoIterator<Item = (&'static str, &'p Path)>) -> Result<(), Error> {
    // Inaccessible paths count as existing: their reader reports the reason.
    let is_missing = |path: &Path| path.try_exists().is_ok_and(|exists| !exists);
    let missing = files.into_iter().find(|(_, path)| is_missing(path));
    let Some((option, path)) = missing else { return Ok(()) };
    if option == MODEL {
        if let Some(refusal) = remote::refusal(path) {
            return Err(refusal);
        }
        let path = path.to_owned();
        let missing = kvant_container::Error::Checkpoint { path, problem: CheckpointError::NotFound };
        return Err(Error { kind: ErrorKind::Usage, ..missing.into() });
    }
    let failure = Error::new(ErrorKind::Usage, format!("cannot read {}: there is no such file", shown(path)));
    let hint = match path.to_string_lossy().split(':').next() {
        Some("random") if is_made_up(path) => format!("made-up values are for ONNX graphs; {option} takes a file here"),
        _ if path.as_os_str() == Data::SELF => {
            "samples that the model writes itself are calibration data of checkpoints only".to_owned()
        }
        Some("random") => format!("{option} takes made-up values as random, random:normal or random:uniform"),
        _ => format!("check the path behind {option}"),
    };
    Err(failure.with_hint(Some(hint)))
}

/// The file of the data of a model of a kind. Graphs take made-up samples too, which have none.
pub fn data_file(kind: SourceKind, path: &Path) -> Option<&Path> {
    let has_file = if kind == SourceKind::Graph { !is_made_up(path) } else { !Data::is_self(path) };
    Some(path).filter(|_| has_file)
}

fn is_made_up(data: &Path) -> bool {
    matches!(data.to_str().and_then(|text| text.parse().ok()), Some(SampleSource::Random(_)))
}

/// The name of the model in place of a setting.
pub const MODEL: &str = "the model";

/// The files that a job reads, with the settings that name them.
pub fn named(job: &Job) -> impl Iterator<Item = (&'static str, &Path)> {
    let kind = job.source.kind();
    let setting = if kind == SourceKind::Graph { "‹data›" } else { "‹calib›" };
    let model = std::iter::once((MODEL, job.source.model.as_path()));
    let data = job.data.files.iter().filter_map(move |path| Some((setting, data_file(kind, path)?)));
    let recipes = job.recipe.file.iter().map(|path| ("‹recipe›", path.as_path()));
    let adapters = job.source.adapters.iter().map(|path| ("‹lora›", path.as_path()));
    let importance = job.recipe.imatrix.iter().map(|path| ("‹imatrix›", path.as_path()));
    let statistics = job.recipe.statistics.iter().map(|given| ("‹statistics›", given.path.as_path()));
    let ranges = job.recipe.graph.ranges.iter().map(|path| ("‹ranges›", path.as_path()));
    // The system looks for a bare name in its own folders.
    let library = job.limits.engine.library.iter().filter(|path| path.components().count() > 1);
    let library = library.map(|path| ("‹runtime-library›", path.as_path()));
    model.chain(data).chain(recipes).chain(adapters).chain(importance).chain(statistics).chain(ranges).chain(library)
}

fn is_graph(path: &Path) -> bool {
    SourceKind::of(path) == SourceKind::Graph
}

/// The path behind a link given as an output: the output is written to the link's target.
///
/// # Errors
/// A link that leads nowhere.
pub fn follow(output: Option<PathBuf>) -> Result<Option<PathBuf>, Error> {
    let follow = |path: PathBuf| {
        behind_links(&path).map_err(|cause| {
            let message = format!("{} is a link that leads nowhere: {cause}", shown(&path));
            Error::new(ErrorKind::Usage, message)
                .with_remedies(vec![Remedy::text("move it away"), Remedy::ChooseOutput])
        })
    };
    output.map(follow).transpose()
}

/// Refuses a file that is there and is not to be replaced.
///
/// # Errors
/// Names it.
pub fn refuse_existing(path: &Path, overwrite: bool) -> Result<(), Error> {
    let is_file = fs::metadata(path).is_ok_and(|found| found.is_file());
    if overwrite || !is_file {
        return Ok(());
    }
    let failure = Error::new(ErrorKind::Invalid, format!("{} exists already", shown(path)));
    Err(failure.with_remedies(vec![Remedy::text("name another file"), Remedy::Overwrite]))
}

/// Refuses to replace a file that is no ONNX graph by one. Empty files are nobody's.
///
/// # Errors
/// Names it.
pub fn refuse_other_file(graph: &Path) -> Result<(), Error> {
    let is_empty = fs::metadata(graph).is_ok_and(|found| found.len() == 0);
    if !graph.is_file() || is_empty || external_files(graph).is_ok() {
        return Ok(());
    }
    Err(OutputError::NotReplaceable { path: graph.to_owned(), reason: "it is not an ONNX graph".to_owned() }.into())
}

/// Refuses to replace external data that the replaced graph does not use, or that another graph beside it uses too: only those of
/// a replaced graph are removed with it.
///
/// # Errors
/// Names the file, and the graph.
pub fn refuse_stray_data(graph: &Path) -> Result<(), Error> {
    let data = external_data_path(graph);
    if data.symlink_metadata().is_err() {
        return Ok(());
    }
    let is_empty = fs::metadata(&data).is_ok_and(|found| found.is_file() && found.len() == 0);
    let uses =
        |graph: &Path| external_files(graph).is_ok_and(|files| files.iter().any(|file| real(file) == real(&data)));
    if is_empty {
        return Ok(());
    }
    if uses(graph) {
        let others = fs::read_dir(directory_of(graph)).into_iter().flatten().flatten().map(|entry| entry.path());
        let other = others.filter(|other| is_graph(other) && real(other) != real(graph)).find(|other| uses(other));
        let Some(other) = other else { return Ok(()) };
        let message = format!("{} cannot be replaced: {} uses it too", shown(&data), shown(&other));
        return Err(Error::new(ErrorKind::Invalid, message)
            .with_remedies(vec![Remedy::setting("output", "choose another name with ‹output›")]));
    }
    let message = format!("{} exists, and the graph next to it does not use it", shown(&data));
    Err(Error::new(ErrorKind::Invalid, message).with_remedies(vec![
        Remedy::text(format!("move {} away", shown(&data))),
        Remedy::setting("output", "choose another name with ‹output›"),
    ]))
}

/// The paths that a run reads and writes.
pub struct Paths {
    overwrite: bool,
    tries: bool,
    read: Vec<Place>,
    written: Vec<Written>,
}

/// Files that every run of the program reads, which none may write.
static PROTECTED: RwLock<Vec<Place>> = RwLock::new(Vec::new());

/// Keeps a file from being written by any later run of the program.
pub(crate) fn protect(what: &str, file: &Path) {
    PROTECTED.write().unwrap_or_else(PoisonError::into_inner).push(Place::of(what, file));
}

/// A path and its role in the run.
#[derive(Clone)]
struct Place {
    what: String,
    path: PathBuf,
}

impl Place {
    fn of(what: &str, path: &Path) -> Place {
        Place { what: format!("{what} {}", shown(path)), path: path.to_owned() }
    }
}

/// A path that is written.
struct Written {
    option: &'static str,
    path: PathBuf,
    /// Names beside it that are in use during the run, or belong to it.
    beside: Vec<PathBuf>,
    /// Its kind. `None` for the model: its parents are created, and the engine decides whether it can be replaced.
    kind: Option<FileKind>,
}

/// A file beside the model that a run writes. It replaces only files of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// JSON about each tensor of a graph.
    Report,
    /// A report for people.
    Page,
    /// GGUF with the importance of inputs.
    Importance,
    /// Ranges of tensors, in a format of another tool.
    Ranges,
    /// A recipe in TOML.
    Recipe,
    /// JSON with what a search has measured, to which later ones add.
    Sensitivities,
}

impl FileKind {
    /// Why a file must not be replaced, if it is of another kind. Empty files are nobody's.
    fn mismatch(self, path: &Path) -> Option<&'static str> {
        // Pipes and devices are written, not replaced.
        let is_nobodys = fs::metadata(path).is_ok_and(|found| !found.is_file() || found.len() == 0);
        if is_nobodys || !path.exists() {
            return None;
        }
        let (is_of_kind, mismatch) = match self {
            FileKind::Report => (is_report(path), "it is not a report of Kvant"),
            FileKind::Page => (is_page(path), "it is not a report of Kvant"),
            FileKind::Importance => (imatrix::is_imatrix(path), "it is not an importance matrix"),
            FileKind::Sensitivities => (holds_sensitivities(path), "it does not hold sensitivities"),
            FileKind::Ranges => (is_ranges_file(path), "it is no file of ranges"),
            FileKind::Recipe => (is_recipe(path), "it is not a recipe"),
        };
        (!is_of_kind).then_some(mismatch)
    }
}

/// Returns whether a file is the one in which searches keep what they measure.
fn holds_sensitivities(path: &Path) -> bool {
    #[derive(serde::Deserialize)]
    struct Kept {
        #[serde(rename = "sensitivities")]
        _sensitivities: serde_json::Map<String, serde_json::Value>,
    }
    let file = fs::File::open(path).map(BufReader::new);
    file.is_ok_and(|file| serde_json::from_reader::<_, Kept>(file).is_ok())
}

/// More bytes than the largest file of ranges has.
pub(crate) const MAX_RANGES_LEN: u64 = 1 << 28;

/// Returns whether a file is one of ranges in any of the formats.
fn is_ranges_file(path: &Path) -> bool {
    let mut bytes = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(MAX_RANGES_LEN).read_to_end(&mut bytes));
    read.is_ok() && RangesFormat::recognises(&bytes)
}

/// Returns whether a file is a recipe in TOML, as Kvant writes it, with at least one key.
fn is_recipe(path: &Path) -> bool {
    let text = fs::read_to_string(path).unwrap_or_default();
    let has_key = text.lines().any(|line| !line.trim_start().starts_with('#') && line.contains('='));
    has_key && RecipeFile::from_toml(&shown(path), &text).is_ok()
}

impl Paths {
    /// Only the protected files so far. Files are replaced if `overwrite`; if it `tries`, whether they can be written is tried.
    pub fn new(overwrite: bool, tries: bool) -> Paths {
        let read = PROTECTED.read().unwrap_or_else(PoisonError::into_inner).clone();
        Paths { overwrite, tries, read, written: Vec::new() }
    }

    pub fn reads(&mut self, what: &str, path: Option<&Path>) {
        self.read.extend(path.map(|path| Place::of(what, path)));
    }

    pub fn reads_model(&mut self, model: &Path) {
        self.reads("the source", Some(model));
        // A file with a config.json beside it is the model of its directory.
        let directory = model_directory(model);
        if SourceKind::of(model) == SourceKind::Checkpoint && model.is_file() && directory.join("config.json").exists()
        {
            self.reads("the directory of the source,", Some(directory));
        }
        let weights = if is_graph(model) { external_files(model).unwrap_or_default() } else { Default::default() };
        weights.iter().for_each(|file| self.reads("weights of the source,", Some(file)));
        let parts = if model.is_file() { parts_named(model) } else { Vec::new() };
        parts.iter().for_each(|part| self.reads("a part of the source,", Some(part)));
        // Files of a model may be links to anywhere, as in the cache of a hub.
        let entries = fs::read_dir(model).into_iter().flatten().flatten();
        for link in entries.map(|entry| entry.path()).filter(|path| path.is_symlink()) {
            self.reads("a file of the source,", Some(&link));
        }
    }

    pub fn reads_adapters(&mut self, adapters: &[PathBuf]) {
        adapters.iter().for_each(|adapter| self.reads("the adapter", Some(adapter)));
    }

    pub fn reads_job(&mut self, job: &Job) {
        self.reads_model(&job.source.model);
        self.reads_adapters(&job.source.adapters);
        job.data.files.iter().for_each(|path| self.reads("the calibration data", Some(path)));
        self.reads("the recipe", job.recipe.file.as_deref());
        self.reads("the importance of inputs,", job.recipe.imatrix.as_deref());
        self.reads("the ranges of tensors,", job.recipe.graph.ranges.as_deref());
        self.reads("the statistics of inputs,", job.recipe.statistics.as_ref().map(|given| given.path.as_path()));
    }

    pub fn writes_model(&mut self, output: Option<&Path>) {
        let Some(path) = output else { return };
        let mut beside = paths_beside(path);
        if is_graph(path) {
            beside.push(external_data_path(path));
        }
        beside.push(checkpoint_beside(path));
        if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf")) || is_graph(path) {
            beside.push(super::record::beside(path));
        }
        self.written.push(Written { option: "‹output›", path: path.to_owned(), beside, kind: None });
    }

    pub fn writes_file(&mut self, option: &'static str, path: Option<&Path>, kind: FileKind) {
        let written = |path: &Path| Written { option, path: path.to_owned(), beside: Vec::new(), kind: Some(kind) };
        self.written.extend(path.map(written));
    }

    /// A report for people, whose name says its format.
    ///
    /// # Errors
    /// *Usage* for other names.
    pub fn writes_page(&mut self, option: &'static str, path: Option<&Path>) -> Result<(), Error> {
        self.writes_file(option, path, FileKind::Page);
        path.map_or(Ok(()), |path| page_format(path).map(drop))
    }

    pub fn check(&self) -> Result<(), Error> {
        for (at, written) in self.written.iter().enumerate() {
            self.read.iter().try_for_each(|read| written.refuse_overlap(read))?;
            let others = self.written[..at].iter().flat_map(Written::places);
            others.collect::<Vec<_>>().iter().try_for_each(|other| written.refuse_overlap(other))?;
            match written.kind {
                None => written.refuse_unreachable()?,
                Some(kind) => written.refuse_file(self.overwrite || kind == FileKind::Sensitivities, kind)?,
            }
            written.refuse_long_name()?;
            match self.tries {
                true => written.try_writing(self.overwrite)?,
                false => written.try_without_name()?,
            }
        }
        Ok(())
    }
}

impl Written {
    /// The path and the names beside it, each with its role.
    fn places(&self) -> Vec<Place> {
        let own = Place { what: format!("{} {}", self.option, shown(&self.path)), path: self.path.clone() };
        let reserved = format!("a path reserved for {}", own.what);
        let beside = self.beside.iter().map(|path| Place { what: reserved.clone(), path: path.clone() });
        std::iter::once(own).chain(beside).collect()
    }

    fn refuse_overlap(&self, other: &Place) -> Result<(), Error> {
        let told = |path: &Path, relation: &str| {
            let place = if *path == self.path {
                format!("{} {}", self.option, shown(path))
            } else {
                format!("{}, reserved for {} {},", shown(path), self.option, shown(&self.path))
            };
            let message = format!("{place} {relation} {}", other.what);
            let hint = format!(
                "choose another path for {}: a run never writes over or into its own inputs or outputs",
                self.option
            );
            Err(Error::new(ErrorKind::Usage, message).with_hint(Some(hint)))
        };
        for path in std::iter::once(&self.path).chain(&self.beside) {
            if let Some(relation) = relation(path, &other.path) {
                return told(path, relation);
            }
        }
        Ok(())
    }

    /// Refuses a file that cannot be made or may not be replaced.
    fn refuse_file(&self, overwrite: bool, kind: FileKind) -> Result<(), Error> {
        match fs::metadata(directory_of(&self.path)) {
            _ if self.path.is_dir() => return Err(self.unwritable("it is a directory", "name a file in it")),
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(self.unwritable("its parent is not a directory", "choose another path")),
            Err(_) => {
                let hint = "make the directory first, or choose another path";
                return Err(self.unwritable("its directory is missing", hint));
            }
        }
        let hint = format!("move it away, or choose another path for {}", self.option);
        follow(Some(self.path.clone())).map_err(|error| error.with_hint(Some(hint)))?;
        match kind.mismatch(&self.path) {
            Some(reason) => {
                let message = format!("{} exists already and cannot be replaced: {reason}", shown(&self.path));
                Err(Error::new(ErrorKind::Invalid, message).with_remedies(vec![
                    Remedy::text("move it away"),
                    Remedy::text(format!("choose another path for {}", self.option)),
                ]))
            }
            None => refuse_existing(&self.path, overwrite),
        }
    }

    /// Refuses a model below a file, and a file named like a directory.
    fn refuse_unreachable(&self) -> Result<(), Error> {
        let is_file = is_graph(&self.path) || SourceKind::named(&self.path) == Some(SourceKind::Gguf);
        if is_file {
            refuse_slash(&self.path)?;
            self.refuse_name_of_part()?;
        }
        let found = existing_directory(&self.path);
        match found.is_dir() {
            true => Ok(()),
            false => Err(self.unwritable(&format!("{} is not a directory", shown(&found)), "choose another path")),
        }
    }

    /// Refuses the name of one of several files: a model is written as one, and readers look for the others.
    fn refuse_name_of_part(&self) -> Result<(), Error> {
        match parts_named(&self.path).len() {
            0 | 1 => Ok(()),
            count => {
                let hint = "choose a name without the numbers: a model is written as one file";
                Err(self.unwritable(&format!("it is named like one of {count} parts"), hint))
            }
        }
    }

    /// Refuses names that are too long for the file system, those beside the output included.
    fn refuse_long_name(&self) -> Result<(), Error> {
        let is_too_long =
            |path: &PathBuf| path.symlink_metadata().is_err_and(|cause| cause.kind() == io::ErrorKind::InvalidFilename);
        match std::iter::once(&self.path).chain(&self.beside).any(is_too_long) {
            true => Err(self.unwritable("its name is too long", "choose a shorter name")),
            false => Ok(()),
        }
    }

    /// Tries whether a file could be made, with one that has no name where the system has such.
    fn try_without_name(&self) -> Result<(), Error> {
        match self.path.is_dir() || !existing_directory(&self.path).is_dir() {
            true => Ok(()),
            false => {
                tempfile::tempfile_in(existing_directory(&self.path)).map(drop).map_err(|cause| self.failed(&cause))
            }
        }
    }

    fn failed(&self, cause: &io::Error) -> Error {
        let message = format!("cannot write {}: {cause}", shown(&self.path));
        let directory = existing_directory(&self.path);
        let hint = match cause.kind() {
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                io_hint(cause).unwrap_or_default().to_owned()
            }
            io::ErrorKind::PermissionDenied if !self.path.exists() => {
                format!("choose another path, or change the permissions of the directory {}", shown(&directory))
            }
            _ => "choose another path, or change its permissions".to_owned(),
        };
        Error::system(message).with_hint(Some(hint))
    }

    fn unwritable(&self, reason: &str, hint: &str) -> Error {
        let message = format!("cannot write {}: {reason}", shown(&self.path));
        Error::new(ErrorKind::Usage, message).with_hint(Some(hint.to_owned()))
    }

    /// Creates and removes a file at this path: permissions alone are not conclusive, since the owner, the file system and the device
    /// matter too.
    fn try_writing(&self, overwrite: bool) -> Result<(), Error> {
        let failed = |cause: io::Error| self.failed(&cause);
        let is_special = fs::metadata(&self.path).is_ok_and(|found| !found.is_file() && !found.is_dir());
        if is_special && self.kind.is_some() {
            return Ok(());
        }
        // The contents of a replaced directory are removed at the end.
        let directory =
            if overwrite && self.path.is_dir() { self.path.clone() } else { existing_directory(&self.path) };
        let probe = directory.join(format!(".kvant.{}.probe", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&probe) {
            // Left by a process that was killed just there.
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(cause) => Err(failed(cause)),
            Ok(_) => fs::remove_file(&probe).map_err(failed),
        }
    }
}

/// The closest parent of a path that exists.
fn existing_directory(path: &Path) -> PathBuf {
    let real = real(path);
    let found = real.ancestors().skip(1).find(|parent| parent.symlink_metadata().is_ok());
    found.unwrap_or(Path::new(".")).to_owned()
}

/// The relation of a written path to another, resolving links and hard links; `None` if they are unrelated.
fn relation(written: &Path, other: &Path) -> Option<&'static str> {
    let (here, there) = (real(written), real(other));
    if here == there || file_id(&here).is_some_and(|id| file_id(&there) == Some(id)) {
        return Some("is");
    }
    if here.starts_with(&there) {
        return Some("lies inside");
    }
    if there.starts_with(&here) {
        return Some("holds");
    }
    is_file_in(&here, &there).then_some("is also a file of")
}

/// Returns whether a file has a second name in a directory, through symbolic or hard links.
fn is_file_in(file: &Path, directory: &Path) -> bool {
    let Some(id) = file_id(file).filter(|_| file.is_file() && directory.is_dir()) else { return false };
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => left.push(path),
                _ if file_id(&path) == Some(id) => return true,
                _ => {}
            }
        }
    }
    false
}

/// A path without links and `..`, as far as it exists.
fn real(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut real = PathBuf::new();
    for component in absolute.components() {
        match component {
            Component::ParentDir => _ = real.pop(),
            Component::CurDir => {}
            component => {
                real.push(component);
                real = real.canonicalize().unwrap_or(real);
            }
        }
    }
    real
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(path: &Path) -> Written {
        Written { option: "‹report›", path: path.to_owned(), beside: Vec::new(), kind: Some(FileKind::Report) }
    }

    #[test]
    fn file_of_another_kind_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let check = |kind: FileKind, there: &[u8]| {
            let path = folder.path().join("file");
            fs::write(&path, there).unwrap();
            written(&path).refuse_file(true, kind).map_err(|error| error.to_string())
        };
        // One entry `a`, called once, with one value.
        let legacy = [1, 1].map(i32::to_le_bytes).concat();
        let counts = legacy.clone();
        let legacy = [&legacy[..], b"a", &counts[..], &1f32.to_le_bytes()].concat();
        for (kind, same) in [
            (FileKind::Report, &br#"{"seconds": 1, "schema": "kvant.quantize/1"}"#[..]),
            (FileKind::Importance, &legacy[..]),
            (FileKind::Recipe, b"version = 2"),
        ] {
            assert_eq!((check(kind, same), check(kind, b"")), (Ok(()), Ok(())), "{kind:?}");
            let others =
                [&b"precious notes"[..], b"{}", br#"{"schema": "theirs/1"}"#, b"GGUF\x03", b"[package]\nname = 1"];
            for other in others {
                assert!(
                    check(kind, other).is_err_and(|told| told.contains("cannot be replaced: it is not a")),
                    "{kind:?}"
                );
            }
        }
    }

    #[test]
    fn graph_replaces_only_a_graph() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n.onnx");
        assert!(refuse_other_file(&path).is_ok());
        // Of a model, its graph without fields.
        for (there, is_replaced) in
            [(&b""[..], true), (b"\x3a\x00", true), (b"precious notes", false), (b"\x08\x07", false)]
        {
            fs::write(&path, there).unwrap();
            let checked = refuse_other_file(&path).map_err(|error| error.to_string());
            assert_eq!(checked.is_ok(), is_replaced, "{checked:?}");
        }
    }

    #[test]
    fn unwritable_paths_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let check = |name: &str| {
            let written = written(&folder.path().join(name));
            written.refuse_file(false, FileKind::Report).and_then(|()| written.try_writing(false))
        };
        assert!(check("report.json").is_ok());
        for (path, reason) in [("none/report.json", "missing"), ("", "a directory")] {
            let failure = check(path).unwrap_err();
            assert!(failure.kind == ErrorKind::Usage && failure.message.contains(reason), "{}", failure.message);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn names_of_parts_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let check = |name: &str| written(&folder.path().join(name)).refuse_unreachable();
        assert!(check("m.gguf").is_ok() && check("m-00001-of-00001.gguf").is_ok() && check("m-00001-of-00002").is_ok());
        let failure = check("m-00001-of-00002.gguf").unwrap_err();
        assert!(failure.kind == ErrorKind::Usage && failure.message.contains("one of 2 parts"), "{}", failure.message);
    }

    /// Not even its owner, with all permissions, makes files there.
    #[cfg(target_os = "linux")]
    #[test]
    fn seemingly_writable_directory_is_refused() {
        let directory = Path::new("/sys/kernel");
        if directory.is_dir() {
            let failure = written(&directory.join("report.json")).try_writing(false).unwrap_err();
            assert!(failure.message.contains("/sys/kernel/report.json: "), "{}", failure.message);
        }
    }

    #[test]
    fn paths_are_compared_by_identity() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("model/inner")).unwrap();
        fs::write(path("model/inner/weights"), "w").unwrap();
        fs::write(path("other ü"), "o").unwrap();
        for (a, b, expected) in [
            ("out", "model", None),
            ("modelling", "model", None),
            ("model/../model", "model", Some("is")),
            ("new/../model/./out", "model", Some("lies inside")),
            ("model", "model/inner/weights", Some("holds")),
            ("other ü", "./other ü", Some("is")),
        ] {
            assert_eq!(relation(&path(a), &path(b)), expected, "{a} {b}");
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(path("model"), path("link")).unwrap();
            fs::hard_link(path("model/inner/weights"), path("second")).unwrap();
            assert_eq!(relation(&path("link/out"), &path("model")), Some("lies inside"));
            assert_eq!(relation(&path("model"), &path("link")), Some("is"));
            assert_eq!(relation(&path("second"), &path("model/inner/weights")), Some("is"));
            assert_eq!(relation(&path("second"), &path("model")), Some("is also a file of"));
        }
    }
}
