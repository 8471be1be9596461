//! Errors of the tensors planned for a GGUF file.

use super::Quoted;
use crate::limits::{DEFAULT_ALIGNMENT, MAX_NAME};
use crate::tensor_type::TensorType;

/// The reason that tensors cannot be laid out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GgufLayoutError {
    /// Two declarations have the same name.
    #[error("tensor {} is declared twice", Quoted(tensor))]
    DuplicateName {
        /// The name.
        tensor: String,
    },
    /// Loaders cut names off.
    #[error("the name {} has more than {MAX_NAME} bytes", Quoted(tensor))]
    LongName {
        /// The name.
        tensor: String,
    },
    /// The type or the format cannot hold the shape.
    #[error("tensor {} of shape {shape:?} cannot be stored as {kind}", Quoted(tensor))]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its type.
        kind: TensorType,
        /// Its dimensions.
        shape: Vec<usize>,
    },
    /// All tensors together do not fit 64 bits.
    #[error("the size of all tensors together overflows 64 bits")]
    TotalOverflow,
    /// The format counts parts in 16 bits and tensors in 31.
    #[error("{tensors} tensors in {parts} files are more than a model in several files can have")]
    TooManyParts {
        /// The number of files.
        parts: usize,
        /// The number of tensors.
        tensors: usize,
    },
    /// The metadata state another alignment than the one that is written.
    #[error("files are written with an alignment of {DEFAULT_ALIGNMENT} only")]
    Alignment,
}
