//! Rounds that come after the codes are chosen: each group of columns gets the scale, zero point and codes that leave the least error,
//! the other columns being what they are. Not the first choice of codes, which is the sweep's.
//!
//! With `Q` the quantized weight and `T = W (H + a D)` what it is measured against (`a` is the share of the input mismatch that
//! is made up for), half the gradient of the output error is `R = Q H - T`. Changing the columns `g` by `d` changes the error by
//! `2 d R_g^T + d H_gg d^T`. Within a group one column after another is moved to the value of the grid that is nearest to
//! its minimum, `q_j - R_j / H_jj` (coordinate descent, arXiv 2406.17542). The scale of the least squares follows from the codes,
//! and is taken where rounding to it leaves less error (arXiv 2602.02126 does so in closed form). `H` is damped as for the sweep.

#![allow(clippy::needless_range_loop)] // Lanes of several arrays go together.

mod blocks;

use super::sweep::BAND;
use crate::hessian::Hessian;
use crate::quant_tensor::{Codes, QuantTensor};
use crate::rounding::parallel::map_bands;
use crate::rounding::rtn::search::StorableScales;
use crate::rounding::steps::{LANES, Lanes, Scaled};
use crate::rounding::value_grid::{Code, Grid, OnGrid, Step, on_grid};
use crate::rounding::{RoundingError, TensorContext};
use crate::scheme::TensorScheme;
use kvant_numeric::ggml::GroupedType;
use kvant_numeric::linalg::{Matrix, MatrixMut, Threads, multiply_add};
use kvant_numeric::pack::transpose;
use kvant_numeric::simd::{Isa, Loop, dispatch};
use std::ops::Range;

/// Columns that are worked on at once where a group has more, or fewer.
const COLUMNS: usize = 128;

/// What the rounds need besides the weight.
pub(super) struct Refinement<'a> {
    pub(super) hessian: &'a Hessian,
    /// The share of the input mismatch that is made up for.
    pub(super) mismatch: f32,
    pub(super) damping: f64,
    pub(super) rounds: u32,
    pub(super) isa: Isa,
}

impl Refinement<'_> {
    /// Improves scales, zero points and codes of a weight; integers of fp8 codes stay as they are.
    ///
    /// # Errors
    /// [`RoundingError::NoCodes`].
    pub(super) fn run(
        &self,
        weights: &[f32],
        context: TensorContext,
        tensor: &mut QuantTensor,
    ) -> Result<(), RoundingError> {
        // Values that are rounded twice need not become the nearest ones.
        if let TensorScheme::Progressive { .. } = tensor.scheme() {
            return Ok(());
        }
        let storable = StorableScales::of(tensor, context);
        let refined = on_grid(
            tensor.scheme(),
            context,
            tensor.global_scale(),
            Refine { refinement: self, weights, tensor, storable },
        )?;
        tensor.codes = refined.codes;
        if !refined.scales.is_empty() {
            tensor.scales = refined.scales;
            tensor.zero_points = refined.zero_points;
            tensor.factors = refined.factors;
        }
        Ok(())
    }
}

struct Refined {
    codes: Codes,
    scales: Vec<f32>,
    zero_points: Vec<f64>,
    factors: Vec<f32>,
}

struct Refine<'a> {
    refinement: &'a Refinement<'a>,
    weights: &'a [f32],
    tensor: &'a QuantTensor,
    storable: StorableScales,
}

impl OnGrid for Refine<'_> {
    type Output = Refined;

    fn run<G: Grid>(self, grid: G, scaled: Scaled) -> Refined {
        let (rows, columns) = self.tensor.shape();
        let mut values = self.tensor.dequantize();
        let bands: Vec<BandResult<G::Code>> = map_bands(&mut values, BAND * columns, &|band, values| {
            let rows = band * BAND..band * BAND + values.len() / columns;
            let weights = &self.weights[rows.start * columns..rows.end * columns];
            let mut band = Band::new(&self, grid, scaled, rows, weights, values);
            for _ in 0..self.refinement.rounds {
                band.round();
            }
            band.finish()
        });
        let mut codes = Vec::with_capacity(rows * columns);
        let (mut scales, mut zero_points, mut factors) = (Vec::new(), Vec::new(), Vec::new());
        for band in bands {
            codes.extend(band.codes);
            scales.extend(band.scales);
            zero_points.extend(band.zero_points);
            factors.extend(band.factors);
        }
        let codes = G::Code::collect(codes, self.tensor.scheme().format().bits());
        Refined { codes, scales, zero_points, factors }
    }
}

