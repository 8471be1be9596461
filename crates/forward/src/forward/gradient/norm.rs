//! The gradient of norms.

use super::super::heads::HeadLayout;
use super::super::ops::NormWeights;
use rayon::prelude::*;

/// Turns the gradient of normed heads into that of what was normed. With `y = (x - m) r w`, `g = w dy`: `dx = r (g - mean(g) - n mean(g n))`,
/// `n` being the normed row before its weight; without `mean(g)` where no mean is subtracted.
pub(super) fn norm_gradient(norm: &NormWeights, x: &[f32], gradient: &mut [f32], row_width: usize, layout: HeadLayout) {
    let offset = norm.kind.offset();
    let per_head = norm.weight.len() > layout.width;
    gradient.par_chunks_exact_mut(row_width).zip(x.par_chunks_exact(row_width)).for_each(|(gradient, x)| {
        for index in 0..layout.count {
            let start = layout.start + index * layout.step;
            let weights = norm.weight.get(if per_head { index * layout.width } else { 0 }..).unwrap_or(&[]);
            let head = Head { x: &x[start..start + layout.width], weights, offset, eps: norm.eps };
            head.gradient(norm.kind.subtracts_mean(), &mut gradient[start..start + layout.width]);
        }
    });
}

/// The gradient of a norm's weight, `dw = sum dy n` over rows, and over heads that share it.
pub(super) fn norm_weight_gradient(
    norm: &NormWeights,
    x: &[f32],
    gradient: &[f32],
    row_width: usize,
    layout: HeadLayout,
) -> Vec<f32> {
    let per_head = norm.weight.len() > layout.width;
    let mut sums = vec![0.0f64; norm.weight.len()];
    for (gradient, x) in gradient.chunks_exact(row_width).zip(x.chunks_exact(row_width)) {
        for index in 0..layout.count {
            let start = layout.start + index * layout.step;
            let head = Head { x: &x[start..start + layout.width], weights: &[], offset: 0.0, eps: norm.eps };
            let Normed { mean, inverse } = head.normed(norm.kind.subtracts_mean());
            let own = &mut sums[if per_head { index * layout.width } else { 0 }..];
            for ((sum, x), gradient) in own.iter_mut().zip(head.x).zip(&gradient[start..start + layout.width]) {
                *sum += f64::from(*gradient) * (f64::from(*x) - mean) * inverse;
            }
        }
    }
    sums.into_iter().map(|sum| sum as f32).collect()
}

struct Head<'a> {
    x: &'a [f32],
    weights: &'a [f32],
    offset: f32,
    eps: f32,
}

/// What norms a head: `(x - mean) inverse`.
struct Normed {
    mean: f64,
    inverse: f64,
}

impl Head<'_> {
    fn normed(&self, subtracts_mean: bool) -> Normed {
        let count = self.x.len() as f64;
        let mean = if subtracts_mean { self.x.iter().map(|x| f64::from(*x)).sum::<f64>() / count } else { 0.0 };
        let square = self.x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count;
        Normed { mean, inverse: 1.0 / (square + f64::from(self.eps)).sqrt() }
    }

    fn gradient(&self, subtracts_mean: bool, gradient: &mut [f32]) {
        let count = self.x.len() as f64;
        let Normed { mean, inverse } = self.normed(subtracts_mean);
        let normed = |x: f32| (f64::from(x) - mean) * inverse;
        for (index, gradient) in gradient.iter_mut().enumerate() {
            *gradient *= self.weights.get(index).map_or(1.0, |weight| weight + self.offset);
        }
        let shift = if subtracts_mean { gradient.iter().map(|g| f64::from(*g)).sum::<f64>() / count } else { 0.0 };
        let along = gradient.iter().zip(self.x).map(|(g, x)| f64::from(*g) * normed(*x)).sum::<f64>() / count;
        for (gradient, x) in gradient.iter_mut().zip(self.x) {
            *gradient = (inverse * (f64::from(*gradient) - shift - normed(*x) * along)) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::cpu::Cpu;
    use crate::forward::ops::Ops;
    use kvant_model::family::NormKind;

    fn noise(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| (((i + seed * 1013) * 7919) % 1009) as f32 / 504.5 - 0.9).collect()
    }

    #[test]
    fn gradients_of_weights_match_differences() {
        // Rows of 12 elements: two heads of four, after two elements that are left alone.
        let (rows, width) = (5, 12);
        let layout = HeadLayout { start: 2, step: 5, width: 4, count: 2 };
        let (x, along) = (noise(rows * width, 1), noise(rows * width, 2));
        for kind in [NormKind::Rms, NormKind::RmsUnitOffset, NormKind::LayerNorm, NormKind::LayerNormUnitOffset] {
            // One weight for both heads, or one for each.
            for length in [4, 8] {
                let norm = NormWeights { kind, weight: noise(length, 3), bias: Vec::new(), eps: 1e-5 };
                let score = |norm: &NormWeights| -> f64 {
                    let mut out = x.clone();
                    Cpu::default().normalise(norm, &mut out, width, layout);
                    out.iter().zip(&along).map(|(out, along)| f64::from(*out) * f64::from(*along)).sum()
                };
                let found = norm_weight_gradient(&norm, &x, &along, width, layout);
                for (index, own) in found.iter().enumerate() {
                    let moved = |by: f32| {
                        let mut norm = norm.clone();
                        norm.weight[index] += by;
                        score(&norm)
                    };
                    let difference = (moved(0.1) - moved(-0.1)) / 0.2;
                    assert!((f64::from(*own) - difference).abs() < 1e-3, "{kind:?} {index}: {own} {difference}");
                }
            }
        }
    }
}
