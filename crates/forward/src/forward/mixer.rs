//! The token mixer of one block, whichever it is. What each computes is in its own file.

use super::blueprint::{ParallelMixers, TokenMixer};
use super::options::{Flow, StopAt};
use super::run::Run;
use std::borrow::Cow;
use std::ops::ControlFlow;

impl Run<'_, '_> {
    /// The branch of the token mixer on normed rows `x`.
    pub(super) fn mix(&self, block: usize, mixer: &TokenMixer, x: &[f32]) -> Flow<Vec<f32>> {
        let mut heads = match mixer {
            TokenMixer::Attention(layer) => self.attention_heads(block, layer, x)?,
            TokenMixer::GatedDelta(layer) => self.gated_delta_heads(block, layer, x)?,
            TokenMixer::Lightning(layer) => self.lightning_heads(block, layer, x)?,
            TokenMixer::ShortConvolution(layer) => self.short_convolution_heads(block, layer, x)?,
            TokenMixer::Mamba1(layer) => self.mamba1_heads(block, layer, x)?,
            TokenMixer::Mamba2(layer) => self.mamba2_heads(block, layer, x)?,
            TokenMixer::Both(both) => return self.mix_both(block, both, x),
            TokenMixer::Absent => Vec::new(),
        };
        if let Some(Cow::Owned(rotated)) = mixer.output().map(|output| self.rotated(output, &heads)) {
            self.buffers.give(std::mem::replace(&mut heads, rotated));
        }
        let out = self.mixer_output(mixer, &heads);
        self.buffers.give(heads);
        out
    }

    /// The output projection of what the mixer's heads give, rotated already where its inputs are.
    pub(super) fn mixer_output(&self, mixer: &TokenMixer, heads: &[f32]) -> Flow<Vec<f32>> {
        let Some(output) = mixer.output() else { return ControlFlow::Continue(Vec::new()) };
        self.enter_read(StopAt::Heads, output, heads, self.spans())?;
        ControlFlow::Continue(self.linear_of_read(output, heads, self.spans()))
    }

    /// The sum of two mixers' branches.
    fn mix_both(&self, block: usize, both: &ParallelMixers, x: &[f32]) -> Flow<Vec<f32>> {
        let scaled = |factor: f32| {
            let mut x = self.buffers.copy(x);
            self.scale(factor, &mut x);
            x
        };
        let inputs = [both.attention_factors[0], both.recurrent_factors[0]].map(scaled);
        // Where the run ends, it ends in both: each is seen.
        let attention = self.attention_heads(block, &both.attention, &inputs[0]);
        let recurrent = self.mamba2_heads(block, &both.recurrent, &inputs[1]);
        let heads = [attention?, recurrent?];
        let outputs = [&both.attention.output, &both.recurrent.output];
        let entered = [0, 1].map(|which| self.enter(StopAt::Heads, &[outputs[which]], &heads[which], self.spans()));
        entered.into_iter().try_for_each(|entered| entered)?;
        let [mut out, mut other] = [0, 1].map(|which| self.linear(outputs[which], &heads[which]));
        self.scale(both.attention_factors[1], &mut out);
        self.scale(both.recurrent_factors[1], &mut other);
        self.ops.join(&mut out, &other, 1.0);
        inputs.into_iter().chain(heads).chain([other]).for_each(|buffer| self.buffers.give(buffer));
        ControlFlow::Continue(out)
    }
}
