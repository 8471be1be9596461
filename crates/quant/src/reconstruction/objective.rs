//! The loss of a layer and its gradients. What is trained does not matter here: weights are floats.

use super::activation_function::{Curve, WithCurve};
use super::module::{Module, Sample};
use kvant_numeric::simd::{Isa, Loop, dispatch};
use rayon::prelude::*;

/// Partial sums side by side: a fixed number, so that sums are the same on every instruction set.
const LANES: usize = 16;

/// The gradients of a loss, and scratch space.
#[derive(Debug, Default)]
pub struct Gradients {
    /// Of the weights, `[outputs, features]`.
    pub weights: Vec<f32>,
    /// Of the bias, one for each output.
    pub bias: Vec<f32>,
    /// Outputs, then the slopes of the loss along them.
    outputs: Vec<f32>,
}

/// The contribution of one output to the loss and to its bias's gradient.
#[derive(Clone, Copy, Debug, Default)]
struct RowSums {
    squares: f64,
    slopes: f32,
}

impl Module {
    /// The loss of one sample and its gradients by the weights and the bias.
    pub fn gradients(&self, weights: &[f32], bias: Option<&[f32]>, sample: Sample<'_>) -> (f64, Gradients) {
        let mut gradients = Gradients::default();
        let loss = self.differentiate(weights, bias, sample, (true, 1), &mut gradients);
        (loss, gradients)
    }

    /// The loss of one sample: the sum over outputs of the mean over positions of the squared error.
    pub(super) fn loss(&self, weights: &[f32], bias: Option<&[f32]>, sample: Sample<'_>, room: &mut Gradients) -> f64 {
        self.forward(weights, bias, sample, 0.0, room).iter().map(|row| row.squares).sum::<f64>() / positions(sample)
    }

    /// The mean loss of a batch of which this is one of `samples`; its gradients are added to those of the others, or stand
    /// in their place if it is the first.
    pub(super) fn differentiate(
        &self,
        weights: &[f32],
        bias: Option<&[f32]>,
        sample: Sample<'_>,
        (first, samples): (bool, usize),
        gradients: &mut Gradients,
    ) -> f64 {
        let count = samples as f64;
        let factor = 2.0 / (positions(sample) * count);
        let rows = self.forward(weights, bias, sample, factor as f32, gradients);
        gradients.weights.resize(self.shape.weights(), 0.0);
        self.shape.gradients(&gradients.outputs, sample, &mut gradients.weights, !first);
        gradients.bias.resize(self.shape.outputs, 0.0);
        for (sum, row) in gradients.bias.iter_mut().zip(&rows) {
            *sum = if first { row.slopes } else { *sum + row.slopes };
        }
        rows.iter().map(|row| row.squares).sum::<f64>() / positions(sample) / count
    }

    /// Computes the outputs and turns them into `factor * (f(y) - f(t)) f'(y)`.
    fn forward(
        &self,
        weights: &[f32],
        bias: Option<&[f32]>,
        sample: Sample<'_>,
        factor: f32,
        room: &mut Gradients,
    ) -> Vec<RowSums> {
        room.outputs.resize(self.shape.outputs * sample.positions, 0.0);
        self.shape.products(weights, sample, &mut room.outputs);
        let positions = sample.positions.max(1);
        let rows = room.outputs.par_chunks_mut(positions).zip(sample.targets.par_chunks(positions)).enumerate();
        let sums = rows.map(|(output, (outputs, targets))| {
            let bias = bias.and_then(|bias| bias.get(output)).copied().unwrap_or(0.0);
            self.function.with_curve(output, ErrorRow { bias, factor, outputs, targets })
        });
        sums.collect()
    }
}

fn positions(sample: Sample<'_>) -> f64 {
    sample.positions.max(1) as f64
}

/// One output at all positions.
struct ErrorRow<'a> {
    bias: f32,
    factor: f32,
    outputs: &'a mut [f32],
    targets: &'a [f32],
}

impl WithCurve for ErrorRow<'_> {
    type Output = RowSums;

    fn with<C: Curve>(self, curve: C) -> RowSums {
        dispatch(Isa::best(), Errors { curve, row: self })
    }
}

struct Errors<'a, C> {
    curve: C,
    row: ErrorRow<'a>,
}

/// The error at one position.
struct PointError<C> {
    curve: C,
    bias: f32,
    factor: f32,
}

impl<C: Curve> PointError<C> {
    /// Turns the output into the slope of the loss along it.
    #[inline(always)]
    fn add(&self, output: &mut f32, target: f32, squares: &mut f32, slopes: &mut f32) {
        let (value, slope) = self.curve.at(*output + self.bias);
        let error = value - self.curve.at(target).0;
        *squares += error * error;
        *output = self.factor * error * slope;
        *slopes += *output;
    }
}

