//! Weights that are learned through their rounding: each has a latent value, which is rounded to the grid of its scale, and each scale
//! a factor. Both move by the sign of the gradient (SignRound, arXiv 2309.05516). Not the gradient, which others compute.

use super::parallel::map_bands;
use super::rtn::search::StorableScales;
use super::rtn::{RoundingError, TensorContext};
use super::steps::Scaled;
use super::value_grid::{Code, Grid, OnGrid, Step, Whole, on_grid};
use crate::quant_tensor::{Codes, QuantTensor};
use crate::scheme::{TensorScheme, ZeroPoint};
use kvant_numeric::simd::{Isa, Loop, dispatch};

/// A weight whose codes and scales are learned.
///
/// With the latent weight `l` and the scale `s`, the weight is `q = s round(l / s)` on the grid. Gradients pass the rounding: `dq/dl` is 1
/// where `l` is within the reach of the codes and 0 outside, and `dq/ds` is `(q - l) / s` within and `q / s` outside.
#[derive(Clone, Debug)]
pub struct LatentWeight {
    /// The tensor at the start, but for its codes.
    tensor: QuantTensor,
    context: TensorContext,
    latent: Vec<f32>,
    /// The scales at the start, as the grid has them, and what each has become of that.
    scales: Vec<f32>,
    factors: Vec<f32>,
    /// The lowest and the highest code, where they are fewer than those of the format.
    limits: Option<(i64, i64)>,
}

/// How far a latent weight may be from the value of its code at the start, in distances of the grid: it is rounded to it.
const WITHIN: f32 = 0.49;

/// How far scales may move, as a share of themselves.
const REACH: f32 = 0.5;

impl LatentWeight {
    /// Starts at the codes and scales of a tensor, each latent value as near to the weight as its code allows.
    ///
    /// # Errors
    /// [`RoundingError::NoCodes`].
    pub fn new(weight: &[f32], tensor: QuantTensor, context: TensorContext) -> Result<LatentWeight, RoundingError> {
        LatentWeight::start(weight, tensor, context, None)
    }

    /// The same for a weight that takes only some codes of its format: from a lowest to a highest one. They bound integers of at most
    /// eight bits with whole zero points; others take all.
    ///
    /// # Errors
    /// [`RoundingError::NoCodes`].
    pub fn within(
        codes: (i64, i64),
        weight: &[f32],
        tensor: QuantTensor,
        context: TensorContext,
    ) -> Result<LatentWeight, RoundingError> {
        LatentWeight::start(weight, tensor, context, Some(codes))
    }

    fn start(
        weight: &[f32],
        tensor: QuantTensor,
        context: TensorContext,
        limits: Option<(i64, i64)>,
    ) -> Result<LatentWeight, RoundingError> {
        let values = tensor.dequantize();
        let factors = vec![1.0; tensor.scales().len()];
        let mut made = LatentWeight { latent: values, context, scales: Vec::new(), factors, tensor, limits };
        made.scales = made.tensor.scales().iter().map(|scale| scale * made.storable().outer()).collect();
        made.on_grid(Start { weight })?;
        made.tensor.codes.discard();
        Ok(made)
    }