struct BandResult<C> {
    codes: Vec<C>,
    scales: Vec<f32>,
    zero_points: Vec<f64>,
    factors: Vec<f32>,
}

/// Parameters of a group for some rows.
#[derive(Clone, Copy)]
struct Steps {
    scales: Lanes<f32>,
    divisors: Lanes<f32>,
    zero_points: Lanes<f64>,
    /// Of blocks of GGUF: what scales and minima are multiples of.
    factors: [Lanes<f32>; 2],
}

impl Steps {
    fn set(&mut self, lane: usize, step: Step) {
        self.scales[lane] = step.scale;
        self.divisors[lane] = step.divisor;
        self.zero_points[lane] = step.zero_point;
    }

    #[inline(always)]
    fn of(&self, lane: usize) -> Step {
        Step { scale: self.scales[lane], divisor: self.divisors[lane], zero_point: self.zero_points[lane] }
    }
}

/// Some rows, transposed: what belongs to a column stands together, `chunks` chunks of lanes.
struct Band<'a, G: Grid> {
    work: &'a Refine<'a>,
    grid: G,
    scaled: Scaled,
    rows: Range<usize>,
    chunks: usize,
    /// Columns of a group; whether each row has its own scales.
    group: usize,
    own_scales: bool,
    /// By group, chunks in a row.
    steps: Vec<Steps>,
    /// By column.
    values: Vec<Lanes<f32>>,
    /// By column: half the gradient.
    residuals: Vec<Lanes<f32>>,
    /// By column.
    codes: Vec<Lanes<G::Code>>,
}

