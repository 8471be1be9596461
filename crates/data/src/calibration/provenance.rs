//! The origin and use of calibration data: enough to compare the data of two runs, and to derive warnings.
//! See [`Provenance::warnings`].

use super::{Packing, Skip};
use crate::images::TextImageProvenance;
use kvant_quant::counts::{number, number_are};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Fewer tokens than this, one sequence of the usual length, are warned of.
const FEW_TOKENS: usize = 512;

/// Data with fewer different tokens than this, such as blank lines, are warned of.
const FEW_DIFFERENT: usize = 8;

/// The provenance of calibration data, for the metadata of an output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Provenance {
    /// The files of which something was read, in their order.
    pub files: Vec<FileProvenance>,
    /// Sequences.
    pub samples: usize,
    /// Sequences asked for.
    pub samples_asked: usize,
    /// Tokens in all sequences.
    pub tokens: usize,
    /// Different tokens in all sequences.
    #[serde(skip)]
    pub different_tokens: usize,
    /// Held-out sequences, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_out: Option<HeldOut>,
    /// The images in sequences, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<TextImageProvenance>,
    /// Sequences that are shorter than a window, where no document fills one.
    #[serde(skip_serializing_if = "is_zero")]
    pub short_documents: usize,
    /// The longest sequence allowed, and the length of windows.
    pub sequence_length: usize,
    /// The seed of shuffled rows and random windows.
    pub seed: u64,
    /// Whether rows were shuffled.
    pub shuffled: bool,
    /// The XXH3 hash of the chat template, where one was applied.
    pub chat_template: Option<String>,
    /// Conversations that were joined by blank lines, because the model has no chat template.
    pub conversations_without_template: u64,
}

/// Sequences on which what the others have led to is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldOut {
    /// Their number.
    pub samples: usize,
    /// Tokens in all of them.
    pub tokens: usize,
}

impl HeldOut {
    /// The packing of sequences, if there are any.
    pub fn of(sequences: &[Vec<u32>]) -> Option<HeldOut> {
        let tokens = sequences.iter().map(Vec::len).sum();
        (!sequences.is_empty()).then_some(HeldOut { samples: sequences.len(), tokens })
    }
}

/// One file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileProvenance {
    /// Its name, without directories.
    pub name: String,
    /// Its share of the samples, where files have shares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Its length in bytes, as it lies on disk.
    pub bytes: u64,
    /// The XXH3 hash, 128 bits in hexadecimal digits, of all these bytes, however many of its rows were read.
    pub xxh3_128: String,
    /// Its format and compression, such as `jsonl.zst`.
    pub format: String,
    /// The packing of its documents; `None` without any.
    pub packing: Option<Packing>,
    /// Rows that were read until there were enough; a whole text is one.
    pub rows_read: u64,
    /// Rows of which tokens were taken.
    pub rows_used: u64,
    /// Rows that are of no use, by reason.
    pub skipped: BTreeMap<Skip, u64>,
    /// Whether samples are of the beginning of a very long text, where they would be of all of it.
    pub cut: bool,
}

/// Something that a user should know of data that were used nevertheless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// There are fewer samples than were asked for.
    Fewer {
        /// Their number.
        found: usize,
        /// The requested number.
        asked: usize,
    },
    /// No document fills a window: they are used as they are.
    Short {
        /// Their number.
        documents: usize,
        /// Tokens in all of them.
        tokens: usize,
        /// Tokens of a window.
        length: usize,
    },
    /// There are so few tokens that statistics say little.
    Scarce {
        /// Their number.
        tokens: usize,
        /// Whether the data hold no more of them than were asked for.
        are_all: bool,
    },
    /// Nearly all tokens are the same.
    Monotonous {
        /// The number of different ones.
        different: usize,
    },
    /// Rows were of no use.
    Skipped {
        /// The file's name.
        file: String,
        /// Their number.
        rows: u64,
        /// The reason.
        why: Skip,
    },
    /// Only the beginning of a text was read.
    Cut {
        /// The file's name.
        file: String,
    },
    /// Conversations were joined by blank lines, because the model has no chat template.
    NoTemplate {
        /// Their number.
        conversations: u64,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::Fewer { found, asked } => {
                write!(f, "{}, but {asked} were requested", number(found, "calibration sample"))
            }
            Warning::Short { documents, tokens, length } => {
                write!(
                    f,
                    "the calibration data contains only {} in {}, too few to fill a sequence of {length} tokens; it \
                     is used as it is",
                    number(tokens, "token"),
                    number(documents, "document"),
                )
            }
            Warning::Scarce { tokens, are_all } => write!(
                f,
                "{} {} in all; results are unreliable with fewer than {FEW_TOKENS}{}",
                if *are_all { "the calibration data contains only" } else { "calibration uses only" },
                number(tokens, "token"),
                if *are_all { "" } else { ": ask for more or longer samples" },
            ),
            Warning::Monotonous { different } => write!(
                f,
                "the calibration data contains only {}, as blank lines do; results say nothing about other text",
                number(*different, "different token"),
            ),
            Warning::Skipped { file, rows, why } => write!(f, "{file}: {} {why}", number_are(*rows, "row")),
            Warning::Cut { file } => write!(f, "{file} is very long; only its beginning was read"),
            Warning::NoTemplate { conversations } => {
                let joined = if *conversations == 1 { "was" } else { "were" };
                let conversations = number(*conversations, "conversation");
                write!(f, "{conversations} {joined} joined by blank lines: the model has no chat template")
            }
        }
    }
}

impl Provenance {
    /// Warnings for the user.
    pub fn warnings(&self) -> Vec<Warning> {
        let (found, asked, conversations) = (self.samples, self.samples_asked, self.conversations_without_template);
        let (documents, tokens, length) = (self.short_documents, self.tokens, self.sequence_length);
        let fewer = match documents {
            0 => (found < asked).then_some(Warning::Fewer { found, asked }),
            _ => Some(Warning::Short { documents, tokens, length }),
        };
        let scarce = documents == 0 && tokens < FEW_TOKENS;
        let scarce = scarce.then_some(Warning::Scarce { tokens, are_all: found < asked });
        let different = self.different_tokens;
        let monotonous =
            (different < FEW_DIFFERENT && 16 * different < tokens).then_some(Warning::Monotonous { different });
        let bare = (conversations > 0).then_some(Warning::NoTemplate { conversations });
        let of_files = self.files.iter().flat_map(FileProvenance::warnings);
        fewer.into_iter().chain(of_files).chain(bare).chain(scarce).chain(monotonous).collect()
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl FileProvenance {
    fn warnings(&self) -> impl Iterator<Item = Warning> {
        let skipped = self.skipped.iter();
        let skipped = skipped.map(|(&why, &rows)| Warning::Skipped { file: self.name.clone(), rows, why });
        skipped.chain(self.cut.then(|| Warning::Cut { file: self.name.clone() }))
    }
}
