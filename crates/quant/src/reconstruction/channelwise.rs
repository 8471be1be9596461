//! Products of depthwise convolutions: so few weights to an output that each row of patches is worked on as it lies.

use kvant_numeric::simd::{Isa, Loop, dispatch};
use rayon::prelude::*;

/// Positions that stay in the cache while the weights of an output pass over them.
const BLOCK: usize = 1 << 10;
/// Partial sums side by side: a fixed number, so that sums are the same on every instruction set.
const LANES: usize = 16;

/// `outputs = W X`, output by output; `rows` outputs to each group.
pub(super) fn channel_products(
    rows: usize,
    features: usize,
    positions: usize,
    weights: &[f32],
    patches: &[f32],
    outputs: &mut [f32],
) {
    outputs.par_chunks_mut(positions).zip(weights.par_chunks(features)).enumerate().for_each(
        |(output, (out, weights))| {
            let patches = &patches[output / rows * features * positions..][..features * positions];
            dispatch(Isa::best(), Product { weights, patches, out });
        },
    );
}

/// `gradients = S X^T`, output by output, or added to what is there.
pub(super) fn channel_gradients(
    rows: usize,
    features: usize,
    positions: usize,
    slopes: &[f32],
    patches: &[f32],
    gradients: &mut [f32],
    added: bool,
) {
    gradients.par_chunks_mut(features).zip(slopes.par_chunks(positions)).enumerate().for_each(
        |(output, (out, slopes))| {
            let patches = &patches[output / rows * features * positions..][..features * positions];
            dispatch(Isa::best(), Gradient { slopes, patches, out, added });
        },
    );
}

struct Product<'a> {
    weights: &'a [f32],
    patches: &'a [f32],
    out: &'a mut [f32],
}

impl Loop for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let positions = self.out.len();
        for (block, out) in self.out.chunks_mut(BLOCK).enumerate() {
            out.fill(0.0);
            for (feature, &weight) in self.weights.iter().enumerate() {
                let row = &self.patches[feature * positions + block * BLOCK..][..out.len()];
                for (out, x) in out.iter_mut().zip(row) {
                    *out += weight * x;
                }
            }
        }
    }
}

struct Gradient<'a> {
    slopes: &'a [f32],
    patches: &'a [f32],
    out: &'a mut [f32],
    added: bool,
}

impl Loop for Gradient<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let rows = self.patches.chunks_exact(self.slopes.len());
        for (out, row) in self.out.iter_mut().zip(rows) {
            let sum = dot(self.slopes, row);
            *out = if self.added { *out + sum } else { sum };
        }
    }
}

/// The sum of products.
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = rest_a.iter().zip(rest_b).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}
