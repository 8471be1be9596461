//! Failures of opening or running a checkpoint.

use kvant_container::{Diagnostic, ErrorKind};
use kvant_data::images::ImageDataError;
use kvant_data::sounds::SoundDataError;
use kvant_model::model_config::ConfigError;
use kvant_quant::activation::ActivationError;
use kvant_quant::counts::number;
use kvant_weights::import_error::ImportError;

/// An error of the forward pass.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// config.json is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file is wrong.
    #[error(transparent)]
    File(#[from] kvant_container::Error),
    /// A quantized weight is wrong, or stored in a way that is not read.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The model has a rule that is not computed here.
    #[error("the forward pass does not compute {rule}")]
    Unsupported {
        /// The rule, naming the layer or key it comes from.
        rule: String,
    },
    /// The architecture has no description.
    #[error("{architecture} has no description that fits its tensors, so that it is not known what its layers compute")]
    Undescribed {
        /// Its name.
        architecture: String,
        /// Whether a description of it can be drafted.
        can_be_described: bool,
    },
    /// The model is a component of a diffusers pipeline.
    #[error("{class} is a component of diffusers pipelines, which do not run in Kvant")]
    Component {
        /// Its class.
        class: String,
    },
    /// The model has a tower for text and one for images, which read different data.
    #[error("{class} has a tower for text and one for images, and no data are of both")]
    TwoTowers {
        /// Its class.
        class: String,
    },
    /// The model predicts no next token.
    #[error("{family} is a family of encoders, which predict no next token")]
    Encoder {
        /// The family.
        family: &'static str,
    },
    /// The model reads a text and predicts another.
    #[error("{family} is a family of encoder-decoders, which read one text and predict another")]
    EncoderDecoder {
        /// The family.
        family: &'static str,
    },
    /// Nothing says which model the tensors are.
    #[error("the checkpoint has no config.json, which describes the model to run")]
    NoConfig,
    /// A tensor that the architecture needs is not there.
    #[error("{place} has no {what}")]
    Missing {
        /// The block, or the model.
        place: String,
        /// The missing object.
        what: String,
    },
    /// A tensor is not what config.json implies.
    #[error("{tensor}: shape {found:?} does not fit {expected}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        found: Vec<usize>,
        /// The expected value, and its source.
        expected: String,
    },
    /// A weight is NaN or infinite.
    #[error("tensor `{tensor}`: the weight of output {output}, input {input} of `{module}` is {value}")]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// The layer.
        module: String,
        /// The output.
        output: usize,
        /// The input.
        input: usize,
        /// Its kind.
        value: f32,
    },
    /// A token is not in the vocabulary.
    #[error("token {token} is not in the vocabulary of {vocabulary}")]
    Token {
        /// The token.
        token: u32,
        /// The size of the vocabulary.
        vocabulary: usize,
    },
    /// A sequence is longer than the table of positions.
    #[error(
        "a sequence of {} is longer than the {longest} positions that the model has learned",
        number(length, "token")
    )]
    TooLong {
        /// The requested length.
        length: usize,
        /// The longest possible.
        longest: usize,
    },
    /// A checkpoint's activations cannot be quantized as it says.
    #[error("{place}: {cause}")]
    Activation {
        /// The layer or block, and what of it.
        place: String,
        /// The reason.
        cause: ActivationError,
    },
    /// An image cannot be read.
    #[error(transparent)]
    Image(#[from] ImageDataError),
    /// A model of images has been given none.
    #[error("the model reads images, and has been given none")]
    NoImages,
    /// There are more patches than numbers for them.
    #[error("{images} images have too many patches")]
    TooManyImages {
        /// The images.
        images: usize,
    },
    /// A sound cannot be read or prepared.
    #[error(transparent)]
    Sound(#[from] SoundDataError),
    /// A model of sounds has been given none.
    #[error("the model reads sounds, and has been given none")]
    NoSounds,
    /// A sound is shorter than the model's convolutions.
    #[error("{sound} is too short: the convolutions of the model make no row of it")]
    ShortSound {
        /// The sound.
        sound: String,
    },
    /// There are more rows of sounds than numbers for them.
    #[error("{sounds} sounds have too many rows")]
    TooManySounds {
        /// The sounds.
        sounds: usize,
    },
    /// It was asked to stop.
    #[error("stopped")]
    Cancelled,
    /// Activations cannot be kept in a temporary file.
    #[error("cannot keep activations in a temporary file: {0}")]
    Spill(#[source] std::io::Error),
}

impl ForwardError {
    /// The error for an unsupported rule.
    pub fn unsupported(rule: impl Into<String>) -> ForwardError {
        ForwardError::Unsupported { rule: rule.into() }
    }

    /// The error for a missing object.
    pub(super) fn missing(place: impl Into<String>, what: impl Into<String>) -> ForwardError {
        ForwardError::Missing { place: place.into(), what: what.into() }
    }
}

impl Diagnostic for ForwardError {
    fn kind(&self) -> ErrorKind {
        match self {
            ForwardError::Unsupported { .. }
            | ForwardError::Undescribed { .. }
            | ForwardError::Component { .. }
            | ForwardError::TwoTowers { .. }
            | ForwardError::Encoder { .. }
            | ForwardError::EncoderDecoder { .. } => ErrorKind::Unsupported,
            ForwardError::File(error) => error.kind(),
            ForwardError::Image(error) => error.kind(),
            ForwardError::Sound(error) => error.kind(),
            ForwardError::NoImages | ForwardError::NoSounds => ErrorKind::Usage,
            ForwardError::Cancelled => ErrorKind::Cancelled,
            ForwardError::Spill(_) => ErrorKind::Io,
            ForwardError::Activation { cause, .. } if cause.is_unsupported() => ErrorKind::Unsupported,
            ForwardError::Import(error) => error.kind(),
            _ => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        let text = match self {
            ForwardError::Unsupported { .. } if !kvant_model::family::registered().is_empty() => {
                "complete the description in the file that ‹family› names if it is the model's; what else is not computed leaves \
                 schemes without calibration, which `kvant plan` shows"
            }
            ForwardError::Unsupported { .. } => {
                "nothing that runs the model works for it: evaluation, calibration, graphs and algorithms that look at data do \
                 not; `kvant plan` shows whether schemes without calibration fit its layers"
            }
            ForwardError::Undescribed { can_be_described: false, .. } => {
                "descriptions are for decoders, encoders, and both together like BART's (`like = \"bart\"`), whose blocks are numbered; `kvant plan` \
                 shows whether schemes without calibration fit its layers, and `kvant.torch` in Python calibrates it"
            }
            ForwardError::Undescribed { .. } => {
                "describe it in a file and name that in ‹family›: `kvant inspect MODEL ‹suggest-family›` writes a first description; \
                 without one, `kvant plan` shows whether schemes without calibration fit its layers"
            }
            ForwardError::Component { .. } => {
                "quantize it with int8:channel or e4m3:channel, or with quantized inputs W8A8 or FP8_DYNAMIC; diffusers runs it, so give \
                 static scales the ranges of its inputs with ‹statistics›; `kvant.torch` in Python calibrates components"
            }
            ForwardError::Encoder { .. } => {
                "text generation, perplexity and graphs of decoders need a decoder; `kvant eval MODEL ‹reference›` compares an encoder \
                 with the model that it was made from"
            }
            ForwardError::EncoderDecoder { .. } => {
                "text generation, graphs, searches and limits of quality are for models of one stack of blocks; `kvant eval` measures how \
                 an encoder-decoder predicts a text, and calibrated algorithms run on it"
            }
            ForwardError::NoConfig => "put the model's config.json next to its weights",
            ForwardError::Missing { .. } | ForwardError::Shape { .. }
                if !kvant_model::family::registered().is_empty() =>
            {
                "the description of the family, config.json and the tensors do not agree: correct the file that ‹family› names if it \
                 is the model's; `kvant inspect ‹all›` lists what is there"
            }
            ForwardError::Missing { .. } | ForwardError::Shape { .. } => {
                "config.json and the tensors are not of the same model; `kvant inspect ‹all›` lists what is there"
            }
            ForwardError::NotFinite { .. } => "download the file again, or make it again from the original model",
            ForwardError::Token { .. } => "the tokenizer is not that of the model",
            ForwardError::TooLong { .. } => "use shorter sequences, e.g. with ‹seq-len›",
            ForwardError::Spill(_) => {
                "make room in the system's folder for temporary files, or allow more memory with ‹max-memory›"
            }
            ForwardError::Activation { cause, .. } => cause.hint(),
            ForwardError::File(error) => return error.hint(),
            ForwardError::Image(error) => return error.hint(),
            ForwardError::NoImages => "give images, or arrays of `pixel_values`",
            ForwardError::Sound(error) => return error.hint(),
            ForwardError::NoSounds => "give a folder of WAV files, or arrays of `input_features` or `input_values`",
            ForwardError::ShortSound { .. } => "take it out of the data",
            ForwardError::TooManySounds { .. } => "take fewer sounds, e.g. with ‹num-samples›",
            ForwardError::TooManyImages { .. } => "take fewer images, e.g. with ‹num-samples›",
            ForwardError::TwoTowers { .. } => {
                "save each tower as a separate checkpoint, as CLIPVisionModelWithProjection.from_pretrained(MODEL).save_pretrained(OUT) \
                 and CLIPTextModelWithProjection do, or SiglipVisionModel and SiglipTextModel, and calibrate each on its own data; \
                 without calibration, the tower for text is quantized in the whole model and that for images is kept"
            }
            ForwardError::Import(error) => return error.hint(),
            ForwardError::Cancelled => return None,
            ForwardError::Config(ConfigError::Missing { .. }) if !kvant_model::family::registered().is_empty() => {
                "add the key to config.json; where the model has it under another name, `config_like` in the description names the \
                 `model_type` whose keys it has"
            }
            ForwardError::Config(ConfigError::Missing { .. }) => {
                "add the key to config.json, with the value of the original model"
            }
            ForwardError::Config(_) => "correct config.json, or take that of the original model",
        };
        Some(text.to_owned())
    }
}
