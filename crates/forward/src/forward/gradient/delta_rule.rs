//! The gradient of the gated delta rule.

use super::super::heads::{HeadLayout, Heads};
use super::super::ops::DeltaRule;
use super::attention::spread;
use super::recurrence::{PartOfSequence, follow_back, parts_of_sequences};
use super::tape::Var;
use kvant_numeric::simd::{Isa, Loop, dispatch};
use rayon::prelude::*;

/// What is added to the squared length of queries and keys.
const EPS: f32 = 1e-6;

/// The gated delta rule on a tape.
pub(super) struct DeltaStep {
    /// Queries, keys and values, where `heads` are in its rows of `row_width` elements.
    pub(super) x: Var,
    pub(super) row_width: usize,
    pub(super) heads: [HeadLayout; 3],
    pub(super) decays: Var,
    pub(super) by_channel: bool,
    pub(super) strengths: Var,
    pub(super) lengths: Vec<usize>,
}

/// The gradients of what the rule reads.
pub(super) struct DeltaGradients {
    pub(super) x: Vec<f32>,
    pub(super) decays: Vec<f32>,
    pub(super) strengths: Vec<f32>,
}

/// Gradients of one head of a sequence, a row for each token.
struct Part {
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    decays: Vec<f32>,
    strengths: Vec<f32>,
}

impl DeltaStep {
    /// The rule that operations compute.
    pub(super) fn rule<'v>(&'v self, value: impl Fn(Var) -> &'v [f32]) -> DeltaRule<'v> {
        let [queries, keys, values] =
            self.heads.map(|layout| Heads { data: value(self.x), row_width: self.row_width, layout });
        DeltaRule {
            queries,
            keys,
            values,
            decays: value(self.decays),
            by_channel: self.by_channel,
            rounds_lengths: !self.by_channel,
            strengths: value(self.strengths),
            lengths: &self.lengths,
        }
    }

    /// The gradients, for that of the outputs: heads side by side, a row for each token.
    pub(super) fn backward<'v>(&'v self, value: impl Fn(Var) -> &'v [f32], gradient: &[f32]) -> DeltaGradients {
        let rule = self.rule(value);
        let heads = rule.values.layout.count;
        let tasks = parts_of_sequences(&self.lengths, heads);
        let isa = Isa::best();
        let run = |&task: &PartOfSequence| dispatch(isa, DeltaHead { rule: &rule, gradient, task });
        let parts: Vec<Part> = tasks.par_iter().map(run).collect();
        let mut out = DeltaGradients {
            x: vec![0.0; rule.queries.data.len()],
            decays: vec![0.0; rule.decays.len()],
            strengths: vec![0.0; rule.strengths.len()],
        };
        let shared = heads / rule.keys.layout.count;
        for (&PartOfSequence { first, rows, part: head }, part) in tasks.iter().zip(&parts) {
            spread(&part.queries, &rule.queries, first, head / shared, &mut out.x);
            spread(&part.keys, &rule.keys, first, head / shared, &mut out.x);
            spread(&part.values, &rule.values, first, head, &mut out.x);
            let decays = part.decays.len() / rows;
            for row in 0..rows {
                let at = (first + row) * heads + head;
                out.strengths[at] = part.strengths[row];
                out.decays[at * decays..(at + 1) * decays].copy_from_slice(&part.decays[row * decays..][..decays]);
            }
        }
        out
    }
}

/// A value head of a sequence.
struct DeltaHead<'t, 'v> {
    rule: &'t DeltaRule<'v>,
    gradient: &'t [f32],
    task: PartOfSequence,
}

/// What a token does to the state `[key channels, value channels]`: with `S' = diag(decay) S` and `d = strength (v - S'^T k)`, it becomes
/// `S' + k d^T`, of which the query reads `S^T q`.
#[derive(Default)]
struct Token {
    query: Vec<f32>,
    key: Vec<f32>,
    /// What [`unit`] has divided them by.
    lengths: [f32; 2],
    /// `v - S'^T k`.
    missing: Vec<f32>,
    /// The state before it, decayed.
    decayed: Vec<f32>,
}

impl DeltaHead<'_, '_> {
    fn key_head(&self) -> usize {
        self.task.part / (self.rule.values.layout.count / self.rule.keys.layout.count)
    }

    fn decays(&self, row: usize) -> &[f32] {
        let at = row * self.rule.values.layout.count + self.task.part;
        let count = if self.rule.by_channel { self.rule.keys.layout.width } else { 1 };
        &self.rule.decays[at * count..(at + 1) * count]
    }

