//! A look at the beginning of calibration data: whether they hold anything of the kind that the names of their files promise, and
//! whether the model has what text and conversations need. Nothing is tokenized, and of long files little is read.

use super::document::{Document, Row};
use super::files::{DataFile, Reading};
use super::{CalibrationDataError, ChatTemplate, Options, Packing, Skip, loader};
use crate::images::ImagesUnread;
use crate::tokenizer::ModelTokenizer;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

/// Bytes of a text that are looked at.
const TEXT: u64 = 64 << 10;
/// The number of rows inspected: data with only unusable rows up to here may have usable ones later.
const ROWS: u64 = 1000;
/// Files that are read as a whole are not looked into where they are larger.
const WHOLE: u64 = 16 << 20;

/// Refuses data that loading would refuse, as far as their beginning shows. `model` has the tokenizer; `unread` says why images in
/// conversations are refused, where they are.
pub(super) fn check(
    options: &Options,
    model: &Path,
    unread: Option<&ImagesUnread>,
) -> Result<(), CalibrationDataError> {
    let files = options.resolve()?;
    let names = || files.iter().map(DataFile::name).collect::<Vec<_>>();
    match look(&files, options.max_bytes, options.column.as_deref(), rows_needed(options), unread)? {
        Beginning::Unusable { rows, reasons } => Err(loader::no_sample(options, &names(), rows, &reasons, None)),
        Beginning::Usable(needs) => needs.check(model),
    }
}

/// The number of usable rows with which loading has all samples, so that further files are not read; one where a row may be any number
/// of samples.
fn rows_needed(options: &Options) -> u64 {
    let is_one_each = options.packing.is_none_or(|packing| packing == Packing::Sample);
    if is_one_each { options.samples as u64 } else { 1 }
}

/// What the beginning of files shows.
pub(super) enum Beginning {
    /// All rows are unusable.
    Unusable {
        /// Their number.
        rows: u64,
        /// The number for each reason.
        reasons: BTreeMap<Skip, u64>,
    },
    /// Some rows may be of use.
    Usable(Needs),
}

/// What the first usable row needs of the model.
#[derive(Clone, Copy)]
pub(super) enum Needs {
    /// Nothing, or nothing that is known.
    Nothing,
    /// The tokenizer.
    Tokenizer,
    /// The tokenizer, and the chat template if there is one.
    Template,
}

impl Needs {
    fn of(document: &Document) -> Needs {
        match document {
            Document::Tokens(_) => Needs::Nothing,
            Document::Text(_) => Needs::Tokenizer,
            Document::Conversation(_) => Needs::Template,
        }
    }

    /// Refuses a model without what is needed.
    pub(super) fn check(self, model: &Path) -> Result<(), CalibrationDataError> {
        if !matches!(self, Needs::Nothing) {
            ModelTokenizer::open(model)?;
        }
        if matches!(self, Needs::Template) {
            ChatTemplate::open(model)?;
        }
        Ok(())
    }
}

/// Looks at the rows of files until `needed` of them may be of use. Files whose first rows are too few do not end the look: what is
/// wrong with the next one would end the loading.
pub(super) fn look(
    files: &[DataFile],
    max_bytes: u64,
    column: Option<&str>,
    needed: u64,
    unread: Option<&ImagesUnread>,
) -> Result<Beginning, CalibrationDataError> {
    let (mut rows, mut reasons, mut needs, mut usable) = (0, BTreeMap::new(), Needs::Nothing, 0);
    for file in files {
        if file.is_read_whole() && std::fs::metadata(&file.path).is_ok_and(|found| found.len() > WHOLE) {
            return Ok(Beginning::Usable(needs));
        }
        let reading = Reading { max_bytes, max_document: TEXT, column, marks: None };
        let (before, mut is_enough) = (rows, false);
        file.format.read(file, &reading, &mut |row| {
            rows += 1;
            if let Some(why) = unread.filter(|_| matches!(&row, Row::Record(document) if document.has_images())) {
                let (file, row) = (file.path.clone(), rows - before);
                return Err(CalibrationDataError::ImagesUnread { file, row, why: why.clone() });
            }
            let (skip, found, is_whole) = match &row {
                Row::Skipped(skip) => (Some(*skip), Needs::Nothing, false),
                Row::Whole { document, cut } => (skip_of(document).filter(|_| !cut), Needs::of(document), true),
                Row::Record(document) => (skip_of(document), Needs::of(document), false),
            };
            match skip {
                Some(skip) => *reasons.entry(skip).or_default() += 1,
                None => {
                    needs = if usable == 0 { found } else { needs };
                    usable += 1;
                }
            }
            // A whole text may be any number of samples.
            is_enough |= usable >= needed || is_whole && skip.is_none() || rows - before >= ROWS;
            Ok(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        if is_enough {
            return Ok(Beginning::Usable(needs));
        }
    }
    match usable {
        0 => Ok(Beginning::Unusable { rows, reasons }),
        _ => Ok(Beginning::Usable(needs)),
    }
}

/// The reason that a document gives no tokens with any tokenizer.
fn skip_of(document: &Document) -> Option<Skip> {
    let is_empty = match document {
        Document::Text(text) => text.is_empty(),
        Document::Conversation(messages) => messages.is_empty(),
        Document::Tokens(tokens) => tokens.is_empty(),
    };
    is_empty.then_some(Skip::Empty)
}
