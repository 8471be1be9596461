//! Which files make the checkpoint: an index and its shards, a single file, or all files of a directory.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::extra::{CONFIG_FILE, has_extension, list_dir};
use super::index::ShardIndex;
use crate::directory::directory_of;
use crate::error::CheckpointError;
use crate::error::Error;
use crate::numbered_name::NumberedName;
use crate::tensor_file::TensorFile;

/// How the files of a format of weights are called.
#[derive(Debug, Clone, Copy)]
struct FileNames {
    /// The usual name where one file has all tensors.
    single: &'static str,
    /// How the names of files end.
    extension: &'static str,
    /// What the names of files contain: other files have the same ending.
    mark: &'static str,
}

/// The formats that a directory can hold; the first one that it does hold counts.
const FORMATS: &[FileNames] = &[
    // Components of diffusers pipelines, beside which the same weights may lie in other types.
    FileNames {
        single: "diffusion_pytorch_model.safetensors",
        extension: "safetensors",
        mark: "diffusion_pytorch_model",
    },
    FileNames { single: "model.safetensors", extension: "safetensors", mark: "" },
    FileNames { single: "pytorch_model.bin", extension: "bin", mark: "pytorch_model" },
];

/// The file that names the components of a diffusers pipeline.
pub(super) const PIPELINE_FILE: &str = "model_index.json";

/// What follows the name of the single file in that of its index.
const INDEX_SUFFIX: &str = ".index.json";

/// Files that PyTorch writes with pickle.
pub(super) const PICKLE_EXTENSIONS: &[&str] = &["bin", "pt", "pth", "ckpt", "pkl"];

/// The files of a checkpoint, found but not opened.
#[derive(Debug)]
pub(super) struct Sources {
    /// The directory of the other files; `None` for a single file without a model.
    pub directory: Option<PathBuf>,
    pub index: Option<ShardIndex>,
    /// The shards, sorted by name.
    shards: Vec<PathBuf>,
    path: PathBuf,
}

impl Sources {
    /// Looks at a directory or a single file, and reads the index if there is one.
    pub fn find(path: &Path) -> Result<Self, Error> {
        let metadata = fs::metadata(path).map_err(|e| cannot_open(path, e))?;
        let (index, shards, directory) = match metadata.is_dir() {
            true => {
                let (index, shards) = find_in_dir(path)?;
                (index, shards, Some(path.to_path_buf()))
            }
            false => (None, vec![check_single_file(path)?], directory_around(path)),
        };
        Ok(Self { directory, index, shards, path: path.to_path_buf() })
    }

    /// Maps all shards and checks their headers.
    pub fn open_shards(&self) -> Result<Vec<TensorFile>, Error> {
        self.refuse_missing_shards()?;
        self.shards.iter().map(|path| open_file(path)).collect()
    }

    fn refuse_missing_shards(&self) -> Result<(), Error> {
        let Some(index) = &self.index else {
            return Ok(());
        };
        match index.shards().into_iter().find(|(shard, _)| !self.path.join(shard).exists()) {
            Some((shard, tensor)) => {
                let problem = CheckpointError::MissingShard { shard: shard.into(), tensor: tensor.into() };
                Err(Error::Checkpoint { path: index.path.clone(), problem })
            }
            None => Ok(()),
        }
    }

    /// Checks that every tensor of the index is where the index says; the tensors that it does not name, sorted.
    pub fn check_index(
        &self,
        shards: &[TensorFile],
        positions: &HashMap<String, (usize, usize)>,
    ) -> Result<Vec<String>, Error> {
        let Some(index) = &self.index else {
            return Ok(vec![]);
        };
        let found = |tensor: &str| positions.get(tensor).map(|&(shard, _)| shards[shard].path());
        let mut wrong = index.weight_map.iter().filter_map(|(t, s)| misplaced(t, s, &self.path.join(s), found(t)));
        if let Some(problem) = wrong.next() {
            return Err(Error::Checkpoint { path: index.path.clone(), problem });
        }
        let named: HashSet<&String> = index.weight_map.iter().map(|(tensor, _)| tensor).collect();
        let mut unindexed: Vec<String> = positions.keys().filter(|name| !named.contains(name)).cloned().collect();
        unindexed.sort();
        Ok(unindexed)
    }
}

