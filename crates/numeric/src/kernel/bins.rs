//! Counting values in bins of nearly equal width. What a bin's exact edges are, the caller knows: values that are so close to one
//! that equal widths do not tell their bin are handed back.

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

impl Bins {
    /// The bin of a value; `None` for zero, for what is outside of the edges, NaN, and for what lies within the margin of an
    /// inner edge. This specifies the kernel.
    pub fn bin(&self, value: f32) -> Option<u32> {
        let value = f64::from(value);
        let place = (value - self.first) * self.scale();
        let bin = (place as u32).min(self.number - 1);
        let inside = place - f64::from(bin);
        let between = value >= self.first && value <= self.last && value != 0.0;
        let above = inside > self.margin || bin == 0;
        let below = inside < 1.0 - self.margin || bin == self.number - 1;
        (between && above && below).then_some(bin)
    }

    fn scale(&self) -> f64 {
        f64::from(self.number) / (self.last - self.first)
    }
}

/// Counts the values, of which magnitudes are taken where `absolute`; those that [`Bins::bin`] gives no bin, zeros left out, are
/// appended to `unsure`.
pub fn count_in_bins(isa: Isa, values: &[f32], absolute: bool, bins: &Bins, unsure: &mut Vec<f32>) -> Counted {
    let number = bins.number as usize;
    if number == 0 {
        return Counted::default();
    }
    let mut counted = Counted { bins: vec![0; number], zeros: 0 };
    // Two more than there are bins: what is unsure, and zeros.
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
        let sign = if absolute { 0x7fff_ffff } else { u32::MAX };
        let mut places = [0u32; BLOCK];
        for block in values.chunks(BLOCK) {
            let unsure_slot = bins.number;
            let mut any = false;
            for (place, value) in places.iter_mut().zip(block) {
                *place = slot(bins, f32::from_bits(value.to_bits() & sign));
                any |= *place == unsure_slot;
            }
            for (lane, place) in places[..block.len()].iter().enumerate() {
                counters[*place as usize][lane % LANES] += 1;
            }
            if any {
                let left = places.iter().zip(block).filter(|(place, _)| **place == unsure_slot);
                unsure.extend(left.map(|(_, value)| f32::from_bits(value.to_bits() & sign)));
            }
        }
    }
}

/// The counter of a value: its bin's, the one behind them for what is unsure, the last for zeros.
#[inline(always)]
fn slot(bins: &Bins, value: f32) -> u32 {
    let wide = f64::from(value);
    let place = (wide - bins.first) * bins.scale();
    let bin = (place as u32).min(bins.number - 1);
    let inside = place - f64::from(bin);
    let sure = (wide >= bins.first)
        & (wide <= bins.last)
        & ((inside > bins.margin) | (bin == 0))
        & ((inside < 1.0 - bins.margin) | (bin == bins.number - 1));
    let slot = if sure { bin } else { bins.number };
    if value == 0.0 { bins.number + 1 } else { slot }
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
    fn every_isa_counts_as_one_value_says() {
        for bins in [
            Bins { first: -1.0, last: 1.0, number: 37, margin: 1e-6 },
            Bins { first: 0.0, last: 1.5, number: 2048, margin: 1e-3 },
            Bins { first: -1.25, last: 0.25, number: 1, margin: 1e-6 },
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
    fn no_bins_count_nothing() {
        let bins = Bins { first: 0.0, last: 0.0, number: 0, margin: 0.0 };
        assert_eq!(count_in_bins(Isa::best(), &[1.0], false, &bins, &mut Vec::new()), Counted::default());
    }
}
