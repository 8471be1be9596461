//! Evaluating a model on a text, alone or beside the model that it was made from. Perplexity is by the field's
//! convention: the mean is over the scored tokens of all [windows](super::windows).

use super::EvaluationError;
use super::comparison::{BlockErrors, Comparison};
use super::score::{Score, ScorePair};
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
/// Elements of logits of one model that exist at a time.
pub(super) const LOGITS: usize = 8 << 20;
/// Logits of one row that are summed in `f32`.
const PIECE: usize = 4096;
/// Bytes of activations that are kept in memory unless said otherwise.
pub const DEFAULT_MEMORY: u64 = 1 << 30;

/// Options of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Tokens of a window.
    pub window: usize,
    /// The distance between the starts of overlapping windows.
    pub stride: Option<usize>,
    /// Bytes of activations that are kept in memory; more go to a temporary file.
    pub memory: u64,
}

impl Options {
    /// Windows of this length that follow each other.
    pub fn windows_of(window: usize) -> Options {
        Options { window, stride: None, memory: DEFAULT_MEMORY }
    }
}

/// The measured prediction of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// `exp(-mean(ln p))` over the scored tokens; not a number where none is scored.
    pub perplexity: f64,
    /// Scored tokens.
    pub tokens: usize,
    /// Windows.
    pub windows: usize,
    /// Tokens of a window.
    pub window: usize,
    /// Tokens that passed the model.
    pub passed: usize,
    /// Time taken, without tokenization.
    pub seconds: f64,
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
    let windows = windows(tokens.len(), options.window, options.stride)?;
    evaluate_windows((decoder, reference), ops, tokens, &windows, options, watch)
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
    let joined = JoinedSequences::of_documents(documents, options.window, options.stride)?;
    let JoinedSequences { tokens, windows } = match decoder.stacks() {
        None => joined,
        Some(_) if options.stride.is_some() => return Err(EvaluationError::StrideOfPairs),
        Some(_) => joined.of_encoder_decoder(decoder)?,
    };
    evaluate_windows((decoder, reference), ops, &tokens, &windows, options, watch)
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
    models: (&Decoder<'_>, Option<&Decoder<'_>>),
    ops: &dyn Ops,
    joined: &JoinedSequences,
    memory: u64,
    watch: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Evaluation, EvaluationError> {
    let window = joined.windows.iter().map(|window| window.tokens.len()).max().unwrap_or(0);
    let options = Options { memory, ..Options::windows_of(window) };
    evaluate_windows(models, ops, &joined.tokens, &joined.windows, options, watch)
}