impl<'a, G: Grid> Band<'a, G> {
    fn new(
        work: &'a Refine<'a>,
        grid: G,
        scaled: Scaled,
        rows: Range<usize>,
        weights: &[f32],
        values: &[f32],
    ) -> Band<'a, G> {
        let (all_rows, columns) = work.tensor.shape();
        let (tile_rows, tile_columns) = work.tensor.tile();
        let (tile_rows, tile_columns) = (tile_rows.min(all_rows.max(1)), tile_columns.min(columns));
        let chunks = rows.len().div_ceil(LANES);
        let lanes = chunks * LANES;
        let across = work.tensor.scale_shape().1;
        let unit = Steps {
            scales: [1.0; LANES],
            divisors: [1.0; LANES],
            zero_points: [0.0; LANES],
            factors: [[0.0; LANES]; 2],
        };
        let mut steps = vec![unit; across * chunks];
        for (lane, row) in rows.clone().enumerate() {
            for tile in 0..across {
                let index = row / tile_rows * across + tile;
                let zero_point = work.tensor.zero_points().get(index).copied().unwrap_or(0.0);
                let scale = work.tensor.scales()[index] * work.storable.outer();
                let steps = &mut steps[tile * chunks + lane / LANES];
                steps.set(lane % LANES, Step::new(scale, zero_point, scaled));
                for (factors, factor) in steps.factors.iter_mut().zip(blocks::factors_of(work.tensor, row, tile)) {
                    factors[lane % LANES] = *factor;
                }
            }
        }
        let by_column = |values: &[f32]| {
            let mut rows_first = values.to_vec();
            rows_first.resize(lanes * columns, 0.0);
            let mut out = vec![[0.0f32; LANES]; chunks * columns];
            transpose(&rows_first, lanes, columns, out.as_flattened_mut());
            out
        };
        let (weights, values) = (by_column(weights), by_column(values));
        let mut band = Band {
            work,
            grid,
            scaled,
            rows,
            chunks,
            group: tile_columns,
            own_scales: tile_rows == 1,
            steps,
            residuals: vec![[0.0; LANES]; values.len()],
            codes: vec![[G::Code::default(); LANES]; values.len()],
            values,
        };
        band.start(&weights);
        band
    }

    /// `R = (Q - W) H - a W D`.
    fn start(&mut self, weights: &[Lanes<f32>]) {
        let (_, columns) = self.work.tensor.shape();
        let lanes = self.chunks * LANES;
        for start in (0..columns).step_by(COLUMNS) {
            let part = start..columns.min(start + COLUMNS);
            let panel = self.panel(&part);
            let place = part.start * self.chunks..part.end * self.chunks;
            let errors = self.values[place.clone()].iter().zip(&weights[place]);
            let errors: Vec<f32> =
                errors.flat_map(|(q, w)| std::array::from_fn::<f32, LANES, _>(|lane| q[lane] - w[lane])).collect();
            self.add(&panel, part.len(), &errors);
        }
        let refinement = self.work.refinement;
        if let Some(mismatch) = refinement.hessian.mismatch().filter(|_| refinement.mismatch != 0.0) {
            let factors = Matrix::new(mismatch.sums(), columns, columns, columns).transposed();
            let weights = Matrix::new(weights.as_flattened(), columns, lanes, lanes);
            let out = MatrixMut::new(self.residuals.as_flattened_mut(), columns, lanes, lanes);
            multiply_add(out, factors, weights, -refinement.mismatch, Threads::One);
        }
    }

    /// The rows `part` of the damped Hessian.
    fn panel(&self, part: &Range<usize>) -> Vec<f32> {
        let sums = self.work.refinement.hessian.gram().sums();
        let size = sums.size();
        let mut panel = vec![0.0; part.len() * size];
        for (row, out) in part.clone().zip(panel.chunks_mut(size)) {
            out[..=row].copy_from_slice(sums.row(row));
        }
        for column in part.start + 1..size {
            let above = part.start..part.end.min(column);
            let row = &sums.row(column)[above.clone()];
            row.iter().enumerate().for_each(|(index, sum)| panel[index * size + column] = *sum);
        }
        for (index, row) in part.clone().enumerate() {
            panel[index * size + row] += self.work.refinement.damping as f32;
        }
        panel
    }

    /// Adds what changes of some columns make of the residuals.
    fn add(&mut self, panel: &[f32], width: usize, changes: &[f32]) {
        let (_, columns) = self.work.tensor.shape();
        let lanes = self.chunks * LANES;
        let factors = Matrix::new(panel, width, columns, columns).transposed();
        let out = MatrixMut::new(self.residuals.as_flattened_mut(), columns, lanes, lanes);
        multiply_add(out, factors, Matrix::new(changes, width, lanes, lanes), 1.0, Threads::One);
    }

    /// Each group once.
    fn round(&mut self) {
        let (_, columns) = self.work.tensor.shape();
        let in_one = self.group <= 2 * COLUMNS;
        let width = if in_one { self.group } else { COLUMNS };
        for start in (0..columns).step_by(width) {
            let part = start..columns.min(start + width);
            let panel = self.panel(&part);
            let mut changes = vec![[0.0f32; LANES]; part.len() * self.chunks];
            for chunk in 0..self.chunks {
                let steps = self.steps[start / self.group * self.chunks + chunk];
                let group = Group {
                    grid: self.grid,
                    scaled: self.scaled,
                    storable: &self.work.storable,
                    moves_scales: self.own_scales && in_one,
                    blocks: blocks::blocks_of(self.work.tensor),
                    panel: &panel,
                    size: columns,
                    part: part.clone(),
                    chunk,
                    chunks: self.chunks,
                    values: &self.values,
                    residuals: &self.residuals,
                    steps,
                };
                let chosen = dispatch(self.work.refinement.isa, group);
                self.steps[start / self.group * self.chunks + chunk] = chosen.steps;
                for (index, column) in part.clone().enumerate() {
                    let place = column * self.chunks + chunk;
                    for lane in 0..LANES {
                        changes[index * self.chunks + chunk][lane] =
                            chosen.values[index][lane] - self.values[place][lane];
                    }
                    self.values[place] = chosen.values[index];
                    self.codes[place] = chosen.codes[index];
                }
            }
            self.add(&panel, part.len(), changes.as_flattened());
            self.refit_block(part.end);
        }
    }

    fn finish(self) -> BandResult<G::Code> {
        let (_, columns) = self.work.tensor.shape();
        let rows = self.rows.len();
        let mut by_rows = vec![G::Code::default(); self.codes.len() * LANES];
        transpose(self.codes.as_flattened(), columns, self.chunks * LANES, &mut by_rows);
        by_rows.truncate(rows * columns);
        let (mut scales, mut zero_points) = (Vec::new(), Vec::new());
        if self.own_scales {
            let across = self.work.tensor.scale_shape().1;
            for lane in 0..rows {
                for tile in 0..across {
                    let step = self.steps[tile * self.chunks + lane / LANES].of(lane % LANES);
                    scales.push(self.work.storable.stored(step.scale));
                    if !self.work.tensor.zero_points().is_empty() {
                        zero_points.push(step.zero_point);
                    }
                }
            }
        }
        BandResult { codes: by_rows, scales, zero_points, factors: self.factors() }
    }
}

