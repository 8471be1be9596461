//! Blocks taken apart to numbers, and put together again: the code of every element, the scale and minimum of every group, and
//! the factors that scales and minima are multiples of. For those who choose codes or scales themselves; nothing is rounded
//! here but scales to what a block stores. [`super::coded`] has the bits of types whose scales stand alone.
//!
//! `w = scale * level(code) - minimum`, computed as [`super::dequantize`] does: to the bit.

use super::affine::{Q4_1, Q5_1};
use super::coded::CodedBlock;
use super::fp4::{Mxfp4, Nvfp4, e8m0_bits, half_of_e4m3, half_of_e8m0};
use super::grid::{E2M1_DOUBLED, IQ4_LEVELS};
use super::iq4::Iq4Xs;
use super::q2_k::Q2K;
use super::q3_k::Q3K;
use super::q4_k::{Q4K, Q5K};
use super::q6_k::Q6K;
use super::q8_0::Q8_0;
use super::scale::f16_bits;
use super::symmetric::{Q4_0, Q5_0};
use super::{GgmlType, block::Layout};
use crate::arithmetic::f16_to_f32;
use crate::format::{DType, Int, MiniFloat};

/// The levels of codes, before they are scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Levels {
    /// Integers: `code - zero`, codes from `low` to `high`.
    Integers {
        /// The code of zero.
        zero: i16,
        /// The lowest code.
        low: i16,
        /// The highest code.
        high: i16,
    },
    /// The 16 uneven levels of IQ4_NL and IQ4_XS.
    Iq4,
    /// The values of e2m1.
    E2m1,
}

impl Levels {
    /// The level of a code.
    #[inline]
    pub fn level(self, code: u8) -> f32 {
        match self {
            // Q8_0 alone has codes below zero: in two's complement.
            Levels::Integers { zero, low, .. } if low < 0 => f32::from(i16::from(code as i8) - zero),
            Levels::Integers { zero, .. } => f32::from(i16::from(code) - zero),
            Levels::Iq4 => f32::from(IQ4_LEVELS[usize::from(code & 0xF)]),
            Levels::E2m1 => f32::from(E2M1_DOUBLED[usize::from(code & 0xF)]) / 2.0,
        }
    }

    /// The levels of IQ4, by code.
    pub const IQ4: [i8; 16] = IQ4_LEVELS;
}

/// The scales that a block can store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupScales {
    /// A binary16 for each group.
    F16,
    /// A power of two for each group.
    E8m0,
    /// An e4m3 for each group, not negative.
    E4m3,
    /// Whole multiples of a binary16 that all groups of a block share.
    Multiples {
        /// The lowest multiple.
        low: i16,
        /// The highest multiple.
        high: i16,
    },
}

/// The minima that a block can store; they are subtracted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupMinima {
    /// None: they are zero.
    None,
    /// A binary16 for each group.
    F16,
    /// Whole multiples, from 0 up, of a second binary16 that all groups of a block share.
    Multiples {
        /// The highest multiple.
        high: i16,
    },
}

/// A type whose values are linear in scales and minima of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupedType {
    /// The type.
    pub kind: GgmlType,
    /// Elements of a group.
    pub group: usize,
    /// Bits of a code.
    pub bits: u8,
    /// The levels of codes.
    pub levels: Levels,
    /// The scales of groups.
    pub scales: GroupScales,
    /// The minima of groups.
    pub minima: GroupMinima,
}

/// Codes, scales and minima of whole blocks, one group after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupedBlocks {
    /// One byte an element.
    pub codes: Vec<u8>,
    /// One for each group.
    pub scales: Vec<f32>,
    /// One for each group, which is subtracted; empty for types without minima.
    pub minima: Vec<f32>,
    /// One number of binary16 for each block where scales are multiples, two where minima are too; otherwise empty.
    pub factors: Vec<f32>,
}

