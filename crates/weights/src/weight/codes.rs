//! Codes out of the bytes in which a format packed them: any band of a matrix, in either orientation. One unpacker for
//! all layouts, the inverse of [`crate::parts::Packer`]. Not what codes stand for.

use crate::band::Band;
use crate::parts::Packing;
use kvant_numeric::pack::{
    Word, WordAxis, WordMatrix, transpose, transpose_part, unpack_bits, unpack_crumbs_first_high, unpack_word_column,
    unpack_words,
};
use kvant_numeric::simd::Isa;
use std::borrow::Cow;
use std::ops::Range;

/// A packed matrix of codes in the mapped bytes of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct StoredCodes<'a> {
    /// Their bytes.
    pub bytes: &'a [u8],
    /// How they are packed.
    pub packing: Packing,
    /// Whether the matrix is stored transposed.
    pub transposed: bool,
    /// Output channels.
    pub rows: usize,
    /// Input channels.
    pub columns: usize,
    /// Bits of a code.
    pub bits: u32,
    /// Whether codes are stored less 1 (zero points of GPTQ's first format).
    pub less_one: bool,
}

/// Codes that end where a byte does in every dense stream, and a word in a stream of words.
const STREAM_UNIT: usize = 32;

/// Words that are turned at a time: a cache line of them.
const LINE: usize = 16;

impl StoredCodes<'_> {
    /// The codes of some rows and columns as unsigned numbers, row-major.
    pub fn read(&self, isa: Isa, rows: Range<usize>, columns: Range<usize>) -> Vec<u8> {
        let mut codes = Vec::new();
        self.read_onto(isa, rows, columns, &mut codes);
        codes
    }

    /// The same, over what `codes` held before.
    pub(crate) fn read_onto(&self, isa: Isa, rows: Range<usize>, columns: Range<usize>, codes: &mut Vec<u8>) {
        codes.resize(rows.len() * columns.len(), 0);
        match (self.transposed, self.packing) {
            (false, _) => self.read_stored(isa, rows, columns, codes),
            (true, Packing::Words(_) | Packing::OffsetNibbles(_)) if !self.less_one => {
                self.read_words_across(isa, rows, columns, codes)
            }
            (true, Packing::OffsetWordsDown(_)) => self.read_streams_across(isa, rows, columns, codes),
            (true, _) => {
                let mut turned = vec![0; codes.len()];
                self.read_stored(isa, columns.clone(), rows.clone(), &mut turned);
                transpose(&turned, columns.len(), rows.len(), codes);
            }
        }
    }

    /// The words of a band of 4-bit codes, which fills whole ones; `None` for other codes and bands.
    pub(crate) fn words_of(&self, band: &Band) -> Option<WordMatrix<'_>> {
        let layout = self.packing.word_layout(self.transposed).filter(|_| !self.less_one)?;
        let (high, wide) = layout.words(self.rows, self.columns)?;
        layout.words(band.rows.len(), band.columns.len())?;
        let (row, column) = match layout.axis {
            WordAxis::Rows => (band.rows.start.is_multiple_of(8).then_some(band.rows.start / 8)?, band.columns.start),
            WordAxis::Columns => {
                (band.rows.start, band.columns.start.is_multiple_of(8).then_some(band.columns.start / 8)?)
            }
        };
        let (stride, first) =
            if layout.column_major { (high, column * high + row) } else { (wide, row * wide + column) };
        Some(WordMatrix { words: self.words().get(first..)?, layout, stride })
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
        if start == columns.start && !self.less_one {
            for (row, codes) in rows.zip(codes.chunks_mut(columns.len().max(1))) {
                let line = &self.bytes[row * row_bytes..(row + 1) * row_bytes];
                self.unpack(isa, &line[self.offset(start)..], codes);
            }
            return;
        }
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
            Packing::Words(order) | Packing::OffsetNibbles(order) => {
                unpack_words(isa, order, bytes.as_chunks().0, codes);
            }
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
        let words = self.words();
        let word =
            |line: usize, column: usize| words.get(line * width + column).map_or(0, |word| u32::from_le_bytes(*word));
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
        let (width, count) = (self.rows.div_ceil(8), columns.len());
        let mut turned = vec![Word::default(); LINE * count];
        let mut codes = codes.chunks_mut(count.max(1));
        for start in (rows.start / 8..rows.end.div_ceil(8)).step_by(LINE) {
            let lines = LINE.min(rows.end.div_ceil(8) - start);
            let words = self.words().get(columns.start * width + start..).unwrap_or_default();
            transpose_part((words, width), (count, lines), (&mut turned, count));
            let these = rows.start.max(start * 8)..rows.end.min((start + lines) * 8);
            for (row, codes) in these.zip(&mut codes) {
                let line = (row / 8 - start) * count;
                unpack_word_column(isa, order, &turned[line..line + count], row % 8, codes);
            }
        }
    }

    /// Streams along the input channels that are stored as rows of words, a word an output channel.
    fn read_streams_across(&self, isa: Isa, rows: Range<usize>, columns: Range<usize>, codes: &mut [u8]) {
        let start = columns.start / STREAM_UNIT * STREAM_UNIT;
        let word = |column: usize| (column * self.bits as usize).div_ceil(32);
        let (first, count) = (word(start), word(columns.end) - word(start));
        let mut turned = vec![Word::default(); LINE * count];
        let mut aligned = vec![0; columns.end - start];
        let length = columns.len().max(1);
        for (row, codes) in rows.step_by(LINE).zip(codes.chunks_mut(LINE * length)) {
            let lines = codes.len() / length;
            let words = self.words().get(first * self.rows + row..).unwrap_or_default();
            transpose_part((words, self.rows), (count, lines), (&mut turned, count));
            for (stream, codes) in turned.chunks(count.max(1)).zip(codes.chunks_mut(length)) {
                if start == columns.start {
                    unpack_bits(isa, stream.as_flattened(), self.bits, codes);
                    continue;
                }
                unpack_bits(isa, stream.as_flattened(), self.bits, &mut aligned);
                codes.copy_from_slice(&aligned[columns.start - start..]);
            }
        }
    }

    fn words(&self) -> &[Word] {
        self.bytes.as_chunks().0
    }
}

