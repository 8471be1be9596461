//! Activations on slices, the gate's product fused in.

use super::{CHUNK, Cpu};
use crate::forward::ops::{Hidden, Xielu};
use kvant_model::family::Activation;
use kvant_numeric::linalg::{Precision, erf, sigmoid, tanh};
use kvant_numeric::simd::{Loop, dispatch};
use rayon::prelude::*;

/// See [`crate::forward::ops::Ops::activate`].
pub(super) fn activate(cpu: Cpu, activation: Activation, hidden: Hidden<'_>, out: &mut Vec<f32>) {
    let Cpu { isa, precision, .. } = cpu;
    let pairs =
        |gate: &[f32], up: &[f32], out: &mut [f32]| dispatch(isa, Gated { activation, precision, gate, up, out });
    out.resize(hidden.elements(), 0.0);
    match hidden {
        Hidden::Plain(x) => {
            let chunks = out.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK));
            chunks.for_each(|(out, x)| dispatch(isa, Plain { activation, precision, x, out }));
        }
        Hidden::Pair { gate, up } => {
            let chunks = out.par_chunks_mut(CHUNK).zip(gate.par_chunks(CHUNK).zip(up.par_chunks(CHUNK)));
            chunks.for_each(|(out, (gate, up))| pairs(gate, up, out));
        }
        Hidden::Halves { rows, width } => {
            out.par_chunks_mut(width / 2).zip(rows.par_chunks(width)).for_each(|(out, row)| {
                let (gate, up) = row.split_at(width / 2);
                pairs(gate, up, out);
            });
        }
        Hidden::Alternating(x) => {
            let chunks = out.par_chunks_mut(CHUNK).zip(x.par_chunks(2 * CHUNK));
            chunks.for_each(|(out, x)| dispatch(isa, Alternating { activation, precision, x, out }));
        }
    }
}

/// See [`crate::forward::ops::Ops::xielu`].
pub(super) fn xielu(cpu: Cpu, parameters: Xielu, x: &[f32], out: &mut Vec<f32>) {
    let Cpu { isa, precision, .. } = cpu;
    let softplus = |x: f32| precision.round(x.max(0.0) + (-x.abs()).exp().ln_1p());
    let positive = softplus(parameters.alpha_p);
    let negative = precision.round(parameters.beta + softplus(parameters.alpha_n));
    out.resize(x.len(), 0.0);
    let chunks = out.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK));
    chunks.for_each(|(out, x)| {
        dispatch(isa, XieluOn { precision, positive, negative, beta: parameters.beta, eps: parameters.eps, x, out });
    });
}

struct XieluOn<'a> {
    precision: Precision,
    positive: f32,
    negative: f32,
    beta: f32,
    eps: f32,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Loop for XieluOn<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let XieluOn { precision, positive, negative, beta, eps, x, out } = self;
        let round = |x| precision.round(x);
        each(x, out, |x| {
            let line = round(beta * x);
            let above = round(round(round(positive * x) * x) + line);
            // `exp(x) - 1` without cancellation.
            let half = tanh(0.5 * x.min(eps));
            let exponential = round(2.0 * half / (1.0 - half));
            let below = round(round(round(exponential - x) * negative) + line);
            if x > 0.0 { above } else { below }
        });
    }
}

struct Plain<'a> {
    activation: Activation,
    precision: Precision,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Loop for Plain<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Plain { activation, precision, x, out } = self;
        let round = |x| precision.round(x);
        match activation {
            Activation::Silu => each(x, out, |x| round(silu(x))),
            Activation::Gelu => each(x, out, |x| round(gelu(x))),
            Activation::GeluTanh => each(x, out, |x| round(gelu_tanh(x))),
            Activation::QuickGelu => each(x, out, |x| round(x * round(sigmoid(round(1.702 * x))))),
            Activation::Relu => each(x, out, |x| x.max(0.0)),
            Activation::ReluSquared => each(x, out, |x| round(x.max(0.0) * x.max(0.0))),
            // Refused when the model was opened, or computed elsewhere.
            Activation::ClampedSwiglu | Activation::LimitedSilu | Activation::Xielu | Activation::Unknown => {
                out.fill(f32::NAN);
            }
        }
    }
}

#[inline(always)]
fn each(x: &[f32], out: &mut [f32], f: impl Fn(f32) -> f32) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = f(*x);
    }
}

