//! Reasons that calibration data cannot be read.

use super::{Packing, Skip};
use crate::images::{ImageDataError, ImagesUnread};
use crate::tokenizer::TokenizerError;
use kvant_container::{Diagnostic, ErrorKind};
use std::io;
use std::path::{Path, PathBuf};

/// An error of reading calibration data.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationDataError {
    /// The request is empty.
    #[error("{what}")]
    Options {
        /// The problem.
        what: &'static str,
    },
    /// Shares that say nothing.
    #[error("{what}")]
    Shares {
        /// The problem.
        what: &'static str,
    },
    /// A file is named more than once.
    #[error("{} is named twice", kvant_container::shown(file))]
    Twice {
        /// The file.
        file: PathBuf,
    },
    /// A file has so small a share that none of the samples is of it.
    #[error("{}: its share of {:.1} % is no whole sample of {samples}", kvant_container::shown(file), share * 100.0)]
    SmallShare {
        /// The file.
        file: PathBuf,
        /// The share.
        share: f64,
        /// Samples of all files.
        samples: usize,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {cause}", kvant_container::shown(file))]
    Read {
        /// The file or directory.
        file: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
    /// A file cannot be mapped, or is not a safetensors file.
    #[error(transparent)]
    File(#[from] kvant_container::Error),
    /// The tokenizer cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template cannot be used.
    #[error("{}: {message}", kvant_container::shown(file))]
    Template {
        /// The file that holds it.
        file: PathBuf,
        /// The problem.
        message: String,
    },
    /// An unsupported format.
    #[error("{}: its name does not end in a format that Kvant reads", kvant_container::shown(file))]
    UnknownFormat {
        /// The file.
        file: PathBuf,
    },
    /// A directory without a file of a known format.
    #[error("{} holds no file of calibration data", kvant_container::shown(directory))]
    NoFiles {
        /// The directory.
        directory: PathBuf,
    },
    /// A file is not what its name says.
    #[error("{}: {message}", kvant_container::shown(file))]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The problem.
        message: String,
    },
    /// A file may be right, but is not handled.
    #[error("{}: {what}", kvant_container::shown(file))]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// The unsupported feature.
        what: String,
    },
    /// A file whose reader was left out of the build.
    #[error("{}: not supported: built without the `{feature}` feature", kvant_container::shown(file))]
    NotBuilt {
        /// The file.
        file: PathBuf,
        /// The feature that has the reader.
        feature: &'static str,
    },
    /// A table has no column that is known to hold text, or not the requested one.
    #[error("{} has no {}; its columns: {columns}", kvant_container::shown(file), column_of_text(wanted.as_deref()))]
    NoColumn {
        /// The file.
        file: PathBuf,
        /// The requested column.
        wanted: Option<String>,
        /// The names of its columns.
        columns: String,
    },
    /// A field is named, and no file has fields.
    #[error("{} has no fields, but `{column}` is required", kvant_container::shown(file))]
    NoFields {
        /// The first file.
        file: PathBuf,
        /// The field.
        column: String,
    },
    /// A text is not UTF-8.
    #[error("{} is not UTF-8 text: byte {position}", kvant_container::shown(file))]
    NotText {
        /// The file.
        file: PathBuf,
        /// The position of the first invalid byte.
        position: usize,
    },
    /// A file holds more than is read.
    #[error("{} holds more than {limit} bytes when decompressed", kvant_container::shown(file))]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// The most that is read.
        limit: u64,
    },
    /// A token that the model does not have.
    #[error("{}, row {row}: token {token} is not in the vocabulary of {vocabulary}", kvant_container::shown(file))]
    OutOfVocabulary {
        /// The file.
        file: PathBuf,
        /// The row, counted from 1.
        row: u64,
        /// The token.
        token: i64,
        /// The size of the vocabulary.
        vocabulary: usize,
    },
    /// A row has an image, and the model's images are not read.
    #[error("{}, row {row}: it has an image: {}", kvant_container::shown(file), why.reason)]
    ImagesUnread {
        /// The file.
        file: PathBuf,
        /// The row, counted from 1.
        row: u64,
        /// The reason.
        why: ImagesUnread,
    },
    /// An image is named by an address.
    #[error(
        "{}, row {row}: `{address}` is an address, and images are read from files only",
        kvant_container::shown(file)
    )]
    ImageAddress {
        /// The file.
        file: PathBuf,
        /// The row, counted from 1.
        row: u64,
        /// The address, shortened.
        address: String,
    },
    /// A part of a message is an image and names no file.
    #[error("{}, row {row}: an image names no file", kvant_container::shown(file))]
    ImageWithoutFile {
        /// The file.
        file: PathBuf,
        /// The row, counted from 1.
        row: u64,
    },
    /// A conversation with images, and a model without a chat template.
    #[error(
        "{}, row {row}: the model has no chat template, which says where images stand",
        kvant_container::shown(file)
    )]
    ImagesWithoutTemplate {
        /// The file.
        file: PathBuf,
        /// The row, counted from 1.
        row: u64,
    },
    /// An image of a row cannot be used.
    #[error("{}, row {row}: {cause}", kvant_container::shown(file))]
    Image {
        /// The file.
        file: PathBuf,
        /// The row, counted from 1.
        row: u64,
        /// The reason.
        cause: ImageDataError,
    },
    /// The images of all rows cannot be used.
    #[error(transparent)]
    Images(#[from] ImageDataError),
    /// A packing that cuts images.
    #[error("{}, row {row}: it has an image, which the packing `{}` cuts", kvant_container::shown(file), packing.name())]
    ImagesCut {
        /// The file.
        file: PathBuf,
        /// The row, counted from 1.
        row: u64,
        /// The packing.
        packing: Packing,
    },
    /// Nothing of all that was read can be used.
    #[error("the calibration data gives no sample of {length} tokens{}", reason(why))]
    NoSample {
        /// The requested maximum length, or the length of a window.
        length: usize,
        /// The reason that its rows are unusable.
        why: String,
        /// The problem of most rows.
        most: Option<Skip>,
        /// The requested field.
        column: Option<String>,
    },
    /// Nothing of a file to evaluate on can be used.
    #[error("{} gives no tokens{}", kvant_container::shown(file), reason(why))]
    NoDocument {
        /// The file.
        file: PathBuf,
        /// The reason that its rows are unusable.
        why: String,
        /// The problem of most rows.
        most: Option<Skip>,
        /// The requested field.
        column: Option<String>,
    },
    /// A file with other rows than questions with choices.
    #[error("{}: questions with choices are read from JSON, JSON lines and Parquet", kvant_container::shown(file))]
    QuestionFormat {
        /// The file.
        file: PathBuf,
    },
    /// A file without a row.
    #[error("{} holds no question", kvant_container::shown(file))]
    NoQuestion {
        /// The file.
        file: PathBuf,
    },
    /// A row in none of the known forms of questions.
    #[error("{}, row {row}: no known form of a question with choices: {found}", kvant_container::shown(file))]
    UnknownQuestion {
        /// The file.
        file: PathBuf,
        /// The row, counted from 1.
        row: u64,
        /// The fields of the row.
        found: String,
    },
    /// A question that cannot be asked.
    #[error("{}, row {row}: {what}", kvant_container::shown(file))]
    Question {
        /// The file.
        file: PathBuf,
        /// The row, counted from 1.
        row: u64,
        /// The problem.
        what: String,
        /// The remedy.
        hint: &'static str,
    },
}

