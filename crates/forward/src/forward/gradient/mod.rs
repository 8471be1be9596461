//! Gradients of a block's weights and norms: the block runs on a tape that keeps what each step has read, and is then followed backwards.
//!
//! [`BlockGradient::forward`] computes what [`Runner::block`](super::Runner::block) does in f32, with dense weights that the caller gives, and
//! [`Recorded::backward`] turns the gradient of the block's output into those of its weights. Routers choose as they did: their
//! weights get no gradient, nor do the shares of experts.
//!
//! Memory: what every step of one block gives, for the rows of one batch. On the way back it shrinks as gradients of the same rows grow.

mod activation;
mod attention;
mod block;
mod delta_rule;
mod head;
mod mixers;
mod norm;
mod recurrence;
mod state_space;
mod tape;

use super::Decoder;
use super::blueprint::{AttentionLayer, FeedForward, Mlp, NormLayer, Projections, TokenMixer};
use super::error::ForwardError;
use super::layout::SequenceLayout;
use super::options::ForwardOptions;
use super::runner::Runner;
use super::sequence::SequenceLength;
use super::tensors::{Projection, Vector};
use super::weight_overrides::WeightOverrides;
pub use head::{HeadDivergence, divergence_gradient, missing_in_head, sampled_gradient};
use kvant_model::family::Activation;
use kvant_numeric::linalg::LearningPrecision;
use kvant_numeric::simd::Isa;
use std::collections::HashMap;
use std::ops::Range;
use tape::{LinearRows, NormedRows, StepGradients, Tape};

/// Values for weights, by the names of modules: row-major, `[outputs, inputs]`.
pub type Weights = HashMap<String, Vec<f32>>;

/// Values for vectors, such as weights of norms.
pub type Vectors = HashMap<Vector, Vec<f32>>;

/// Takes the gradients of a block's weights as they are found on the way back.
pub trait WeightGradients {
    /// The sums to which the gradient of a layer's weight is added, row-major; `None` where nobody wants it.
    fn weight(&mut self, module: &str) -> Option<&mut [f32]>;

    /// All of the gradient of a layer's weight has been added. Not called for layers of which a use does not change the output.
    fn complete(&mut self, _module: &str) {}

    /// The sums to which the gradient of a norm's weight is added; `None` where nobody wants it.
    fn norm(&mut self, weight: &Vector) -> Option<&mut [f32]>;
}

/// The gradients of what is named: of linear layers and of weights of norms.
#[derive(Clone, Debug, Default)]
pub struct BlockGradients {
    /// Of linear layers.
    pub weights: Weights,
    /// Of norms whose weight is one vector.
    pub norms: Vectors,
}

impl WeightGradients for BlockGradients {
    fn weight(&mut self, module: &str) -> Option<&mut [f32]> {
        self.weights.get_mut(module).map(Vec::as_mut_slice)
    }

    fn norm(&mut self, weight: &Vector) -> Option<&mut [f32]> {
        self.norms.get_mut(weight).map(Vec::as_mut_slice)
    }
}

/// Passes the gradients of a tape's steps on as those of weights.
struct OfWeights<'g>(&'g mut dyn WeightGradients);

impl StepGradients for OfWeights<'_> {
    fn linear(&mut self, rows: &LinearRows<'_>) {
        if let Some(sums) = self.0.weight(&rows.layer.module) {
            rows.add_weight_gradient(sums);
        }
        if rows.is_last {
            self.0.complete(&rows.layer.module);
        }
    }

    fn norm(&mut self, rows: &NormedRows<'_>) {
        let [weight] = rows.layer.weight.as_slice() else { return };
        if let Some(sum) = self.0.norm(weight) {
            sum.iter_mut().zip(rows.weight_gradient()).for_each(|(sum, own)| *sum += own);
        }
    }

    fn wants_norm(&mut self, layer: &NormLayer) -> bool {
        matches!(layer.weight.as_slice(), [weight] if self.0.norm(weight).is_some())
    }
}

