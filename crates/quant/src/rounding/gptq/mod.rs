//! GPTQ and its variants: columns are rounded one after another, and every column compensates for the errors before it.
//! Here are the algorithms and their settings; what follows from a Hessian is in `factors.rs`, the work on a weight in
//! `sweep.rs`. Not the calibration that gives the Hessian.
//!
//! # The arithmetic
//!
//! The papers factor the inverse of the Hessian and push errors forward: with `U` the upper Cholesky factor of `H^-1`,
//! `w_j -= err_i U_ij` for all `j > i`, where `err_i = (w_i - q_i) / U_ii`. The same codes come from a factor of `H` itself,
//! without an inverse (arXiv 2507.18553). Let `H = M M^T` with `M` upper triangular, which is the Cholesky factorization
//! taken from the last column to the first; then `U = M^-1`, and substituting it gives
//!
//! ```text
//! q_j = Q(w_j + sum_{i<j} (w_i - q_i) F_ij),   F_ij = M_ij / M_jj
//! ```
//!
//! with `w` the weights as they were. A third of the cost of the factors is left, errors are pulled when a column
//! is reached instead of pushed through the whole weight, so the sums over earlier blocks of columns are one product of
//! matrices a block, and the loss falls out: `tr((W - Q) H (W - Q)^T) = sum_j M_jj^2 |c_j - q_j|^2` with `c_j` the
//! argument of `Q`.
//!
//! The other two know the input mismatch, `D = (X' - X)^T X`. With `S = D M^-T`, of which
//! `S_ij / M_jj` is what column `i` leaves for column `j` to compensate, the argument of `Q` gets a further term:
//!
//! * GPTAQ (arXiv 2504.02692): `alpha sum_{i<j} c_i S_ij / M_jj`, instead of its `P = alpha triu(D U^T, 1) U`,
//! * Qronos (arXiv 2505.11695): `sum_i w_i S_ij / M_jj` over all `i`; for the first column `sum_i w_i D_i0 / H_00`.

mod algorithm;
mod block;
mod damped;
mod factors;
mod memory;
mod mismatch;
mod refine;
mod regroup;
mod sweep;

pub(super) use algorithm::rows;
pub use factors::{GptqFactors, Rounded};

use crate::hessian::{Hessian, HessianError};

/// The algorithms that round column after column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Variant {
    /// GPTQ (arXiv 2210.17323).
    Gptq,
    /// GPTAQ (arXiv 2504.02692): also compensates for this share of the input mismatch.
    Gptaq {
        /// The share, from 0 (GPTQ) to 1.
        alpha: f32,
    },
    /// Qronos (arXiv 2505.11695): rounds towards what best reproduces the float model's outputs from the quantized model's inputs.
    Qronos,
}

/// The damping added to the diagonal of a Hessian before it is factored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Damping {
    /// This share of the mean of the diagonal.
    OfMeanDiagonal(f64),
    /// This share of the largest eigenvalue, as thirty power iterations estimate it.
    OfLargestEigenvalue(f64),
}

/// When the scales of a group of columns are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Groups {
    /// Beforehand, for the weight as it comes.
    #[default]
    Static,
    /// When the first of its columns is reached, from the weights as updated by the errors before them. Scales that
    /// are not those of single rows, or that span all columns, are found beforehand.
    Dynamic,
}

/// The order in which columns are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnOrder {
    /// As they stand.
    Stored(Groups),
    /// Those with the largest inputs first (`desc_act`, activation order). Scales belong to columns where they stand, and
    /// columns of one group are not rounded together, so groups are static.
    Activation,
}

impl ColumnOrder {
    /// When the scales of groups are found.
    pub fn groups(self) -> Groups {
        match self {
            ColumnOrder::Stored(groups) => groups,
            ColumnOrder::Activation => Groups::Static,
        }
    }
}

/// An algorithm with its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gptq {
    /// Which of the algorithms.
    pub variant: Variant,
    /// The damping added to the diagonal.
    pub damping: Damping,
    /// Which column comes first.
    pub order: ColumnOrder,
    /// Columns of a block, at least 1: the sums over earlier blocks are products of matrices, those within a block are not.
    /// It changes speed, and the codes in ties alone.
    pub block: usize,
    /// Rounds of refinement of scales and codes after the last column.
    pub rounds: u32,
}

impl Gptq {
    /// GPTQ with a damping of 1 %, activation order and blocks of 128 columns.
    pub const GPTQ: Gptq = Gptq {
        variant: Variant::Gptq,
        damping: Damping::OfMeanDiagonal(0.01),
        order: ColumnOrder::Activation,
        block: 128,
        rounds: 0,
    };

    /// GPTAQ with a quarter of the input mismatch, otherwise as [`GPTQ`](Self::GPTQ).
    pub const GPTAQ: Gptq = Gptq { variant: Variant::Gptaq { alpha: 0.25 }, ..Gptq::GPTQ };

    /// Qronos with a damping of 0.001 of the largest eigenvalue, otherwise as [`GPTQ`](Self::GPTQ).
    pub const QRONOS: Gptq =
        Gptq { variant: Variant::Qronos, damping: Damping::OfLargestEigenvalue(1e-3), ..Gptq::GPTQ };

    /// Prepares the Hessian that all weights with the same inputs share.
    ///
    /// # Errors
    /// [`HessianError`] for a Hessian without enough data or with NaN or infinite values.
    pub fn prepare(&self, hessian: &Hessian) -> Result<GptqFactors, HessianError> {
        GptqFactors::new(self, hessian)
    }
}
