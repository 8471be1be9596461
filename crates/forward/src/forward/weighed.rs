//! Attention with observable or quantized probabilities: they exist, block of rows by block of rows, where fused
//! attention never has them. Slower, and used only if a quantizer or a hook requires it.

use super::further;
use super::indexer::chosen;
use super::ops::Attention;
use kvant_numeric::linalg::{Matrix, MatrixMut, Precision, Threads, multiply, softmax};
use kvant_numeric::simd::Isa;
use rayon::prelude::*;
use std::ops::Range;

/// Query rows of a block.
const BLOCK: usize = 64;

/// The score of keys that are not chosen: their weight is 0.
pub(super) const UNSEEN: f32 = -1e30;

/// [`Ops::attend`](super::ops::Ops::attend) with `weights` called on the weights of some rows of one head: rows of as many
/// elements as the keys that any of them sees, zero where a row does not see. Threads call it in any order.
pub(super) fn attend(
    (isa, precision): (Isa, Precision),
    attention: &Attention<'_>,
    weights: &(dyn Fn(&mut [f32], usize) + Sync),
) -> Vec<f32> {
    if let Some(keys) = &attention.further {
        return further::attend((isa, precision), (attention, keys), weights);
    }
    let width = attention.queries.layout.count * attention.values.layout.width;
    let tokens = attention.queries.data.len() / attention.queries.row_width;
    let mut out = vec![0.0; tokens * width];
    let chosen = attention.index.as_ref().map(|index| chosen(attention, index));
    out.par_chunks_mut(attention.length * width).enumerate().for_each(|(sequence, rows)| {
        rows.par_chunks_mut(BLOCK * width).enumerate().for_each_init(Vec::new, |scores, (block, out)| {
            let start = block * BLOCK;
            let rows = start..start + out.len() / width;
            let first = sequence * attention.length;
            let first_key = sequence * attention.key_count();
            let chosen = chosen.as_deref();
            let task = AttentionTask { isa, precision, attention, weights, chosen, first, first_key, rows };
            (0..attention.queries.layout.count).for_each(|head| task.head(head, scores, out));
            out.iter_mut().for_each(|value| *value = precision.round(*value));
        });
    });
    out
}

/// Some rows of a sequence whose first row is `first`.
struct AttentionTask<'a> {
    isa: Isa,
    precision: Precision,
    attention: &'a Attention<'a>,
    weights: &'a (dyn Fn(&mut [f32], usize) + Sync),
    /// Which keys of its sequence each query row attends to, for each choice, where an indexer chooses.
    chosen: Option<&'a [bool]>,
    first: usize,
    /// The row of the sequence's first key.
    first_key: usize,
    rows: Range<usize>,
}

