//! Refinement of blocks of GGUF, whose scales and minima are multiples of factors that all groups of a block share: the multiples
//! are refitted group by group, the factors block by block.
//!
//! With `u` the scaled levels of some columns and `v = u - m` their values, changing scales by a share `a` and minima by `b`
//! changes the values by `d = a u - b t`, where `t` is 1 for the minimum of one group, and the minima themselves for the factor
//! of all of a block. The error changes by `2 d R^T + d H d^T`, of which the least is found in closed form.

use super::{Band, COLUMNS, Choice, Grid, Group, LANES, Lanes, Steps};
use crate::quant_tensor::QuantTensor;
use crate::rounding::steps::Scaled;
use crate::rounding::value_grid::Step;
use crate::scheme::TensorScheme;
use kvant_numeric::ggml::{GroupMinima, GroupScales, GroupedType};
use kvant_numeric::simd::{Loop, dispatch};

/// The type of blocks of GGUF that a tensor is made of.
pub(super) fn blocks_of(tensor: &QuantTensor) -> Option<GroupedType> {
    match tensor.scheme() {
        TensorScheme::Gguf(blocks) => Some(blocks),
        _ => None,
    }
}

/// The factors of the block that a group is in.
pub(super) fn factors_of(tensor: &QuantTensor, row: usize, group: usize) -> &[f32] {
    let Some(blocks) = blocks_of(tensor) else { return &[] };
    let (count, groups) = (blocks.factors(), blocks.groups_of_block());
    let block = row * (tensor.scale_shape().1 / groups) + group / groups;
    tensor.factors.get(block * count..(block + 1) * count).unwrap_or_default()
}

/// Sums from which the best change of scales and minima follows.
#[derive(Clone, Copy)]
struct Sums {
    /// `u R^T` and `t R^T`.
    slopes: [Lanes<f32>; 2],
    /// `u H u^T`, `u H t^T` and `t H t^T`.
    curvatures: [Lanes<f32>; 3],
}

impl Sums {
    const ZERO: Sums = Sums { slopes: [[0.0; LANES]; 2], curvatures: [[0.0; LANES]; 3] };

    /// The shares `a` and `b` of the least error; `b` is 0 where there are no minima to be changed.
    #[inline(always)]
    fn solve(&self, lane: usize, has_minima: bool) -> (f32, f32) {
        let [slope, of_minima] = self.slopes.map(|slopes| slopes[lane]);
        let [own, mixed, minima] = self.curvatures.map(|curvatures| curvatures[lane]);
        let determinant = own * minima - mixed * mixed;
        // Levels that are all alike cannot be told from a minimum.
        if has_minima && determinant > 1e-6 * own * minima {
            let a = (mixed * of_minima - minima * slope) / determinant;
            let b = (own * of_minima - mixed * slope) / determinant;
            return (a, b);
        }
        if own > 0.0 { (-slope / own, 0.0) } else { (0.0, 0.0) }
    }

    /// What the error changes by.
    #[inline(always)]
    fn change(&self, lane: usize, (a, b): (f32, f32)) -> f32 {
        let [slope, of_minima] = self.slopes.map(|slopes| slopes[lane]);
        let [own, mixed, minima] = self.curvatures.map(|curvatures| curvatures[lane]);
        2.0 * (a * slope - b * of_minima) + a * a * own - 2.0 * a * b * mixed + b * b * minima
    }
}

