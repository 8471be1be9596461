//! Blocks of codes and scales that exist already, and such blocks taken apart: what exact conversions between layouts need.
//! Nothing is rounded here; types whose scales are scaled themselves (Q2_K to Q6_K, IQ4_XS) are not among them.

use super::GgmlType;
use super::q8_0::Q8_0;
use super::symmetric::Q4_0;
use crate::simd::{Isa, Loop, dispatch};

/// A type whose blocks are codes with stored scales, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "as in GgmlType")]
pub enum Coded {
    Q4_0,
    Q8_0,
}

/// Codes and scales of whole blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parts<'a> {
    /// One byte an element: Q4_0 0..=15 with zero at 8, Q5_0 0..=31 with zero at 16, Q4_1 and Q5_1 from 0 up, Q8_0 two's
    /// complement, MXFP4 and NVFP4 the codes of e2m1. Higher bits are dropped.
    pub codes: &'a [u8],
    /// One for each [`Coded::group`] elements: the bits of a binary16, of MXFP4 the byte of an e8m0, of NVFP4 that of
    /// an e4m3 without its sign.
    pub scales: &'a [u16],
    /// Of Q4_1 and Q5_1, as many as scales: the bits of a binary16 that is added. Of others, nothing.
    pub minima: &'a [u16],
}

/// Where codes and scales go; see [`Parts`].
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
    /// The tensor type.
    pub fn kind(self) -> GgmlType {
        match self {
            Coded::Q4_0 => GgmlType::Q4_0,
            Coded::Q8_0 => GgmlType::Q8_0,
        }
    }

    /// Elements that share a scale.
    pub fn group(self) -> usize {
        32
    }

    /// Whether a number is added to every group.
    pub fn has_minima(self) -> bool {
        false
    }

    /// Blocks of codes and scales, as many as there are whole blocks of the shortest of them and of `out`.
    pub fn assemble(self, isa: Isa, parts: Parts<'_>, out: &mut [u8]) {
        match self {
            Coded::Q4_0 => dispatch(isa, Assemble { parts, out, put: Q4_0::put }),
            Coded::Q8_0 => dispatch(isa, Assemble { parts, out, put: Q8_0::put }),
        }
    }

    /// Codes and scales of whole blocks: the inverse of [`Coded::assemble`].
    pub fn take_apart(self, isa: Isa, bytes: &[u8], parts: PartsMut<'_>) {
        match self {
            Coded::Q4_0 => dispatch(isa, TakeApart { bytes, parts, take: Q4_0::take }),
            Coded::Q8_0 => dispatch(isa, TakeApart { bytes, parts, take: Q8_0::take }),
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

struct Assemble<'a, const N: usize, const B: usize, const S: usize, F: Fn(&[u16; S], u16, &[u8; N], &mut [u8; B])> {
    parts: Parts<'a>,
    out: &'a mut [u8],
    put: F,
}

impl<const N: usize, const B: usize, const S: usize, F> Loop for Assemble<'_, N, B, S, F>
where
    F: Fn(&[u16; S], u16, &[u8; N], &mut [u8; B]),
{
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let groups = self.parts.codes.as_chunks().0.iter().zip(self.parts.scales.as_chunks().0);
        for (i, ((codes, scales), block)) in groups.zip(self.out.as_chunks_mut().0).enumerate() {
            let minimum = self.parts.minima.get(i).copied().unwrap_or(0);
            (self.put)(scales, minimum, codes, block);
        }
    }
}

struct TakeApart<'a, const N: usize, const B: usize, const S: usize, F: Fn(&[u8; B], &mut [u8; N]) -> ([u16; S], u16)> {
    bytes: &'a [u8],
    parts: PartsMut<'a>,
    take: F,
}

impl<const N: usize, const B: usize, const S: usize, F> Loop for TakeApart<'_, N, B, S, F>
where
    F: Fn(&[u8; B], &mut [u8; N]) -> ([u16; S], u16),
{
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let PartsMut { codes, scales, minima } = self.parts;
        let groups = codes.as_chunks_mut().0.iter_mut().zip(scales.as_chunks_mut().0);
        for (i, ((codes, scales), block)) in groups.zip(self.bytes.as_chunks().0).enumerate() {
            let (found, minimum) = (self.take)(block, codes);
            *scales = found;
            if let Some(out) = minima.get_mut(i) {
                *out = minimum;
            }
        }
    }
}
