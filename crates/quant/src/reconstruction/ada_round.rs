//! AdaRound: each weight goes down to the code below it or up to the one above, by a share that is trained.
//!
//! `w' = scale * clamp(floor(w / scale) + h, lowest, highest)` with `h = clamp(1.2 sigmoid(a) - 0.1, 0, 1)`; `a` begins where `h` is
//! the weight's own fraction. In the end a weight goes up where `a >= 0`, which is `h >= 1/2`.

use super::adam::{Adam, Moments};
use super::variables::{CodeSteps, Variables, Weight, rows_of_a_piece};
use kvant_numeric::linalg::{exp, ln, sigmoid};
use kvant_numeric::simd::{Isa, Loop, dispatch};
use rayon::prelude::*;

/// The sigmoid is stretched to `[LOW, LOW + SPAN]`, so that both ends are reached.
const LOW: f32 = -0.1;
const SPAN: f32 = 1.2;

/// The trained shares of a weight.
#[derive(Debug)]
pub(super) struct Shares {
    features: usize,
    steps: Vec<CodeSteps>,
    strength: f32,
    floors: Vec<f32>,
    alphas: Vec<f32>,
    moments: Moments,
    weights: Vec<f32>,
}

impl Shares {
    /// The shares that are the weights' own fractions; `strength` is that of the regularization.
    pub fn new(weight: Weight<'_>, strength: f32) -> Self {
        let bounded = |value: f32, steps: CodeSteps| (value / steps.scale).max(steps.lowest).min(steps.highest);
        let floors = weight.map(|value, steps| bounded(value, steps).floor());
        let places = weight.map(bounded);
        let alphas = places.iter().zip(&floors).map(|(place, floor)| alpha(place - floor)).collect();
        // A share of its own fraction leaves a weight where it is, save what lies beyond the codes.
        let weights = weight.restored(&places);
        let moments = Moments::new(floors.len());
        Self { features: weight.features, steps: weight.steps.to_vec(), strength, floors, alphas, moments, weights }
    }
}

/// Where `h` is a fraction.
fn alpha(fraction: f32) -> f32 {
    -((SPAN / (fraction - LOW)) - 1.0).ln()
}

/// `h` and its derivative by `a`.
#[inline(always)]
fn share(alpha: f32) -> (f32, f32) {
    let s = sigmoid(alpha);
    let wide = SPAN * s + LOW;
    let inside = (0.0..=1.0).contains(&wide);
    (wide.clamp(0.0, 1.0), if inside { SPAN * s * (1.0 - s) } else { 0.0 })
}

impl Variables for Shares {
    fn weights(&self) -> &[f32] {
        &self.weights
    }

    fn rounded(&self) -> Vec<f32> {
        let up = |alpha: &f32| if *alpha >= 0.0 { 1.0 } else { 0.0 };
        let places = self.floors.chunks(self.features.max(1)).zip(self.alphas.chunks(self.features.max(1)));
        let rows = places.zip(&self.steps).flat_map(|((floors, alphas), steps)| {
            let step = move |(floor, alpha): (&f32, &f32)| (floor + up(alpha)).max(steps.lowest).min(steps.highest);
            floors.iter().zip(alphas).map(step)
        });
        rows.collect()
    }

    fn step(&mut self, gradient: &[f32], adam: Adam, beta: Option<f32>) {
        let (features, strength) = (self.features.max(1), self.strength);
        let rows = rows_of_a_piece(features);
        let piece = rows * features;
        let fixed = gradient.par_chunks(piece).zip(self.floors.par_chunks(piece)).zip(self.steps.par_chunks(rows));
        let moments = self.moments.first.par_chunks_mut(piece).zip(self.moments.second.par_chunks_mut(piece));
        let changed = self.alphas.par_chunks_mut(piece).zip(self.weights.par_chunks_mut(piece)).zip(moments);
        fixed.zip(changed).for_each(|(((gradient, floors), steps), ((alphas, weights), (first, second)))| {
            let piece = SharePiece { features, steps, gradient, floors, alphas, weights, first, second, adam };
            match beta {
                Some(beta) => dispatch(Isa::best(), Regularized { piece, strength, beta }),
                None => dispatch(Isa::best(), Plain { piece }),
            }
        });
    }
}

/// Some outputs' weights.
struct SharePiece<'a> {
    features: usize,
    steps: &'a [CodeSteps],
    gradient: &'a [f32],
    floors: &'a [f32],
    alphas: &'a mut [f32],
    weights: &'a mut [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
    adam: Adam,
}

struct Plain<'a> {
    piece: SharePiece<'a>,
}

struct Regularized<'a> {
    piece: SharePiece<'a>,
    strength: f32,
    beta: f32,
}

