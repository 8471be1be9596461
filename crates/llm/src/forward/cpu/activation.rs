//! Activations on slices, the gate's product fused in.

use super::CHUNK;
use crate::family::Activation;
use crate::forward::ops::Hidden;
use kvant_numeric::linalg::{erf, sigmoid, tanh};
use kvant_numeric::simd::{Isa, Loop, dispatch};
use rayon::prelude::*;

/// See [`crate::forward::ops::Ops::activate`].
pub(super) fn activate(isa: Isa, activation: Activation, hidden: Hidden<'_>, out: &mut Vec<f32>) {
    let pairs = |gate: &[f32], up: &[f32], out: &mut [f32]| dispatch(isa, Gated { activation, gate, up, out });
    match hidden {
        Hidden::Plain(x) => {
            out.resize(x.len(), 0.0);
            let chunks = out.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK));
            chunks.for_each(|(out, x)| dispatch(isa, Plain { activation, x, out }));
        }
        Hidden::Pair { gate, up } => {
            out.resize(gate.len(), 0.0);
            let chunks = out.par_chunks_mut(CHUNK).zip(gate.par_chunks(CHUNK).zip(up.par_chunks(CHUNK)));
            chunks.for_each(|(out, (gate, up))| pairs(gate, up, out));
        }
        Hidden::Halves { rows, width } => {
            out.resize(rows.len() / 2, 0.0);
            out.par_chunks_mut(width / 2).zip(rows.par_chunks(width)).for_each(|(out, row)| {
                let (gate, up) = row.split_at(width / 2);
                pairs(gate, up, out);
            });
        }
        Hidden::Alternating(x) => {
            out.resize(x.len() / 2, 0.0);
            let chunks = out.par_chunks_mut(CHUNK).zip(x.par_chunks(2 * CHUNK));
            chunks.for_each(|(out, x)| dispatch(isa, Alternating { activation, x, out }));
        }
    }
}

struct Plain<'a> {
    activation: Activation,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Loop for Plain<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Plain { x, out, .. } = self;
        match self.activation {
            Activation::Silu => each(x, out, silu),
            Activation::Gelu => each(x, out, gelu),
            Activation::GeluTanh => each(x, out, gelu_tanh),
            Activation::QuickGelu => each(x, out, quick_gelu),
            Activation::Relu => each(x, out, |x| x.max(0.0)),
            Activation::ReluSquared => each(x, out, |x| x.max(0.0) * x.max(0.0)),
            // Refused when the model was opened.
            Activation::ClampedSwiglu | Activation::Unknown => out.fill(f32::NAN),
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
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Loop for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        if self.activation == Activation::ClampedSwiglu {
            for ((out, gate), up) in self.out.iter_mut().zip(self.gate).zip(self.up) {
                *out = clamped_swiglu(*gate, *up);
            }
            return;
        }
        Plain { activation: self.activation, x: self.gate, out: &mut *self.out }.run();
        for (out, up) in self.out.iter_mut().zip(self.up) {
            *out *= *up;
        }
    }
}

struct Alternating<'a> {
    activation: Activation,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Loop for Alternating<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let gates: Vec<f32> = self.x.iter().copied().step_by(2).collect();
        let ups: Vec<f32> = self.x.iter().copied().skip(1).step_by(2).collect();
        Gated { activation: self.activation, gate: &gates, up: &ups, out: self.out }.run();
    }
}

#[inline(always)]
fn silu(x: f32) -> f32 {
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
fn quick_gelu(x: f32) -> f32 {
    x * sigmoid(1.702 * x)
}

#[inline(always)]
fn clamped_swiglu(gate: f32, up: f32) -> f32 {
    let gate = gate.min(7.0);
    (up.clamp(-7.0, 7.0) + 1.0) * gate * sigmoid(1.702 * gate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_gated_network_gives_the_same() {
        let gate: Vec<f32> = (0..24).map(|i| i as f32 * 0.7 - 8.0).collect();
        let up: Vec<f32> = (0..24).map(|i| 9.0 - i as f32 * 0.8).collect();
        let halves: Vec<f32> = gate.chunks(8).zip(up.chunks(8)).flat_map(|(g, u)| [g, u].concat()).collect();
        let alternating: Vec<f32> = gate.iter().zip(&up).flat_map(|(g, u)| [*g, *u]).collect();
        for activation in [Activation::Silu, Activation::Gelu, Activation::ClampedSwiglu] {
            let (mut a, mut b, mut c) = (vec![], vec![], vec![]);
            activate(Isa::best(), activation, Hidden::Pair { gate: &gate, up: &up }, &mut a);
            activate(Isa::BASELINE, activation, Hidden::Halves { rows: &halves, width: 16 }, &mut b);
            activate(Isa::best(), activation, Hidden::Alternating(&alternating), &mut c);
            assert_eq!((&a, &a), (&b, &c));
        }
    }

    #[test]
    fn functions_take_their_known_values() {
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
            activate(Isa::best(), activation, Hidden::Plain(&[1.0, 0.0]), &mut out);
            assert!((out[0] - expected).abs() < 1e-6 && out[1] == 0.0, "{activation:?} {out:?}");
        }
    }
}
