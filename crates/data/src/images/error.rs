//! Reasons that images cannot be used.

use kvant_container::{Diagnostic, ErrorKind, shown};
use kvant_samples::SampleError;
use std::path::PathBuf;

/// An error of images.
#[derive(Debug, thiserror::Error)]
pub enum ImageDataError {
    /// A file cannot be read, or is not what it should be.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// Pictures and arrays are in one folder.
    #[error("{} is a picture, and {} is none", shown(picture), shown(other))]
    Mixed {
        /// The first picture.
        picture: PathBuf,
        /// The first other file.
        other: PathBuf,
    },
    /// The checkpoint does not say how pictures are prepared.
    #[error("{} is missing: it says how pictures become inputs of the model", shown(file))]
    NoProcessor {
        /// Its place.
        file: PathBuf,
    },
    /// The checkpoint's preprocessing is wrong.
    #[error("{}: {problem}", shown(file))]
    Processor {
        /// The file.
        file: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The checkpoint's preprocessing has a step that is not computed here.
    #[error("{}: {step} is not supported", shown(file))]
    UnsupportedProcessor {
        /// The file.
        file: PathBuf,
        /// The step.
        step: String,
    },
    /// Prepared images are not of the shape that the model takes.
    #[error("{} makes images of {found:?}, and the model takes images of {expected:?}", shown(file))]
    ProcessorShape {
        /// The file.
        file: PathBuf,
        /// Channels, height and width that it makes, as far as it fixes them.
        found: Vec<usize>,
        /// Those that the model takes.
        expected: [usize; 3],
    },
    /// An array is not of images that the model takes.
    #[error("{}: an array of shape {found:?} holds no images of {expected:?}, which the model takes", shown(file))]
    Shape {
        /// The file, with the array in it if there is one.
        file: PathBuf,
        /// Its shape.
        found: Vec<usize>,
        /// Channels, height and width.
        expected: [usize; 3],
    },
    /// A value is NaN or infinite.
    #[error("{}: image {image} has the value {value}", shown(file))]
    NotFinite {
        /// The file, with the array in it if there is one.
        file: PathBuf,
        /// The image, counted from 0.
        image: usize,
        /// The value.
        value: f32,
    },
    /// The processor makes another number of rows of an image than the tower.
    #[error("{} says that an image has {found} rows, and the tower of the model makes {expected}", shown(file))]
    ProcessorRows {
        /// The file.
        file: PathBuf,
        /// The number of the processor.
        found: usize,
        /// That of the tower.
        expected: usize,
    },
    /// A token that stands for images is not in the tokenizer.
    #[error("{} has no token {token}, which config.json names for images", shown(file))]
    NoToken {
        /// The tokenizer.
        file: PathBuf,
        /// The token.
        token: u32,
    },
    /// There are more images than numbers for their rows.
    #[error("{images} images have too many rows")]
    TooManyInText {
        /// The images.
        images: usize,
    },
    /// There is no such image.
    #[error("there is no image {index} among {count}")]
    NoImage {
        /// Its number.
        index: usize,
        /// How many there are.
        count: usize,
    },
}

impl Diagnostic for ImageDataError {
    fn kind(&self) -> ErrorKind {
        match self {
            ImageDataError::Sample(error) => error.kind(),
            ImageDataError::UnsupportedProcessor { .. } => ErrorKind::Unsupported,
            ImageDataError::NoImage { .. } => ErrorKind::Internal,
            _ => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        let text = match self {
            ImageDataError::Sample(error) => return error.hint(),
            ImageDataError::Mixed { .. } => "name a folder of pictures alone, or arrays alone",
            ImageDataError::NoProcessor { .. } => {
                "put the preprocessor_config.json of the model beside its config.json, or give arrays of `pixel_values`"
            }
            ImageDataError::Processor { .. }
            | ImageDataError::UnsupportedProcessor { .. }
            | ImageDataError::ProcessorShape { .. } => {
                "give arrays of `pixel_values` [images, channels, height, width], as the image processor of the model makes them"
            }
            ImageDataError::Shape { .. } => {
                "the axes are images, channels, height and width; prepare images with the image processor of this model"
            }
            ImageDataError::NotFinite { .. } => "fix or leave out the image",
            ImageDataError::ProcessorRows { .. } => "take processor_config.json and config.json of the same model",
            ImageDataError::NoToken { .. } => "take the tokenizer of the model",
            ImageDataError::TooManyInText { .. } => "take fewer images",
            ImageDataError::NoImage { .. } => return None,
        };
        Some(text.to_owned())
    }
}
