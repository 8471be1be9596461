//! Logarithmic mel spectrograms, as Whisper's feature extractor makes them (arXiv 2212.04356, `WhisperFeatureExtractor` of transformers).

use rustfft::num_complex::Complex;
use rustfft::{Fft, FftPlanner};
use std::f64::consts::TAU;
use std::fmt;
use std::sync::Arc;

/// The highest frequency of the filters, in hertz.
const HIGHEST: f64 = 8000.0;

/// What the power of a filter counts at least.
const LEAST_POWER: f64 = 1e-10;

/// Sizes of a spectrogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpectrogramSizes {
    /// Filters.
    pub(super) bins: usize,
    /// Samples in a second.
    pub(super) rate: usize,
    /// Samples of a frame.
    pub(super) frame: usize,
    /// Samples from the middle of a frame to that of the next.
    pub(super) step: usize,
}

/// Makes spectrograms of one kind.
#[derive(Clone)]
pub(super) struct Spectrogram {
    sizes: SpectrogramSizes,
    window: Vec<f64>,
    transform: Arc<dyn Fft<f64>>,
    filters: Vec<MelFilter>,
}

impl fmt::Debug for Spectrogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spectrogram({:?})", self.sizes)
    }
}

impl PartialEq for Spectrogram {
    fn eq(&self, other: &Spectrogram) -> bool {
        self.sizes == other.sizes
    }
}

impl Spectrogram {
    /// One whose frames have at least two samples.
    pub(super) fn new(sizes: SpectrogramSizes) -> Spectrogram {
        let length = sizes.frame;
        // Periodic: the window of one sample more without its last.
        let window = (0..length).map(|at| 0.5 - 0.5 * (TAU * at as f64 / length as f64).cos()).collect();
        Spectrogram {
            sizes,
            window,
            transform: FftPlanner::new().plan_fft_forward(length),
            filters: mel_filters(sizes),
        }
    }

    /// Of more than half a frame of samples, a row for each filter with a value for each `step` samples: `l = log10(max(p, 1e-10))` of the
    /// power `p` that the filter passes, in a frame around the sample under a Hann window, samples mirrored at both ends; then
    /// `(max(l, L - 8) + 4) / 4`, `L` being the largest of all.
    pub(super) fn of(&self, samples: &[f32]) -> Vec<f32> {
        let (frames, bins) = (samples.len() / self.sizes.step, self.filters.len());
        let mut values = vec![0.0f32; bins * frames];
        let mut spectrum = vec![Complex::default(); self.sizes.frame];
        let mut scratch = vec![Complex::default(); self.transform.get_inplace_scratch_len()];
        for frame in 0..frames {
            let first = (frame * self.sizes.step) as i64 - (self.sizes.frame / 2) as i64;
            for (at, (place, weight)) in spectrum.iter_mut().zip(&self.window).enumerate() {
                let sample = samples[mirrored(first + at as i64, samples.len())];
                *place = Complex::new(f64::from(sample) * weight, 0.0);
            }
            self.transform.process_with_scratch(&mut spectrum, &mut scratch);
            for (bin, filter) in self.filters.iter().enumerate() {
                values[bin * frames + frame] = filter.power(&spectrum).max(LEAST_POWER).log10() as f32;
            }
        }
        let floor = values.iter().copied().fold(f32::NEG_INFINITY, f32::max) - 8.0;
        values.iter_mut().for_each(|value| *value = (value.max(floor) + 4.0) / 4.0);
        values
    }
}

/// The sample that stands at a position of a sound that is mirrored at its first and last sample.
fn mirrored(at: i64, length: usize) -> usize {
    let last = length as i64 - 1;
    let from_start = at.unsigned_abs() as i64;
    let place = if from_start > last { 2 * last - from_start } else { from_start };
    place.clamp(0, last) as usize
}

/// The weights of a triangular filter for the powers of neighbouring frequencies.
#[derive(Clone)]
struct MelFilter {
    first: usize,
    weights: Vec<f64>,
}

