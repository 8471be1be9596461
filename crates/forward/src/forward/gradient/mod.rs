//! Gradients of a block's weights: the block runs on a tape that keeps what each step has read, and is then followed backwards.
//!
//! [`BlockGradient::forward`] computes what [`Runner::block`](super::Runner::block) does in f32, with dense weights that the caller gives, and
//! [`Recorded::backward`] turns the gradient of the block's output into those of its weights. Routers choose as they did: their
//! weights get no gradient, nor do the shares of experts.
//!
//! Memory: what every step of one block gives, for the rows of one batch, and as much again for gradients.

mod activation;
mod attention;
mod block;
mod norm;
mod tape;

use super::blueprint::{Block, Blueprint, FeedForward, Mlp, Projections, TokenMixer};
use super::error::ForwardError;
use super::options::ForwardOptions;
use super::runner::Runner;
use super::tensors::Projection;
use super::weight_overrides::WeightOverrides;
use kvant_model::family::Activation;
use kvant_numeric::simd::Isa;
use std::collections::HashMap;
use tape::Tape;

/// Values for weights, by the names of modules: row-major, `[outputs, inputs]`.
pub type Weights = HashMap<String, Vec<f32>>;

/// A block whose weights have gradients.
pub struct BlockGradient<'r, 'a> {
    runner: &'r Runner<'r, 'a>,
    index: usize,
}

/// A block that has run, with all that its steps have read.
pub struct Recorded<'r, 'a> {
    tape: Tape<'r, 'a>,
    input: tape::Var,
    output: tape::Var,
}

impl<'r, 'a> BlockGradient<'r, 'a> {
    /// Block `index` of a decoder.
    ///
    /// # Errors
    /// *Unsupported* for blocks with steps that have no gradient here: token mixers other than attention, and XIELU.
    pub fn new(runner: &'r Runner<'r, 'a>, index: usize) -> Result<BlockGradient<'r, 'a>, ForwardError> {
        check(runner.decoder().blueprint(), &runner.decoder().blueprint().blocks[index])?;
        Ok(BlockGradient { runner, index })
    }

    /// The weights of all linear layers of the block: those of the overlay, else as they are stored.
    pub fn weights(&self, overlay: &WeightOverrides<'a>) -> Weights {
        let decoder = self.runner.decoder();
        let weight = |layer: &Projection| match overlay.weight(&layer.module) {
            Some(weight) => weight.clone(),
            None => decoder.weight(layer),
        };
        let layers = decoder.blueprint().blocks[self.index].layers();
        layers.into_iter().map(|layer| (layer.module.clone(), weight(layer).all_values(Isa::best()))).collect()
    }

    /// Runs the block on rows `x` of sequences of `length` tokens, with these weights of all its linear layers. Of the options, those of
    /// biases, vectors, inputs and routing apply.
    pub fn forward<'f>(
        &'f self,
        options: ForwardOptions<'f, 'a>,
        weights: &'f Weights,
        x: &[f32],
        length: usize,
    ) -> Recorded<'f, 'a> {
        let mut tape = Tape::new(self.runner.run(options, length), weights);
        let input = tape.put(x.to_vec());
        let output = tape.block(self.index, input);
        Recorded { tape, input, output }
    }
}

impl Recorded<'_, '_> {
    /// The output of the block.
    pub fn output(&self) -> &[f32] {
        self.tape.value(self.output)
    }

    /// Adds the gradients of the weights that `gradients` names, for a gradient of the output; returns that of the input.
    pub fn backward(self, output: Vec<f32>, gradients: &mut Weights) -> Vec<f32> {
        self.tape.backward(self.output, output, self.input, gradients)
    }
}

/// Refuses steps without a gradient.
fn check(blueprint: &Blueprint, block: &Block) -> Result<(), ForwardError> {
    let missing = |step: &str| ForwardError::unsupported(format!("gradients of {step}"));
    let beside = block.routed.is_some() || block.low_rank.is_some();
    if !blueprint.stream.is_plain() || beside {
        return Err(missing("blocks that read or make more than one stream"));
    }
    match &block.mixer {
        TokenMixer::Attention(layer) => match layer.projections {
            Projections::Latent(_) => return Err(missing("latent attention")),
            Projections::Queries { .. } => return Err(missing("keys of another block")),
            _ => {}
        },
        TokenMixer::Absent => {}
        TokenMixer::GatedDelta(_) => return Err(missing("gated delta rules")),
        TokenMixer::ShortConvolution(_) => return Err(missing("short convolutions")),
        TokenMixer::Mamba1(_) | TokenMixer::Mamba2(_) | TokenMixer::Both(_) => {
            return Err(missing("state-space layers"));
        }
    }
    let networks: Vec<&Mlp> = match &block.feed_forward {
        FeedForward::Dense(mlp) => vec![mlp],
        FeedForward::Mixture(mixture) => mixture.experts.iter().chain(&mixture.shared).collect(),
        FeedForward::Absent => Vec::new(),
    };
    let refused =
        |mlp: &&Mlp| mlp.cutoff.is_some() || matches!(mlp.activation, Activation::Xielu | Activation::Unknown);
    match networks.iter().any(refused) {
        true => Err(missing("this activation function")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