/// A group of columns of one chunk of rows.
struct Group<'a, G: Grid> {
    grid: G,
    scaled: Scaled,
    storable: &'a StorableScales,
    moves_scales: bool,
    /// The type, of blocks of GGUF.
    blocks: Option<GroupedType>,
    /// The rows of the damped Hessian.
    panel: &'a [f32],
    size: usize,
    part: Range<usize>,
    chunk: usize,
    chunks: usize,
    values: &'a [Lanes<f32>],
    residuals: &'a [Lanes<f32>],
    steps: Steps,
}

/// What a group becomes.
#[derive(Clone)]
struct Choice<C> {
    steps: Steps,
    /// What the error changes by.
    change: Lanes<f32>,
    values: Vec<Lanes<f32>>,
    residuals: Vec<Lanes<f32>>,
    codes: Vec<Lanes<C>>,
}

impl<G: Grid> Loop for Group<'_, G> {
    type Output = Choice<G::Code>;

    #[inline(always)]
    fn run(self) -> Choice<G::Code> {
        let places = || self.part.clone().map(|column| column * self.chunks + self.chunk);
        let mut best = Choice {
            steps: self.steps,
            change: [0.0; LANES],
            values: places().map(|place| self.values[place]).collect(),
            residuals: places().map(|place| self.residuals[place]).collect(),
            codes: vec![[G::Code::default(); LANES]; self.part.len()],
        };
        self.pass(&mut best);
        if !self.moves_scales {
            return best;
        }
        if let Some(blocks) = self.blocks {
            self.fit_stored(&mut best, blocks);
            return best;
        }
        for _ in 0..2 {
            let fitted = self.fitted(&best);
            self.try_steps(&mut best, fitted);
        }
        if self.storable.has_whole_zero_points() {
            for offset in [-1.0, 1.0] {
                let (lowest, highest) = self.storable.codes();
                let mut steps = best.steps;
                steps.zero_points.iter_mut().for_each(|zero| *zero = (*zero + offset).clamp(lowest, highest));
                self.try_steps(&mut best, steps);
            }
        }
        best
    }
}