/// The same, to be read.
#[derive(Clone, Copy, Debug)]
pub struct GroupedView<'a> {
    /// See [`GroupedBlocks::codes`].
    pub codes: &'a [u8],
    /// See [`GroupedBlocks::scales`].
    pub scales: &'a [f32],
    /// See [`GroupedBlocks::minima`].
    pub minima: &'a [f32],
    /// See [`GroupedBlocks::factors`].
    pub factors: &'a [f32],
}

const fn integers(zero: i16, low: i16, high: i16) -> Levels {
    Levels::Integers { zero, low, high }
}

impl GroupedType {
    /// Every such type.
    pub const ALL: [GroupedType; 14] = {
        use GgmlType as T;
        use GroupMinima as M;
        use GroupScales as S;
        const fn row(
            kind: GgmlType,
            group: usize,
            bits: u8,
            levels: Levels,
            scales: GroupScales,
            minima: GroupMinima,
        ) -> GroupedType {
            GroupedType { kind, group, bits, levels, scales, minima }
        }
        [
            row(T::Q4_0, 32, 4, integers(8, 0, 15), S::F16, M::None),
            row(T::Q4_1, 32, 4, integers(0, 0, 15), S::F16, M::F16),
            row(T::Q5_0, 32, 5, integers(16, 0, 31), S::F16, M::None),
            row(T::Q5_1, 32, 5, integers(0, 0, 31), S::F16, M::F16),
            row(T::Q8_0, 32, 8, integers(0, -127, 127), S::F16, M::None),
            row(T::Q2K, 16, 2, integers(0, 0, 3), S::Multiples { low: 0, high: 15 }, M::Multiples { high: 15 }),
            row(T::Q3K, 16, 3, integers(4, 0, 7), S::Multiples { low: -32, high: 31 }, M::None),
            row(T::Q4K, 32, 4, integers(0, 0, 15), S::Multiples { low: 0, high: 63 }, M::Multiples { high: 63 }),
            row(T::Q5K, 32, 5, integers(0, 0, 31), S::Multiples { low: 0, high: 63 }, M::Multiples { high: 63 }),
            row(T::Q6K, 16, 6, integers(32, 0, 63), S::Multiples { low: -128, high: 127 }, M::None),
            row(T::Iq4Nl, 32, 4, Levels::Iq4, S::F16, M::None),
            row(T::Iq4Xs, 32, 4, Levels::Iq4, S::Multiples { low: -32, high: 31 }, M::None),
            row(T::Mxfp4, 32, 4, Levels::E2m1, S::E8m0, M::None),
            row(T::Nvfp4, 16, 4, Levels::E2m1, S::E4m3, M::None),
        ]
    };

    /// That of a tensor type; `None` where its values are not of this kind.
    pub fn of(kind: GgmlType) -> Option<GroupedType> {
        Self::ALL.into_iter().find(|row| row.kind == kind)
    }

    /// The format of its codes.
    pub fn codes(self) -> DType {
        match self.levels {
            Levels::Integers { low, .. } if low < 0 => DType::Int(Int::signed(self.bits)),
            Levels::Integers { .. } | Levels::Iq4 => DType::Int(Int::unsigned(self.bits)),
            Levels::E2m1 => DType::MiniFloat(MiniFloat::E2M1),
        }
    }

    /// Returns whether groups have minima.
    pub fn has_minima(self) -> bool {
        self.minima != GroupMinima::None
    }

    /// Factors of a block.
    pub fn factors(self) -> usize {
        match (self.scales, self.minima) {
            (GroupScales::Multiples { .. }, GroupMinima::Multiples { .. }) => 2,
            (GroupScales::Multiples { .. }, _) => 1,
            _ => 0,
        }
    }

    /// Groups of a block.
    pub fn groups_of_block(self) -> usize {
        self.kind.block_elements() / self.group
    }

