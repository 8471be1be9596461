//! The product of a linear layer, `x W^T + b`, with the weight as a checkpoint stores it, or with one whose rows must be computed
//! first, which is done piece by piece. Not how they are computed.

use super::coded::CodedMatrix;
use super::matmul::{Matrix, MatrixMut, Threads, multiply};
use super::precision::Precision;
use super::tiled::{self, Terms};
use crate::kernel::{Elements, widen_elements};
use crate::simd::{Isa, Loop, TileUnit, dispatch};
use rayon::prelude::*;
use std::ops::Range;

/// Elements of a weight that are unpacked at a time: large enough to hide the cost of starting threads, small enough that
/// memory does not grow with the model.
const PANEL: usize = 4 << 20;
/// Elements that one thread works on at a time.
const STRIP: usize = 64 << 10;

/// A weight `[rows, columns]`, row by row: `rows` output and `columns` input features.
#[derive(Clone, Copy)]
pub struct Weight<'a> {
    pub(super) content: Content<'a>,
    rows: usize,
    columns: usize,
}

/// Appends the elements of some rows.
type ReadRows<'a> = dyn Fn(Range<usize>, &mut Vec<f32>) + Sync + 'a;

/// The source of elements.
#[derive(Clone, Copy)]
pub(super) enum Content<'a> {
    Stored(Elements<'a>),
    /// Codes, from a row on.
    Coded(&'a CodedMatrix, usize),
    Read(&'a ReadRows<'a>),
}

impl<'a> Weight<'a> {
    /// `rows * columns` elements.
    ///
    /// # Panics
    ///
    /// If there are more or fewer.
    pub fn new(elements: Elements<'a>, rows: usize, columns: usize) -> Weight<'a> {
        assert!(
            rows.checked_mul(columns) == Some(elements.len()),
            "{} elements are not {rows}x{columns}",
            elements.len()
        );
        Weight { content: Content::Stored(elements), rows, columns }
    }

    /// Elements that `read` appends for any range of rows, on any thread.
    pub fn read(read: &'a ReadRows<'a>, rows: usize, columns: usize) -> Weight<'a> {
        Weight { content: Content::Read(read), rows, columns }
    }

    /// Some rows of codes, which products with few rows decode as they go.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    pub fn coded(matrix: &'a CodedMatrix, first: usize, rows: usize) -> Weight<'a> {
        let (all, columns) = matrix.shape();
        assert!(first + rows <= all, "rows {first}..{} of {all}", first + rows);
        Weight { content: Content::Coded(matrix, first), rows, columns }
    }

    /// The number of columns.
    pub(super) fn columns(self) -> usize {
        self.columns
    }

    /// The elements of some rows, in `values` where they must be computed.
    pub(super) fn elements<'v>(self, rows: Range<usize>, values: &'v mut Vec<f32>) -> Elements<'v>
    where
        'a: 'v,
    {
        match self.content {
            Content::Stored(elements) => elements.slice(rows.start * self.columns..rows.end * self.columns),
            Content::Coded(matrix, first) => {
                values.clear();
                matrix.read(Isa::best(), first + rows.start..first + rows.end, values);
                Elements::Values(values)
            }
            Content::Read(read) => {
                values.clear();
                read(rows, values);
                Elements::Values(values)
            }
        }
    }
}

/// `out = x W^T + b`, on all threads of the current rayon pool, which changes no bit of the result.
///
/// In `f32` the products and sums are those of `f32`. In bfloat16 `x` and the weight are rounded to it, ties to even,
/// products are exact, sums are `f32`, and `out` is rounded after the bias was added. Where the CPU multiplies
/// tiles (AMX, AVX-512 BF16, BFMMLA), it does this, and with AMX products of `f32` with bfloat16 weights too (`x` as a sum of three
/// bfloat16, which is exact save for what is below the smallest normal number); its sums may differ in the last bits from those of
/// other CPUs.
///
/// # Panics
///
/// If the shapes do not match, or the rows of `x` are not contiguous.
pub fn linear(out: MatrixMut<'_>, x: Matrix<'_>, weight: Weight<'_>, bias: Option<&[f32]>, precision: Precision) {
    let shapes = x.columns == weight.columns && out.rows == x.rows && out.columns == weight.rows;
    assert!(shapes && bias.is_none_or(|bias| bias.len() == weight.rows), "shapes do not match");
    assert!(x.column_step == 1, "the rows of x are not contiguous");
    let layer = Layer { weight, bias, precision };
    let terms = match (precision, weight.content) {
        (Precision::Bf16, _) => Some(Terms::Rounded),
        (Precision::F32, Content::Stored(Elements::Bf16(_))) => Some(Terms::Exact),
        (Precision::F32, _) => None,
    };
    match (TileUnit::get(), terms) {
        (Some(unit), Some(terms)) if unit.pays(terms.count()) => tiled::linear(unit, out, x, layer, terms),
        _ => widened(out, x, layer),
    }
}

