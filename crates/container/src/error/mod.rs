//! The error of every fallible operation of the crate: what failed, in which file, at which tensor, and what to do.

mod checkpoint;
mod gguf;
mod gguf_layout;
mod onnx;
mod pytorch;
mod safetensors;
mod writer;

pub use checkpoint::CheckpointError;
pub use gguf::GgufError;
pub use gguf_layout::GgufLayoutError;
pub use onnx::OnnxError;
pub use pytorch::PytorchError;
pub use safetensors::{HeaderError, LayoutError};
pub use writer::WriterError;

use crate::diagnostic::{Diagnostic, ErrorKind};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The hint for a file that is not what it should be.
const DAMAGED: &str = "the file is damaged, or not what its name says: download it again";

/// Hints for common system errors.
pub fn io_hint(cause: &io::Error) -> Option<&'static str> {
    match cause.kind() {
        io::ErrorKind::NotFound => Some("check the path"),
        io::ErrorKind::PermissionDenied => Some("check who owns it and who may read or write it"),
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            Some("a part of the path is a file; choose another")
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Some("free some space, or choose an output on another disk")
        }
        io::ErrorKind::FileTooLarge => {
            Some("raise the limit on the size of files (ulimit -f), or write smaller shards with ‹max-shard-size›")
        }
        io::ErrorKind::ReadOnlyFilesystem => Some("the file system is read-only: choose a path on another one"),
        io::ErrorKind::InvalidFilename => Some("choose a shorter name"),
        _ if cause.raw_os_error() == Some(24) => {
            Some("too many files are open: raise the limit (ulimit -n), or write larger shards with ‹max-shard-size›")
        }
        _ => None,
    }
}

/// Longest name or foreign message quoted in an error, in characters.
const MAX_QUOTED: usize = 200;