/// Nothing at the path of the whole checkpoint is worth a hint; other failures are the system's.
fn cannot_open(path: &Path, cause: io::Error) -> Error {
    let path = path.to_path_buf();
    match cause.kind() {
        io::ErrorKind::NotFound => Error::Checkpoint { path, problem: CheckpointError::NotFound },
        _ => Error::io("open", &path, None, cause),
    }
}

fn misplaced(tensor: &str, shard: &str, expected: &Path, found: Option<&Path>) -> Option<CheckpointError> {
    let (tensor, shard) = (tensor.to_owned(), shard.to_owned());
    match found {
        Some(found) if found == expected => None,
        Some(found) => Some(CheckpointError::WrongShard { tensor, shard, found: found.to_path_buf() }),
        None => Some(CheckpointError::MissingTensor { tensor, shard }),
    }
}

fn check_single_file(path: &Path) -> Result<PathBuf, Error> {
    let name = path.to_string_lossy();
    match has_extension(&name, &["safetensors"]) || has_extension(&name, PICKLE_EXTENSIONS) {
        true => Ok(path.to_path_buf()),
        false => Err(Error::Checkpoint {
            path: path.to_path_buf(),
            problem: foreign_format(&[path.to_path_buf()], CheckpointError::NotSafetensors),
        }),
    }
}

/// The directory of a single file, where that is a model's: there is a config.json, and the file is not one shard of several.
fn directory_around(file: &Path) -> Option<PathBuf> {
    let directory = directory_of(file);
    let is_model = directory.join(CONFIG_FILE).is_file();
    (is_model && !is_one_of_several(directory, file)).then(|| directory.to_path_buf())
}

/// Returns whether an index in the directory names the file together with others. An unreadable index is ignored.
fn is_one_of_several(directory: &Path, file: &Path) -> bool {
    let names = list_dir(directory).unwrap_or_default();
    let indices = names.iter().map(|name| directory.join(name));
    let indices = indices.filter(|path| FORMATS.iter().any(|format| format.is_index(path)));
    indices.filter_map(|path| ShardIndex::read(&path).ok()).any(|index| {
        let shards = index.shards();
        shards.len() > 1 && shards.keys().any(|shard| file.file_name().is_some_and(|name| name == *shard))
    })
}

impl FileNames {
    /// The usual name of the index.
    fn index(&self) -> String {
        format!("{}{INDEX_SUFFIX}", self.single)
    }

    fn is_index(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let of_file = name.strip_suffix(INDEX_SUFFIX).is_some_and(|file| has_extension(file, &[self.extension]));
        of_file && name.contains(self.mark)
    }

    /// Hidden files are not shards: some systems leave `._model.safetensors` beside a copied `model.safetensors`.
    fn is_visible_shard(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        !name.starts_with('.') && name.contains(self.mark) && has_extension(&name, &[self.extension])
    }
}

/// The index, if any, and the shards of a directory.
fn find_in_dir(dir: &Path) -> Result<(Option<ShardIndex>, Vec<PathBuf>), Error> {
    let entries: Vec<PathBuf> = list_dir(dir)?.into_iter().map(|name| dir.join(name)).collect();
    let is_shard = |path: &PathBuf| FORMATS.iter().any(|format| format.is_visible_shard(path));
    let dead = entries.iter().find(|path| is_shard(path) && path.is_symlink() && !path.exists()).cloned();
    let files: Vec<PathBuf> = entries.into_iter().filter(|path| path.is_file()).collect();
    for format in FORMATS {
        if let Some(path) = choose_index(dir, &files, *format)? {
            let index = ShardIndex::read(&path)?;
            let shards = index.shards().keys().map(|shard| dir.join(shard)).collect();
            return Ok((Some(index), shards));
        }
        let single = dir.join(format.single);
        let shards: Vec<PathBuf> = match files.contains(&single) {
            true => vec![single],
            false => files.iter().filter(|path| format.is_visible_shard(path)).cloned().collect(),
        };
        if let Some(shard) = missing_number(&shards, *format) {
            let problem = CheckpointError::MissingNumberedShard { shard };
            return Err(Error::Checkpoint { path: dir.to_path_buf(), problem });
        }
        if !shards.is_empty() {
            return Ok((None, shards));
        }
    }
    let components = if dir.join(PIPELINE_FILE).is_file() { components_in(dir) } else { Vec::new() };
    let problem = match dead {
        Some(file) => CheckpointError::DeadLink { file },
        None if !components.is_empty() => CheckpointError::Pipeline { components },
        None => foreign_format(&files, CheckpointError::NoWeights),
    };
    Err(Error::Checkpoint { path: dir.to_path_buf(), problem })
}