impl<G: Grid> Group<'_, G> {
    /// Scales and minima of the least squares of the codes, and those beside the best that a block can store.
    #[inline(always)]
    pub(super) fn fit_stored(&self, best: &mut Choice<G::Code>, blocks: GroupedType) {
        for _ in 0..2 {
            let steps = self.fitted_steps(best, blocks);
            self.try_steps(best, steps);
        }
        for (scales, minima) in NEIGHBOURS {
            if scales != 0 && !has_neighbours(blocks)
                || minima != 0 && !matches!(blocks.minima, GroupMinima::Multiples { .. })
            {
                continue;
            }
            let mut steps = best.steps;
            for lane in 0..LANES {
                let step = steps.of(lane);
                let factors = steps.factors.map(|factors| factors[lane]);
                let scale = beside(blocks, step.scale, factors[0], scales);
                let minimum =
                    blocks.stored_minimum(step.zero_point as f32 + f32::from(minima) * factors[1], factors[1]);
                let minimum = if minima == 0 { step.zero_point } else { f64::from(minimum) };
                steps.set(lane, Step::new(scale, minimum, self.scaled));
            }
            self.try_steps(best, steps);
        }
    }

    /// What a block stores of the scales and minima of the least squares.
    #[inline(always)]
    fn fitted_steps(&self, best: &Choice<G::Code>, blocks: GroupedType) -> Steps {
        let mut sums = Sums::ZERO;
        let minima: Lanes<f32> = std::array::from_fn(|lane| best.steps.zero_points[lane] as f32);
        for index in 0..self.part.len() {
            let row = self.row(index);
            let (mut products, row_sum) = ([0.0f32; LANES], row.iter().sum::<f32>());
            for (values, factor) in best.values.iter().zip(row) {
                for lane in 0..LANES {
                    products[lane] += factor * (values[lane] + minima[lane]);
                }
            }
            for lane in 0..LANES {
                let (u, residual) = (best.values[index][lane] + minima[lane], best.residuals[index][lane]);
                sums.slopes[0][lane] += u * residual;
                sums.slopes[1][lane] += residual;
                sums.curvatures[0][lane] += u * products[lane];
                sums.curvatures[1][lane] += products[lane];
                sums.curvatures[2][lane] += row_sum;
            }
        }
        let mut steps = best.steps;
        for lane in 0..LANES {
            let (a, b) = sums.solve(lane, blocks.has_minima());
            let [of_scales, of_minima] = steps.factors.map(|factors| factors[lane]);
            let scale = blocks.stored_scale(steps.scales[lane] * (1.0 + a), of_scales);
            let minimum = blocks.stored_minimum(minima[lane] + b, of_minima);
            if scale.is_finite() && minimum.is_finite() {
                steps.set(lane, Step::new(scale, f64::from(minimum), self.scaled));
            }
        }
        steps
    }
}

/// Steps of scales and minima that are tried one after the other, each from what was best so far: those of scales again when minima
/// have moved.
const NEIGHBOURS: [(i8, i8); 8] = [(1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1), (1, 0), (-1, 0)];

/// Returns whether scales have few enough values that the ones beside a scale are worth trying.
fn has_neighbours(blocks: GroupedType) -> bool {
    blocks.scales != GroupScales::F16
}

/// The stored scale that is some steps beside another.
#[inline(always)]
fn beside(blocks: GroupedType, scale: f32, factor: f32, steps: i8) -> f32 {
    let wanted = match blocks.scales {
        GroupScales::F16 => scale,
        GroupScales::E8m0 => scale * f32::from(steps).exp2(),
        // From one e4m3 to the next it is a sixteenth to an eighth.
        GroupScales::E4m3 => scale * (1.0 + 0.09 * f32::from(steps)),
        GroupScales::Multiples { .. } => scale + f32::from(steps) * factor,
    };
    blocks.stored_scale(wanted, factor)
}

impl<G: Grid> Band<'_, G> {
    /// Brings the factors of the block that ends here to the least squares of its multiples and codes.
    pub(super) fn refit_block(&mut self, end: usize) {
        let Some(blocks) = blocks_of(self.work.tensor).filter(|blocks| blocks.factors() > 0) else { return };
        let elements = blocks.kind.block_elements();
        if !end.is_multiple_of(elements) {
            return;
        }
        let groups = (end - elements) / self.group..end / self.group;
        let whole = end - elements..end;
        let panel = self.panel(&whole);
        let mut changes = vec![[0.0f32; LANES]; elements * self.chunks];
        for chunk in 0..self.chunks {
            let steps: Vec<Steps> = groups.clone().map(|group| self.steps[group * self.chunks + chunk]).collect();
            let places = whole.clone().map(|column| column * self.chunks + chunk);
            let refit = Refit {
                blocks,
                panel: &panel,
                size: self.work.tensor.shape().1,
                start: whole.start,
                group: self.group,
                values: places.clone().map(|place| self.values[place]).collect(),
                residuals: places.clone().map(|place| self.residuals[place]).collect(),
                steps,
                scaled: self.scaled,
            };
            let refitted = dispatch(self.work.refinement.isa, refit);
            for (group, steps) in groups.clone().zip(refitted.steps) {
                self.steps[group * self.chunks + chunk] = steps;
            }
            for (index, place) in places.enumerate() {
                for lane in 0..LANES {
                    changes[index * self.chunks + chunk][lane] =
                        refitted.values[index][lane] - self.values[place][lane];
                }
                self.values[place] = refitted.values[index];
            }
        }
        for (part, changes) in (0..).step_by(COLUMNS).zip(changes.chunks(COLUMNS * self.chunks)) {
            let rows = changes.len() / self.chunks;
            let columns = self.work.tensor.shape().1;
            self.add(&panel[part * columns..(part + rows) * columns], rows, changes.as_flattened());
        }
    }

    /// The factors of the rows, block by block.
    pub(super) fn factors(&self) -> Vec<f32> {
        let Some(blocks) = blocks_of(self.work.tensor).filter(|_| self.own_scales) else { return Vec::new() };
        let (count, groups) = (blocks.factors(), blocks.groups_of_block());
        let across = self.work.tensor.scale_shape().1 / groups;
        let of_block = |lane: usize, block: usize| {
            let steps = &self.steps[block * groups * self.chunks + lane / LANES];
            steps.factors.map(|factors| factors[lane % LANES]).into_iter().take(count)
        };
        let rows = 0..self.rows.len();
        rows.flat_map(|lane| (0..across).flat_map(move |block| of_block(lane, block))).collect()
    }
}