    /// The weight as it is rounded now, row-major.
    pub fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.latent.len()];
        self.write_values(&mut values);
        values
    }

    /// Writes the weight as it is rounded now, row-major, to as many numbers.
    pub fn write_values(&self, out: &mut [f32]) {
        // The scheme has codes, or there would be no latent weight.
        let _ = self.run(Values { of: self, out });
    }

    /// Moves latent values by `rate` distances of the grid, and factors of scales by `scale_rate`, against the signs of the gradient,
    /// and leaves zeros of that.
    pub fn step(&mut self, gradient: &mut [f32], rate: f32, scale_rate: f32) {
        let mut rows = Vec::new();
        // As above.
        let _ = self.on_grid(SignStep { gradient, rate, rows: &mut rows });
        let mut slopes = self.slopes_of_factors(&rows);
        slopes.iter_mut().for_each(|slope| *slope = sign(*slope));
        self.move_factors(&slopes, scale_rate);
    }

    /// Turns the gradient of values into that of latent values; returns that of the factors of scales.
    pub(in crate::rounding) fn pull_back(&self, gradient: &mut [f32]) -> Vec<f32> {
        // As above.
        let rows = self.run(PullBack { of: self, gradient }).unwrap_or_default();
        self.slopes_of_factors(&rows)
    }

    /// The gradient of factors, of the slopes of the scales of each row.
    fn slopes_of_factors(&self, rows: &[Vec<f32>]) -> Vec<f32> {
        let mut slopes = vec![0.0f32; self.scales.len()];
        for (row, own) in rows.iter().enumerate() {
            let (_, first) = self.tiles(row);
            slopes[first..].iter_mut().zip(own).for_each(|(sum, slope)| *sum += slope);
        }
        slopes.iter_mut().zip(&self.scales).for_each(|(slope, scale)| *slope *= scale);
        slopes
    }

    /// Moves latent values by `rate` distances of the grid for each step of 1, and factors by `scale_rate`, down.
    pub(in crate::rounding) fn descend(&mut self, steps: &[f32], rate: f32, of_factors: &[f32], scale_rate: f32) {
        // As above.
        let _ = self.on_grid(Descend { steps, rate });
        self.move_factors(of_factors, scale_rate);
    }

    fn move_factors(&mut self, steps: &[f32], scale_rate: f32) {
        // Half of a power of two, or twice as much, is no small step.
        if scale_rate == 0.0 || self.storable().are_powers_of_two() {
            return;
        }
        for (factor, step) in self.factors.iter_mut().zip(steps) {
            *factor = (*factor - scale_rate * step).clamp(1.0 - REACH, 1.0 + REACH);
        }
    }

    /// The tensor that it is rounded to now.
    ///
    /// # Errors
    /// [`RoundingError::NoCodes`].
    pub fn rounded(&self) -> Result<QuantTensor, RoundingError> {
        let codes = self.run(ToCodes { of: self })?;
        let storable = self.storable();
        let scales = (0..self.scales.len()).map(|index| storable.stored(self.scale(index))).collect();
        Ok(QuantTensor { codes, scales, ..self.tensor.clone() })
    }

    fn on_grid<E: Edit>(&mut self, edit: E) -> Result<(), RoundingError> {
        let (limited, scheme, context) = (self.limited(), self.tensor.scheme(), self.context);
        let global_scale = self.tensor.global_scale();
        let edit = EditOn { of: self, edit };
        match limited {
            Some(grid) => edit.run(grid, Scaled::ByReciprocals),
            None => on_grid(scheme, context, global_scale, edit)?,
        }
        Ok(())
    }

    fn run<W: OnGrid>(&self, work: W) -> Result<W::Output, RoundingError> {
        match self.limited() {
            Some(grid) => Ok(work.run(grid, Scaled::ByReciprocals)),
            None => on_grid(self.tensor.scheme(), self.context, self.tensor.global_scale(), work),
        }
    }

    /// The grid of fewer codes than those of the format.
    fn limited(&self) -> Option<Whole> {
        let (lowest, highest) = self.limits?;
        let TensorScheme::Int(int) = self.tensor.scheme() else { return None };
        let is_whole = int.format.bits() <= 8 && int.zero_point != ZeroPoint::Float;
        is_whole.then_some(Whole { min: lowest as f32, max: highest as f32 })
    }

    fn storable(&self) -> StorableScales {
        StorableScales::of(&self.tensor, self.context)
    }

    /// A scale as it is now.
    fn scale(&self, index: usize) -> f32 {
        let (start, factor) = (self.scales[index], self.factors[index]);
        if factor == 1.0 { start } else { self.storable().nearest(start * factor) }
    }

    fn step_of(&self, index: usize, scaled: Scaled) -> Step {
        Step::new(self.scale(index), self.tensor.zero_points().get(index).copied().unwrap_or(0.0), scaled)
    }

    /// The steps of all scales.
    fn steps(&self, scaled: Scaled) -> Vec<Step> {
        (0..self.scales.len()).map(|index| self.step_of(index, scaled)).collect()
    }

    /// The scale of each run of columns of a row: columns of a run, and the first scale of the row.
    fn tiles(&self, row: usize) -> (usize, usize) {
        let (tile_rows, tile_columns) = self.tensor.tile();
        (tile_columns, row / tile_rows * self.tensor.scale_shape().1)
    }
}