/// Adds 1 to all codes of a row of words at once, as those who took it away subtracted it at once: what one code borrowed
/// from the next it gives back. Codes that cross words were treated one by one.
fn plus_one(line: &[u8], bits: u32) -> Vec<u8> {
    let mut line = line.to_vec();
    if bits.is_power_of_two() {
        let ones = (0..32).step_by(bits as usize).fold(0u32, |ones, at| ones | 1 << at);
        for word in line.as_chunks_mut().0 {
            *word = u32::from_le_bytes(*word).wrapping_add(ones).to_le_bytes();
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::{BandCodes, Coded, Content, Packer, Part};
    use kvant_container::Dtype;
    use kvant_numeric::pack::NibbleOrder;
    use kvant_quant::{Codes, QuantParts, QuantTensor};

    const PACKINGS: [(Packing, bool); 7] = [
        (Packing::OffsetWords(4), false),
        (Packing::OffsetWordsDown(4), true),
        (Packing::OffsetNibbles(NibbleOrder::Awq), true),
        (Packing::Words(NibbleOrder::Awq), true),
        (Packing::Words(NibbleOrder::Natural), false),
        (Packing::Bits(4), false),
        (Packing::Bits(4), true),
    ];

    fn tensor(rows: usize, columns: usize) -> QuantTensor {
        let codes = (0..rows * columns).map(|i| ((i * i / 7) as u8 & 15).wrapping_sub(8)).collect();
        let (codes, scales) = (Codes::Bytes(codes), vec![1.0; rows]);
        let parts = QuantParts { codes, scales, zero_points: Vec::new(), global_scale: None };
        QuantTensor::new("int4:channel".parse().unwrap(), rows, columns, parts).unwrap()
    }

    fn packed(coded: Coded<'_>, (packing, transposed): (Packing, bool), band: &Band) -> (u64, Vec<u8>) {
        let content = Content::Codes { packing, transposed };
        let part = Part { name: String::new(), dtype: Dtype::U8, shape: Vec::new(), content };
        let (mut packer, whole) = (Packer::default(), coded.parameters.shape().into());
        let piece = packer.pack(Isa::best(), &part, coded, band, &whole).unwrap();
        (piece.offset, piece.bytes.into_owned())
    }

    /// What a band of stored codes becomes by words, and code by code.
    fn both_ways(
        (rows, columns): (usize, usize),
        from: (Packing, bool),
        target: (Packing, bool),
        band: &Band,
    ) -> Option<[(u64, Vec<u8>); 2]> {
        let whole = tensor(rows, columns);
        let (_, bytes) = packed((&whole).into(), from, &Band { rows: 0..rows, columns: 0..columns });
        let (packing, transposed) = from;
        let stored = StoredCodes { bytes: &bytes, packing, transposed, rows, columns, bits: 4, less_one: false };
        let words = stored.words_of(band)?;
        let line = |row: usize| band.columns.clone().map(move |column| row * columns + column);
        let part = band.rows.clone().flat_map(line).map(|i| whole.code_bytes().unwrap()[i]).collect();
        let scales = vec![1.0; band.rows.len()];
        let parts = QuantParts { codes: Codes::Bytes(part), scales, zero_points: Vec::new(), global_scale: None };
        let part = QuantTensor::new(whole.scheme(), band.rows.len(), band.columns.len(), parts).unwrap();
        let codes = BandCodes::Words { words, twos_complement: !packing.is_offset() };
        let by_words = packed(Coded { codes, parameters: part.parameters() }, target, band);
        Some([by_words, packed((&part).into(), target, band)])
    }

    #[test]
    fn word_repacking_equals_repacking_codes() {
        let (rows, columns) = (264, 176);
        let bands = [
            Band { rows: 0..rows, columns: 0..columns },
            Band { rows: 0..rows, columns: 32..96 },
            Band { rows: 136..264, columns: 0..columns },
        ];
        for from in PACKINGS {
            for target in PACKINGS {
                let run = |band: &&Band| if target.1 { band.rows == (0..rows) } else { band.columns == (0..columns) };
                for band in bands.iter().filter(run) {
                    let [by_words, by_codes] = both_ways((rows, columns), from, target, band).unwrap();
                    assert_eq!(by_words, by_codes, "{from:?} {target:?} {band:?}");
                }
            }
        }
    }

    #[test]
    fn bands_not_filling_words_fall_back_to_codes() {
        let whole = Band { rows: 0..12, columns: 0..16 };
        assert!(both_ways((12, 16), (Packing::OffsetNibbles(NibbleOrder::Awq), true), PACKINGS[0], &whole).is_none());
        assert!(both_ways((12, 16), PACKINGS[0], PACKINGS[1], &whole).is_some());
        let within = Band { rows: 0..12, columns: 4..12 };
        assert!(both_ways((12, 16), PACKINGS[0], PACKINGS[1], &within).is_none());
    }
}
