//! The scales that AWQ and AutoSmoothQuant try: powers of a statistic of the inputs. Not the losses by which one is chosen.

use super::error::{TransformError, finite, same_channels};

/// The least scale before normalisation, as in AMD Quark.
const LEAST_SCALE: f32 = 1e-4;

/// The term that keeps a quotient by weights finite, as in llm-compressor.
const BESIDE_WEIGHT: f64 = 1e-4;

/// Scales to be tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The exponent they come from, from 0 (no scaling) to below 1.
    pub ratio: f32,
    /// One for each channel.
    pub scales: Vec<f32>,
}

/// Candidates with the exponents `0/n, 1/n, .., (n-1)/n`. Where weights count, none of those leaves weights as they are: that
/// is tried before them.
#[derive(Clone, Debug)]
pub struct Candidates<'a> {
    inputs: &'a [f32],
    weights: Option<&'a [f32]>,
    ratios: u32,
    /// Whether no scaling is still to be tried.
    identity: bool,
    next: u32,
}

impl<'a> Candidates<'a> {
    pub(super) fn new(
        inputs: &'a [f32],
        weights: Option<&'a [f32]>,
        ratios: u32,
    ) -> Result<Candidates<'a>, TransformError> {
        finite("the magnitude", inputs)?;
        if let Some(weights) = weights {
            same_channels(inputs, weights)?;
            finite("the mean weight", weights)?;
        }
        Ok(Candidates { inputs, weights, ratios, identity: weights.is_some() && ratios > 0, next: 0 })
    }

    /// `s = max(1e-4, x^r)` or `max(1e-4, x^r / (w^(1-r) + 1e-4))`, then `s / sqrt(max(s) min(s))`.
    fn scales(&self, ratio: f64) -> Vec<f32> {
        let power = |channel: usize| {
            let input = f64::from(self.inputs[channel]).powf(ratio);
            let weight = |weights: &[f32]| f64::from(weights[channel]).powf(1.0 - ratio) + BESIDE_WEIGHT;
            ((input / self.weights.map_or(1.0, weight)) as f32).clamp(LEAST_SCALE, f32::MAX)
        };
        let mut scales: Vec<f32> = (0..self.inputs.len()).map(power).collect();
        let ends = |(min, max): (f32, f32), scale: &f32| (min.min(*scale), max.max(*scale));
        let (min, max) = scales.iter().fold((f32::INFINITY, 0.0), ends);
        // The root of each, so that the product does not overflow.
        let middle = (f64::from(max).sqrt() * f64::from(min).sqrt()) as f32;
        scales.iter_mut().for_each(|scale| *scale /= middle);
        scales
    }
}

impl Iterator for Candidates<'_> {
    type Item = Candidate;

    fn next(&mut self) -> Option<Candidate> {
        if std::mem::take(&mut self.identity) {
            return Some(Candidate { ratio: 0.0, scales: vec![1.0; self.inputs.len()] });
        }
        if self.next >= self.ratios {
            return None;
        }
        let ratio = f64::from(self.next) / f64::from(self.ratios);
        self.next += 1;
        Some(Candidate { ratio: ratio as f32, scales: self.scales(ratio) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.ratios.saturating_sub(self.next) as usize + usize::from(self.identity);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Candidates<'_> {}

/// Which loss is the least, the first of equal ones; `None` where none is a number.
pub fn best(losses: &[f64]) -> Option<usize> {
    let mut best: Option<usize> = None;
    for (index, loss) in losses.iter().enumerate().filter(|(_, loss)| loss.is_finite()) {
        if best.is_none_or(|best| *loss < losses[best]) {
            best = Some(index);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponent_zero_scales_nothing_and_candidates_are_normalised() {
        let inputs = [4.0, 0.25, 1.0, 0.0];
        let all: Vec<Candidate> = Candidates::new(&inputs, None, 4).unwrap().collect();
        assert_eq!(all.iter().map(|c| c.ratio).collect::<Vec<_>>(), [0.0, 0.25, 0.5, 0.75]);
        assert_eq!(all[0].scales, [1.0; 4]);
        for candidate in &all {
            let (min, max) = candidate.scales.iter().fold((f32::MAX, 0.0f32), |(l, h), s| (l.min(*s), h.max(*s)));
            assert!((min * max - 1.0).abs() < 1e-5 && min > 0.0);
        }
        // 2, 0.5, 1, 1e-4 over sqrt(2e-4).
        assert!((all[2].scales[1] - 0.5 / 2e-4f32.sqrt()).abs() < 1e-3);
    }

    #[test]
    fn weight_statistics_enter_candidates_when_given() {
        let all: Vec<Candidate> = Candidates::new(&[4.0, 1.0], Some(&[0.25, 1.0]), 2).unwrap().collect();
        assert_eq!((all.len(), &all[0].scales), (3, &vec![1.0; 2]));
        // 1/w: 4 and 1, over 2; then 2/0.5 and 1, over 2.
        assert!((all[1].scales[0] - 2.0).abs() < 1e-3 && (all[2].scales[0] - 2.0).abs() < 1e-3);
    }

    #[test]
    fn candidate_scales_never_overflow() {
        for candidate in Candidates::new(&[f32::MAX, 1e-45, 0.0], Some(&[0.0, 0.0, 1.0]), 20).unwrap() {
            assert!(candidate.scales.iter().all(|s| s.is_finite() && *s > 0.0), "{candidate:?}");
        }
        assert!(Candidates::new(&[f32::NAN], None, 20).is_err() && Candidates::new(&[1.0], Some(&[]), 20).is_err());
    }

    #[test]
    fn first_of_equal_losses_is_best() {
        assert_eq!(best(&[f64::NAN, 2.0, 1.0, 1.0, 3.0]), Some(2));
        assert_eq!(best(&[f64::NAN, f64::INFINITY]), None);
        assert_eq!(best(&[]), None);
    }
}
