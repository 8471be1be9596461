//! The safetensors format: a length, a JSON header, the tensors' bytes. One file at a time; sets of shards are found by
//! `checkpoint`.

mod encode;
mod header;
mod layout;

pub use crate::error::{HeaderError, LayoutError};
pub use crate::limits::MAX_HEADER_LEN;
pub(crate) use header::LFS_POINTER;
pub use header::{Header, TensorEntry, TensorPart};
pub use layout::{Layout, Shard, TensorDeclaration, WeightFiles};

/// The member of the header that holds free-form strings; no tensor can have this name.
const METADATA_KEY: &str = "__metadata__";

/// The length of the number in front of the header.
const PREFIX_LEN: u64 = 8;
