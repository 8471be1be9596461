//! Many variants of one model on the same text, each compared with it: variants differ from the model in the weights of some stages.
//!
//! The variants that differ from one stage on are carried through the remaining stages together, beside nothing but the model's own
//! stream at that stage: weights of one block are in use at a time, and streams beyond the budget are in a temporary file. What a
//! variant costs is the pass of the blocks behind the first that it changes.

use super::EvaluationError;
use super::comparison::Comparison;
use super::evaluate::{not_a_number, perplexity_or, tokens_of};
use super::predicted::{Predicted, pieces, placed, predicted};
use super::score::ScorePair;
use super::windows::JoinedSequences;
use crate::forward::ops::Ops;
use crate::forward::{Chunk, Decoder, ForwardOptions, Runner, Streams, WeightOverrides, chunks};
use kvant_numeric::simd::Isa;
use rayon::prelude::*;
use std::ops::ControlFlow;

/// A part of the model whose weights are in use together, in the order in which they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ModelStage {
    /// The embedding, positions and what is before the first block.
    Embedding,
    /// A block.
    Block(usize),
    /// The last norm, the head and what is between the last block and the logits.
    Head,
}

/// What a run of variants needs of them, and gives.
pub trait Variants<'a> {
    /// The error of making weights.
    type Error: From<EvaluationError>;

    /// The weights of a stage in which a variant differs from the model; `None` for the model's own. Called for all variants of a
    /// stage one after the other, before any of another stage.
    ///
    /// # Errors
    /// Weights that cannot be made.
    fn weights(&mut self, stage: ModelStage, variant: usize) -> Result<Option<WeightOverrides<'a>>, Self::Error>;

    /// Takes the distance of a variant from the model.
    ///
    /// # Errors
    /// Whatever keeps it from being kept; the run ends with it.
    fn found(&mut self, variant: usize, comparison: Comparison) -> Result<(), Self::Error>;
}