/// A block of one chunk of rows.
struct Refit<'a> {
    blocks: GroupedType,
    /// The rows of the damped Hessian.
    panel: &'a [f32],
    size: usize,
    /// The first column.
    start: usize,
    /// Columns of a group.
    group: usize,
    values: Vec<Lanes<f32>>,
    residuals: Vec<Lanes<f32>>,
    /// By group.
    steps: Vec<Steps>,
    scaled: Scaled,
}

/// Values and steps with other factors.
struct Refitted {
    values: Vec<Lanes<f32>>,
    steps: Vec<Steps>,
}

impl Loop for Refit<'_> {
    type Output = Refitted;

    #[inline(always)]
    fn run(mut self) -> Refitted {
        let sums = self.sums();
        let blocks = self.blocks;
        for lane in 0..LANES {
            let factors = self.steps[0].factors.map(|factors| factors[lane]);
            let (a, b) = sums.solve(lane, blocks.has_minima());
            let other = [blocks.stored_factor(factors[0] * (1.0 + a)), blocks.stored_factor(factors[1] * (1.0 + b))];
            let share = |new: f32, old: f32| if old == 0.0 { 0.0 } else { new / old - 1.0 };
            let shares = (share(other[0], factors[0]), share(other[1], factors[1]));
            let usable = other[0] / factors[0] > 0.0 && other[1] >= 0.0 && other[0].is_finite() && other[1].is_finite();
            if usable && sums.change(lane, shares) < 0.0 {
                self.take(lane, factors, other);
            }
        }
        Refitted { values: self.values, steps: self.steps }
    }
}

impl Refit<'_> {
    #[inline(always)]
    fn sums(&self) -> Sums {
        let mut sums = Sums::ZERO;
        let minima = |index: usize, lane: usize| self.steps[index / self.group].zero_points[lane] as f32;
        let scaled: Vec<Lanes<f32>> = (0..self.values.len())
            .map(|index| std::array::from_fn(|lane| self.values[index][lane] + minima(index, lane)))
            .collect();
        let all: Vec<Lanes<f32>> =
            (0..self.values.len()).map(|index| std::array::from_fn(|lane| minima(index, lane))).collect();
        for index in 0..self.values.len() {
            let row = &self.panel[index * self.size + self.start..][..self.values.len()];
            let (mut of_levels, mut of_minima) = ([0.0f32; LANES], [0.0f32; LANES]);
            for ((scaled, minima), factor) in scaled.iter().zip(&all).zip(row) {
                for lane in 0..LANES {
                    of_levels[lane] += factor * scaled[lane];
                    of_minima[lane] += factor * minima[lane];
                }
            }
            for lane in 0..LANES {
                let (u, t, residual) = (scaled[index][lane], all[index][lane], self.residuals[index][lane]);
                sums.slopes[0][lane] += u * residual;
                sums.slopes[1][lane] += t * residual;
                sums.curvatures[0][lane] += u * of_levels[lane];
                sums.curvatures[1][lane] += u * of_minima[lane];
                sums.curvatures[2][lane] += t * of_minima[lane];
            }
        }
        sums
    }

    /// Takes other factors for a row: multiples and codes stay.
    #[inline(always)]
    fn take(&mut self, lane: usize, factors: [f32; 2], other: [f32; 2]) {
        let multiple = |number: f32, factor: f32| if factor == 0.0 { 0.0 } else { (number / factor).round() };
        for (steps, values) in self.steps.iter_mut().zip(self.values.chunks_mut(self.group)) {
            let (scale, minimum) = (steps.scales[lane], steps.zero_points[lane] as f32);
            let new = (multiple(scale, factors[0]) * other[0], multiple(minimum, factors[1]) * other[1]);
            for values in values {
                let level = if scale == 0.0 { 0.0 } else { ((values[lane] + minimum) / scale).round() };
                values[lane] = level * new.0 - new.1;
            }
            steps.set(lane, Step::new(new.0, f64::from(new.1), self.scaled));
            steps.factors[0][lane] = other[0];
            steps.factors[1][lane] = other[1];
        }
    }
}
