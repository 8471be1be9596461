//! Calibration data: from files of text, conversations or tokens to sequences of tokens; and the same files to evaluate on, as documents.
//! Files of questions with choices become texts to score.
//!
//! A file is read in one of the formats of `files`, chosen by its name, and hands out rows; a row becomes a document (text, a
//! conversation or tokens) by the rules of `fields`; documents become tokens with the checkpoint's own tokenizer and chat
//! template, and tokens become sequences as [`Packing`] says. The used and skipped rows are recorded in the
//! [`Provenance`].
//!
//! The same files, options and model give the same sequences. Files are hostile: bytes are counted after decompression, rows
//! are bounded, templates run on fuel, and nothing is executed.

mod beginning;
mod chat_template;
mod conversation;
mod document;
mod documents;
mod encoder;
mod error;
mod fields;
mod files;
mod loader;
mod mixture;
mod options;
mod provenance;
mod questions;
mod selection;
mod source;
mod stream;

pub use chat_template::{ChatTemplate, Rendered};
pub use document::Skip;
pub use documents::{Documents, TokenDocument};
pub use error::CalibrationDataError;
pub use mixture::SharedFile;
pub use options::{Options, Packing};
pub use provenance::{FileProvenance, HeldOut, Provenance, Warning};
pub use questions::{Question, QuestionForm, Questions, ScoredText};

use crate::images::{ImagesUnread, TextImages};
use std::path::Path;

/// Sequences of tokens to run through a model.
#[derive(Clone, Debug)]
pub struct CalibrationData {
    /// The sequences, none of them empty.
    pub sequences: Vec<Vec<u32>>,
    /// Held-out sequences, which are not among the first: at most as many as requested, none if the data have no more.
    pub held_out: Vec<Vec<u32>>,
    /// The images in them, whose rows are the tokens behind the vocabulary.
    pub images: TextImages,
    /// Where they come from.
    pub provenance: Provenance,
}

impl CalibrationData {
    /// Reads calibration data for the checkpoint in the directory `model`, whose tokenizer and chat template are used, and
    /// whose vocabulary has `vocabulary` tokens. `watch` receives the number of samples so far and the requested number.
    ///
    /// # Errors
    ///
    /// Files that are missing, unknown, damaged or too large, tokenizers and templates that cannot be used, tokens outside
    /// of the vocabulary, and data without usable rows. Fewer samples than requested, and unusable rows
    /// among usable ones, are not errors but [`Provenance::warnings`].
    pub fn load(
        options: &Options,
        model: &Path,
        vocabulary: usize,
        watch: impl FnMut(usize, usize),
    ) -> Result<CalibrationData, CalibrationDataError> {
        CalibrationData::load_with_images(
            options,
            model,
            vocabulary,
            TextImages::unread(ImagesUnread::of_text()),
            watch,
        )
    }

    /// The same for a model that reads images in texts, which are added to `images`; or with the reason that it does not.
    ///
    /// # Errors
    ///
    /// As [`CalibrationData::load`]; images that are not read, that are addresses, or that the packing cuts.
    pub fn load_with_images(
        options: &Options,
        model: &Path,
        vocabulary: usize,
        images: TextImages,
        watch: impl FnMut(usize, usize),
    ) -> Result<CalibrationData, CalibrationDataError> {
        mixture::load(options, model, vocabulary, images, watch)
    }
}
