//! Reasons that sounds cannot be used.

use kvant_container::{Diagnostic, ErrorKind, shown};
use kvant_samples::SampleError;
use std::path::PathBuf;

/// An error of sounds.
#[derive(Debug, thiserror::Error)]
pub enum SoundDataError {
    /// A file cannot be read, or is not what it should be.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// Sounds and arrays are in one folder.
    #[error("{} is a sound, and {} is none", shown(sound), shown(other))]
    Mixed {
        /// The first sound.
        sound: PathBuf,
        /// The first other file.
        other: PathBuf,
    },
    /// The checkpoint does not say how sounds are prepared.
    #[error("{} is missing: it says how sounds become inputs of the model", shown(file))]
    NoExtractor {
        /// Its place.
        file: PathBuf,
    },
    /// The checkpoint's preprocessing is wrong.
    #[error("{}: {problem}", shown(file))]
    Extractor {
        /// The file.
        file: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The checkpoint's preprocessing has a step that is not computed here.
    #[error("{}: {step} is not supported", shown(file))]
    UnsupportedExtractor {
        /// The file.
        file: PathBuf,
        /// The step.
        step: String,
    },
    /// Prepared sounds are not what the model reads.
    #[error("{} makes {found}, and the model reads {expected}", shown(file))]
    OtherInputs {
        /// The file.
        file: PathBuf,
        /// What it makes.
        found: String,
        /// What the model reads.
        expected: String,
    },
    /// A sound has another sampling rate than those that the model reads.
    #[error("{} has {found} samples in a second, and the model reads {expected}", shown(file))]
    Rate {
        /// The sound.
        file: PathBuf,
        /// Its rate.
        found: u32,
        /// That of the model.
        expected: u32,
    },
    /// A sound has more samples than are read.
    #[error("{} has {samples} samples, and at most {most} are read", shown(file))]
    Long {
        /// The sound.
        file: PathBuf,
        /// Its samples.
        samples: usize,
        /// Those that are read.
        most: usize,
    },
    /// An array is not of sounds that the model reads.
    #[error("{}: an array of shape {found:?} holds no {expected}, which the model reads", shown(file))]
    Shape {
        /// The file, with the array in it if there is one.
        file: PathBuf,
        /// Its shape.
        found: Vec<usize>,
        /// What the model reads.
        expected: String,
    },
    /// A value is NaN or infinite.
    #[error("{}: sound {sound} has the value {value}", shown(file))]
    NotFinite {
        /// The file, with the array in it if there is one.
        file: PathBuf,
        /// The sound, counted from 0.
        sound: usize,
        /// The value.
        value: f32,
    },
    /// The text beside a sound cannot be read.
    #[error("{}: {problem}", shown(file))]
    Text {
        /// The text.
        file: PathBuf,
        /// The problem.
        problem: String,
    },
    /// There is no such sound.
    #[error("there is no sound {index} among {count}")]
    NoSound {
        /// Its number.
        index: usize,
        /// How many there are.
        count: usize,
    },
}

impl Diagnostic for SoundDataError {
    fn kind(&self) -> ErrorKind {
        match self {
            SoundDataError::Sample(error) => error.kind(),
            SoundDataError::UnsupportedExtractor { .. } => ErrorKind::Unsupported,
            SoundDataError::NoSound { .. } => ErrorKind::Internal,
            _ => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        let text = match self {
            SoundDataError::Sample(error) => return error.hint(),
            SoundDataError::Mixed { .. } => "name a folder of sounds alone, or arrays alone",
            SoundDataError::NoExtractor { .. } => {
                "put the preprocessor_config.json of the model beside its config.json, or give arrays of `input_features` or `input_values`"
            }
            SoundDataError::Extractor { .. }
            | SoundDataError::UnsupportedExtractor { .. }
            | SoundDataError::OtherInputs { .. } => {
                "give arrays of `input_features` [sounds, bins, frames] or `input_values` [sounds, samples], as the feature extractor of the model makes them"
            }
            SoundDataError::Rate { expected, .. } => {
                return Some(format!(
                    "sounds are not resampled: convert it, e.g. `ffmpeg -i IN.wav -ac 1 -ar {expected} OUT.wav`"
                ));
            }
            SoundDataError::Long { .. } => "cut the sound into shorter ones",
            SoundDataError::Shape { .. } => "prepare sounds with the feature extractor of this model",
            SoundDataError::NotFinite { .. } => "fix or leave out the sound",
            SoundDataError::Text { .. } => "write what is said as UTF-8, or take the text away",
            SoundDataError::NoSound { .. } => return None,
        };
        Some(text.to_owned())
    }
}
