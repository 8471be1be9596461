//! Splits blocks into existing codes and scales and reassembles them, for exact conversions between layouts.
//! Nothing is rounded here; types whose scales are scaled themselves (Q2_K to Q6_K, IQ4_XS) are not among them.

use super::GgmlType;
use super::affine::{Q4_1, Q5_1};
use super::fp4::{Mxfp4, Nvfp4};
use super::q8_0::Q8_0;
use super::symmetric::{Q4_0, Q5_0};
use super::ternary::{Tq1_0, Tq2_0};
use crate::simd::{Isa, Loop, dispatch};
use std::marker::PhantomData;

/// A type whose blocks are codes with stored scales, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "as in GgmlType")]
pub enum Coded {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Tq1_0,
    Tq2_0,
    Mxfp4,
    Nvfp4,
}

/// Codes and scales of whole blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parts<'a> {
    /// One byte an element: Q4_0 0..=15 with zero at 8, Q5_0 0..=31 with zero at 16, Q4_1 and Q5_1 from 0 up, Q8_0 two's
    /// complement, TQ1_0 and TQ2_0 1..=3 with zero at 2, MXFP4 and NVFP4 the codes of e2m1. Higher bits are dropped.
    pub codes: &'a [u8],
    /// One for each [`Coded::group`] elements: the bits of a binary16, of MXFP4 the byte of an e8m0, of NVFP4 that of
    /// an e4m3 without its sign.
    pub scales: &'a [u16],
    /// Of Q4_1 and Q5_1, as many as scales: the bits of a binary16 that is added. Of others, nothing.
    pub minima: &'a [u16],
}

/// The destination of codes and scales; see [`Parts`].
#[derive(Debug, Default)]
pub struct PartsMut<'a> {
    /// One byte an element.
    pub codes: &'a mut [u8],
    /// One for each [`Coded::group`] elements.
    pub scales: &'a mut [u16],
    /// As many as scales where [`Coded::has_minima`].
    pub minima: &'a mut [u16],
}

impl Coded {
    /// Every type.
    pub const ALL: [Coded; 9] = [
        Coded::Q4_0,
        Coded::Q4_1,
        Coded::Q5_0,
        Coded::Q5_1,
        Coded::Q8_0,
        Coded::Tq1_0,
        Coded::Tq2_0,
        Coded::Mxfp4,
        Coded::Nvfp4,
    ];

    /// The tensor type.
    pub fn kind(self) -> GgmlType {
        match self {
            Coded::Q4_0 => GgmlType::Q4_0,
            Coded::Q4_1 => GgmlType::Q4_1,
            Coded::Q5_0 => GgmlType::Q5_0,
            Coded::Q5_1 => GgmlType::Q5_1,
            Coded::Q8_0 => GgmlType::Q8_0,
            Coded::Tq1_0 => GgmlType::Tq1_0,
            Coded::Tq2_0 => GgmlType::Tq2_0,
            Coded::Mxfp4 => GgmlType::Mxfp4,
            Coded::Nvfp4 => GgmlType::Nvfp4,
        }
    }

    /// Elements that share a scale.
    pub fn group(self) -> usize {
        match self {
            Coded::Nvfp4 => 16,
            Coded::Tq1_0 | Coded::Tq2_0 => 256,
            _ => 32,
        }
    }

    /// Returns whether a number is added to every group.
    pub fn has_minima(self) -> bool {
        matches!(self, Coded::Q4_1 | Coded::Q5_1)
    }

    /// Blocks of codes and scales, as many as there are whole blocks of the shortest of them and of `out`.
    pub fn assemble(self, isa: Isa, parts: Parts<'_>, out: &mut [u8]) {
        match self {
            Coded::Q4_0 => assemble::<Q4_0, _, _, _>(isa, parts, out),
            Coded::Q4_1 => assemble::<Q4_1, _, _, _>(isa, parts, out),
            Coded::Q5_0 => assemble::<Q5_0, _, _, _>(isa, parts, out),
            Coded::Q5_1 => assemble::<Q5_1, _, _, _>(isa, parts, out),
            Coded::Q8_0 => assemble::<Q8_0, _, _, _>(isa, parts, out),
            Coded::Tq1_0 => assemble::<Tq1_0, _, _, _>(isa, parts, out),
            Coded::Tq2_0 => assemble::<Tq2_0, _, _, _>(isa, parts, out),
            Coded::Mxfp4 => assemble::<Mxfp4, _, _, _>(isa, parts, out),
            Coded::Nvfp4 => assemble::<Nvfp4, _, _, _>(isa, parts, out),
        }
    }

    /// Codes and scales of whole blocks: the inverse of [`Coded::assemble`].
    pub fn take_apart(self, isa: Isa, bytes: &[u8], parts: PartsMut<'_>) {
        match self {
            Coded::Q4_0 => take_apart::<Q4_0, _, _, _>(isa, bytes, parts),
            Coded::Q4_1 => take_apart::<Q4_1, _, _, _>(isa, bytes, parts),
            Coded::Q5_0 => take_apart::<Q5_0, _, _, _>(isa, bytes, parts),
            Coded::Q5_1 => take_apart::<Q5_1, _, _, _>(isa, bytes, parts),
            Coded::Q8_0 => take_apart::<Q8_0, _, _, _>(isa, bytes, parts),
            Coded::Tq1_0 => take_apart::<Tq1_0, _, _, _>(isa, bytes, parts),
            Coded::Tq2_0 => take_apart::<Tq2_0, _, _, _>(isa, bytes, parts),
            Coded::Mxfp4 => take_apart::<Mxfp4, _, _, _>(isa, bytes, parts),
            Coded::Nvfp4 => take_apart::<Nvfp4, _, _, _>(isa, bytes, parts),
        }
    }
}

