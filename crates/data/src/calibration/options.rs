//! Options of calibration data: files, amount, and packing into sequences.

use super::files::{self, DataFile};
use super::{CalibrationDataError, beginning};
use crate::images::ImagesUnread;
use serde::{Serialize, Serializer};
use std::path::{Path, PathBuf};

/// The least that is read of a long text, in bytes.
const MIN_DOCUMENT: u64 = 256 << 10;
/// The same where samples are drawn from all of it, or where its beginning has too few tokens.
const MIN_DRAWN_DOCUMENT: u64 = 4 << 20;
/// Bytes that are read of a long text for each token asked for, twice what tokens have in most languages.
const BYTES_PER_TOKEN: u64 = 8;
/// Bytes that tokenizers take for each byte of a text.
const MEMORY_PER_BYTE: u64 = 160;

/// The packing of documents into sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Each document is tokenized whole and cut into consecutive windows from its start; a shorter tail is dropped. The
    /// default for files that are one document: `.txt`, and arrays of tokens with one dimension.
    Document,
    /// Each row is one sequence, cut to the longest length and never padded. The default for files of rows.
    Sample,
    /// The tokens of all rows, joined and cut into windows; what the authors of AWQ do.
    Concatenate,
    /// Windows at random positions of the joined tokens, as the authors of GPTQ do. They are drawn from the first 2^26
    /// tokens, or four times what is asked for if that is more.
    Random,
}

impl Packing {
    /// All of them.
    pub const ALL: [Packing; 4] = [Packing::Document, Packing::Sample, Packing::Concatenate, Packing::Random];

    /// Its name in commands, reports and metadata.
    pub fn name(self) -> &'static str {
        match self {
            Packing::Document => "document",
            Packing::Sample => "sample",
            Packing::Concatenate => "concatenate",
            Packing::Random => "random",
        }
    }
}

impl Serialize for Packing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The data to read, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Files, and directories whose files are taken in the order of their names.
    pub files: Vec<PathBuf>,
    /// The share of each file or directory in the samples, in proportion; without shares, the next file is read where those before it
    /// have too few.
    pub shares: Vec<f64>,
    /// The requested number of sequences; at least 1.
    pub samples: usize,
    /// The number of further sequences to hold out, if available: for measuring results.
    pub held_out: usize,
    /// The longest sequence in tokens, and the length of every window; at least 1. Whether a model can take that many is
    /// for the caller to check.
    pub sequence_length: usize,
    /// The seed of [`Packing::Random`] and [`Self::shuffle`].
    pub seed: u64,
    /// Rows in an order that the seed decides, instead of the first ones.
    pub shuffle: bool,
    /// The packing of documents; by default that of the format.
    pub packing: Option<Packing>,
    /// The field of a row that holds its text, conversation or tokens; found by its name by default.
    pub column: Option<String>,
    /// The most bytes that are read of a file, counted after decompression.
    pub max_bytes: u64,
}

impl Options {
    /// The first `samples` sequences of at most `sequence_length` tokens of the given files.
    pub fn new(files: impl IntoIterator<Item = impl Into<PathBuf>>, samples: usize, sequence_length: usize) -> Options {
        let files = files.into_iter().map(Into::into).collect();
        Options {
            files,
            shares: Vec::new(),
            samples,
            held_out: 0,
            sequence_length,
            seed: 0,
            shuffle: false,
            packing: None,
            column: None,
            max_bytes: 64 << 30,
        }
    }

    /// The most memory, about, that tokenizing the files takes at a time: that of the longest text, if its tokens are not far longer
    /// than usual. Rows are short.
    pub fn tokenizer_memory(&self) -> u64 {
        let files = files::resolve(&self.files).unwrap_or_default();
        let longest = files.iter().filter_map(DataFile::text_bytes).max().unwrap_or(0);
        longest.min(self.document_bytes().0).saturating_mul(MEMORY_PER_BYTE)
    }

    /// The most bytes that are read of a text at first, and where these have too few tokens.
    pub(super) fn document_bytes(&self) -> (u64, u64) {
        // Windows that are drawn from a text are the same with and without others that are held out.
        let samples = if self.is_drawn() { self.samples } else { self.samples.saturating_add(self.held_out) };
        let tokens = (samples as u64).saturating_mul(self.sequence_length as u64);
        let usual = tokens.saturating_mul(BYTES_PER_TOKEN);
        let most = usual.max(MIN_DRAWN_DOCUMENT);
        (if self.is_drawn() { most } else { usual.max(MIN_DOCUMENT) }, most)
    }

    /// Returns whether samples come from all over a text, and not from its beginning.
    pub(super) fn is_drawn(&self) -> bool {
        self.shuffle || self.packing == Some(Packing::Random)
    }

    /// The share of `samples` that is held out beside them: a tenth, and at least one.
    pub fn tenth(samples: usize) -> usize {
        samples.div_ceil(10)
    }

    /// Refuses invalid options, missing files, unknown formats, files whose beginning shows that they
    /// do not match their extension, and text where the checkpoint in the directory `model` has no tokenizer for it.
    ///
    /// # Errors
    /// See above: all of them are errors of loading too.
    pub fn check(&self, model: &Path) -> Result<(), CalibrationDataError> {
        self.parts()?.iter().try_for_each(|part| beginning::check(part, model, None))
    }

    /// The same for a model that does not read images in texts, for a reason.
    ///
    /// # Errors
    /// As [`Options::check`]; conversations with images.
    pub fn check_without_images(&self, model: &Path, why: &ImagesUnread) -> Result<(), CalibrationDataError> {
        self.parts()?.iter().try_for_each(|part| beginning::check(part, model, Some(why)))
    }

    /// The resolved files of valid options.
    pub(super) fn resolve(&self) -> Result<Vec<DataFile>, CalibrationDataError> {
        let what = match self {
            Options { files, .. } if files.is_empty() => "no file of calibration data is named",
            Options { samples: 0, .. } => "zero samples are requested",
            Options { sequence_length: 0, .. } => "sequences of zero tokens are requested",
            _ => {
                let files = files::resolve(&self.files)?;
                return match (&self.column, files.first()) {
                    (Some(column), Some(first)) if !files.iter().any(DataFile::has_fields) => {
                        Err(CalibrationDataError::NoFields { file: first.path.clone(), column: column.clone() })
                    }
                    _ => Ok(files),
                };
            }
        };
        Err(CalibrationDataError::Options { what })
    }
}
