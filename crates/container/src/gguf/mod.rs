//! GGUF, the file format of llama.cpp and what is built on it: typed metadata, a list of tensors, their bytes. Versions 2
//! and 3, little-endian. No model families, no quantization: the contents of blocks are not interpreted here.
//!
//! A file is, in this order and little-endian:
//!
//! * `GGUF`, the version as `u32`, the number of tensors and the number of metadata entries as `u64`,
//! * the entries: key, type as `u32`, value; a string is its length as `u64` and its bytes,
//! * for each tensor its name, the number of dimensions as `u32`, the dimensions as `u64`, **fastest first**, the type as
//!   `u32`, and where it begins, counted from the start of the data, as `u64`,
//! * padding up to a multiple of `general.alignment` (32 where it is not stated), and the data, each tensor aligned likewise.
//!
//! Source: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod cursor;
mod encode;
mod file;
mod layout;
mod metadata;
mod parse;
mod parts;
#[cfg(test)]
mod tests;
mod value;

use crate::MappedFile;
use std::path::Path;

pub use crate::error::GgufError;
pub use crate::error::GgufLayoutError;
pub use crate::limits::DEFAULT_ALIGNMENT;
pub use crate::tensor_type::TensorType;
pub use file::{GgufFile, GgufTensor};
pub use layout::{GgufDeclaration, GgufLayout};
pub use metadata::Metadata;
pub use parts::parts_named;
pub use value::{Array, Text, Value, ValueType};

/// The first bytes of every file.
const MAGIC: &[u8; 4] = b"GGUF";

/// The version that is written.
const VERSION: u32 = 3;

/// The key of the alignment.
pub const ALIGNMENT_KEY: &str = "general.alignment";

/// Returns whether a file starts with the GGUF magic.
pub fn begins_as_gguf(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Returns whether a path is a GGUF file, by its magic or its name.
pub fn means_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) || is_gguf(path)
}

/// Returns whether a path is a file that starts with the GGUF magic.
pub fn is_gguf(path: &Path) -> bool {
    path.is_file() && MappedFile::open(path).is_ok_and(|map| begins_as_gguf(&map))
}

/// The `general.type` of an importance matrix.
pub const IMATRIX_TYPE: &str = "imatrix";

/// Returns whether the metadata of a file are those of an importance matrix.
pub fn describes_imatrix(metadata: &Metadata) -> bool {
    metadata.get("general.type").and_then(Value::as_str) == Some(IMATRIX_TYPE)
}

/// Returns whether a path is a GGUF file with an importance matrix in place of a model.
pub fn is_imatrix(path: &Path) -> bool {
    is_gguf(path) && GgufFile::open(path).is_ok_and(|file| describes_imatrix(file.metadata()))
}
