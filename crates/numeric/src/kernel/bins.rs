//! Counting values in bins of nearly equal width. The caller knows the exact edges: values so close to an edge that equal widths do
//! not determine their bin are returned.

use crate::simd::{Isa, Loop, dispatch};

/// Counters of one bin: equal values come in runs, and one counter would have to wait for itself.
const LANES: usize = 4;
/// Values whose places are computed at once.
const BLOCK: usize = 64;
/// Values counted in 32 bits at most before the counters are emptied.
const RUN: usize = 1 << 30;

/// Bins on a line, and how far from where equal widths would have it an edge may lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bins {
    /// The lowest edge.
    pub first: f64,
    /// The highest edge.
    pub last: f64,
    /// Number of bins.
    pub number: u32,
    /// Largest distance of an edge from its place among equal widths, in bins.
    pub margin: f64,
}

/// Counts of values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Values in each bin, by their distance from the lowest edge alone.
    pub bins: Vec<u64>,
    /// Zeros, which are in no bin here: half of all values may be.
    pub zeros: u64,
}

/// Half of what lies between two neighbouring f32 numbers about 1: the largest relative error of one rounding.
const ROUNDING: f64 = 1.0 / 16_777_216.0;
/// `1.5 * 2^23`: f32 numbers about it are whole, so that adding it rounds, and the low bits of the sum are the number.
const WHOLE: f32 = 12_582_912.0;

/// Bins in f32, the arithmetic of the kernel: twice as many at a time as f64, and exact wherever the result is certain.
#[derive(Clone, Copy, Debug)]
struct Line {
    /// The least and the largest value between the edges.
    low: f32,
    high: f32,
    first: f32,
    /// Bins per unit.
    scale: f32,
    last_bin: i32,
    /// Parts of a bin at its lower edge and up to its upper edge that may belong to a neighbour.
    margin: f32,
    rest: f32,
}

impl Line {
    /// `margin` grows by what f32 may be wrong about a place: its four roundings, that of `first` among them.
    fn new(bins: &Bins) -> Self {
        let scale = f64::from(bins.number) / (bins.last - bins.first);
        let wrong = (4.0 * f64::from(bins.number) + bins.first.abs() * scale) * ROUNDING;
        // Nothing is sure where f32 does not hold the numbers.
        let holds = (scale as f32).is_normal() && ((bins.last - bins.first) as f32).is_finite();
        let margin = if holds { (bins.margin + wrong) as f32 } else { f32::NAN };
        Self {
            low: rounded_up(bins.first),
            high: -rounded_up(-bins.last),
            first: bins.first as f32,
            scale: scale as f32,
            last_bin: i32::try_from(bins.number - 1).unwrap_or(i32::MAX),
            margin,
            rest: 1.0 - margin,
        }
    }

    /// The bin that a value is in, if it is between the edges and in no margin.
    #[inline(always)]
    fn bin(&self, value: f32) -> (i32, bool) {
        let place = (value - self.first) * self.scale;
        let bin = ((place - 0.5 + WHOLE).to_bits().wrapping_sub(WHOLE.to_bits()) as i32).clamp(0, self.last_bin);
        let inside = place - bin as f32;
        let between = (value >= self.low) & (value <= self.high);
        let above = (inside > self.margin) | (bin == 0);
        let below = (inside < self.rest) | (bin == self.last_bin);
        (bin, between & above & below)
    }
}

/// The least f32 number that is not below a value.
fn rounded_up(value: f64) -> f32 {
    let near = value as f32;
    if f64::from(near) < value { near.next_up() } else { near }
}

impl Bins {
    /// The bin of a value; `None` for zero, NaN, values outside the edges, and values within the margin of an
    /// inner edge, or is so close to it that f32 does not decide. This specifies the kernel.
    pub fn bin(&self, value: f32) -> Option<u32> {
        let (bin, sure) = Line::new(self).bin(value);
        (sure && value != 0.0).then_some(bin as u32)
    }
}

/// Counts the values, or their magnitudes if `absolute`; non-zero values without a bin are
/// appended to `unsure`.
pub fn count_in_bins(isa: Isa, values: &[f32], absolute: bool, bins: &Bins, unsure: &mut Vec<f32>) -> Counted {
    let number = bins.number as usize;
    if number == 0 {
        return Counted::default();
    }
    let mut counted = Counted { bins: vec![0; number], zeros: 0 };
    // Two more than the number of bins: unsure values, and zeros.
    let mut counters = vec![[0u32; LANES]; number + 2];
    for run in values.chunks(RUN) {
        dispatch(isa, Count { values: run, absolute, bins, counters: &mut counters, unsure });
        let sum = |lanes: &[u32; LANES]| lanes.iter().map(|&n| u64::from(n)).sum::<u64>();
        counted.bins.iter_mut().zip(&counters).for_each(|(bin, lanes)| *bin += sum(lanes));
        counted.zeros += sum(&counters[number + 1]);
        counters.fill([0; LANES]);
    }
    counted
}

