//! Codes out of the bytes in which an export packed them: any band of a matrix, in either orientation. One unpacker for
//! all layouts, the inverse of [`crate::export::pack`]. Not what codes stand for.

use crate::export::Packing;
use kvant_numeric::pack::{transpose, unpack_bits, unpack_crumbs_first_high, unpack_word_column, unpack_words};
use kvant_numeric::simd::Isa;
use std::borrow::Cow;
use std::ops::Range;

/// A packed matrix of codes in the mapped bytes of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredCodes<'a> {
    pub bytes: &'a [u8],
    pub packing: Packing,
    /// Whether the matrix is stored transposed.
    pub transposed: bool,
    pub rows: usize,
    pub columns: usize,
    /// Bits of a code.
    pub bits: u32,
    /// Whether codes are stored less 1 (zero points of GPTQ's first format).
    pub less_one: bool,
}

/// Codes that end where a byte does in every dense stream, and a word in a stream of words.
const STREAM_UNIT: usize = 32;

impl StoredCodes<'_> {
    /// The codes of some rows and columns as unsigned numbers, row-major.
    pub fn read(&self, isa: Isa, rows: Range<usize>, columns: Range<usize>) -> Vec<u8> {
        let mut codes = vec![0; rows.len() * columns.len()];
        match (self.transposed, self.packing) {
            (false, _) => self.read_stored(isa, rows, columns, &mut codes),
            (true, Packing::Words(_) | Packing::OffsetNibbles(_)) if !self.less_one => {
                self.read_words_across(isa, rows, columns, &mut codes)
            }
            (true, Packing::OffsetWordsDown(_)) => self.read_streams_across(isa, rows, columns, &mut codes),
            (true, _) => {
                let mut turned = vec![0; codes.len()];
                self.read_stored(isa, columns.clone(), rows.clone(), &mut turned);
                transpose(&turned, columns.len(), rows.len(), &mut codes);
            }
        }
        codes
    }

    /// Columns of the stored matrix.
    fn stored_columns(&self) -> usize {
        if self.transposed { self.rows } else { self.columns }
    }

    /// The same, of rows and columns of the stored matrix.
    fn read_stored(&self, isa: Isa, rows: Range<usize>, columns: Range<usize>, codes: &mut [u8]) {
        if let Packing::OffsetWordsDown(bits) = self.packing {
            return self.read_down(bits, rows, columns, codes);
        }
        let width = self.stored_columns();
        let row_bytes = self.packing.row_bytes(width);
        let whole = columns == (0..width) && self.packing.is_seamless(width) && !self.less_one;
        if whole {
            let bytes = &self.bytes[rows.start * row_bytes..rows.end * row_bytes];
            return self.unpack(isa, bytes, codes);
        }
        // Units of the packing start at multiples of eight codes.
        let start = columns.start / 8 * 8;
        let mut aligned = vec![0; columns.end - start];
        for (row, codes) in rows.zip(codes.chunks_mut(columns.len().max(1))) {
            let line = &self.bytes[row * row_bytes..(row + 1) * row_bytes];
            let line = if self.less_one { Cow::Owned(plus_one(line, self.bits)) } else { Cow::Borrowed(line) };
            self.unpack(isa, &line[self.offset(start)..], &mut aligned);
            codes.copy_from_slice(&aligned[columns.start - start..]);
        }
        if self.less_one && !self.bits.is_power_of_two() {
            let mask = ((1u16 << self.bits) - 1) as u8;
            codes.iter_mut().for_each(|code| *code = (*code + 1) & mask);
        }
    }

    /// Where in a row the code of a column that is a multiple of eight begins.
    fn offset(&self, column: usize) -> usize {
        match self.packing {
            Packing::Int32 => column * 4,
            _ => column * self.bits as usize / 8,
        }
    }

    fn unpack(&self, isa: Isa, bytes: &[u8], codes: &mut [u8]) {
        match self.packing {
            Packing::Bytes => codes.copy_from_slice(&bytes[..codes.len()]),
            Packing::Int32 => {
                let mask = ((1u16 << self.bits) - 1) as u8;
                codes.iter_mut().zip(bytes.iter().step_by(4)).for_each(|(code, byte)| *code = byte & mask);
            }
            Packing::Words(order) | Packing::OffsetNibbles(order) => unpack_words(isa, order, &words(bytes), codes),
            Packing::CrumbsFirstHigh => unpack_crumbs_first_high(bytes, codes),
            Packing::Bits(bits) | Packing::OffsetWords(bits) | Packing::OffsetWordsDown(bits) => {
                unpack_bits(isa, bytes, bits, codes);
            }
        }
    }

    /// Streams down the columns of the stored matrix.
    fn read_down(&self, bits: u32, rows: Range<usize>, columns: Range<usize>, codes: &mut [u8]) {
        let mask = ((1u16 << bits) - 1) as u8;
        let width = self.stored_columns();
        let word = |line: usize, column: usize| {
            let at = (line * width + column) * 4;
            self.bytes.get(at..at + 4).and_then(|word| word.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
        };
        for (row, codes) in rows.zip(codes.chunks_mut(columns.len().max(1))) {
            let (line, shift) = (row * bits as usize / 32, row * bits as usize % 32);
            let crosses = shift + bits as usize > 32;
            for (column, code) in columns.clone().zip(codes) {
                let high = if crosses { u64::from(word(line + 1, column)) << 32 } else { 0 };
                *code = ((u64::from(word(line, column)) | high) >> shift) as u8 & mask;
            }
        }
    }

    /// Words that hold eight rows of a column, stored column by column: words are turned, which are fewer than codes.
    fn read_words_across(&self, isa: Isa, rows: Range<usize>, columns: Range<usize>, codes: &mut [u8]) {
        let (Packing::Words(order) | Packing::OffsetNibbles(order)) = self.packing else { return };
        let per_column = self.rows.div_ceil(8);
        let span = rows.start / 8..rows.end.div_ceil(8);
        let turned = self.turned_words(per_column, columns.clone(), span.clone());
        for (row, codes) in rows.zip(codes.chunks_mut(columns.len().max(1))) {
            let line = (row / 8 - span.start) * columns.len();
            unpack_word_column(isa, order, &turned[line..line + columns.len()], row % 8, codes);
        }
    }

    /// Streams along the input channels that are stored as rows of words, a word an output channel.
    fn read_streams_across(&self, isa: Isa, rows: Range<usize>, columns: Range<usize>, codes: &mut [u8]) {
        let start = columns.start / STREAM_UNIT * STREAM_UNIT;
        let word = |column: usize| (column * self.bits as usize).div_ceil(32);
        let span = word(start)..word(columns.end);
        let turned = self.turned_words(self.rows, span.clone(), rows.clone());
        let mut aligned = vec![0; columns.end - start];
        for (row, codes) in (0..rows.len()).zip(codes.chunks_mut(columns.len().max(1))) {
            let bytes: Vec<u8> =
                turned[row * span.len()..(row + 1) * span.len()].iter().flat_map(|word| word.to_le_bytes()).collect();
            unpack_bits(isa, &bytes, self.bits, &mut aligned);
            codes.copy_from_slice(&aligned[columns.start - start..]);
        }
    }

    /// The transpose of a part of a matrix of words that is `width` words wide.
    fn turned_words(&self, width: usize, lines: Range<usize>, columns: Range<usize>) -> Vec<u32> {
        let count = lines.len();
        let part = lines.flat_map(|line| {
            let start = line * width;
            words_of(&self.bytes[(start + columns.start) * 4..(start + columns.end) * 4])
        });
        let part: Vec<u32> = part.collect();
        let mut turned = vec![0; part.len()];
        transpose(&part, count, columns.len(), &mut turned);
        turned
    }
}

fn words_of(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word))
}

fn words(bytes: &[u8]) -> Vec<u32> {
    words_of(bytes).collect()
}

/// Adds 1 to all codes of a row of words at once, as those who took it away subtracted it at once: what one code borrowed
/// from the next it gives back. Codes that cross words were treated one by one.
fn plus_one(line: &[u8], bits: u32) -> Vec<u8> {
    if !bits.is_power_of_two() {
        return line.to_vec();
    }
    let ones = (0..32).step_by(bits as usize).fold(0, |ones, at| ones | 1 << at);
    words_of(line).flat_map(|word| word.wrapping_add(ones).to_le_bytes()).collect()
}
