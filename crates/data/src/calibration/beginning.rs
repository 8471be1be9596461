//! A look at the beginning of calibration data: whether they hold anything of the kind that the names of their files promise. Nothing
//! is tokenized, and of long files little is read.

use super::document::{Document, Row};
use super::files::{DataFile, Reading};
use super::{CalibrationDataError, Options, Skip, loader};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Bytes of a text that are looked at.
const TEXT: u64 = 64 << 10;
/// The number of rows inspected: data with only unusable rows up to here may have usable ones later.
const ROWS: u64 = 1000;
/// Files that are read as a whole are not looked into where they are larger.
const WHOLE: u64 = 16 << 20;

/// Refuses data that loading would refuse, as far as their beginning shows.
pub(super) fn check(options: &Options) -> Result<(), CalibrationDataError> {
    let files = options.resolve()?;
    let names = || files.iter().map(DataFile::name).collect::<Vec<_>>();
    match unusable(&files, options.max_bytes, options.column.as_deref())? {
        Some(Unusable { rows, reasons }) => Err(loader::no_sample(options, &names(), rows, &reasons, None)),
        None => Ok(()),
    }
}

/// Rows of which none is of use.
pub(super) struct Unusable {
    /// Their number.
    pub rows: u64,
    /// The number for each reason.
    pub reasons: BTreeMap<Skip, u64>,
}

/// The rows of files, where all of them are unusable; `None` where some may be of use.
pub(super) fn unusable(
    files: &[DataFile],
    max_bytes: u64,
    column: Option<&str>,
) -> Result<Option<Unusable>, CalibrationDataError> {
    let (mut rows, mut reasons) = (0, BTreeMap::new());
    for file in files {
        if file.is_read_whole() && std::fs::metadata(&file.path).is_ok_and(|found| found.len() > WHOLE) {
            return Ok(None);
        }
        let reading = Reading { max_bytes, max_document: TEXT, column };
        let (before, mut may_be_used) = (rows, false);
        (file.format.read)(file, &reading, &mut |row| {
            rows += 1;
            let skip = match row {
                Row::Skipped(skip) => Some(skip),
                Row::Whole { document, cut } => skip_of(&document).filter(|_| !cut),
                Row::Record(document) => skip_of(&document),
            };
            if let Some(skip) = skip {
                *reasons.entry(skip).or_default() += 1;
            }
            may_be_used |= skip.is_none() || rows - before >= ROWS;
            Ok(if may_be_used { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        if may_be_used {
            return Ok(None);
        }
    }
    Ok(Some(Unusable { rows, reasons }))
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
