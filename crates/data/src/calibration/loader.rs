//! The flow from files to sequences: rows are counted, encoded where they are wanted, and selected.

use super::document::{Document, Row, Skip};
use super::encoder::{DocumentPlace, Encoder, Unusable};
use super::files::{DataFile, Reading};
use super::selection::{RowOrigin, Selection};
use super::{CalibrationData, CalibrationDataError, FileProvenance, HeldOut, Options, Packing, Provenance, stream};
use crate::images::TextImages;
use kvant_quant::counts::number;
use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::path::Path;

/// Loads data without shares, or one part of a mixture.
pub(super) fn load(
    options: &Options,
    model: &Path,
    vocabulary: usize,
    images: TextImages,
    mut watch: impl FnMut(usize, usize),
) -> Result<CalibrationData, CalibrationDataError> {
    let files = options.resolve()?;
    let mut loader = Loader {
        options,
        encoder: Encoder::new(model, vocabulary, options.sequence_length, images),
        selection: Selection::new(options),
        short: Vec::new(),
        files: Vec::new(),
        watch: &mut watch,
    };
    for file in &files {
        if loader.selection.is_full() {
            break;
        }
        loader.read(file)?;
    }
    loader.finish()
}

struct Loader<'a> {
    options: &'a Options,
    encoder: Encoder,
    selection: Selection,
    /// Documents shorter than a window, as many as could be used: if none fills one, they are used whole.
    short: Vec<(RowOrigin, Vec<u32>)>,
    files: Vec<FileProvenance>,
    watch: &'a mut dyn FnMut(usize, usize),
}

impl Loader<'_> {
    /// Reads a file; of a text more than at first where its beginning has too few tokens.
    fn read(&mut self, file: &DataFile) -> Result<(), CalibrationDataError> {
        let (record, (first, most)) = (record_of(file, self.options)?, self.options.document_bytes());
        self.read_up_to(file, record.clone(), first)?;
        let is_short = |loader: &Self| !loader.selection.is_full() && loader.files.last().is_some_and(|file| file.cut);
        if first < most && is_short(self) {
            self.files.pop();
            self.selection.forget(self.files.len());
            self.short.retain(|(origin, _)| origin.file < self.files.len());
            self.read_up_to(file, record, most)?;
        }
        // Rows after the requested samples would not have been taken.
        let is_cut = self.options.is_drawn() || (!self.selection.has_samples() && is_short(self));
        if let Some(record) = self.files.last_mut() {
            record.cut &= is_cut;
        }
        Ok(())
    }

    fn read_up_to(
        &mut self,
        file: &DataFile,
        record: FileProvenance,
        max_document: u64,
    ) -> Result<(), CalibrationDataError> {
        self.files.push(record);
        let reading = Reading {
            max_bytes: self.options.max_bytes,
            max_document,
            column: self.options.column.as_deref(),
            marks: None,
        };
        file.format.read(file, &reading, &mut |row| self.row(file, row))
    }

    fn row(&mut self, file: &DataFile, row: Row) -> Result<ControlFlow<()>, CalibrationDataError> {
        let (index, options) = (self.files.len() - 1, self.options);
        let Some(record) = self.files.last_mut() else { return Ok(ControlFlow::Break(())) };
        let at = record.rows_read;
        record.rows_read += 1;
        let (document, natural) = match row {
            Row::Whole { document, cut } => {
                record.cut |= cut;
                (document, Packing::Document)
            }
            Row::Record(document) => (document, Packing::Sample),
            Row::Skipped(skip) => return Ok(self.skip(skip)),
        };
        let packing = options.packing.unwrap_or(natural);
        record.packing = Some(packing);
        let origin = RowOrigin { file: index, row: at, window: 0 };
        let place = DocumentPlace { file: &file.path, row: at + 1 };
        match self.take(document, packing, origin, place) {
            Ok(()) => Ok(self.flow()),
            Err(Unusable::Skip(skip)) => Ok(self.skip(skip)),
            Err(Unusable::Error(error)) => Err(error),
            Err(Unusable::Unknown(token)) => {
                let (file, vocabulary) = (file.path.clone(), self.encoder.vocabulary);
                Err(CalibrationDataError::OutOfVocabulary { file, row: at + 1, token, vocabulary })
            }
        }
    }

    /// Encodes a document, if it is wanted, and offers its tokens to the selection.
    fn take(
        &mut self,
        document: Document,
        packing: Packing,
        origin: RowOrigin,
        place: DocumentPlace<'_>,
    ) -> Result<(), Unusable> {
        // Which of a document's windows are wanted is known only when it is encoded.
        if packing != Packing::Document && !self.selection.wants(origin) {
            return Ok(());
        }
        let tokens = self.encoder.encode(document, packing, place)?;
        if packing != Packing::Sample && tokens.iter().any(|token| self.encoder.images.has(*token)) {
            let DocumentPlace { file, row } = place;
            return Err(CalibrationDataError::ImagesCut { file: file.to_path_buf(), row, packing }.into());
        }
        if packing != Packing::Document {
            self.selection.put(origin, tokens);
            return Ok(());
        }
        let length = self.options.sequence_length;
        if tokens.len() < length {
            if self.short.len() < self.options.samples.saturating_add(self.options.held_out) {
                self.short.push((origin, tokens));
            }
            return Err(Unusable::Skip(Skip::TooShort));
        }
        for (window, tokens) in (0..).zip(tokens.chunks_exact(length)) {
            let origin = RowOrigin { window, ..origin };
            if self.selection.wants(origin) {
                self.selection.put(origin, tokens.to_vec());
            }
        }
        Ok(())
    }

    fn skip(&mut self, skip: Skip) -> ControlFlow<()> {
        if let Some(record) = self.files.last_mut() {
            *record.skipped.entry(skip).or_default() += 1;
        }
        self.flow()
    }

    fn flow(&mut self) -> ControlFlow<()> {
        (self.watch)(self.selection.filled(), self.options.samples);
        if self.selection.is_full() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Takes documents that fill no window as they are, where no document does.
    fn use_short(&mut self) -> usize {
        if self.selection.filled() > 0 {
            return 0;
        }
        for (origin, tokens) in std::mem::take(&mut self.short) {
            let skipped = &mut self.files[origin.file].skipped;
            if let Some(count) = skipped.get_mut(&Skip::TooShort) {
                *count -= 1;
            }
            skipped.retain(|_, count| *count > 0);
            self.selection.put(origin, tokens);
        }
        self.selection.filled_short()
    }

    fn finish(mut self) -> Result<CalibrationData, CalibrationDataError> {
        let short_documents = self.use_short();
        let used = self.selection.rows_used(self.files.len());
        self.files.iter_mut().zip(used).for_each(|(file, used)| file.rows_used = used);
        let [sequences, held_out] = self.selection.finish();
        let length = self.options.sequence_length;
        if sequences.is_empty() {
            let rows = self.files.iter().map(|file| file.rows_read).sum();
            let names: Vec<String> = self.files.iter().map(|file| file.name.clone()).collect();
            return Err(no_sample(self.options, &names, rows, &reasons(&self.files), self.encoder.refusal));
        }
        let images = self.encoder.images.clone();
        let all = sequences.iter().chain(&held_out).map(Vec::as_slice);
        let provenance = Provenance {
            images: images.provenance(all)?,
            files: self.files,
            samples: sequences.len(),
            samples_asked: self.options.samples,
            tokens: sequences.iter().map(Vec::len).sum(),
            different_tokens: sequences.iter().flatten().collect::<HashSet<_>>().len(),
            held_out: HeldOut::of(&held_out),
            short_documents,
            sequence_length: length,
            seed: self.options.seed,
            shuffled: self.options.shuffle,
            chat_template: self.encoder.template_hash(),
            conversations_without_template: self.encoder.untemplated,
        };
        Ok(CalibrationData { sequences, held_out, images, provenance })
    }
}

