//! Evaluating a model on a text, alone or beside the model that it was made from. Perplexity is by the field's
//! convention: the mean is over the scored tokens of all [windows](super::windows).

use super::EvaluationError;
use super::changed::most_changed;
use super::comparison::{BlockErrors, Comparison};
use super::predicted::{Predicted, pieces, placed, predicted, scored};
use super::score::{Score, ScorePair};
use super::statistics::{ContextRange, Mean, TokenPlace, ranges_of_pairs, ranges_of_scores};
use super::windows::{JoinedSequences, ScoredEnd, Window, windows};
use crate::forward::blueprint::Stacks;
use crate::forward::ops::Ops;
use crate::forward::{Chunk, Decoder, Pass, chunks};
use kvant_data::calibration::TokenDocument;
use kvant_numeric::simd::Isa;
use rayon::prelude::*;
use std::ops::ControlFlow;
use std::time::Instant;

/// The longest window that is chosen unasked.
const LONGEST_DEFAULT: usize = 2048;
/// Bytes of activations that are kept in memory unless said otherwise.
pub const DEFAULT_MEMORY: u64 = 1 << 30;

/// Options of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Tokens of a window.
    pub window: usize,
    /// The distance between the starts of overlapping windows.
    pub stride: Option<usize>,
    /// The most windows, of which the first ones are taken; `None` is all.
    pub most: Option<usize>,
    /// Bytes of activations that are kept in memory; more go to a temporary file.
    pub memory: u64,
}

impl Options {
    /// Windows of this length that follow each other.
    pub fn windows_of(window: usize) -> Options {
        Options { window, stride: None, most: None, memory: DEFAULT_MEMORY }
    }
}

/// The measured prediction of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// `exp(-mean(ln p))` over the scored tokens; not a number where none is scored.
    pub perplexity: f64,
    /// Its standard error over windows: see [`Mean`].
    pub perplexity_error: f64,
    /// Scored tokens.
    pub tokens: usize,
    /// Windows.
    pub windows: usize,
    /// Tokens of a window.
    pub window: usize,
    /// Tokens that passed the model.
    pub passed: usize,
    /// Time taken, without tokenization: by all models that were evaluated together.
    pub seconds: f64,
    /// The scored tokens by the number of tokens before them.
    pub ranges: Vec<ContextRange>,
    /// How far the model is from the reference, if there is one.
    pub comparison: Option<Comparison>,
}

impl Evaluation {
    /// Tokens that passed the model per second, those that are not scored included.
    pub fn tokens_per_second(&self) -> f64 {
        self.passed as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }
}

/// The window for a model whose longest context is known or not: the smaller of 2048 and that.
pub fn default_window(longest: Option<usize>) -> usize {
    longest.map_or(LONGEST_DEFAULT, |longest| longest.min(LONGEST_DEFAULT))
}