struct Count<'a> {
    values: &'a [f32],
    absolute: bool,
    bins: &'a Bins,
    counters: &'a mut [[u32; LANES]],
    unsure: &'a mut Vec<f32>,
}

impl Loop for Count<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { values, absolute, bins, counters, unsure } = self;
        let line = Line::new(bins);
        let sign = if absolute { 0x7fff_ffff } else { u32::MAX };
        let (unsure_slot, zero_slot) = (bins.number, bins.number + 1);
        let mut places = [0u32; BLOCK];
        for block in values.chunks(BLOCK) {
            let mut any = 0;
            for (place, value) in places.iter_mut().zip(block) {
                let value = f32::from_bits(value.to_bits() & sign);
                let (bin, sure) = line.bin(value);
                let slot = if sure { bin as u32 } else { unsure_slot };
                *place = if value == 0.0 { zero_slot } else { slot };
                any |= u32::from(*place == unsure_slot);
            }
            let (fours, rest) = places[..block.len()].as_chunks::<LANES>();
            for four in fours {
                for (lane, place) in four.iter().enumerate() {
                    counters[*place as usize][lane] += 1;
                }
            }
            for (lane, place) in rest.iter().enumerate() {
                counters[*place as usize][lane] += 1;
            }
            if any != 0 {
                let left = places.iter().zip(block).filter(|(place, _)| **place == unsure_slot);
                unsure.extend(left.map(|(_, value)| f32::from_bits(value.to_bits() & sign)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Vec<f32> {
        let wave = |i: u32| (i as f32 * 0.37).sin() * (i % 97) as f32 / 60.0;
        let odd = [0.0, -0.0, 1.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-30, 0.25, -0.25];
        (0..1003).map(wave).chain(odd).collect()
    }

    #[test]
    fn bin_counts_equal_the_scalar_definition_on_every_isa() {
        for bins in [
            Bins { first: -1.0, last: 1.0, number: 37, margin: 1e-6 },
            Bins { first: 0.0, last: 1.5, number: 2048, margin: 1e-3 },
            Bins { first: -1.25, last: 0.25, number: 1, margin: 1e-6 },
            Bins { first: -0.999_999_999, last: 1.000_000_001, number: 70_001, margin: 1e-6 },
            Bins { first: 0.7, last: 0.700_1, number: 16, margin: 1e-6 },
            Bins { first: 0.0, last: 1e-38, number: 2048, margin: 1e-6 },
            Bins { first: -3e38, last: 3e38, number: 16, margin: 1e-6 },
        ] {
            for (isa, absolute) in Isa::available().into_iter().flat_map(|isa| [(isa, false), (isa, true)]) {
                let taken = |v: &f32| if absolute { v.abs() } else { *v };
                let mut expected = Counted { bins: vec![0; bins.number as usize], zeros: 0 };
                let mut left = Vec::new();
                for value in values().iter().map(taken) {
                    match bins.bin(value) {
                        Some(bin) => expected.bins[bin as usize] += 1,
                        None if value == 0.0 => expected.zeros += 1,
                        None => left.push(value.to_bits()),
                    }
                }
                let mut unsure = Vec::new();
                assert_eq!(count_in_bins(isa, &values(), absolute, &bins, &mut unsure), expected, "{}", isa.name());
                let unsure: Vec<u32> = unsure.iter().map(|v| v.to_bits()).collect();
                assert_eq!(unsure, left);
            }
        }
    }

    #[test]
    fn reported_bin_contains_the_value() {
        for bins in [
            Bins { first: -0.999_999_999, last: 1.000_000_001, number: 70_001, margin: 1e-6 },
            Bins { first: 0.3, last: 1.1, number: 2048, margin: 1e-6 },
            Bins { first: 100.0, last: 100.5, number: 300, margin: 1e-6 },
        ] {
            let width = (bins.last - bins.first) / f64::from(bins.number);
            let near = (0..=bins.number).flat_map(|i| {
                let edge = (bins.first + f64::from(i) * width) as f32;
                [edge.next_down(), edge, edge.next_up(), (f64::from(edge) + width / 2.0) as f32]
            });
            let mut told = 0;
            for value in near {
                let Some(bin) = bins.bin(value) else { continue };
                let place = (f64::from(value) - bins.first) / width;
                assert!(
                    value == 0.0 || (place.floor() - f64::from(bin)).abs() < 0.5 || place == f64::from(bins.number)
                );
                told += 1;
            }
            assert!(told > bins.number / 2, "{told} of {bins:?}");
        }
    }

    #[test]
    fn zero_bins_count_nothing() {
        let bins = Bins { first: 0.0, last: 0.0, number: 0, margin: 0.0 };
        assert_eq!(count_in_bins(Isa::best(), &[1.0], false, &bins, &mut Vec::new()), Counted::default());
    }
}
