//! Residual streams that blocks read and write through learned mixtures. Factors are computed in `f32`, row by row.

use super::blueprint::{HyperMixture, HyperStreams};
use super::run::Run;
use kvant_numeric::linalg::{Matrix, MatrixMut, Threads, multiply, sigmoid};
use rayon::prelude::*;

/// How the streams of a token are written: factors on what a branch gives, and a matrix that mixes the streams themselves, whose rows are
/// those of the streams that are read.
pub(super) struct StreamFactors {
    /// One for each stream.
    branch: Vec<f32>,
    /// One for each pair.
    mix: Vec<f32>,
}

impl Run<'_, '_> {
    /// What a branch reads of rows of all streams, and how each row is written.
    pub(super) fn read_streams(
        &self,
        streams: &HyperStreams,
        mixture: &HyperMixture,
        rows: &[f32],
    ) -> (Vec<f32>, Vec<StreamFactors>) {
        let (count, precision) = (streams.count, self.ops.precision());
        let [weight, base, scale] = mixture.vectors().map(|vector| self.vector(Some(vector)));
        let of_row = |row: &[f32]| {
            let mut shaped = factors(streams, &weight, row);
            let (first, mixed) = shaped.split_at_mut(2 * count);
            let kinds = first.iter_mut().zip(&base).enumerate();
            kinds.for_each(|(at, (z, base))| *z = *z * scale[at / count] + base);
            mixed.iter_mut().zip(&base[2 * count..]).for_each(|(z, base)| *z = *z * scale[2] + base);
            let read: Vec<f32> = first[..count].iter().map(|z| sigmoid(*z) + streams.eps).collect();
            let branch = first[count..].iter().map(|z| precision.round(2.0 * sigmoid(*z))).collect();
            let mix = doubly_stochastic(mixed, count, (streams.eps, streams.iterations))
                .into_iter()
                .map(|share| precision.round(share))
                .collect();
            let x: Vec<f32> = weighed_sum(&read, row).map(|value| precision.round(value)).collect();
            (x, StreamFactors { branch, mix })
        };
        let width = count * self.decoder.hidden();
        let all: Vec<(Vec<f32>, StreamFactors)> = rows.par_chunks_exact(width).map(of_row).collect();
        let (x, factors): (Vec<Vec<f32>>, Vec<StreamFactors>) = all.into_iter().unzip();
        (x.concat(), factors)
    }

    /// Writes what a branch gives: stream `k` becomes `b_k branch + sum_j m_jk stream_j`.
    pub(super) fn write_streams(&self, branch: &[f32], factors: &[StreamFactors], rows: &mut [f32]) {
        let (hidden, precision) = (self.decoder.hidden(), self.ops.precision());
        let Some(count) = factors.first().map(|factors| factors.branch.len()) else { return };
        let all = rows.par_chunks_exact_mut(count * hidden).zip(branch.par_chunks_exact(hidden)).zip(factors);
        all.for_each(|((row, branch), factors)| {
            let before = row.to_vec();
            for (stream, out) in row.chunks_exact_mut(hidden).enumerate() {
                let shares: Vec<f32> = factors.mix.iter().skip(stream).step_by(count).copied().collect();
                let mixed = weighed_sum(&shares, &before);
                for ((out, mixed), branch) in out.iter_mut().zip(mixed).zip(branch) {
                    let added = precision.round(factors.branch[stream] * branch);
                    *out = precision.round(added + precision.round(mixed));
                }
            }
        });
    }

    /// What the last norm reads of rows of all streams.
    pub(super) fn streams_joined(&self, streams: &HyperStreams, rows: &[f32]) -> Vec<f32> {
        let precision = self.ops.precision();
        let [weight, base, scale] = streams.last.vectors().map(|vector| self.vector(Some(vector)));
        let factor = scale.first().copied().unwrap_or(1.0);
        let of_row = |row: &[f32]| -> Vec<f32> {
            let shaped = factors(streams, &weight, row);
            let shares = shaped.iter().zip(&base).map(|(z, base)| sigmoid(z * factor + base) + streams.eps);
            weighed_sum(&shares.collect::<Vec<f32>>(), row).map(|value| precision.round(value)).collect()
        };
        let width = streams.count * self.decoder.hidden();
        rows.par_chunks_exact(width).flat_map_iter(of_row).collect()
    }
}

