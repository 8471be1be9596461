//! The innermost loop: the columns of a block one after another, each with many rows at once. Not what earlier blocks ask
//! of this one, which it is given.

use super::factors::Shares;
use crate::rounding::steps::{LANES, Lanes, Steps};
use crate::rounding::value_grid::{Grid, Step};
use kvant_numeric::linalg::BlockRow;
use kvant_numeric::simd::Loop;

/// A block of columns of a band. What has a chunk of lanes for each column, or position, has `chunks` of them in a row.
pub(super) struct Block<'a, G: Grid> {
    pub(super) grid: G,
    /// The positions of the block.
    pub(super) place: &'a BlockRow,
    /// Columns by position.
    pub(super) order: &'a [usize],
    /// By position.
    pub(super) shares: &'a [Shares],
    /// `F_ij` in rows `j` of the block.
    pub(super) factors: &'a [f32],
    /// The factors of the input mismatch in rows `j` of the block, where columns count one by one.
    pub(super) mismatch: Option<&'a [f32]>,
    pub(super) steps: &'a Steps,
    pub(super) chunks: usize,
    /// By column.
    pub(super) weights: &'a [Lanes<f32>],
    /// By position in the block: what the errors of earlier blocks ask.
    pub(super) pulls: &'a [Lanes<f32>],
    /// By position in the block: the term of the input mismatch; empty without one.
    pub(super) shifts: &'a [Lanes<f32>],
    /// By position.
    pub(super) errors: &'a mut [Lanes<f32>],
    /// By position; empty where nothing depends on them.
    pub(super) arguments: &'a mut [Lanes<f32>],
    /// By column.
    pub(super) codes: &'a mut [Lanes<G::Code>],
}

impl<G: Grid> Loop for Block<'_, G> {
    type Output = f64;

    /// Returns the loss.
    #[inline(always)]
    fn run(mut self) -> f64 {
        let mut loss = 0.0;
        for chunk in 0..self.chunks {
            let mut losses = [0.0; LANES];
            for position in self.place.rows.clone() {
                self.column(position, chunk, &mut losses);
            }
            loss += losses.iter().sum::<f64>();
        }
        loss
    }
}

impl<G: Grid> Block<'_, G> {
    #[inline(always)]
    fn column(&mut self, position: usize, chunk: usize, losses: &mut Lanes<f64>) {
        let first = self.place.rows.start;
        let in_block = (position - first) * self.chunks + chunk;
        let earlier = first * self.chunks + chunk;
        let row = (position - first) * self.place.columns;
        let pull = self.pulls[in_block];
        let pull = pulled(pull, &self.errors[earlier..], self.chunks, &self.factors[row + first..row + position]);
        let mut wanted = pull;
        if let Some(shift) = self.shifts.get(in_block) {
            let own = self.mismatch.map_or(&[][..], |mismatch| &mismatch[row + first..row + position]);
            let shift =
                if own.is_empty() { *shift } else { pulled(*shift, &self.arguments[earlier..], self.chunks, own) };
            wanted.iter_mut().zip(shift).for_each(|(wanted, shift)| *wanted += shift);
        }
        self.round(position, chunk, &pull, &wanted, losses);
    }

    /// Rounds the weights of a column plus what is `wanted` of them.
    #[inline(always)]
    fn round(
        &mut self,
        position: usize,
        chunk: usize,
        pull: &Lanes<f32>,
        wanted: &Lanes<f32>,
        losses: &mut Lanes<f64>,
    ) {
        let column = self.order[position];
        let (by_column, by_position) = (column * self.chunks + chunk, position * self.chunks + chunk);
        let (weights, codes) = (&self.weights[by_column], &mut self.codes[by_column]);
        let errors = &mut self.errors[by_position];
        let (scales, divisors, zero_points) = self.steps.of(column, chunk);
        let shares = self.shares[position];
        for lane in 0..LANES {
            let step = Step { scale: scales[lane], divisor: divisors[lane], zero_point: zero_points[lane] };
            let (code, value) = self.grid.nearest(weights[lane] + wanted[lane], step);
            let error = weights[lane] - value;
            codes[lane] = code;
            errors[lane] = error;
            let left = error + pull[lane];
            losses[lane] += shares.left * f64::from(left * left) - shares.error * f64::from(error * error);
        }
        if let Some(arguments) = self.arguments.get_mut(by_position) {
            for lane in 0..LANES {
                arguments[lane] = weights[lane] + wanted[lane];
            }
        }
    }
}

/// `sums + sum_i values_i factors_i`, the values of one chunk of lanes standing `chunks` apart.
#[inline(always)]
fn pulled(sums: Lanes<f32>, values: &[Lanes<f32>], chunks: usize, factors: &[f32]) -> Lanes<f32> {
    // Vectors by name, so that the compiler keeps them in registers.
    let [mut a, mut b, mut c, mut d] = *vectors(&sums);
    for (values, factor) in values.iter().step_by(chunks).zip(factors) {
        let [va, vb, vc, vd] = vectors(values);
        add_product(&mut a, va, *factor);
        add_product(&mut b, vb, *factor);
        add_product(&mut c, vc, *factor);
        add_product(&mut d, vd, *factor);
    }
    let mut out = [0.0; LANES];
    let (vectors, _) = out.as_chunks_mut::<16>();
    for (out, vector) in vectors.iter_mut().zip([a, b, c, d]) {
        *out = vector;
    }
    out
}

#[inline(always)]
fn vectors(lanes: &Lanes<f32>) -> &[[f32; 16]; 4] {
    let (vectors, _) = lanes.as_chunks::<16>();
    vectors.first_chunk::<4>().unwrap_or(&[[0.0; 16]; 4])
}

#[inline(always)]
fn add_product(sum: &mut [f32; 16], values: &[f32; 16], factor: f32) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += *value * factor;
    }
}
