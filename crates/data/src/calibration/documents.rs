//! Files to evaluate on: all of their documents as tokens, where calibration takes samples of them. Which windows they are scored in is
//! not decided here.

use super::beginning::Beginning;
use super::document::{Row, Skip};
use super::encoder::{DocumentPlace, Encoder, Unusable};
use super::files::{DataFile, Reading};
use super::{CalibrationDataError, Packing, Warning, beginning, loader};
use crate::images::{ImagesUnread, TextImages};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

/// The most bytes that are read of a file, counted after decompression.
const MOST: u64 = 64 << 30;

/// A document of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenDocument {
    /// The tokens, at least one.
    pub tokens: Vec<u32>,
    /// Whether it is one of the rows of a file, and not all of it.
    pub is_row: bool,
    /// Whether it has images, which must not be cut.
    pub has_images: bool,
}

/// All documents of a file.
#[derive(Clone, Debug)]
pub struct Documents {
    /// The documents, in the order of the file; at least one.
    pub documents: Vec<TokenDocument>,
    /// The images in them, whose rows are the tokens behind the vocabulary.
    pub images: TextImages,
    /// What a user should know of rows that were left out, or joined without a chat template.
    pub warnings: Vec<Warning>,
}

impl Documents {
    /// Reads a file in any format of calibration data; one with another name is text. `tokenizer` is the path of tokenizer.json and the
    /// chat template, which tokens do not need, and `column` the field of a row; found by its name by default.
    ///
    /// # Errors
    ///
    /// Those of [`CalibrationData::load`](super::CalibrationData::load).
    pub fn load(
        file: &Path,
        column: Option<&str>,
        tokenizer: &Path,
        vocabulary: usize,
    ) -> Result<Documents, CalibrationDataError> {
        let images = TextImages::unread(ImagesUnread::of_text());
        Documents::load_with_images(file, column, tokenizer, vocabulary, images)
    }

    /// The same for a model that reads images in texts, which are added to `images`; or with the reason that it does not.
    ///
    /// # Errors
    ///
    /// Those of [`CalibrationData::load_with_images`](super::CalibrationData::load_with_images).
    pub fn load_with_images(
        file: &Path,
        column: Option<&str>,
        tokenizer: &Path,
        vocabulary: usize,
        images: TextImages,
    ) -> Result<Documents, CalibrationDataError> {
        let file = &file_of(file, column)?;
        let mut reader = Reader {
            file,
            encoder: Encoder::new(tokenizer, vocabulary, usize::MAX, images),
            documents: Vec::new(),
            rows: 0,
            skipped: BTreeMap::new(),
        };
        let reading = Reading { max_bytes: MOST, max_document: MOST, column, marks: None };
        file.format.read(file, &reading, &mut |row| reader.take(row))?;
        reader.finish(column)
    }

    /// Refuses a file whose beginning shows that it gives no tokens; with the path of a tokenizer also text that needs it where it is
    /// missing or damaged.
    ///
    /// # Errors
    ///
    /// Those of [`Documents::load`] that show there.
    pub fn check(file: &Path, column: Option<&str>, tokenizer: Option<&Path>) -> Result<(), CalibrationDataError> {
        let file = file_of(file, column)?;
        match beginning::look(std::slice::from_ref(&file), MOST, column, 1, None)? {
            Beginning::Unusable { rows, reasons } => Err(nothing(&file, &reasons, rows, None, column)),
            Beginning::Usable(needs) => tokenizer.map_or(Ok(()), |tokenizer| needs.check(tokenizer)),
        }
    }
}

/// The file with its format.
fn file_of(path: &Path, column: Option<&str>) -> Result<DataFile, CalibrationDataError> {
    let file = DataFile::or_text(path.to_path_buf());
    let file = file.ok_or_else(|| CalibrationDataError::UnknownFormat { file: path.to_path_buf() })?;
    match column.filter(|_| !file.has_fields()) {
        Some(column) => Err(CalibrationDataError::NoFields { file: file.path, column: column.to_owned() }),
        None => Ok(file),
    }
}

struct Reader<'a> {
    file: &'a DataFile,
    encoder: Encoder,
    documents: Vec<TokenDocument>,
    rows: u64,
    skipped: BTreeMap<Skip, u64>,
}

