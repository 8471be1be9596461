//! The work on a weight: bands of rows side by side, in each band blocks of columns one after another, the sums over
//! earlier blocks as products of matrices. Not what happens within a block, which is in `block.rs`.

use super::Groups;
use super::block::Block;
use super::factors::GptqFactors;
use super::mismatch::MismatchFactors;
use super::regroup::{Regroup, put_scales};
use crate::quant_tensor::{Codes, QuantTensor};
use crate::rounding::parallel::map_bands;
use crate::rounding::steps::{LANES, Scaled, Steps};
use crate::rounding::value_grid::{Code, Grid, OnGrid, on_grid};
use crate::rounding::{RoundingError, TensorContext};
use kvant_numeric::linalg::{BlockRow, Matrix, MatrixMut, Threads, multiply};
use kvant_numeric::pack::transpose;
use kvant_numeric::simd::{Isa, dispatch};
use std::borrow::Cow;
use std::ops::Range;

/// Rows of a band: each reads all factors once. The same for every number of threads, as products of matrices depend on it
/// in their last bits.
pub(super) const BAND: usize = 256;

/// Chooses the codes of `tensor`, whose scales and zero points stay, and returns the loss.
pub(super) fn sweep(
    factors: &GptqFactors,
    groups: Groups,
    weights: &[f32],
    context: TensorContext,
    tensor: &mut QuantTensor,
) -> Result<f64, RoundingError> {
    let scheme = tensor.scheme();
    let regroup = Regroup::new(groups, weights, context, tensor)?;
    let sweep = Sweep { factors, weights, tensor, regroup, isa: factors.isa };
    let swept = on_grid(scheme, context, tensor.global_scale(), &sweep)??;
    tensor.codes = swept.codes;
    for (band, parts) in swept.renewed.iter().enumerate() {
        parts.iter().enumerate().for_each(|(group, part)| put_scales(tensor, band * BAND, group + 1, part));
    }
    Ok(swept.loss)
}

/// The rounding of a weight.
struct Swept {
    codes: Codes,
    loss: f64,
    /// For each band the groups after the first with recomputed scales.
    renewed: Vec<Vec<QuantTensor>>,
}

type Sweeping = Result<Swept, RoundingError>;

struct Sweep<'a> {
    factors: &'a GptqFactors,
    weights: &'a [f32],
    tensor: &'a QuantTensor,
    regroup: Option<Regroup>,
    isa: Isa,
}

impl OnGrid for &Sweep<'_> {
    type Output = Sweeping;

    fn run<G: Grid>(self, grid: G, scaled: Scaled) -> Sweeping {
        let columns = self.factors.columns();
        let mut codes = vec![G::Code::default(); self.weights.len()];
        let bands = map_bands(&mut codes, BAND * columns, &|band, codes| {
            let rows = band * BAND..band * BAND + codes.len() / columns;
            let steps = Steps::new(self.tensor, rows.clone(), rows.len().div_ceil(LANES), scaled);
            let weights = &self.weights[rows.start * columns..rows.end * columns];
            Band::new(self, grid, steps, weights).run(rows.len(), codes, scaled)
        });
        let (losses, renewed): (Vec<f64>, _) = bands.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        let codes = G::Code::collect(codes, self.tensor.scheme().format().bits());
        Ok(Swept { codes, loss: losses.iter().sum(), renewed })
    }
}

/// Some rows, transposed: what belongs to one column stands together.
struct Band<'a, G: Grid> {
    sweep: &'a Sweep<'a>,
    grid: G,
    steps: Steps,
    /// Rows, and zeros up to whole chunks of lanes.
    lanes: usize,
    /// By column.
    weights: Vec<f32>,
    /// By position: what rounding has changed a weight by.
    errors: Vec<f32>,
    /// By position: what was rounded; empty where nothing depends on it.
    arguments: Vec<f32>,
    /// By column.
    codes: Vec<G::Code>,
}

