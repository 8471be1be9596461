//! Errors of a writer.

use super::Quoted;

/// A mismatch between the output and a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriterError {
    /// The index is not one of a declared tensor.
    #[error("there is no tensor {index} among the {count} declared")]
    NoSuchTensor {
        /// The index asked for.
        index: usize,
        /// Their number.
        count: usize,
    },
    /// The bytes do not lie inside the tensor.
    #[error("tensor {}: {len} bytes at {offset} do not fit into its {tensor_len}", Quoted(tensor))]
    OutOfRange {
        /// The tensor.
        tensor: String,
        /// First byte, counted from its start.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// The length of the tensor.
        tensor_len: u64,
    },
    /// Not all bytes of a tensor were written.
    #[error("tensor {}: {missing} bytes were never written", Quoted(tensor))]
    Incomplete {
        /// The tensor.
        tensor: String,
        /// The number of missing bytes.
        missing: u64,
    },
    /// A file to resume has the wrong length.
    #[error("cannot resume this file: it has {found} bytes, not {expected}")]
    OtherLength {
        /// Its length in bytes.
        found: u64,
        /// The length by the layout.
        expected: u64,
    },
    /// A file to resume has another header.
    #[error("cannot resume this file: its header is that of another run")]
    OtherHeader,
}

impl WriterError {
    /// A hint for the user, if one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::OtherLength { .. } | Self::OtherHeader => Some("remove the unfinished output and start over".into()),
            _ => None,
        }
    }
}