impl Reader<'_> {
    fn take(&mut self, row: Row) -> Result<ControlFlow<()>, CalibrationDataError> {
        self.rows += 1;
        let (document, is_row) = match row {
            Row::Whole { document, .. } => (Ok(document), false),
            Row::Record(document) => (Ok(document), true),
            Row::Skipped(skip) => (Err(Unusable::Skip(skip)), true),
        };
        let place = DocumentPlace { file: &self.file.path, row: self.rows };
        match document.and_then(|document| self.encoder.encode(document, Packing::Document, place)) {
            Ok(tokens) => {
                let has_images = tokens.iter().any(|token| self.encoder.images.has(*token));
                self.documents.push(TokenDocument { tokens, is_row, has_images });
            }
            Err(Unusable::Skip(skip)) => *self.skipped.entry(skip).or_default() += 1,
            Err(Unusable::Error(error)) => return Err(error),
            Err(Unusable::Unknown(token)) => {
                let (file, vocabulary) = (self.file.path.clone(), self.encoder.vocabulary);
                return Err(CalibrationDataError::OutOfVocabulary { file, row: self.rows, token, vocabulary });
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn finish(self, column: Option<&str>) -> Result<Documents, CalibrationDataError> {
        if self.documents.is_empty() {
            return Err(nothing(self.file, &self.skipped, self.rows, self.encoder.refusal, column));
        }
        let conversations = self.encoder.untemplated;
        let left_out = self.skipped.into_iter();
        let left_out = left_out.map(|(why, rows)| Warning::Skipped { file: self.file.name(), rows, why });
        let joined = (conversations > 0).then_some(Warning::NoTemplate { conversations });
        let images = self.encoder.images;
        Ok(Documents { documents: self.documents, images, warnings: left_out.chain(joined).collect() })
    }
}

/// The error for a file without usable rows.
fn nothing(
    file: &DataFile,
    reasons: &BTreeMap<Skip, u64>,
    rows: u64,
    refusal: Option<String>,
    column: Option<&str>,
) -> CalibrationDataError {
    let (why, most) = loader::why_unusable(&[], rows, reasons, refusal);
    CalibrationDataError::NoDocument { file: file.path.clone(), why, most, column: column.map(str::to_owned) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_container::Diagnostic;

    fn read(name: &str, bytes: &[u8], column: Option<&str>) -> Result<Documents, CalibrationDataError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(name);
        std::fs::write(&file, bytes).unwrap();
        let tokenizer = Path::new("no tokenizer");
        let read = Documents::load(&file, column, tokenizer, 10);
        let checked = Documents::check(&file, column, Some(tokenizer));
        assert!(checked.is_ok() || read.is_err(), "{name}");
        let without_tokenizer = |error: &CalibrationDataError| matches!(error, CalibrationDataError::Tokenizer(_));
        let of_check = checked.as_ref().is_err_and(without_tokenizer);
        assert_eq!(of_check, read.as_ref().is_err_and(without_tokenizer), "{name}");
        assert!(Documents::check(&file, column, None).is_ok() || checked.is_err(), "{name}");
        read
    }

    #[test]
    fn tokens_need_no_tokenizer_and_each_row_is_a_document() {
        let lines = "{\"input_ids\": [1, 2, 3]}\n[4, 5]\n{\"a\": 1}\n";
        let found = read("a.jsonl", lines.as_bytes(), None).unwrap();
        let tokens: Vec<&[u32]> = found.documents.iter().map(|document| &document.tokens[..]).collect();
        assert_eq!(tokens, [&[1, 2, 3][..], &[4, 5]]);
        assert!(found.documents.iter().all(|document| document.is_row));
        assert_eq!(found.warnings, [Warning::Skipped { file: "a.jsonl".to_owned(), rows: 1, why: Skip::NoText }]);
        let named = read("a.jsonl", b"{\"ids\": [7, 8]}\n", Some("ids")).unwrap();
        assert_eq!(named.documents[0].tokens, [7, 8]);
        let header = b"\x93NUMPY\x01\x00\x37\x00{'descr': '<u2', 'fortran_order': False, 'shape': (3,)}";
        let array = read("a.npy", &[&header[..], &[1, 0, 2, 0, 3, 0]].concat(), None).unwrap();
        assert_eq!(array.documents, [TokenDocument { tokens: vec![1, 2, 3], is_row: false, has_images: false }]);
    }

    #[test]
    fn text_needs_a_tokenizer_whatever_its_name_is() {
        for name in ["a.txt", "README.md", "text"] {
            let error = read(name, b"Once upon a time", None).unwrap_err();
            assert!(matches!(error, CalibrationDataError::Tokenizer(_)), "{name}: {error}");
        }
    }

    #[test]
    fn files_without_documents_are_refused_before_a_tokenizer_is_needed() {
        for (name, bytes) in [("a.txt", ""), ("a.jsonl", ""), ("a.jsonl", "{\"a\": 1}\n")] {
            let error = read(name, bytes.as_bytes(), None).unwrap_err();
            assert!(matches!(error, CalibrationDataError::NoDocument { .. }), "{name}: {error}");
            assert!(error.hint().is_some(), "{error}");
        }
        let unknown = read("a.jsonl", b"[1, 10]\n", None).unwrap_err();
        assert!(matches!(unknown, CalibrationDataError::OutOfVocabulary { row: 1, token: 10, .. }), "{unknown}");
        let zipped = read("a.gz", b"", None).unwrap_err();
        assert!(matches!(zipped, CalibrationDataError::UnknownFormat { .. }), "{zipped}");
        let no_fields = read("a.txt", b"text", Some("text")).unwrap_err();
        assert!(matches!(no_fields, CalibrationDataError::NoFields { .. }), "{no_fields}");
    }
}