/// Measures the variants of a decoder on sequences, each a window of its own. `first` is the first stage in which each differs from the
/// model. [`Variants::found`] is called when all variants with the same first stage are measured, from that of the embedding on.
///
/// `watch` receives the tokens done and the tokens in all; a token in one block is one. If it breaks, the run stops.
///
/// # Errors
/// Sequences that predict nothing, tokens that the model does not know, likelihoods of the model that are NaN, no room for streams; a
/// `watch` that breaks; those of `variants`.
pub fn evaluate_variants<'a, V: Variants<'a>>(
    decoder: &Decoder<'a>,
    ops: &dyn Ops,
    sequences: &[Vec<u32>],
    memory: u64,
    first: &[ModelStage],
    variants: &mut V,
    mut watch: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<(), V::Error> {
    let JoinedSequences { tokens, windows } = JoinedSequences::of(sequences).map_err(V::Error::from)?;
    let chunks = chunks(decoder, windows.iter().map(|window| &tokens[window.tokens.clone()]));
    let blocks = decoder.blueprint().blocks.len();
    let (passed, mut done) = (tokens_of(&chunks) as u64, 0);
    let all = passed * work(first, blocks) as u64;
    let mut run = VariantRun {
        decoder,
        runner: Runner::new(decoder, ops),
        predicted: predicted(&chunks, &windows, decoder.vocabulary()),
        memory,
        step: &mut |chunk: &Chunk| {
            done += chunk.tokens.len() as u64;
            match watch(done.min(all), all) {
                ControlFlow::Continue(()) => Ok(()),
                ControlFlow::Break(()) => Err(EvaluationError::Cancelled),
            }
        },
        chunks: &chunks,
    };
    let mut reference = run.embedded()?;
    for block in 0..blocks {
        run.advance(&mut reference, block)?;
    }
    let mut stream = run.embedded()?;
    let last = last_in_blocks(first);
    for stage in stages(blocks) {
        let starting: Vec<usize> = (0..first.len()).filter(|variant| first[*variant] == stage).collect();
        if !starting.is_empty() {
            run.carry(&starting, stage, &mut stream, &mut reference, variants)?;
        }
        if let ModelStage::Block(block) = stage
            && last.is_some_and(|last| block < last)
        {
            run.advance(&mut stream, block)?;
        }
    }
    Ok(())
}

/// The last block in which a variant begins to differ.
fn last_in_blocks(first: &[ModelStage]) -> Option<usize> {
    let block = |stage: &ModelStage| if let ModelStage::Block(block) = stage { Some(*block) } else { None };
    first.iter().filter_map(block).max()
}

/// Passes of all tokens through a block or the head.
fn work(first: &[ModelStage], blocks: usize) -> usize {
    let of_variant = |stage: &ModelStage| match stage {
        ModelStage::Embedding => blocks,
        ModelStage::Block(block) => blocks - block,
        ModelStage::Head => 0,
    };
    let heads = stages(blocks).filter(|stage| first.contains(stage)).count();
    blocks + last_in_blocks(first).unwrap_or(0) + first.iter().map(of_variant).sum::<usize>() + heads
}

/// All stages of a decoder with so many blocks.
fn stages(blocks: usize) -> impl Iterator<Item = ModelStage> {
    let of_blocks = (0..blocks).map(ModelStage::Block);
    std::iter::once(ModelStage::Embedding).chain(of_blocks).chain([ModelStage::Head])
}

struct VariantRun<'r, 'a> {
    decoder: &'r Decoder<'a>,
    runner: Runner<'r, 'a>,
    chunks: &'r [Chunk],
    predicted: Vec<Predicted>,
    memory: u64,
    step: &'r mut dyn FnMut(&Chunk) -> Result<(), EvaluationError>,
}

impl<'a> VariantRun<'_, 'a> {
    /// Streams for so many variants, in at most this part of the memory.
    fn streams(&self, variants: usize, part: u64) -> Result<Streams, EvaluationError> {
        let sizes = (0..variants).flat_map(|_| self.chunks).map(|chunk| chunk.tokens.len() * self.decoder.width());
        Ok(Streams::new(&sizes.collect::<Vec<_>>(), self.memory / part)?)
    }

    /// What the model's first block reads.
    fn embedded(&self) -> Result<Streams, EvaluationError> {
        let mut streams = self.streams(1, 4)?;
        for (index, chunk) in self.chunks.iter().enumerate() {
            streams.put(index, self.runner.embed(ForwardOptions::default(), &chunk.tokens, chunk)?)?;
        }
        Ok(streams)
    }

    /// Leads the model's stream through a block.
    fn advance(&mut self, streams: &mut Streams, block: usize) -> Result<(), EvaluationError> {
        for (index, chunk) in self.chunks.iter().enumerate() {
            let mut x = streams.take(index)?;
            // Without an explicit end, a run continues to that of the block.
            let _ = self.runner.block(ForwardOptions::default(), block, chunk, &mut x);
            streams.put(index, x)?;
            (self.step)(chunk)?;
        }
        Ok(())
    }

    /// Carries variants that differ from `stage` on to their logits. `stream` is the model's before that stage, `reference` behind the last
    /// block.
    fn carry<V: Variants<'a>>(
        &mut self,
        starting: &[usize],
        stage: ModelStage,
        stream: &mut Streams,
        reference: &mut Streams,
        variants: &mut V,
    ) -> Result<(), V::Error> {
        let mut lanes = self.streams(starting.len(), 2)?;
        self.begin(starting, stage, (stream, reference), &mut lanes, variants)?;
        let blocks = self.decoder.blueprint().blocks.len();
        let from = match stage {
            ModelStage::Embedding => 0,
            ModelStage::Block(block) => block,
            ModelStage::Head => blocks,
        };
        for block in from..blocks {
            let weights = overrides(starting, ModelStage::Block(block), variants)?;
            for (lane, weights) in weights.iter().enumerate() {
                let options = ForwardOptions { overlay: weights.as_ref(), ..ForwardOptions::default() };
                for (index, chunk) in self.chunks.iter().enumerate() {
                    let mut x = lanes.take(lane * self.chunks.len() + index).map_err(EvaluationError::from)?;
                    let _ = self.runner.block(options, block, chunk, &mut x);
                    lanes.put(lane * self.chunks.len() + index, x).map_err(EvaluationError::from)?;
                    (self.step)(chunk)?;
                }
            }
        }
        let pairs = self.scores(starting, (&mut lanes, reference), variants)?;
        for (variant, pairs) in starting.iter().zip(pairs) {
            variants.found(*variant, self.comparison(&pairs)?)?;
        }
        Ok(())
    }

    /// The streams of variants where they begin to differ.
    fn begin<V: Variants<'a>>(
        &mut self,
        starting: &[usize],
        stage: ModelStage,
        (stream, reference): (&mut Streams, &mut Streams),
        lanes: &mut Streams,
        variants: &mut V,
    ) -> Result<(), V::Error> {
        let source = if stage == ModelStage::Head { reference } else { stream };
        let weights = match stage {
            ModelStage::Embedding => overrides(starting, stage, variants)?,
            _ => starting.iter().map(|_| None).collect(),
        };
        for (index, chunk) in self.chunks.iter().enumerate() {
            let x = source.take(index).map_err(EvaluationError::from)?;
            for (lane, weights) in weights.iter().enumerate() {
                let options = ForwardOptions { overlay: weights.as_ref(), ..ForwardOptions::default() };
                let own = match weights {
                    Some(_) => self.runner.embed(options, &chunk.tokens, chunk).map_err(EvaluationError::from)?,
                    None => x.clone(),
                };
                lanes.put(lane * self.chunks.len() + index, own).map_err(EvaluationError::from)?;
            }
            source.put(index, x).map_err(EvaluationError::from)?;
        }
        Ok(())
    }

    /// The scores of all predicted tokens, variant by variant. The streams of variants end here.
    fn scores<V: Variants<'a>>(
        &mut self,
        starting: &[usize],
        (lanes, reference): (&mut Streams, &mut Streams),
        variants: &mut V,
    ) -> Result<Vec<Vec<ScorePair>>, V::Error> {
        let weights = overrides(starting, ModelStage::Head, variants)?;
        let options = |lane: usize| ForwardOptions { overlay: weights[lane].as_ref(), ..ForwardOptions::default() };
        let mut all: Vec<Vec<ScorePair>> = starting.iter().map(|_| Vec::new()).collect();
        let vocabulary = self.decoder.vocabulary();
        for (index, (chunk, predicted)) in self.chunks.iter().zip(&self.predicted).enumerate() {
            let x = reference.take(index).map_err(EvaluationError::from)?;
            let model_rows = predicted.rows(&self.runner.hidden(ForwardOptions::default(), chunk, &x));
            reference.put(index, x).map_err(EvaluationError::from)?;
            let mut rows = Vec::with_capacity(starting.len());
            for lane in 0..starting.len() {
                let x = lanes.take(lane * self.chunks.len() + index).map_err(EvaluationError::from)?;
                rows.push(predicted.rows(&self.runner.hidden(options(lane), chunk, &x)));
            }
            let first = all.first().map_or(0, Vec::len);
            all.iter_mut().for_each(|pairs| pairs.resize(first + predicted.targets.len(), ScorePair::default()));
            for (start, piece) in pieces(vocabulary, predicted.targets.len()) {
                let theirs = self.runner.logits(ForwardOptions::default(), &model_rows, start..start + piece);
                for (lane, pairs) in all.iter_mut().enumerate() {
                    let ours = self.runner.logits(options(lane), &rows[lane], start..start + piece);
                    let both = ours.par_chunks_exact(piece).zip(theirs.par_chunks_exact(piece));
                    let new = pairs[first..].par_iter_mut().zip(&predicted.targets).zip(both);
                    new.for_each(|((pair, target), rows)| pair.add(Isa::best(), rows, start, *target as usize));
                }
            }
            (self.step)(chunk)?;
        }
        Ok(all)
    }

    fn comparison(&self, pairs: &[ScorePair]) -> Result<Comparison, EvaluationError> {
        let pairs = placed(pairs, &self.predicted);
        let of_model: Vec<_> = pairs.iter().map(|(place, pair)| (*place, pair.reference.log_likelihood())).collect();
        let perplexity = perplexity_or(&of_model, |at, token| not_a_number(self.decoder, at, token))?;
        Ok(Comparison::new(perplexity.value, &pairs, &[]))
    }
}

/// The weights of all variants at a stage.
fn overrides<'a, V: Variants<'a>>(
    starting: &[usize],
    stage: ModelStage,
    variants: &mut V,
) -> Result<Vec<Option<WeightOverrides<'a>>>, V::Error> {
    starting.iter().map(|variant| variants.weights(stage, *variant)).collect()
}

#[cfg(test)]
mod tests;