impl<C: Curve> Loop for Errors<'_, C> {
    type Output = RowSums;

    #[inline(always)]
    fn run(self) -> RowSums {
        let Errors { curve, row: ErrorRow { bias, factor, outputs, targets } } = self;
        let (outputs, rest_outputs) = outputs.as_chunks_mut::<LANES>();
        let (targets, rest_targets) = targets.as_chunks::<LANES>();
        let (mut squares, mut slopes) = ([0f32; LANES], [0f32; LANES]);
        let error = PointError { curve, bias, factor };
        for (outputs, targets) in outputs.iter_mut().zip(targets) {
            for lane in 0..LANES {
                error.add(&mut outputs[lane], targets[lane], &mut squares[lane], &mut slopes[lane]);
            }
        }
        for (lane, (output, target)) in rest_outputs.iter_mut().zip(rest_targets).enumerate() {
            error.add(output, *target, &mut squares[lane], &mut slopes[lane]);
        }
        RowSums { squares: squares.iter().copied().map(f64::from).sum(), slopes: slopes.iter().sum() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::activation_function::tests::all;
    use super::super::module::Shape;
    use super::*;

    fn values(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 1009.0 - 0.5).collect()
    }

    /// The loss in f64, by its definition.
    fn naive(module: &Module, weights: &[f32], bias: &[f32], sample: Sample<'_>) -> f64 {
        let Shape { features, .. } = module.shape;
        let mut sum = 0.0;
        for (o, p) in (0..module.shape.outputs).flat_map(|o| (0..sample.positions).map(move |p| (o, p))) {
            let start = o / module.shape.per_group() * features;
            let x = |k: usize| f64::from(sample.patches[(start + k) * sample.positions + p]);
            let y: f64 = (0..features).map(|k| f64::from(weights[o * features + k]) * x(k)).sum();
            let made = module.function.apply(o, (y + f64::from(bias[o])) as f32);
            let wanted = module.function.apply(o, sample.targets[o * sample.positions + p]);
            sum += (f64::from(made) - f64::from(wanted)).powi(2);
        }
        sum / sample.positions as f64
    }

    #[test]
    fn objective_gradients_match_finite_differences() {
        for (function, (groups, outputs, features)) in
            all().into_iter().flat_map(|f| [(1, 6, 10), (6, 6, 9), (2, 6, 8)].map(|shape| (f.clone(), shape)))
        {
            let module = Module { shape: Shape { groups, outputs, features }, function };
            let positions = 37;
            let patches: Vec<f32> = values(groups * features * positions, 1).iter().map(|x| 3.0 * x).collect();
            let targets = values(outputs * positions, 2);
            let sample = Sample { patches: &patches, targets: &targets, positions };
            let (weights, bias) = (values(module.shape.weights(), 3), values(outputs, 4));
            let mut gradients = Gradients::default();
            let loss = module.differentiate(&weights, Some(&bias), sample, (true, 1), &mut gradients);
            let exact = naive(&module, &weights, &bias, sample);
            assert!((loss - exact).abs() < 1e-4 * exact, "{module:?}: {loss} {exact}");
            let slope = |at: usize, of_bias: bool| {
                let moved = |step: f32| {
                    let (mut w, mut b) = (weights.clone(), bias.clone());
                    let place = if of_bias { &mut b[at] } else { &mut w[at] };
                    *place += step;
                    naive(&module, &w, &b, sample)
                };
                (moved(2e-3) - moved(-2e-3)) / 4e-3
            };
            let close = |found: f32, expected: f64| (f64::from(found) - expected).abs() < 0.02 * expected.abs() + 0.02;
            for at in (0..weights.len()).step_by(5) {
                let expected = slope(at, false);
                assert!(
                    close(gradients.weights[at], expected),
                    "{module:?} {at}: {} {expected}",
                    gradients.weights[at]
                );
            }
            for at in 0..outputs {
                let expected = slope(at, true);
                assert!(close(gradients.bias[at], expected), "{module:?} bias {at}: {} {expected}", gradients.bias[at]);
            }
        }
    }

    #[test]
    fn batch_gradient_is_the_mean_of_its_samples() {
        let module = Module { shape: Shape { groups: 1, outputs: 3, features: 4 }, ..relu() };
        let (patches, targets) = (values(4 * 20, 1), values(3 * 20, 2));
        let (weights, bias) = (values(12, 3), values(3, 4));
        let sample = Sample { patches: &patches, targets: &targets, positions: 20 };
        let (mut one, mut two) = (Gradients::default(), Gradients::default());
        let loss = module.differentiate(&weights, Some(&bias), sample, (true, 1), &mut one);
        let halves =
            [true, false].map(|first| module.differentiate(&weights, Some(&bias), sample, (first, 2), &mut two));
        assert!((halves.iter().sum::<f64>() - loss).abs() < 1e-9);
        let alike = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(alike(&one.weights, &two.weights) && alike(&one.bias, &two.bias));
    }

    fn relu() -> Module {
        let function = super::super::ActivationFunction::Relu;
        Module { shape: Shape { groups: 1, outputs: 1, features: 1 }, function }
    }
}