fn column_of_text(wanted: Option<&str>) -> String {
    wanted.map_or("known column of text".to_owned(), |wanted| format!("column `{wanted}`"))
}

fn reason(why: &str) -> String {
    if why.is_empty() { String::new() } else { format!(": {why}") }
}

impl CalibrationDataError {
    pub(super) fn damaged(file: &Path, message: impl ToString) -> Self {
        Self::Damaged { file: file.to_path_buf(), message: shorten(&message.to_string()) }
    }

    pub(super) fn unsupported(file: &Path, what: impl Into<String>) -> Self {
        Self::Unsupported { file: file.to_path_buf(), what: what.into() }
    }
}

impl Diagnostic for CalibrationDataError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Read { .. } => ErrorKind::Io,
            Self::File(error) => error.kind(),
            Self::Tokenizer(error) => error.kind(),
            Self::UnknownFormat { .. }
            | Self::Unsupported { .. }
            | Self::NotBuilt { .. }
            | Self::TooLarge { .. }
            | Self::QuestionFormat { .. } => ErrorKind::Unsupported,
            Self::NoFields { .. } | Self::Shares { .. } | Self::Twice { .. } | Self::ImagesCut { .. } => {
                ErrorKind::Usage
            }
            Self::ImagesUnread { why, .. } => why.kind,
            Self::Image { cause, .. } | Self::Images(cause) => cause.kind(),
            Self::ImageAddress { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        let text = match self {
            Self::File(error) => return error.hint(),
            Self::Tokenizer(error) => return error.hint(),
            Self::UnknownFormat { .. } | Self::NoFiles { .. } => return Some(super::files::known_formats()),
            Self::NotBuilt { feature, .. } => {
                return Some(format!("build Kvant with `--features {feature}`, or give the rows as JSON lines"));
            }
            Self::QuestionFormat { .. } => "give a file whose name ends in .jsonl, .json or .parquet",
            Self::NoQuestion { .. } => "give a file with one question in each row",
            Self::UnknownQuestion { .. } => return Some(super::questions::known_forms()),
            Self::Question { hint, .. } => hint,
            Self::Damaged { .. } => "the file is damaged, or not what data of its kind hold",
            Self::NoColumn { .. } => "name the column that holds the text with ‹column›",
            Self::NoFields { .. } => {
                "leave ‹column› out: it applies only to files of rows, such as .jsonl and .parquet"
            }
            Self::Shares { .. } => "give every file a share, as in a.jsonl:0.6,b.txt:0.4, or none",
            Self::Twice { .. } => "name each file of calibration data once, with its whole share",
            Self::SmallShare { .. } => "give it a larger share, or take more samples with ‹num-samples›",
            Self::NotText { .. } => "give text files in UTF-8",
            Self::TooLarge { .. } => "give a part of it",
            Self::OutOfVocabulary { .. } => "the tokens were made with the tokenizer of another model",
            Self::NoSample { most: Some(Skip::NoText), column: Some(column), .. }
            | Self::NoDocument { most: Some(Skip::NoText), column: Some(column), .. } => {
                return Some(format!(
                    "no row has text in a field `{column}`: name one that holds a string, a conversation or a list of tokens with ‹column›"
                ));
            }
            Self::NoDocument { most, .. } => most.map_or("give a file that holds text or tokens", Skip::hint),
            Self::NoSample { most, .. } => most.map_or("give more or longer text, or shorter sequences", Skip::hint),
            Self::ImagesUnread { why, .. } => {
                let alone = "calibrate and evaluate on text alone: give rows without images";
                return Some(why.hint.as_ref().map_or(alone.to_owned(), |hint| format!("{hint}; or {alone}")));
            }
            Self::ImageAddress { .. } => {
                "download the image, and give its path, relative to the folder of the data, as in {\"type\": \"image\", \"image\": \"a.png\"}"
            }
            Self::ImageWithoutFile { .. } => {
                "give the path of each image, relative to the folder of the data, as in {\"type\": \"image\", \"image\": \"a.png\"}"
            }
            Self::ImagesWithoutTemplate { .. } => {
                "copy chat_template.jinja or chat_template.json of the model into its directory"
            }
            Self::Image { cause, .. } | Self::Images(cause) => return cause.hint(),
            Self::ImagesCut { .. } => "leave ‹packing› out: then each row becomes a separate sequence",
            Self::Read { cause, .. } => return kvant_container::io_hint(cause).map(str::to_owned),
            Self::Options { .. } | Self::Template { .. } | Self::Unsupported { .. } => return None,
        };
        Some(text.to_owned())
    }
}

/// A message that may quote a hostile file, on one line and of bounded length.
pub(super) fn shorten(message: &str) -> String {
    message.chars().take(300).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