    fn strength(&self, row: usize) -> f32 {
        self.rule.strengths[row * self.rule.values.layout.count + self.task.part]
    }

    /// Moves the state by a token.
    #[inline(always)]
    fn token(&self, row: usize, state: &mut [f32]) -> Token {
        let DeltaHead { rule, .. } = self;
        let (width, wide) = (rule.keys.layout.width, rule.values.layout.width);
        let mut token = Token { missing: rule.values.from(row, self.task.part)[..wide].to_vec(), ..Token::default() };
        let (query, key) = (rule.queries.from(row, self.key_head()), rule.keys.from(row, self.key_head()));
        (token.query, token.lengths[0]) = unit(&query[..width], 1.0 / (width as f32).sqrt());
        (token.key, token.lengths[1]) = unit(&key[..width], 1.0);
        let decays = self.decays(row);
        for (index, (line, k)) in state.chunks_exact_mut(wide).zip(&token.key).enumerate() {
            let decay = decays[index % decays.len()];
            for (s, missing) in line.iter_mut().zip(&mut token.missing) {
                *s *= decay;
                *missing -= *s * k;
            }
        }
        token.decayed = state.to_vec();
        let strength = self.strength(row);
        for (line, k) in state.chunks_exact_mut(wide).zip(&token.key) {
            line.iter_mut().zip(&token.missing).for_each(|(s, missing)| *s += k * strength * missing);
        }
        token
    }

    /// Follows a token back. `state` is that behind it, `before` that before it, and `slopes` the gradient of `state`, which becomes that of
    /// `before`.
    #[inline(always)]
    fn back(&self, row: usize, token: &Token, [before, state]: [&[f32]; 2], slopes: &mut [f32], part: &mut Part) {
        let (width, wide, heads) =
            (self.rule.keys.layout.width, self.rule.values.layout.width, self.rule.values.layout.count);
        let out = &self.gradient[(row * heads + self.task.part) * wide..][..wide];
        let strength = self.strength(row);
        let at = row - self.task.first;
        let (mut query, mut key, mut missing) = (vec![0.0; width], vec![0.0; width], vec![0.0; wide]);
        for (channel, (slopes, state)) in slopes.chunks_exact_mut(wide).zip(state.chunks_exact(wide)).enumerate() {
            let (q, k) = (token.query[channel], token.key[channel]);
            for index in 0..wide {
                query[channel] += state[index] * out[index];
                slopes[index] += q * out[index];
                key[channel] += slopes[index] * token.missing[index];
                missing[index] += slopes[index] * k;
            }
            key[channel] *= strength;
        }
        part.strengths[at] = missing.iter().zip(&token.missing).map(|(slope, value)| slope * value).sum();
        missing.iter_mut().for_each(|slope| *slope *= strength);
        part.values[at * wide..(at + 1) * wide].copy_from_slice(&missing);
        let decays = self.decays(row);
        let of_decays = &mut part.decays[at * decays.len()..(at + 1) * decays.len()];
        let lines = slopes.chunks_exact_mut(wide).zip(token.decayed.chunks_exact(wide)).zip(before.chunks_exact(wide));
        for (channel, ((slopes, decayed), before)) in lines.enumerate() {
            let (k, mut sum, mut of_key) = (token.key[channel], 0.0, 0.0);
            let decay = decays[channel % decays.len()];
            for index in 0..wide {
                of_key += decayed[index] * missing[index];
                slopes[index] -= k * missing[index];
                sum += slopes[index] * before[index];
                slopes[index] *= decay;
            }
            key[channel] -= of_key;
            of_decays[channel % decays.len()] += sum;
        }
        let scale = 1.0 / (width as f32).sqrt();
        unit_back(&token.query, scale, token.lengths[0], &mut query);
        unit_back(&token.key, 1.0, token.lengths[1], &mut key);
        part.queries[at * width..(at + 1) * width].copy_from_slice(&query);
        part.keys[at * width..(at + 1) * width].copy_from_slice(&key);
    }
}

impl Loop for DeltaHead<'_, '_> {
    type Output = Part;