struct Gated<'a> {
    activation: Activation,
    precision: Precision,
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Loop for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Gated { activation, precision, gate, up, out } = self;
        if activation == Activation::ClampedSwiglu {
            for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                *out = clamped_swiglu(precision, *gate, *up);
            }
            return;
        }
        if activation == Activation::LimitedSilu {
            for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                *out = precision.round(precision.round(silu(gate.min(10.0))) * up.clamp(-10.0, 10.0));
            }
            return;
        }
        Plain { activation, precision, x: gate, out: &mut *out }.run();
        for (out, up) in out.iter_mut().zip(up) {
            *out = precision.round(*out * *up);
        }
    }
}

struct Alternating<'a> {
    activation: Activation,
    precision: Precision,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Loop for Alternating<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let gates: Vec<f32> = self.x.iter().copied().step_by(2).collect();
        let ups: Vec<f32> = self.x.iter().copied().skip(1).step_by(2).collect();
        let Alternating { activation, precision, out, .. } = self;
        Gated { activation, precision, gate: &gates, up: &ups, out }.run();
    }
}

#[inline(always)]
pub(super) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

#[inline(always)]
fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    // The factor is the square root of 2 / pi.
    0.5 * x * (1.0 + tanh(0.797_884_6 * (x + 0.044_715 * x * x * x)))
}

#[inline(always)]
fn clamped_swiglu(precision: Precision, gate: f32, up: f32) -> f32 {
    let round = |x| precision.round(x);
    let gate = gate.min(7.0);
    let gated = round(gate * round(sigmoid(round(1.702 * gate))));
    round(round(up.clamp(-7.0, 7.0) + 1.0) * gated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_numeric::simd::Isa;

    #[test]
    fn gated_activation_forms_agree() {
        let gate: Vec<f32> = (0..24).map(|i| i as f32 * 0.7 - 8.0).collect();
        let up: Vec<f32> = (0..24).map(|i| 9.0 - i as f32 * 0.8).collect();
        let halves: Vec<f32> = gate.chunks(8).zip(up.chunks(8)).flat_map(|(g, u)| [g, u].concat()).collect();
        let alternating: Vec<f32> = gate.iter().zip(&up).flat_map(|(g, u)| [*g, *u]).collect();
        for activation in [Activation::Silu, Activation::Gelu, Activation::ClampedSwiglu, Activation::LimitedSilu] {
            for precision in [Precision::F32, Precision::Bf16] {
                let (best, baseline) =
                    (Cpu::with_precision(precision), Cpu { isa: Isa::BASELINE, ..Cpu::with_precision(precision) });
                let (mut a, mut b, mut c) = (vec![], vec![], vec![]);
                activate(best, activation, Hidden::Pair { gate: &gate, up: &up }, &mut a);
                activate(baseline, activation, Hidden::Halves { rows: &halves, width: 16 }, &mut b);
                activate(best, activation, Hidden::Alternating(&alternating), &mut c);
                assert_eq!((&a, &a), (&b, &c));
                assert!(a.iter().all(|x| precision.round(*x) == *x));
            }
        }
    }

    #[test]
    fn xielu_matches_its_formula() {
        let parameters = Xielu { alpha_p: 0.3, alpha_n: -0.7, beta: 0.5, eps: -1e-6 };
        let softplus = |x: f64| x.exp().ln_1p();
        let (positive, negative) = (softplus(0.3), 0.5 + softplus(-0.7));
        let x: Vec<f32> = (0..200).map(|i| (i as f32 - 120.0) * 0.05).chain([-1e-7, -1e-3, 0.0]).collect();
        for isa in Isa::available() {
            let mut out = vec![];
            xielu(Cpu::new(isa), parameters, &x, &mut out);
            for (x, y) in x.iter().map(|x| f64::from(*x)).zip(&out) {
                let above = positive * x * x + 0.5 * x;
                let below = (x.min(-1e-6).exp_m1() - x) * negative + 0.5 * x;
                let expected = if x > 0.0 { above } else { below };
                assert!((f64::from(*y) - expected).abs() < 1e-6 * expected.abs().max(1.0), "{x}: {y} {expected}");
            }
        }
    }

    #[test]
    fn activation_functions_have_their_known_values() {
        let known = [
            (Activation::Silu, 0.731_058_6),
            (Activation::Gelu, 0.841_344_7),
            (Activation::GeluTanh, 0.841_192),
            (Activation::QuickGelu, 0.845_795_8),
            (Activation::Relu, 1.0),
            (Activation::ReluSquared, 1.0),
        ];
        for (activation, expected) in known {
            let mut out = vec![];
            activate(Cpu::default(), activation, Hidden::Plain(&[1.0, 0.0]), &mut out);
            assert!((out[0] - expected).abs() < 1e-6 && out[1] == 0.0, "{activation:?} {out:?}");
        }
    }
}
