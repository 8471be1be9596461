//! Kernels on one row: norms and softmax. Sums are taken in sixteen lanes, which are added at the end: the same order
//! with every instruction set.

use super::elementary::{exp, tanh};
use super::precision::Precision;
use crate::simd::{Isa, Loop, dispatch};

const LANES: usize = 16;

/// Folds the values with `step` in sixteen lanes, and the lanes with `join`. Every lane begins with `start`, and so does the result: it must
/// change nothing, such as 0 in a sum.
#[inline(always)]
pub fn fold_in_lanes(
    values: &[f32],
    start: f32,
    step: impl Fn(f32, f32) -> f32,
    join: impl Fn(f32, f32) -> f32,
) -> f32 {
    let mut lanes = [start; LANES];
    let mut chunks = values.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = step(*lane, *value);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane = step(*lane, *value);
    }
    lanes.into_iter().fold(start, join)
}

/// RMSNorm in place: `x / sqrt(mean(x^2) + eps) * (w + offset)` (arXiv 1910.07467). In bfloat16 what `w` multiplies is
/// rounded, as LLaMA does, unless there is an offset, as Gemma does; the result is rounded in any case.
pub fn rms_norm(isa: Isa, row: &mut [f32], weight: &[f32], offset: f32, eps: f32, precision: Precision) {
    dispatch(isa, RmsNorm { row, weight, offset, eps, precision });
}

struct RmsNorm<'a> {
    row: &'a mut [f32],
    weight: &'a [f32],
    offset: f32,
    eps: f32,
    precision: Precision,
}

impl Loop for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let squares = fold_in_lanes(self.row, 0.0, |sum, x| sum + x * x, |a, b| a + b);
        let factor = 1.0 / (squares / self.row.len() as f32 + self.eps).sqrt();
        let normed = if self.offset == 0.0 { self.precision } else { Precision::F32 };
        for (x, w) in self.row.iter_mut().zip(self.weight) {
            *x = self.precision.round(normed.round(*x * factor) * (*w + self.offset));
        }
    }
}

/// LayerNorm in place: `(x - mean(x)) / sqrt(var(x) + eps) * (w + offset) + b` (arXiv 1607.06450). An empty weight
/// means ones, an empty bias zeros. In bfloat16 the result is rounded.
pub fn layer_norm(
    isa: Isa,
    row: &mut [f32],
    weight: &[f32],
    offset: f32,
    bias: &[f32],
    eps: f32,
    precision: Precision,
) {
    dispatch(isa, LayerNorm { row, weight, offset, bias, eps, precision });
}

struct LayerNorm<'a> {
    row: &'a mut [f32],
    weight: &'a [f32],
    offset: f32,
    bias: &'a [f32],
    eps: f32,
    precision: Precision,
}

impl Loop for LayerNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let count = self.row.len() as f32;
        let mean = fold_in_lanes(self.row, 0.0, |sum, x| sum + x, |a, b| a + b) / count;
        let squares = fold_in_lanes(self.row, 0.0, |sum, x| sum + (x - mean) * (x - mean), |a, b| a + b);
        let factor = 1.0 / (squares / count + self.eps).sqrt();
        for x in self.row.iter_mut() {
            *x = (*x - mean) * factor;
        }
        for (x, w) in self.row.iter_mut().zip(self.weight) {
            *x *= *w + self.offset;
        }
        for (x, b) in self.row.iter_mut().zip(self.bias) {
            *x += *b;
        }
        for x in self.row.iter_mut() {
            *x = self.precision.round(*x);
        }
    }
}

/// Softmax in place, after the soft-cap `c tanh(x / c)` where one is given. A `sink` is a further score that takes its
/// share and has no value.
pub fn softmax(isa: Isa, row: &mut [f32], cap: Option<f32>, biases: &[f32], sink: Option<f32>) {
    dispatch(isa, Softmax { row, cap, biases, sink });
}

struct Softmax<'a> {
    row: &'a mut [f32],
    cap: Option<f32>,
    biases: &'a [f32],
    sink: Option<f32>,
}

impl Loop for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        if let Some(cap) = self.cap {
            for x in self.row.iter_mut() {
                *x = cap * tanh(*x / cap);
            }
        }
        for (x, bias) in self.row.iter_mut().zip(self.biases) {
            *x += bias;
        }
        let largest =
            fold_in_lanes(self.row, f32::NEG_INFINITY, f32::max, f32::max).max(self.sink.unwrap_or(f32::NEG_INFINITY));
        for x in self.row.iter_mut() {
            *x = exp(*x - largest);
        }
        let sum = fold_in_lanes(self.row, 0.0, |sum, x| sum + x, |a, b| a + b)
            + self.sink.map_or(0.0, |sink| exp(sink - largest));
        let factor = 1.0 / sum;
        for x in self.row.iter_mut() {
            *x *= factor;
        }
    }
}

