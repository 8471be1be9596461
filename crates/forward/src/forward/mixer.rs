//! The token mixer of one block, whichever it is. What each computes is in its own file.

use super::blueprint::TokenMixer;
use super::options::{Flow, StopAt};
use super::run::Run;
use std::ops::ControlFlow;

impl Run<'_, '_> {
    /// The branch of the token mixer on normed rows `x`.
    pub(super) fn mix(&self, block: usize, mixer: &TokenMixer, x: &[f32]) -> Flow<Vec<f32>> {
        let heads = match mixer {
            TokenMixer::Attention(layer) => self.attention_heads(block, layer, x)?,
            TokenMixer::GatedDelta(layer) => self.gated_delta_heads(block, layer, x)?,
        };
        let out = self.mixer_output(mixer, &heads);
        self.buffers.give(heads);
        out
    }

    /// The output projection of what the mixer's heads give.
    pub(super) fn mixer_output(&self, mixer: &TokenMixer, heads: &[f32]) -> Flow<Vec<f32>> {
        let output = mixer.output();
        self.enter(StopAt::Heads, &[output], heads, self.spans())?;
        ControlFlow::Continue(self.linear(output, heads))
    }
}
