//! Attention of one query of one head: the scores of its keys exist, since they are few. Not [`super::attention`], whose blocks of
//! queries would be empty but for one.

use super::attention::AttentionRule;
use super::matmul::Matrix;
use super::precision::Precision;
use super::rows::softmax;
use crate::simd::{Isa, Loop, dispatch};

/// Partial sums that are kept side by side, one in each lane.
const LANES: usize = 32;

/// `softmax(scale q k^T) v` of one query that sees all of these keys, whatever window and chunk of the rule; biases are those of the keys. In bfloat16 the weights and the
/// result are rounded to it. `scores` is a buffer.
///
/// # Panics
///
/// If the shapes do not match.
#[allow(clippy::too_many_arguments)] // Keys and values would be a pair of matrices that nothing else has.
pub fn attend_one(
    isa: Isa,
    query: &[f32],
    keys: Matrix<'_>,
    values: Matrix<'_>,
    rule: AttentionRule<'_>,
    precision: Precision,
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    let fits = keys.column_step == 1 && values.column_step == 1 && keys.rows == values.rows;
    assert!(fits && query.len() == keys.columns && out.len() == values.columns, "shapes do not match");
    scores.resize(keys.rows, 0.0);
    dispatch(isa, Scores { query, keys, scale: rule.scale, scores });
    softmax(isa, scores, rule.cap, rule.bias.of_query(0, 0), rule.sink);
    scores.iter_mut().for_each(|weight| *weight = precision.round(*weight));
    dispatch(isa, WeightedSum { weights: scores, values, out });
    out.iter_mut().for_each(|value| *value = precision.round(*value));
}

struct Scores<'a> {
    query: &'a [f32],
    keys: Matrix<'a>,
    scale: f32,
    scores: &'a mut [f32],
}

impl Loop for Scores<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Scores { query, keys, scale, scores } = self;
        for (row, score) in scores.iter_mut().enumerate() {
            *score = scale * dot(query, &keys.data[row * keys.row_step..][..keys.columns]);
        }
    }
}

#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (mut a, mut b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    for (a, b) in (&mut a).zip(&mut b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(a.remainder()).zip(b.remainder()) {
        *lane += a * b;
    }
    lanes.into_iter().sum()
}

struct WeightedSum<'a> {
    weights: &'a [f32],
    values: Matrix<'a>,
    out: &'a mut [f32],
}

impl Loop for WeightedSum<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let WeightedSum { weights, values, out } = self;
        out.fill(0.0);
        for (row, weight) in weights.iter().enumerate() {
            let values = &values.data[row * values.row_step..][..values.columns];
            for (out, value) in out.iter_mut().zip(values) {
                *out += weight * value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::ScoreBias;
    use crate::linalg::{AttentionBuffers, KeysValues, MatrixMut};

    #[test]
    fn single_query_matches_attention_by_blocks() {
        let data = |count: usize, seed: usize| -> Vec<f32> {
            (0..count).map(|i| ((i * 37 + seed) % 101) as f32 * 0.02 - 1.0).collect()
        };
        let (count, width, wide) = (70, 40, 24);
        let (query, keys, values) = (data(width, 1), data(count * width, 2), data(count * wide, 3));
        let matrices = || (Matrix::new(&keys, count, width, width), Matrix::new(&values, count, wide, wide));
        let slope: Vec<f32> = (0..count).map(|key| key as f32 * 0.25).collect();
        for (cap, sink, biases) in [(None, None, &[][..]), (Some(3.0), Some(0.5), &[]), (None, None, &slope)] {
            let rule = AttentionRule {
                scale: 0.4,
                cap,
                window: None,
                ahead: 0,
                ends: &[],
                chunk: None,
                sink,
                bias: ScoreBias::OfKeys(biases),
            };
            let mut expected = vec![0.0; wide];
            let (k, v) = matrices();
            KeysValues::new(k, v, Precision::F32).attend(
                Isa::best(),
                Matrix::new(&query, 1, width, width),
                count - 1,
                rule,
                MatrixMut::new(&mut expected, 1, wide, wide),
                &mut AttentionBuffers::default(),
            );
            let results: Vec<Vec<f32>> = Isa::available()
                .into_iter()
                .map(|isa| {
                    let mut out = vec![7.0; wide];
                    let (k, v) = matrices();
                    attend_one(isa, &query, k, v, rule, Precision::F32, &mut Vec::new(), &mut out);
                    out
                })
                .collect();
            assert!(results.iter().all(|out| *out == results[0]), "instruction sets differ");
            assert!(results[0].iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5), "{results:?} {expected:?}");
        }
    }
}
