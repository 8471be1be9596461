//! A checkpoint as it lies on disk: a directory with one or more safetensors files, or a single file; or a GGUF file, seen as
//! one. Nothing about what the tensors mean.

mod adapter;
mod code;
mod extra;
mod index;
mod modules;
mod pipeline;
mod rewriting;
mod sources;

use std::collections::{BTreeMap, HashMap};
use std::fs::Metadata;
use std::path::{Path, PathBuf};

pub use crate::error::CheckpointError;
pub use adapter::AdapterSource;
use adapter::Replaced;
pub use code::{CustomCode, MissingCode};
pub use extra::{LeftOutFile, LeftOutReason};
pub use pipeline::{Pipeline, PipelineComponent};
use rewriting::Rewriting;

use crate::error::Error;
use crate::gguf::GgufFile;
use crate::json::read_python_json;
use crate::mmap::{FileState, MappedFile};
use crate::safetensors::{TensorEntry, TensorPart};
use crate::tensor_file::{TensorFile, TensorView};
use sources::Sources;

/// The most bytes of a `config.json` that are read.
const MAX_CONFIG_LEN: u64 = 64 << 20;

/// An opened checkpoint: all shards mapped, all headers checked, no tensor read.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    /// The directory of the other files, config.json among them; `None` for tensors alone.
    directory: Option<PathBuf>,
    index: Option<PathBuf>,
    shards: Vec<TensorFile>,
    /// Shard and position in it of every tensor.
    positions: HashMap<String, (usize, usize)>,
    unindexed: Vec<String>,
    /// The description of the model and its tokenizer, as they were before anything was read.
    described: Vec<FileState>,
    gguf: Option<GgufSource>,
    adapters: Vec<AdapterSource>,
    replaced: Option<Replaced>,
    rewriting: Option<Rewriting>,
    regroups: bool,
    separated: Option<SeparatedHead>,
}

/// A head whose weight the files share with the embeddings, and which is read as a separate tensor.
#[derive(Debug)]
struct SeparatedHead {
    /// The name of its weight.
    weight: String,
    /// config.json of the model whose head is separate.
    config: serde_json::Value,
}

/// A GGUF file behind a checkpoint, and the tensors and files derived from it.
#[derive(Debug)]
struct GgufSource {
    file: GgufFile,
    /// Files that a directory would have, by name.
    files: BTreeMap<String, Vec<u8>>,
}