    /// The scale that is stored for one that is wanted, in a block whose factor is this.
    pub fn stored_scale(self, wanted: f32, factor: f32) -> f32 {
        match self.scales {
            GroupScales::F16 => f16_to_f32(f16_bits(wanted)),
            // Half a power of two up, as the levels reach as far above as below it.
            GroupScales::E8m0 => half_of_e8m0(e8m0_bits(wanted * std::f32::consts::SQRT_2)) * 2.0,
            GroupScales::E4m3 => half_of_e4m3(e4m3_bits(wanted)) * 2.0,
            GroupScales::Multiples { low, high } => multiple(wanted, factor, low, high) * factor,
        }
    }

    /// The minimum that is stored for one that is wanted, in a block whose factor of minima is this.
    pub fn stored_minimum(self, wanted: f32, factor: f32) -> f32 {
        match self.minima {
            GroupMinima::None => 0.0,
            GroupMinima::F16 => f16_to_f32(f16_bits(wanted)),
            GroupMinima::Multiples { high } => multiple(wanted, factor, 0, high) * factor,
        }
    }

    /// The factor that is stored for one that is wanted.
    pub fn stored_factor(self, wanted: f32) -> f32 {
        f16_to_f32(f16_bits(wanted))
    }

    /// Appends the parts of whole blocks.
    pub fn take_apart(self, bytes: &[u8], out: &mut GroupedBlocks) {
        match self.kind {
            GgmlType::Q4_0 | GgmlType::Iq4Nl => take_coded::<Q4_0, _, _, _>(self, bytes, out),
            GgmlType::Q4_1 => take_coded::<Q4_1, _, _, _>(self, bytes, out),
            GgmlType::Q5_0 => take_coded::<Q5_0, _, _, _>(self, bytes, out),
            GgmlType::Q5_1 => take_coded::<Q5_1, _, _, _>(self, bytes, out),
            GgmlType::Q8_0 => take_coded::<Q8_0, _, _, _>(self, bytes, out),
            GgmlType::Mxfp4 => take_coded::<Mxfp4, _, _, _>(self, bytes, out),
            GgmlType::Nvfp4 => take_coded::<Nvfp4, _, _, _>(self, bytes, out),
            GgmlType::Q2K => take_nested::<Q2K, _, _>(self, bytes, out),
            GgmlType::Q3K => take_nested::<Q3K, _, _>(self, bytes, out),
            GgmlType::Q4K => take_nested::<Q4K, _, _>(self, bytes, out),
            GgmlType::Q5K => take_nested::<Q5K, _, _>(self, bytes, out),
            GgmlType::Q6K => take_nested::<Q6K, _, _>(self, bytes, out),
            GgmlType::Iq4Xs => take_nested::<Iq4Xs, _, _>(self, bytes, out),
            _ => {}
        }
    }

    /// The blocks of these parts, as many as `out` has room for: the inverse of [`GroupedType::take_apart`]. Scales and minima must be
    /// [stored](GroupedType::stored_scale) ones.
    pub fn assemble(self, parts: GroupedView<'_>, out: &mut [u8]) {
        match self.kind {
            GgmlType::Q4_0 | GgmlType::Iq4Nl => put_coded::<Q4_0, _, _, _>(self, parts, out),
            GgmlType::Q4_1 => put_coded::<Q4_1, _, _, _>(self, parts, out),
            GgmlType::Q5_0 => put_coded::<Q5_0, _, _, _>(self, parts, out),
            GgmlType::Q5_1 => put_coded::<Q5_1, _, _, _>(self, parts, out),
            GgmlType::Q8_0 => put_coded::<Q8_0, _, _, _>(self, parts, out),
            GgmlType::Mxfp4 => put_coded::<Mxfp4, _, _, _>(self, parts, out),
            GgmlType::Nvfp4 => put_coded::<Nvfp4, _, _, _>(self, parts, out),
            GgmlType::Q2K => put_nested::<Q2K, _, _>(self, parts, out),
            GgmlType::Q3K => put_nested::<Q3K, _, _>(self, parts, out),
            GgmlType::Q4K => put_nested::<Q4K, _, _>(self, parts, out),
            GgmlType::Q5K => put_nested::<Q5K, _, _>(self, parts, out),
            GgmlType::Q6K => put_nested::<Q6K, _, _>(self, parts, out),
            GgmlType::Iq4Xs => put_nested::<Iq4Xs, _, _>(self, parts, out),
            _ => {}
        }
    }

