//! Errors of files that `torch.save` wrote.

use super::{DAMAGED, Quoted};
use crate::diagnostic::{Diagnostic, ErrorKind};
use crate::limits::{MAX_DIMENSIONS, MAX_HEADER_LEN};
use crate::zip::ZipError;

/// A defect of a PyTorch checkpoint, or something in it that is not a tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PytorchError {
    /// The file is the stand-in of a large file in a Git repository.
    #[error("this is a Git LFS pointer, not the file it points to")]
    LfsPointer,
    /// Neither of the two containers.
    #[error("this is not a file that `torch.save` wrote")]
    Unknown,
    /// A pickle without PyTorch's container around it.
    #[error("this is a pickle of Python, not a file that `torch.save` wrote")]
    BarePickle,
    /// A program with its weights.
    #[error("this is a TorchScript program, of which only the weights could be read")]
    TorchScript,
    /// The archive's directory is wrong.
    #[error("{0}")]
    Zip(ZipError),
    /// An entry of the archive is not stored as it is.
    #[error("the archive's entry {} is compressed or encrypted", Quoted(entry))]
    Compressed {
        /// The entry.
        entry: String,
    },
    /// An entry of the archive is not in it.
    #[error("the file is truncated: the archive's entry {} is beyond its end", Quoted(entry))]
    EntryOutside {
        /// The entry.
        entry: String,
    },
    /// Numbers in the other byte order.
    #[error("its numbers are big-endian")]
    BigEndian,
    /// The pickle is longer than [`MAX_HEADER_LEN`].
    #[error("a pickle of {len} bytes is over the limit of {MAX_HEADER_LEN}")]
    TooLong {
        /// Its length in bytes.
        len: u64,
    },
    /// The pickle ends early, or does with values what they cannot do.
    #[error("its pickle is broken at byte {at}")]
    Pickle {
        /// Where.
        at: usize,
    },
    /// The pickle has an instruction that tensors do not need.
    #[error("its pickle has the instruction {instruction:#04x} at byte {at}, which tensors do not need")]
    Instruction {
        /// The instruction.
        instruction: u8,
        /// Where.
        at: usize,
    },
    /// The pickle names something of Python that tensors do not need.
    #[error("its pickle uses {} of Python, which tensors do not need", Quoted(name))]
    Name {
        /// Module and name.
        name: String,
    },
    /// The file holds something else than a state dictionary.
    #[error("it does not hold a state dictionary: tensors by their names")]
    NotADictionary,
    /// A member of the state dictionary is something else than a tensor.
    #[error("{} in it is not a tensor", Quoted(name))]
    NotATensor {
        /// Its name.
        name: String,
    },
    /// More dimensions than any framework handles.
    #[error("tensor {}: {dimensions} dimensions are over the limit of {MAX_DIMENSIONS}", Quoted(name))]
    TooManyDimensions {
        /// The tensor.
        name: String,
        /// Number of dimensions.
        dimensions: usize,
    },
    /// A tensor is a transposed or strided view.
    #[error("tensor {} of shape {shape:?} is a strided view: its elements are not in order", Quoted(name))]
    Strided {
        /// The tensor.
        name: String,
        /// Its dimensions.
        shape: Vec<usize>,
    },
    /// A tensor's memory is not in the file.
    #[error("tensor {}: its storage {} is not in the file", Quoted(name), Quoted(storage))]
    NoStorage {
        /// The tensor.
        name: String,
        /// The storage.
        storage: String,
    },
    /// A tensor is larger than its memory.
    #[error("tensor {} is not inside its storage", Quoted(name))]
    Outside {
        /// The tensor.
        name: String,
    },
    /// The file lists a storage that no tensor uses, so that its length is unknown.
    #[error("storage {} belongs to no tensor", Quoted(storage))]
    UnknownStorage {
        /// The storage.
        storage: String,
    },
    /// The file ends inside a storage.
    #[error("the file is truncated inside the storage {}", Quoted(storage))]
    Truncated {
        /// The storage.
        storage: String,
    },
}

impl Diagnostic for PytorchError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::BarePickle
            | Self::TorchScript
            | Self::Compressed { .. }
            | Self::BigEndian
            | Self::TooLong { .. }
            | Self::Instruction { .. }
            | Self::Name { .. }
            | Self::NotADictionary
            | Self::NotATensor { .. }
            | Self::TooManyDimensions { .. }
            | Self::Strided { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::LfsPointer => "fetch the files themselves with `git lfs pull`",
            Self::Strided { .. } => "save it again with each tensor made contiguous: `tensor.contiguous()`",
            Self::Unknown => DAMAGED,
            Self::Zip(_) | Self::EntryOutside { .. } | Self::Truncated { .. } => {
                "the download or copy may be incomplete; fetch the file again"
            }
            _ if self.kind() == ErrorKind::Unsupported => {
                "pickles are read for tensors only, and never run: where you trust the file, load it with PyTorch and save \
                 `model.state_dict()` with safetensors"
            }
            _ => return None,
        };
        Some(hint.into())
    }
}
