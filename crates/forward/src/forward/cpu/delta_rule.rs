//! The gated delta rule, token by token.

use super::Cpu;
use super::recurrent_heads::{HeadTask, by_head};
use crate::forward::ops::DeltaRule;
use crate::forward::recurrent_state::RecurrentState;
use kvant_numeric::linalg::Precision;
use kvant_numeric::simd::{Loop, dispatch};

/// What is added to the squared length of queries and keys.
const EPS: f32 = 1e-6;

/// See [`crate::forward::ops::Ops::delta_rule`].
pub(super) fn delta_rule(cpu: Cpu, rule: &DeltaRule<'_>, states: &mut [RecurrentState], out: &mut Vec<f32>) {
    by_head(rule.values.layout, rule.keys.layout.width, rule.lengths, states, out, |task| {
        dispatch(cpu.isa, DeltaHead { precision: cpu.precision, rule, task });
    });
}

/// A value head.
struct DeltaHead<'a> {
    precision: Precision,
    rule: &'a DeltaRule<'a>,
    task: HeadTask<'a>,
}

impl Loop for DeltaHead<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let DeltaHead { precision, rule, task: HeadTask { first, head, state, out } } = self;
        let (wide, heads) = (rule.values.layout.width, rule.values.layout.count);
        let (key_dim, key_head) = (rule.keys.layout.width, head / (heads / rule.keys.layout.count));
        let scale = 1.0 / (key_dim as f32).sqrt();
        let (mut query, mut key, mut delta) = (vec![0.0; key_dim], vec![0.0; key_dim], vec![0.0; wide]);
        for (row, out) in (first..).zip(out.chunks_exact_mut(wide)) {
            unit(precision, &rule.queries.from(row, key_head)[..key_dim], &mut query);
            unit(precision, &rule.keys.from(row, key_head)[..key_dim], &mut key);
            query.iter_mut().for_each(|q| *q *= scale);
            let (decay, strength) = (rule.decays[row * heads + head], rule.strengths[row * heads + head]);
            // What the state has stored for this key.
            delta.fill(0.0);
            for (line, k) in state.chunks_exact(wide).zip(&key) {
                delta.iter_mut().zip(line).for_each(|(d, s)| *d += s * k);
            }
            let value = &rule.values.from(row, head)[..wide];
            delta.iter_mut().zip(value).for_each(|(d, v)| *d = (v - decay * *d) * strength);
            out.fill(0.0);
            for ((line, k), q) in state.chunks_exact_mut(wide).zip(&key).zip(&query) {
                for ((s, d), out) in line.iter_mut().zip(&delta).zip(out.iter_mut()) {
                    *s = decay * *s + k * d;
                    *out += q * *s;
                }
            }
            out.iter_mut().for_each(|out| *out = precision.round(*out));
        }
    }
}

/// `x / sqrt(|x|^2 + eps)`. In bfloat16 every step is rounded.
#[inline(always)]
fn unit(precision: Precision, x: &[f32], out: &mut [f32]) {
    let round = |x| precision.round(x);
    let squares: f32 = x.iter().map(|x| round(x * x)).sum();
    let factor = round(1.0 / round(round(squares) + EPS).sqrt());
    out.iter_mut().zip(x).for_each(|(out, x)| *out = round(x * factor));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::cpu::recurrent_heads::testing::{ROWS, assert_sequences_continue, numbers};
    use crate::forward::ops::Ops;
    use crate::forward::{HeadLayout, Heads};

    /// Two key heads of 3, four value heads of 2.
    fn run(cpu: Cpu, rows: std::ops::Range<usize>, lengths: &[usize], states: &mut [RecurrentState]) -> Vec<f32> {
        let (keys, values) = (numbers(ROWS * 12, 1), numbers(ROWS * 8, 2));
        let rates: Vec<f32> = numbers(ROWS * 4, 3).iter().map(|x| 0.5 + x / 4.0).collect();
        let view = |data: &'static [f32], row_width: usize, layout| Heads {
            data: &data[rows.start * row_width..rows.end * row_width],
            row_width,
            layout,
        };
        let (keys, values): (&'static [f32], &'static [f32]) = (keys.leak(), values.leak());
        let part = HeadLayout::packed(2, 3);
        let rates = &rates[rows.start * 4..rows.end * 4];
        let rule = DeltaRule {
            queries: view(keys, 12, part),
            keys: view(keys, 12, HeadLayout { start: 6, ..part }),
            values: view(values, 8, HeadLayout::packed(4, 2)),
            decays: rates,
            strengths: &rates.iter().map(|x| 1.0 - x).collect::<Vec<f32>>(),
            lengths,
        };
        let mut out = Vec::new();
        cpu.delta_rule(&rule, states, &mut out);
        out
    }

    #[test]
    fn continued_sequences_have_the_bits_of_whole_ones_on_every_instruction_set() {
        assert_sequences_continue(run);
    }

    #[test]
    fn state_returns_what_was_written_under_a_key() {
        // With full strength and no decay, a query equal to the key reads its value, whatever was there before.
        let (key, value) = ([3.0, 0.0, 4.0], [2.0, -1.0]);
        let heads = |data, width| Heads { data, row_width: width, layout: HeadLayout::row(width) };
        let rule = DeltaRule {
            queries: heads(&key, 3),
            keys: heads(&key, 3),
            values: heads(&value, 2),
            decays: &[1.0],
            strengths: &[1.0],
            lengths: &[1],
        };
        let mut states = [RecurrentState { tail: Vec::new(), memory: vec![5.0, 1.0, 2.0, 2.0, 7.0, 3.0] }];
        let mut out = Vec::new();
        Cpu::default().delta_rule(&rule, &mut states, &mut out);
        let expected = value.map(|v: f32| v / 3f32.sqrt());
        assert!(out.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{out:?} {expected:?}");
    }
}