    fn scale_of(self, bits: u16) -> f32 {
        match self.scales {
            GroupScales::E8m0 => half_of_e8m0(bits as u8) * 2.0,
            GroupScales::E4m3 => half_of_e4m3(bits as u8) * 2.0,
            GroupScales::F16 | GroupScales::Multiples { .. } => f16_to_f32(bits),
        }
    }

    fn bits_of(self, scale: f32) -> u16 {
        match self.scales {
            GroupScales::E8m0 => e8m0_bits(scale).into(),
            GroupScales::E4m3 => e4m3_bits(scale).into(),
            GroupScales::F16 | GroupScales::Multiples { .. } => f16_bits(scale),
        }
    }
}

/// The byte of the nearest e4m3 that is neither negative nor NaN.
fn e4m3_bits(scale: f32) -> u8 {
    MiniFloat::E4M3.encode(scale.max(0.0)).min(0x7E)
}

/// The whole multiple of a factor that is nearest to a number.
fn multiple(number: f32, factor: f32, low: i16, high: i16) -> f32 {
    let multiple = (number / factor).round_ties_even();
    if multiple.is_nan() { 0.0 } else { multiple.clamp(f32::from(low), f32::from(high)) }
}

/// Everything but the codes of a block of 256 elements in `G` groups, whose scales and minima are multiples.
pub(super) struct Head<const G: usize> {
    /// Bits of the factors of scales and of minima.
    pub factors: [u16; 2],
    pub scales: [i8; G],
    pub minima: [u8; G],
}

/// A block of `B` bytes whose groups have integers as scales.
pub(super) trait NestedBlock<const B: usize, const G: usize>: Layout {
    /// The block of its parts. Must be `#[inline(always)]`.
    fn put(head: &Head<G>, codes: &[u8; 256], block: &mut [u8; B]);

    /// The inverse of `put`.
    fn take(block: &[u8; B], codes: &mut [u8; 256]) -> Head<G>;
}

fn take_coded<T: CodedBlock<N, B, S>, const N: usize, const B: usize, const S: usize>(
    row: GroupedType,
    bytes: &[u8],
    out: &mut GroupedBlocks,
) {
    for block in bytes.as_chunks::<B>().0 {
        let mut codes = [0; N];
        let (scales, minimum) = T::take(block, &mut codes);
        out.codes.extend(codes);
        out.scales.extend(scales.map(|bits| row.scale_of(bits)));
        if row.has_minima() {
            out.minima.push(-f16_to_f32(minimum));
        }
    }
}

fn put_coded<T: CodedBlock<N, B, S>, const N: usize, const B: usize, const S: usize>(
    row: GroupedType,
    parts: GroupedView<'_>,
    out: &mut [u8],
) {
    let groups = parts.codes.as_chunks::<N>().0.iter().zip(parts.scales.as_chunks::<S>().0);
    for (index, ((codes, scales), block)) in groups.zip(out.as_chunks_mut::<B>().0).enumerate() {
        let minimum = parts.minima.get(index).map_or(0, |minimum| f16_bits(-minimum));
        T::put(&scales.map(|scale| row.bits_of(scale)), minimum, codes, block);
    }
}

