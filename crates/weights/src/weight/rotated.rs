//! A weight of a rotated model, computed when it is read: factors on its columns, a rotation of its input channels, rotations of its
//! output channels. Where a model may be rotated, is found by `kvant_formats::rotation`.

use super::WeightMatrix;
use crate::band::Band;
use kvant_numeric::simd::Isa;
use kvant_quant::rotation::{Rotation, RotationPlace};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Columns that are rotated side by side.
const PANEL: usize = 64;
/// Values whose inputs are rotated at a time.
const STRIP: usize = 64 << 10;

/// What a rotation of a model does to a weight `W`: it becomes `O' W diag(g) R`, with the transpose `O'` of the rotation of outputs.
#[derive(Clone, Debug, Default)]
pub struct WeightRotation {
    /// `g`: a factor for every column.
    pub gains: Option<Vec<f32>>,
    /// `R`: of all columns, or of each run of as many columns as it has channels.
    pub inputs: Option<PlacedRotation>,
    /// `O`: of some rows, or of each run of as many as it has channels.
    pub outputs: Option<RotatedRows>,
}

impl WeightRotation {
    /// Returns whether it is one of a `rows x columns` weight.
    pub fn fits(&self, rows: usize, columns: usize) -> bool {
        let gains = self.gains.as_ref().is_none_or(|gains| gains.len() == columns);
        let inputs = self.inputs.as_ref().is_none_or(|inputs| columns.is_multiple_of(inputs.rotation.channels()));
        let outputs = self.outputs.as_ref().is_none_or(|outputs| {
            let fits = |range: &Range<usize>| {
                range.end <= rows && range.start <= range.end && range.len().is_multiple_of(outputs.channels())
            };
            outputs.rows.iter().all(fits)
        });
        gains && inputs && outputs
    }
}

/// A rotation, and its place in the model.
#[derive(Clone, Debug)]
pub struct PlacedRotation {
    /// The place, which other weights have too.
    pub place: RotationPlace,
    /// The matrix.
    pub rotation: Arc<Rotation>,
}

/// Rows that are rotated.
#[derive(Clone, Debug)]
pub struct RotatedRows {
    /// The rows of each head, or all.
    pub rows: Vec<Range<usize>>,
    /// By what: its channels divide the length of each range.
    pub by: PlacedRotation,
}

impl RotatedRows {
    /// Channels of the rotation.
    pub fn channels(&self) -> usize {
        self.by.rotation.channels()
    }

    /// The rows that are mixed with a row; `None` where it is not rotated.
    fn mixed_with(&self, row: usize) -> Option<Range<usize>> {
        let range = self.rows.iter().find(|range| range.contains(&row))?;
        let channels = self.channels();
        let start = range.start + (row - range.start) / channels * channels;
        Some(start..start + channels)
    }
}

/// The last weights whose rows were mixed as a whole, so that their bands need not be computed each from all rows.
#[derive(Debug, Default)]
pub struct RotatedWeights(Mutex<VecDeque<Arc<Vec<f32>>>>);

impl RotatedWeights {
    /// How many are kept.
    pub const KEPT: usize = 2;

    fn keep(&self, values: &Arc<Vec<f32>>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(Arc::clone(values));
        while kept.len() > Self::KEPT {
            kept.pop_front();
        }
    }
}

/// A matrix and its rotation.
#[derive(Debug)]
pub(super) struct RotatedMatrix<'a> {
    base: WeightMatrix<'a>,
    rotation: WeightRotation,
    /// All values, where all rows are mixed and somebody uses or keeps them.
    mixed: Mutex<Weak<Vec<f32>>>,
    kept: Arc<RotatedWeights>,
}