/// The record of an unread file.
fn record_of(file: &DataFile, options: &Options) -> Result<FileProvenance, CalibrationDataError> {
    let (xxh3_128, bytes) = stream::hash(&file.path)?;
    Ok(FileProvenance {
        name: file.name(),
        share: options.shares.first().copied(),
        bytes,
        xxh3_128,
        format: file.format_name(),
        packing: None,
        rows_read: 0,
        rows_used: 0,
        skipped: BTreeMap::new(),
        cut: false,
    })
}

/// The number of skipped rows for each reason.
fn reasons(files: &[FileProvenance]) -> BTreeMap<Skip, u64> {
    let mut reasons = BTreeMap::new();
    for (&skip, &count) in files.iter().flat_map(|file| &file.skipped) {
        *reasons.entry(skip).or_default() += count;
    }
    reasons
}

/// Names the files that rows were read from: the first, and how many more.
fn of_files(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [name] => format!(" from {name}"),
        [name, others @ ..] => format!(" from {name} and {} more", others.len()),
    }
}

/// The error for data without usable rows: the number for each reason, and the message of the chat template.
pub(super) fn no_sample(
    options: &Options,
    names: &[String],
    rows: u64,
    reasons: &BTreeMap<Skip, u64>,
    refusal: Option<String>,
) -> CalibrationDataError {
    let (why, most) = why_unusable(names, rows, reasons, refusal);
    CalibrationDataError::NoSample { length: options.sequence_length, why, most, column: options.column.clone() }
}

/// Why files have no usable row, in words, and the problem of most rows.
pub(super) fn why_unusable(
    names: &[String],
    rows: u64,
    reasons: &BTreeMap<Skip, u64>,
    refusal: Option<String>,
) -> (String, Option<Skip>) {
    // A file without rows skips none.
    let most = match rows {
        0 => Some(Skip::Empty),
        _ => reasons.iter().max_by_key(|(_, count)| **count).map(|(skip, _)| *skip),
    };
    let reasons = reasons.iter().map(|(skip, count)| format!(", {count} {skip}")).collect::<String>();
    let refusal = refusal.map_or(String::new(), |refusal| format!(" ({refusal})"));
    let read = number(rows, "row");
    (format!("{read} read{}{reasons}{refusal}", of_files(names)), most)
}
