//! Eight 4-bit codes to a 32-bit word, in natural or AWQ order, along a row or across rows.

use crate::simd::{Isa, Loop, dispatch};
use std::ops::Range;

/// A 32-bit word as stored in files: little-endian, at any address.
pub type Word = [u8; 4];

/// Which of eight consecutive codes is in which nibble of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum NibbleOrder {
    /// Nibble `i` (bits `4i..4i+3`) holds code `i`.
    Natural,
    /// Nibbles hold codes 0, 2, 4, 6, 1, 3, 5, 7: AWQ's gemm order, AMD Quark's `reorder`.
    #[default]
    Awq,
}

impl NibbleOrder {
    /// The bits by which code `i` of eight is shifted.
    pub(super) const fn shift(self, code: usize) -> u32 {
        let nibble = match self {
            NibbleOrder::Natural => code,
            NibbleOrder::Awq => code / 2 + 4 * (code % 2),
        };
        4 * nibble as u32
    }

    /// The index of the code in a nibble.
    pub(super) const fn code(self, nibble: usize) -> usize {
        match self {
            NibbleOrder::Natural => nibble,
            NibbleOrder::Awq => nibble % 4 * 2 + nibble / 4,
        }
    }
}

/// Packs consecutive codes eight to a word; missing codes of the last word are 0.
pub fn pack_words(order: NibbleOrder, codes: &[u8], words: &mut [Word]) {
    let (eights, tail) = codes.as_chunks::<8>();
    for (word, eight) in words.iter_mut().zip(eights) {
        *word = pack_word(order, eight).to_le_bytes();
    }
    if let (false, Some(word)) = (tail.is_empty(), words.get_mut(eights.len())) {
        let mut eight = [0; 8];
        eight[..tail.len()].copy_from_slice(tail);
        *word = pack_word(order, &eight).to_le_bytes();
    }
}

#[inline(always)]
fn pack_word(order: NibbleOrder, codes: &[u8; 8]) -> u32 {
    let low = u64::from_le_bytes(*codes) & 0x0F0F_0F0F_0F0F_0F0F;
    // Codes 2i and 2i + 1 side by side, in the low byte of every 16 bits.
    let pairs = |word: u64| {
        let pairs = (word | word >> 4) & 0x00FF_00FF_00FF_00FF;
        let fours = (pairs | pairs >> 8) & 0x0000_FFFF_0000_FFFF;
        (fours | fours >> 16) as u32
    };
    match order {
        NibbleOrder::Natural => pairs(low),
        NibbleOrder::Awq => {
            let [a, b, c, d, e, f, g, h] = low.to_le_bytes();
            pairs(u64::from_le_bytes([a, c, e, g, b, d, f, h]))
        }
    }
}

/// The codes of words that [`pack_words`] wrote, as unsigned numbers.
pub fn unpack_words(isa: Isa, order: NibbleOrder, words: &[Word], codes: &mut [u8]) {
    dispatch(isa, Unpack { order, words, codes });
}

struct Unpack<'a> {
    order: NibbleOrder,
    words: &'a [Word],
    codes: &'a mut [u8],
}

impl Loop for Unpack<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (eights, tail) = self.codes.as_chunks_mut::<8>();
        for (eight, word) in eights.iter_mut().zip(self.words) {
            let word = u32::from_le_bytes(*word);
            for (i, code) in eight.iter_mut().enumerate() {
                *code = (word >> self.order.shift(i)) as u8 & 0xF;
            }
        }
        if let Some(word) = self.words.get(eights.len()) {
            let word = u32::from_le_bytes(*word);
            tail.iter_mut().enumerate().for_each(|(i, code)| *code = (word >> self.order.shift(i)) as u8 & 0xF);
        }
    }
}

/// Code `index` of eight of every word: the codes of row `8j + index`, given the words `(c, j)` of all columns `c` that
/// [`pack_words_transposed`] wrote.
pub fn unpack_word_column(isa: Isa, order: NibbleOrder, words: &[Word], index: usize, codes: &mut [u8]) {
    dispatch(isa, UnpackColumn { shift: order.shift(index), words, codes });
}

struct UnpackColumn<'a> {
    shift: u32,
    words: &'a [Word],
    codes: &'a mut [u8],
}

impl Loop for UnpackColumn<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (code, word) in self.codes.iter_mut().zip(self.words) {
            *code = (u32::from_le_bytes(*word) >> self.shift) as u8 & 0xF;
        }
    }
}

/// Packs the transpose of a row-major `rows x columns` matrix of codes along its new last axis: `words` is
/// `columns x ceil(rows / 8)`, and word `(c, j)` holds codes of rows `8j..8j+8` of column `c`; missing rows are 0.
pub fn pack_words_transposed(
    isa: Isa,
    order: NibbleOrder,
    codes: &[u8],
    rows: usize,
    columns: usize,
    words: &mut [Word],
) {
    assert_eq!(words.len(), columns * rows.div_ceil(8), "words of {rows} x {columns} codes");
    pack_rows_transposed(isa, order, codes, columns, words, rows.div_ceil(8), 0);
}

