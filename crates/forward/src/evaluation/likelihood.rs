//! The likelihood of the ends of sequences, sequence by sequence. Not perplexity, which is of a whole text.

use super::EvaluationError;
use super::evaluate::{not_a_number, scores, tokens_of, watched};
use super::predicted::Predicted;
use super::score::Score;
use crate::forward::ops::Ops;
use crate::forward::{Chunk, Decoder, ForwardError, chunks};
use std::ops::ControlFlow;

/// A sequence whose last tokens are scored, given the tokens before each.
#[derive(Clone, Copy, Debug)]
pub struct ScoredSequence<'t> {
    /// All tokens. The last one is not read, only predicted.
    pub tokens: &'t [u32],
    /// The number of scored tokens at the end: fewer than there are.
    pub scored: usize,
}

/// The likelihood of the end of a sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Likelihood {
    /// The sum of `ln p` over the scored tokens.
    pub log_likelihood: f64,
    /// Whether each of them is the likeliest token at its place.
    pub is_greedy: bool,
}

/// Scores the ends of sequences of any lengths, in their order. `watch` receives the tokens done and the tokens in all; if it breaks, the
/// work stops.
///
/// # Errors
///
/// Sequences without a token before the scored ones, tokens that the model does not know, likelihoods that are NaN; a `watch` that breaks.
pub fn likelihoods(
    decoder: &Decoder<'_>,
    ops: &dyn Ops,
    sequences: &[ScoredSequence<'_>],
    memory: u64,
    watch: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Vec<Likelihood>, EvaluationError> {
    if sequences.iter().any(|sequence| sequence.scored >= sequence.tokens.len()) {
        return Err(EvaluationError::Window { window: 1 });
    }
    let vocabulary = decoder.vocabulary();
    let unknown = |token: &u32| usize::try_from(*token).map_or(true, |token| token >= vocabulary);
    if let Some(token) = sequences.iter().flat_map(|sequence| sequence.tokens).find(|token| unknown(token)) {
        return Err(ForwardError::Token { token: *token, vocabulary }.into());
    }
    // Sequences of one length pass together, and those of which the same is read, such as a question with short answers, once.
    let read = |index: usize| &sequences[index].tokens[..sequences[index].tokens.len() - 1];
    let mut order: Vec<usize> = (0..sequences.len()).filter(|index| sequences[*index].scored > 0).collect();
    order.sort_by(|a, b| (read(*a).len(), read(*a)).cmp(&(read(*b).len(), read(*b))));
    let groups: Vec<&[usize]> = order.chunk_by(|a, b| read(*a) == read(*b)).collect();
    let chunks = chunks(decoder, groups.iter().map(|group| read(group[0])));
    let mut step = watched(decoder, tokens_of(&chunks), watch);
    let predicted = predicted(&chunks, groups.iter().map(|group| group.iter().map(|index| sequences[*index])));
    let scores = scores(decoder, ops, &chunks, &predicted, memory, &mut step)?;
    let targets = predicted.iter().flat_map(|predicted| &predicted.targets);
    let mut scores = scores.iter().zip(targets);
    let mut found = vec![Likelihood { log_likelihood: 0.0, is_greedy: true }; sequences.len()];
    for index in order.iter().copied() {
        for (token, (score, target)) in scores.by_ref().take(sequences[index].scored).enumerate() {
            if add(&mut found[index], score, *target).is_none() {
                return Err(not_a_number(decoder, index, token));
            }
        }
    }
    Ok(found)
}

/// Takes in a token; `None` where its likelihood is NaN.
fn add(likelihood: &mut Likelihood, score: &Score, target: u32) -> Option<()> {
    let log_likelihood = score.log_likelihood();
    likelihood.log_likelihood += log_likelihood;
    likelihood.is_greedy &= score.best() == target as usize;
    (!log_likelihood.is_nan()).then_some(())
}

/// The rows of every chunk that predict a scored token. The groups are those of the sequences in the chunks.
fn predicted<'t, G: Iterator<Item = ScoredSequence<'t>>>(
    chunks: &[Chunk],
    mut groups: impl Iterator<Item = G>,
) -> Vec<Predicted> {
    let of_chunk = |chunk: &Chunk| {
        let (rows, targets, places) = (Vec::new(), Vec::new(), Vec::new());
        let mut found = Predicted { rows, all: chunk.tokens.len(), targets, places };
        let count = chunk.tokens.len() / chunk.length.max(1);
        for (index, group) in groups.by_ref().take(count).enumerate() {
            let end = (index + 1) * chunk.length;
            for sequence in group {
                found.rows.extend(end - sequence.scored..end);
                found.targets.extend(&sequence.tokens[sequence.tokens.len() - sequence.scored..]);
            }
        }
        found
    };
    chunks.iter().map(of_chunk).collect()
}