/// A linear layer.
#[derive(Clone, Copy)]
pub(super) struct Layer<'a> {
    pub(super) weight: Weight<'a>,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) precision: Precision,
}

impl<'a> Layer<'a> {
    /// The operation on the sums of some output features.
    pub(super) fn finish(self, features: Range<usize>) -> Finish<'a> {
        Finish { bias: self.bias.map(|bias| &bias[features]), precision: self.precision }
    }
}

/// The operation that turns sums into results.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finish<'a> {
    bias: Option<&'a [f32]>,
    precision: Precision,
}

impl Finish<'_> {
    /// Sums are results.
    pub(super) const NOTHING: Finish<'static> = Finish { bias: None, precision: Precision::F32 };

    /// Returns whether sums are results.
    fn is_nothing(self) -> bool {
        self.bias.is_none() && self.precision == Precision::F32
    }

    /// The same for some of the features.
    pub(super) fn part(self, features: Range<usize>) -> Self {
        Finish { bias: self.bias.map(|bias| &bias[features]), ..self }
    }

    /// From the sums of one row to its results.
    #[inline(always)]
    pub(super) fn row(self, row: &mut [f32]) {
        if let Some(bias) = self.bias {
            row.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += *bias);
        }
        row.iter_mut().for_each(|sum| *sum = self.precision.round(*sum));
    }
}

/// The product by the `f32` kernels: the weight is widened piece by piece. Products of bfloat16 are exact in `f32`.
pub(super) fn widened(out: MatrixMut<'_>, x: Matrix<'_>, layer: Layer<'_>) {
    let MatrixMut { data, rows: tokens, columns: outputs, row_step } = out;
    let rounded = (layer.precision == Precision::Bf16).then(|| rounded(x));
    let x = rounded.as_ref().map_or(x, |rows| Matrix::new(rows, x.rows, x.columns, x.columns));
    let step = (PANEL / x.columns.max(1)).max(1);
    let mut panel = Vec::new();
    for start in (0..outputs).step_by(step) {
        let rows = start..(start + step).min(outputs);
        widen(layer, rows.clone(), &mut panel);
        let w = Matrix::new(&panel, rows.len(), x.columns, x.columns).transposed();
        multiply(MatrixMut::new(&mut data[start..], tokens, rows.len(), row_step), x, w, 1.0, Threads::Pool);
        finish(layer.finish(rows.clone()), &mut data[start..], rows.len(), row_step);
    }
}

fn rounded(x: Matrix<'_>) -> Vec<f32> {
    let rows = (0..x.rows).into_par_iter().flat_map_iter(|row| &x.data[row * x.row_step..][..x.columns]);
    rows.map(|x| Precision::Bf16.round(*x)).collect()
}

/// Some rows of the weight as `f32`, in the precision of the layer.
fn widen(layer: Layer<'_>, rows: Range<usize>, panel: &mut Vec<f32>) {
    let columns = layer.weight.columns.max(1);
    let step = (STRIP / columns).max(1);
    panel.resize(rows.len() * layer.weight.columns, 0.0);
    panel.par_chunks_mut(step * columns).enumerate().for_each_init(Vec::new, |values, (index, out)| {
        let start = rows.start + index * step;
        let elements = layer.weight.elements(start..start + out.len() / columns, values);
        widen_elements(Isa::best(), elements, out);
        if layer.precision == Precision::Bf16 && !matches!(elements, Elements::Bf16(_)) {
            out.iter_mut().for_each(|w| *w = Precision::Bf16.round(*w));
        }
    });
}

/// Finishes the first `width` elements of every row.
fn finish(finish: Finish<'_>, data: &mut [f32], width: usize, row_step: usize) {
    if finish.is_nothing() {
        return;
    }
    let rows = (STRIP / row_step.max(1)).max(1);
    data.par_chunks_mut(rows * row_step.max(1)).for_each(|rows| {
        dispatch(Isa::best(), FinishRows { finish, rows, width, row_step });
    });
}

struct FinishRows<'a> {
    finish: Finish<'a>,
    rows: &'a mut [f32],
    width: usize,
    row_step: usize,
}

impl Loop for FinishRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for row in self.rows.chunks_mut(self.row_step.max(1)) {
            let width = self.width.min(row.len());
            self.finish.row(&mut row[..width]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arithmetic::round_to_bf16;
    use crate::kernel::FloatDType;

    const SHAPES: [(usize, usize, usize); 8] =
        [(1, 1, 1), (1, 40, 64), (33, 17, 31), (64, 64, 96), (100, 70, 33), (5, 200, 300), (2, 3, 0), (65, 1, 1000)];

    /// Numbers of all magnitudes between 1/8 and 1, both signs.
    fn values(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let value = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits((state & 0x807F_FFFF) | (124 + (state >> 29)) << 23) / 8.0
        };
        (0..count).map(value).collect()
    }

