//! Attention of all heads of all sequences: threads share blocks of queries and heads.

use super::Cpu;
use crate::forward::heads::Heads;
use crate::forward::ops::Attention;
use kvant_numeric::linalg::{
    AttentionBuffers, AttentionRule, KeysValues, Matrix, MatrixMut, QUERIES, ScoreBias, attend_one,
};
use rayon::prelude::*;

/// Queries that a thread takes at a time.
const BLOCK: usize = 2 * QUERIES;

/// See [`crate::forward::ops::Ops::attend`].
pub(super) fn attend(cpu: Cpu, attention: &Attention<'_>, out: &mut Vec<f32>) {
    let heads = attention.queries.layout.count;
    let width = heads * attention.values.layout.width;
    let tokens = attention.queries.data.len() / attention.queries.row_width;
    out.resize(tokens * width, 0.0);
    if attention.past > 0 && attention.length == 1 {
        return single_queries(cpu, attention, out);
    }
    let keys = keys_values(cpu, attention, tokens / attention.length.max(1));
    let shared = heads / attention.keys.layout.count;
    out.par_chunks_mut(attention.length * width).enumerate().for_each(|(sequence, rows)| {
        let keys = &keys[sequence * attention.keys.layout.count..];
        // The last blocks see the most keys: they are begun first.
        rows.par_chunks_mut(BLOCK * width).enumerate().rev().for_each(|(block, out)| {
            let task = AttentionTask { cpu, attention, first: sequence * attention.length, start: block * BLOCK };
            task.run(heads, |head| &keys[head / shared], out);
        });
    });
}

/// Attention of one query for each sequence, which sees keys of earlier tokens: blocks of queries would be empty but for one.
fn single_queries(cpu: Cpu, attention: &Attention<'_>, out: &mut [f32]) {
    let Attention { queries, keys, values, past, scale, cap, window, chunk, sinks, .. } = attention;
    let (heads, wide) = (queries.layout.count, values.layout.width);
    let shared = heads / keys.layout.count;
    let in_window = window.map_or(past + 1, |window| window.min(past + 1));
    let seen = chunk.map_or(in_window, |chunk| in_window.min(past % chunk.max(1) + 1));
    out.par_chunks_mut(wide.max(1)).enumerate().for_each_init(Vec::new, |scores, (index, out)| {
        let (sequence, head) = (index / heads, index % heads);
        let first = (sequence + 1) * (past + 1) - seen;
        let [keys, values] = [keys, values].map(|part| view(part, first, seen, head / shared));
        let query = &queries.from(sequence, head)[..queries.layout.width];
        let rule = AttentionRule {
            scale: *scale,
            cap: *cap,
            window: None,
            ahead: 0,
            ends: &[],
            chunk: None,
            sink: sinks.get(head).copied(),
            bias: ScoreBias::OfKeys(attention.bias_of(head).of_query(*past, past + 1 - seen)),
        };
        attend_one(cpu.isa, query, keys, values, rule, cpu.precision, scores, out);
    });
}

/// Keys and values of every head of every sequence.
fn keys_values<'a>(cpu: Cpu, attention: &Attention<'a>, sequences: usize) -> Vec<KeysValues<'a>> {
    let heads = attention.keys.layout.count;
    let of_head = |index: usize| {
        let length = attention.key_count();
        let first = index / heads * length;
        let [keys, values] = [&attention.keys, &attention.values].map(|part| view(part, first, length, index % heads));
        KeysValues::new(keys, values, cpu.precision)
    };
    (0..sequences * heads).into_par_iter().map(of_head).collect()
}

/// One head of some rows.
fn view<'a>(heads: &Heads<'a>, row: usize, rows: usize, head: usize) -> Matrix<'a> {
    Matrix::new(heads.from(row, head), rows, heads.layout.width, heads.row_width)
}

/// A block of queries of a sequence.
struct AttentionTask<'a> {
    cpu: Cpu,
    attention: &'a Attention<'a>,
    /// The row of the sequence's first token.
    first: usize,
    /// The position of the block's first query.
    start: usize,
}

impl<'a> AttentionTask<'a> {
    /// All heads; `out` has the block's rows.
    fn run(&self, heads: usize, keys: impl Fn(usize) -> &'a KeysValues<'a> + Sync, out: &mut [f32]) {
        let wide = self.attention.values.layout.width;
        let rows = out.len() / (heads * wide).max(1);
        let of_head = |buffers: &mut AttentionBuffers, head| {
            let mut values = vec![0.0; rows * wide];
            for (index, out) in values.chunks_mut(QUERIES * wide).enumerate() {
                self.queries(head, keys(head), index * QUERIES, out, buffers);
            }
            values
        };
        let parts: Vec<Vec<f32>> = (0..heads).into_par_iter().map_init(AttentionBuffers::default, of_head).collect();
        for (row, out) in out.chunks_mut(heads * wide).enumerate() {
            for (out, part) in out.chunks_mut(wide).zip(&parts) {
                out.copy_from_slice(&part[row * wide..(row + 1) * wide]);
            }
        }
    }

    /// Queries of one head from the block's row `from` on, as many as `out` has rows.
    fn queries(
        &self,
        head: usize,
        keys: &KeysValues<'_>,
        from: usize,
        out: &mut [f32],
        buffers: &mut AttentionBuffers,
    ) {
        let Attention { queries, values, scale, cap, window, ahead, ends, chunk, sinks, .. } = self.attention;
        let (wide, position) = (values.layout.width, self.start + from);
        let rows = out.len() / wide;
        let rule = AttentionRule {
            scale: *scale,
            cap: *cap,
            window: *window,
            ahead: *ahead,
            ends,
            chunk: *chunk,
            sink: sinks.get(head).copied(),
            bias: self.attention.bias_of(head),
        };
        let queries = view(queries, self.first + position, rows, head);
        let position = self.attention.past + position;
        keys.attend(self.cpu.isa, queries, position, rule, MatrixMut::new(out, rows, wide, wide), buffers);
    }
}