impl Checkpoint {
    /// Opens a directory or a single `.safetensors` file.
    ///
    /// In a directory, `model.safetensors.index.json` names the shards; without one `model.safetensors` is the checkpoint,
    /// then the only other index, then all `*.safetensors` files together. A single file with a `config.json` beside it is the
    /// model of that directory, unless it is one shard of several.
    ///
    /// # Errors
    ///
    /// [`Error::Header`] for a shard that is wrong in itself, [`Error::Checkpoint`] for shards that do not make a
    /// checkpoint: a shard missing or outside the directory, a tensor missing, in the wrong shard or in two; weights in
    /// formats that are not read (pickles, GGUF). [`Error::Io`], [`Error::Json`] and so on for single files.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let sources = Sources::find(path)?;
        let described = sources.directory.as_deref().map(extra::describing_files).unwrap_or_default();
        let shards = sources.open_shards()?;
        adapter::refuse_alone(path, &shards)?;
        let positions = unique_positions(path, &shards)?;
        let unindexed = sources.check_index(&shards, &positions)?;
        let Sources { directory, index, .. } = sources;
        Ok(Self {
            path: path.to_path_buf(),
            directory,
            index: index.map(|i| i.path),
            shards,
            positions,
            unindexed,
            described,
            gguf: None,
            adapters: Vec::new(),
            replaced: None,
            rewriting: None,
            regroups: false,
            separated: None,
        })
    }

    /// The same checkpoint with a separate head, `weight`, whose values are those of the tensor `embeddings`; `config` is that of the model
    /// with it.
    ///
    /// # Errors
    ///
    /// [`Error::Checkpoint`] if a tensor has that name already.
    pub fn with_separate_head(
        self,
        embeddings: &str,
        weight: &str,
        config: serde_json::Value,
    ) -> Result<Checkpoint, Error> {
        let shards: Vec<_> = self.shards.into_iter().map(|shard| shard.with_second_name(embeddings, weight)).collect();
        let positions = unique_positions(&self.path, &shards)?;
        let separated = Some(SeparatedHead { weight: weight.to_owned(), config });
        Ok(Checkpoint { shards, positions, separated, ..self })
    }

    /// The name of the head's weight, where the files share it with the embeddings and it is read as a separate tensor.
    pub fn separated_head(&self) -> Option<&str> {
        self.separated.as_ref().map(|head| head.weight.as_str())
    }

    /// The same checkpoint with tensors seen as their parts, see [`TensorFile::divided`].
    ///
    /// # Errors
    ///
    /// [`Error::Checkpoint`] for a part with the name of a tensor in another shard.
    pub fn divided(self, parts_of: impl Fn(&TensorEntry) -> Option<Vec<TensorPart>>) -> Result<Checkpoint, Error> {
        let shards: Vec<_> = self.shards.into_iter().map(|shard| shard.divided(&parts_of)).collect();
        let positions = unique_positions(&self.path, &shards)?;
        Ok(Checkpoint { shards, positions, ..self })
    }

    /// A GGUF file seen as a checkpoint. What its tensors and metadata mean is not known here: `small` holds tensors that are
    /// derived from it, and `files` the other files of a directory, config.json among them.
    ///
    /// # Errors
    ///
    /// [`Error::Checkpoint`] never: tensors of one file have distinct names.
    pub fn of_gguf(file: GgufFile, small: TensorFile, files: BTreeMap<String, Vec<u8>>) -> Result<Checkpoint, Error> {
        let (path, shards) = (file.path().to_path_buf(), vec![small]);
        let positions = unique_positions(&path, &shards)?;
        let gguf = Some(GgufSource { file, files });
        let unindexed = Vec::new();
        let adapters = Vec::new();
        Ok(Checkpoint {
            path,
            directory: None,
            index: None,
            shards,
            positions,
            unindexed,
            described: Vec::new(),
            gguf,
            adapters,
            replaced: None,
            rewriting: None,
            regroups: false,
            separated: None,
        })
    }

    /// The GGUF file behind it, if it is one.
    pub fn gguf(&self) -> Option<&GgufFile> {
        self.gguf.as_ref().map(|source| &source.file)
    }

    /// The files derived from a GGUF file's metadata, by name; empty for other checkpoints.
    pub fn made_files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let files = self.gguf.iter().flat_map(|source| &source.files);
        files.map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
    }

    /// The directory or file it was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of config.json, the tokenizer and similar files: the one that was opened, or that of a single file with a config.json
    /// beside it. `None` for tensors alone.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// The files that hold the tensors, sorted by name.
    pub fn shards(&self) -> &[TensorFile] {
        &self.shards
    }

    /// The first file that was written to since the checkpoint was opened. A file of the model's description or its tokenizer that
    /// another took the place of counts too: it is read and copied at different times.
    pub fn changed_file(&self) -> Option<&Path> {
        let mapped = self.maps().find(|file| file.has_changed()).map(MappedFile::path);
        mapped.or_else(|| self.described.iter().find(|file| file.has_other_contents()).map(FileState::path))
    }

    /// The first file that lost bytes before they were read: they read as zeros. Does not access the file system.
    pub fn lost_file(&self) -> Option<&Path> {
        self.maps().find(|file| file.has_lost_bytes()).map(MappedFile::path)
    }

    /// Returns whether bytes of tensors are fetched when they are needed, from a model that is not on this machine.
    pub fn is_supplied(&self) -> bool {
        self.maps().any(|file| file.supplied_identity().is_some())
    }

    /// Every file that tensors are read from.
    fn maps(&self) -> impl Iterator<Item = &MappedFile> {
        let shards = self.shards.iter().map(TensorFile::map);
        let adapters = self.adapters().iter().map(|adapter| adapter.file().map());
        shards.chain(adapters).chain(self.gguf().into_iter().flat_map(GgufFile::maps))
    }

    /// All tensors, sorted by shard and then by the order of their bytes.
    pub fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        let tensors = self.shards.iter().flat_map(TensorFile::tensors);
        tensors.map(|tensor| self.replaced(tensor.name()).unwrap_or(tensor))
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.replaced(name).or_else(|| self.unchanged_tensor(name))
    }

    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.positions.len()
    }

    /// Returns whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// The names of tensors that are in a shard, but not in the index, sorted. They are part of [`Self::tensors`].
    pub fn unindexed(&self) -> &[String] {
        &self.unindexed
    }

    /// The free-form strings of all shards' headers; where shards disagree, the first one's.
    pub fn metadata(&self) -> BTreeMap<String, String> {
        let mut metadata = BTreeMap::new();
        for (key, value) in self.shards.iter().flat_map(TensorFile::metadata) {
            metadata.entry(key.clone()).or_insert_with(|| value.clone());
        }
        metadata
    }

    /// The contents of `config.json`; `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] beyond 64 MiB, [`Error::Json`], [`Error::Io`].
    pub fn config(&self) -> Result<Option<serde_json::Value>, Error> {
        match self.changed_config().or_else(|| Some(&self.separated.as_ref()?.config)) {
            Some(config) => Ok(Some(config.clone())),
            None => self.json(extra::CONFIG_FILE),
        }
    }

    /// The contents of a JSON file of the [directory](Self::directory) itself, as [`Self::config`] reads them.
    ///
    /// # Errors
    ///
    /// As for [`Self::config`].
    pub fn json(&self, name: &str) -> Result<Option<serde_json::Value>, Error> {
        if let Some(bytes) = self.gguf.as_ref().and_then(|source| source.files.get(name)) {
            let parsed = serde_json::from_slice(bytes);
            let file = self.path.join(name);
            return parsed.map(Some).map_err(|error| Error::Json { file, message: error.to_string() });
        }
        let Some(path) = self.directory.as_ref().map(|directory| directory.join(name)) else { return Ok(None) };
        match path.try_exists().map_err(|e| Error::io("open", &path, None, e))? {
            true => read_python_json(&path, MAX_CONFIG_LEN).map(Some),
            false => Ok(None),
        }
    }

    /// The names of the files to carry along to a copy of the checkpoint, sorted: tokenizer, chat template, generation
    /// config, licence, everything in the directory itself except weights, index and `config.json`, and the code that
    /// configurations name, folders included.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the directory cannot be listed.
    pub fn extra_files(&self) -> Result<Vec<PathBuf>, Error> {
        Ok(self.sort_files()?.0)
    }

    /// The names of all files of the checkpoint, its weights included, sorted: those of a copy that changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the directory cannot be listed.
    pub fn all_files(&self) -> Result<Vec<PathBuf>, Error> {
        let Some(directory) = self.directory.as_deref() else { return Ok(Vec::new()) };
        let own = self.shards.iter().map(TensorFile::path).chain(self.index.as_deref());
        let own = own.filter_map(|path| Some(path.strip_prefix(directory).ok()?.to_path_buf()));
        let config = Some(PathBuf::from(extra::CONFIG_FILE)).filter(|name| directory.join(name).is_file());
        let mut files: Vec<PathBuf> = own.chain(config).chain(self.extra_files()?).collect();
        files.sort();
        Ok(files)
    }

    /// The bytes of the [extra files](Self::extra_files).
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the directory cannot be listed.
    pub fn extra_bytes(&self) -> Result<u64, Error> {
        let Some(directory) = self.directory.as_deref() else { return Ok(0) };
        let lengths = self.extra_files()?.into_iter().filter_map(|name| directory.join(name).metadata().ok());
        Ok(lengths.filter(Metadata::is_file).map(|file| file.len()).sum())
    }

    /// The files and directories that a copy does without, sorted, each with the reason.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the directory cannot be listed.
    pub fn left_out_files(&self) -> Result<Vec<LeftOutFile>, Error> {
        Ok(self.sort_files()?.1)
    }

    /// The code that configurations name.
    pub fn custom_code(&self) -> CustomCode {
        self.directory.as_deref().map(code::find).unwrap_or_default()
    }

    fn sort_files(&self) -> Result<(Vec<PathBuf>, Vec<LeftOutFile>), Error> {
        let shards = self.shards.iter().map(TensorFile::path);
        let own: Vec<&Path> = shards.chain(self.index.as_deref()).collect();
        self.directory.as_ref().map_or(Ok((vec![], vec![])), |directory| extra::sort_files(directory, &own))
    }
}

/// The position of every tensor, after checking that no two shards hold the same tensor.
fn unique_positions(path: &Path, shards: &[TensorFile]) -> Result<HashMap<String, (usize, usize)>, Error> {
    let mut positions: HashMap<String, (usize, usize)> = HashMap::new();
    for (s, shard) in shards.iter().enumerate() {
        for (t, tensor) in shard.tensors().enumerate() {
            if let Some((first, _)) = positions.insert(tensor.name().to_owned(), (s, t)) {
                let (first, second) = (shards[first].path().to_path_buf(), shard.path().to_path_buf());
                let problem = CheckpointError::InTwoShards { tensor: tensor.name().to_owned(), first, second };
                return Err(Error::Checkpoint { path: path.to_path_buf(), problem });
            }
        }
    }
    Ok(positions)
}

#[cfg(test)]
mod tests;