    struct Case {
        shape: (usize, usize, usize),
        x: Vec<f32>,
        w: Vec<f32>,
        bytes: Vec<u8>,
        bias: Vec<f32>,
    }

    impl Case {
        fn new(shape: (usize, usize, usize)) -> Case {
            let (m, n, k) = shape;
            let w: Vec<f32> = values(n * k, 2).into_iter().map(round_to_bf16).collect();
            let bytes = w.iter().flat_map(|w| ((w.to_bits() >> 16) as u16).to_le_bytes()).collect();
            Case { shape, x: values(m * k, 1), w, bytes, bias: values(n, 3) }
        }

        fn layer(&self, precision: Precision) -> Layer<'_> {
            let elements = Elements::stored(FloatDType::Bf16, &self.bytes).unwrap();
            Layer { weight: Weight::new(elements, self.shape.1, self.shape.2), bias: Some(&self.bias), precision }
        }

        /// The result of a path, in rows two elements longer, which must be left alone.
        fn run(&self, path: impl Fn(MatrixMut<'_>, Matrix<'_>)) -> Vec<f32> {
            let (m, n, k) = self.shape;
            let mut out = vec![7.0; m * (n + 2)];
            path(MatrixMut::new(&mut out, m, n, n + 2), Matrix::new(&self.x, m, k, k));
            assert!(out.chunks(n + 2).all(|row| row[n..] == [7.0, 7.0]));
            out.chunks(n + 2).flat_map(|row| &row[..n]).copied().collect()
        }

        /// The exact results, and the sums of the products' magnitudes, to which errors are in proportion.
        fn expected(&self, precision: Precision) -> Vec<(f64, f64)> {
            let (m, n, k) = self.shape;
            let element = |i: usize| {
                let (row, column) = (i / n, i % n);
                let product =
                    |d: usize| f64::from(precision.round(self.x[row * k + d])) * f64::from(self.w[column * k + d]);
                let bias = f64::from(self.bias[column]);
                let exact = bias + (0..k).map(product).sum::<f64>();
                (exact, bias.abs() + (0..k).map(|d| product(d).abs()).sum::<f64>())
            };
            (0..m * n).map(element).collect()
        }

        /// Sums in `f32` of at most 1000 products err by less than 2e-6 of the sum of magnitudes; rounding the result adds
        /// half a unit in the last of 8 bits.
        fn check(&self, precision: Precision, results: &[f32], what: &str) {
            let rounding = if precision == Precision::Bf16 { 1.0 / 256.0 } else { 0.0 };
            for (i, (ours, (exact, magnitude))) in results.iter().zip(self.expected(precision)).enumerate() {
                let bound = 2e-6 * magnitude + rounding * exact.abs();
                assert!((f64::from(*ours) - exact).abs() <= bound, "{what} {:?} {i}: {ours} {exact}", self.shape);
                assert_eq!(precision.round(*ours), *ours);
            }
        }
    }

    #[test]
    fn both_paths_stay_within_error_bounds() {
        for case in SHAPES.map(Case::new) {
            for precision in [Precision::F32, Precision::Bf16] {
                let layer = case.layer(precision);
                case.check(precision, &case.run(|out, x| widened(out, x, layer)), "widened");
                let terms = if precision == Precision::F32 { Terms::Exact } else { Terms::Rounded };
                for unit in TileUnit::available() {
                    let results = case.run(|out, x| tiled::linear(unit, out, x, layer, terms));
                    case.check(precision, &results, &format!("{unit:?}"));
                }
            }
        }
    }

    #[test]
    fn weights_of_every_type_are_rounded_to_bf16() {
        let case = Case::new((40, 35, 50));
        let exact = values(35 * 50, 2);
        let bytes: Vec<u8> = exact.iter().flat_map(|w| w.to_le_bytes()).collect();
        for elements in [Elements::Values(&exact), Elements::stored(FloatDType::F32, &bytes).unwrap()] {
            let layer = Layer { weight: Weight::new(elements, 35, 50), ..case.layer(Precision::Bf16) };
            case.check(Precision::Bf16, &case.run(|out, x| widened(out, x, layer)), "widened");
            let weight = layer.weight;
            let results = case.run(|out, x| linear(out, x, weight, layer.bias, Precision::Bf16));
            case.check(Precision::Bf16, &results, "linear");
        }
    }

    #[test]
    fn linear_does_not_depend_on_the_number_of_threads() {
        let case = Case::new((300, 70, 129));
        for precision in [Precision::F32, Precision::Bf16] {
            let weight = case.layer(precision).weight;
            let run = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| case.run(|out, x| linear(out, x, weight, Some(&case.bias), precision)))
            };
            let one = run(1);
            assert!([2, 3, 8].into_iter().all(|threads| run(threads) == one));
        }
    }

    #[test]
    #[should_panic(expected = "are not 2x3")]
    fn weight_of_wrong_size_is_refused() {
        Weight::new(Elements::Values(&[0.0; 5]), 2, 3);
    }
}
