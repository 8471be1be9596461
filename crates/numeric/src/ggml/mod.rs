//! The block formats of llama.cpp: the tensor types of GGUF files. A row of weights is cut into blocks of consecutive
//! elements, and a block is a fixed number of bytes that hold its codes and its scales together. Not the file, which has
//! names and offsets: see `kvant-container`; and not schemes, whose codes and scales are apart.
//!
//! Layouts are those of `ggml-common.h`, values those of the dequantizers in `gguf-py` (`gguf/quants.py`), bit for bit.
//! Where llama.cpp defines the blocks of a type by a closed formula (`quantize_row_*_ref` of Q4_0, Q4_1, Q5_0, Q5_1, Q8_0,
//! TQ1_0, TQ2_0), the bytes are identical; where llama.cpp searches for scales, Kvant has its own search.
//!
//! To add a type, write its file with an implementation of `Layout`, and add a variant and a row here.

mod affine;
mod affine_fit;
mod affine_scales;
mod block;
mod coded;
mod float;
mod fp4;
mod grid;
mod grouped;
mod iq4;
mod lanes;
mod planes;
mod q2_k;
mod q3_k;
mod q4_k;
mod q6_k;
mod q8_0;
mod saturation;
mod scale;
mod symmetric;
mod symmetric_fit;
mod symmetric_scales;
mod ternary;
mod tile;

pub use coded::{Coded, Parts, PartsMut};
pub use grouped::{GroupMinima, GroupScales, GroupedBlocks, GroupedType, GroupedView, Levels};
pub use saturation::first_saturated;

use crate::simd::Isa;
use block::{Layout, Rows};
use std::fmt;
use std::str::FromStr;

/// A tensor type of GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the table says it: GgmlType::ALL")]
pub enum GgmlType {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    Tq1_0,
    Tq2_0,
    Mxfp4,
    Nvfp4,
}

/// A row of the table of types.
#[derive(Clone, Copy)]
pub struct GgmlRow {
    /// The type.
    pub kind: GgmlType,
    /// The name as llama.cpp spells it.
    pub name: &'static str,
    /// Its id in files.
    pub id: u32,
    /// Elements of a block.
    pub block_elements: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// One line for people who choose.
    pub about: &'static str,
    quantize: fn(Isa, Rows<'_>, &mut [u8]),
    dequantize: fn(Isa, &[u8], &mut [f32]),
}

const fn row<L: Layout>(kind: GgmlType, name: &'static str, id: u32, about: &'static str) -> GgmlRow {
    let (block_elements, block_bytes) = (L::ELEMENTS, L::BYTES);
    GgmlRow { kind, name, id, block_elements, block_bytes, about, quantize: L::quantize, dequantize: L::dequantize }
}

impl GgmlType {
    /// Every type, one row each, in the order of the variants.
    pub const ALL: &'static [GgmlRow] = &[
        row::<float::F32>(GgmlType::F32, "F32", 0, "IEEE binary32"),
        row::<float::F16>(GgmlType::F16, "F16", 1, "IEEE binary16, saturated"),
        row::<float::Bf16>(GgmlType::Bf16, "BF16", 30, "bfloat16"),
        row::<symmetric::Q4_0>(GgmlType::Q4_0, "Q4_0", 2, "4.5 bits: 32 integers, a scale"),
        row::<affine::Q4_1>(GgmlType::Q4_1, "Q4_1", 3, "5 bits: 32 integers, a scale and a minimum"),
        row::<symmetric::Q5_0>(GgmlType::Q5_0, "Q5_0", 6, "5.5 bits: 32 integers, a scale"),
        row::<affine::Q5_1>(GgmlType::Q5_1, "Q5_1", 7, "6 bits: 32 integers, a scale and a minimum"),
        row::<q8_0::Q8_0>(GgmlType::Q8_0, "Q8_0", 8, "8.5 bits: 32 integers, a scale"),
        row::<q2_k::Q2K>(GgmlType::Q2K, "Q2_K", 10, "2.625 bits: 16 groups of 16, scales and minima of 4 bits"),
        row::<q3_k::Q3K>(GgmlType::Q3K, "Q3_K", 11, "3.4375 bits: 16 groups of 16, scales of 6 bits"),
        row::<q4_k::Q4K>(GgmlType::Q4K, "Q4_K", 12, "4.5 bits: 8 groups of 32, scales and minima of 6 bits"),
        row::<q4_k::Q5K>(GgmlType::Q5K, "Q5_K", 13, "5.5 bits: 8 groups of 32, scales and minima of 6 bits"),
        row::<q6_k::Q6K>(GgmlType::Q6K, "Q6_K", 14, "6.5625 bits: 16 groups of 16, scales of 8 bits"),
        row::<iq4::Iq4Nl>(GgmlType::Iq4Nl, "IQ4_NL", 20, "4.5 bits: 32 codes of 16 uneven levels, a scale"),
        row::<iq4::Iq4Xs>(
            GgmlType::Iq4Xs,
            "IQ4_XS",
            23,
            "4.25 bits: 8 groups of 32 codes of 16 uneven levels, scales of 6 bits",
        ),
        row::<ternary::Tq1_0>(GgmlType::Tq1_0, "TQ1_0", 34, "1.6875 bits: 256 of -1, 0 and 1, a scale"),
        row::<ternary::Tq2_0>(GgmlType::Tq2_0, "TQ2_0", 35, "2.0625 bits: 256 of -1, 0 and 1, a scale"),
        row::<fp4::Mxfp4>(GgmlType::Mxfp4, "MXFP4", 39, "4.25 bits: 32 floats e2m1, a scale e8m0"),
        row::<fp4::Nvfp4>(GgmlType::Nvfp4, "NVFP4", 40, "4.5 bits: 4 groups of 16 floats e2m1, scales e4m3"),
    ];

