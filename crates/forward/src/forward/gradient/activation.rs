//! The gradient of hidden activations.

use super::super::buffers::Buffers;
use super::super::ops::Xielu;
use super::super::recurrent::softplus;
use super::tape::Var;
use kvant_model::family::Activation;
use kvant_numeric::linalg::{erf, exp, sigmoid, tanh};
use kvant_numeric::simd::{Isa, Loop, dispatch};
use rayon::prelude::*;

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

/// Elements that a thread takes at a time.
const CHUNK: usize = 1 << 14;

/// The gradients of what was read.
pub(super) fn activation_gradient<'v>(
    activation: Activation,
    form: &Form,
    value: impl Fn(Var) -> &'v [f32],
    mut gradient: Vec<f32>,
    buffers: &Buffers,
) -> Vec<(Var, Vec<f32>)> {
    let isa = Isa::best();
    match *form {
        Form::Plain(x) => {
            let chunks = gradient.par_chunks_mut(CHUNK).zip(value(x).par_chunks(CHUNK));
            chunks.for_each(|(gradient, x)| dispatch(isa, Plain { activation, x, gradient }));
            vec![(x, gradient)]
        }
        Form::Pair(gate, up) => {
            let mut of_up = buffers.of_size(gradient.len());
            let read = value(gate).par_chunks(CHUNK).zip(value(up).par_chunks(CHUNK));
            let chunks = gradient.par_chunks_mut(CHUNK).zip(of_up.par_chunks_mut(CHUNK)).zip(read);
            chunks.for_each(|((gradient, of_up), (gate, up))| {
                dispatch(isa, Gated { activation, gate, up, gradient, of_up });
            });
            vec![(gate, gradient), (up, of_up)]
        }
        Form::Halves(rows, width) => {
            let mut out = vec![0.0; value(rows).len()];
            let read = value(rows).par_chunks(width).zip(gradient.par_chunks(width / 2));
            out.par_chunks_mut(width).zip(read).for_each(|(out, (row, own))| {
                let ((of_gate, of_up), (gate, up)) = (out.split_at_mut(width / 2), row.split_at(width / 2));
                of_gate.copy_from_slice(own);
                dispatch(isa, Gated { activation, gate, up, gradient: of_gate, of_up });
            });
            vec![(rows, out)]
        }
        Form::Alternating(rows) => {
            let mut out = vec![0.0; value(rows).len()];
            let read = value(rows).par_chunks(2 * CHUNK).zip(gradient.par_chunks(CHUNK));
            let chunks = out.par_chunks_mut(2 * CHUNK).zip(read);
            chunks.for_each(|(out, (rows, gradient))| {
                let [gate, up] = [0, 1].map(|first| rows.iter().skip(first).step_by(2).copied().collect::<Vec<f32>>());
                let (mut of_gate, mut of_up) = (gradient.to_vec(), vec![0.0; gradient.len()]);
                let (of_gate, of_up) = (&mut of_gate[..], &mut of_up[..]);
                dispatch(isa, Gated { activation, gate: &gate, up: &up, gradient: &mut *of_gate, of_up: &mut *of_up });
                out.chunks_exact_mut(2).zip(of_gate.iter().zip(of_up)).for_each(|(out, (of_gate, of_up))| {
                    (out[0], out[1]) = (*of_gate, *of_up);
                });
            });
            vec![(rows, out)]
        }
    }
}

/// Work with an activation function that the compiler knows, which it can turn into vectors.
trait WithFunction {
    fn run<F: Fn(f32) -> (f32, f32)>(self, function: F);
}

/// Runs with the function that gives the value of an activation and its slope.
#[inline(always)]
fn with_function(activation: Activation, work: impl WithFunction) {
    match activation {
        Activation::Silu | Activation::LimitedSilu => work.run(silu),
        Activation::Gelu => work.run(gelu),
        Activation::GeluTanh => work.run(gelu_tanh),
        Activation::QuickGelu | Activation::ClampedSwiglu => work.run(quick),
        Activation::Relu => work.run(|x| (x.max(0.0), if x > 0.0 { 1.0 } else { 0.0 })),
        Activation::ReluSquared => work.run(|x| (x.max(0.0) * x.max(0.0), 2.0 * x.max(0.0))),
        // Refused before.
        Activation::Xielu | Activation::Unknown => work.run(|_| (f32::NAN, f32::NAN)),
    }
}