/// The largest value `m` of a row, and the sum of `e^(x - m)` over it: what the logarithm of a softmax needs.
pub fn sum_of_exponentials(isa: Isa, row: &[f32]) -> (f32, f32) {
    dispatch(isa, SumOfExponentials { row })
}

struct SumOfExponentials<'a> {
    row: &'a [f32],
}

impl Loop for SumOfExponentials<'_> {
    type Output = (f32, f32);

    #[inline(always)]
    fn run(self) -> (f32, f32) {
        let largest = fold_in_lanes(self.row, f32::NEG_INFINITY, f32::max, f32::max);
        (largest, fold_in_lanes(self.row, 0.0, |sum, x| sum + exp(x - largest), |a, b| a + b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(length: usize) -> Vec<f32> {
        (0..length).map(|i| ((i * 29) % 23) as f32 * 0.3 - 2.0).collect()
    }

    fn assert_close(ours: &[f32], expected: impl Iterator<Item = f64>) {
        for (i, (a, b)) in ours.iter().zip(expected).enumerate() {
            assert!((f64::from(*a) - b).abs() < 2e-6 * b.abs().max(1.0), "{i}: {a} {b}");
        }
    }

    #[test]
    fn norms_match_their_formulas_on_every_isa() {
        for isa in Isa::available() {
            for length in [1, 5, 16, 37, 256] {
                let x: Vec<f64> = row(length).into_iter().map(f64::from).collect();
                let (weight, bias) = (vec![0.5; length], vec![0.25; length]);
                let n = length as f64;
                let root = (x.iter().map(|x| x * x).sum::<f64>() / n + 1e-5).sqrt();
                let mut ours = row(length);
                rms_norm(isa, &mut ours, &weight, 1.0, 1e-5, Precision::F32);
                assert_close(&ours, x.iter().map(|x| x / root * 1.5));
                let mean = x.iter().sum::<f64>() / n;
                let root = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n + 1e-5).sqrt();
                let mut ours = row(length);
                layer_norm(isa, &mut ours, &weight, 0.0, &bias, 1e-5, Precision::F32);
                assert_close(&ours, x.iter().map(|x| (x - mean) / root * 0.5 + 0.25));
            }
        }
    }

    #[test]
    fn bf16_norms_round_like_frameworks() {
        use crate::arithmetic::round_to_bf16 as round;
        let x: Vec<f32> = row(37).into_iter().map(round).collect();
        let weight: Vec<f32> = row(37).iter().map(|w| round(w + 1.3)).collect();
        let factor = 1.0 / (x.iter().map(|x| x * x).sum::<f32>() / 37.0 + 1e-5).sqrt();
        for offset in [0.0, 1.0] {
            let mut ours = x.clone();
            rms_norm(Isa::best(), &mut ours, &weight, offset, 1e-5, Precision::Bf16);
            for ((ours, x), w) in ours.iter().zip(&x).zip(&weight) {
                let normed = if offset == 0.0 { round(x * factor) } else { x * factor };
                assert_eq!(*ours, round(normed * (w + offset)));
            }
        }
        let mut ours = x.clone();
        layer_norm(Isa::best(), &mut ours, &weight, 0.0, &[], 1e-5, Precision::Bf16);
        assert!(ours.iter().all(|x| round(*x) == *x));
    }

    #[test]
    fn softmax_with_cap_and_sink_matches_its_formula() {
        for isa in Isa::available() {
            for (length, cap, sink) in [(1, None, None), (40, Some(3.0), None), (33, None, Some(1.5))] {
                let capped = |x: f32| cap.map_or(f64::from(x), |c| f64::from(c) * (f64::from(x) / f64::from(c)).tanh());
                let x: Vec<f64> = row(length).into_iter().map(capped).collect();
                let sum = x.iter().map(|x| x.exp()).sum::<f64>() + sink.map_or(0.0, |s: f32| f64::from(s).exp());
                let mut ours = row(length);
                softmax(isa, &mut ours, cap, &[], sink);
                assert_close(&ours, x.iter().map(|x| x.exp() / sum));
            }
        }
    }

    #[test]
    fn rows_give_the_same_bits_on_every_isa() {
        let results = Isa::available().into_iter().map(|isa| {
            let mut x = row(100);
            softmax(isa, &mut x, Some(20.0), &[], None);
            rms_norm(isa, &mut x, &row(100), 0.0, 1e-6, Precision::Bf16);
            (x.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), sum_of_exponentials(isa, &row(100)))
        });
        let results: Vec<_> = results.collect();
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
