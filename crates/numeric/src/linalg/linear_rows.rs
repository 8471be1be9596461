//! The product of a linear layer for few rows, [`linear`](super::linear()) for many: every weight is read once, and meets all rows while
//! it is near. A result is one sum in one order, whatever the number of rows, of threads, and the instruction set.

use super::linear::{Content, Layer, Weight};
use super::matmul::{Matrix, MatrixMut};
use super::precision::Precision;
use crate::element_loop::{Element, ElementLoop};
use crate::kernel::{Elements, visit_elements, widen_elements};
use crate::simd::{Isa, LANES, Loop, add_products, dispatch};
use rayon::prelude::*;
use std::cell::Cell;
use std::ops::Range;

/// Elements of a weight that one thread works on at a time: they stay in its cache for all rows of `x`.
const STRIP: usize = 32 << 10;
/// Elements of a row of weights that are widened at a time.
pub(super) const BLOCK: usize = 512;
/// Rows of `x` that meet a weight at a time.
const ROWS: usize = 4;

thread_local! {
    /// Memory of a thread for elements as they are read and widened. Fresh memory for every strip would cost more than the product.
    static BUFFERS: Cell<(Vec<f32>, Vec<f32>)> = const { Cell::new((Vec::new(), Vec::new())) };
}

/// `out = x W^T + b` as [`linear`](super::linear()) says, row by row: in the precision, sums are `f32`.
///
/// # Panics
///
/// If the shapes do not match, or the rows of `x` are not contiguous.
pub fn linear_rows(out: MatrixMut<'_>, x: Matrix<'_>, weight: Weight<'_>, bias: Option<&[f32]>, precision: Precision) {
    let columns = weight.columns();
    let shapes = x.columns == columns && x.column_step == 1 && out.rows == x.rows;
    assert!(shapes && bias.is_none_or(|bias| bias.len() == out.columns), "shapes do not match");
    let MatrixMut { data, rows: tokens, columns: outputs, row_step } = out;
    let layer = Layer { weight, bias, precision };
    let rows: Vec<f32> =
        (0..tokens).flat_map(|row| &x.data[row * x.row_step..][..columns]).map(|x| precision.round(*x)).collect();
    let step = (STRIP / columns.max(1)).max(1);
    let strips = (0..outputs).step_by(step).collect::<Vec<_>>().into_par_iter();
    let strip = |start: usize| {
        let features = start..(start + step).min(outputs);
        let mut sums = vec![0.0; tokens * features.len()];
        let mut buffers = BUFFERS.take();
        layer_products(layer, features.clone(), &rows, &mut buffers, &mut sums);
        BUFFERS.set(buffers);
        let finish = layer.finish(features.clone());
        sums.chunks_exact_mut(features.len()).for_each(|row| finish.row(row));
        sums
    };
    let strips: Vec<Vec<f32>> = strips.map(strip).collect();
    for (index, sums) in strips.iter().enumerate() {
        let width = (outputs - index * step).min(step);
        for (token, sums) in sums.chunks_exact(width).enumerate() {
            data[token * row_step + index * step..][..width].copy_from_slice(sums);
        }
    }
}

/// The products of all rows of `x` with the weights of some features: a row of sums for each row of `x`.
fn layer_products(
    layer: Layer<'_>,
    features: Range<usize>,
    x: &[f32],
    (stored, widened): &mut (Vec<f32>, Vec<f32>),
    sums: &mut [f32],
) {
    let (columns, precision) = (layer.weight.columns(), layer.precision);
    if let Content::Coded(matrix, first) = layer.weight.content
        && x.len() <= ROWS * columns
    {
        let features = first + features.start..first + features.end;
        return matrix.multiply_rows(features, x, precision, sums);
    }
    let elements = layer.weight.elements(features, stored);
    let is_rounded = precision == Precision::F32 || matches!(elements, Elements::Bf16(_));
    let elements = match is_rounded {
        true => elements,
        false => {
            widened.resize(elements.len(), 0.0);
            widen_elements(Isa::best(), elements, widened);
            widened.iter_mut().for_each(|weight| *weight = precision.round(*weight));
            Elements::Values(widened)
        }
    };
    visit_elements(elements, FloatProducts { x, columns, sums });
}

/// Products with weights that are stored as floats.
struct FloatProducts<'a> {
    x: &'a [f32],
    columns: usize,
    sums: &'a mut [f32],
}

impl ElementLoop for FloatProducts<'_> {
    fn run<E: Element>(self, elements: &[E::Stored]) {
        let FloatProducts { x, columns, sums } = self;
        let weights = FloatRows::<E> { elements, columns };
        products(Isa::best(), weights, x, columns, sums);
    }
}

/// Rows of weights.
pub(super) trait WeightRows: Copy {
    /// The number of rows.
    fn count(self) -> usize;

    /// Writes some elements of a row, from a multiple of [`BLOCK`] on and at most as many.
    fn read(self, row: usize, from: usize, out: &mut [f32]);
}

struct FloatRows<'a, E: Element> {
    elements: &'a [E::Stored],
    columns: usize,
}

impl<E: Element> Clone for FloatRows<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E: Element> Copy for FloatRows<'_, E> {}