    #[inline(always)]
    fn run(self) -> Part {
        let (width, wide) = (self.rule.keys.layout.width, self.rule.values.layout.width);
        let decays = if self.rule.by_channel { width } else { 1 };
        let rows = self.task.rows;
        let zeros = |count: usize| vec![0.0; rows * count];
        let mut part = Part {
            queries: zeros(width),
            keys: zeros(width),
            values: zeros(wide),
            decays: zeros(decays),
            strengths: zeros(1),
        };
        let mut slopes = vec![0.0; width * wide];
        let forward = |row: usize, state: &mut [f32]| self.token(self.task.first + row, state);
        let back = |row: usize, token: Token, states: [&[f32]; 2]| {
            self.back(self.task.first + row, &token, states, &mut slopes, &mut part);
        };
        follow_back(rows, width * wide, forward, back);
        part
    }
}

/// `scale x / sqrt(|x|^2 + eps)`, and that root.
#[inline(always)]
fn unit(x: &[f32], scale: f32) -> (Vec<f32>, f32) {
    let length = (x.iter().map(|x| x * x).sum::<f32>() + EPS).sqrt();
    (x.iter().map(|x| x * scale / length).collect(), length)
}

/// From the gradient of what [`unit`] gave, `y`, to that of what it read: `(scale dy - y (y dy) / scale) / length`.
#[inline(always)]
fn unit_back(y: &[f32], scale: f32, length: f32, gradient: &mut [f32]) {
    let along = y.iter().zip(gradient.iter()).map(|(y, dy)| y * dy).sum::<f32>() / scale;
    gradient.iter_mut().zip(y).for_each(|(dy, y)| *dy = (scale * *dy - y * along) / length);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::cpu::Cpu;
    use crate::forward::ops::Ops;
    use crate::forward::recurrent_state::RecurrentState;

    /// Longer than a span, and a sequence behind it.
    const LENGTHS: [usize; 2] = [super::super::recurrence::SPAN + 5, 3];

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| (((i + seed * 1013) * 7919) % 1009) as f32 / 504.5 - 1.0).collect()
    }

    /// Two key heads of 3, four value heads of 2.
    fn check(by_channel: bool) {
        let rows: usize = LENGTHS.iter().sum();
        let decays = if by_channel { 12 } else { 4 };
        let rates =
            |count: usize, seed: usize| numbers(count, seed).iter().map(|x| 0.6 + 0.3 * x).collect::<Vec<f32>>();
        let inputs = [numbers(rows * 20, 1), rates(rows * decays, 2), rates(rows * 4, 3)];
        // The numbers of variables on a tape without one.
        let [x, of_decays, of_strengths] = super::super::tape::Var::first();
        let heads = |start: usize, count: usize, width: usize| HeadLayout { start, ..HeadLayout::packed(count, width) };
        let step = DeltaStep {
            x,
            row_width: 20,
            heads: [heads(0, 2, 3), heads(6, 2, 3), heads(12, 4, 2)],
            decays: of_decays,
            by_channel,
            strengths: of_strengths,
            lengths: LENGTHS.to_vec(),
        };
        let along = numbers(rows * 8, 4);
        let value = |inputs: &[Vec<f32>; 3]| {
            let which = |var| [x, of_decays, of_strengths].iter().position(|own| *own == var).unwrap();
            let (mut states, mut out) = (vec![RecurrentState::default(); 2], Vec::new());
            Cpu::default().delta_rule(&step.rule(|var| &inputs[which(var)]), &mut states, &mut out);
            out.iter().zip(&along).map(|(out, along)| f64::from(*out) * f64::from(*along)).sum::<f64>()
        };
        let which = |var| [x, of_decays, of_strengths].iter().position(|own| *own == var).unwrap();
        let found = step.backward(|var| &inputs[which(var)], &along);
        for (index, gradient) in [found.x, found.decays, found.strengths].iter().enumerate() {
            let direction = numbers(gradient.len(), 7 + index);
            let moved = |step: f32| {
                let mut inputs = inputs.clone();
                inputs[index].iter_mut().zip(&direction).for_each(|(value, along)| *value += step * along);
                value(&inputs)
            };
            let difference = (moved(1e-3) - moved(-1e-3)) / 2e-3;
            let product: f64 = gradient.iter().zip(&direction).map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
            assert!((product - difference).abs() < 5e-3 * difference.abs().max(0.5), "{index}: {product} {difference}");
        }
    }

    #[test]
    fn gradients_match_differences_of_heads_that_decay() {
        check(false);
    }

    #[test]
    fn gradients_match_differences_of_channels_that_decay() {
        check(true);
    }
}
