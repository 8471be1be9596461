//! What transforms do to a weight, done when it is read: factors on its rows and columns, then limits. Not how the factors
//! are found.

use super::Band;
use kvant_numeric::simd::{Isa, Loop, dispatch};

/// What transforms do to a weight when it is read: element `(i, j)` becomes `w * rows[i] * columns[j]` in `f32`, multiplied
/// in this order, then it is clipped to the limits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WeightTransform {
    /// A factor for every row.
    pub rows: Option<Vec<f32>>,
    /// A factor for every column.
    pub columns: Option<Vec<f32>>,
    /// The limits.
    pub limits: Option<ClippingThresholds>,
}

/// Magnitudes that a weight is clipped to: `|w| <= limit` of its row and group of columns.
#[derive(Clone, Debug, PartialEq)]
pub struct ClippingThresholds {
    /// Columns of a group; the last may have fewer.
    pub group: usize,
    /// `rows x groups`, row-major; infinite where nothing is clipped.
    pub values: Vec<f32>,
}

impl WeightTransform {
    /// Returns whether all lengths are those of a `rows x columns` weight.
    pub fn fits(&self, rows: usize, columns: usize) -> bool {
        let long = |factors: &Option<Vec<f32>>, length| factors.as_ref().is_none_or(|all| all.len() == length);
        let limits = self.limits.as_ref();
        let limited = limits.is_none_or(|l| l.group > 0 && l.values.len() == rows * columns.div_ceil(l.group));
        long(&self.rows, rows) && long(&self.columns, columns) && limited
    }

    /// Folds a band of a matrix of `columns` columns, row-major in `data`.
    pub(super) fn apply(&self, isa: Isa, band: &Band, columns: usize, data: &mut [f32]) {
        let factors = self.columns.as_ref().map(|factors| &factors[band.columns.clone()]);
        for (row, data) in band.rows.clone().zip(data.chunks_mut(band.columns.len().max(1))) {
            let factor = self.rows.as_ref().map_or(1.0, |factors| factors[row]);
            dispatch(isa, Multiply { data: &mut *data, factor, factors });
            if let Some(limits) = &self.limits {
                limits.clip(isa, limits.of_row(row, columns), band.columns.start, data);
            }
        }
    }
}

impl ClippingThresholds {
    fn of_row(&self, row: usize, columns: usize) -> &[f32] {
        let groups = columns.div_ceil(self.group);
        &self.values[row * groups..][..groups]
    }

    /// Clips part of a row, whose first element has column `start`.
    fn clip(&self, isa: Isa, limits: &[f32], start: usize, mut data: &mut [f32]) {
        let mut length = self.group - start % self.group;
        for limit in &limits[start / self.group..] {
            let (part, rest) = data.split_at_mut(length.min(data.len()));
            dispatch(isa, Clip { data: part, limit: *limit });
            (data, length) = (rest, self.group);
        }
    }
}

struct Multiply<'a> {
    data: &'a mut [f32],
    factor: f32,
    factors: Option<&'a [f32]>,
}

impl Loop for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        match self.factors {
            Some(factors) => self.data.iter_mut().zip(factors).for_each(|(w, factor)| *w = *w * self.factor * *factor),
            None if self.factor == 1.0 => {}
            None => self.data.iter_mut().for_each(|w| *w *= self.factor),
        }
    }
}

struct Clip<'a> {
    data: &'a mut [f32],
    limit: f32,
}

impl Loop for Clip<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Clip { data, limit } = self;
        // NaN stays, to be found by whoever rounds.
        for w in data {
            let below = if *w > limit { limit } else { *w };
            *w = if below < -limit { -limit } else { below };
        }
    }
}
