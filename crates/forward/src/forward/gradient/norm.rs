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

struct Head<'a> {
    x: &'a [f32],
    weights: &'a [f32],
    offset: f32,
    eps: f32,
}

impl Head<'_> {
    fn gradient(&self, subtracts_mean: bool, gradient: &mut [f32]) {
        let count = self.x.len() as f64;
        let mean = if subtracts_mean { self.x.iter().map(|x| f64::from(*x)).sum::<f64>() / count } else { 0.0 };
        let square = self.x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count;
        let inverse = 1.0 / (square + f64::from(self.eps)).sqrt();
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