/// Sees the gradients of a block on the way back.
pub trait BlockVisitor {
    /// The gradient of the outputs of a module, and what it has read, a row for each token.
    fn linear(&mut self, module: &str, gradient: &[f32], read: &[f32]);

    /// The gradient of what a norm gives.
    fn norm(&mut self, norm: &NormLayer, gradient: &[f32]);
}

/// The same of steps.
struct OfSteps<'g>(&'g mut dyn BlockVisitor);

impl StepGradients for OfSteps<'_> {
    fn linear(&mut self, rows: &LinearRows<'_>) {
        self.0.linear(&rows.layer.module, rows.gradient, rows.read);
    }

    fn norm(&mut self, rows: &NormedRows<'_>) {
        self.0.norm(rows.layer, rows.gradient);
    }
}

/// A block whose weights have gradients.
#[derive(Clone, Copy)]
pub struct BlockGradient<'r, 'a> {
    runner: &'r Runner<'r, 'a>,
    index: usize,
    precision: LearningPrecision,
}

/// A block that has run, with all that its steps have read.
pub struct Recorded<'r, 'a> {
    tape: Tape<'r, 'a>,
    input: tape::Var,
    output: tape::Var,
    /// All rows of an encoder-decoder, of which the block has changed some.
    whole: Option<Whole>,
}

/// Rows of both stacks of an encoder-decoder behind a block of one of them.
struct Whole {
    rows: Vec<f32>,
    length: SequenceLength,
    /// The rows of each sequence that the block changes.
    own: Range<usize>,
    width: usize,
}

impl<'r, 'a> BlockGradient<'r, 'a> {
    /// Block `index` of a decoder.
    ///
    /// # Errors
    /// *Unsupported* for blocks with a [`missing_step`].
    pub fn new(runner: &'r Runner<'r, 'a>, index: usize) -> Result<BlockGradient<'r, 'a>, ForwardError> {
        match missing_step(runner.decoder(), index) {
            Some(step) => Err(ForwardError::unsupported(format!("gradients of {step}"))),
            None => Ok(BlockGradient { runner, index, precision: LearningPrecision::F32 }),
        }
    }

    /// The same with products of linear layers in `precision`.
    pub fn with_precision(self, precision: LearningPrecision) -> Self {
        BlockGradient { precision, ..self }
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

    /// The norms of the block whose weight is one vector, those of queries, keys and values included.
    pub fn norms(&self) -> Vec<&'r NormLayer> {
        let norms = self.runner.decoder().blueprint().blocks[self.index].norms();
        norms.into_iter().filter(|norm| norm.weight.len() == 1).collect()
    }

    /// Runs the block on rows `x` of sequences, with these weights of all its linear layers. Of the options, those of
    /// biases, vectors, inputs and routing apply.
    pub fn forward<'f>(
        &self,
        options: ForwardOptions<'f, 'a>,
        weights: &'f Weights,
        x: &[f32],
        layout: impl Into<SequenceLayout<'f>>,
    ) -> Recorded<'f, 'a>
    where
        'r: 'f,
    {
        let layout = layout.into();
        let length = layout.lengths();
        let run = self.runner.run(options, layout);
        let decoder = self.runner.decoder();
        let Some(stacks) = decoder.stacks() else {
            let mut tape = Tape::new(run, weights, self.precision);
            let input = tape.put(x.to_vec());
            let output = tape.block(self.index, input);
            return Recorded { tape, input, output, whole: None };
        };
        let (own, width) = (length.rows_of(stacks, self.index), decoder.hidden());
        let mut tape = Tape::new(run.on_stack(&own), weights, self.precision);
        let input = tape.put(length.gather(x, &own, width));
        if self.index >= stacks.encoder_blocks {
            let memory = tape.put(length.gather(x, &(0..length.source), width));
            tape.set_memory(memory, length.source);
        }
        let mut output = tape.block(self.index, input);
        if self.index + 1 == stacks.encoder_blocks {
            output = tape.normed(stacks.final_norm.as_ref(), output);
        }
        let mut rows = x.to_vec();
        length.scatter(tape.value(output), &own, width, &mut rows);
        Recorded { tape, input, output, whole: Some(Whole { rows, length, own, width }) }
    }
}

