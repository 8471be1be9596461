//! The gradient of attention. Its weights are computed again, for one key head of one sequence at a time.

use super::super::blueprint::HeadBiases;
use super::super::heads::{HeadLayout, Heads};
use super::super::ops::Attention;
use super::tape::Var;
use kvant_numeric::linalg::{LearningPrecision, Matrix, MatrixMut, Threads, exp, fold_in_lanes, tanh};
use kvant_numeric::simd::{Isa, Loop, dispatch};
use rayon::prelude::*;

/// Attention on a tape.
pub(super) struct AttentionStep {
    /// Queries, keys and values: the value, elements of its rows, the heads in them.
    pub(super) heads: [(Var, usize, HeadLayout); 3],
    pub(super) length: usize,
    /// Keys of a sequence, where they are of what an encoder gives.
    pub(super) foreign: Option<usize>,
    pub(super) scale: f32,
    pub(super) cap: Option<f32>,
    pub(super) window: Option<usize>,
    pub(super) ahead: usize,
    pub(super) ends: Vec<usize>,
    pub(super) chunk: Option<usize>,
    pub(super) sinks: Vec<f32>,
    pub(super) biases: HeadBiases,
}

/// Gradients of the heads that a key head serves, rows of one head after another.
struct Part {
    queries: Vec<Vec<f32>>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl AttentionStep {
    /// The attention that operations compute.
    pub(super) fn attention<'v>(&'v self, value: impl Fn(Var) -> &'v [f32]) -> Attention<'v> {
        let [queries, keys, values] =
            self.heads.map(|(var, row_width, layout)| Heads { data: value(var), row_width, layout });
        Attention {
            queries,
            keys,
            values,
            length: self.length,
            past: 0,
            foreign: self.foreign,
            scale: self.scale,
            cap: self.cap,
            window: self.window,
            ahead: self.ahead,
            ends: &self.ends,
            chunk: self.chunk,
            sinks: &self.sinks,
            bias: self.biases.as_score_bias(),
            index: None,
            further: None,
        }
    }

    /// The gradients of queries, keys and values, in rows as they are.
    pub(super) fn backward<'v>(
        &'v self,
        value: impl Fn(Var) -> &'v [f32],
        gradient: &[f32],
        precision: LearningPrecision,
    ) -> [Vec<f32>; 3] {
        let attention = self.attention(value);
        let Attention { queries, keys, values, length, .. } = attention.clone();
        let rows = queries.data.len() / queries.row_width;
        let keys_length = attention.key_count();
        let key_heads = keys.layout.count;
        let shared = queries.layout.count / key_heads;
        let tasks = 0..rows / length * key_heads;
        let parts: Vec<Part> = tasks
            .into_par_iter()
            .map(|task| {
                let (sequence, key_head) = (task / key_heads, task % key_heads);
                let (first, first_key) = (sequence * length, sequence * keys_length);
                Task { attention: &attention, precision, first, first_key, key_head }.run(gradient)
            })
            .collect();
        let mut out = [&queries, &keys, &values].map(|heads| vec![0.0; heads.data.len()]);
        for (task, part) in parts.iter().enumerate() {
            let (first, key_head) = (task / key_heads * length, task % key_heads);
            for (index, own) in part.queries.iter().enumerate() {
                spread(own, &queries, first, key_head * shared + index, &mut out[0]);
            }
            let first_key = task / key_heads * keys_length;
            spread(&part.keys, &keys, first_key, key_head, &mut out[1]);
            spread(&part.values, &values, first_key, key_head, &mut out[2]);
        }
        out
    }
}

/// Adds the rows of a head where they stand.
pub(super) fn spread(rows: &[f32], heads: &Heads<'_>, first: usize, head: usize, out: &mut [f32]) {
    let HeadLayout { start, step, width, .. } = heads.layout;
    for (index, row) in rows.chunks_exact(width).enumerate() {
        let at = (first + index) * heads.row_width + start + head * step;
        out[at..at + width].iter_mut().zip(row).for_each(|(out, value)| *out += value);
    }
}

/// A key head of a sequence.
struct Task<'t, 'v> {
    attention: &'t Attention<'v>,
    precision: LearningPrecision,
    /// The rows of the sequence's first query and key.
    first: usize,
    first_key: usize,
    key_head: usize,
}

impl Task<'_, '_> {
    /// Rows of a head one after another, times `factor`.
    fn rows(&self, heads: &Heads<'_>, first: usize, rows: usize, head: usize, factor: f32) -> Vec<f32> {
        let all = heads.from(first, head).chunks(heads.row_width).take(rows);
        all.flat_map(|row| &row[..heads.layout.width]).map(|value| value * factor).collect()
    }

