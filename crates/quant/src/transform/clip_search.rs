//! The search of clipping thresholds: the share of a group's largest magnitude with the least error, for any rounding of weights.

use super::error::finite;
use super::gram::GroupInputs;
use super::{Clip, TransformError};
use kvant_numeric::kernel::group_abs_max;
use kvant_numeric::linalg::Matrix;
use kvant_numeric::simd::Isa;
use rayon::prelude::*;

/// Rows of weights that one thread takes at a time.
const BAND: usize = 64;

/// The limits that are found for weights with the same inputs, whose rows have limits for the same groups of columns.
#[derive(Clone, Debug)]
pub struct GroupClipping {
    clip: Clip,
    columns: usize,
    group: usize,
    inputs: Vec<GroupInputs>,
}

/// Some rows under search.
struct Band<'a> {
    weights: &'a [f32],
    /// The largest magnitude of each group.
    maxima: Vec<f32>,
    limits: Vec<f32>,
    errors: Vec<f32>,
}

impl GroupClipping {
    pub(super) fn new(clip: Clip, inputs: &[f32], columns: usize, group: usize) -> Result<Self, TransformError> {
        let columns = columns.max(1);
        let group = group.clamp(1, columns);
        inputs.chunks(columns).try_for_each(|row| finite("an input", row))?;
        let inputs = GroupInputs::of_groups(inputs, columns, group);
        Ok(Self { clip, columns, group, inputs })
    }

    /// Columns that share a limit.
    pub fn group(&self) -> usize {
        self.group
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// For each row of the row-major `weights` and each group of columns the limit, of those tried, that leaves the least
    /// squared error of the group's share of the outputs over the sampled inputs; the widest of equal ones. `rows x groups`.
    ///
    /// `rounded` dequantizes rows of weights after rounding; rows come in whole tiles of `tile` rows, whose
    /// scales hang on no other rows. A row that is not whole is left out.
    ///
    /// # Errors
    /// Those of `rounded`.
    pub fn limits<F>(&self, weights: &[f32], tile: usize, rounded: &F) -> Result<Vec<f32>, TransformError>
    where
        F: Fn(&[f32]) -> Result<Vec<f32>, TransformError> + Sync,
    {
        let whole = weights.len() / self.columns * self.columns;
        let tile = tile.max(1);
        let rows = tile * (BAND / tile).max(1);
        let bands = weights[..whole].par_chunks(rows * self.columns);
        let limits: Vec<Vec<f32>> = bands.map(|band| self.band_limits(band, rounded)).collect::<Result<_, _>>()?;
        Ok(limits.concat())
    }

    fn band_limits<F>(&self, weights: &[f32], rounded: &F) -> Result<Vec<f32>, TransformError>
    where
        F: Fn(&[f32]) -> Result<Vec<f32>, TransformError>,
    {
        let groups = self.inputs.len();
        let mut maxima = vec![0.0; weights.len() / self.columns * groups];
        for (row, maxima) in weights.chunks(self.columns).zip(maxima.chunks_mut(groups)) {
            group_abs_max(Isa::best(), row, self.group, maxima);
        }
        let (limits, errors) = (maxima.clone(), vec![f32::INFINITY; maxima.len()]);
        let mut band = Band { weights, maxima, limits, errors };
        for step in 0..self.clip.steps {
            let share = 1.0 - step as f32 / self.clip.grid as f32;
            self.try_share(&mut band, share, rounded)?;
        }
        Ok(band.limits)
    }

    /// Keeps the limits of this share of the maxima where they leave less.
    fn try_share<F>(&self, band: &mut Band<'_>, share: f32, rounded: &F) -> Result<(), TransformError>
    where
        F: Fn(&[f32]) -> Result<Vec<f32>, TransformError>,
    {
        let limits: Vec<f32> = band.maxima.iter().map(|max| max * share).collect();
        let mut clipped = band.weights.to_vec();
        self.clip(&mut clipped, &limits);
        let mut changes = rounded(&clipped)?;
        changes.iter_mut().zip(band.weights).for_each(|(change, weight)| *change -= weight);
        let errors = self.errors(&changes);
        for ((best, kept), (error, limit)) in
            band.errors.iter_mut().zip(&mut band.limits).zip(errors.iter().zip(limits))
        {
            if error < best {
                (*best, *kept) = (*error, limit);
            }
        }
        Ok(())
    }

    /// Cuts each group of weights off at its limit: `max(-limit, min(limit, w))`, with the `limits` of as many rows.
    pub fn clip(&self, weights: &mut [f32], limits: &[f32]) {
        for (row, limits) in weights.chunks_mut(self.columns).zip(limits.chunks(self.inputs.len().max(1))) {
            for (group, limit) in row.chunks_mut(self.group).zip(limits) {
                group.iter_mut().for_each(|w| *w = w.max(-limit).min(*limit));
            }
        }
    }

    /// The errors that changes leave, `rows x groups`.
    fn errors(&self, changes: &[f32]) -> Vec<f32> {
        let (rows, groups) = (changes.len() / self.columns, self.inputs.len());
        let mut errors = vec![0.0; rows * groups];
        let (mut of_group, mut products) = (vec![0.0; rows], Vec::new());
        for (index, inputs) in self.inputs.iter().enumerate() {
            let first = index * self.group;
            let width = self.group.min(self.columns - first);
            let matrix = Matrix::new(&changes[first..], rows, width, self.columns);
            let lines: Vec<&[f32]> = changes.chunks(self.columns).map(|row| &row[first..first + width]).collect();
            inputs.errors(matrix, &lines, &mut products, &mut of_group);
            errors.iter_mut().skip(index).step_by(groups).zip(&of_group).for_each(|(error, new)| *error = *new);
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn custom_rounding_has_clipping_thresholds() {
        // One step from zero to the largest magnitude: a limit moves what the large weight stands for.
        let rounded = |rows: &[f32]| {
            let row = |row: &[f32]| {
                let step = row.iter().fold(0f32, |max, w| max.max(w.abs())).max(f32::MIN_POSITIVE);
                row.iter().map(|w| (w / step).round() * step).collect::<Vec<f32>>()
            };
            Ok(rows.chunks(4).flat_map(row).collect::<Vec<f32>>())
        };
        let weights = [1.0f32, 0.6, 0.6, 0.6];
        // Only the small weights are read: the limit is the tried one nearest to them.
        let inputs = [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0];
        let clipping = Clip::DEFAULTS.prepare_groups(&inputs, 4, 4).unwrap();
        let limits = clipping.limits(&weights, 1, &rounded).unwrap();
        assert!((limits[0] - 0.6).abs() < 1e-6, "{limits:?}");
        let mut clipped = weights.to_vec();
        clipping.clip(&mut clipped, &limits);
        assert!(clipped.iter().all(|w| (w - 0.6).abs() < 1e-6), "{clipped:?}");
    }
}