impl Recorded<'_, '_> {
    /// The output of the block.
    pub fn output(&self) -> &[f32] {
        match &self.whole {
            None => self.tape.value(self.output),
            Some(whole) => &whole.rows,
        }
    }

    /// The gradient of what the block gives, of that of all rows.
    fn own(&self, output: Vec<f32>) -> Vec<f32> {
        match &self.whole {
            None => output,
            Some(Whole { length, own, width, .. }) => length.gather(&output, own, *width),
        }
    }

    /// Adds the gradients that `gradients` wants, for a gradient of the output; returns that of the input, of an encoder-decoder
    /// of the rows that the block changes.
    pub fn backward(self, output: Vec<f32>, gradients: &mut dyn WeightGradients) -> Vec<f32> {
        let output = self.own(output);
        self.tape.backward(self.output, output, Some(self.input), &mut OfWeights(gradients))
    }

    /// Adds the gradients that `gradients` wants, without computing that of the input, which nobody may want.
    pub fn backward_of_weights(self, output: Vec<f32>, gradients: &mut dyn WeightGradients) {
        let output = self.own(output);
        self.tape.backward(self.output, output, None, &mut OfWeights(gradients));
    }

    /// Returns the gradient of the input, for a gradient of the output. `linear` sees every linear layer by its module: the gradient of its
    /// outputs and its inputs, a row for each token that it has read.
    pub fn backward_through(self, output: Vec<f32>, mut linear: impl FnMut(&str, &[f32], &[f32])) -> Vec<f32> {
        let output = self.own(output);
        let mut linear = |rows: &LinearRows<'_>| linear(&rows.layer.module, rows.gradient, rows.read);
        self.tape.backward(self.output, output, Some(self.input), &mut linear)
    }

    /// The same, where norms are seen too.
    pub fn backward_with(self, output: Vec<f32>, seen: &mut dyn BlockVisitor) -> Vec<f32> {
        let output = self.own(output);
        self.tape.backward(self.output, output, Some(self.input), &mut OfSteps(seen))
    }
}

/// The first step of a block that has no gradient here; `None` if all have one.
pub fn missing_step(decoder: &Decoder<'_>, block: usize) -> Option<&'static str> {
    let (blueprint, block) = (decoder.blueprint(), &decoder.blueprint().blocks[block]);
    if !blueprint.stream.is_plain() || block.routed.is_some() || block.low_rank.is_some() {
        return Some("blocks that read or make more than one stream");
    }
    let of_mixer = match &block.mixer {
        TokenMixer::Attention(layer) => missing_in_attention(layer),
        TokenMixer::Both(both) => missing_in_attention(&both.attention),
        _ => None,
    };
    of_mixer.or_else(|| match &block.feed_forward {
        FeedForward::Dense(mlp) => missing_in(mlp),
        FeedForward::Mixture(mixture) => mixture.experts.iter().chain(&mixture.shared).find_map(missing_in),
        FeedForward::Absent => None,
    })
}

/// The same of attention.
fn missing_in_attention(layer: &AttentionLayer) -> Option<&'static str> {
    match layer.projections {
        _ if layer.distances.is_some() => Some("scores of distances"),
        Projections::Shared(_) => Some("keys that are values"),
        Projections::Queries { .. } => Some("keys of another block"),
        _ if layer.indexer.is_some() => Some("attention to keys that an indexer chooses"),
        _ => None,
    }
}

/// The same of a feed-forward network.
fn missing_in(mlp: &Mlp) -> Option<&'static str> {
    match mlp.activation {
        _ if mlp.cutoff.is_some() => Some("sparse activations"),
        Activation::Unknown => Some("this activation function"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