/// A change of a latent weight on its grid.
trait Edit {
    fn apply<G: Grid>(self, of: &mut LatentWeight, grid: G, scaled: Scaled);
}

struct EditOn<'a, E> {
    of: &'a mut LatentWeight,
    edit: E,
}

impl<E: Edit> OnGrid for EditOn<'_, E> {
    type Output = ();

    fn run<G: Grid>(self, grid: G, scaled: Scaled) {
        self.edit.apply(self.of, grid, scaled);
    }
}

/// From values of codes to latent values.
struct Start<'a> {
    weight: &'a [f32],
}

impl Edit for Start<'_> {
    fn apply<G: Grid>(self, of: &mut LatentWeight, grid: G, scaled: Scaled) {
        let (_, columns) = of.tensor.shape();
        let steps = of.steps(scaled);
        let mut latent = std::mem::take(&mut of.latent);
        map_bands(&mut latent, columns, &|row, latent| {
            let (width, first) = of.tiles(row);
            for (column, (latent, weight)) in latent.iter_mut().zip(&self.weight[row * columns..]).enumerate() {
                let within = WITHIN * grid.spacing(*latent, steps[first + column / width]);
                *latent = weight.clamp(*latent - within, *latent + within);
            }
        });
        of.latent = latent;
    }
}

/// A step down.
struct Descend<'a> {
    steps: &'a [f32],
    rate: f32,
}

impl Edit for Descend<'_> {
    fn apply<G: Grid>(self, of: &mut LatentWeight, grid: G, scaled: Scaled) {
        let (_, columns) = of.tensor.shape();
        let steps = of.steps(scaled);
        let mut latent = std::mem::take(&mut of.latent);
        map_bands(&mut latent, columns, &|row, latent| {
            let (width, first) = of.tiles(row);
            let tiles = latent.chunks_mut(width).zip(self.steps[row * columns..].chunks(width)).enumerate();
            for (tile, (latent, down)) in tiles {
                dispatch(Isa::best(), DescendTile { grid, step: steps[first + tile], rate: self.rate, latent, down });
            }
        });
        of.latent = latent;
    }
}

struct DescendTile<'a, G> {
    grid: G,
    step: Step,
    rate: f32,
    latent: &'a mut [f32],
    down: &'a [f32],
}

impl<G: Grid> Loop for DescendTile<'_, G> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (latent, down) in self.latent.iter_mut().zip(self.down) {
            *latent -= self.rate * self.grid.spacing(*latent, self.step) * down;
        }
    }
}

/// From the gradient of values to that of latent values, and for each row to the slopes of its scales.
struct PullBack<'a> {
    of: &'a LatentWeight,
    gradient: &'a mut [f32],
}

impl OnGrid for PullBack<'_> {
    type Output = Vec<Vec<f32>>;

    fn run<G: Grid>(self, grid: G, scaled: Scaled) -> Vec<Vec<f32>> {
        let of = self.of;
        let (_, columns) = of.tensor.shape();
        let steps = of.steps(scaled);
        map_bands(self.gradient, columns, &|row, gradient| {
            let (width, first) = of.tiles(row);
            let latent = &of.latent[row * columns..][..columns];
            let parts = latent.chunks(width).zip(gradient.chunks_mut(width)).enumerate();
            let of_tile = |(tile, (latent, gradient))| {
                dispatch(Isa::best(), PullBackTile { grid, step: steps[first + tile], latent, gradient })
            };
            parts.map(of_tile).collect()
        })
    }
}

/// Leaves the gradient of latent values of a tile; gives the slope of its scale.
struct PullBackTile<'a, G> {
    grid: G,
    step: Step,
    latent: &'a [f32],
    gradient: &'a mut [f32],
}

impl<G: Grid> Loop for PullBackTile<'_, G> {
    type Output = f32;

    #[inline(always)]
    fn run(self) -> f32 {
        let PullBackTile { grid, step, latent, gradient } = self;
        let (passage, mut slopes) = (Passage::new(grid, step), [0.0; LANES]);
        for (latent, gradient) in latent.chunks(LANES).zip(gradient.chunks_mut(LANES)) {
            for ((latent, gradient), slope) in latent.iter().zip(gradient).zip(&mut slopes) {
                let passed = passage.back(*latent, *gradient);
                *gradient = passed.latent;
                *slope += passed.scale;
            }
        }
        slopes.iter().sum::<f32>() / step.scale
    }
}

