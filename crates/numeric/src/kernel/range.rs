//! Least, greatest and largest-magnitude elements of groups. Not scales, which follow from them in `kvant-quant`.

use super::elements::{Elements, dispatch_elements};
use crate::element_loop::{Bits, Element, ElementLoop};
use crate::simd::Isa;

/// The least and the greatest element of a group. NaN and infinities show as a non-finite bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The least element.
    pub min: f32,
    /// The greatest element.
    pub max: f32,
}

impl Range {
    /// The range of no elements; joining with it changes nothing.
    pub const EMPTY: Range = Range { min: f32::INFINITY, max: f32::NEG_INFINITY };

    /// The range of the elements of both.
    pub fn join(self, other: Range) -> Range {
        Range { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    /// The largest magnitude.
    pub fn abs_max(self) -> f32 {
        (-self.min).max(self.max)
    }
}

/// The largest magnitude of each `group` consecutive elements; `out` has one entry a group, the last may be short.
/// A group with a NaN or an infinity gives a non-finite result.
pub fn element_abs_max(isa: Isa, elements: Elements<'_>, group: usize, out: &mut [f32]) {
    dispatch_elements(isa, elements, AbsMax { group, out });
}

/// The range of each `group` consecutive elements; `out` has one entry a group, the last may be short. A group with a NaN
/// gives NaN bounds.
pub fn element_ranges(isa: Isa, elements: Elements<'_>, group: usize, out: &mut [Range]) {
    dispatch_elements(isa, elements, MinMax { group, out });
}

/// [`element_abs_max`] of numbers in memory.
pub fn group_abs_max(isa: Isa, values: &[f32], group: usize, out: &mut [f32]) {
    element_abs_max(isa, Elements::Values(values), group, out);
}

/// [`element_ranges`] of numbers in memory.
pub fn group_ranges(isa: Isa, values: &[f32], group: usize, out: &mut [Range]) {
    element_ranges(isa, Elements::Values(values), group, out);
}

struct AbsMax<'a> {
    group: usize,
    out: &'a mut [f32],
}

impl ElementLoop for AbsMax<'_> {
    #[inline(always)]
    fn run<E: Element>(self, elements: &[E::Stored]) {
        match self.group {
            16 => short_groups::<16, E>(elements, self.out),
            32 => short_groups::<32, E>(elements, self.out),
            group => long_groups::<E>(elements, group, self.out),
        }
    }
}

#[inline(always)]
fn long_groups<E: Element>(elements: &[E::Stored], group: usize, out: &mut [f32]) {
    for (out, group) in out.iter_mut().zip(elements.chunks(group.max(1))) {
        *out = E::widen(max_magnitude::<E>(group));
    }
}

/// Magnitudes order as their bits, and NaN and infinity are the largest of them. Maxima of integers depend on no order, so
/// that the compiler may use whole vectors.
#[inline(always)]
fn max_magnitude<E: Element>(elements: &[E::Stored]) -> E::Bits {
    elements.iter().fold(E::Bits::default(), |max, v| max.max(E::bits(*v).magnitude()))
}

/// Elements that are halved at a time in short groups.
const BLOCK: usize = 512;

/// Groups of a power of two that are shorter than vectors: the maxima of neighbours, again and again, of many groups at
/// once.
#[inline(always)]
fn short_groups<const GROUP: usize, E: Element>(elements: &[E::Stored], out: &mut [f32]) {
    let (blocks, tail) = elements.as_chunks::<BLOCK>();
    let (heads, rest) = out.split_at_mut((blocks.len() * (BLOCK / GROUP)).min(out.len()));
    for (block, out) in blocks.iter().zip(heads.chunks_mut(BLOCK / GROUP)) {
        let (mut maxima, mut fewer) = ([E::Bits::default(); BLOCK / 2], [E::Bits::default(); BLOCK / 4]);
        for (max, pair) in maxima.iter_mut().zip(block.as_chunks::<2>().0) {
            *max = E::bits(pair[0]).magnitude().max(E::bits(pair[1]).magnitude());
        }
        halve(&maxima, &mut fewer);
        halve(&fewer, &mut maxima[..BLOCK / 8]);
        halve(&maxima[..BLOCK / 8], &mut fewer[..BLOCK / 16]);
        if GROUP == 32 {
            halve(&fewer[..BLOCK / 16], &mut maxima[..BLOCK / 32]);
        }
        let maxima = if GROUP == 32 { &maxima[..BLOCK / 32] } else { &fewer[..BLOCK / 16] };
        out.iter_mut().zip(maxima).for_each(|(out, max)| *out = E::widen(*max));
    }
    long_groups::<E>(tail, GROUP, rest);
}