    /// The row of this type.
    pub fn row(self) -> &'static GgmlRow {
        &Self::ALL[self as usize]
    }

    /// The name as llama.cpp spells it.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Its id in files.
    pub fn id(self) -> u32 {
        self.row().id
    }

    /// The type of a number in a file; none where it is unknown here.
    pub fn from_id(id: u32) -> Option<GgmlType> {
        Self::ALL.iter().find(|row| row.id == id).map(|row| row.kind)
    }

    /// Elements of a block.
    pub fn block_elements(self) -> usize {
        self.row().block_elements
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.row().block_bytes
    }

    /// Bytes of a row; `None` if `columns` is not a whole number of blocks or too large for memory.
    pub fn row_bytes(self, columns: usize) -> Option<usize> {
        let whole = columns.is_multiple_of(self.block_elements());
        (columns / self.block_elements()).checked_mul(self.block_bytes()).filter(|_| whole)
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name is not in the table.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown tensor type `{0}`; the known ones are in GgmlType::ALL, such as Q4_0, Q8_0 and Q4_K")]
pub struct UnknownGgmlType(pub String);

impl FromStr for GgmlType {
    type Err = UnknownGgmlType;

    /// Letters of either case.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let row = Self::ALL.iter().find(|row| row.name.eq_ignore_ascii_case(text));
        row.map(|row| row.kind).ok_or_else(|| UnknownGgmlType(text.to_owned()))
    }
}

/// Blocks of whole rows. `values` are rows of `columns` finite elements, a whole number of blocks each; `out` has
/// [`GgmlType::row_bytes`] for each row, and is filled as far as it goes. Non-finite values give blocks that represent
/// finite ones, except for F32 and BF16.
///
/// `importance` has a weight for each column, not negative: the mean squared activation of an imatrix. Types whose scales
/// are searched for minimise the sum of `importance * (value - dequantized)^2`, unlike llama.cpp, which multiplies the weights
/// further by a function of the value. All columns weigh the same where there is no importance or all of it is zero; a column
/// weighs at least 2^-20 of the greatest of its block. It makes no difference to F32, F16, BF16, Q8_0, TQ1_0 and TQ2_0.
pub fn quantize(isa: Isa, kind: GgmlType, columns: usize, values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    if columns == 0 {
        return;
    }
    let importance = importance.filter(|weights| weights.len() == columns);
    (kind.row().quantize)(isa, Rows { columns, values, importance }, out);
}

/// The values of whole blocks, up to the shorter of the two.
pub fn dequantize(isa: Isa, kind: GgmlType, bytes: &[u8], out: &mut [f32]) {
    (kind.row().dequantize)(isa, bytes, out);
}

#[cfg(test)]
mod tests;
