//! The reasons that a file of statistics is refused.

use kvant_container::{Diagnostic, ErrorKind, shown};
use std::fmt;
use std::path::PathBuf;

/// The reason that a file of statistics is refused.
#[derive(Debug, thiserror::Error)]
pub enum InputStatisticsError {
    /// The file.
    #[error(transparent)]
    Container(#[from] kvant_container::Error),
    /// A tensor of it.
    #[error("tensor `{tensor}` in {}: {problem}", shown(file))]
    Tensor {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The problem.
        problem: StatisticsProblem,
    },
    /// The file is of another kind (*invalid*).
    #[error("{} is not a file of statistics, which is safetensors: {found}", shown(file))]
    OtherKind {
        /// The file.
        file: PathBuf,
        /// What it looks like.
        found: OtherKind,
    },
    /// It has statistics of no layer (*invalid*).
    #[error("{} holds no statistics{}", shown(file), .component.as_ref().map(|name| format!(" of the component {name}")).unwrap_or_default())]
    Empty {
        /// The file.
        file: PathBuf,
        /// The component of a pipeline that they should be of.
        component: Option<String>,
    },
}

/// Kinds of files that are given in place of statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherKind {
    /// Text, such as calibration data.
    Text,
    /// A GGUF file, such as an importance matrix.
    Gguf,
}

impl fmt::Display for OtherKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OtherKind::Text => "it is text",
            OtherKind::Gguf => "it is a GGUF file",
        })
    }
}

/// What is wrong with a tensor of statistics.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StatisticsProblem {
    /// Its type (*unsupported*).
    #[error("statistics are floats, and it is of type {0}")]
    Type(String),
    /// Its shape (*invalid*).
    #[error("its shape {0:?} is not {1}")]
    Shape(Vec<usize>, &'static str),
    /// One of its values (*invalid*).
    #[error("value {index} is {value}")]
    Value {
        /// Its place.
        index: usize,
        /// The value, and what it should be.
        value: String,
    },
    /// All of its values are zero (*invalid*).
    #[error("{0} are 0 in every channel, as if no data had reached the layer")]
    Zero(&'static str),
    /// An algorithm cannot use it, for this reason (*invalid*).
    #[error("{0}")]
    Unusable(String),
    /// The other end of the range is missing (*invalid*).
    #[error("`{0}` is missing")]
    OneEnd(String),
    /// The other end of the range has another number of channels (*invalid*).
    #[error("it has {found}, and `{other}` has {expected}")]
    Lengths {
        /// Its values.
        found: usize,
        /// The other end.
        other: String,
        /// The values of the other.
        expected: usize,
    },
}

impl Diagnostic for InputStatisticsError {
    fn kind(&self) -> ErrorKind {
        match self {
            InputStatisticsError::Container(error) => error.kind(),
            InputStatisticsError::Tensor { problem: StatisticsProblem::Type(_), .. } => ErrorKind::Unsupported,
            InputStatisticsError::Tensor { .. }
            | InputStatisticsError::OtherKind { .. }
            | InputStatisticsError::Empty { .. } => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            InputStatisticsError::Container(error) => error.hint(),
            InputStatisticsError::Tensor { problem: StatisticsProblem::Type(_), .. } => {
                Some("store it as F32, F64, BF16 or F16".to_owned())
            }
            InputStatisticsError::Tensor { problem: StatisticsProblem::Zero(_), tensor, .. } => {
                let layer = tensor.rsplit_once('.').map_or(tensor.as_str(), |(layer, _)| layer);
                Some(format!(
                    "capture the statistics on data that reach it, or keep the layer with ‹exclude› '{layer}'"
                ))
            }
            InputStatisticsError::OtherKind { found: OtherKind::Text, .. } => {
                Some("give text to calibrate on with ‹calib›".to_owned())
            }
            InputStatisticsError::OtherKind { found: OtherKind::Gguf, .. } => Some(
                "give an importance matrix with ‹imatrix›, for the schemes of GGUF files (`kvant list presets`)"
                    .to_owned(),
            ),
            InputStatisticsError::Tensor { .. } => {
                Some("capture the statistics again, for example with kvant.torch.capture_statistics".to_owned())
            }
            InputStatisticsError::Empty { component: None, .. } => Some(
                "its tensors must be called LAYER.input_min, LAYER.input_max or LAYER.input_mean_square".to_owned(),
            ),
            InputStatisticsError::Empty { component: Some(name), .. } => Some(format!(
                "its tensors must be called {name}.LAYER.input_min and so on; or give a folder with {name}.safetensors"
            )),
        }
    }
}