/// The greater of every two neighbours.
#[inline(always)]
fn halve<B: Bits>(from: &[B], to: &mut [B]) {
    for (to, [a, b]) in to.iter_mut().zip(from.as_chunks().0) {
        *to = *a.max(b);
    }
}

struct MinMax<'a> {
    group: usize,
    out: &'a mut [Range],
}

impl ElementLoop for MinMax<'_> {
    #[inline(always)]
    fn run<E: Element>(self, elements: &[E::Stored]) {
        for (out, group) in self.out.iter_mut().zip(elements.chunks(self.group.max(1))) {
            *out = min_max::<E>(group);
        }
    }
}

/// With its sign bit flipped, a number without a sign is greater than every one with one, and orders as it does; as it is,
/// a number with a sign is greater than every one without one, and the greater the less it is. So the two maxima are
/// the greatest and the least number where both signs occur; a missing sign is represented by the least pattern.
#[inline(always)]
fn min_max<E: Element>(elements: &[E::Stored]) -> Range {
    let (mut flipped, mut greatest, mut least) = (E::Bits::default(), E::Bits::default(), E::Bits::ONES);
    for element in elements {
        let bits = E::bits(*element);
        flipped = flipped.max(bits.negated());
        greatest = greatest.max(bits);
        least = least.min(bits);
    }
    let max = if flipped >= E::Bits::SIGN { flipped.negated() } else { least };
    let min = if greatest >= E::Bits::SIGN { greatest } else { least };
    let (min, max) = (E::widen(min), E::widen(max));
    if min.is_nan() || max.is_nan() { Range { min: f32::NAN, max: f32::NAN } } else { Range { min, max } }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(length: usize) -> Vec<f32> {
        (0..length).map(|i| (i as f32 * 0.7).sin() * (1.0 + i as f32) - 3.0).collect()
    }

    #[test]
    fn group_bounds_match_on_every_isa_and_tail() {
        for isa in Isa::available() {
            for (length, group) in [(0, 4), (1, 4), (128, 32), (130, 32), (96, 16), (1000, 128), (37, 37), (48, 5)] {
                let data = values(length);
                let groups = length.div_ceil(group);
                let (mut abs, mut ranges) = (vec![0.0; groups], vec![Range::EMPTY; groups]);
                group_abs_max(isa, &data, group, &mut abs);
                group_ranges(isa, &data, group, &mut ranges);
                for (i, chunk) in data.chunks(group).enumerate() {
                    let min = chunk.iter().copied().fold(f32::INFINITY, f32::min);
                    let max = chunk.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    assert_eq!(ranges[i], Range { min, max });
                    assert_eq!(abs[i], ranges[i].abs_max());
                }
            }
        }
    }

    #[test]
    fn non_finite_values_are_seen_in_group_bounds() {
        for isa in Isa::available() {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for position in 0..33 {
                    let mut data = values(33);
                    data[position] = bad;
                    let (mut abs, mut ranges) = ([0.0], [Range::EMPTY]);
                    group_abs_max(isa, &data, 33, &mut abs);
                    group_ranges(isa, &data, 33, &mut ranges);
                    assert!(!abs[0].is_finite());
                    assert!(!(ranges[0].min.is_finite() && ranges[0].max.is_finite()));
                }
            }
        }
    }

    #[test]
    fn sign_of_zero_does_not_change_the_maximum() {
        let (mut abs, mut ranges) = ([1.0], [Range::EMPTY]);
        group_abs_max(Isa::best(), &[-0.0, 0.0], 2, &mut abs);
        group_ranges(Isa::best(), &[-0.0, 0.0], 2, &mut ranges);
        assert_eq!((abs[0].to_bits(), ranges[0].min, ranges[0].max), (0, 0.0, 0.0));
    }
}