impl<G: Grid> Group<'_, G> {
    /// Takes other parameters in the rows where they leave less error.
    #[inline(always)]
    fn try_steps(&self, best: &mut Choice<G::Code>, steps: Steps) {
        let mut other = Choice { steps, ..best.clone() };
        self.pass(&mut other);
        let better: Lanes<bool> = std::array::from_fn(|lane| other.change[lane] < best.change[lane]);
        if !better.contains(&true) {
            return;
        }
        for lane in (0..LANES).filter(|lane| better[*lane]) {
            best.change[lane] = other.change[lane];
            best.steps.set(lane, other.steps.of(lane));
        }
        for index in 0..self.part.len() {
            for lane in 0..LANES {
                if better[lane] {
                    best.values[index][lane] = other.values[index][lane];
                    best.residuals[index][lane] = other.residuals[index][lane];
                    best.codes[index][lane] = other.codes[index][lane];
                }
            }
        }
    }

    /// Scales of the least squares of the codes.
    #[inline(always)]
    fn fitted(&self, best: &Choice<G::Code>) -> Steps {
        let (mut slopes, mut curvatures) = ([0.0f32; LANES], [0.0f32; LANES]);
        for (index, values) in best.values.iter().enumerate() {
            let mut products = [0.0f32; LANES];
            for (other, factor) in best.values.iter().zip(self.row(index)) {
                for lane in 0..LANES {
                    products[lane] += factor * other[lane];
                }
            }
            for lane in 0..LANES {
                slopes[lane] += values[lane] * best.residuals[index][lane];
                curvatures[lane] += values[lane] * products[lane];
            }
        }
        let mut steps = best.steps;
        for lane in 0..LANES {
            // Of the values, which are the scale times the codes.
            let share = 1.0 - slopes[lane] / curvatures[lane];
            let scale = self.storable.nearest(best.steps.scales[lane] * share);
            if share > 0.0 && share.is_finite() && scale.is_finite() {
                steps.set(lane, Step::new(scale, best.steps.zero_points[lane], self.scaled));
            }
        }
        steps
    }

    /// The Hessian between a column of the group and all of them.
    #[inline(always)]
    fn row(&self, index: usize) -> &[f32] {
        &self.panel[index * self.size + self.part.start..index * self.size + self.part.end]
    }

    /// Moves each column to the nearest value to its minimum.
    #[inline(always)]
    fn pass(&self, choice: &mut Choice<G::Code>) {
        for index in 0..self.part.len() {
            let row = self.row(index);
            let curvature = row[index];
            let inverse = if curvature > 0.0 { 1.0 / curvature } else { 0.0 };
            let mut moves = [0.0f32; LANES];
            for lane in 0..LANES {
                let (value, residual) = (choice.values[index][lane], choice.residuals[index][lane]);
                let (code, nearest) = self.grid.nearest(value - residual * inverse, choice.steps.of(lane));
                let change = nearest - value;
                choice.codes[index][lane] = code;
                choice.values[index][lane] = nearest;
                choice.change[lane] += change * (2.0 * residual + change * curvature);
                moves[lane] = change;
            }
            for (residuals, factor) in choice.residuals.iter_mut().zip(row) {
                for lane in 0..LANES {
                    residuals[lane] += moves[lane] * factor;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounding::Gptq;
    use kvant_numeric::ComputeDType;

    fn noise(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| (((i + seed) * 7919) % 1009) as f32 / 504.5 - 1.0).collect()
    }

    /// Inputs some of which are much larger, and alike.
    fn hessian(features: usize) -> Hessian {
        let mut hessian = Hessian::with_mismatch(features);
        let mut inputs = noise(300 * features, 3);
        for row in inputs.chunks_mut(features) {
            for column in 1..features {
                row[column] = 0.6 * row[column - 1] + row[column] * (1.0 + (column % 7) as f32);
            }
        }
        let mut float: Vec<f32> = inputs.iter().zip(noise(inputs.len(), 9)).map(|(x, n)| x + 0.02 * n).collect();
        hessian.add_with_float(&inputs, &mut float);
        hessian
    }

    const SCHEMES: [&str; 18] = [
        "int2:g32",
        "int3:g64:f16",
        "int4:channel",
        "int4:tensor",
        "uint4:g32:zp",
        "uint4:g32:fzp",
        "int8:channel:pow2",
        "int16:channel",
        "e4m3:b64x64:f32",
        "e2m1:g16:e4m3:f32",
        "e2m1:g32:e8m0",
        "gguf-q2_k",
        "gguf-q3_k",
        "gguf-q4_k",
        "gguf-q4_0",
        "gguf-q5_1",
        "gguf-iq4_xs",
        "gguf-nvfp4",
    ];

    #[test]
    fn rounds_of_refinement_lower_the_output_error_with_scales_that_can_be_stored() {
        let (rows, columns) = (70, 256);
        let (weight, hessian) = (noise(rows * columns, 1), hessian(columns));
        let context = TensorContext::new(ComputeDType::Bf16);
        let factors = Gptq::GPTQ.prepare(&hessian).unwrap();
        for text in SCHEMES {
            let before = factors.round(&weight, rows, text.parse().unwrap(), context).unwrap();
            let refined = |rounds: u32, isa: Isa| {
                let mut tensor = before.tensor.clone();
                let damping = factors.damping();
                let refinement = Refinement { hessian: &hessian, mismatch: 0.0, damping, rounds, isa };
                refinement.run(&weight, context, &mut tensor).unwrap();
                tensor
            };
            let error = |tensor: &QuantTensor| hessian.loss(&weight, &tensor.dequantize());
            let [one, three] = [1, 3].map(|rounds| refined(rounds, Isa::best()));
            assert!(error(&one) < before.loss, "{text}: {} {}", error(&one), before.loss);
            assert!(error(&three) <= 1.001 * error(&one), "{text}: {} {}", error(&three), error(&one));
            let storable = StorableScales::of(&three, context);
            for scale in three.scales().iter().filter(|_| three.factors.is_empty()) {
                assert_eq!(storable.stored(scale * storable.outer()), *scale, "{text}");
            }
            let (mut bytes, mut values) = (Vec::new(), vec![0.0; weight.len()]);
            three.put_blocks(&mut bytes);
            if let TensorScheme::Gguf(blocks) = three.scheme() {
                kvant_numeric::ggml::dequantize(Isa::best(), blocks.kind, &bytes, &mut values);
                assert_eq!(values, three.dequantize(), "{text}");
            }
            assert_eq!(refined(3, Isa::best()), three, "{text}");
        }
    }

    #[test]
    fn refinement_makes_up_for_the_mismatch_of_inputs() {
        let (rows, columns) = (64, 128);
        let (weight, hessian) = (noise(rows * columns, 1), hessian(columns));
        let context = TensorContext::new(ComputeDType::F32);
        let factors = Gptq::QRONOS.prepare(&hessian).unwrap();
        let mut tensor = factors.round(&weight, rows, "int3:g32".parse().unwrap(), context).unwrap().tensor;
        // tr(Q H Q^T) - 2 tr(Q (H + D^T) W^T), up to what does not depend on Q.
        let sums = hessian.gram().sums();
        let mismatch = hessian.mismatch().unwrap();
        let objective = |tensor: &QuantTensor| -> f64 {
            let values = tensor.dequantize();
            let pairs = values.chunks(columns).zip(weight.chunks(columns));
            let of_row = |(q, w): (&[f32], &[f32])| -> f64 {
                let element = |i: usize, j: usize| {
                    let (own, target) = (f64::from(sums.symmetric(i, j)), f64::from(mismatch.row(j)[i]));
                    f64::from(q[i]) * (own * f64::from(q[j]) - 2.0 * (own + target) * f64::from(w[j]))
                };
                (0..columns).flat_map(|i| (0..columns).map(move |j| (i, j))).map(|(i, j)| element(i, j)).sum()
            };
            pairs.map(of_row).sum()
        };
        let before = objective(&tensor);
        let refinement =
            Refinement { hessian: &hessian, mismatch: 1.0, damping: factors.damping(), rounds: 2, isa: Isa::best() };
        refinement.run(&weight, context, &mut tensor).unwrap();
        assert!(objective(&tensor) < before, "{} {before}", objective(&tensor));
    }
}
