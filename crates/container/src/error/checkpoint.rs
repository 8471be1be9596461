//! Errors between the files of a checkpoint. Errors inside one safetensors file are a `HeaderError`.

use crate::path_text::shell_word;
use std::path::PathBuf;

use crate::diagnostic::{Diagnostic, ErrorKind};
use crate::error::Quoted;

/// The reason that files do not form a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// There is nothing at the path.
    #[error("there is no such file or directory")]
    NotFound,
    /// The directory holds no weights that are known at all.
    #[error("there are no files of weights here")]
    NoWeights,
    /// A pipeline of diffusers, whose components are models. *Unsupported* as a whole.
    #[error("is a diffusers pipeline of several models: {}", components.join(", "))]
    Pipeline {
        /// The folders of those that have weights.
        components: Vec<String>,
    },
    /// A file of weights is a link to nothing.
    #[error("{} is a link that leads nowhere", crate::path_text::shown(file))]
    DeadLink {
        /// The link.
        file: PathBuf,
    },
    /// The index names no tensor.
    #[error("the index names no tensor: its `weight_map` is empty")]
    EmptyIndex,
    /// The given file is of no format that is read.
    #[error("this is neither a directory nor a .safetensors, .bin, .pt, .gguf or .onnx file")]
    NotSafetensors,
    /// There are files that PyTorch wrote, none of which has the name of a model's weights.
    #[error(
        "there are files of PyTorch here ({}), and none is called pytorch_model.bin",
        crate::path_text::shown(file)
    )]
    Pickle {
        /// One of the files.
        file: PathBuf,
    },
    /// An adapter's weights are in a pickle.
    #[error("the adapter's weights are in {}, which is not read", crate::path_text::shown(file))]
    AdapterPickle {
        /// The file.
        file: PathBuf,
    },
    /// There are only GGUF files, each of which is a model.
    #[error("this directory holds {}, and no safetensors files: a GGUF file is named itself", gguf_files(*count))]
    Gguf {
        /// The first of the files.
        file: PathBuf,
        /// Their number.
        count: usize,
    },
    /// The tensors are those of an adapter.
    #[error("this is a LoRA adapter, not a model{}", base.as_ref().map(|base| format!(": it was trained on {}", Quoted(base))).unwrap_or_default())]
    Adapter {
        /// The model that it was trained on, as it says.
        base: Option<String>,
    },
    /// The folder does not contain an adapter.
    #[error("there is no {missing} here, which every adapter has")]
    NoAdapter {
        /// The file.
        missing: &'static str,
    },
    /// There are several indices, and none has the usual name.
    #[error(
        "{} and {} are both indices; which is meant?",
        crate::path_text::shown(first),
        crate::path_text::shown(second)
    )]
    TwoIndices {
        /// One of them.
        first: PathBuf,
        /// Another.
        second: PathBuf,
    },
    /// The index names a tensor twice.
    #[error("the index names tensor {} twice", Quoted(tensor))]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// The index names a file that is not a plain path below its directory.
    #[error(
        "the index puts tensor {} into {}, which is not a plain path inside the checkpoint",
        Quoted(tensor),
        Quoted(shard)
    )]
    UnsafePath {
        /// The tensor.
        tensor: String,
        /// The path as the index has it.
        shard: String,
    },
    /// The index names a file of another format.
    #[error(
        "the index puts tensor {} into {}, which is neither a .safetensors nor a .bin file",
        Quoted(tensor),
        Quoted(shard)
    )]
    ForeignShard {
        /// The tensor.
        tensor: String,
        /// The path as the index has it.
        shard: String,
    },
    /// A shard of the index is not there.
    #[error("the shard {} is missing; it should hold tensor {}", Quoted(shard), Quoted(tensor))]
    MissingShard {
        /// The path as the index has it.
        shard: String,
        /// One of its tensors.
        tensor: String,
    },
    /// Without an index: a shard that the names of the others count is not there.
    #[error("the shard {} is missing: the names of the other files count it", Quoted(shard))]
    MissingNumberedShard {
        /// The name that it should have.
        shard: String,
    },
    /// A tensor of the index is in no shard.
    #[error("tensor {} is not in the shard {}, where the index puts it, nor in another", Quoted(tensor), Quoted(shard))]
    MissingTensor {
        /// The tensor.
        tensor: String,
        /// The path as the index has it.
        shard: String,
    },
    /// A tensor of the index is in another shard.
    #[error(
        "tensor {} is in {}, not in the shard {}, where the index puts it",
        Quoted(tensor),
        crate::path_text::shown(found),
        Quoted(shard)
    )]
    WrongShard {
        /// The tensor.
        tensor: String,
        /// The path as the index has it.
        shard: String,
        /// Its path.
        found: PathBuf,
    },
    /// Two shards hold the same tensor.
    #[error(
        "tensor {} is in both {} and {}",
        Quoted(tensor),
        crate::path_text::shown(first),
        crate::path_text::shown(second)
    )]
    InTwoShards {
        /// The tensor.
        tensor: String,
        /// One shard.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
}

impl Diagnostic for CheckpointError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound => ErrorKind::Io,
            Self::Pickle { .. }
            | Self::AdapterPickle { .. }
            | Self::Gguf { .. }
            | Self::NotSafetensors
            | Self::Pipeline { .. }
            | Self::ForeignShard { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NotFound => "check the path; a model on the Hugging Face Hub is named ORG/NAME or hf://ORG/NAME",
            Self::NotSafetensors => "name the directory of a model, or one .safetensors, .bin, .gguf or .onnx file",
            Self::Pickle { file } => {
                return Some(format!("if it holds the weights, name the file: {}", shell_word(file)));
            }
            Self::AdapterPickle { .. } => "load the adapter with PEFT and save it again: it writes safetensors",
            Self::Gguf { file, .. } => return Some(format!("name the file, e.g. {}", shell_word(file))),
            Self::Adapter { .. } => "name the model that it was trained on, and give the adapter with ‹lora› DIR",
            Self::NoAdapter { .. } => {
                "give ‹lora› the folder that holds adapter_config.json and adapter_model.safetensors, as PEFT saves them"
            }
            Self::NoWeights => {
                "give the directory that holds config.json and the *.safetensors or pytorch_model.bin files"
            }
            Self::Pipeline { .. } => {
                "`kvant inspect`, `kvant plan`, `kvant quantize` and `kvant verify` take the whole pipeline; what runs a model takes the folder of \
                 one that reads text alone, and diffusers runs the rest"
            }
            Self::DeadLink { .. } => "download the file again: what it was a link to has been removed or moved",
            Self::EmptyIndex => "download the index again; without one, all files of weights in the directory are read",
            Self::MissingShard { .. } | Self::MissingNumberedShard { .. } => {
                "the download may be incomplete; fetch the missing file"
            }
            Self::TwoIndices { .. } => {
                "keep only one of them in the directory, or name it model.safetensors.index.json"
            }
            Self::InTwoShards { .. } => "the directory may hold files of two checkpoints; keep only one set of shards",
            _ => return None,
        };
        Some(hint.into())
    }
}

/// The number of GGUF files, as part of a sentence.
fn gguf_files(count: usize) -> String {
    if count == 1 { "a GGUF file".to_owned() } else { format!("{count} GGUF files") }
}
