//! Errors of calibration or evaluation data.

use std::path::PathBuf;

use kvant_container::{Diagnostic, ErrorKind};
use kvant_samples::SampleError;

/// A problem of data, found before a model runs on them.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file that cannot be read, or is not what it should be.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// The source holds nothing for an input of the model.
    #[error("the data has no array for the model's input `{input}`; it has {}", list(found))]
    MissingInput {
        /// The input.
        input: String,
        /// The available names.
        found: Vec<String>,
    },
    /// The source holds no labels of this name.
    #[error("the data has no array `{labels}` of labels; it has {}", list(found))]
    MissingLabels {
        /// The name.
        labels: String,
        /// The available names.
        found: Vec<String>,
    },
    /// An array does not fit the input it is for.
    #[error("the data for input `{input}`: {problem}")]
    Mismatch {
        /// The input.
        input: String,
        /// The mismatch.
        problem: String,
    },
    /// A value that no range can hold.
    #[error("{}: sample {sample} for input `{input}` has {value} at {position:?}", file.display())]
    NotFinite {
        /// The file, with the array in it if there is one.
        file: PathBuf,
        /// The input.
        input: String,
        /// The sample among all, counted from 0.
        sample: usize,
        /// `NaN`, `infinity` or `minus infinity`.
        value: &'static str,
        /// The position in the sample: an index for each axis.
        position: Vec<usize>,
    },
    /// Images that do not become what an input takes.
    #[error("the images for input `{input}`: {problem}")]
    Images {
        /// The input.
        input: String,
        /// The mismatch.
        problem: String,
        /// What to declare instead.
        way_out: &'static str,
    },
    /// The model needs data of a kind that cannot be made up.
    #[error("no random data for input `{input}`: {problem}")]
    NoRandom {
        /// The input.
        input: String,
        /// The reasons against.
        problem: String,
    },
    /// A text that describes no preprocessing.
    #[error("preprocessing: {0}")]
    Preprocessing(String),
    /// Image preprocessing for data other than images.
    #[error("‹preprocess› and ‹data› {data} exclude each other: the data is not images")]
    IdlePreprocessing {
        /// The kind of the data.
        data: String,
    },
    /// The graph computes constants alone.
    #[error("the graph has no inputs: there is nothing to calibrate on or to measure")]
    NoInputs,
    /// No sample at all.
    #[error("the data has no samples")]
    Empty,
}

impl Diagnostic for DataError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Sample(error) => error.kind(),
            Self::NoRandom { .. } => ErrorKind::Unsupported,
            Self::IdlePreprocessing { .. } | Self::Preprocessing(_) => ErrorKind::Usage,
            _ => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Sample(error) => return error.hint(),
            Self::MissingInput { .. } => Some("name the arrays of an .npz file as the model's inputs are named"),
            Self::MissingLabels { .. } => Some("name the array with the class of each sample with ‹labels›"),
            Self::Mismatch { .. } => Some(
                "the first axis of an array holds the samples, the others have the shape the model's input has after its batch axis",
            ),
            Self::NotFinite { .. } => Some(
                "fix or omit the sample; where it is an attention mask, write the type's lowest number in place of minus infinity",
            ),
            Self::Images { way_out, .. } => Some(*way_out),
            Self::NoRandom { .. } => Some("give real data: random values say little about ranges anyway"),
            Self::IdlePreprocessing { .. } => {
                Some("leave ‹preprocess› out: arrays are given to the model as they are; or name a folder of images")
            }
            Self::NoInputs => Some("leave ‹data› out, with a preset that needs none"),
            Self::Empty => Some("name data with one sample at least"),
            Self::Preprocessing(_) => {
                Some("for example size=256,crop=224,mean=0.485:0.456:0.406,std=0.229:0.224:0.225,layout=nchw")
            }
        };
        hint.map(str::to_owned)
    }
}

/// Names for a message: the first few, quoted.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    match names.len() {
        0 => "none".to_owned(),
        n if n > SHOWN => format!("{} and {} more", shown.join(", "), n - SHOWN),
        _ => shown.join(", "),
    }
}
