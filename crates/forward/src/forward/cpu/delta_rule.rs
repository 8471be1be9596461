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
        let lengths = if rule.rounds_lengths { precision } else { Precision::F32 };
        let (mut query, mut key, mut delta) = (vec![0.0; key_dim], vec![0.0; key_dim], vec![0.0; wide]);
        for (row, out) in (first..).zip(out.chunks_exact_mut(wide)) {
            unit(lengths, &rule.queries.from(row, key_head)[..key_dim], &mut query);
            unit(lengths, &rule.keys.from(row, key_head)[..key_dim], &mut key);
            query.iter_mut().for_each(|q| *q *= scale);
            let at = row * heads + head;
            let strength = rule.strengths[at];
            let decay = match rule.by_channel {
                true => {
                    let decays = &rule.decays[at * key_dim..(at + 1) * key_dim];
                    let lines = state.chunks_exact_mut(wide).zip(decays);
                    lines.for_each(|(line, decay)| line.iter_mut().for_each(|s| *s *= decay));
                    1.0
                }
                false => rule.decays[at],
            };
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
            by_channel: false,
            rounds_lengths: true,
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
    fn channels_with_equal_decays_have_the_state_of_their_head() {
        let decays = [0.5f32, 0.75, 0.9, 0.25];
        let run = |by_channel: bool| {
            let repeat = if by_channel { 3 } else { 1 };
            let decays: Vec<f32> = decays.iter().flat_map(|decay| std::iter::repeat_n(*decay, repeat)).collect();
            let (keys, values) = (numbers(12, 1), numbers(8, 2));
            let heads = |data, width, layout| Heads { data, row_width: width, layout };
            let rule = DeltaRule {
                queries: heads(&keys, 6, HeadLayout::packed(2, 3)),
                keys: heads(&keys, 6, HeadLayout::packed(2, 3)),
                values: heads(&values, 4, HeadLayout::packed(2, 2)),
                decays: &decays,
                by_channel,
                rounds_lengths: true,
                strengths: &[0.3, 0.6, 0.9, 0.7],
                lengths: &[2],
            };
            let (mut states, mut out) = ([RecurrentState::default()], Vec::new());
            Cpu::default().delta_rule(&rule, &mut states, &mut out);
            out
        };
        let both = [run(false), run(true)];
        assert!(both[0].iter().zip(&both[1]).all(|(a, b)| (a - b).abs() < 1e-6), "{both:?}");
    }

    #[test]
    fn channels_forget_by_their_own_decay() {
        // The key's first channel is kept and its second forgotten: what was written under the first remains.
        let heads = |data, width| Heads { data, row_width: width, layout: HeadLayout::row(width) };
        let rule = DeltaRule {
            queries: heads(&[1.0, 0.0, 0.0, 1.0], 2),
            keys: heads(&[1.0, 0.0, 1.0, 0.0], 2),
            values: heads(&[3.0, 9.0], 1),
            decays: &[1.0, 0.0, 1.0, 0.0],
            by_channel: true,
            rounds_lengths: true,
            strengths: &[0.0, 0.0],
            lengths: &[2],
        };
        let mut states = [RecurrentState { tail: Vec::new(), memory: vec![2.0, 5.0] }];
        let mut out = Vec::new();
        Cpu::default().delta_rule(&rule, &mut states, &mut out);
        assert_eq!(states[0].memory, [2.0, 0.0]);
        assert!((out[0] - 2.0 / 2f32.sqrt()).abs() < 1e-5 && out[1] == 0.0, "{out:?}");
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
            by_channel: false,
            rounds_lengths: true,
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
