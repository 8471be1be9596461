//! Error statistics: sums over all samples, one value at a time, in the order of the data.

use kvant_numeric::simd::Isa;
use kvant_quant::distribution::Distribution;

/// Sums over pairs of a reference's value and a quantized one.
#[derive(Debug, Clone, Default)]
pub(super) struct Statistics {
    count: u64,
    /// Values of the reference that are numbers.
    finite: u64,
    signal: f64,
    noise: f64,
    product: f64,
    power: f64,
    max_error: f64,
    non_finite: u64,
    /// Of the reference's values and of the quantized ones, where a report shows them.
    distributions: Option<Box<[Distribution; 2]>>,
}

/// The most outputs whose distributions are gathered.
const SHOWN: usize = 16;

impl Statistics {
    /// Those of the tensor at a place among the compared ones, with distributions for the first `shown`, up to a limit.
    pub fn of(place: usize, shown: usize) -> Statistics {
        Statistics { distributions: (place < shown.min(SHOWN)).then(Box::default), ..Statistics::default() }
    }

    /// The distributions of the reference's values and of the quantized ones, if they are gathered.
    pub fn distributions(&self) -> Option<&[Distribution; 2]> {
        self.distributions.as_deref()
    }

    /// Adds pairs of values. Equal values, including infinities, have no error.
    pub fn add(&mut self, reference: &[f32], quantized: &[f32]) {
        for (&r, &q) in reference.iter().zip(quantized) {
            let error = if r == q { 0.0 } else { f64::from(r) - f64::from(q) };
            self.noise += error * error;
            self.max_error = if error.is_nan() { f64::NAN } else { self.max_error.max(error.abs()) };
            if r.is_finite() {
                self.finite += 1;
                let (r, q) = (f64::from(r), f64::from(q));
                self.signal += r * r;
                self.power += q * q;
                self.product += r * q;
                self.non_finite += u64::from(!q.is_finite());
            }
        }
        self.count += reference.len() as u64;
        if let Some(distributions) = &mut self.distributions {
            let [of_reference, of_quantized] = &mut **distributions;
            of_reference.update(Isa::best(), reference);
            of_quantized.update(Isa::best(), quantized);
        }
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// `10 log10(sum r^2 / sum (r - q)^2)` in dB: infinite where there is no error, negative infinite for errors without a
    /// signal, NaN where a value is not a number, and where the reference has no numbers to compare with.
    pub fn sqnr_db(&self) -> f64 {
        match self.noise {
            _ if self.is_unknown() => f64::NAN,
            0.0 => f64::INFINITY,
            noise => 10.0 * (self.signal / noise).log10(),
        }
    }

    /// The cosine of the angle between all values as vectors; 1 where both are zero, NaN where it is not known.
    pub fn cosine(&self) -> f64 {
        match self.signal == 0.0 && self.power == 0.0 {
            _ if self.is_unknown() => f64::NAN,
            true => 1.0,
            false => {
                let norms = (self.signal * self.power).sqrt();
                // The product of very small powers underflows.
                self.product / if norms.is_normal() { norms } else { self.signal.sqrt() * self.power.sqrt() }
            }
        }
    }

    fn is_unknown(&self) -> bool {
        self.count > 0 && self.finite == 0
    }

    /// The largest difference.
    pub fn max_error(&self) -> f64 {
        self.max_error
    }

    /// Quantized values that are NaN or infinite where the reference has a number.
    pub fn non_finite(&self) -> u64 {
        self.non_finite
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_relative_to_the_signal() {
        let mut statistics = Statistics::default();
        statistics.add(&[3.0, 4.0], &[3.0, 4.0]);
        assert_eq!((statistics.sqnr_db(), statistics.cosine(), statistics.max_error()), (f64::INFINITY, 1.0, 0.0));
        statistics.add(&[0.0, 5.0], &[0.5, 5.0]);
        assert!((statistics.sqnr_db() - 10.0 * (50.0f64 / 0.25).log10()).abs() < 1e-12);
        assert!((statistics.cosine() - 50.0 / (50.0f64.sqrt() * 50.25f64.sqrt())).abs() < 1e-12);
        assert_eq!((statistics.max_error(), statistics.count()), (0.5, 4));
    }

    #[test]
    fn matching_infinities_are_no_error_but_nan_is() {
        let mut statistics = Statistics::default();
        statistics.add(&[f32::NEG_INFINITY, 1.0], &[f32::NEG_INFINITY, 1.0]);
        assert_eq!(statistics.sqnr_db(), f64::INFINITY);
        statistics.add(&[1.0], &[f32::NAN]);
        assert!(statistics.sqnr_db().is_nan() && statistics.max_error().is_nan());
        assert_eq!(statistics.non_finite(), 1);
        statistics.add(&[f32::NAN, 2.0, f32::INFINITY], &[f32::NAN, f32::INFINITY, 1.0]);
        assert_eq!(statistics.non_finite(), 2, "what the reference does not know is not counted");
        let mut infinite = Statistics::default();
        infinite.add(&[f32::INFINITY; 2], &[f32::INFINITY; 2]);
        assert!(infinite.sqnr_db().is_nan() && infinite.cosine().is_nan(), "there is nothing to compare with");
        let mut silent = Statistics::default();
        silent.add(&[0.0], &[1.0]);
        assert_eq!(silent.sqnr_db(), f64::NEG_INFINITY);
    }
}
