//! What follows from a Hessian before a weight is seen: the order of columns, and the factors by which columns make up for
//! one another. Shared by all weights that read the same inputs.

use super::drift::Drift;
use super::sweep::sweep;
use super::{ColumnOrder, Damping, Gptq};
use crate::hessian::{Hessian, HessianError};
use crate::quant_tensor::QuantTensor;
use crate::rounding::{RoundingError, Rtn, TensorContext};
use crate::scheme::{Axis, Granularity, TensorScheme};
use kvant_numeric::kernel::{Range, group_ranges};
use kvant_numeric::linalg::{Cholesky, Gram, LowerBlocks, Matrix, MatrixMut, Threads, multiply};
use kvant_numeric::simd::Isa;
use rayon::prelude::*;
use std::borrow::Cow;

/// Columns of a block: the sums over earlier blocks are products of matrices, those within a block are not.
pub(super) const BLOCK: usize = 128;

/// Rows of a weight whose parameters are found at a time.
const BAND: usize = 256;

/// More damping is tried so often before a Hessian is refused.
const TRIES: u32 = 5;

/// The factors of one Hessian for one algorithm: see [`Gptq::prepare`].
#[derive(Clone, Debug)]
pub struct Feedback {
    /// The column that is rounded at each position.
    pub(super) order: Vec<usize>,
    /// Columns, by number, whose inputs were always zero.
    dead: Vec<bool>,
    /// What the loss is made of, at each position.
    pub(super) shares: Vec<Shares>,
    /// Row `j` holds `F_ij` for positions `i < j`, and zeros from the diagonal on.
    pub(super) factors: LowerBlocks,
    pub(super) drift: Drift,
    /// What was added to the diagonal.
    damping: f64,
    pub(super) isa: Isa,
}

/// The part that a column has in the loss: `left |c_j - q_j|^2 - error |w_j - q_j|^2`, where the second term takes
/// away what is due to the damping alone. Nothing where the inputs were always zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    pub(super) left: f64,
    pub(super) error: f64,
}

/// A rounded weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Rounded {
    /// The quantized weight.
    pub tensor: QuantTensor,
    /// The squared error of the layer's outputs over all tokens of the Hessian, as
    /// [`Hessian::loss`](crate::hessian::Hessian::loss) defines it (weights of dead columns count as zero).
    pub loss: f64,
}

impl Feedback {
    pub(super) fn new(settings: &Gptq, hessian: &Hessian) -> Result<Feedback, HessianError> {
        let gram = hessian.gram();
        let diagonal = Diagonal::new(gram)?;
        let order = diagonal.order(settings.order);
        let wanted = match settings.damping {
            Damping::OfMeanDiagonal(share) => share * diagonal.mean,
            Damping::OfLargestEigenvalue(share) => share * largest_eigenvalue(gram),
        };
        let (cholesky, damping) = factor(gram, &diagonal, &order, wanted)?;
        let drift = Drift::new(settings.variant, hessian, &cholesky, &order, diagonal.of(order[0]))?;
        let pivots = (0..order.len()).rev().map(|i| cholesky.pivot(i));
        let shares = order.iter().zip(pivots).map(|(column, pivot)| match diagonal.dead[*column] {
            true => Shares { left: 0.0, error: 0.0 },
            false => Shares { left: pivot * pivot, error: damping },
        });
        let shares = shares.collect();
        Ok(Feedback {
            factors: factors(&cholesky),
            order,
            dead: diagonal.dead,
            shares,
            drift,
            damping,
            isa: Isa::best(),
        })
    }

    /// The same with a given instruction set; the codes are the same too.
    pub fn on(self, isa: Isa) -> Feedback {
        Feedback { isa, ..self }
    }

    /// Columns of the weights that it is for.
    pub fn columns(&self) -> usize {
        self.order.len()
    }

    /// Columns whose inputs were zero in every token: their weights become zero.
    pub fn dead_columns(&self) -> usize {
        self.dead.iter().filter(|dead| **dead).count()
    }