impl MelFilter {
    fn power(&self, spectrum: &[Complex<f64>]) -> f64 {
        self.weights.iter().zip(&spectrum[self.first..]).map(|(weight, value)| weight * value.norm_sqr()).sum()
    }
}

/// Filters on frequencies from 0 to half the rate, whose corners are evenly spaced on the mel scale and whose areas are 1 (Slaney).
fn mel_filters(sizes: SpectrogramSizes) -> Vec<MelFilter> {
    let frequencies = sizes.frame / 2 + 1;
    let frequency = |at: usize| (sizes.rate / 2) as f64 * at as f64 / (frequencies - 1) as f64;
    let corner = |at: usize| hertz(mels(HIGHEST) * at as f64 / (sizes.bins + 1) as f64);
    let filter = |bin: usize| {
        let [low, middle, high] = [corner(bin), corner(bin + 1), corner(bin + 2)];
        let weight = |at: usize| {
            let (up, down) = ((frequency(at) - low) / (middle - low), (high - frequency(at)) / (high - middle));
            up.min(down).max(0.0) * 2.0 / (high - low)
        };
        let all: Vec<f64> = (0..frequencies).map(weight).collect();
        let first = all.iter().position(|weight| *weight > 0.0).unwrap_or(0);
        let end = all.iter().rposition(|weight| *weight > 0.0).map_or(first, |last| last + 1);
        MelFilter { first, weights: all[first..end].to_vec() }
    };
    (0..sizes.bins).map(filter).collect()
}

/// Below this frequency mels are proportional to hertz, above it to their logarithm.
const LOGARITHMIC_FROM: f64 = 1000.0;
/// The mels of that frequency.
const MELS_OF_IT: f64 = 15.0;

/// Mels for a factor of e in frequency above it.
fn mels_of_e() -> f64 {
    27.0 / 6.4f64.ln()
}

fn mels(hertz: f64) -> f64 {
    match hertz < LOGARITHMIC_FROM {
        true => 3.0 * hertz / 200.0,
        false => MELS_OF_IT + (hertz / LOGARITHMIC_FROM).ln() * mels_of_e(),
    }
}

fn hertz(mels: f64) -> f64 {
    match mels < MELS_OF_IT {
        true => 200.0 * mels / 3.0,
        false => LOGARITHMIC_FROM * ((mels - MELS_OF_IT) / mels_of_e()).exp(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mels_are_those_of_slaney() {
        for frequency in [0.0, 200.0, 999.0, 1000.0, 6400.0] {
            assert!((hertz(mels(frequency)) - frequency).abs() < 1e-9);
        }
        assert_eq!((mels(200.0), mels(1000.0)), (3.0, 15.0));
        assert!((mels(6400.0) - 42.0).abs() < 1e-12);
    }

    #[test]
    fn ends_are_mirrored_without_repeating_the_last_sample() {
        let places: Vec<usize> = (-2..7).map(|at| mirrored(at, 5)).collect();
        assert_eq!(places, [2, 1, 0, 1, 2, 3, 4, 3, 2]);
    }

    #[test]
    fn a_tone_is_loudest_in_its_own_filter() {
        let sizes = SpectrogramSizes { bins: 16, rate: 16_000, frame: 64, step: 32 };
        let samples: Vec<f32> = (0..320).map(|at| (TAU * 2000.0 * at as f64 / 16_000.0).sin() as f32).collect();
        let values = Spectrogram::new(sizes).of(&samples);
        let middle: Vec<f32> = (0..16).map(|bin| values[bin * 10 + 5]).collect();
        let largest = (0..16).max_by(|a, b| middle[*a].total_cmp(&middle[*b])).unwrap();
        let corner = |at: usize| hertz(mels(HIGHEST) * at as f64 / 17.0);
        assert!((corner(largest)..corner(largest + 2)).contains(&2000.0), "{largest}");
        // Nothing is more than 8 decades below the largest power.
        let range = values.iter().fold((f32::MAX, f32::MIN), |(low, high), v| (low.min(*v), high.max(*v)));
        assert!(range.1 - range.0 <= 2.0 + 1e-6, "{range:?}");
    }
}
