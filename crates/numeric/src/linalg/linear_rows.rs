//! The product of a linear layer for few rows, [`linear`](super::linear()) for many: every weight is read once, and meets all rows while
//! it is near. A result is one sum in one order, whatever the number of rows, of threads, and the instruction set.

use super::linear::{Layer, Weight};
use super::matmul::{Matrix, MatrixMut};
use super::precision::Precision;
use crate::kernel::{Elements, widen_elements};
use crate::simd::{Isa, Loop, dispatch};
use rayon::prelude::*;

/// Elements of a weight that one thread works on at a time: they stay in its cache for all rows of `x`.
const STRIP: usize = 32 << 10;
/// Partial sums that are kept side by side, one in each lane.
const LANES: usize = 32;
/// Rows of `x` that meet a weight at a time.
const ROWS: usize = 4;

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
    let strip = |(stored, widened): &mut (Vec<f32>, Vec<f32>), start: usize| {
        let features = start..(start + step).min(outputs);
        let elements = layer.weight.elements(features.clone(), stored);
        let is_rounded = precision == Precision::F32 || matches!(elements, Elements::Bf16(_));
        let mut sums = vec![0.0; tokens * features.len()];
        match elements {
            Elements::Values(weights) if is_rounded => products(weights, &rows, columns, &mut sums),
            Elements::Bf16(weights) => products(weights, &rows, columns, &mut sums),
            _ => {
                widened.resize(elements.len(), 0.0);
                widen_elements(Isa::best(), elements, widened);
                widened.iter_mut().for_each(|weight| *weight = precision.round(*weight));
                products(widened, &rows, columns, &mut sums);
            }
        }
        let finish = layer.finish(features.clone());
        sums.chunks_exact_mut(features.len()).for_each(|row| finish.row(row));
        sums
    };
    let strips: Vec<Vec<f32>> = strips.map_init(Default::default, strip).collect();
    for (index, sums) in strips.iter().enumerate() {
        let width = (outputs - index * step).min(step);
        for (token, sums) in sums.chunks_exact(width).enumerate() {
            data[token * row_step + index * step..][..width].copy_from_slice(sums);
        }
    }
}

/// A weight in memory.
trait Stored: Copy + Sync {
    fn widened(self) -> f32;
}

impl Stored for f32 {
    #[inline(always)]
    fn widened(self) -> f32 {
        self
    }
}

/// A bfloat16, the upper half of an `f32`.
impl Stored for [u8; 2] {
    #[inline(always)]
    fn widened(self) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes(self)) << 16)
    }
}

/// The products of all rows of `x` with some rows of weights: a row of sums for each row of `x`.
fn products<W: Stored>(weights: &[W], x: &[f32], columns: usize, sums: &mut [f32]) {
    dispatch(Isa::best(), Products { weights, x, columns, sums });
}

struct Products<'a, W> {
    weights: &'a [W],
    x: &'a [f32],
    columns: usize,
    sums: &'a mut [f32],
}

impl<W: Stored> Loop for Products<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Products { weights, x, columns, sums } = self;
        if columns == 0 {
            return;
        }
        let features = weights.len() / columns;
        for (x, sums) in x.chunks(ROWS * columns).zip(sums.chunks_mut(ROWS * features)) {
            for (feature, weights) in weights.chunks_exact(columns).enumerate() {
                match x.len() / columns {
                    ROWS => several::<W, ROWS>(weights, x, columns, |row, sum| sums[row * features + feature] = sum),
                    rows => (0..rows).for_each(|row| {
                        let x = &x[row * columns..][..columns];
                        several::<W, 1>(weights, x, columns, |_, sum| sums[row * features + feature] = sum);
                    }),
                }
            }
        }
    }
}

/// The products of a row of weights with `N` rows.
#[inline(always)]
fn several<W: Stored, const N: usize>(weights: &[W], x: &[f32], columns: usize, mut put: impl FnMut(usize, f32)) {
    let mut lanes = [[0.0f32; LANES]; N];
    let whole = columns / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        let weights: [f32; LANES] = std::array::from_fn(|lane| weights[at..at + LANES][lane].widened());
        for (row, lanes) in lanes.iter_mut().enumerate() {
            let x = &x[row * columns + at..][..LANES];
            for ((lane, weight), x) in lanes.iter_mut().zip(&weights).zip(x) {
                *lane += weight * x;
            }
        }
    }
    for (row, lanes) in lanes.iter_mut().enumerate() {
        let rest = weights[whole..].iter().zip(&x[row * columns + whole..][..columns - whole]);
        for (lane, (weight, x)) in lanes.iter_mut().zip(rest) {
            *lane += weight.widened() * x;
        }
        put(row, total(lanes));
    }
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