    /// What was added to the diagonal of the Hessian.
    pub fn damping(&self) -> f64 {
        self.damping
    }

    /// Rounds a row-major weight of `rows` rows. Scales and zero points are those of [`Rtn`] for the weight as it comes, its
    /// dead columns zero; only the codes are chosen otherwise. All threads of the current rayon pool take part; the codes do
    /// not depend on their number.
    ///
    /// # Errors
    /// Those of [`Rtn::new`] and [`Rtn::round`], and where the weight has other columns than the Hessian.
    pub fn round(
        &self,
        weights: &[f32],
        rows: usize,
        scheme: TensorScheme,
        context: TensorContext,
    ) -> Result<Rounded, RoundingError> {
        let columns = self.columns();
        if weights.len() != rows * columns {
            let columns = weights.len().checked_div(rows).unwrap_or(0);
            return Err(HessianError::Features { columns, features: self.columns() }.into());
        }
        let weights = self.without_dead(weights);
        let mut tensor = parameters(scheme, context, &weights, rows, columns)?;
        let loss = sweep(self, &weights, context, &mut tensor)?;
        Ok(Rounded { tensor, loss })
    }

    fn without_dead<'a>(&self, weights: &'a [f32]) -> Cow<'a, [f32]> {
        if self.dead_columns() == 0 {
            return Cow::Borrowed(weights);
        }
        let mut weights = weights.to_vec();
        for row in weights.chunks_mut(self.columns()) {
            row.iter_mut().zip(&self.dead).filter(|(_, dead)| **dead).for_each(|(weight, _)| *weight = 0.0);
        }
        Cow::Owned(weights)
    }
}

/// The diagonal of a Hessian, with the mean where it is zero.
struct Diagonal {
    values: Vec<f64>,
    dead: Vec<bool>,
    mean: f64,
}

impl Diagonal {
    fn new(gram: &Gram) -> Result<Diagonal, HessianError> {
        if !gram.sums().elements().iter().all(|sum| sum.is_finite()) {
            return Err(HessianError::NotFinite);
        }
        let mut values: Vec<f64> = gram.diagonal().into_iter().map(f64::from).collect();
        let dead: Vec<bool> = values.iter().map(|value| *value <= 0.0).collect();
        let alive = dead.iter().filter(|dead| !**dead).count();
        if alive == 0 {
            return Err(HessianError::NoData);
        }
        let mean = values.iter().sum::<f64>() / alive as f64;
        values.iter_mut().zip(&dead).filter(|(_, dead)| **dead).for_each(|(value, _)| *value = mean);
        Ok(Diagonal { values, dead, mean })
    }

    fn of(&self, column: usize) -> f64 {
        self.values[column]
    }

    fn order(&self, order: ColumnOrder) -> Vec<usize> {
        let mut columns: Vec<usize> = (0..self.values.len()).collect();
        if order == ColumnOrder::Activation {
            columns.sort_by(|a, b| self.values[*b].total_cmp(&self.values[*a]));
        }
        columns
    }
}

/// The Cholesky factor of the damped Hessian, columns from the last position to the first, and the damping. Where a
/// damping is too small, ten times more is tried.
fn factor(gram: &Gram, diagonal: &Diagonal, order: &[usize], wanted: f64) -> Result<(Cholesky, f64), HessianError> {
    let mut extra = wanted.abs().max(1e-6 * diagonal.mean).max(f64::EPSILON);
    let mut damping = wanted;
    for _ in 0..=TRIES {
        if let Ok(cholesky) = Cholesky::factor(reversed(gram, diagonal, order, damping), order.len()) {
            return Ok((cholesky, damping));
        }
        damping = wanted + extra;
        extra *= 10.0;
    }
    Err(HessianError::NotPositiveDefinite { tries: TRIES })
}

