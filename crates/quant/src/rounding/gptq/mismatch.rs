//! The contribution of the input mismatch to the factors. Not the mismatch itself, which is in the Hessian.

use super::{Gptq, Variant};
use crate::hessian::{Hessian, HessianError};
use kvant_numeric::linalg::{Cholesky, CrossGram, LowerBlocks};
use rayon::prelude::*;

/// The factors by which columns compensate for the mismatch of other columns' inputs.
#[derive(Clone, Debug)]
pub(super) enum MismatchFactors {
    /// Not at all.
    Ignored,
    /// Each for the columns before it, as they were when they were rounded: row `j` holds the factors of positions `i < j`.
    OneByOne(LowerBlocks),
    /// Each for all columns, as they came: row `j`, of a square matrix, holds the factors of all *columns*.
    AtOnce(Vec<f32>),
}

/// Columns of `D^T` that are solved for at a time.
const PANEL: usize = 128;

impl MismatchFactors {
    /// `first` is the diagonal element of the column that is rounded first.
    pub(super) fn new(
        settings: &Gptq,
        hessian: &Hessian,
        cholesky: &Cholesky,
        order: &[usize],
        first: f64,
    ) -> Result<MismatchFactors, HessianError> {
        if settings.variant == Variant::Gptq {
            return Ok(MismatchFactors::Ignored);
        }
        let mismatch = hessian.mismatch().ok_or(HessianError::NoMismatch)?;
        if !(0..order.len()).all(|row| mismatch.row(row).iter().all(|sum| sum.is_finite())) {
            return Err(HessianError::NotFinite);
        }
        let panels = Panels { cholesky, mismatch, order };
        Ok(match settings.variant {
            Variant::Gptaq { alpha } => MismatchFactors::OneByOne(panels.one_by_one(alpha, settings.block)),
            _ => MismatchFactors::AtOnce(panels.at_once(first)),
        })
    }
}

struct Panels<'a> {
    cholesky: &'a Cholesky,
    mismatch: &'a CrossGram,
    order: &'a [usize],
}

impl Panels<'_> {
    /// `S_ij / M_jj` for some positions `i`, each a row of all `j`. With the last position first, `S^T = M^-1 D^T` is a lower
    /// triangular system, and the rows come out backwards.
    fn solve(&self, positions: &[usize]) -> Vec<f32> {
        let size = self.order.len();
        let mut right: Vec<f64> = Vec::with_capacity(positions.len() * size);
        for column in positions {
            let row = self.mismatch.row(*column);
            right.extend(self.order.iter().rev().map(|j| f64::from(row[*j])));
        }
        self.cholesky.solve_lower(&mut right);
        let backwards = right.chunks(size.max(1)).flat_map(|row| row.iter().rev().enumerate());
        backwards.map(|(j, s)| (s / self.cholesky.pivot(size - 1 - j)) as f32).collect()
    }

    fn all(&self) -> Vec<Vec<f32>> {
        self.order.par_chunks(PANEL).map(|positions| self.solve(positions)).collect()
    }

    fn one_by_one(&self, alpha: f32, block: usize) -> LowerBlocks {
        let size = self.order.len();
        let mut factors = LowerBlocks::zeros(size, block);
        for (panel, first) in self.all().iter().zip((0..size).step_by(PANEL)) {
            for j in first + 1..size {
                let row = factors.row_mut(j)[first..j].iter_mut();
                row.zip(panel.chunks(size)).for_each(|(factor, s)| *factor = alpha * s[j]);
            }
        }
        factors
    }

    fn at_once(&self, first: f64) -> Vec<f32> {
        let size = self.order.len();
        let mut factors = vec![0.0; size * size];
        for (panel, columns) in self.all().iter().zip(self.order.chunks(PANEL)) {
            for (s, column) in panel.chunks(size).zip(columns) {
                s.iter().enumerate().for_each(|(j, s)| factors[j * size + column] = *s);
            }
        }
        // The first column is rounded while the others are what they were: they compensate for the rest afterwards.
        if let Some(zeroth) = self.order.first() {
            let mismatch = (0..size).map(|column| self.mismatch.row(column)[*zeroth]);
            factors.iter_mut().zip(mismatch).for_each(|(factor, d)| *factor = (f64::from(d) / first) as f32);
        }
        factors
    }
}