impl<'a, G: Grid> Band<'a, G> {
    fn new(sweep: &'a Sweep<'a>, grid: G, steps: Steps, weights: &[f32]) -> Band<'a, G> {
        let columns = sweep.factors.columns();
        let lanes = (weights.len() / columns).next_multiple_of(LANES);
        let count = lanes * columns;
        let rows_first = padded(weights, count);
        let mut weights = vec![0.0; count];
        transpose(&rows_first, lanes, columns, &mut weights);
        let kept = if matches!(sweep.factors.mismatch, MismatchFactors::OneByOne(_)) { count } else { 0 };
        let (errors, arguments, codes) = (vec![0.0; count], vec![0.0; kept], vec![G::Code::default(); count]);
        Band { sweep, grid, steps, lanes, weights, errors, arguments, codes }
    }

    /// Writes the codes of the rows; returns their loss and the groups with recomputed scales.
    fn run(
        mut self,
        rows: usize,
        codes: &mut [G::Code],
        scaled: Scaled,
    ) -> Result<(f64, Vec<QuantTensor>), RoundingError> {
        let factors = self.sweep.factors;
        let (mut pulls, mut shifts, mut renewed) = (Vec::new(), Vec::new(), Vec::new());
        let mut loss = 0.0;
        for place in self.places() {
            let start = place.rows.start;
            if let Some(regroup) = self.sweep.regroup.filter(|regroup| regroup.begins(start)) {
                let tensor = regroup.round(&self.updated(start..start + regroup.columns), rows)?;
                self.steps.renew(start / regroup.columns, &tensor, scaled);
                renewed.push(tensor);
            }
            self.pulls(&place, start, &mut pulls);
            self.shifts(&place, start, &mut shifts);
            loss += self.block(&place, &pulls, &shifts);
        }
        let columns = factors.columns();
        let mut by_rows = vec![G::Code::default(); self.codes.len()];
        transpose(&self.codes, columns, self.lanes, &mut by_rows);
        codes.copy_from_slice(&by_rows[..rows * columns]);
        Ok((loss, renewed))
    }

    /// The blocks, cut where the scales of a group are found.
    fn places(&self) -> Vec<BlockRow> {
        let blocks = self.sweep.factors.rows.block_rows();
        let Some(regroup) = self.sweep.regroup else { return blocks.collect() };
        let parts = |block: BlockRow| regroup.cut(block.rows.clone()).into_iter().map(move |rows| block.part(rows));
        blocks.flat_map(parts).collect()
    }

    /// The weights of a group of columns as the errors of all columns before it have made them, column by column: with `p`
    /// what those ask of each, `x_j = p_j - sum_i F_ij x_i` over the earlier columns `i` of the group is the change that
    /// leaves the least loss.
    fn updated(&self, group: Range<usize>) -> Vec<f32> {
        let factors = self.sweep.factors;
        let (lanes, mut part, mut shifts, mut changes) = (self.lanes, Vec::new(), Vec::new(), Vec::new());
        for block in factors.rows.block_rows() {
            let rows = block.rows.start.max(group.start)..block.rows.end.min(group.end);
            if !rows.is_empty() {
                let place = block.part(rows);
                self.pulls(&place, group.start, &mut part);
                self.shifts(&place, group.start, &mut shifts);
                part.iter_mut().zip(&shifts).for_each(|(pull, shift)| *pull += shift);
                changes.extend_from_slice(&part);
            }
        }
        for j in 1..group.len() {
            let (earlier, own) = changes.split_at_mut(j * lanes);
            let factors = &factors.rows.row(group.start + j)[group.start..];
            for (earlier, factor) in earlier.chunks(lanes).zip(factors) {
                own[..lanes].iter_mut().zip(earlier).for_each(|(own, earlier)| *own -= factor * earlier);
            }
        }
        changes.iter().zip(&self.weights[group.start * lanes..]).map(|(change, weight)| weight + change).collect()
    }

    /// The correction of these positions by the errors of the first `depth` positions.
    fn pulls(&self, place: &BlockRow, depth: usize, out: &mut Vec<f32>) {
        let factors = self.sweep.factors.rows.block_row(place);
        let factors = Matrix::new(factors, place.rows.len(), depth, place.columns);
        self.product(place.rows.len(), factors, &self.errors, depth, out);
    }

    /// What the input mismatch asks of these positions: that of the first `depth` where positions count one by one.
    fn shifts(&self, place: &BlockRow, depth: usize, out: &mut Vec<f32>) {
        let columns = self.sweep.factors.columns();
        match &self.sweep.factors.mismatch {
            MismatchFactors::Ignored => {}
            MismatchFactors::OneByOne(factors) => {
                let factors = Matrix::new(factors.block_row(place), place.rows.len(), depth, place.columns);
                self.product(place.rows.len(), factors, &self.arguments, depth, out);
            }
            MismatchFactors::AtOnce(factors) => {
                let factors = Matrix::new(&factors[place.rows.start * columns..], place.rows.len(), columns, columns);
                self.product(place.rows.len(), factors, &self.weights, columns, out);
            }
        }
    }

    fn product(&self, height: usize, factors: Matrix<'_>, values: &[f32], depth: usize, out: &mut Vec<f32>) {
        out.resize(height * self.lanes, 0.0);
        let values = Matrix::new(values, depth, self.lanes, self.lanes);
        multiply(MatrixMut::new(out, height, self.lanes, self.lanes), factors, values, 1.0, Threads::One);
    }

    fn block(&mut self, place: &BlockRow, pulls: &[f32], shifts: &[f32]) -> f64 {
        let factors = self.sweep.factors;
        let mismatch = match &factors.mismatch {
            MismatchFactors::OneByOne(factors) => Some(factors.block_row(place)),
            _ => None,
        };
        let block = Block {
            grid: self.grid,
            place,
            order: &factors.order,
            shares: &factors.shares,
            factors: factors.rows.block_row(place),
            mismatch,
            steps: &self.steps,
            chunks: self.lanes / LANES,
            weights: self.weights.as_chunks().0,
            pulls: pulls.as_chunks().0,
            shifts: shifts.as_chunks().0,
            errors: self.errors.as_chunks_mut().0,
            arguments: self.arguments.as_chunks_mut().0,
            codes: self.codes.as_chunks_mut().0,
        };
        dispatch(self.sweep.isa, block)
    }
}

/// The values and zeros after them, `count` in all.
fn padded(values: &[f32], count: usize) -> Cow<'_, [f32]> {
    let mut values = Cow::Borrowed(values);
    if values.len() < count {
        values.to_mut().resize(count, 0.0);
    }
    values
}
