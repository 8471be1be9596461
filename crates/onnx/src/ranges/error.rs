//! Files of ranges that cannot be read or written.

use std::path::{Path, PathBuf};

use kvant_container::{Diagnostic, ErrorKind, Remedy};

/// A file of ranges that cannot be read, or ranges that a format does not express.
#[derive(Debug, thiserror::Error)]
pub enum RangesError {
    /// The file is of none of the formats.
    #[error("{}: it is no file of ranges in a known format", file.display())]
    Unknown {
        /// The file.
        file: PathBuf,
    },
    /// The file is of a format, and wrong.
    #[error("{}: {problem}", file.display())]
    Invalid {
        /// The file.
        file: PathBuf,
        /// What is wrong, with the tensor.
        problem: String,
    },
    /// The file is of a form that is not read.
    #[error("{}: {problem}", file.display())]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// What is not read.
        problem: String,
        /// What to do instead.
        way_out: &'static str,
    },
    /// A format has no place for the type of a tensor.
    #[error("the format {format} does not express {element} codes, which `{}` has", tensor.escape_debug())]
    NotExpressed {
        /// The tensor.
        tensor: String,
        /// Its type.
        element: String,
        /// The format.
        format: &'static str,
    },
    /// A format cannot hold a table.
    #[error("the format {format}: {problem}")]
    Unwritable {
        /// The format.
        format: &'static str,
        /// The reason.
        problem: String,
    },
}

/// What is wrong with the contents of a file, whose name the reader adds.
#[derive(Debug)]
pub(super) enum Problem {
    Invalid(String),
    Unsupported(String, &'static str),
}

impl Problem {
    /// One of a tensor.
    pub fn of(tensor: &str, problem: impl std::fmt::Display) -> Self {
        Self::Invalid(format!("`{}`: {problem}", tensor.escape_debug()))
    }

    pub fn of_file(self, file: &Path) -> RangesError {
        let file = file.to_owned();
        match self {
            Self::Invalid(problem) => RangesError::Invalid { file, problem },
            Self::Unsupported(problem, way_out) => RangesError::Unsupported { file, problem, way_out },
        }
    }

    pub fn of_format(self, format: &'static str) -> RangesError {
        match self {
            Self::Invalid(problem) | Self::Unsupported(problem, _) => RangesError::Unwritable { format, problem },
        }
    }
}

impl Diagnostic for RangesError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Unknown { .. } | Self::Invalid { .. } => ErrorKind::Invalid,
            Self::Unsupported { .. } | Self::NotExpressed { .. } | Self::Unwritable { .. } => ErrorKind::Unsupported,
        }
    }

    fn remedies(&self) -> Vec<Remedy> {
        let other = "choose onnxruntime with ‹ranges-format›, which has ranges of any type";
        match self {
            Self::NotExpressed { .. } => vec![Remedy::setting_to("ranges-format", "onnxruntime", other)],
            error => Remedy::of_hint(error.hint()),
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Unknown { .. } => {
                "give AIMET's encodings, ONNX Runtime's calibration table or TensorRT's calibration cache: `kvant list range-formats`"
            }
            Self::Invalid { .. } => "write the file again with the tool that it is from, or correct the entry",
            Self::Unsupported { way_out, .. } => way_out,
            Self::NotExpressed { .. } => return Remedy::hint(&self.remedies()),
            Self::Unwritable { .. } => "choose another format with ‹ranges-format›: `kvant list range-formats`",
        };
        Some(hint.to_owned())
    }
}
