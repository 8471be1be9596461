//! Steps that recurrent mixers of several kinds have in common.

use super::blueprint::ConvolutionLayer;
use super::ops::Convolution;
use super::recurrent_state::RecurrentState;
use super::run::Run;

impl Run<'_, '_> {
    /// Calls `recur` with the states of a block's recurrent mixer, one for each sequence in `rows` rows, and their numbers of rows.
    pub(super) fn with_states(
        &self,
        block: usize,
        rows: usize,
        recur: impl FnOnce(&[usize], &mut [RecurrentState]) -> Vec<f32>,
    ) -> Vec<f32> {
        let lengths: Vec<usize> = self.spans().of(rows).collect();
        match self.step {
            None => recur(&lengths, &mut vec![RecurrentState::default(); lengths.len()]),
            Some(step) => step.recur(block, |states| recur(&lengths, states)),
        }
    }

    /// The convolution of `data`.
    pub(super) fn convolved(
        &self,
        layer: &ConvolutionLayer,
        data: &[f32],
        lengths: &[usize],
        states: &mut [RecurrentState],
    ) -> Vec<f32> {
        let weight: Vec<f32> = layer.weight.iter().flat_map(|weight| self.vector(Some(weight))).collect();
        let bias = self.vector(layer.bias.as_ref());
        let mut out = self.buffers.take(data.len());
        let convolution = Convolution { data, weight: &weight, bias: &bias, kernel: layer.kernel, lengths };
        self.ops.convolve(&convolution, states, &mut out);
        out
    }
}

/// `ln(1 + exp(x))`.
pub(super) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