/// Evaluates `decoder` on `tokens`, beside `reference` if there is one. `watch` receives the tokens done and the tokens in all; a
/// token in one of `n` blocks, or in the head, is `1 / (n + 1)` done. If it breaks, the evaluation stops.
///
/// # Errors
///
/// Windows that predict nothing or are not filled, tokens that the model does not know, a reference of another shape,
/// likelihoods that are NaN; a `watch` that breaks.
pub fn evaluate(
    decoder: &Decoder<'_>,
    reference: Option<&Decoder<'_>>,
    ops: &dyn Ops,
    tokens: &[u32],
    options: Options,
    watch: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Evaluation, EvaluationError> {
    let mut windows = windows(tokens.len(), options.window, options.stride)?;
    windows.truncate(options.most.unwrap_or(usize::MAX));
    only(evaluate_windows((&[decoder], reference), ops, tokens, &windows, options, watch)?)
}

/// The same on documents, each in its own windows: see [`JoinedSequences::of_documents`].
///
/// # Errors
///
/// As [`evaluate`].
pub fn evaluate_documents(
    decoder: &Decoder<'_>,
    reference: Option<&Decoder<'_>>,
    ops: &dyn Ops,
    documents: &[TokenDocument],
    options: Options,
    watch: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Evaluation, EvaluationError> {
    only(evaluate_models(&[decoder], reference, ops, documents, options, watch)?)
}

/// The same of several models on the same documents, in the order of the models. The reference runs once, beside all of them.
///
/// # Errors
///
/// As [`evaluate`].
pub fn evaluate_models(
    models: &[&Decoder<'_>],
    reference: Option<&Decoder<'_>>,
    ops: &dyn Ops,
    documents: &[TokenDocument],
    options: Options,
    watch: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Vec<Evaluation>, EvaluationError> {
    let joined = JoinedSequences::of_documents(documents, options.window, options.stride)?.first(options.most);
    let pairs = models.iter().find(|model| model.stacks().is_some());
    let JoinedSequences { tokens, windows } = match pairs {
        None => joined,
        Some(_) if options.stride.is_some() => return Err(EvaluationError::StrideOfPairs),
        Some(model) => joined.of_encoder_decoder(model)?,
    };
    evaluate_windows((models, reference), ops, &tokens, &windows, options, watch)
}

/// The evaluation of the only model.
fn only(found: Vec<Evaluation>) -> Result<Evaluation, EvaluationError> {
    found.into_iter().next().ok_or(EvaluationError::NoText)
}

/// The same on sequences of any lengths, each a window of its own: those of one token, which predict nothing, are left out.
///
/// # Errors
///
/// As [`evaluate`]; [`EvaluationError::TooShort`] where no sequence predicts anything.
pub fn evaluate_sequences(
    decoder: &Decoder<'_>,
    reference: Option<&Decoder<'_>>,
    ops: &dyn Ops,
    sequences: &[Vec<u32>],
    memory: u64,
    watch: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Evaluation, EvaluationError> {
    evaluate_whole((decoder, reference), ops, &JoinedSequences::of(sequences)?, memory, watch)
}

/// The same on sequences of an encoder-decoder, each with the number of tokens at its end that are scored. Of a sequence that scores none the
/// prediction behind its last token is compared with the reference's.
///
/// # Errors
///
/// As [`evaluate`]; [`EvaluationError::NothingScored`] where nothing is scored and there is no reference.
pub fn evaluate_scored(
    decoder: &Decoder<'_>,
    reference: Option<&Decoder<'_>>,
    ops: &dyn Ops,
    sequences: &[ScoredEnd],
    memory: u64,
    watch: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Evaluation, EvaluationError> {
    let joined = JoinedSequences::of_scored(sequences);
    if reference.is_none() && joined.windows.iter().all(|window| window.scored == 0) {
        return Err(EvaluationError::NothingScored);
    }
    evaluate_whole((decoder, reference), ops, &joined, memory, watch)
}

/// The same on sequences that are a window each, whatever their lengths.
fn evaluate_whole(
    (decoder, reference): (&Decoder<'_>, Option<&Decoder<'_>>),
    ops: &dyn Ops,
    joined: &JoinedSequences,
    memory: u64,
    watch: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Evaluation, EvaluationError> {
    let window = joined.windows.iter().map(|window| window.tokens.len()).max().unwrap_or(0);
    let options = Options { memory, ..Options::windows_of(window) };
    only(evaluate_windows((&[decoder], reference), ops, &joined.tokens, &joined.windows, options, watch)?)
}

fn evaluate_windows(
    (models, reference): (&[&Decoder<'_>], Option<&Decoder<'_>>),
    ops: &dyn Ops,
    tokens: &[u32],
    windows: &[Window],
    options: Options,
    mut watch: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Vec<Evaluation>, EvaluationError> {
    if let Some(reference) = reference {
        models.iter().try_for_each(|model| check_comparable(model, reference))?;
    }
    let text = TextWindows { tokens, windows, options };
    match reference {
        Some(reference) => text.beside(models, reference, ops, watch),
        None => {
            let (count, passed) = (models.len() as u64, text.passed() as u64);
            let of_model = |(index, model): (usize, &&Decoder<'_>)| {
                text.alone(model, ops, |done, _| watch(index as u64 * passed + done, count * passed))
            };
            models.iter().enumerate().map(of_model).collect()
        }
    }
}

/// A text in windows.
#[derive(Clone, Copy)]
struct TextWindows<'t> {
    tokens: &'t [u32],
    windows: &'t [Window],
    options: Options,
}

/// What was found of a model.
struct FoundScores<'f> {
    /// Log-likelihoods of the scored tokens.
    scores: &'f [(TokenPlace, f64)],
    ranges: Vec<ContextRange>,
    comparison: Option<Comparison>,
}

impl TextWindows<'_> {
    /// Tokens that pass a model.
    fn passed(&self) -> usize {
        self.windows.iter().map(|window| window.tokens.len()).sum()
    }

    fn chunks(&self, decoder: &Decoder<'_>) -> Result<(Vec<Chunk>, Vec<Predicted>), EvaluationError> {
        let chunks = chunks(decoder, self.windows.iter().map(|window| &self.tokens[window.tokens.clone()]));
        let predicted = predicted(&chunks, self.windows, decoder.vocabulary());
        match predicted.iter().all(|predicted| predicted.rows.is_empty()) {
            true => Err(EvaluationError::NoText),
            false => Ok((chunks, predicted)),
        }
    }

    /// A model without a reference.
    fn alone(
        &self,
        decoder: &Decoder<'_>,
        ops: &dyn Ops,
        watch: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Evaluation, EvaluationError> {
        let start = Instant::now();
        let (chunks, predicted) = self.chunks(decoder)?;
        let mut step = watched(decoder, self.passed(), watch);
        let scores = scores(decoder, ops, &chunks, &predicted, self.options.memory, &mut step)?;
        let scored = scored(&scores, &predicted).into_iter();
        let scores: Vec<(TokenPlace, f64)> = scored.map(|(place, score)| (place, score.log_likelihood())).collect();
        let found = FoundScores { scores: &scores, ranges: ranges_of_scores(&scores), comparison: None };
        self.evaluation(decoder, found, start)
    }

    /// Models beside their reference, which runs once.
    fn beside(
        &self,
        models: &[&Decoder<'_>],
        reference: &Decoder<'_>,
        ops: &dyn Ops,
        watch: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Vec<Evaluation>, EvaluationError> {
        let start = Instant::now();
        let (chunks, predicted) = self.chunks(reference)?;
        let mut step = watched(reference, self.passed(), watch);
        let mut beside = Beside {
            chunks: &chunks,
            predicted: &predicted,
            stacks: reference.stacks(),
            hidden: reference.width(),
            step: &mut step,
        };
        let found = beside.run(models, reference, ops, self.options.memory / (models.len() as u64 + 1))?;
        let of_model = |(model, found): (&&Decoder<'_>, BesideFound)| {
            let pairs = scored(&found.pairs, &predicted);
            let of = |score: fn(&ScorePair) -> Score| -> Vec<(TokenPlace, f64)> {
                pairs.iter().map(|(place, pair)| (*place, score(pair).log_likelihood())).collect()
            };
            let reference_perplexity = perplexity(reference, &of(|pair| pair.reference))?.value;
            let all = placed(&found.pairs, &predicted);
            let comparison = Comparison {
                changed: most_changed(&pairs, self.tokens, self.windows),
                ..Comparison::of_scored(reference_perplexity, &all, &pairs, &found.errors)
            };
            let scores = of(|pair| pair.model);
            let ranges = ranges_of_pairs(&pairs);
            self.evaluation(model, FoundScores { scores: &scores, ranges, comparison: Some(comparison) }, start)
        };
        models.iter().zip(found).map(of_model).collect()
    }

    fn evaluation(
        &self,
        decoder: &Decoder<'_>,
        found: FoundScores<'_>,
        start: Instant,
    ) -> Result<Evaluation, EvaluationError> {
        let perplexity = perplexity(decoder, found.scores)?;
        Ok(Evaluation {
            perplexity: perplexity.value,
            perplexity_error: perplexity.error,
            tokens: found.scores.len(),
            windows: self.windows.len(),
            window: self.options.window,
            passed: self.passed(),
            seconds: start.elapsed().as_secs_f64(),
            ranges: found.ranges,
            comparison: found.comparison,
        })
    }
}

/// Refuses models that cannot be compared token by token and block by block.
///
/// # Errors
///
/// [`EvaluationError::Reference`] where they differ in shape.
pub fn check_comparable(decoder: &Decoder<'_>, reference: &Decoder<'_>) -> Result<(), EvaluationError> {
    let pairs = [
        ("vocabulary", decoder.vocabulary(), reference.vocabulary()),
        ("number of blocks", decoder.blueprint().blocks.len(), reference.blueprint().blocks.len()),
        ("hidden size", decoder.hidden(), reference.hidden()),
    ];
    match pairs.into_iter().find(|(_, model, reference)| model != reference) {
        None => Ok(()),
        Some((what, model, reference)) => Err(EvaluationError::Reference { what, model, reference }),
    }
}

/// The tokens of all chunks.
pub(super) fn tokens_of(chunks: &[Chunk]) -> usize {
    chunks.iter().map(|chunk| chunk.tokens.len()).sum()
}

/// The step of a run over `passed` tokens, which tells `watch` how many are done: a token in one of `n` blocks, or in the head, is
/// `1 / (n + 1)` done.
pub(super) fn watched(
    decoder: &Decoder<'_>,
    passed: usize,
    mut watch: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> impl FnMut(&Chunk) -> Result<(), EvaluationError> {
    let (steps, mut done) = (decoder.blueprint().blocks.len() + 1, 0);
    move |chunk| {
        done += chunk.tokens.len();
        match watch((done / steps) as u64, passed as u64) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(EvaluationError::Cancelled),
        }
    }
}

/// The error for a likelihood that is NaN, with the tensor of `decoder` that is to blame, if any.
pub(super) fn not_a_number(decoder: &Decoder<'_>, at: usize, token: usize) -> EvaluationError {
    let cause = decoder.first_broken().map(|(tensor, value)| (tensor.to_owned(), value));
    EvaluationError::NotANumber { at, token, cause }
}

/// The perplexity of log-likelihoods that `decoder` gives.
fn perplexity(decoder: &Decoder<'_>, scores: &[(TokenPlace, f64)]) -> Result<Mean, EvaluationError> {
    perplexity_or(scores, |at, token| not_a_number(decoder, at, token))
}

/// `exp(-mean)` of the log-likelihoods of all scored tokens. The error is that for the window and the token of the first one that is NaN.
pub(super) fn perplexity_or(
    scores: &[(TokenPlace, f64)],
    error: impl Fn(usize, usize) -> EvaluationError,
) -> Result<Mean, EvaluationError> {
    match scores.iter().find(|(_, score)| score.is_nan()) {
        Some((place, _)) => Err(error(place.window, place.token)),
        None => Ok(Mean::of(scores.iter().map(|(place, score)| (*place, -score))).exp()),
    }
}

/// Called when a chunk has passed a block or the head.
pub(super) type ScoreStep<'s> = &'s mut dyn FnMut(&Chunk) -> Result<(), EvaluationError>;

/// The scores of all predicted tokens, chunk by chunk.
pub(super) fn scores(
    decoder: &Decoder<'_>,
    ops: &dyn Ops,
    chunks: &[Chunk],
    predicted: &[Predicted],
    memory: u64,
    step: ScoreStep<'_>,
) -> Result<Vec<Score>, EvaluationError> {
    let mut pass = Pass::begin(decoder, ops, chunks, memory, None)?;
    for block in 0..decoder.blueprint().blocks.len() {
        for (index, chunk) in chunks.iter().enumerate() {
            pass.block(block, index, |_| {})?;
            step(chunk)?;
        }
    }
    let mut all = Vec::new();
    for (index, predicted) in predicted.iter().enumerate() {
        let hidden = predicted.rows(&pass.hidden(index)?);
        let mut scores = vec![Score::default(); predicted.targets.len()];
        for (start, piece) in pieces(decoder.vocabulary(), scores.len()) {
            let logits = pass.logits(&hidden, start..start + piece);
            let rows = scores.par_iter_mut().zip(&predicted.targets).zip(logits.par_chunks_exact(piece));
            rows.for_each(|((score, target), row)| score.add(Isa::best(), row, start, *target as usize));
        }
        all.extend(scores);
        step(&chunks[index])?;
    }
    Ok(all)
}

/// Models and their reference on the same chunks.
struct Beside<'b> {
    chunks: &'b [Chunk],
    predicted: &'b [Predicted],
    /// The stacks of the models, where they are encoder-decoders, and the width of their streams.
    stacks: Option<&'b Stacks>,
    hidden: usize,
    step: ScoreStep<'b>,
}

/// What was found of a model beside its reference.
struct BesideFound {
    /// For each predicting row.
    pairs: Vec<ScorePair>,
    /// For each block.
    errors: Vec<BlockErrors>,
}

impl Beside<'_> {
    /// Each pass keeps `memory` bytes of activations in memory.
    fn run(
        &mut self,
        models: &[&Decoder<'_>],
        reference: &Decoder<'_>,
        ops: &dyn Ops,
        memory: u64,
    ) -> Result<Vec<BesideFound>, EvaluationError> {
        let begin = |model| Pass::begin(model, ops, self.chunks, memory, None);
        let mut passes = models.iter().map(|model| begin(model)).collect::<Result<Vec<_>, _>>()?;
        let mut reference_pass = begin(reference)?;
        let errors = self.blocks(&mut passes, &mut reference_pass, reference.blueprint().blocks.len())?;
        let pairs = self.head(&mut passes, &mut reference_pass, reference.vocabulary())?;
        Ok(pairs.into_iter().zip(errors).map(|(pairs, errors)| BesideFound { pairs, errors }).collect())
    }

    /// The errors of each model after each block.
    fn blocks(
        &mut self,
        models: &mut [Pass<'_, '_>],
        reference: &mut Pass<'_, '_>,
        blocks: usize,
    ) -> Result<Vec<Vec<BlockErrors>>, EvaluationError> {
        let mut errors = vec![vec![BlockErrors::default(); blocks]; models.len()];
        for block in 0..blocks {
            for (index, chunk) in self.chunks.iter().enumerate() {
                let changed = |x: &'_ [f32]| chunk.lengths().changed(self.stacks, block, self.hidden, x).into_owned();
                let mut expected = Vec::new();
                reference.block(block, index, |x| expected = changed(x))?;
                for (model, errors) in models.iter_mut().zip(&mut errors) {
                    model.block(block, index, |x| errors[block].add(&changed(x), &expected))?;
                }
                (self.step)(chunk)?;
            }
        }
        Ok(errors)
    }

    /// The scores of each model. Logits of one model exist beside those of the reference.
    fn head(
        &mut self,
        models: &mut [Pass<'_, '_>],
        reference: &mut Pass<'_, '_>,
        vocabulary: usize,
    ) -> Result<Vec<Vec<ScorePair>>, EvaluationError> {
        let mut all = vec![Vec::new(); models.len()];
        for (index, predicted) in self.predicted.iter().enumerate() {
            let hidden = models.iter_mut().map(|model| Ok(predicted.rows(&model.hidden(index)?)));
            let hidden = hidden.collect::<Result<Vec<_>, EvaluationError>>()?;
            let reference_rows = predicted.rows(&reference.hidden(index)?);
            let rows = predicted.targets.len();
            let mut pairs = vec![vec![ScorePair::default(); rows]; models.len()];
            for (start, piece) in pieces(vocabulary, rows) {
                let theirs = reference.logits(&reference_rows, start..start + piece);
                for ((model, hidden), pairs) in models.iter_mut().zip(&hidden).zip(&mut pairs) {
                    let ours = model.logits(hidden, start..start + piece);
                    let rows = ours.par_chunks_exact(piece).zip(theirs.par_chunks_exact(piece));
                    let all = pairs.par_iter_mut().zip(&predicted.targets).zip(rows);
                    all.for_each(|((pair, target), rows)| pair.add(Isa::best(), rows, start, *target as usize));
                }
            }
            all.iter_mut().zip(pairs).for_each(|(all, pairs)| all.extend(pairs));
            (self.step)(&self.chunks[index])?;
        }
        Ok(all)
    }
}
