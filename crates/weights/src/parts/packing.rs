//! Codes to bytes, as a [`Packing`] says, over the memory of the last ones. Not which codes, nor where the bytes go.

use super::part::Packing;
use kvant_numeric::pack::{
    NibbleOrder, Word, WordMatrix, flip_highest_bits, pack_bits, pack_crumbs_first_high, pack_words,
    pack_words_transposed, packed_len, rearrange_words, transpose_part,
};
use kvant_numeric::simd::Isa;

/// Packs rows of `columns` codes. `signed` ones are in two's complement, which offset-binary packings change.
pub(super) fn pack_rows(
    isa: Isa,
    packing: Packing,
    signed: bool,
    (codes, columns): (&[u8], usize),
    bytes: &mut Vec<u8>,
) {
    let row_bytes = packing.row_bytes(columns);
    bytes.resize(codes.len() / columns.max(1) * row_bytes, 0);
    // One run where no row ends inside a unit of the packing.
    if packing.is_seamless(columns) {
        return pack_run(isa, packing, signed, codes, bytes);
    }
    for (codes, bytes) in codes.chunks(columns.max(1)).zip(bytes.chunks_mut(row_bytes.max(1))) {
        pack_run(isa, packing, signed, codes, bytes);
    }
}

fn pack_run(isa: Isa, packing: Packing, signed: bool, codes: &[u8], bytes: &mut [u8]) {
    match packing {
        Packing::Bytes => bytes.copy_from_slice(codes),
        Packing::Bits(bits) => pack_bits(isa, codes, bits, bytes),
        Packing::OffsetWords(bits) | Packing::OffsetWordsDown(bits) => {
            let (used, padding) = bytes.split_at_mut(packed_len(codes.len(), bits));
            pack_bits(isa, codes, bits, used);
            if signed {
                flip_highest_bits(isa, bits, codes.len(), used);
            }
            padding.fill(0);
        }
        Packing::CrumbsFirstHigh => pack_crumbs_first_high(codes, bytes),
        Packing::Words(order) => pack_words(order, codes, bytes.as_chunks_mut().0),
        Packing::OffsetNibbles(order) => {
            pack_words(order, codes, bytes.as_chunks_mut().0);
            flip_words(isa, signed, bytes);
        }
        Packing::Int32 => {
            let wide = |code: u8| if signed { i32::from(code as i8) } else { i32::from(code) };
            let words = bytes.as_chunks_mut().0.iter_mut();
            words.zip(codes).for_each(|(word, code)| *word = wide(*code).to_le_bytes());
        }
    }
}

/// Makes offset-binary codes of nibbles in two's complement, in whole words.
fn flip_words(isa: Isa, signed: bool, bytes: &mut [u8]) {
    if signed {
        flip_highest_bits(isa, 4, bytes.len() * 2, bytes);
    }
}

/// Packs the transpose of `rows x columns` codes into words of eight; `flipped` where two's complement becomes offset-binary.
pub(super) fn pack_words_across(
    isa: Isa,
    order: NibbleOrder,
    flipped: bool,
    (codes, rows, columns): (&[u8], usize, usize),
    bytes: &mut Vec<u8>,
) {
    bytes.resize(columns * rows.div_ceil(8) * 4, 0);
    pack_words_transposed(isa, order, codes, rows, columns, bytes.as_chunks_mut().0);
    flip_words(isa, flipped, bytes);
}

/// Takes words of another layout over; nothing for packings that have no words of 4-bit codes.
pub(super) fn rearrange(
    isa: Isa,
    words: WordMatrix<'_>,
    (packing, transposed): (Packing, bool),
    (rows, columns): (usize, usize),
    flipped: bool,
    bytes: &mut Vec<u8>,
) {
    bytes.clear();
    if let Some(layout) = packing.word_layout(transposed) {
        bytes.resize(rows * columns / 2, 0);
        rearrange_words(isa, words, layout, (rows, columns), flipped, bytes.as_chunks_mut().0);
    }
}

/// Streams that are packed before their words are turned: few enough for the first-level cache, and a cache line of words.
const STREAMS: usize = 16;

/// Packs every `length` codes as a stream of words, each of which becomes a column; `words` is memory for some of them.
pub(super) fn pack_streams_down(
    isa: Isa,
    bits: u32,
    signed: bool,
    (codes, length): (&[u8], usize),
    words: &mut Vec<Word>,
    bytes: &mut Vec<u8>,
) {
    let packing = Packing::OffsetWords(bits);
    let (streams, width) = (codes.len() / length.max(1), packing.row_bytes(length) / 4);
    bytes.resize(streams * width * 4, 0);
    let stored: &mut [Word] = bytes.as_chunks_mut().0;
    for (part, codes) in codes.chunks((STREAMS * length).max(1)).enumerate() {
        let count = codes.len() / length.max(1);
        words.resize(count * width, Word::default());
        for (codes, words) in codes.chunks(length.max(1)).zip(words.chunks_mut(width.max(1))) {
            pack_run(isa, packing, signed, codes, words.as_flattened_mut());
        }
        transpose_part((words, width), (count, width), (&mut stored[part * STREAMS..], streams));
    }
}
