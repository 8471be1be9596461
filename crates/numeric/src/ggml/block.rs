//! The interface of block formats to the table, and their shared loops over blocks. Not the formats.

use crate::simd::{Isa, Loop, dispatch, dispatch_256};
use std::marker::PhantomData;

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

/// Converts blocks of `B` bytes to `N` values. Methods of this trait and of those below must be `#[inline(always)]`, so that
/// they are compiled for each instruction set.
pub(super) trait Decode<const N: usize, const B: usize> {
    /// The values of a block.
    fn decode(block: &[u8; B], out: &mut [f32; N]);
}

/// Converts `N` values to a block of `B` bytes, ignoring weights.
pub(super) trait Encode<const N: usize, const B: usize> {
    /// The block of finite values.
    fn encode(values: &[f32; N], block: &mut [u8; B]);
}

/// Converts `N` values of as many columns to a block of `B` bytes. `N` may be several blocks' worth: the end of a row is then
/// filled up with zeros, whose codes are dropped.
pub(super) trait EncodeWeighted<const N: usize, const B: usize>: Layout {
    /// The block of finite values and the importance of their columns.
    fn encode(values: &[f32; N], importance: Option<&[f32; N]>, block: &mut [u8; B]);
}

/// Makes values of whole blocks.
pub(super) fn decode_blocks<T: Decode<N, B>, const N: usize, const B: usize>(isa: Isa, bytes: &[u8], out: &mut [f32]) {
    dispatch(isa, Decoding::<T, N, B> { bytes, out, block: PhantomData });
}

/// Makes blocks of whole blocks' worth of values.
pub(super) fn encode_blocks<T: Encode<N, B>, const N: usize, const B: usize>(isa: Isa, values: &[f32], out: &mut [u8]) {
    dispatch(isa, Encoding::<T, N, B> { values, out, block: PhantomData });
}

/// Makes blocks of rows, weighted by the importance of their columns.
pub(super) fn encode_weighted<T: EncodeWeighted<N, B>, const N: usize, const B: usize>(
    isa: Isa,
    rows: Rows<'_>,
    out: &mut [u8],
) {
    dispatch_256(isa, WeightedEncoding::<T, N, B> { rows, out, block: PhantomData });
}

struct Decoding<'a, T, const N: usize, const B: usize> {
    bytes: &'a [u8],
    out: &'a mut [f32],
    block: PhantomData<T>,
}

impl<T: Decode<N, B>, const N: usize, const B: usize> Loop for Decoding<'_, T, N, B> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (block, out) in self.bytes.as_chunks::<B>().0.iter().zip(self.out.as_chunks_mut::<N>().0) {
            T::decode(block, out);
        }
    }
}

struct Encoding<'a, T, const N: usize, const B: usize> {
    values: &'a [f32],
    out: &'a mut [u8],
    block: PhantomData<T>,
}

impl<T: Encode<N, B>, const N: usize, const B: usize> Loop for Encoding<'_, T, N, B> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (values, block) in self.values.as_chunks::<N>().0.iter().zip(self.out.as_chunks_mut::<B>().0) {
            T::encode(values, block);
        }
    }
}

struct WeightedEncoding<'a, T, const N: usize, const B: usize> {
    rows: Rows<'a>,
    out: &'a mut [u8],
    block: PhantomData<T>,
}

impl<T: EncodeWeighted<N, B>, const N: usize, const B: usize> Loop for WeightedEncoding<'_, T, N, B> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Rows { columns, values, importance } = self.rows;
        let (mut filled, mut weights, mut block) = ([0.0; N], [0.0; N], [0; B]);
        let mut out = self.out;
        for row in values.chunks(columns.max(1)) {
            for (start, values) in (0..).step_by(N).zip(row.chunks(N)) {
                fill(&mut filled, values);
                let importance = importance.map(|all| {
                    fill(&mut weights, &all[start..start + values.len()]);
                    &weights
                });
                T::encode(&filled, importance, &mut block);
                let bytes = (values.len() / T::ELEMENTS * T::BYTES).min(out.len());
                let (head, rest) = std::mem::take(&mut out).split_at_mut(bytes);
                head.copy_from_slice(&block[..bytes]);
                out = rest;
            }
        }
    }
}

/// `from`, then zeros.
#[inline(always)]
fn fill<const N: usize>(to: &mut [f32; N], from: &[f32]) {
    let (head, tail) = to.split_at_mut(from.len());
    head.copy_from_slice(from);
    tail.fill(0.0);
}
