//! The short convolution of one block: project, gate, convolve, gate, project back.

use super::blueprint::ShortConvolutionLayer;
use super::heads::{HeadLayout, Heads};
use super::ops::Gate;
use super::options::{Flow, StopAt};
use super::run::Run;
use std::ops::ControlFlow;

impl Run<'_, '_> {
    /// The branch of a short convolution on normed rows `x`, up to its output projection.
    pub(super) fn short_convolution_heads(
        &self,
        block: usize,
        layer: &ShortConvolutionLayer,
        x: &[f32],
    ) -> Flow<Vec<f32>> {
        self.enter(StopAt::AttentionInput, &[&layer.input], x, self.spans())?;
        let rows = self.linear(&layer.input, x);
        let width = layer.output.columns;
        let part = |which: usize| Heads {
            data: &rows,
            row_width: 3 * width,
            layout: HeadLayout { start: which * width, ..HeadLayout::row(width) },
        };
        let mut gated = part(2).gather();
        self.ops.gate(Gate::Plain, &part(0), &mut gated);
        let mut heads = self.with_states(block, rows.len() / (3 * width), |lengths, states| {
            self.convolved(&layer.convolution, &gated, lengths, states)
        });
        self.ops.gate(Gate::Plain, &part(1), &mut heads);
        [rows, gated].into_iter().for_each(|buffer| self.buffers.give(buffer));
        ControlFlow::Continue(heads)
    }
}