fn evaluate_windows(
    (decoder, reference): (&Decoder<'_>, Option<&Decoder<'_>>),
    ops: &dyn Ops,
    tokens: &[u32],
    windows: &[Window],
    options: Options,
    watch: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Evaluation, EvaluationError> {
    if let Some(reference) = reference {
        fit(decoder, reference)?;
    }
    let start = Instant::now();
    let sequences = windows.iter().map(|window| &tokens[window.tokens.clone()]);
    let chunks = chunks(decoder, sequences);
    let passed = tokens_of(&chunks);
    let mut step = watched(decoder, passed, watch);
    let predicted = predicted(&chunks, windows, decoder.vocabulary());
    if predicted.iter().all(|predicted| predicted.rows.is_empty()) {
        return Err(EvaluationError::NoText);
    }
    let (scores, comparison): (Vec<f64>, _) = match reference {
        None => {
            let scores = scores(decoder, ops, &chunks, &predicted, options.memory, &mut step)?;
            (scored(&scores, &predicted).map(Score::log_likelihood).collect(), None)
        }
        Some(reference) => {
            let mut beside = Beside {
                chunks: &chunks,
                predicted: &predicted,
                stacks: decoder.stacks(),
                hidden: decoder.width(),
                step: &mut step,
            };
            let (scores, comparison) = beside.run((decoder, reference), ops, options.memory / 2)?;
            (scores, Some(comparison))
        }
    };
    Ok(Evaluation {
        perplexity: perplexity(decoder, &scores, &predicted)?,
        tokens: scores.len(),
        windows: windows.len(),
        window: options.window,
        passed,
        seconds: start.elapsed().as_secs_f64(),
        comparison,
    })
}

/// Returns whether both models can be compared token by token and block by block.
pub(super) fn fit(decoder: &Decoder<'_>, reference: &Decoder<'_>) -> Result<(), EvaluationError> {
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

/// `exp` of the mean, of finite numbers that `decoder` gives.
fn perplexity(decoder: &Decoder<'_>, log_likelihoods: &[f64], predicted: &[Predicted]) -> Result<f64, EvaluationError> {
    let place = |index| scored_place(predicted, index);
    perplexity_or(log_likelihoods, place, |at, token| not_a_number(decoder, at, token))
}

/// `exp(-mean)` of the log-likelihoods of all scored tokens, the place of each of which is a window and a token of it. The error is that
/// for the first one that is NaN.
pub(super) fn perplexity_or(
    log_likelihoods: &[f64],
    place: impl Fn(usize) -> (usize, usize),
    error: impl Fn(usize, usize) -> EvaluationError,
) -> Result<f64, EvaluationError> {
    if let Some(index) = log_likelihoods.iter().position(|score| score.is_nan()) {
        let (at, token) = place(index);
        return Err(error(at, token));
    }
    Ok((-log_likelihoods.iter().sum::<f64>() / log_likelihoods.len() as f64).exp())
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

/// Two models on the same chunks.
struct Beside<'b> {
    chunks: &'b [Chunk],
    predicted: &'b [Predicted],
    /// The stacks of the models, where they are encoder-decoders, and the width of their streams.
    stacks: Option<&'b Stacks>,
    hidden: usize,
    step: ScoreStep<'b>,
}

impl Beside<'_> {
    fn run(
        &mut self,
        (model, reference): (&Decoder<'_>, &Decoder<'_>),
        ops: &dyn Ops,
        memory: u64,
    ) -> Result<(Vec<f64>, Comparison), EvaluationError> {
        let mut model_pass = Pass::begin(model, ops, self.chunks, memory, None)?;
        let mut reference_pass = Pass::begin(reference, ops, self.chunks, memory, None)?;
        let errors = self.blocks(&mut model_pass, &mut reference_pass, model.blueprint().blocks.len())?;
        let pairs = self.head(&mut model_pass, &mut reference_pass, model.vocabulary())?;
        let scored: Vec<ScorePair> = scored(&pairs, self.predicted).copied().collect();
        let scores: Vec<f64> = scored.iter().map(|pair| pair.model.log_likelihood()).collect();
        let of_reference: Vec<f64> = scored.iter().map(|pair| pair.reference.log_likelihood()).collect();
        let perplexity = perplexity(reference, &of_reference, self.predicted)?;
        Ok((scores, Comparison::of_scored(perplexity, &pairs, &scored, &errors)))
    }

    fn blocks(
        &mut self,
        model: &mut Pass<'_, '_>,
        reference: &mut Pass<'_, '_>,
        blocks: usize,
    ) -> Result<Vec<BlockErrors>, EvaluationError> {
        let mut errors = vec![BlockErrors::default(); blocks];
        for (block, errors) in errors.iter_mut().enumerate() {
            for (index, chunk) in self.chunks.iter().enumerate() {
                let changed = |x: &'_ [f32]| chunk.lengths().changed(self.stacks, block, self.hidden, x).into_owned();
                let mut expected = Vec::new();
                reference.block(block, index, |x| expected = changed(x))?;
                model.block(block, index, |x| errors.add(&changed(x), &expected))?;
                (self.step)(chunk)?;
            }
        }
        Ok(errors)
    }

    fn head(
        &mut self,
        model: &mut Pass<'_, '_>,
        reference: &mut Pass<'_, '_>,
        vocabulary: usize,
    ) -> Result<Vec<ScorePair>, EvaluationError> {
        let mut all = Vec::new();
        for (index, predicted) in self.predicted.iter().enumerate() {
            let model_rows = predicted.rows(&model.hidden(index)?);
            let reference_rows = predicted.rows(&reference.hidden(index)?);
            let mut pairs = vec![ScorePair::default(); predicted.targets.len()];
            for (start, piece) in pieces(vocabulary, pairs.len()) {
                let ours = model.logits(&model_rows, start..start + piece);
                let theirs = reference.logits(&reference_rows, start..start + piece);
                let rows = ours.par_chunks_exact(piece).zip(theirs.par_chunks_exact(piece));
                let all = pairs.par_iter_mut().zip(&predicted.targets).zip(rows);
                all.for_each(|((pair, target), rows)| pair.add(Isa::best(), rows, start, *target as usize));
            }
            all.extend(pairs);
            (self.step)(&self.chunks[index])?;
        }
        Ok(all)
    }
}

/// The starts and lengths of the pieces that the vocabulary is cut into.
pub(super) fn pieces(vocabulary: usize, rows: usize) -> impl Iterator<Item = (usize, usize)> {
    let piece = (LOGITS / rows.max(1)).clamp(1, PIECE);
    (0..vocabulary).step_by(piece).map(move |start| (start, piece.min(vocabulary - start)))
}

/// What belongs to the rows that tokens follow, of something that there is for each predicting row.
fn scored<'a, T>(all: &'a [T], predicted: &'a [Predicted]) -> impl Iterator<Item = &'a T> {
    let has_target = predicted.iter().flat_map(|predicted| &predicted.targets).map(|target| *target != NO_TARGET);
    all.iter().zip(has_target).filter(|(_, has_target)| *has_target).map(|(one, _)| one)
}

/// In place of the token that follows, where none does: beyond every vocabulary.
const NO_TARGET: u32 = u32::MAX;

/// The rows of a chunk that predict something, and what follows them: tokens of text, as rows of images are not predicted. Nothing follows
/// the only row of a decoder that reads nothing but what it begins with.
pub(super) struct Predicted {
    pub(super) rows: Vec<usize>,
    /// Rows that the head reads.
    pub(super) all: usize,
    pub(super) targets: Vec<u32>,
    /// The window of each target that there is, and its token there.
    pub(super) places: Vec<(usize, usize)>,
}

impl Predicted {
    /// These rows of all.
    pub(super) fn rows(&self, hidden: &[f32]) -> Vec<f32> {
        let width = hidden.len() / self.all.max(1);
        self.rows.iter().flat_map(|row| &hidden[row * width..(row + 1) * width]).copied().collect()
    }
}

/// The rows of chunks that predict something, chunk by chunk. Tokens beyond the vocabulary are rows of images.
pub(super) fn predicted(chunks: &[Chunk], windows: &[Window], vocabulary: usize) -> Vec<Predicted> {
    let mut windows = windows.iter().enumerate();
    let of_chunk = |chunk: &Chunk| {
        // What an encoder reads has no rows behind the last block.
        let length = chunk.length - chunk.source;
        let (rows, targets, places) = (Vec::new(), Vec::new(), Vec::new());
        let mut found = Predicted { rows, all: chunk.sequences() * length, targets, places };
        for (sequence, (at, window)) in windows.by_ref().take(chunk.sequences()).enumerate() {
            let (start, end) = (sequence * chunk.length, (sequence + 1) * chunk.length);
            let is_text = |target: &usize| (chunk.tokens[*target] as usize) < vocabulary;
            for target in (end - window.scored..end).filter(is_text) {
                // The row before a token predicts it.
                found.rows.push(sequence * length + target - start - chunk.source - 1);
                found.targets.push(chunk.tokens[target]);
                found.places.push((at, target - start));
            }
            if window.scored == 0 && chunk.source > 0 {
                found.rows.push((sequence + 1) * length - 1);
                found.targets.push(NO_TARGET);
            }
        }
        found
    };
    chunks.iter().map(of_chunk).collect()
}

/// The window of a scored token, and its place there.
pub(super) fn scored_place(predicted: &[Predicted], index: usize) -> (usize, usize) {
    predicted.iter().flat_map(|predicted| &predicted.places).nth(index).copied().unwrap_or_default()
}

/// The same where all tokens at the ends of windows are scored.
pub(super) fn place_in_windows(windows: &[Window], mut index: usize) -> (usize, usize) {
    for (at, window) in windows.iter().enumerate() {
        if index < window.scored {
            return (at, window.tokens.len() - window.scored + index);
        }
        index -= window.scored;
    }
    (windows.len(), 0)
}
