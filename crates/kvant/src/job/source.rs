//! The source.

use crate::error::{Error, ErrorKind};
use kvant_container::{Checkpoint, Pipeline};
use kvant_formats::experts::{self, ExpertsForm};
use kvant_formats::format::OutputFormat;
use kvant_quant::rotation::Rotate;
use std::path::{Path, PathBuf};

/// A model, and adapters that are merged into its weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// A Hugging Face directory, a `.safetensors` or `.gguf` file, a diffusers pipeline, or an ONNX graph. For [`Job`](super::Job) and
    /// [`inspect`](crate::inspect()) also a checkpoint elsewhere: `https://host/folder`, `hf://organisation/name[@revision]`, or
    /// `organisation/name` where there is no such path.
    pub model: PathBuf,
    /// LoRA adapters, as PEFT saves them. They are merged as weights are read.
    pub adapters: Vec<PathBuf>,
}

/// The kind of model at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// A checkpoint of safetensors.
    Checkpoint,
    /// A GGUF file.
    Gguf,
    /// An ONNX graph.
    Graph,
    /// A folder of a diffusers pipeline, whose components are checkpoints.
    Pipeline,
}

impl Source {
    /// A model without adapters.
    pub fn new(model: impl Into<PathBuf>) -> Source {
        Source { model: model.into(), adapters: Vec::new() }
    }

    /// Which kind of model it is, by its name and its first bytes.
    pub fn kind(&self) -> SourceKind {
        SourceKind::of(&self.model)
    }

    /// Opens the model as a checkpoint, with its adapters.
    pub(crate) fn open(&self) -> Result<Checkpoint, Error> {
        self.open_with(ExpertsForm::OfClass)
    }

    fn open_with(&self, form: ExpertsForm) -> Result<Checkpoint, Error> {
        self.refuse_adapters_of_gguf()?;
        match self.adapters.is_empty() {
            true => Ok(experts::divided(open_whole(&self.model)?, form)?),
            // Adapters name the modules of the checkpoint; experts are seen one by one once they are merged.
            false => {
                let checkpoint = kvant_formats::adapter::open(open_whole(&self.model)?, &self.adapters)?;
                Ok(if form == ExpertsForm::Separate { checkpoint.with_regrouped_matrices() } else { checkpoint })
            }
        }
    }
}

impl Source {
    /// Opens the model as a checkpoint, rotated if asked, with experts in the form that a format holds.
    pub(crate) fn open_for(&self, format: OutputFormat, rotation: Option<Rotate>) -> Result<Checkpoint, Error> {
        Ok(kvant_formats::rotated::open(self.open_in(format)?, rotation)?)
    }

    /// The same without a rotation.
    pub(crate) fn open_in(&self, format: OutputFormat) -> Result<Checkpoint, Error> {
        self.open_with(format.experts_form())
    }

    /// Refuses adapters beside a GGUF file.
    pub(crate) fn refuse_adapters_of_gguf(&self) -> Result<(), Error> {
        if self.adapters.is_empty() || self.kind() != SourceKind::Gguf {
            return Ok(());
        }
        let error = Error::new(ErrorKind::Usage, "‹lora› does not apply to a GGUF file");
        let hint = "merge the adapter into the model that it was trained on, whose weights are safetensors";
        Err(error.with_hint(Some(hint.to_owned())))
    }
}

impl SourceKind {
    /// The kind of file implied by a name; `None` for directories and other files.
    pub(crate) fn named(path: &Path) -> Option<SourceKind> {
        let ends = |ending: &str| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(ending));
        match () {
            () if ends("onnx") => Some(SourceKind::Graph),
            () if ends("gguf") => Some(SourceKind::Gguf),
            () => None,
        }
    }

    /// The kind of model at a path. A file that claims to be GGUF counts as one: its reader reports any defect.
    pub fn of(model: &Path) -> SourceKind {
        let ends = |ending: &str| model.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(ending));
        match () {
            () if ends("onnx") => SourceKind::Graph,
            () if kvant_container::gguf::is_gguf(model) || (model.is_file() && ends("gguf")) => SourceKind::Gguf,
            () if Pipeline::is_at(model) => SourceKind::Pipeline,
            () => SourceKind::Checkpoint,
        }
    }
}

/// Opens a checkpoint of safetensors, or a GGUF file as one. Experts have a matrix each where their family has that layout.
pub(crate) fn open(model: &Path) -> Result<Checkpoint, Error> {
    Ok(experts::divided(open_whole(model)?, ExpertsForm::OfClass)?)
}

/// The same with all tensors as they are in the files.
pub(crate) fn open_whole(model: &Path) -> Result<Checkpoint, Error> {
    match SourceKind::of(model) {
        SourceKind::Gguf => Ok(kvant_gguf::model::restore::open(model)?),
        _ => Ok(Checkpoint::open(model)?),
    }
}
