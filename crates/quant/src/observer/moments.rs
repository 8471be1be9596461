//! Mean and standard deviation of finite values.

use serde::{Deserialize, Serialize};

/// Sums of values and of their squares, in the order of the values. NaN and infinities are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moments {
    count: u64,
    sum: f64,
    squares: f64,
}

impl Moments {
    /// Takes in a batch.
    pub(crate) fn update(&mut self, values: &[f32]) {
        for value in values.iter().filter(|value| value.is_finite()).map(|value| f64::from(*value)) {
            self.count += 1;
            self.sum += value;
            self.squares += value * value;
        }
    }

    pub(super) fn merge(&mut self, later: &Moments) {
        self.count += later.count;
        self.sum += later.sum;
        self.squares += later.squares;
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The mean; NaN of no values.
    pub fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// The standard deviation of the values as a population; 0 of no values.
    pub fn deviation(&self) -> f64 {
        let mean = self.mean();
        (self.squares / self.count as f64 - mean * mean).max(0.0).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_match_the_definition_and_skip_non_finite() {
        let mut moments = Moments::default();
        assert_eq!((moments.count(), moments.deviation()), (0, 0.0));
        moments.update(&[2.0, f32::NAN, 4.0, f32::INFINITY, 4.0]);
        moments.update(&[4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!((moments.count(), moments.mean(), moments.deviation()), (8, 5.0, 2.0));
    }
}
