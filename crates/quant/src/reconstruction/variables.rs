//! The trained variables of a weight: the trait of AdaRound's and AdaQuant's variables, and their codes.

use super::adam::Adam;

/// The codes of an output's weights, counted from the zero point: `value = scale * step` for whole steps in a range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CodeSteps {
    /// The scale; above zero.
    pub scale: f32,
    /// The lowest code less the zero point.
    pub lowest: f32,
    /// The highest code less the zero point.
    pub highest: f32,
}

impl CodeSteps {
    /// The step nearest to a value, half to even.
    #[inline(always)]
    pub(super) fn nearest(self, value: f32) -> f32 {
        (value / self.scale).round_ties_even().max(self.lowest).min(self.highest)
    }
}

/// A weight to find codes for.
#[derive(Debug, Clone, Copy)]
pub struct Weight<'a> {
    /// `[outputs, features]`.
    pub values: &'a [f32],
    /// Weights that share a scale: all of an output, or a part of them that all outputs are cut into.
    pub features: usize,
    /// The codes of each such part, output by output.
    pub steps: &'a [CodeSteps],
    /// The bias, one for each output.
    pub bias: Option<&'a [f32]>,
}

impl Weight<'_> {
    /// Steps of each weight, row by row.
    pub(super) fn map(&self, code: impl Fn(f32, CodeSteps) -> f32) -> Vec<f32> {
        let rows = self.values.chunks(self.features.max(1)).zip(self.steps);
        rows.flat_map(|(row, steps)| row.iter().map(|&value| code(value, *steps))).collect()
    }

    /// The nearest steps.
    pub(super) fn nearest(&self) -> Vec<f32> {
        self.map(|value, steps| steps.nearest(value))
    }

    /// The value of a step.
    pub(super) fn restored(&self, steps: &[f32]) -> Vec<f32> {
        let rows = steps.chunks(self.features.max(1)).zip(self.steps);
        rows.flat_map(|(row, codes)| row.iter().map(|&step| step * codes.scale)).collect()
    }
}

/// A weight under training.
pub(super) trait Variables {
    /// The weights as the layer sees them now, `[outputs, features]`.
    fn weights(&self) -> &[f32];

    /// The steps of the codes that this leads to.
    fn rounded(&self) -> Vec<f32>;

    /// Moves along the gradient of the loss by the weights. `beta` is the power of AdaRound's regularization.
    fn step(&mut self, gradient: &[f32], adam: Adam, beta: Option<f32>);
}

/// Weights that one thread updates at a time.
const PIECE: usize = 1 << 14;

/// Outputs whose weights one thread updates at a time.
pub(super) fn rows_of_a_piece(features: usize) -> usize {
    (PIECE / features.max(1)).max(1)
}
