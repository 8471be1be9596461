//! AdaQuant: the weights themselves are trained, the gradient passing their rounding as if it were not there.
//!
//! `w' = scale * clamp(round(w / scale), lowest, highest)`; the derivative of `w'` by `w` is taken as 1 inside of the codes'
//! range and as 0 outside.

use super::adam::{Adam, Moments};
use super::variables::{CodeSteps, Variables, Weight, rows_of_a_piece};
use kvant_numeric::simd::{Isa, Loop, dispatch};
use rayon::prelude::*;

/// Weights under training.
#[derive(Debug)]
pub(super) struct Trained {
    features: usize,
    steps: Vec<CodeSteps>,
    values: Vec<f32>,
    moments: Moments,
    weights: Vec<f32>,
}

impl Trained {
    /// The weights as they are.
    pub fn new(weight: Weight<'_>) -> Self {
        let weights = weight.restored(&weight.nearest());
        let moments = Moments::new(weights.len());
        Self {
            features: weight.features,
            steps: weight.steps.to_vec(),
            values: weight.values.to_vec(),
            moments,
            weights,
        }
    }
}

impl Variables for Trained {
    fn weights(&self) -> &[f32] {
        &self.weights
    }

    fn rounded(&self) -> Vec<f32> {
        Weight { values: &self.values, features: self.features, steps: &self.steps, bias: None }.nearest()
    }

    fn step(&mut self, gradient: &[f32], adam: Adam, _: Option<f32>) {
        let features = self.features.max(1);
        let rows = rows_of_a_piece(features);
        let piece = rows * features;
        let fixed = gradient.par_chunks(piece).zip(self.steps.par_chunks(rows));
        let moments = self.moments.first.par_chunks_mut(piece).zip(self.moments.second.par_chunks_mut(piece));
        let changed = self.values.par_chunks_mut(piece).zip(self.weights.par_chunks_mut(piece)).zip(moments);
        fixed.zip(changed).for_each(|((gradient, steps), ((values, weights), (first, second)))| {
            dispatch(Isa::best(), WeightPiece { features, steps, gradient, values, weights, first, second, adam });
        });
    }
}

/// Some outputs' weights.
struct WeightPiece<'a> {
    features: usize,
    steps: &'a [CodeSteps],
    gradient: &'a [f32],
    values: &'a mut [f32],
    weights: &'a mut [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
    adam: Adam,
}

impl Loop for WeightPiece<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let WeightPiece { features, steps, gradient, values, weights, first, second, adam } = self;
        for (row, steps) in steps.iter().enumerate() {
            let range = row * features..(row + 1) * features;
            let (gradient, values) = (&gradient[range.clone()], &mut values[range.clone()]);
            let (weights, first, second) = (&mut weights[range.clone()], &mut first[range.clone()], &mut second[range]);
            for i in 0..features {
                let place = (values[i] / steps.scale).round_ties_even();
                let kept = place >= steps.lowest && place <= steps.highest;
                values[i] -= adam.step(if kept { gradient[i] } else { 0.0 }, &mut first[i], &mut second[i]);
                weights[i] = steps.nearest(values[i]) * steps.scale;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adaquant_weights_follow_the_gradient_and_stay_on_the_grid() {
        let steps = [CodeSteps { scale: 0.5, lowest: -2.0, highest: 2.0 }];
        let values = [0.2, 0.2, 5.0];
        let mut trained = Trained::new(Weight { values: &values, features: 3, steps: &steps, bias: None });
        assert_eq!(trained.weights, [0.0, 0.0, 1.0]);
        for iteration in 1..10 {
            trained.step(&[1.0, -1.0, 1.0], Adam::new(0.1, iteration), None);
        }
        assert_eq!((trained.rounded(), trained.values[2]), (vec![-1.0, 2.0, 2.0], 5.0));
        assert_eq!(trained.weights, [-0.5, 1.0, 1.0]);
    }
}