impl AttentionTask<'_> {
    fn head(&self, head: usize, scores: &mut Vec<f32>, out: &mut [f32]) {
        let Attention { queries, keys, values, scale, .. } = self.attention;
        let past = self.attention.past;
        let seen = self.attention.seen(past + self.rows.start).start..self.attention.seen(past + self.rows.end - 1).end;
        let first_key = self.first_key + seen.start;
        let (count, width) = (self.rows.len(), queries.layout.width);
        let key_head = head / (queries.layout.count / keys.layout.count);
        scores.resize(count * seen.len(), 0.0);
        let q = Matrix::new(queries.from(self.first + self.rows.start, head), count, width, queries.row_width);
        let k = Matrix::new(keys.from(first_key, key_head), seen.len(), width, keys.row_width);
        multiply(MatrixMut::new(scores, count, seen.len(), seen.len()), q, k.transposed(), *scale, Threads::One);
        for (row, line) in (past + self.rows.start..).zip(scores.chunks_mut(seen.len())) {
            self.weigh(head, row, seen.start, line);
        }
        (self.weights)(scores, seen.len());
        let wide = values.layout.width;
        let v = Matrix::new(values.from(first_key, key_head), seen.len(), wide, values.row_width);
        let row_step = queries.layout.count * wide;
        let out = MatrixMut::new(&mut out[head * wide..], count, wide, row_step);
        multiply(out, Matrix::new(scores, count, seen.len(), seen.len()), v, 1.0, Threads::One);
    }

    /// From scores to weights: softmax over what the row sees, zero elsewhere.
    fn weigh(&self, head: usize, row: usize, start: usize, line: &mut [f32]) {
        let range = self.attention.seen(row);
        let (before, rest) = line.split_at_mut(range.start - start);
        let (seen, after) = rest.split_at_mut(range.len());
        before.fill(0.0);
        after.fill(0.0);
        let chosen = self.chosen_of(head, row);
        for (score, _) in seen.iter_mut().zip(chosen).filter(|(_, chosen)| !**chosen) {
            *score = UNSEEN;
        }
        let biases = self.attention.bias_of(head).of_query(row, range.start);
        softmax(self.isa, seen, self.attention.cap, biases, self.attention.sinks.get(head).copied());
        seen.iter_mut().for_each(|weight| *weight = self.precision.round(*weight));
    }

    /// Which of the keys that it sees a head of the query at `row` attends to; empty for all.
    fn chosen_of(&self, head: usize, row: usize) -> &[bool] {
        let (Some(chosen), Some(index)) = (self.chosen, &self.attention.index) else { return &[] };
        let all = self.attention.past + self.attention.length;
        let choices = index.choices();
        let choice = head / (self.attention.queries.layout.count / choices).max(1);
        let start = ((self.first + row - self.attention.past) * choices + choice) * all;
        let seen = self.attention.seen(row);
        &chosen[start + seen.start..start + seen.end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::cpu::Cpu;
    use crate::forward::ops::Ops;
    use crate::forward::{HeadLayout, Heads};
    use kvant_numeric::linalg::ScoreBias;

    #[test]
    fn unquantized_probabilities_match_fused_attention() {
        let data =
            |seed: usize| (0..2 * 100 * 32).map(|i| ((i * 37 + seed) % 23) as f32 * 0.1 - 1.1).collect::<Vec<_>>();
        let (q, k, v) = (data(1), data(2), data(3));
        let heads = |data, count, width| Heads { data, row_width: 32, layout: HeadLayout::packed(count, width) };
        let slopes: Vec<f32> = (0..4 * 100).map(|i| (i % 100) as f32 * 0.1 * (1 + i / 100) as f32).collect();
        let distances: Vec<f32> = (0..4 * 199).map(|i| (i % 31) as f32 * 0.1 * (1 + i / 199) as f32).collect();
        let cases = [
            (None, 0, None, None, ScoreBias::NONE),
            (Some(30), 0, Some(5.0), None, ScoreBias::NONE),
            (None, 0, None, Some(40), ScoreBias::NONE),
            (None, 0, None, None, ScoreBias::OfKeys(&slopes)),
            (None, usize::MAX, None, None, ScoreBias::OfDistances(&distances)),
            (Some(30), 29, None, None, ScoreBias::NONE),
        ];
        for (window, ahead, cap, chunk, bias) in cases {
            let attention = Attention {
                queries: heads(&q, 4, 8),
                keys: heads(&k, 2, 8),
                values: heads(&v, 2, 8),
                length: 100,
                past: 0,
                foreign: None,
                scale: 0.35,
                cap,
                window,
                ahead,
                ends: &[],
                chunk,
                sinks: &[],
                bias,
                index: None,
                further: None,
            };
            let mut fused = Vec::new();
            Cpu::default().attend(&attention, &mut fused);
            let explicit = attend((Isa::best(), Precision::F32), &attention, &|_, _| {});
            assert!(fused.iter().zip(&explicit).all(|(a, b)| (a - b).abs() < 1e-5));
            let doubled = attend((Isa::best(), Precision::F32), &attention, &|weights, _| {
                weights.iter_mut().for_each(|w| *w *= 2.0)
            });
            assert!(explicit.iter().zip(&doubled).all(|(a, b)| (2.0 * a - b).abs() < 1e-5));
        }
    }
}