impl<E: Element> WeightRows for FloatRows<'_, E> {
    #[inline(always)]
    fn count(self) -> usize {
        self.elements.len() / self.columns
    }

    #[inline(always)]
    fn read(self, row: usize, from: usize, out: &mut [f32]) {
        let stored = &self.elements[row * self.columns + from..][..out.len()];
        for (value, stored) in out.iter_mut().zip(stored) {
            *value = E::widen(E::bits(*stored));
        }
    }
}

/// The products of all rows of `x` with all rows of weights: a row of sums for each row of `x`.
pub(super) fn products(isa: Isa, weights: impl WeightRows, x: &[f32], columns: usize, sums: &mut [f32]) {
    dispatch(isa, Products { isa, weights, x, columns, sums });
}

struct Products<'a, W> {
    isa: Isa,
    weights: W,
    x: &'a [f32],
    columns: usize,
    sums: &'a mut [f32],
}

impl<W: WeightRows> Loop for Products<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Products { isa, weights, x, columns, sums } = self;
        if columns == 0 {
            return;
        }
        let features = weights.count();
        // Loops, not closures given to iterators: those are not inlined for certain, and then compiled for the baseline.
        for (x, sums) in x.chunks(ROWS * columns).zip(sums.chunks_mut(ROWS * features)) {
            let rows = x.len() / columns;
            for feature in 0..features {
                if rows == ROWS {
                    let found = several::<W, ROWS>(isa, weights, feature, x, columns);
                    for (row, sum) in found.into_iter().enumerate() {
                        sums[row * features + feature] = sum;
                    }
                    continue;
                }
                for row in 0..rows {
                    let [sum] = several::<W, 1>(isa, weights, feature, &x[row * columns..][..columns], columns);
                    sums[row * features + feature] = sum;
                }
            }
        }
    }
}

/// The products of a row of weights with `N` rows. Weights are widened into a buffer that stays in the first cache: the compiler makes
/// vectors of a loop that widens, and not of one that widens and multiplies.
#[inline(always)]
fn several<W: WeightRows, const N: usize>(isa: Isa, weights: W, feature: usize, x: &[f32], columns: usize) -> [f32; N] {
    let mut lanes = [[0.0f32; LANES]; N];
    let mut buffer = [0.0; BLOCK];
    for from in (0..columns).step_by(BLOCK) {
        let width = BLOCK.min(columns - from);
        let weights_here = &mut buffer[..width];
        weights.read(feature, from, weights_here);
        for (row, lanes) in lanes.iter_mut().enumerate() {
            add_products(isa, weights_here, &x[row * columns + from..][..width], lanes);
        }
    }
    let mut sums = [0.0; N];
    for (row, lanes) in lanes.iter_mut().enumerate() {
        sums[row] = total(lanes);
    }
    sums
}

/// The sum of the lanes, by halves.
#[inline(always)]
fn total(lanes: &mut [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::linear;

    fn values(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed * 131) % 2003) as f32 / 1001.5 - 1.0).collect()
    }

    fn run(
        product: impl Fn(MatrixMut<'_>, Matrix<'_>, Weight<'_>, Option<&[f32]>, Precision),
        (tokens, outputs, inputs): (usize, usize, usize),
        precision: Precision,
        bf16: bool,
    ) -> Vec<f32> {
        let (x, w, bias) = (values(tokens * inputs, 1), values(outputs * inputs, 2), values(outputs, 3));
        let bytes: Vec<[u8; 2]> = w.iter().map(|w| ((w.to_bits() >> 16) as u16).to_le_bytes()).collect();
        let elements = if bf16 { Elements::Bf16(&bytes) } else { Elements::Values(&w) };
        let mut out = vec![7.0; tokens * (outputs + 1)];
        let weight = Weight::new(elements, outputs, inputs);
        let x = Matrix::new(&x, tokens, inputs, inputs);
        product(MatrixMut::new(&mut out, tokens, outputs, outputs + 1), x, weight, Some(&bias), precision);
        assert!(out.chunks(outputs + 1).all(|row| row[outputs] == 7.0), "written beyond a row");
        out
    }

    #[test]
    fn rows_match_products_of_matrices() {
        for shape in [(1, 1, 1), (1, 40, 64), (3, 17, 31), (9, 130, 300), (4, 5, 0)] {
            for (precision, bf16) in [(Precision::F32, false), (Precision::F32, true), (Precision::Bf16, false)] {
                let expected = run(linear, shape, precision, bf16);
                let found = run(linear_rows, shape, precision, bf16);
                let bound = if precision == Precision::Bf16 { 1e-2 } else { 1e-5 };
                let close = |(a, b): (&f32, &f32)| (a - b).abs() <= bound * (1.0 + a.abs());
                assert!(expected.iter().zip(&found).all(close), "{shape:?} {precision:?}");
            }
        }
    }

    #[test]
    fn rows_do_not_depend_on_how_many_there_are() {
        let (outputs, inputs) = (33, 75);
        let many = run(linear_rows, (7, outputs, inputs), Precision::F32, true);
        let one = run(linear_rows, (1, outputs, inputs), Precision::F32, true);
        assert_eq!(many[..outputs], one[..outputs]);
    }
}