/// Turns the gradient of `act(x)` into that of `x`.
struct Plain<'a> {
    activation: Activation,
    x: &'a [f32],
    gradient: &'a mut [f32],
}

impl Loop for Plain<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        with_function(self.activation, self);
    }
}

impl WithFunction for Plain<'_> {
    #[inline(always)]
    fn run<F: Fn(f32) -> (f32, f32)>(self, function: F) {
        self.gradient.iter_mut().zip(self.x).for_each(|(gradient, x)| *gradient *= function(*x).1);
    }
}

/// Turns the gradient of `act(gate) * up` into those of the gate and of `up`.
struct Gated<'a> {
    activation: Activation,
    gate: &'a [f32],
    up: &'a [f32],
    gradient: &'a mut [f32],
    of_up: &'a mut [f32],
}

impl Loop for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        with_function(self.activation, self);
    }
}

impl WithFunction for Gated<'_> {
    #[inline(always)]
    fn run<F: Fn(f32) -> (f32, f32)>(self, function: F) {
        let Gated { activation, gate, up, gradient, of_up } = self;
        let all = gradient.iter_mut().zip(of_up).zip(gate.iter().zip(up));
        match Limits::of(activation) {
            None => all.for_each(|((gradient, of_up), (gate, up))| {
                (*gradient, *of_up) = pair(&function, *gate, *up, *gradient);
            }),
            Some(limits) => all.for_each(|((gradient, of_up), (gate, up))| {
                (*gradient, *of_up) = limits.pair(&function, *gate, *up, *gradient);
            }),
        }
    }
}

/// The gradients of gate and up.
#[inline(always)]
fn pair(function: &impl Fn(f32) -> (f32, f32), gate: f32, up: f32, gradient: f32) -> (f32, f32) {
    let (value, slope) = function(gate);
    (gradient * up * slope, gradient * value)
}

/// Bounds of gated activations: gates above the largest and ups beyond it, on either side, count as that.
#[derive(Clone, Copy)]
struct Limits {
    largest: f32,
    /// What is added to `up`.
    shift: f32,
}

impl Limits {
    fn of(activation: Activation) -> Option<Limits> {
        match activation {
            Activation::ClampedSwiglu => Some(Limits { largest: 7.0, shift: 1.0 }),
            Activation::LimitedSilu => Some(Limits { largest: 10.0, shift: 0.0 }),
            _ => None,
        }
    }

    /// The gradients of gate and up.
    #[inline(always)]
    fn pair(self, function: &impl Fn(f32) -> (f32, f32), gate: f32, up: f32, gradient: f32) -> (f32, f32) {
        let Limits { largest, shift } = self;
        let (value, slope) = function(gate.min(largest));
        let of_gate = if gate < largest { gradient * (up.clamp(-largest, largest) + shift) * slope } else { 0.0 };
        (of_gate, if up.abs() < largest { gradient * value } else { 0.0 })
    }
}

#[inline(always)]
fn silu(x: f32) -> (f32, f32) {
    let open = sigmoid(x);
    (x * open, open + x * open * (1.0 - open))
}

#[inline(always)]
fn gelu(x: f32) -> (f32, f32) {
    let share = 0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
    // The density of the normal distribution.
    (x * share, share + x * 0.398_942_3 * exp(-0.5 * x * x))
}

#[inline(always)]
fn gelu_tanh(x: f32) -> (f32, f32) {
    // The factor is the square root of 2 / pi.
    let turned = tanh(0.797_884_6 * (x + 0.044_715 * x * x * x));
    let inner = 0.797_884_6 * (1.0 + 0.134_145 * x * x);
    (0.5 * x * (1.0 + turned), 0.5 * (1.0 + turned) + 0.5 * x * (1.0 - turned * turned) * inner)
}

/// `x sigmoid(1.702 x)` and its slope.
#[inline(always)]
fn quick(x: f32) -> (f32, f32) {
    let open = sigmoid(1.702 * x);
    (x * open, open + 1.702 * x * open * (1.0 - open))
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