/// A step against the signs of the gradient of values, which leaves zeros, and for each row the slopes of its scales.
struct SignStep<'a> {
    gradient: &'a mut [f32],
    rate: f32,
    rows: &'a mut Vec<Vec<f32>>,
}

impl Edit for SignStep<'_> {
    fn apply<G: Grid>(self, of: &mut LatentWeight, grid: G, scaled: Scaled) {
        let (_, columns) = of.tensor.shape();
        let steps = of.steps(scaled);
        let mut latent = std::mem::take(&mut of.latent);
        let mut bands: Vec<Band<'_>> = latent
            .chunks_mut(columns.max(1))
            .zip(self.gradient.chunks_mut(columns.max(1)))
            .map(|(latent, gradient)| Band { latent, gradient })
            .collect();
        *self.rows = map_bands(&mut bands, 1, &|row, band| {
            let (width, first) = of.tiles(row);
            let tiles =
                band.iter_mut().flat_map(|band| band.latent.chunks_mut(width).zip(band.gradient.chunks_mut(width)));
            let of_tile = |(tile, (latent, gradient))| {
                let step = steps[first + tile];
                dispatch(Isa::best(), SignStepTile { grid, step, rate: self.rate, latent, gradient })
            };
            tiles.enumerate().map(of_tile).collect()
        });
        of.latent = latent;
    }
}

/// A row of latent values and the gradient of what they are rounded to.
struct Band<'a> {
    latent: &'a mut [f32],
    gradient: &'a mut [f32],
}

/// The same for a tile; gives the slope of its scale.
struct SignStepTile<'a, G> {
    grid: G,
    step: Step,
    rate: f32,
    latent: &'a mut [f32],
    gradient: &'a mut [f32],
}

impl<G: Grid> Loop for SignStepTile<'_, G> {
    type Output = f32;

    #[inline(always)]
    fn run(self) -> f32 {
        let SignStepTile { grid, step, rate, latent, gradient } = self;
        let (passage, mut slopes) = (Passage::new(grid, step), [0.0; LANES]);
        for (latent, gradient) in latent.chunks_mut(LANES).zip(gradient.chunks_mut(LANES)) {
            for ((latent, gradient), slope) in latent.iter_mut().zip(gradient).zip(&mut slopes) {
                let passed = passage.back(*latent, *gradient);
                *latent -= rate * grid.spacing(*latent, step) * sign(passed.latent);
                *gradient = 0.0;
                *slope += passed.scale;
            }
        }
        slopes.iter().sum::<f32>() / step.scale
    }
}

/// Neighbours whose slopes are summed apart, so that vectors add them.
const LANES: usize = 16;

/// How gradients pass the rounding to the grid of one scale.
#[derive(Clone, Copy)]
struct Passage<G> {
    grid: G,
    step: Step,
    /// The reach of the codes.
    low: f32,
    high: f32,
}

/// The gradient of a latent value, and a part of that of its scale times the scale.
struct Passed {
    latent: f32,
    scale: f32,
}

impl<G: Grid> Passage<G> {
    #[inline(always)]
    fn new(grid: G, step: Step) -> Passage<G> {
        let ends = [f32::MIN, f32::MAX].map(|far| grid.nearest(far, step).1);
        Passage { grid, step, low: ends[0].min(ends[1]), high: ends[0].max(ends[1]) }
    }

    #[inline(always)]
    fn back(self, latent: f32, gradient: f32) -> Passed {
        let (_, value) = self.grid.nearest(latent, self.step);
        match self.low <= latent && latent <= self.high {
            true => Passed { latent: gradient, scale: gradient * (value - latent) },
            false => Passed { latent: 0.0, scale: gradient * value },
        }
    }
}

/// -1, 0 or 1.
#[inline(always)]
fn sign(x: f32) -> f32 {
    f32::from(i8::from(x > 0.0) - i8::from(x < 0.0))
}

/// What latent values are rounded to.
struct Values<'a> {
    of: &'a LatentWeight,
    out: &'a mut [f32],
}

