//! Errors of files with samples.

use std::path::PathBuf;

use kvant_container::{Diagnostic, ErrorKind};

/// A problem of a file with samples.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// The system could not read a file or list a directory.
    #[error("cannot read {}: {cause}", file.display())]
    Io {
        /// The file or directory.
        file: PathBuf,
        /// The system's answer.
        cause: String,
    },
    /// A file that is not of the format its name or first bytes say.
    #[error("{}: {problem}", file.display())]
    Invalid {
        /// The file, with the entry in it if there is one.
        file: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A file that may be fine but is not handled.
    #[error("{}: {problem}", file.display())]
    Unsupported {
        /// The file, with the entry in it if there is one.
        file: PathBuf,
        /// The unsupported feature.
        problem: String,
    },
    /// A file whose reader was left out of the build.
    #[error("{}: not supported: built without the `{feature}` feature", file.display())]
    NotBuilt {
        /// The file.
        file: PathBuf,
        /// The feature that has the reader.
        feature: &'static str,
    },
    /// A picture or a sound that cannot be read or prepared.
    #[error("{}: {problem}", file.display())]
    Media {
        /// The file.
        file: PathBuf,
        /// The problem.
        problem: String,
        /// What to do about it.
        way_out: &'static str,
    },
}

impl SampleError {
    /// The system's refusal of a file.
    pub fn io(file: impl Into<PathBuf>, cause: impl std::fmt::Display) -> Self {
        Self::Io { file: file.into(), cause: cause.to_string() }
    }

    /// A file that is wrong.
    pub fn invalid(file: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        Self::Invalid { file: file.into(), problem: problem.into() }
    }

    /// A file that is not handled.
    pub fn unsupported(file: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        Self::Unsupported { file: file.into(), problem: problem.into() }
    }
}

impl Diagnostic for SampleError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { .. } => ErrorKind::Io,
            Self::Unsupported { .. } | Self::NotBuilt { .. } => ErrorKind::Unsupported,
            Self::Invalid { .. } | Self::Media { .. } => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NotBuilt { .. } => {
                "build Kvant with `--features images`, or give the prepared samples in an .npz file"
            }
            Self::Media { way_out, .. } => way_out,
            Self::Invalid { file, .. } if file.is_dir() => "name the folder that the samples are in",
            Self::Invalid { .. } => "copy the file again if it was cut short, or write it again, e.g. with numpy.savez",
            Self::Unsupported { .. } => {
                "give an .npz, .npy or .safetensors file of plain numbers, e.g. numpy.savez('data.npz', x=x.astype('float32')), a folder of such files, or images where the model has one input"
            }
            Self::Io { .. } => "check the path, and that the file can be read",
        };
        Some(hint.to_owned())
    }
}
