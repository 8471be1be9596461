//! Products of a linear layer whose weight learns: its outputs, the gradient of its inputs and that of its weight. What the
//! layers of a model that only runs compute is in `linear.rs`.

use super::gram::strips;
use super::linear::{Layer, Weight};
use super::matmul::{Matrix, MatrixMut, Threads, multiply, multiply_add};
use super::precision::Precision;
use super::tiled::{self, Terms, add_outer};
use crate::kernel::Elements;
use crate::simd::TileUnit;

/// What factors of products become while a weight learns; sums are `f32`. What a layer gives is not rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LearningPrecision {
    /// Factors are `f32`.
    #[default]
    F32,
    /// Factors are rounded to bfloat16, ties to even, where the CPU multiplies tiles of them (AMX, AVX-512 BF16, BFMMLA), and are
    /// `f32` on other CPUs, which would take longer.
    Bf16,
}

impl LearningPrecision {
    fn unit(self) -> Option<TileUnit> {
        match self {
            LearningPrecision::F32 => None,
            LearningPrecision::Bf16 => TileUnit::get(),
        }
    }

    /// `out = x W^T`: a row of `x` and of `out` for each token, and a weight `[outputs, inputs]`. Here and below, `threads` says how many
    /// take part in products of `f32`; those of bfloat16 are shared among the threads that are free.
    ///
    /// # Panics
    /// If the shapes do not match, or rows are not contiguous.
    pub fn outputs(self, out: MatrixMut<'_>, x: Matrix<'_>, weight: Matrix<'_>, threads: Threads) {
        let shapes = x.columns == weight.columns && out.rows == x.rows && out.columns == weight.rows;
        assert!(shapes && x.has_whole_rows() && weight.row_step == weight.columns, "shapes do not match");
        let Some(unit) = self.unit() else { return multiply(out, x, weight.transposed(), 1.0, threads) };
        let elements = Elements::Values(&weight.data[..weight.rows * weight.columns]);
        let weight = Weight::new(elements, weight.rows, weight.columns);
        tiled::linear(unit, out, x, Layer { weight, bias: None, precision: Precision::F32 }, Terms::Rounded);
    }

    /// `out = g W`: the gradient of a layer's inputs, of that of its outputs.
    ///
    /// # Panics
    /// If the shapes do not match, or rows are not contiguous.
    pub fn input_gradient(self, out: MatrixMut<'_>, gradient: Matrix<'_>, weight: Matrix<'_>, threads: Threads) {
        let shapes = gradient.columns == weight.rows && out.rows == gradient.rows && out.columns == weight.columns;
        assert!(shapes && gradient.has_whole_rows() && weight.has_whole_rows(), "shapes do not match");
        match self.unit() {
            Some(unit) => tiled::rows(unit, out, gradient, weight),
            None => multiply(out, gradient, weight, 1.0, threads),
        }
    }

    /// `sums += g^T x`: the gradient of a weight, of that of its outputs and of its inputs.
    ///
    /// # Panics
    /// If the shapes do not match, or rows are not contiguous.
    pub fn add_weight_gradient(self, sums: MatrixMut<'_>, gradient: Matrix<'_>, x: Matrix<'_>, threads: Threads) {
        let shapes = gradient.rows == x.rows && sums.rows == gradient.columns && sums.columns == x.columns;
        let are_whole = gradient.has_whole_rows() && x.has_whole_rows() && sums.row_step == sums.columns;
        assert!(shapes && are_whole, "shapes do not match");
        match self.unit() {
            Some(unit) => add_outer(unit, gradient, x, strips(0, x.columns, sums.data).collect()),
            None => multiply_add(sums, gradient.transposed(), x, 1.0, threads),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arithmetic::round_to_bf16;

    const SHAPES: [(usize, usize, usize); 7] =
        [(1, 1, 1), (33, 17, 31), (64, 64, 96), (100, 70, 33), (5, 300, 2000), (2, 3, 0), (0, 3, 4)];

    fn values(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0).collect()
    }

    /// The sums of products and of their magnitudes, to which errors are in proportion.
    fn sums(count: usize, product: impl Fn(usize) -> (f32, f32)) -> (f64, f64) {
        let products = (0..count).map(product).map(|(a, b)| f64::from(a) * f64::from(b));
        products.fold((0.0, 0.0), |(sum, magnitude), product| (sum + product, magnitude + product.abs()))
    }

    /// `tokens` rows, weights `[outputs, inputs]`.
    #[test]
    fn products_match_the_definition() {
        for (tokens, outputs, inputs) in SHAPES {
            for precision in [LearningPrecision::F32, LearningPrecision::Bf16] {
                let rounds = precision.unit().is_some();
                let of = |values: &[f32], i: usize| if rounds { round_to_bf16(values[i]) } else { values[i] };
                let (x, w, g) = (values(tokens * inputs, 1), values(outputs * inputs, 2), values(tokens * outputs, 3));
                let matrices = (
                    Matrix::new(&x, tokens, inputs, inputs),
                    Matrix::new(&w, outputs, inputs, inputs),
                    Matrix::new(&g, tokens, outputs, outputs),
                );
                let check = |found: &[f32], columns: usize, expected: &dyn Fn(usize, usize) -> (f64, f64)| {
                    for (i, found) in found.iter().enumerate() {
                        let (exact, magnitude) = expected(i / columns, i % columns);
                        let error = (f64::from(*found) - exact).abs();
                        assert!(
                            error <= 2e-6 * magnitude + 1e-6,
                            "{precision:?} {tokens} {outputs} {inputs} {i}: {found} {exact}"
                        );
                    }
                };
                let mut out = vec![7.0; tokens * outputs];
                precision.outputs(
                    MatrixMut::new(&mut out, tokens, outputs, outputs),
                    matrices.0,
                    matrices.1,
                    Threads::Pool,
                );
                check(&out, outputs, &|t, o| sums(inputs, |i| (of(&x, t * inputs + i), of(&w, o * inputs + i))));

                let mut back = vec![7.0; tokens * inputs];
                precision.input_gradient(
                    MatrixMut::new(&mut back, tokens, inputs, inputs),
                    matrices.2,
                    matrices.1,
                    Threads::Pool,
                );
                check(&back, inputs, &|t, i| sums(outputs, |o| (of(&g, t * outputs + o), of(&w, o * inputs + i))));

                let mut learned = vec![1.0; outputs * inputs];
                let place = MatrixMut::new(&mut learned, outputs, inputs, inputs);
                precision.add_weight_gradient(place, matrices.2, matrices.0, Threads::Pool);
                check(&learned, inputs, &|o, i| {
                    let (sum, magnitude) = sums(tokens, |t| (of(&g, t * outputs + o), of(&x, t * inputs + i)));
                    (1.0 + sum, 1.0 + magnitude)
                });
            }
        }
    }
}
