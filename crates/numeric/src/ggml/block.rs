//! What a block format is to the table, and the loops over blocks that all of them share. Not the formats.

use crate::simd::{Isa, Loop, dispatch};

/// A block format.
pub(super) trait Layout {
    /// Elements of a block.
    const ELEMENTS: usize;
    /// Bytes of a block.
    const BYTES: usize;

    /// See [`super::quantize`].
    fn quantize(isa: Isa, rows: Rows<'_>, out: &mut [u8]);

    /// See [`super::dequantize`].
    fn dequantize(isa: Isa, bytes: &[u8], out: &mut [f32]);
}

/// Rows of values to be quantized.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// Elements of a row.
    pub columns: usize,
    /// Whole rows.
    pub values: &'a [f32],
    /// A weight for each column.
    pub importance: Option<&'a [f32]>,
}

/// Makes values of blocks of `B` bytes, `N` each. `decode` must be `#[inline(always)]`.
pub(super) fn decode_blocks<const N: usize, const B: usize>(
    isa: Isa,
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; B], &mut [f32; N]),
) {
    dispatch(isa, Decode { bytes, out, decode });
}

struct Decode<'a, const N: usize, const B: usize, F: Fn(&[u8; B], &mut [f32; N])> {
    bytes: &'a [u8],
    out: &'a mut [f32],
    decode: F,
}

impl<const N: usize, const B: usize, F: Fn(&[u8; B], &mut [f32; N])> Loop for Decode<'_, N, B, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (block, out) in self.bytes.as_chunks::<B>().0.iter().zip(self.out.as_chunks_mut::<N>().0) {
            (self.decode)(block, out);
        }
    }
}

/// Makes blocks of `B` bytes of `N` values each, where weights make no difference. `encode` must be `#[inline(always)]`.
pub(super) fn encode_blocks<const N: usize, const B: usize>(
    isa: Isa,
    values: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; N], &mut [u8; B]),
) {
    dispatch(isa, Encode { values, out, encode });
}

struct Encode<'a, const N: usize, const B: usize, F: Fn(&[f32; N], &mut [u8; B])> {
    values: &'a [f32],
    out: &'a mut [u8],
    encode: F,
}

impl<const N: usize, const B: usize, F: Fn(&[f32; N], &mut [u8; B])> Loop for Encode<'_, N, B, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (values, block) in self.values.as_chunks::<N>().0.iter().zip(self.out.as_chunks_mut::<B>().0) {
            (self.encode)(values, block);
        }
    }
}