/// A block of `B` bytes: `N` codes with `S` scales, and one minimum where the type has any.
pub(super) trait CodedBlock<const N: usize, const B: usize, const S: usize> {
    /// The block of codes and scales. Must be `#[inline(always)]`.
    fn put(scales: &[u16; S], minimum: u16, codes: &[u8; N], block: &mut [u8; B]);

    /// The inverse of `put`: writes the codes, returns scales and minimum. Must be `#[inline(always)]`.
    fn take(block: &[u8; B], codes: &mut [u8; N]) -> ([u16; S], u16);
}

fn assemble<T, const N: usize, const B: usize, const S: usize>(isa: Isa, parts: Parts<'_>, out: &mut [u8])
where
    T: CodedBlock<N, B, S>,
{
    dispatch(isa, Assemble::<T, N, B, S> { parts, out, block: PhantomData });
}

fn take_apart<T, const N: usize, const B: usize, const S: usize>(isa: Isa, bytes: &[u8], parts: PartsMut<'_>)
where
    T: CodedBlock<N, B, S>,
{
    dispatch(isa, TakeApart::<T, N, B, S> { bytes, parts, block: PhantomData });
}

struct Assemble<'a, T, const N: usize, const B: usize, const S: usize> {
    parts: Parts<'a>,
    out: &'a mut [u8],
    block: PhantomData<T>,
}

impl<T: CodedBlock<N, B, S>, const N: usize, const B: usize, const S: usize> Loop for Assemble<'_, T, N, B, S> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let groups = self.parts.codes.as_chunks().0.iter().zip(self.parts.scales.as_chunks().0);
        for (i, ((codes, scales), block)) in groups.zip(self.out.as_chunks_mut().0).enumerate() {
            let minimum = self.parts.minima.get(i).copied().unwrap_or(0);
            T::put(scales, minimum, codes, block);
        }
    }
}

struct TakeApart<'a, T, const N: usize, const B: usize, const S: usize> {
    bytes: &'a [u8],
    parts: PartsMut<'a>,
    block: PhantomData<T>,
}

impl<T: CodedBlock<N, B, S>, const N: usize, const B: usize, const S: usize> Loop for TakeApart<'_, T, N, B, S> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let PartsMut { codes, scales, minima } = self.parts;
        let groups = codes.as_chunks_mut().0.iter_mut().zip(scales.as_chunks_mut().0);
        for (i, ((codes, scales), block)) in groups.zip(self.bytes.as_chunks().0).enumerate() {
            let (found, minimum) = T::take(block, codes);
            *scales = found;
            if let Some(out) = minima.get_mut(i) {
                *out = minimum;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ggml::tests::{blocks_of, values, values_of};

    #[test]
    fn block_codes_round_trip() {
        let data = values(1024, 15);
        for coded in Coded::ALL {
            let bytes = blocks_of(Isa::best(), coded.kind(), &data, None);
            for isa in Isa::available() {
                let groups = 1024 / coded.group();
                let (mut codes, mut scales) = (vec![0; 1024], vec![0; groups]);
                let mut minima = vec![0; if coded.has_minima() { groups } else { 0 }];
                let parts = PartsMut { codes: &mut codes, scales: &mut scales, minima: &mut minima };
                coded.take_apart(isa, &bytes, parts);
                let mut again = vec![0; bytes.len()];
                coded.assemble(isa, Parts { codes: &codes, scales: &scales, minima: &minima }, &mut again);
                assert_eq!(again, bytes, "{coded:?} on {}", isa.name());
            }
        }
    }

    #[test]
    fn codes_and_scales_decode_as_the_layout_defines() {
        let one = 0x3C00;
        type Case = (Coded, u16, u16, &'static [u8], &'static [f32]);
        let cases: [Case; 9] = [
            (Coded::Q4_0, one, 0, &[0, 8, 15], &[-8.0, 0.0, 7.0]),
            (Coded::Q4_1, one, 0xBC00, &[0, 8, 15], &[-1.0, 7.0, 14.0]),
            (Coded::Q5_0, one, 0, &[0, 16, 31], &[-16.0, 0.0, 15.0]),
            (Coded::Q5_1, one, 0xBC00, &[0, 16, 31], &[-1.0, 15.0, 30.0]),
            (Coded::Q8_0, one, 0, &[0x81, 0, 0x7F], &[-127.0, 0.0, 127.0]),
            (Coded::Tq1_0, one, 0, &[1, 2, 3], &[-1.0, 0.0, 1.0]),
            (Coded::Tq2_0, one, 0, &[1, 2, 3], &[-1.0, 0.0, 1.0]),
            (Coded::Mxfp4, 128, 0, &[0, 1, 7, 15], &[0.0, 1.0, 12.0, -12.0]),
            (Coded::Nvfp4, 0x38, 0, &[0, 1, 7, 15], &[0.0, 0.5, 6.0, -6.0]),
        ];
        for (coded, scale, minimum, some, expected) in cases {
            let elements = coded.kind().block_elements();
            let codes: Vec<u8> = some.iter().copied().cycle().take(elements).collect();
            let (scales, minima) = (vec![scale; elements / coded.group()], [minimum]);
            let mut block = vec![0; coded.kind().block_bytes()];
            coded.assemble(Isa::best(), Parts { codes: &codes, scales: &scales, minima: &minima }, &mut block);
            let back = values_of(Isa::best(), coded.kind(), &block);
            let expected: Vec<f32> = expected.iter().copied().cycle().take(elements).collect();
            assert_eq!(back, expected, "{coded:?}");
        }
    }
}