/// `W h` of a row, with its streams divided by the root of their mean square as `h`.
fn factors(streams: &HyperStreams, weight: &[f32], row: &[f32]) -> Vec<f32> {
    let square = row.iter().map(|value| value * value).sum::<f32>() / row.len() as f32;
    let scale = 1.0 / (square + streams.norm_eps).sqrt();
    let normed: Vec<f32> = row.iter().map(|value| value * scale).collect();
    let count = weight.len() / row.len().max(1);
    let mut out = vec![0.0; count];
    let (x, w) = (Matrix::new(&normed, 1, row.len(), row.len()), Matrix::new(weight, count, row.len(), row.len()));
    multiply(MatrixMut::new(&mut out, 1, count, count), x, w.transposed(), 1.0, Threads::One);
    out
}

/// The sum of the streams of a row, each with a factor.
fn weighed_sum<'r>(factors: &'r [f32], row: &'r [f32]) -> impl Iterator<Item = f32> + use<'r> {
    let width = row.len() / factors.len().max(1);
    (0..width).map(move |at| factors.iter().enumerate().map(|(stream, f)| f * row[stream * width + at]).sum())
}

/// The softmax of every row of a square matrix, whose columns and rows are divided by their sums in turn (Sinkhorn and Knopp).
fn doubly_stochastic(scores: &[f32], count: usize, (eps, iterations): (f32, usize)) -> Vec<f32> {
    let softmax = |row: &[f32]| -> Vec<f32> {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers: Vec<f32> = row.iter().map(|z| (z - largest).exp()).collect();
        let sum: f32 = powers.iter().sum();
        powers.into_iter().map(|power| power / sum + eps).collect()
    };
    let mut shares: Vec<f32> = scores.chunks_exact(count).flat_map(softmax).collect();
    let divide_columns = |shares: &mut [f32]| {
        for column in 0..count {
            let sum = shares.iter().skip(column).step_by(count).sum::<f32>() + eps;
            shares.iter_mut().skip(column).step_by(count).for_each(|share| *share /= sum);
        }
    };
    divide_columns(&mut shares);
    for _ in 1..iterations {
        for row in shares.chunks_exact_mut(count) {
            let sum = row.iter().sum::<f32>() + eps;
            row.iter_mut().for_each(|share| *share /= sum);
        }
        divide_columns(&mut shares);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_columns_of_shares_have_equal_sums() {
        let shares = doubly_stochastic(&[1.0, -2.0, 0.5, 0.0, 3.0, -1.0, 0.25, 1.5, 2.0], 3, (1e-6, 40));
        let column = |at: usize| shares.iter().skip(at).step_by(3).sum::<f32>();
        let sums = (0..3).map(column).chain(shares.chunks(3).map(|row| row.iter().sum()));
        assert!(sums.into_iter().all(|sum: f32| (sum - 1.0).abs() < 1e-3), "{shares:?}");
        assert!(shares.iter().all(|share| *share > 0.0));
    }

    #[test]
    fn once_only_columns_are_divided() {
        let shares = doubly_stochastic(&[0.0, 3f32.ln(), 0.0, 0.0], 2, (0.0, 1));
        let expected = [1.0 / 3.0, 0.6, 2.0 / 3.0, 0.4];
        assert!(shares.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{shares:?}");
    }

    #[test]
    fn streams_are_summed_by_their_factors() {
        let sum: Vec<f32> = weighed_sum(&[2.0, -1.0], &[1.0, 2.0, 3.0, 10.0, 20.0, 30.0]).collect();
        assert_eq!(sum, [-8.0, -16.0, -24.0]);
    }
}
