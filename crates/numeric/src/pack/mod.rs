//! Codes to bytes: dense bit streams, AWQ-ordered words, transposition, words of one layout to those of another. Not which export uses which: that is in
//! `kvant-formats`. Codes are one byte each with the code in the low bits; higher bits (the sign extension of a negative
//! two's-complement code) are ignored.

mod bits;
mod transpose;
mod word_matrix;
mod words;

pub use bits::{
    flip_highest_bits, pack_bits, pack_crumbs_first_high, packed_bits, packed_len, unpack_bits,
    unpack_crumbs_first_high, unpacked_bits,
};
pub use transpose::{transpose, transpose_part};
pub use word_matrix::{WordAxis, WordLayout, WordMatrix, rearrange_words};
pub use words::{
    NibbleOrder, Word, pack_rows_transposed, pack_words, pack_words_transposed, unpack_word_column, unpack_words,
};
