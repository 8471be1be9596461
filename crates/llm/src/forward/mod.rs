//! The forward pass of a decoder, built from its family's description. Activations are `f32` rows, one per token; weights
//! stay in the mapped file and are widened piece by piece, so memory is that of the activations of one block.
//!
//! [`blueprint`] spells the pass out for a checkpoint, `run` walks it, [`ops`] is the seam behind which it is computed,
//! [`cpu`] computes it.
//!
//! ```
//! use kvant_container::Checkpoint;
//! use kvant_llm::forward::{Decoder, cpu::Cpu};
//! use std::path::Path;
//!
//! let checkpoint = Checkpoint::open(Path::new("../../tests/models/nano_llama"))?;
//! let decoder = Decoder::open(&checkpoint)?;
//! let logits = decoder.logits(&Cpu::default(), &[5, 17, 301, 42], 4)?;
//! assert_eq!(logits.len(), 4 * decoder.vocabulary());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attention;
pub mod blueprint;
pub mod cpu;
mod error;
mod feed_forward;
mod heads;
pub mod ops;
mod rope;
mod routing;
mod run;
mod tensors;

pub use error::ForwardError;
pub use heads::{HeadLayout, Heads};
pub use rope::{Angles, Rotary};
pub use tensors::{Projection, Tensors, Vector};

use crate::import;
use blueprint::Blueprint;
use kvant_container::Checkpoint;
use ops::Ops;
use run::Run;

/// A decoder that can be run.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    tensors: Tensors<'a>,
    blueprint: Blueprint,
}

impl<'a> Decoder<'a> {
    /// The decoder in a checkpoint, of floats or quantized. Reads headers, config.json and scales of whole tensors.
    ///
    /// # Errors
    ///
    /// [`ForwardError::Unsupported`] for rules that are not computed here, and whatever is missing or does not fit.
    pub fn open(checkpoint: &'a Checkpoint) -> Result<Decoder<'a>, ForwardError> {
        let config = checkpoint.config()?.ok_or_else(|| ForwardError::missing("the checkpoint", "config.json"))?;
        let tensors = Tensors::new(import::open(checkpoint)?.into_tensors());
        let blueprint = Blueprint::new(&config, &tensors)?;
        Ok(Decoder { tensors, blueprint })
    }

    /// The number of tokens that there are.
    pub fn vocabulary(&self) -> usize {
        self.blueprint.head.rows
    }

    /// The longest context that config.json states.
    pub fn longest(&self) -> Option<usize> {
        self.blueprint.longest
    }

    /// What the pass does.
    pub fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// Logits of sequences of `length` tokens, one after the other in `tokens`: a row of [`Decoder::vocabulary`] per
    /// token. Tokens beyond the last whole sequence are left out.
    ///
    /// # Errors
    ///
    /// Tokens outside the vocabulary, sequences longer than learned positions.
    pub fn logits(&self, ops: &dyn Ops, tokens: &[u32], length: usize) -> Result<Vec<f32>, ForwardError> {
        let run = self.run(ops, length);
        let hidden = self.hidden(&run, whole(tokens, length))?;
        Ok(run.logits(&hidden))
    }

    /// `ln p(t_i | t_0 .. t_(i-1))` for all tokens but the first of every sequence of `length` tokens.
    ///
    /// # Errors
    ///
    /// As for [`Decoder::logits`].
    pub fn log_likelihoods(&self, ops: &dyn Ops, tokens: &[u32], length: usize) -> Result<Vec<f64>, ForwardError> {
        let run = self.run(ops, length);
        let tokens = whole(tokens, length);
        let hidden = self.hidden(&run, tokens)?;
        let width = self.blueprint.head.columns;
        // The last row of a sequence predicts what is not there.
        let rows = hidden.chunks_exact(length.max(1) * width);
        let predicting: Vec<f32> = rows.flat_map(|rows| &rows[..rows.len() - width]).copied().collect();
        let targets = tokens.chunks_exact(length.max(1)).flat_map(|sequence| &sequence[1..]);
        Ok(run.log_likelihoods(&predicting, &targets.copied().collect::<Vec<_>>()))
    }

    fn run<'r>(&'r self, ops: &'r dyn Ops, length: usize) -> Run<'r, 'a> {
        let length = length.max(1);
        let angles = self.blueprint.rotaries.iter().map(|rotary| rotary.angles(length)).collect();
        Run { tensors: &self.tensors, blueprint: &self.blueprint, ops, length, angles }
    }

    fn hidden(&self, run: &Run<'_, 'a>, tokens: &[u32]) -> Result<Vec<f32>, ForwardError> {
        let mut x = run.embed(tokens)?;
        self.blueprint.blocks.iter().for_each(|block| run.block(block, &mut x));
        Ok(run.finish(&x))
    }
}

/// The tokens of whole sequences.
fn whole(tokens: &[u32], length: usize) -> &[u32] {
    &tokens[..tokens.len() / length.max(1) * length.max(1)]
}