/// An error of a file. Messages are one line and safe to print: names from files are escaped and shortened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused an operation.
    #[error("cannot {action} {}{}: {cause}", crate::path_text::shown(file), OfTensor(tensor.as_deref()))]
    Io {
        /// The attempted operation, as a verb: "open", "read", "write".
        action: &'static str,
        /// The file or directory it was attempted on.
        file: PathBuf,
        /// The tensor being moved, if one was.
        tensor: Option<String>,
        /// The system's answer.
        cause: io::Error,
    },
    /// The file system (or the user's quota on it) is full.
    #[error("no space left to {action} {}{}: {cause}", crate::path_text::shown(file), OfTensor(tensor.as_deref()))]
    DiskFull {
        /// The attempted operation, as a verb.
        action: &'static str,
        /// The file that could not grow.
        file: PathBuf,
        /// The tensor being written, if one was.
        tensor: Option<String>,
        /// The system's answer.
        cause: io::Error,
    },
    /// A file that must be a regular file (or a link to one) is something else.
    #[error("{} is not a regular file", crate::path_text::shown(file))]
    NotAFile {
        /// The file.
        file: PathBuf,
    },
    /// A JSON file is larger than anything sane.
    #[error("{} has {len} bytes, more than the limit of {limit}", crate::path_text::shown(file))]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// Its length in bytes.
        len: u64,
        /// The most that is read.
        limit: u64,
    },
    /// A JSON file does not parse, or does not hold the expected value.
    #[error("{}: {message}", crate::path_text::shown(file))]
    Json {
        /// The file.
        file: PathBuf,
        /// The parser's message, with line and column.
        message: String,
    },
    /// A safetensors header is wrong.
    #[error("{}: {problem}", crate::path_text::shown(file))]
    Header {
        /// The file.
        file: PathBuf,
        /// The problem.
        problem: HeaderError,
    },
    /// The files of a checkpoint do not make one.
    #[error("{}: {problem}", crate::path_text::shown(path))]
    Checkpoint {
        /// The checkpoint's directory, index or file.
        path: PathBuf,
        /// The problem.
        problem: CheckpointError,
    },
    /// A file is not an ONNX model, or its data are not where the model says.
    #[error("{}: {problem}", crate::path_text::shown(file))]
    Onnx {
        /// The file.
        file: PathBuf,
        /// The problem.
        problem: OnnxError,
    },
    /// A file is not GGUF, or its tensors are not where the header says.
    #[error("{}: {problem}", crate::path_text::shown(file))]
    Gguf {
        /// The file.
        file: PathBuf,
        /// The problem.
        problem: GgufError,
    },
    /// A file that `torch.save` wrote is damaged, or holds something else than tensors.
    #[error("{}: {problem}", crate::path_text::shown(file))]
    Pytorch {
        /// The file.
        file: PathBuf,
        /// The problem.
        problem: PytorchError,
    },
    /// A SentencePiece model is damaged.
    #[error("{}: {reason}", crate::path_text::shown(file))]
    SentencePiece {
        /// The file.
        file: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The tensors declared for writing cannot be laid out.
    #[error("{0}")]
    Layout(#[from] LayoutError),
    /// The tensors declared for a GGUF file cannot be laid out.
    #[error("{0}")]
    GgufLayout(#[from] GgufLayoutError),
    /// The output written so far does not match the request.
    #[error("{}: {problem}", crate::path_text::shown(file))]
    Writer {
        /// The file.
        file: PathBuf,
        /// The problem.
        problem: WriterError,
    },
    /// The user asked to stop.
    #[error("stopped")]
    Cancelled,
}

impl Error {
    /// Wraps a system error, distinguishing a full disk from other failures.
    pub(crate) fn io(action: &'static str, file: &Path, tensor: Option<&str>, cause: io::Error) -> Self {
        let (file, tensor) = (file.to_path_buf(), tensor.map(str::to_owned));
        match cause.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { action, file, tensor, cause },
            _ => Self::Io { action, file, tensor, cause },
        }
    }
}

impl Diagnostic for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { .. } | Self::DiskFull { .. } => ErrorKind::Io,
            Self::Header { problem, .. } => problem.kind(),
            Self::Checkpoint { problem, .. } => problem.kind(),
            Self::Onnx { problem, .. } => problem.kind(),
            Self::Gguf { problem, .. } => problem.kind(),
            Self::Pytorch { problem, .. } => problem.kind(),
            Self::TooLarge { .. } => ErrorKind::Unsupported,
            Self::Cancelled => ErrorKind::Cancelled,
            Self::NotAFile { .. }
            | Self::Json { .. }
            | Self::SentencePiece { .. }
            | Self::Layout(_)
            | Self::GgufLayout(_)
            | Self::Writer { .. } => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::DiskFull { .. } => Some("free some space or choose an output directory on another disk".into()),
            Self::Header { problem, .. } => Some(problem.hint().unwrap_or_else(|| DAMAGED.to_owned())),
            Self::Checkpoint { problem, .. } => Some(problem.hint().unwrap_or_else(|| DAMAGED.to_owned())),
            Self::Onnx { problem, .. } => Some(problem.hint().unwrap_or_else(|| DAMAGED.to_owned())),
            Self::Gguf { problem, .. } => Some(problem.hint().unwrap_or_else(|| DAMAGED.to_owned())),
            Self::Pytorch { problem, .. } => Some(problem.hint().unwrap_or_else(|| DAMAGED.to_owned())),
            Self::Layout(problem) => problem.hint(),
            Self::GgufLayout(_) => None,
            Self::Writer { problem, .. } => problem.hint(),
            Self::Io { cause, .. } => io_hint(cause).map(str::to_owned),
            Self::NotAFile { file } if file.extension().is_some_and(|found| found.eq_ignore_ascii_case("onnx")) => {
                Some("name a file that ends with .onnx: a graph is one file".into())
            }
            Self::NotAFile { .. } => Some("name the directory of a checkpoint, or one .safetensors file".into()),
            Self::TooLarge { .. } => {
                Some("such a file is not a description of a model: look at where it came from".into())
            }
            Self::Json { .. } | Self::SentencePiece { .. } => Some(DAMAGED.into()),
            Self::Cancelled => None,
        }
    }
}

/// A name from a file, escaped and shortened so that it cannot garble a terminal or flood a log.
pub(crate) struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", shorten(self.0))
    }
}

/// Escapes control characters and cuts after [`MAX_QUOTED`] characters.
pub(crate) fn shorten(text: &str) -> String {
    let mut short = String::new();
    for c in text.chars().take(MAX_QUOTED) {
        match c.is_control() {
            true => short.extend(c.escape_default()),
            false => short.push(c),
        }
    }
    if text.chars().nth(MAX_QUOTED).is_some() {
        short.push_str("...");
    }
    short
}

/// " (tensor `x`)", or nothing.
struct OfTensor<'a>(Option<&'a str>);

impl fmt::Display for OfTensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => write!(f, " (tensor {})", Quoted(name)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_names_are_escaped_and_shortened() {
        assert_eq!(Quoted("a\u{1b}[2J\n").to_string(), "`a\\u{1b}[2J\\n`");
        assert!(Quoted(&"x".repeat(1_000_000)).to_string().len() < 300);
    }

    #[test]
    fn read_only_file_system_has_its_own_hint() {
        let hint = io_hint(&io::Error::from(io::ErrorKind::ReadOnlyFilesystem)).unwrap();
        assert!(hint.contains("choose a path on another one"), "{hint}");
    }

    #[test]
    fn full_disk_has_its_own_error() {
        let cause = io::Error::from(io::ErrorKind::StorageFull);
        let error = Error::io("write", Path::new("out/model.safetensors"), Some("w"), cause);
        assert!(matches!(error, Error::DiskFull { .. }));
        assert!(error.to_string().starts_with("no space left to write out/model.safetensors (tensor `w`)"), "{error}");
        assert!(error.hint().is_some());
    }
}
