//! Upper limits of file formats and loaders. Readers refuse anything beyond them with an error that states the limit.

/// The longest header that is read, in bytes: the limit of the reference implementation.
pub const MAX_HEADER_LEN: u64 = 100_000_000;

/// The most dimensions a tensor may have: the limit of torch and numpy.
pub(crate) const MAX_DIMENSIONS: usize = 64;

/// The alignment of files that state none, and of all that are written, in bytes.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// The most dimensions of a tensor (`GGML_MAX_DIMS`).
pub(crate) const MAX_GGUF_DIMENSIONS: usize = 4;

/// Most bytes of a tensor's name that loaders take (`GGML_MAX_NAME`, less the zero at its end).
pub(crate) const MAX_NAME: usize = 63;
