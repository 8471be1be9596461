//! The gradient of attention. Its weights are computed again, for one key head of one sequence at a time.

use super::super::blueprint::HeadBiases;
use super::super::heads::{HeadLayout, Heads};
use super::super::ops::Attention;
use super::tape::Var;
use kvant_numeric::linalg::{Matrix, MatrixMut, Threads, multiply, multiply_add, tanh};
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
    pub(super) fn backward<'v>(&'v self, value: impl Fn(Var) -> &'v [f32], gradient: &[f32]) -> [Vec<f32>; 3] {
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
                Task { attention: &attention, first, first_key, key_head }.run(gradient)
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
    /// The rows of the sequence's first query and key.
    first: usize,
    first_key: usize,
    key_head: usize,
}

impl Task<'_, '_> {
    fn view<'h>(&self, heads: &Heads<'h>, (first, rows): (usize, usize), head: usize) -> Matrix<'h> {
        Matrix::new(heads.from(first, head), rows, heads.layout.width, heads.row_width)
    }

    fn run(&self, gradient: &[f32]) -> Part {
        let Attention { queries, keys, values, length, scale, .. } = self.attention;
        let (width, wide) = (queries.layout.width, values.layout.width);
        let shared = queries.layout.count / keys.layout.count;
        let row_width = queries.layout.count * wide;
        let count = self.attention.key_count();
        let of_keys = (self.first_key, count);
        let (k, v) = (self.view(keys, of_keys, self.key_head), self.view(values, of_keys, self.key_head));
        let mut part = Part { queries: Vec::new(), keys: vec![0.0; count * width], values: vec![0.0; count * wide] };
        let (mut weights, mut slopes) = (vec![0.0; length * count], vec![0.0; length * count]);
        for head in self.key_head * shared..(self.key_head + 1) * shared {
            let q = self.view(queries, (self.first, *length), head);
            let out = Matrix::new(&gradient[self.first * row_width + head * wide..], *length, wide, row_width);
            let place = MatrixMut::new(&mut weights, *length, count, count);
            multiply(place, q, k.transposed(), *scale, Threads::One);
            let place = MatrixMut::new(&mut slopes, *length, count, count);
            multiply(place, out, v.transposed(), 1.0, Threads::One);
            self.soften(head, &mut weights, &mut slopes);
            let [weights, slopes] = [&weights, &slopes].map(|data| Matrix::new(data, *length, count, count));
            let place = MatrixMut::new(&mut part.values, count, wide, wide);
            multiply_add(place, weights.transposed(), out, 1.0, Threads::One);
            let place = MatrixMut::new(&mut part.keys, count, width, width);
            multiply_add(place, slopes.transposed(), q, *scale, Threads::One);
            let mut own = vec![0.0; length * width];
            multiply(MatrixMut::new(&mut own, *length, width, width), slopes, k, *scale, Threads::One);
            part.queries.push(own);
        }
        part
    }

    /// Turns scores into weights, and the gradients of weights into those of scores.
    fn soften(&self, head: usize, weights: &mut [f32], slopes: &mut [f32]) {
        let length = self.attention.key_count();
        let bias = self.attention.bias_of(head);
        let sink = self.attention.sinks.get(head).copied();
        let rows = weights.chunks_exact_mut(length).zip(slopes.chunks_exact_mut(length)).enumerate();
        for (position, (weights, slopes)) in rows {
            let seen = self.attention.seen(position);
            let mut bends = vec![1.0f32; seen.len()];
            if let Some(cap) = self.attention.cap {
                for (score, bend) in weights[seen.clone()].iter_mut().zip(&mut bends) {
                    let turned = tanh(*score / cap);
                    (*score, *bend) = (cap * turned, 1.0 - turned * turned);
                }
            }
            for (score, bias) in weights[seen.clone()].iter_mut().zip(bias.of_query(position, seen.start)) {
                *score += bias;
            }
            let most = weights[seen.clone()].iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
            let mut sum = sink.map_or(0.0, |sink| (sink - most).exp());
            for score in &mut weights[seen.clone()] {
                *score = (*score - most).exp();
                sum += *score;
            }
            weights[seen.clone()].iter_mut().for_each(|weight| *weight /= sum);
            let mean: f32 =
                weights[seen.clone()].iter().zip(&slopes[seen.clone()]).map(|(weight, slope)| weight * slope).sum();
            for ((slope, weight), bend) in slopes[seen.clone()].iter_mut().zip(&weights[seen.clone()]).zip(&bends) {
                *slope = weight * (*slope - mean) * bend;
            }
            for outside in [0..seen.start, seen.end..length] {
                weights[outside.clone()].fill(0.0);
                slopes[outside].fill(0.0);
            }
        }
    }
}
