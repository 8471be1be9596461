//! The scales and zero points of some rows, laid out as the loop over columns reads them. Not their values, which round to
//! nearest has found.

use super::value_grid::Step;
use crate::quant_tensor::QuantTensor;
use crate::scheme::TensorScheme;
use std::ops::Range;

/// Rows that are worked on at once by the innermost loop.
pub(in crate::rounding) const LANES: usize = 64;

/// A value for each of as many rows.
pub(in crate::rounding) type Lanes<T> = [T; LANES];

/// The divisors of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rounding) enum Scaled {
    /// The divisor of values.
    ByDivision,
    /// The reciprocals of that.
    ByReciprocals,
}

/// The steps of some rows: for every tile of columns that shares scales, one for each row.
pub(in crate::rounding) struct Steps {
    tile_columns: usize,
    /// Chunks of lanes in a row of tiles.
    chunks: usize,
    scales: Vec<Lanes<f32>>,
    divisors: Vec<Lanes<f32>>,
    zero_points: Vec<Lanes<f64>>,
}

impl Steps {
    /// The steps of the rows `rows` of `tensor` in `chunks` chunks of lanes; those past the last row have a scale of 1.
    pub(in crate::rounding) fn new(tensor: &QuantTensor, rows: Range<usize>, chunks: usize, scaled: Scaled) -> Steps {
        let (rows_in_all, columns) = tensor.shape();
        let tile = tensor.scheme().granularity().map_or((1, 1), |granularity| granularity.tile(rows_in_all, columns));
        let (tile_rows, tile_columns) = (tile.0.max(1), tile.1.max(1));
        let across = tensor.scale_shape().1;
        let mut steps = Steps {
            tile_columns,
            chunks,
            scales: vec![[1.0; LANES]; across * chunks],
            divisors: vec![[1.0; LANES]; across * chunks],
            zero_points: vec![[0.0; LANES]; across * chunks],
        };
        for (lane, row) in rows.enumerate() {
            for tile in 0..across {
                steps.set(lane, tile, step(tensor, row / tile_rows * across + tile, scaled));
            }
        }
        steps
    }

    /// Takes the steps of a tile of columns from a tensor that has these columns alone, for as many rows.
    pub(in crate::rounding) fn renew(&mut self, tile: usize, tensor: &QuantTensor, scaled: Scaled) {
        (0..tensor.scales().len()).for_each(|lane| self.set(lane, tile, step(tensor, lane, scaled)));
    }

    fn set(&mut self, lane: usize, tile: usize, step: Step) {
        let (chunk, lane) = (tile * self.chunks + lane / LANES, lane % LANES);
        self.scales[chunk][lane] = step.scale;
        self.divisors[chunk][lane] = step.divisor;
        self.zero_points[chunk][lane] = step.zero_point;
    }

    /// Scales, divisors and zero points of one column for one chunk of lanes.
    #[inline(always)]
    pub(in crate::rounding) fn of(&self, column: usize, chunk: usize) -> (&Lanes<f32>, &Lanes<f32>, &Lanes<f64>) {
        let index = column / self.tile_columns * self.chunks + chunk;
        (&self.scales[index], &self.divisors[index], &self.zero_points[index])
    }
}

/// One scale as `QuantTensor` and round to nearest use it: times the tensor's where there are two levels, and never zero
/// as a divisor.
fn step(tensor: &QuantTensor, index: usize, scaled: Scaled) -> Step {
    let stored = tensor.scales()[index];
    let scale = match (tensor.scheme(), tensor.global_scale()) {
        (TensorScheme::Float(_), Some(global_scale)) => stored * global_scale,
        _ => stored,
    };
    Step::new(scale, tensor.zero_points().get(index).copied().unwrap_or(0.0), scaled)
}