impl Loop for Plain<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.piece.update(|_| 0.0);
    }
}

impl Loop for Regularized<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Regularized { piece, strength, beta } = self;
        piece.update(|h| {
            // The derivative of `strength * (1 - |2 h - 1|^beta)` by `h`.
            let u = 2.0 * h - 1.0;
            let power = exp((beta - 1.0) * ln(u.abs()));
            (-2.0 * strength * beta * power).copysign(-u)
        });
    }
}

impl SharePiece<'_> {
    /// Updates all shares; `pull` is the regularization's derivative by `h`.
    #[inline(always)]
    fn update(self, pull: impl Fn(f32) -> f32) {
        let SharePiece { features, steps, gradient, floors, alphas, weights, first, second, adam } = self;
        for (row, steps) in steps.iter().enumerate() {
            let range = row * features..(row + 1) * features;
            let (gradient, floors) = (&gradient[range.clone()], &floors[range.clone()]);
            let (alphas, weights) = (&mut alphas[range.clone()], &mut weights[range.clone()]);
            let (first, second) = (&mut first[range.clone()], &mut second[range]);
            for i in 0..features {
                let (h, slope) = share(alphas[i]);
                let place = floors[i] + h;
                let kept = place >= steps.lowest && place <= steps.highest;
                let by_share = if kept { gradient[i] * steps.scale } else { 0.0 };
                alphas[i] -= adam.step((by_share + pull(h)) * slope, &mut first[i], &mut second[i]);
                let (h, _) = share(alphas[i]);
                weights[i] = (floors[i] + h).max(steps.lowest).min(steps.highest) * steps.scale;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INT4: CodeSteps = CodeSteps { scale: 0.5, lowest: -7.0, highest: 7.0 };

    fn weight<'a>(values: &'a [f32], steps: &'a [CodeSteps]) -> Weight<'a> {
        Weight { values, features: values.len() / steps.len(), steps, bias: None }
    }

    #[test]
    fn adaround_shares_start_as_fractions_and_round_to_nearest() {
        let values = [0.1, -0.9, 1.24, 1.26, -3.5, 90.0, -90.0, 3.4];
        let shares = Shares::new(weight(&values, &[INT4]), 0.01);
        for (alpha, (value, floor)) in shares.alphas.iter().zip(values.iter().zip(&shares.floors)) {
            let place = (value / 0.5f32).clamp(-7.0, 7.0);
            assert!((share(*alpha).0 - (place - floor)).abs() < 1e-5, "{value}");
        }
        assert_eq!(shares.rounded(), [0.0, -2.0, 2.0, 3.0, -7.0, 7.0, -7.0, 7.0]);
        assert_eq!(shares.weights[..4], values[..4]);
    }

    /// The derivative of the loss and of the regularization by `a`, against differences.
    #[test]
    fn regularization_gradient_matches_its_derivative() {
        for (alpha, beta) in [(-1.5f32, 8.0f32), (0.4, 3.0), (2.0, 20.0), (-0.7, 2.0)] {
            let value = |a: f32| f64::from(0.3 * (1.0 - (2.0 * share(a).0 - 1.0).abs().powf(beta)));
            let expected = (value(alpha + 1e-3) - value(alpha - 1e-3)) / 2e-3;
            let mut shares = Shares::new(weight(&[0.1], &[INT4]), 0.3);
            shares.alphas[0] = alpha;
            shares.step(&[0.0], Adam::new(0.0, 1), Some(beta));
            // The first moment is a tenth of the gradient.
            let found = f64::from(shares.moments.first[0]) * 10.0;
            assert!((found - expected).abs() < 1e-3 * expected.abs().max(0.1), "{alpha} {beta}: {found} {expected}");
        }
    }

    #[test]
    fn regularization_moves_shares_to_the_nearer_end() {
        let values: Vec<f32> = (0..40).map(|i| i as f32 * 0.05 - 1.0).collect();
        let steps = [INT4, CodeSteps { scale: 0.3, ..INT4 }];
        let mut shares = Shares::new(weight(&values, &steps), 0.1);
        let before = shares.rounded();
        for iteration in 1..400 {
            shares.step(&[0.0; 40], Adam::new(0.1, iteration), Some(2.0));
        }
        assert_eq!(shares.rounded(), before);
        let restored = weight(&values, &steps).restored(&before);
        let exact = |(i, _): &(usize, &f32)| (values[*i] / steps[i / 20].scale).fract().abs() != 0.5;
        let settled = shares.weights.iter().enumerate().filter(exact).all(|(i, w)| (w - restored[i]).abs() < 1e-3);
        assert!(settled, "{:?} {restored:?}", shares.weights);
    }
}