impl OnGrid for Values<'_> {
    type Output = ();

    fn run<G: Grid>(self, grid: G, scaled: Scaled) {
        let (_, columns) = self.of.tensor.shape();
        let steps = self.of.steps(scaled);
        map_bands(self.out, columns, &|row, values| {
            let (width, first) = self.of.tiles(row);
            let tiles = self.of.latent[row * columns..].chunks(width).zip(values.chunks_mut(width)).enumerate();
            for (tile, (latent, values)) in tiles {
                dispatch(Isa::best(), ValuesTile { grid, step: steps[first + tile], latent, values });
            }
        });
    }
}

struct ValuesTile<'a, G> {
    grid: G,
    step: Step,
    latent: &'a [f32],
    values: &'a mut [f32],
}

impl<G: Grid> Loop for ValuesTile<'_, G> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let rounded = |latent: &f32| self.grid.nearest(*latent, self.step).1;
        self.values.iter_mut().zip(self.latent).for_each(|(value, latent)| *value = rounded(latent));
    }
}

/// The codes of latent values.
struct ToCodes<'a> {
    of: &'a LatentWeight,
}

impl OnGrid for ToCodes<'_> {
    type Output = Codes;

    fn run<G: Grid>(self, grid: G, scaled: Scaled) -> Codes {
        let (_, columns) = self.of.tensor.shape();
        let steps = self.of.steps(scaled);
        let mut codes = vec![G::Code::default(); self.of.latent.len()];
        map_bands(&mut codes, columns, &|row, codes| {
            let (width, first) = self.of.tiles(row);
            for (column, (code, value)) in codes.iter_mut().zip(&self.of.latent[row * columns..]).enumerate() {
                *code = grid.nearest(*value, steps[first + column / width]).0;
            }
        });
        G::Code::collect(codes, self.of.tensor.scheme().format().bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounding::Rtn;
    use kvant_numeric::ComputeDType;

    fn noise(count: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919) % 1009) as f32 / 504.5 - 1.0).collect()
    }

    #[test]
    fn latent_weights_start_at_the_codes_and_follow_the_gradient() {
        let context = TensorContext::new(ComputeDType::F32);
        for scheme in ["int4:g32", "uint4:g32:zp", "int8:channel", "e2m1:g16:e4m3:f32", "e2m1:g32:e8m0", "e4m3:tensor"]
        {
            let weight = noise(8 * 64);
            let rtn = Rtn::new(scheme.parse().unwrap(), context).unwrap();
            let tensor = rtn.round(&weight, 8, 64).unwrap();
            let mut latent = LatentWeight::new(&weight, tensor.clone(), context).unwrap();
            assert_eq!(latent.rounded().unwrap(), tensor, "{scheme}");
            assert_eq!(latent.values(), tensor.dequantize(), "{scheme}");
            // Towards zero: the gradient of half the sum of squares is the value.
            let before: f32 = latent.values().iter().map(|v| v * v).sum();
            for _ in 0..20 {
                let mut gradient = latent.values();
                latent.step(&mut gradient, 0.05, 0.01);
            }
            let after: f32 = latent.values().iter().map(|v| v * v).sum();
            assert!(after < 0.9 * before, "{scheme}: {before} {after}");
            assert_eq!(latent.rounded().unwrap().dequantize(), latent.values(), "{scheme}");
        }
    }

    #[test]
    fn limited_codes_stay_within_their_limits() {
        let context = TensorContext::new(ComputeDType::F32);
        let weight = noise(4 * 16);
        let tensor = Rtn::new("int4:channel".parse().unwrap(), context).unwrap().round(&weight, 4, 16).unwrap();
        let lowest = |latent: &LatentWeight| {
            let tensor = latent.rounded().unwrap();
            (0..64).map(|index| tensor.codes().integer(index, true)).min().unwrap()
        };
        let mut all = LatentWeight::new(&weight, tensor.clone(), context).unwrap();
        let mut fewer = LatentWeight::within((-3, 3), &weight, tensor, context).unwrap();
        for _ in 0..20 {
            for latent in [&mut all, &mut fewer] {
                latent.step(&mut [1.0; 64], 0.9, 0.0);
            }
        }
        assert_eq!((lowest(&all), lowest(&fewer)), (-8, -3));
        assert_eq!(fewer.rounded().unwrap().dequantize(), fewer.values());
    }
}