    fn run(&self, gradient: &[f32]) -> Part {
        let Attention { queries, keys, values, length, scale, .. } = self.attention;
        let (length, precision) = (*length, self.precision);
        let (width, wide) = (queries.layout.width, values.layout.width);
        let shared = queries.layout.count / keys.layout.count;
        let row_width = queries.layout.count * wide;
        let count = self.attention.key_count();
        let k = self.rows(keys, self.first_key, count, self.key_head, 1.0);
        let v = self.rows(values, self.first_key, count, self.key_head, 1.0);
        let (k, v) = (Matrix::new(&k, count, width, width), Matrix::new(&v, count, wide, wide));
        let mut part = Part { queries: Vec::new(), keys: vec![0.0; count * width], values: vec![0.0; count * wide] };
        let (mut weights, mut slopes) = (vec![0.0; length * count], vec![0.0; length * count]);
        for head in self.key_head * shared..(self.key_head + 1) * shared {
            // Scores and the gradients of keys have the scale as a factor, as queries have it here.
            let q = self.rows(queries, self.first, length, head, *scale);
            let q = Matrix::new(&q, length, width, width);
            let out = Matrix::new(&gradient[self.first * row_width + head * wide..], length, wide, row_width);
            precision.outputs(MatrixMut::new(&mut weights, length, count, count), q, k, Threads::One);
            precision.outputs(MatrixMut::new(&mut slopes, length, count, count), out, v, Threads::One);
            dispatch(Isa::best(), Soften { task: self, head, weights: &mut weights, slopes: &mut slopes });
            let [weights, slopes] = [&weights, &slopes].map(|data| Matrix::new(data, length, count, count));
            let place = MatrixMut::new(&mut part.values, count, wide, wide);
            precision.add_weight_gradient(place, weights, out, Threads::One);
            precision.add_weight_gradient(MatrixMut::new(&mut part.keys, count, width, width), slopes, q, Threads::One);
            let mut own = vec![0.0; length * width];
            precision.input_gradient(MatrixMut::new(&mut own, length, width, width), slopes, k, Threads::One);
            own.iter_mut().for_each(|value| *value *= scale);
            part.queries.push(own);
        }
        part
    }
}

/// Turns scores of a head into weights, and the gradients of weights into those of scores.
struct Soften<'s> {
    task: &'s Task<'s, 's>,
    head: usize,
    weights: &'s mut [f32],
    slopes: &'s mut [f32],
}

impl Loop for Soften<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Soften { task: Task { attention, .. }, head, weights, slopes } = self;
        let length = attention.key_count();
        let bias = attention.bias_of(head);
        let sink = attention.sinks.get(head).copied();
        let mut bends = vec![1.0f32; length];
        let rows = weights.chunks_exact_mut(length).zip(slopes.chunks_exact_mut(length)).enumerate();
        for (position, (weights, slopes)) in rows {
            let seen = attention.seen(position);
            for outside in [0..seen.start, seen.end..length] {
                weights[outside.clone()].fill(0.0);
                slopes[outside].fill(0.0);
            }
            let (weights, slopes, bends) =
                (&mut weights[seen.clone()], &mut slopes[seen.clone()], &mut bends[seen.clone()]);
            if let Some(cap) = attention.cap {
                for (score, bend) in weights.iter_mut().zip(&mut *bends) {
                    let turned = tanh(*score / cap);
                    (*score, *bend) = (cap * turned, 1.0 - turned * turned);
                }
            }
            weights.iter_mut().zip(bias.of_query(position, seen.start)).for_each(|(score, bias)| *score += bias);
            let most =
                fold_in_lanes(weights, f32::NEG_INFINITY, f32::max, f32::max).max(sink.unwrap_or(f32::NEG_INFINITY));
            weights.iter_mut().for_each(|score| *score = exp(*score - most));
            let sum =
                fold_in_lanes(weights, 0.0, |sum, x| sum + x, |a, b| a + b) + sink.map_or(0.0, |sink| exp(sink - most));
            weights.iter_mut().for_each(|weight| *weight /= sum);
            slopes.iter_mut().zip(&*weights).for_each(|(slope, weight)| *slope *= weight);
            let mean = fold_in_lanes(slopes, 0.0, |sum, x| sum + x, |a, b| a + b);
            for ((slope, weight), bend) in slopes.iter_mut().zip(&*weights).zip(&*bends) {
                *slope = (*slope - weight * mean) * bend;
            }
        }
    }
}
