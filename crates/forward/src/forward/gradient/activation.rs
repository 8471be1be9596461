//! The gradient of hidden activations.

use super::super::ops::Xielu;
use super::super::recurrent::softplus;
use super::tape::Var;
use kvant_model::family::Activation;
use kvant_numeric::linalg::{erf, sigmoid, tanh};

/// The layers that an activation reads.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    /// `act(x)`.
    Plain(Var),
    /// `act(gate) * up`.
    Pair(Var, Var),
    /// The same, each row of so many elements being the gates, then the ups.
    Halves(Var, usize),
    /// The same, gates and ups alternating.
    Alternating(Var),
}

/// The gradients of what was read.
pub(super) fn activation_gradient<'v>(
    activation: Activation,
    form: &Form,
    value: impl Fn(Var) -> &'v [f32],
    gradient: &[f32],
) -> Vec<(Var, Vec<f32>)> {
    let pair = |(gate, up): (f32, f32), gradient: f32| gated(activation, gate, up, gradient);
    match *form {
        Form::Plain(x) => {
            let slopes = value(x).iter().zip(gradient).map(|(x, gradient)| gradient * function(activation, *x).1);
            vec![(x, slopes.collect())]
        }
        Form::Pair(gate, up) => {
            let pairs = value(gate).iter().copied().zip(value(up).iter().copied());
            let (gates, ups) = pairs.zip(gradient).map(|(both, gradient)| pair(both, *gradient)).unzip();
            vec![(gate, gates), (up, ups)]
        }
        Form::Halves(rows, width) => {
            let half = width / 2;
            let mut out = vec![0.0; value(rows).len()];
            let all = out.chunks_exact_mut(width).zip(value(rows).chunks_exact(width)).zip(gradient.chunks_exact(half));
            for ((out, row), gradient) in all {
                for index in 0..half {
                    (out[index], out[half + index]) = pair((row[index], row[half + index]), gradient[index]);
                }
            }
            vec![(rows, out)]
        }
        Form::Alternating(rows) => {
            let mut out = vec![0.0; value(rows).len()];
            let all = out.chunks_exact_mut(2).zip(value(rows).chunks_exact(2)).zip(gradient);
            all.for_each(|((out, row), gradient)| (out[0], out[1]) = pair((row[0], row[1]), *gradient));
            vec![(rows, out)]
        }
    }
}

/// The gradients of gate and up.
fn gated(activation: Activation, gate: f32, up: f32, gradient: f32) -> (f32, f32) {
    if activation == Activation::ClampedSwiglu {
        let (clipped, raised) = (gate.min(7.0), up.clamp(-7.0, 7.0) + 1.0);
        let (value, slope) = quick(clipped);
        let of_gate = if gate < 7.0 { gradient * raised * slope } else { 0.0 };
        let of_up = if up.abs() < 7.0 { gradient * value } else { 0.0 };
        return (of_gate, of_up);
    }
    if activation == Activation::LimitedSilu {
        let (value, slope) = function(Activation::Silu, gate.min(10.0));
        let of_gate = if gate < 10.0 { gradient * up.clamp(-10.0, 10.0) * slope } else { 0.0 };
        return (of_gate, if up.abs() < 10.0 { gradient * value } else { 0.0 });
    }
    let (value, slope) = function(activation, gate);
    (gradient * up * slope, gradient * value)
}

/// `x sigmoid(1.702 x)` and its slope.
fn quick(x: f32) -> (f32, f32) {
    let open = sigmoid(1.702 * x);
    (x * open, open + 1.702 * x * open * (1.0 - open))
}

/// An activation function and its slope.
fn function(activation: Activation, x: f32) -> (f32, f32) {
    match activation {
        Activation::Silu => {
            let open = sigmoid(x);
            (x * open, open + x * open * (1.0 - open))
        }
        Activation::Gelu => {
            let share = 0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
            // The density of the normal distribution.
            (x * share, share + x * 0.398_942_3 * (-0.5 * x * x).exp())
        }
        Activation::GeluTanh => {
            // The factor is the square root of 2 / pi.
            let turned = tanh(0.797_884_6 * (x + 0.044_715 * x * x * x));
            let inner = 0.797_884_6 * (1.0 + 0.134_145 * x * x);
            (0.5 * x * (1.0 + turned), 0.5 * (1.0 + turned) + 0.5 * x * (1.0 - turned * turned) * inner)
        }
        Activation::QuickGelu => quick(x),
        Activation::Relu => (x.max(0.0), if x > 0.0 { 1.0 } else { 0.0 }),
        Activation::ReluSquared => (x.max(0.0) * x.max(0.0), 2.0 * x.max(0.0)),
        // Refused before.
        Activation::ClampedSwiglu | Activation::LimitedSilu | Activation::Xielu | Activation::Unknown => {
            (f32::NAN, f32::NAN)
        }
    }
}

/// The slopes of xIELU: of `p x^2 + b x` above 0, else of `n (exp(min(x, eps)) - 1 - x) + b x`.
pub(super) fn xielu_slopes(parameters: Xielu, x: &[f32]) -> Vec<f32> {
    let Xielu { alpha_p, alpha_n, beta, eps } = parameters;
    let (positive, negative) = (softplus(alpha_p), beta + softplus(alpha_n));
    let slope = |x: f32| match x > 0.0 {
        true => 2.0 * positive * x + beta,
        false => negative * (if x < eps { x.exp() } else { 0.0 } - 1.0) + beta,
    };
    x.iter().map(|x| slope(*x)).collect()
}
