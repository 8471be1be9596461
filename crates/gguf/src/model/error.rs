//! Errors of planning a GGUF file: requests that are refused before a weight is read.

use crate::ftype::Ftype;
use crate::model::tokenizer::TokenizerProblem;
use kvant_container::gguf::TensorType;
use kvant_container::{Diagnostic, ErrorKind};
use kvant_model::model_config::ConfigError;
use kvant_weights::import_error::ImportError;

/// The reason that there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum GgufPlanError {
    /// A file of the checkpoint.
    #[error(transparent)]
    Container(#[from] kvant_container::Error),
    /// config.json states what cannot be, or not what loaders need (*invalid*).
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The checkpoint's own quantization is not understood.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerProblem),
    /// There is no config.json (*invalid*).
    #[error("there is no config.json, which provides the metadata of a GGUF file")]
    NoConfig {
        /// Whether a file was named, and not the directory of a model.
        of_file: bool,
    },
    /// There is nothing to quantize (*invalid*).
    #[error("no linear layers are found in the checkpoint")]
    NoLayers,
    /// The family cannot be written (*unsupported*).
    #[error("{architecture} cannot be written as GGUF")]
    Family {
        /// The architecture as config.json calls it.
        architecture: String,
    },
    /// The source is quantized already (*unsupported*).
    #[error("the source is quantized already ({method}); `{tensor}` is the first tensor that is")]
    AlreadyQuantized {
        /// How.
        method: String,
        /// The first tensor.
        tensor: String,
    },
    /// Codes of a file would be quantized again (*unsupported* unless it is accepted).
    #[error("`{tensor}` is {from} already, and would be quantized again, to {to}")]
    Twice {
        /// The first such tensor.
        tensor: String,
        /// The type that it has.
        from: TensorType,
        /// The type that it would get.
        to: TensorType,
    },
    /// Values of a type are not decoded (*unsupported*).
    #[error("`{tensor}` is {kind}, whose values are not decoded here")]
    Undecoded {
        /// The tensor.
        tensor: String,
        /// Its type.
        kind: TensorType,
    },
    /// No type holds the codes of a weight without loss (*unsupported*).
    #[error("`{tensor}` cannot be converted to gguf: {reason}")]
    Conversion {
        /// The first such tensor.
        tensor: String,
        /// The reason.
        reason: String,
    },
    /// No type holds the codes that a scheme makes (*unsupported*).
    #[error("‹format› gguf: it cannot store the codes of `{layer}`: {reason}")]
    NoBlocks {
        /// The first such layer.
        layer: String,
        /// The reason.
        reason: String,
    },
    /// Attention is quantized too, for which the file has no place (*unsupported*).
    #[error("‹format› gguf: it cannot quantize the KV cache and attention")]
    Attention,
    /// No weight has rows of whole blocks (*unsupported*).
    #[error("‹scheme› {ftype}: no weight can be quantized: their rows are not multiples of the block size")]
    NothingFits {
        /// The mix.
        ftype: Ftype,
    },
    /// There are no codes to convert (*invalid*).
    #[error("no weight of the source is quantized")]
    NotQuantized,
    /// The architecture's graph computes something that the model lacks (*unsupported*).
    #[error("the model cannot be written as GGUF: {reason}, and llama.cpp's graph of {architecture} needs them")]
    Form {
        /// `general.architecture`.
        architecture: &'static str,
        /// What is missing.
        reason: String,
    },
    /// The architecture's graph has other sizes or layers than the model (*unsupported*).
    #[error("the model cannot be written as GGUF: llama.cpp's graph of {architecture} {expects}, and {found}")]
    Expects {
        /// `general.architecture`.
        architecture: &'static str,
        /// What the graph has.
        expects: &'static str,
        /// What the model has.
        found: String,
    },
    /// The architecture has no place for a tensor (*unsupported*).
    #[error("tensor `{tensor}` has no place in a file of the architecture {architecture}")]
    NoPlace {
        /// The tensor.
        tensor: String,
        /// `general.architecture`.
        architecture: &'static str,
    },
    /// A tensor is not as config.json says (*invalid*).
    #[error("tensor `{tensor}` of shape {shape:?} does not fit config.json: {reason}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// The mismatch.
        reason: String,
    },
    /// A weight is of a type that is not read (*unsupported*).
    #[error("tensor `{tensor}` is of type {dtype}, which is not read as a weight")]
    SourceType {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: String,
    },
    /// Positions are scaled in a way that the format cannot state (*unsupported*).
    #[error("rotary embeddings of type `{0}`, as config.json states them, have no counterpart in GGUF")]
    Scaling(String),
    /// There is no codec for a type (*unsupported*).
    #[error("tensor `{tensor}` would be {kind}, which is not written")]
    Type {
        /// The tensor.
        tensor: String,
        /// The type.
        kind: TensorType,
    },
    /// The blocks of a requested type do not divide a tensor's columns (*invalid*).
    #[error("tensor `{tensor}` has {columns} columns, which is not a multiple of the block size of {kind}")]
    Columns {
        /// The tensor.
        tensor: String,
        /// Its columns.
        columns: usize,
        /// The type.
        kind: TensorType,
    },
    /// An override matches no tensors (*invalid*).
    #[error("no tensor matches `{pattern}`, given with {}", if *excludes { "‹exclude›" } else { "‹override›" })]
    IdleOverride {
        /// The pattern.
        pattern: String,
        /// Whether they are to be kept, not given another type.
        excludes: bool,
        /// Names that are like it.
        nearest: Vec<String>,
        /// The last parts of names of tensors and modules.
        ends: Vec<String>,
    },
    /// The importance of inputs does not fit the model (*invalid*).
    #[error("the importance of `{tensor}` has {found} values, and {expected} are needed")]
    Importance {
        /// The tensor.
        tensor: String,
        /// Values that are there.
        found: usize,
        /// Values that are needed.
        expected: usize,
    },
}