fn take_nested<T: NestedBlock<B, G>, const B: usize, const G: usize>(
    row: GroupedType,
    bytes: &[u8],
    out: &mut GroupedBlocks,
) {
    for block in bytes.as_chunks::<B>().0 {
        let mut codes = [0; 256];
        let head = T::take(block, &mut codes);
        let factors = head.factors.map(f16_to_f32);
        out.codes.extend(codes);
        out.scales.extend(head.scales.map(|scale| factors[0] * f32::from(scale)));
        out.factors.extend(&factors[..row.factors()]);
        if row.has_minima() {
            out.minima.extend(head.minima.map(|minimum| factors[1] * f32::from(minimum)));
        }
    }
}

fn put_nested<T: NestedBlock<B, G>, const B: usize, const G: usize>(
    row: GroupedType,
    parts: GroupedView<'_>,
    out: &mut [u8],
) {
    let (low, high) = match row.scales {
        GroupScales::Multiples { low, high } => (low, high),
        _ => (0, 0),
    };
    let highest = if let GroupMinima::Multiples { high } = row.minima { high } else { 0 };
    let blocks = parts.codes.as_chunks::<256>().0.iter().zip(parts.scales.as_chunks::<G>().0);
    let factors = parts.factors.chunks_exact(row.factors().max(1));
    for (index, (((codes, scales), factors), block)) in blocks.zip(factors).zip(out.as_chunks_mut::<B>().0).enumerate()
    {
        let (factor, of_minima) = (factors[0], factors.get(1).copied().unwrap_or(0.0));
        let minima = parts.minima.get(index * G..(index + 1) * G);
        let minimum = |group: usize| minima.map_or(0.0, |minima| multiple(minima[group], of_minima, 0, highest));
        let head = Head {
            factors: [f16_bits(factor), f16_bits(of_minima)],
            scales: scales.map(|scale| multiple(scale, factor, low, high) as i8),
            minima: std::array::from_fn(|group| minimum(group) as u8),
        };
        T::put(&head, codes, block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ggml::tests::{blocks_of, values, values_of};
    use crate::simd::Isa;

    fn view(parts: &GroupedBlocks) -> GroupedView<'_> {
        let GroupedBlocks { codes, scales, minima, factors } = parts;
        GroupedView { codes, scales, minima, factors }
    }

    #[test]
    fn blocks_taken_apart_are_put_together_to_the_byte() {
        let (data, importance) = (values(4096, 11), values(1024, 3).iter().map(|x| x * x).collect::<Vec<_>>());
        for row in GroupedType::ALL {
            for importance in [None, Some(importance.as_slice())] {
                let bytes = blocks_of(Isa::best(), row.kind, &data, importance);
                let mut parts = GroupedBlocks::default();
                row.take_apart(&bytes, &mut parts);
                assert_eq!(parts.scales.len(), 4096 / row.group, "{}", row.kind);
                assert_eq!(parts.factors.len(), 4096 / row.kind.block_elements() * row.factors(), "{}", row.kind);
                let mut again = vec![0; bytes.len()];
                row.assemble(view(&parts), &mut again);
                assert_eq!(again, bytes, "{}", row.kind);
                let stored = |(index, scale): (usize, &f32)| {
                    let factor = parts.factors.get(index / row.groups_of_block() * row.factors());
                    row.stored_scale(*scale, factor.copied().unwrap_or(1.0)) == *scale
                };
                assert!(parts.scales.iter().enumerate().all(stored), "{}", row.kind);
            }
        }
    }

    #[test]
    fn values_of_parts_are_those_of_blocks() {
        let data = values(2048, 5);
        for row in GroupedType::ALL {
            let bytes = blocks_of(Isa::best(), row.kind, &data, None);
            let mut parts = GroupedBlocks::default();
            row.take_apart(&bytes, &mut parts);
            let value = |(index, code): (usize, &u8)| {
                let group = index / row.group;
                row.levels.level(*code) * parts.scales[group] - parts.minima.get(group).copied().unwrap_or(0.0)
            };
            let found: Vec<f32> = parts.codes.iter().enumerate().map(value).collect();
            assert_eq!(found, values_of(Isa::best(), row.kind, &bytes), "{}", row.kind);
        }
    }
}