impl<'a> RotatedMatrix<'a> {
    pub(super) fn new(
        base: WeightMatrix<'a>,
        rotation: WeightRotation,
        kept: Arc<RotatedWeights>,
    ) -> RotatedMatrix<'a> {
        RotatedMatrix { base, rotation, mixed: Mutex::default(), kept }
    }

    /// What is done to the matrix.
    pub(super) fn rotation(&self) -> &WeightRotation {
        &self.rotation
    }

    /// The elements of a band as `f32`, row-major, appended to `out`.
    pub(super) fn read(&self, isa: Isa, band: &Band, out: &mut Vec<f32>) {
        let columns = self.base.columns;
        let mut next = band.rows.start;
        while next < band.rows.end {
            let mixed = self.rotation.outputs.as_ref().and_then(|outputs| Some((outputs, outputs.mixed_with(next)?)));
            let Some((outputs, rows)) = mixed else {
                let end = band.rows.end.min(next + self.strip());
                let alone =
                    |row: &usize| self.rotation.outputs.as_ref().is_none_or(|all| all.mixed_with(*row).is_none());
                let end = (next + 1..end).find(|row| !alone(row)).unwrap_or(end);
                for row in self.with_rotated_inputs(isa, next..end).chunks_exact(columns.max(1)) {
                    out.extend(row[band.columns.clone()].iter().map(|value| *value as f32));
                }
                next = end;
                continue;
            };
            let values = match rows == (0..self.base.rows) {
                true => self.all_mixed(isa, outputs),
                false => Arc::new(self.mix(isa, outputs, rows.clone())),
            };
            let end = band.rows.end.min(rows.end);
            for row in next - rows.start..end - rows.start {
                out.extend_from_slice(&values[row * columns..][band.columns.clone()]);
            }
            next = end;
        }
    }

    /// Rows that are read at a time.
    fn strip(&self) -> usize {
        (STRIP / self.base.columns.max(1)).max(1)
    }

    /// Some rows behind the gains and the rotation of inputs.
    fn with_rotated_inputs(&self, isa: Isa, rows: Range<usize>) -> Vec<f64> {
        let columns = self.base.columns;
        let (mut read, mut scratch) = (Vec::new(), Vec::new());
        self.base.read(isa, &Band { rows, columns: 0..columns }, &mut read);
        let mut values: Vec<f64> = read.into_iter().map(f64::from).collect();
        if let Some(gains) = &self.rotation.gains {
            let rows = values.chunks_exact_mut(columns.max(1));
            rows.for_each(|row| row.iter_mut().zip(gains).for_each(|(value, gain)| *value *= f64::from(*gain)));
        }
        if let Some(inputs) = &self.rotation.inputs {
            inputs.rotation.apply(&mut values, &mut scratch);
        }
        values
    }

    /// All values of a matrix whose rows are all mixed with each other, computed once for as long as they are kept.
    fn all_mixed(&self, isa: Isa, outputs: &RotatedRows) -> Arc<Vec<f32>> {
        // Nothing below waits for other threads while it holds this.
        let mut mixed = self.mixed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(values) = mixed.upgrade() {
            return values;
        }
        let values = Arc::new(self.mix(isa, outputs, 0..self.base.rows));
        *mixed = Arc::downgrade(&values);
        self.kept.keep(&values);
        values
    }

    /// Rows that are mixed with each other, some columns at a time.
    fn mix(&self, isa: Isa, outputs: &RotatedRows, rows: Range<usize>) -> Vec<f32> {
        let (columns, first) = (self.base.columns, rows.start);
        let mut values = Vec::with_capacity(rows.len() * columns);
        for start in rows.clone().step_by(self.strip()) {
            let strip = start..rows.end.min(start + self.strip());
            values.extend(self.with_rotated_inputs(isa, strip).into_iter().map(|value| value as f32));
        }
        let (mut panel, mut scratch) = (Vec::new(), Vec::new());
        for start in (0..columns).step_by(PANEL) {
            let part = start..columns.min(start + PANEL);
            panel.clear();
            for row in rows.clone() {
                panel.extend(values[(row - first) * columns..][part.clone()].iter().map(|value| f64::from(*value)));
            }
            outputs.by.rotation.apply_side_by_side(&mut panel, part.len(), &mut scratch);
            for (row, mixed) in rows.clone().zip(panel.chunks_exact(part.len())) {
                let place = &mut values[(row - first) * columns..][part.clone()];
                place.iter_mut().zip(mixed).for_each(|(place, value)| *place = *value as f32);
            }
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `rows x columns`, element by element.
    fn matrix(rows: usize, columns: usize) -> WeightMatrix<'static> {
        WeightMatrix::values(Arc::new((0..rows * columns).map(|i| (i * 7 % 23) as f32 - 9.0).collect()), rows, columns)
    }

    fn read(matrix: &WeightMatrix<'_>, band: &Band) -> Vec<f32> {
        let mut out = Vec::new();
        matrix.read(Isa::best(), band, &mut out);
        out
    }

    /// What the product with a vector gives.
    fn product(weight: &[f32], vector: &[f64]) -> Vec<f64> {
        let dot = |row: &[f32]| row.iter().zip(vector).map(|(w, x)| f64::from(*w) * x).sum();
        weight.chunks(vector.len()).map(dot).collect()
    }

    #[test]
    fn rotated_weight_of_rotated_inputs_gives_rotated_outputs() {
        let (rows, columns) = (24, 16);
        let hadamard = |channels| Arc::new(Rotation::hadamard(channels, 5).unwrap());
        let gains: Vec<f32> = (0..columns).map(|i| 0.5 + i as f32 / 8.0).collect();
        let all = Band { rows: 0..rows, columns: 0..columns };
        let heads = |rows: &[(usize, usize)]| rows.iter().map(|(start, end)| *start..*end).collect::<Vec<_>>();
        let cases = [(16, 24, heads(&[(0, 24)])), (4, 8, heads(&[(0, 8), (16, 24)])), (16, 4, heads(&[(8, 16)]))];
        for (inputs, outputs, ranges) in cases {
            let (inputs, outputs) = (hadamard(inputs), hadamard(outputs));
            let placed = |place: RotationPlace, rotation: &Arc<Rotation>| PlacedRotation {
                place,
                rotation: Arc::clone(rotation),
            };
            let by = placed(RotationPlace::Values(0), &outputs);
            let rotation = WeightRotation {
                gains: Some(gains.clone()),
                inputs: Some(placed(RotationPlace::Stream, &inputs)),
                outputs: Some(RotatedRows { rows: ranges.clone(), by }),
            };
            let rotated = matrix(rows, columns).rotated(rotation, Arc::default());
            let found = rotated.slice_rows(1..3).rotation().and_then(|found| Some(found.inputs.as_ref()?.place));
            assert_eq!(found, Some(RotationPlace::Stream));
            let x: Vec<f64> = (0..columns).map(|i| (i as f64 * 1.7).sin()).collect();
            let gained: Vec<f64> = x.iter().zip(&gains).map(|(x, gain)| x * f64::from(*gain)).collect();
            let mut expected = product(&read(&matrix(rows, columns), &all), &gained);
            for range in ranges {
                let parts = expected[range].chunks_mut(outputs.channels());
                parts.for_each(|part| outputs.apply(part, &mut Vec::new()));
            }
            let mut turned = x;
            turned.chunks_mut(inputs.channels()).for_each(|part| inputs.apply(part, &mut Vec::new()));
            let found = product(&read(&rotated, &all), &turned);
            assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4), "{found:?} {expected:?}");
            // Bands and slices are parts of the whole.
            let whole = read(&rotated, &all);
            let band = Band { rows: 5..19, columns: 3..11 };
            let part: Vec<f32> =
                (5..19).flat_map(|row| whole[row * columns + 3..row * columns + 11].to_vec()).collect();
            assert_eq!(read(&rotated, &band), part);
            let sliced = read(&rotated.slice_rows(5..19), &Band { rows: 0..14, columns: 3..11 });
            assert_eq!(sliced, part);
        }
    }
}