impl Diagnostic for GgufPlanError {
    fn kind(&self) -> ErrorKind {
        match self {
            GgufPlanError::Container(error) => error.kind(),
            GgufPlanError::Import(error) => error.kind(),
            GgufPlanError::Tokenizer(error) => error.kind(),
            GgufPlanError::Family { .. }
            | GgufPlanError::AlreadyQuantized { .. }
            | GgufPlanError::Twice { .. }
            | GgufPlanError::Undecoded { .. }
            | GgufPlanError::Conversion { .. }
            | GgufPlanError::Form { .. }
            | GgufPlanError::Expects { .. }
            | GgufPlanError::NoPlace { .. }
            | GgufPlanError::SourceType { .. }
            | GgufPlanError::Scaling(_)
            | GgufPlanError::Type { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        let other = "write a checkpoint for other loaders, e.g. with ‹scheme› FP8_DYNAMIC";
        match self {
            GgufPlanError::Container(error) => error.hint(),
            GgufPlanError::Import(error) => error.hint(),
            GgufPlanError::Tokenizer(error) => error.hint(),
            GgufPlanError::NoConfig { of_file: true } => {
                Some("name the directory of the model, not one of its files".to_owned())
            }
            GgufPlanError::NoConfig { of_file: false } => {
                Some("put the model's config.json next to its weights".to_owned())
            }
            GgufPlanError::NoLayers => Some("`kvant inspect` lists the tensors".to_owned()),
            GgufPlanError::Config(_) => Some("config.json must be the one that came with the model".to_owned()),
            GgufPlanError::Family { .. } => Some(format!("{other}; `kvant list families` shows which can")),
            GgufPlanError::Form { .. }
            | GgufPlanError::Expects { .. }
            | GgufPlanError::NoPlace { .. }
            | GgufPlanError::Scaling(_) => Some(other.to_owned()),
            GgufPlanError::AlreadyQuantized { .. } => {
                let ways = "convert its codes with `kvant convert ‹to› gguf`, or start from the original checkpoint";
                Some(format!("{ways}; ‹requantize› quantizes its values again"))
            }
            GgufPlanError::Twice { .. } => {
                Some("start from a file of F32, F16 or BF16, or accept the loss with ‹requantize›".to_owned())
            }
            GgufPlanError::Undecoded { .. } => {
                Some("keep it as it is with ‹exclude›, or start from a file of another type".to_owned())
            }
            GgufPlanError::Conversion { .. } => {
                Some("accept a loss with ‹requantize›, or convert ‹to› float and quantize that".to_owned())
            }
            GgufPlanError::NoBlocks { .. } => Some(
                "use a scheme whose codes its blocks hold (int4:g32, uint4:g32:zp, int8:g32, mxfp4 or nvfp4 with ‹weights-only› \
                 ...), or one of its own, e.g. ‹scheme› Q4_K_M"
                    .to_owned(),
            ),
            GgufPlanError::NothingFits { .. } => {
                Some("use ‹scheme› F16 or BF16, or write a checkpoint, a directory, which has formats without blocks: ‹scheme› int8:channel ‹output› DIR".to_owned())
            }
            GgufPlanError::Attention => {
                Some("leave out the settings of the KV cache: llama.cpp quantizes the cache when it runs (--cache-type-k)".to_owned())
            }
            GgufPlanError::NotQuantized => Some("quantize it with `kvant quantize`".to_owned()),
            GgufPlanError::Shape { .. } => Some("the checkpoint is damaged, or of another convention".to_owned()),
            GgufPlanError::SourceType { .. } => Some("store the weights as F32, F16, BF16, F8_E4M3 or F8_E5M2".to_owned()),
            GgufPlanError::Type { .. } => Some("`kvant list schemes` lists the supported ones".to_owned()),
            GgufPlanError::Columns { .. } => {
                Some("ask for a type with smaller blocks, such as Q8_0, or F16".to_owned())
            }
            GgufPlanError::IdleOverride { nearest, .. } if !nearest.is_empty() => {
                Some(format!("did you mean {}? `kvant plan MODEL ‹all›` shows all names", nearest.join(" or ")))
            }
            GgufPlanError::IdleOverride { ends, .. } => {
                Some(format!("names end in {}; `kvant plan MODEL ‹all›` shows them", ends.join(", ")))
            }
            GgufPlanError::Importance { .. } => Some("it was made from another model: make it again".to_owned()),
        }
    }
}
