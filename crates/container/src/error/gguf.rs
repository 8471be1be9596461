//! A defect of a GGUF file.

use crate::diagnostic::{Diagnostic, ErrorKind};
use crate::error::Quoted;

/// The reason that a file is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GgufError {
    /// It does not begin with `GGUF` (*invalid*).
    #[error("it does not begin as a GGUF file does")]
    NotGguf,
    /// It is of another version (*unsupported*).
    #[error("version {0} of GGUF is not read")]
    Version(u32),
    /// It is big-endian (*unsupported*).
    #[error("it is big-endian, which is not read")]
    BigEndian,
    /// It ends before it should (*invalid*).
    #[error("it ends in the middle of {what}")]
    Truncated {
        /// Of what.
        what: &'static str,
    },
    /// It ends before as many things as it counts could be there (*invalid*).
    #[error("it ends early: {what} is {found}, for which the {left} bytes behind it are too few")]
    CutShort {
        /// The name of the counted items.
        what: &'static str,
        /// The number.
        found: u64,
        /// The bytes behind it.
        left: usize,
    },
    /// A count, a size or a value is out of all bounds (*invalid*).
    #[error("{what} is {found}, which cannot be")]
    Impossible {
        /// Of what.
        what: String,
        /// Its kind.
        found: u64,
    },
    /// The metadata take more bytes than are read (*unsupported*).
    #[error("metadata of more than {limit} bytes are not read")]
    TooMuchMetadata {
        /// The most that is read.
        limit: u64,
    },
    /// A name or key is not text (*invalid*).
    #[error("{what} is not UTF-8")]
    NotText {
        /// Which.
        what: &'static str,
    },
    /// A key comes twice (*invalid*).
    #[error("the key {} comes twice", Quoted(.0))]
    DuplicateKey(String),
    /// Two tensors have one name (*invalid*).
    #[error("there are two tensors {}", Quoted(.0))]
    DuplicateTensor(String),
    /// It is a part of a model, and not called as such (*invalid*).
    #[error("it is part {number} of {count} of a model, and its name does not say so")]
    PartName {
        /// Which part, counted from 1.
        number: u64,
        /// The number of parts.
        count: u64,
    },
    /// It is not the part of a model that its name says (*invalid*).
    #[error("it is {stated}, not the part that its name says")]
    OtherPart {
        /// What it is.
        stated: String,
    },
    /// The parts of a model do not have all of its tensors (*invalid*).
    #[error("the parts of the model have {found} tensors, and should have {stated}")]
    PartsIncomplete {
        /// The tensors that there are.
        found: usize,
        /// The number of tensors that the first part states.
        stated: u64,
    },
    /// Something is wrong with a tensor (*invalid*).
    #[error("tensor {}: {problem}", Quoted(tensor))]
    Tensor {
        /// The tensor.
        tensor: String,
        /// The problem.
        problem: String,
    },
    /// A tensor is of a type that is not known (*unsupported*).
    #[error("tensor {} is of type number {id}, which is not known", Quoted(tensor))]
    TensorType {
        /// The tensor.
        tensor: String,
        /// The number.
        id: u32,
    },
}

impl GgufError {
    pub(crate) fn tensor(name: &str, problem: impl Into<String>) -> GgufError {
        GgufError::Tensor { tensor: name.to_owned(), problem: problem.into() }
    }
}

impl Diagnostic for GgufError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Version(_) | Self::BigEndian | Self::TooMuchMetadata { .. } | Self::TensorType { .. } => {
                ErrorKind::Unsupported
            }
            _ => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Version(_) => Some("convert it again with a current llama.cpp, or look for a newer file"),
            Self::BigEndian => Some("gguf-py's gguf_convert_endian.py converts it to little-endian"),
            Self::PartName { .. } => {
                Some("name the parts as llama-gguf-split does: NAME-00001-of-00003.gguf, NAME-00002-of-00003.gguf ...")
            }
            Self::OtherPart { .. } | Self::PartsIncomplete { .. } => Some(
                "a part may be from another model: put all parts of one into a folder, with the names that they had",
            ),
            Self::TensorType { .. } => Some("the file was made by a fork or a newer version of llama.cpp"),
            _ => None,
        };
        hint.map(str::to_owned)
    }
}