/// Packs some rows of the matrix of [`pack_words_transposed`], a multiple of eight unless they are its last, into their
/// words: word `first` and on of each of the `per_column` words of a column.
pub fn pack_rows_transposed(
    isa: Isa,
    order: NibbleOrder,
    codes: &[u8],
    columns: usize,
    words: &mut [Word],
    per_column: usize,
    first: usize,
) {
    let mut lines = [[Word::default(); WIDTH]; LINES];
    for (i, rows) in codes.chunks((8 * LINES * columns).max(1)).enumerate() {
        let count = rows.len().div_ceil(8 * columns);
        for left in (0..columns).step_by(WIDTH) {
            let width = WIDTH.min(columns - left);
            dispatch(isa, Tile { order, codes: rows, columns, within: left..left + width, lines: &mut lines });
            for column in 0..width {
                let start = (left + column) * per_column + first + i * LINES;
                let words = words[start..start + count].iter_mut();
                words.zip(&lines).for_each(|(word, line)| *word = line[column]);
            }
        }
    }
}

/// Columns of a tile: the bytes of a vector.
const WIDTH: usize = 64;
/// Words of a column in a tile: those of a cache line.
const LINES: usize = 16;

/// The words of some columns, before they are transposed: one line for eight rows of codes.
struct Tile<'a> {
    order: NibbleOrder,
    codes: &'a [u8],
    columns: usize,
    within: Range<usize>,
    lines: &'a mut [[Word; WIDTH]; LINES],
}

impl Loop for Tile<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (line, rows) in self.lines.iter_mut().zip(self.codes.chunks(8 * self.columns)) {
            let row = |i: usize| rows.get(i * self.columns..).and_then(|row| row.get(self.within.clone()));
            let row = |i: usize| row(i).unwrap_or_default();
            // Codes that share a byte of the word, in a byte first: four times as many fit a vector.
            let bytes: [[u8; WIDTH]; 4] = [
                byte_line(row(self.order.code(0)), row(self.order.code(1))),
                byte_line(row(self.order.code(2)), row(self.order.code(3))),
                byte_line(row(self.order.code(4)), row(self.order.code(5))),
                byte_line(row(self.order.code(6)), row(self.order.code(7))),
            ];
            for (i, word) in line.iter_mut().enumerate() {
                *word = [bytes[0][i], bytes[1][i], bytes[2][i], bytes[3][i]];
            }
        }
    }
}

/// Codes of two rows, the second in the high nibbles; columns and rows that do not exist are 0.
#[inline(always)]
fn byte_line(low: &[u8], high: &[u8]) -> [u8; WIDTH] {
    let mut bytes = [0; WIDTH];
    if let (Some(low), Some(high)) = (low.first_chunk::<WIDTH>(), high.first_chunk::<WIDTH>()) {
        for i in 0..WIDTH {
            bytes[i] = (low[i] & 0xF) | high[i] << 4;
        }
        return bytes;
    }
    bytes.iter_mut().zip(low).for_each(|(byte, code)| *byte = code & 0xF);
    bytes.iter_mut().zip(high).for_each(|(byte, code)| *byte |= code << 4);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn awq_nibble_order_matches_gemm_kernels() {
        let mut words = [Word::default()];
        pack_words(NibbleOrder::Awq, &[0, 1, 2, 3, 4, 5, 6, 7], &mut words);
        assert_eq!(words, [0x7531_6420_u32.to_le_bytes()]);
        pack_words(NibbleOrder::Natural, &[0, 1, 2, 3, 4, 5, 6, 7], &mut words);
        assert_eq!(words, [0x7654_3210_u32.to_le_bytes()]);
    }

    #[test]
    fn word_packing_round_trips_with_tails() {
        for order in [NibbleOrder::Natural, NibbleOrder::Awq] {
            for count in 0..30usize {
                let codes: Vec<u8> = (0..count).map(|i| (i * 7 % 16) as u8).collect();
                let (mut words, mut back) = (vec![Word::default(); codes.len().div_ceil(8)], vec![0; codes.len()]);
                pack_words(order, &codes, &mut words);
                unpack_words(Isa::best(), order, &words, &mut back);
                assert_eq!(back, codes);
            }
        }
    }

    #[test]
    fn partial_rows_give_the_same_words() {
        let (rows, columns) = (301usize, 70);
        let codes: Vec<u8> = (0..rows * columns).map(|i| (i * i % 253) as u8).collect();
        for isa in Isa::available() {
            for order in [NibbleOrder::Natural, NibbleOrder::Awq] {
                let mut whole = vec![Word::default(); columns * 38];
                pack_words_transposed(isa, order, &codes, rows, columns, &mut whole);
                let mut parts = vec![[0xFF; 4]; columns * 38];
                for (i, codes) in codes.chunks(40 * columns).enumerate() {
                    pack_rows_transposed(isa, order, codes, columns, &mut parts, 38, i * 5);
                }
                assert_eq!(parts, whole);
            }
        }
    }

    #[test]
    fn transposed_packing_equals_packing_the_transpose() {
        for isa in Isa::available() {
            for (rows, columns) in
                [(8usize, 3usize), (16, 128), (24, 33), (13, 5), (1, 40), (264, 200), (131, 64), (0, 4), (4, 0)]
            {
                let codes: Vec<u8> = (0..rows * columns).map(|i| (i * i % 251) as u8).collect();
                let per_column = rows.div_ceil(8);
                let mut words = vec![Word::default(); columns * per_column];
                pack_words_transposed(isa, NibbleOrder::Awq, &codes, rows, columns, &mut words);
                for column in 0..columns {
                    let line: Vec<u8> = (0..rows).map(|row| codes[row * columns + column]).collect();
                    let mut expected = vec![Word::default(); per_column];
                    pack_words(NibbleOrder::Awq, &line, &mut expected);
                    assert_eq!(words[column * per_column..][..per_column], expected);
                }
            }
        }
    }
}
