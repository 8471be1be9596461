//! Errors of a safetensors file, read or written.

use super::Quoted;
use crate::diagnostic::{Diagnostic, ErrorKind};
use crate::dtype::{Dtype, SizeError};
use crate::limits::{MAX_DIMENSIONS, MAX_HEADER_LEN};

/// A defect of a safetensors header.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum HeaderError {
    /// The file is the stand-in of a large file in a Git repository.
    #[error("this is a Git LFS pointer, not the file it points to")]
    LfsPointer,
    /// The file has no room for the length of a header.
    #[error("{len} bytes are too few for a safetensors file")]
    TooShort {
        /// Length of the file in bytes.
        len: u64,
    },
    /// The header claims to be longer than [`MAX_HEADER_LEN`].
    #[error("a header of {len} bytes is over the limit of {MAX_HEADER_LEN}; this is probably not a safetensors file")]
    TooLong {
        /// Claimed length in bytes.
        len: u64,
    },
    /// The file ends inside the header.
    #[error("the file is truncated inside its header of {len} bytes: {missing} bytes are missing")]
    HeaderTruncated {
        /// Claimed length of the header in bytes.
        len: u64,
        /// The number of missing bytes.
        missing: u64,
    },
    /// The header does not begin with `{`.
    #[error("the header is not a JSON object; this is probably not a safetensors file")]
    NotAnObject,
    /// The header does not parse, or its values have the wrong types.
    #[error("the header is invalid: {0}")]
    Json(String),
    /// Two tensors have the same name.
    #[error("tensor {} is in the header twice", Quoted(tensor))]
    DuplicateTensor {
        /// Name of the tensor.
        tensor: String,
    },
    /// Two metadata entries have the same key.
    #[error("metadata {} is in the header twice", Quoted(key))]
    DuplicateMetadata {
        /// Key of the entry.
        key: String,
    },
    /// The element type is unknown to this crate.
    #[error("tensor {}: unknown dtype {}", Quoted(tensor), Quoted(dtype))]
    UnknownDtype {
        /// Name of the tensor.
        tensor: String,
        /// The dtype as spelled in the file.
        dtype: String,
    },
    /// More dimensions than any framework handles.
    #[error("tensor {}: {dimensions} dimensions are over the limit of {MAX_DIMENSIONS}", Quoted(tensor))]
    TooManyDimensions {
        /// Name of the tensor.
        tensor: String,
        /// Number of dimensions.
        dimensions: usize,
    },
    /// Dtype and shape give no byte length.
    #[error("tensor {} of type {dtype} and shape {shape:?}: {problem}", Quoted(tensor))]
    Size {
        /// Name of the tensor.
        tensor: String,
        /// Type of its elements.
        dtype: Dtype,
        /// Its dimensions.
        shape: Vec<usize>,
        /// The reason that there is no byte length.
        problem: SizeError,
    },
    /// The range ends before it begins.
    #[error("tensor {}: its data ends at {end}, before it begins at {begin}", Quoted(tensor))]
    ReversedOffsets {
        /// Name of the tensor.
        tensor: String,
        /// First offset, relative to the data.
        begin: u64,
        /// Second offset, relative to the data.
        end: u64,
    },
    /// The range is not as long as dtype and shape demand.
    #[error("tensor {}: {dtype} of shape {shape:?} takes {expected} bytes, not {found}", Quoted(tensor))]
    SizeMismatch {
        /// Name of the tensor.
        tensor: String,
        /// Type of its elements.
        dtype: Dtype,
        /// Its dimensions.
        shape: Vec<usize>,
        /// Bytes by dtype and shape.
        expected: u64,
        /// Bytes by the offsets.
        found: u64,
    },
    /// The offsets do not fit 64 bits once the header's length is added.
    #[error("tensor {}: its end at {end} overflows", Quoted(tensor))]
    OffsetOverflow {
        /// Name of the tensor.
        tensor: String,
        /// End, relative to the data.
        end: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors {} and {} overlap", Quoted(first), Quoted(second))]
    Overlap {
        /// The one that begins first.
        first: String,
        /// The one that begins inside it.
        second: String,
    },
    /// The file ends before its last tensor does.
    #[error(
        "the file is truncated: it ends after {file_len} bytes, {missing} bytes are missing, first in tensor {}",
        Quoted(tensor)
    )]
    Truncated {
        /// The first tensor that is not whole.
        tensor: String,
        /// Length of the file in bytes.
        file_len: u64,
        /// Bytes missing to the end of the last tensor.
        missing: u64,
    },
}

impl Diagnostic for HeaderError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::UnknownDtype { .. } | Self::TooManyDimensions { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::LfsPointer => Some("fetch the files themselves with `git lfs pull`".into()),
            Self::TooShort { .. } | Self::HeaderTruncated { .. } | Self::Truncated { .. } => {
                Some("the download or copy may be incomplete; fetch the file again".into())
            }
            _ => None,
        }
    }
}

/// The reason that tensors cannot be laid out.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LayoutError {
    /// Two declarations have the same name.
    #[error("tensor {} is declared twice", Quoted(tensor))]
    DuplicateName {
        /// The name.
        tensor: String,
    },
    /// A declaration has the name that the format keeps for itself.
    #[error("`__metadata__` cannot be the name of a tensor")]
    ReservedName,
    /// Dtype and shape give no byte length.
    #[error("tensor {} of type {dtype} and shape {shape:?}: {problem}", Quoted(tensor))]
    Size {
        /// The tensor.
        tensor: String,
        /// Type of its elements.
        dtype: Dtype,
        /// Its dimensions.
        shape: Vec<usize>,
        /// The reason that there is no byte length.
        problem: SizeError,
    },
    /// All tensors together do not fit 64 bits.
    #[error("the size of all tensors together overflows 64 bits")]
    TotalOverflow,
    /// A header is over [`MAX_HEADER_LEN`], and no reader would take it.
    #[error("{file_name} would have a header of {len} bytes, over the limit of {MAX_HEADER_LEN}")]
    HeaderTooLong {
        /// The shard.
        file_name: String,
        /// Length of its header in bytes.
        len: u64,
    },
    /// The JSON writer failed.
    #[error("cannot encode a header: {0}")]
    Encode(String),
}

impl LayoutError {
    /// A hint for the user, if one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::HeaderTooLong { .. } => {
                Some("choose a smaller maximum shard size, so that a shard holds fewer tensors".into())
            }
            _ => None,
        }
    }
}
