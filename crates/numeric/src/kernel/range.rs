//! Least, greatest and largest-magnitude elements of groups. Not scales, which follow from them in `kvant-quant`.

use crate::simd::{Isa, Loop, dispatch};

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
/// A group with a NaN or an infinity gives a non-finite result (its bits are at least those of infinity).
pub fn group_abs_max(isa: Isa, values: &[f32], group: usize, out: &mut [f32]) {
    dispatch(isa, AbsMax { values, group, out });
}

/// The range of each `group` consecutive elements; `out` has one entry a group, the last may be short. A group with a NaN
/// gives NaN bounds.
pub fn group_ranges(isa: Isa, values: &[f32], group: usize, out: &mut [Range]) {
    dispatch(isa, MinMax { values, group, out });
}

/// Independent accumulators, so that the compiler may use whole vectors: a maximum does not depend on the order.
const LANES: usize = 16;

struct AbsMax<'a> {
    values: &'a [f32],
    group: usize,
    out: &'a mut [f32],
}

impl Loop for AbsMax<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (out, group) in self.out.iter_mut().zip(self.values.chunks(self.group.max(1))) {
            *out = f32::from_bits(abs_max_bits(group));
        }
    }
}

/// Magnitudes order as the bits of their absolute values, and NaN and infinity are the largest of them.
#[inline(always)]
fn abs_max_bits(values: &[f32]) -> u32 {
    let mut lanes = [0u32; LANES];
    let (chunks, tail) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = (*lane).max(value.to_bits() & 0x7FFF_FFFF);
        }
    }
    let tail = tail.iter().map(|v| v.to_bits() & 0x7FFF_FFFF);
    lanes.into_iter().chain(tail).fold(0, u32::max)
}

struct MinMax<'a> {
    values: &'a [f32],
    group: usize,
    out: &'a mut [Range],
}

impl Loop for MinMax<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (out, group) in self.out.iter_mut().zip(self.values.chunks(self.group.max(1))) {
            let (min, max) = min_max_keys(group);
            *out = Range { min: from_key(min), max: from_key(max) };
            if abs_max_bits(group) > 0x7F80_0000 {
                *out = Range { min: f32::NAN, max: f32::NAN };
            }
        }
    }
}

/// Least and greatest key of a slice (see [`to_key`]).
#[inline(always)]
fn min_max_keys(values: &[f32]) -> (i32, i32) {
    let mut min = [i32::MAX; LANES];
    let mut max = [i32::MIN; LANES];
    let (chunks, tail) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            let key = to_key(chunk[i]);
            min[i] = min[i].min(key);
            max[i] = max[i].max(key);
        }
    }
    let low = min.into_iter().chain(tail.iter().map(|v| to_key(*v))).fold(i32::MAX, i32::min);
    let high = max.into_iter().chain(tail.iter().map(|v| to_key(*v))).fold(i32::MIN, i32::max);
    (low, high)
}

/// Integers that order as the numbers do: negative numbers have all but the sign bit flipped.
#[inline(always)]
fn to_key(value: f32) -> i32 {
    let bits = value.to_bits() as i32;
    bits ^ ((bits >> 31) & 0x7FFF_FFFF)
}

#[inline(always)]
fn from_key(key: i32) -> f32 {
    f32::from_bits((key ^ ((key >> 31) & 0x7FFF_FFFF)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(length: usize) -> Vec<f32> {
        (0..length).map(|i| (i as f32 * 0.7).sin() * (1.0 + i as f32) - 3.0).collect()
    }

    #[test]
    fn every_isa_gives_the_bounds_of_every_group_and_tail() {
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
    fn what_is_not_finite_shows() {
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
    fn signs_of_zero_do_not_matter_to_the_maximum() {
        let (mut abs, mut ranges) = ([1.0], [Range::EMPTY]);
        group_abs_max(Isa::best(), &[-0.0, 0.0], 2, &mut abs);
        group_ranges(Isa::best(), &[-0.0, 0.0], 2, &mut ranges);
        assert_eq!((abs[0].to_bits(), ranges[0].min, ranges[0].max), (0, 0.0, 0.0));
    }
}
