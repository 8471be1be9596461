//! Causal attention by blocks of query rows: scores of a block against the keys it sees, softmax and the product with
//! the values, without the scores of all rows at once.

use crate::forward::ops::Attention;
use kvant_numeric::linalg::{Matrix, MatrixMut, Threads, multiply, softmax};
use kvant_numeric::simd::Isa;
use rayon::prelude::*;
use std::ops::Range;

/// Query rows of a block.
const BLOCK: usize = 64;

/// See [`crate::forward::ops::Ops::attend`].
pub(super) fn attend(isa: Isa, attention: &Attention<'_>, out: &mut Vec<f32>) {
    let width = attention.queries.layout.count * attention.values.layout.width;
    let tokens = attention.queries.data.len() / attention.queries.row_width;
    out.resize(tokens * width, 0.0);
    out.par_chunks_mut(attention.length * width).enumerate().for_each(|(sequence, rows)| {
        rows.par_chunks_mut(BLOCK * width).enumerate().for_each_init(Vec::new, |scores, (block, out)| {
            let start = block * BLOCK;
            let rows = start..start + out.len() / width;
            let task = Task { isa, attention, first: sequence * attention.length, rows };
            (0..attention.queries.layout.count).for_each(|head| task.head(head, scores, out));
        });
    });
}

/// Some rows of a sequence whose first row is `first`.
struct Task<'a> {
    isa: Isa,
    attention: &'a Attention<'a>,
    first: usize,
    rows: Range<usize>,
}

impl Task<'_> {
    fn head(&self, head: usize, scores: &mut Vec<f32>, out: &mut [f32]) {
        let Attention { queries, keys, values, scale, .. } = self.attention;
        let seen = self.seen_from(self.rows.start)..self.rows.end;
        let (count, width) = (self.rows.len(), queries.layout.width);
        let key_head = head / (queries.layout.count / keys.layout.count);
        scores.resize(count * seen.len(), 0.0);
        let q = Matrix::new(queries.from(self.first + self.rows.start, head), count, width, queries.row_width);
        let k = Matrix::new(keys.from(self.first + seen.start, key_head), seen.len(), width, keys.row_width);
        multiply(MatrixMut::new(scores, count, seen.len(), seen.len()), q, k.transposed(), *scale, Threads::One);
        for (row, line) in self.rows.clone().zip(scores.chunks_mut(seen.len())) {
            self.weigh(head, row, seen.start, line);
        }
        let wide = values.layout.width;
        let v = Matrix::new(values.from(self.first + seen.start, key_head), seen.len(), wide, values.row_width);
        let row_step = queries.layout.count * wide;
        let out = MatrixMut::new(&mut out[head * wide..], count, wide, row_step);
        multiply(out, Matrix::new(scores, count, seen.len(), seen.len()), v, 1.0, Threads::One);
    }

    /// The first position that `row` sees.
    fn seen_from(&self, row: usize) -> usize {
        self.attention.window.map_or(0, |window| (row + 1).saturating_sub(window))
    }

    /// From scores to weights: softmax over what the row sees, zero elsewhere.
    fn weigh(&self, head: usize, row: usize, start: usize, line: &mut [f32]) {
        let (before, rest) = line.split_at_mut(self.seen_from(row) - start);
        let (seen, after) = rest.split_at_mut(row + 1 - self.seen_from(row));
        before.fill(0.0);
        after.fill(0.0);
        softmax(self.isa, seen, self.attention.cap, self.attention.sinks.get(head).copied());
    }
}