/// The lower half of the damped Hessian, column-major, with the last position first.
fn reversed(gram: &Gram, diagonal: &Diagonal, order: &[usize], damping: f64) -> Vec<f64> {
    let (size, sums) = (order.len(), gram.sums().elements());
    let starts: Vec<usize> = (0..size).map(|row| gram.sums().start(row)).collect();
    let backwards: Vec<usize> = order.iter().rev().copied().collect();
    let mut matrix = vec![0.0; size * size];
    matrix.par_chunks_mut(size).enumerate().for_each(|(first, out)| {
        let column = backwards[first];
        for (out, row) in out[first..].iter_mut().zip(&backwards[first..]) {
            *out = f64::from(sums[starts[column.max(*row)] + column.min(*row)]);
        }
        out[first] = diagonal.of(column) + damping;
    });
    matrix
}

/// `F_ij = M_ij / M_jj`: a column of the reversed factor, read upwards.
fn factors(cholesky: &Cholesky) -> LowerBlocks {
    let size = cholesky.size();
    let mut factors = LowerBlocks::zeros(size, BLOCK);
    factors.split_mut().into_par_iter().for_each(|(place, elements)| {
        for (position, row) in place.rows.clone().zip(elements.chunks_mut(place.columns)) {
            let column = cholesky.column(size - 1 - position);
            let inverse = 1.0 / column[0];
            let from_diagonal = column[1..].iter().rev();
            row.iter_mut().zip(from_diagonal).for_each(|(factor, element)| *factor = (element * inverse) as f32);
        }
    });
    factors
}

/// The largest eigenvalue: the Rayleigh quotient after thirty power iterations from ones.
fn largest_eigenvalue(gram: &Gram) -> f64 {
    let mut vector = vec![1.0; gram.features()];
    for _ in 0..30 {
        vector = times(gram, &vector);
        normalize(&mut vector);
    }
    let products = times(gram, &vector);
    vector.iter().zip(products).map(|(v, product)| f64::from(*v) * f64::from(product)).sum()
}

fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
    }
}

/// The symmetric matrix times a vector.
fn times(gram: &Gram, vector: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; vector.len()];
    let mut part = vec![0.0; vector.len()];
    for place in gram.sums().block_rows() {
        let (first, height, width) = (place.rows.start, place.rows.len(), place.columns);
        let block = Matrix::new(gram.sums().block_row(&place), height, width, width);
        let right = Matrix::new(vector, width, 1, 1);
        multiply(MatrixMut::new(&mut part, height, 1, 1), block, right, 1.0, Threads::Pool);
        out[first..width].iter_mut().zip(&part).for_each(|(out, part)| *out += part);
        let above = Matrix::new(gram.sums().block_row(&place), height, first, width).transposed();
        let right = Matrix::new(&vector[first..], height, 1, 1);
        multiply(MatrixMut::new(&mut part, first, 1, 1), above, right, 1.0, Threads::Pool);
        out[..first].iter_mut().zip(&part).for_each(|(out, part)| *out += part);
    }
    out
}

/// The weight rounded to nearest, of which scales and zero points stay: in bands of rows where no scale spans rows.
fn parameters(
    scheme: TensorScheme,
    context: TensorContext,
    weights: &[f32],
    rows: usize,
    columns: usize,
) -> Result<QuantTensor, RoundingError> {
    let by_rows = matches!(
        scheme.granularity(),
        Some(Granularity::Channel(Axis::Rows) | Granularity::Group { axis: Axis::Columns, .. })
    );
    if !by_rows || rows <= BAND {
        return Rtn::new(scheme, context)?.round(weights, rows, columns);
    }
    let range = context.range.or_else(|| scheme.needs_tensor_range().then(|| range(weights)));
    let rtn = Rtn::new(scheme, TensorContext { range, ..context })?;
    let bands = weights.par_chunks(BAND * columns).map(|band| rtn.round(band, band.len() / columns, columns));
    let mut bands = bands.collect::<Result<Vec<_>, _>>()?.into_iter();
    let mut whole = bands.next().unwrap_or_else(|| rtn.empty(columns));
    for band in bands {
        whole.append_rows(band)?;
    }
    Ok(whole)
}

fn range(weights: &[f32]) -> Range {
    let mut range = [Range::EMPTY];
    group_ranges(Isa::best(), weights, weights.len().max(1), &mut range);
    range[0]
}
