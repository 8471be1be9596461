//! A vector that learns, such as the weight of a norm.

use crate::reconstruction::{Adam, Moments};
use kvant_numeric::ComputeDType;

/// A vector that Adam moves, kept in f32 and stored in its type.
#[derive(Clone, Debug)]
pub struct TunedVector {
    values: Vec<f32>,
    moments: Moments,
    steps: u32,
    /// What a rate of 1 moves by.
    unit: f32,
    stored: ComputeDType,
}

impl TunedVector {
    /// Starts at some values. What is added to them where they are used decides with them how long a step is.
    pub fn new(values: Vec<f32>, offset: f32, stored: ComputeDType) -> TunedVector {
        let squares: f64 = values.iter().map(|value| f64::from(value + offset).powi(2)).sum();
        let unit = (squares / values.len().max(1) as f64).sqrt() as f32;
        TunedVector { moments: Moments::new(values.len()), steps: 0, unit, stored, values }
    }

    /// Moves against the gradient, each value by about `rate` of the root mean square of all at the start.
    pub fn step(&mut self, gradient: &[f32], rate: f32) {
        self.steps += 1;
        let unit = self.unit;
        self.moments.update(Adam::new(rate, self.steps), |_| unit, &mut self.values, gradient);
    }

    /// The values in their type.
    pub fn values(&self) -> Vec<f32> {
        self.values.iter().map(|value| self.stored.round(*value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_step_by_a_share_of_their_size_and_are_stored_in_their_type() {
        let mut vector = TunedVector::new(vec![1.0, -1.0], 0.0, ComputeDType::F32);
        vector.step(&[3.0, -1e-3], 0.1);
        let found = vector.values();
        assert!((found[0] - 0.9).abs() < 1e-3 && (found[1] + 0.9).abs() < 1e-3, "{found:?}");
        // With an offset of 1, a weight of 0 multiplies by 1.
        let mut vector = TunedVector::new(vec![0.0; 2], 1.0, ComputeDType::Bf16);
        vector.step(&[1.0, -1.0], 0.1);
        assert_eq!(vector.values(), [ComputeDType::Bf16.round(-0.1), ComputeDType::Bf16.round(0.1)]);
    }
}
