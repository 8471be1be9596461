//! Inputs that blocks have of their own: made for all blocks where tokens are embedded, added by each behind its branches.

use super::blueprint::{LayerInput, LayerInputs};
use super::heads::HeadLayout;
use super::ops::Hidden;
use super::options::{Flow, StopAt};
use super::run::Run;
use std::ops::ControlFlow;

impl Run<'_, '_> {
    /// The inputs of all blocks for tokens with embeddings `x`, a row per token.
    pub(super) fn layer_inputs(&self, inputs: &LayerInputs, tokens: &[u32], x: &[f32]) -> Vec<f32> {
        let mut out = self.linear(&inputs.projection, x);
        self.scale(inputs.projection_scale, &mut out);
        let blocks = inputs.projection.rows / inputs.width;
        let of_blocks = HeadLayout::packed(blocks, inputs.width);
        self.ops.normalise(&self.norm_weights(&inputs.norm), &mut out, inputs.projection.rows, of_blocks);
        let mut rows = Vec::with_capacity(out.len());
        for token in tokens {
            // Tokens behind the end of the table are those of images and sound; they have the first row.
            let row = usize::try_from(*token).ok().filter(|row| *row < inputs.table.rows);
            self.read_row(&inputs.table, row.unwrap_or(0), &mut rows);
        }
        let precision = self.ops.precision();
        rows.iter_mut().for_each(|value| *value = precision.round(*value));
        self.scale(precision.round(inputs.table_scale), &mut rows);
        self.ops.join(&mut out, &rows, 1.0);
        self.scale(precision.round(std::f32::consts::FRAC_1_SQRT_2), &mut out);
        out
    }

    /// What a block's own input, a row per token, adds to the residual stream `x`.
    pub(super) fn layer_input(&self, layer: &LayerInput, input: &[f32], x: &[f32]) -> Flow<Vec<f32>> {
        self.enter(StopAt::LayerInput, &[&layer.gate], x, self.spans())?;
        let gate = self.linear(&layer.gate, x);
        let mut hidden = self.buffers.take(gate.len());
        self.ops.activate(layer.activation, Hidden::Pair { gate: &gate, up: input }, &mut hidden);
        self.buffers.give(gate);
        self.enter(StopAt::LayerInputHidden, &[&layer.output], &hidden, self.spans())?;
        let mut out = self.linear(&layer.output, &hidden);
        self.buffers.give(hidden);
        if let Some(norm) = &layer.norm {
            self.norm(norm, &mut out, layer.output.rows);
        }
        ControlFlow::Continue(out)
    }
}
