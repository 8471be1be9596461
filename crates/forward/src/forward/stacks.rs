//! A run of an encoder-decoder: each block on the rows of its stack, and what the encoder gives kept beside those of the decoder.

use super::blueprint::Stacks;
use super::error::ForwardError;
use super::options::Flow;
use super::run::{Front, Run};
use super::sequence::{SequenceLength, unmarked};
use std::ops::{ControlFlow, Range};

impl Run<'_, '_> {
    /// The length of sequences, with those of both stacks.
    fn lengths(&self) -> SequenceLength {
        SequenceLength { all: self.length, source: self.source }
    }

    /// The same run on the rows of one stack.
    pub(super) fn on_stack(&self, rows: &Range<usize>) -> Self {
        Run { length: rows.len().max(1), source: 0, ..self.clone() }
    }

    /// The stream before the first block of either stack.
    pub(super) fn embed_stacks(&self, stacks: &Stacks, tokens: &[u32]) -> Result<Vec<f32>, ForwardError> {
        let (lengths, width) = (self.lengths(), self.decoder.hidden());
        let parts = [0..lengths.source, lengths.source..lengths.all];
        let mut x = vec![0.0; tokens.len() * width];
        let fronts = [Front::of_encoder(stacks), Front::of_blocks(self.blueprint())];
        // Sounds, where the encoder reads them.
        let sounds = [self.blueprint().sounds.as_ref(), None];
        for ((part, front), sounds) in parts.into_iter().zip(fronts).zip(sounds) {
            let sequences = tokens.chunks_exact(lengths.all.max(1));
            let own: Vec<u32> = sequences.flat_map(|tokens| &tokens[part.clone()]).map(|t| unmarked(*t)).collect();
            let run = self.on_stack(&part);
            let rows = match sounds {
                Some(sounds) => run.embed_sounds(sounds, front, &own)?,
                None => run.embed_tokens(front, &own)?,
            };
            lengths.scatter(&rows, &part, width, &mut x);
        }
        Ok(x)
    }

    /// Block `index`, on rows `x` of both stacks. Behind the last block of the encoder its rows are normed, as the decoder reads them.
    pub(super) fn block_of_stacks(&self, stacks: &Stacks, index: usize, x: &mut [f32]) -> Flow<()> {
        let (lengths, width) = (self.lengths(), self.decoder.hidden());
        let own = lengths.rows_of(stacks, index);
        let mut rows = lengths.gather(x, &own, width);
        let is_decoder = index >= stacks.encoder_blocks;
        let memory = if is_decoder { lengths.gather(x, &(0..lengths.source), width) } else { Vec::new() };
        let run = Run { memory: is_decoder.then_some((&memory, lengths.source)), ..self.on_stack(&own) };
        let flow = run.block_of_stack(index, &mut rows);
        if flow == ControlFlow::Continue(()) && index + 1 == stacks.encoder_blocks {
            run.norm_if_any(stacks.final_norm.as_ref(), &mut rows);
        }
        // Where the run ends in the block, another one continues from what it left.
        lengths.scatter(&rows, &own, width, x);
        flow
    }

    /// The input of the head for the rows of the decoder.
    pub(super) fn finish_stacks(&self, x: &[f32]) -> Vec<f32> {
        let lengths = self.lengths();
        let own = lengths.source..lengths.all;
        self.on_stack(&own).finish_rows(&lengths.gather(x, &own, self.decoder.hidden()))
    }
}
