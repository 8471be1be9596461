//! Eight 4-bit codes to a 32-bit word, in natural or AWQ order, along a row or across rows.

use super::transpose;
use crate::simd::{Isa, Loop, dispatch};

/// Which of eight consecutive codes stands in which nibble of a word.
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
    const fn shift(self, code: usize) -> u32 {
        let nibble = match self {
            NibbleOrder::Natural => code,
            NibbleOrder::Awq => code / 2 + 4 * (code % 2),
        };
        4 * nibble as u32
    }
}

/// Packs consecutive codes eight to a word; missing codes of the last word are 0.
pub fn pack_words(order: NibbleOrder, codes: &[u8], words: &mut [u32]) {
    for (word, eight) in words.iter_mut().zip(codes.chunks(8)) {
        let shifted = eight.iter().enumerate().map(|(i, code)| u32::from(code & 0xF) << order.shift(i));
        *word = shifted.fold(0, |word, nibble| word | nibble);
    }
}

/// The codes of words that [`pack_words`] wrote, as unsigned numbers.
pub fn unpack_words(order: NibbleOrder, words: &[u32], codes: &mut [u8]) {
    for (i, code) in codes.iter_mut().enumerate() {
        *code = (words[i / 8] >> order.shift(i % 8)) as u8 & 0xF;
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
    words: &mut [u32],
) {
    let words_per_column = rows.div_ceil(8);
    let mut by_rows = vec![0; words_per_column * columns];
    for (codes, words) in codes.chunks(8 * columns.max(1)).zip(by_rows.chunks_mut(columns.max(1))) {
        for (row, codes) in codes.chunks(columns).enumerate() {
            dispatch(isa, AddNibbles { codes, shift: order.shift(row), words });
        }
    }
    transpose(&by_rows, words_per_column, columns, words);
}

struct AddNibbles<'a> {
    codes: &'a [u8],
    shift: u32,
    words: &'a mut [u32],
}

impl Loop for AddNibbles<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (word, code) in self.words.iter_mut().zip(self.codes) {
            *word |= u32::from(code & 0xF) << self.shift;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn awq_order_is_that_of_the_gemm_kernels() {
        let mut words = [0];
        pack_words(NibbleOrder::Awq, &[0, 1, 2, 3, 4, 5, 6, 7], &mut words);
        assert_eq!(words, [0x7531_6420]);
        pack_words(NibbleOrder::Natural, &[0, 1, 2, 3, 4, 5, 6, 7], &mut words);
        assert_eq!(words, [0x7654_3210]);
    }

    #[test]
    fn round_trip_with_tails() {
        for order in [NibbleOrder::Natural, NibbleOrder::Awq] {
            for count in 0..30usize {
                let codes: Vec<u8> = (0..count).map(|i| (i * 7 % 16) as u8).collect();
                let (mut words, mut back) = (vec![0; codes.len().div_ceil(8)], vec![0; codes.len()]);
                pack_words(order, &codes, &mut words);
                unpack_words(order, &words, &mut back);
                assert_eq!(back, codes);
            }
        }
    }

    #[test]
    fn transposed_packing_is_packing_the_transpose() {
        for isa in Isa::available() {
            for (rows, columns) in [(8usize, 3usize), (16, 128), (24, 33), (13, 5), (1, 40)] {
                let codes: Vec<u8> = (0..rows * columns).map(|i| (i * i % 251) as u8).collect();
                let per_column = rows.div_ceil(8);
                let mut words = vec![0; columns * per_column];
                pack_words_transposed(isa, NibbleOrder::Awq, &codes, rows, columns, &mut words);
                for column in 0..columns {
                    let line: Vec<u8> = (0..rows).map(|row| codes[row * columns + column]).collect();
                    let mut expected = vec![0; per_column];
                    pack_words(NibbleOrder::Awq, &line, &mut expected);
                    assert_eq!(words[column * per_column..][..per_column], expected);
                }
            }
        }
    }
}
