//! Everything that follows from a Hessian without a weight: the order of columns, and the factors by which columns compensate for
//! each other. Shared by all weights that read the same inputs.

use super::damped::{Diagonal, factor, largest_eigenvalue};
use super::mismatch::MismatchFactors;
use super::sweep::sweep;
use super::{Damping, Gptq, Groups};
use crate::hessian::{Hessian, HessianError};
use crate::quant_tensor::QuantTensor;
use crate::rounding::bands::nearest_in_bands;
use crate::rounding::{RoundingError, TensorContext, Weights};
use crate::scheme::TensorScheme;
use kvant_numeric::ComputeDType;
use kvant_numeric::kernel::Elements;
use kvant_numeric::linalg::LowerBlocks;
use kvant_numeric::simd::Isa;
use std::borrow::Cow;

/// The factors of one Hessian for one algorithm: see [`Gptq::prepare`].
#[derive(Clone, Debug)]
pub struct GptqFactors {
    /// The column that is rounded at each position.
    pub(super) order: Vec<usize>,
    /// Columns, by number, whose inputs were always zero.
    dead: Vec<bool>,
    /// The terms of the loss at each position.
    pub(super) shares: Vec<Shares>,
    /// Row `j` holds `F_ij` for positions `i < j`, and zeros from the diagonal on.
    pub(super) rows: LowerBlocks,
    pub(super) mismatch: MismatchFactors,
    /// The sum of squares of each input.
    importance: Vec<f32>,
    pub(super) groups: Groups,
    /// The damping added to the diagonal.
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

impl GptqFactors {
    pub(super) fn new(settings: &Gptq, hessian: &Hessian) -> Result<GptqFactors, HessianError> {
        let gram = hessian.gram();
        let diagonal = Diagonal::new(gram)?;
        let order = diagonal.order(settings.order);
        let wanted = match settings.damping {
            Damping::OfMeanDiagonal(share) => share * diagonal.mean,
            Damping::OfLargestEigenvalue(share) => share * largest_eigenvalue(gram),
        };
        let (cholesky, damping) = factor(gram, &diagonal, &order, wanted)?;
        let mismatch = MismatchFactors::new(settings, hessian, &cholesky, &order, diagonal.of(order[0]))?;
        let pivots = (0..order.len()).rev().map(|i| cholesky.pivot(i));
        let shares = order.iter().zip(pivots).map(|(column, pivot)| match diagonal.dead[*column] {
            true => Shares { left: 0.0, error: 0.0 },
            false => Shares { left: pivot * pivot, error: damping },
        });
        let shares = shares.collect();
        Ok(GptqFactors {
            // `F_ij = M_ij / M_jj`, and `M` is the factor backwards.
            rows: cholesky.into_reversed_columns(settings.block),
            groups: settings.order.groups(),
            order,
            dead: diagonal.dead,
            shares,
            mismatch,
            importance: gram.diagonal(),
            damping,
            isa: Isa::best(),
        })
    }

    /// The same with a given instruction set; the codes are the same too.
    pub fn on(self, isa: Isa) -> GptqFactors {
        GptqFactors { isa, ..self }
    }

    /// Columns of the weights that it is for.
    pub fn columns(&self) -> usize {
        self.order.len()
    }

    /// Columns whose inputs were zero in every token: their weights become zero.
    pub fn dead_columns(&self) -> usize {
        self.dead.iter().filter(|dead| **dead).count()
    }

    /// The damping added to the diagonal of the Hessian.
    pub fn damping(&self) -> f64 {
        self.damping
    }

    /// Rounds a row-major weight of `rows` rows. Scales and zero points are those of [`Rtn`](crate::rounding::Rtn) for the weight as it comes, its
    /// dead columns zero (with [`Groups::Dynamic`], for each group of columns as updated); only the codes are chosen
    /// otherwise. All threads of the current rayon pool take part; the codes do not depend on their number.
    ///
    /// # Errors
    /// Those of [`Rtn::new`](crate::rounding::Rtn::new) and [`Rtn::round`](crate::rounding::Rtn::round), and where the weight has other columns than the Hessian.
    pub fn round(
        &self,
        weights: &[f32],
        rows: usize,
        scheme: TensorScheme,
        context: TensorContext,
    ) -> Result<Rounded, RoundingError> {
        self.check(weights, rows)?;
        let weights = self.without_dead(weights);
        let tensor = nearest_in_bands(scheme, context, self.weighed(&weights, rows))?;
        self.sweep(&weights, context, tensor)
    }

    /// The same with the scales and zero points of other values than those that are rounded: of a clipped weight, whose
    /// clipping is an error that is compensated like others.
    ///
    /// # Errors
    /// As [`round`](Self::round), for both; [`HessianError::ParametersNotStatic`] with [`Groups::Dynamic`].
    pub fn round_to(
        &self,
        weights: &[f32],
        parameters_from: &[f32],
        rows: usize,
        scheme: TensorScheme,
        context: TensorContext,
    ) -> Result<Rounded, RoundingError> {
        if self.groups == Groups::Dynamic {
            return Err(HessianError::ParametersNotStatic.into());
        }
        self.check(weights, rows)?;
        self.check(parameters_from, rows)?;
        if !weights.iter().all(|weight| weight.is_finite()) {
            return Err(RoundingError::NotFinite);
        }
        let from = self.without_dead(parameters_from);
        let tensor = nearest_in_bands(scheme, context, self.weighed(&from, rows))?;
        self.sweep(&self.without_dead(weights), context, tensor)
    }

    /// The same with the scales and zero points of `grid`, whose codes are ignored. Groups are static
    /// then, regardless of the settings.
    ///
    /// # Errors
    /// As [`round`](Self::round).
    pub fn round_on(&self, weights: &[f32], grid: QuantTensor) -> Result<Rounded, RoundingError> {
        let (rows, columns) = grid.shape();
        self.check(weights, rows)?;
        if columns != self.columns() {
            return Err(HessianError::Features { columns, features: self.columns() }.into());
        }
        if !weights.iter().all(|weight| weight.is_finite()) {
            return Err(RoundingError::NotFinite);
        }
        let weights = self.without_dead(weights);
        let groups = Groups::Static;
        self.sweep_with(groups, &weights, TensorContext::new(ComputeDType::F32), grid)
    }

    fn weighed<'w>(&'w self, weights: &'w [f32], rows: usize) -> Weights<'w> {
        Weights::of_shape(Elements::Values(weights), rows, self.columns()).weighed_by(&self.importance)
    }

    fn check(&self, weights: &[f32], rows: usize) -> Result<(), HessianError> {
        let features = self.columns();
        if weights.len() == rows * features {
            return Ok(());
        }
        Err(HessianError::Features { columns: weights.len().checked_div(rows).unwrap_or(0), features })
    }

    fn sweep(&self, weights: &[f32], context: TensorContext, tensor: QuantTensor) -> Result<Rounded, RoundingError> {
        self.sweep_with(self.groups, weights, context, tensor)
    }

    fn sweep_with(
        &self,
        groups: Groups,
        weights: &[f32],
        context: TensorContext,
        mut tensor: QuantTensor,
    ) -> Result<Rounded, RoundingError> {
        let loss = sweep(self, groups, weights, context, &mut tensor)?;
        Ok(Rounded { tensor, loss })
    }

    pub(super) fn without_dead<'a>(&self, weights: &'a [f32]) -> Cow<'a, [f32]> {
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