/// The folders of a pipeline that hold weights, sorted.
fn components_in(dir: &Path) -> Vec<String> {
    let names = list_dir(dir).unwrap_or_default().into_iter().filter(|name| holds_weights(&dir.join(name)));
    names.map(|name| name.to_string_lossy().into_owned()).collect()
}

/// Returns whether a folder holds files of weights.
pub(super) fn holds_weights(folder: &Path) -> bool {
    let is_shard = |name: &OsString| FORMATS.iter().any(|format| format.is_visible_shard(Path::new(name)));
    list_dir(folder).unwrap_or_default().iter().any(is_shard)
}

/// Maps a file of tensors, by its name.
fn open_file(path: &Path) -> Result<TensorFile, Error> {
    match has_extension(&path.to_string_lossy(), PICKLE_EXTENSIONS) {
        true => TensorFile::open_pytorch(path),
        false => TensorFile::open(path),
    }
}

/// A shard of `NAME-00001-of-00003.safetensors` and the like that is not there, by its name.
fn missing_number(shards: &[PathBuf], format: FileNames) -> Option<String> {
    let names: HashSet<String> =
        shards.iter().filter_map(|path| path.file_name()?.to_str()).map(str::to_owned).collect();
    let mut counted: Vec<NumberedName<'_>> =
        names.iter().filter_map(|name| NumberedName::of(name, format.extension)).collect();
    counted.sort_unstable();
    counted.dedup_by_key(|name| (name.prefix, name.count));
    counted.into_iter().find_map(|name| {
        // What is there bounds the work: the count is whatever a name says.
        let last = name.count.min(names.len() as u64 + 1);
        let mut expected = (1..=last).map(|number| name.with_number(number, format.extension));
        expected.find(|expected| !names.contains(expected))
    })
}

/// The index with the usual name; else, unless there is a file with the usual name, the only one with another.
fn choose_index(dir: &Path, files: &[PathBuf], format: FileNames) -> Result<Option<PathBuf>, Error> {
    let usual = dir.join(format.index());
    if files.contains(&usual) {
        return Ok(Some(usual));
    }
    if files.contains(&dir.join(format.single)) {
        return Ok(None);
    }
    let others: Vec<&PathBuf> = files.iter().filter(|path| format.is_index(path)).collect();
    match others[..] {
        [first, second, ..] => {
            let problem = CheckpointError::TwoIndices { first: first.clone(), second: second.clone() };
            Err(Error::Checkpoint { path: dir.to_path_buf(), problem })
        }
        _ => Ok(others.first().map(|&path| path.clone())),
    }
}

/// Names the format of weights that no directory is read for, or says `otherwise`.
fn foreign_format(files: &[PathBuf], otherwise: CheckpointError) -> CheckpointError {
    let first_with = |extensions| files.iter().find(|path| has_extension(&path.to_string_lossy(), extensions)).cloned();
    if let Some(file) = first_with(PICKLE_EXTENSIONS) {
        return CheckpointError::Pickle { file };
    }
    match first_with(&["gguf"]) {
        Some(file) => {
            let count = files.iter().filter(|path| has_extension(&path.to_string_lossy(), &["gguf"])).count();
            CheckpointError::Gguf { file, count }
        }
        None => otherwise,
    }
}
