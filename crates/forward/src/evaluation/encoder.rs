//! How far an encoder is from the model that it was made from: by its embeddings of texts, its last hidden states and what its readouts
//! make of them. Encoders predict no next token, so that there is no perplexity.

use super::EvaluationError;
use super::comparison::BlockErrors;
use super::evaluate::{Options, check_comparable, tokens_of, watched};
use super::predicted::LOGITS;
use super::windows::{JoinedSequences, Window};
use crate::forward::blueprint::ReadoutLayers;
use crate::forward::ops::Ops;
use crate::forward::{Chunk, Decoder, Pass, chunks, mean};
use kvant_data::calibration::TokenDocument;
use std::ops::ControlFlow;
use std::time::Instant;

/// How the embedding of a text follows from its last hidden states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    #[default]
    Mean,
    /// That of the first token.
    First,
}

impl Pooling {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Pooling::Mean => "mean",
            Pooling::First => "first",
        }
    }

    fn embedding(self, sequence: &[f32], width: usize) -> Vec<f32> {
        match self {
            Pooling::Mean => mean(sequence, width),
            Pooling::First => sequence[..width].to_vec(),
        }
    }
}

/// An encoder beside its reference, on the same texts.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderEvaluation {
    /// Texts, or windows of them.
    pub sequences: usize,
    /// Their tokens.
    pub tokens: usize,
    /// Tokens of a window.
    pub window: usize,
    /// Time taken, without tokenization.
    pub seconds: f64,
    /// How embeddings follow from hidden states.
    pub pooling: Pooling,
    /// The mean cosine of a text's embedding and the reference's.
    pub mean_cosine: f64,
    /// The least.
    pub least_cosine: f64,
    /// The last hidden states: `10 log10(sum r^2 / sum (r - x)^2)` in decibels, `r` being the reference's. Infinite where there is no error.
    pub hidden_decibels: f64,
    /// The same after each block.
    pub blocks: Vec<f64>,
    /// What readouts give.
    pub readouts: Vec<ReadoutComparison>,
}

impl EncoderEvaluation {
    /// Tokens that passed the model per second.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }
}

/// What a readout gives, beside the reference's.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadoutComparison {
    /// Its name.
    pub name: &'static str,
    /// The signal-to-noise ratio in decibels.
    pub decibels: f64,
    /// The share of rows in which both have the largest element at the same place.
    pub agreement: f64,
}

/// Compares `encoder` with `reference` on documents, each in its own windows: see [`JoinedSequences::of_documents`]. `watch` receives the
/// tokens done and the tokens in all; if it breaks, the evaluation stops.
///
/// # Errors
///
/// Windows that are not filled, tokens that the model does not know, a reference of another shape, results that are NaN; a `watch` that
/// breaks.
pub fn evaluate_encoder(
    (encoder, reference): (&Decoder<'_>, &Decoder<'_>),
    ops: &dyn Ops,
    documents: &[TokenDocument],
    pooling: Pooling,
    options: Options,
    watch: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<EncoderEvaluation, EvaluationError> {
    check_comparable(encoder, reference)?;
    fit_readouts(encoder, reference)?;
    let joined = JoinedSequences::of_documents(documents, options.window, options.stride)?;
    let JoinedSequences { tokens, windows } = joined.first(options.most);
    let start = Instant::now();
    let sequences = windows.iter().map(|window: &Window| &tokens[window.tokens.clone()]);
    let chunks = chunks(encoder, sequences);
    let passed = tokens_of(&chunks);
    let mut step = watched(encoder, passed, watch);
    let begin = |model| Pass::begin(model, ops, &chunks, options.memory / 2, None);
    let (mut model_pass, mut reference_pass) = (begin(encoder)?, begin(reference)?);
    let mut blocks = vec![BlockErrors::default(); encoder.blueprint().blocks.len()];
    for (block, errors) in blocks.iter_mut().enumerate() {
        for (index, chunk) in chunks.iter().enumerate() {
            let mut expected = Vec::new();
            reference_pass.block(block, index, |x| expected.extend_from_slice(x))?;
            model_pass.block(block, index, |x| errors.add(x, &expected))?;
            step(chunk)?;
        }
    }
    let mut found = Found::new(encoder.readouts().len());
    for (index, chunk) in chunks.iter().enumerate() {
        let hidden = [model_pass.hidden(index)?, reference_pass.hidden(index)?];
        found.add_hidden(&hidden, chunk, encoder.hidden(), pooling);
        let both = encoder.readouts().iter().zip(reference.readouts()).zip(&mut found.readouts);
        for ((readout, of_reference), found) in both {
            found.add([&model_pass, &reference_pass], index, [readout, of_reference], &hidden);
        }
        step(chunk)?;
    }
    let cosines = found.cosines;
    let mean_cosine = cosines.iter().sum::<f64>() / cosines.len() as f64;
    if !mean_cosine.is_finite() {
        return Err(EvaluationError::NoEmbedding {
            cause: encoder.first_broken().map(|(tensor, value)| (tensor.to_owned(), value)),
        });
    }
    Ok(EncoderEvaluation {
        sequences: windows.len(),
        tokens: passed,
        window: options.window,
        seconds: start.elapsed().as_secs_f64(),
        pooling,
        mean_cosine,
        least_cosine: cosines.iter().copied().fold(f64::INFINITY, f64::min),
        hidden_decibels: found.hidden.decibels(),
        blocks: blocks.iter().map(BlockErrors::decibels).collect(),
        readouts: encoder
            .readouts()
            .iter()
            .zip(&found.readouts)
            .map(|(readout, found)| found.result(readout))
            .collect(),
    })
}

/// Returns whether both have the same readouts.
fn fit_readouts(encoder: &Decoder<'_>, reference: &Decoder<'_>) -> Result<(), EvaluationError> {
    let (model, others) = (encoder.readouts(), reference.readouts());
    if model.len() != others.len() {
        return Err(EvaluationError::Reference {
            what: "number of readouts",
            model: model.len(),
            reference: others.len(),
        });
    }
    let differs = |(a, b): &(&ReadoutLayers, &ReadoutLayers)| a.name != b.name || a.width != b.width;
    match model.iter().zip(others).find(differs) {
        None => Ok(()),
        Some((a, b)) => {
            Err(EvaluationError::Reference { what: "width of a readout", model: a.width, reference: b.width })
        }
    }
}

/// Sums over all texts.
struct Found {
    cosines: Vec<f64>,
    hidden: BlockErrors,
    readouts: Vec<FoundReadout>,
}

impl Found {
    fn new(readouts: usize) -> Found {
        Found { cosines: Vec::new(), hidden: BlockErrors::default(), readouts: vec![FoundReadout::default(); readouts] }
    }

    fn add_hidden(&mut self, [model, reference]: &[Vec<f32>; 2], chunk: &Chunk, width: usize, pooling: Pooling) {
        self.hidden.add(model, reference);
        let sequences = |hidden: &'_ [f32]| -> Vec<Vec<f32>> {
            hidden.chunks_exact(chunk.length * width).map(|sequence| pooling.embedding(sequence, width)).collect()
        };
        let both = sequences(model).into_iter().zip(sequences(reference));
        self.cosines.extend(both.map(|(a, b)| cosine(&a, &b)));
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Sums over the rows of a readout.
#[derive(Clone, Default)]
struct FoundReadout {
    errors: BlockErrors,
    rows: usize,
    agreeing: usize,
}

impl FoundReadout {
    /// Takes in a chunk, of which so many rows exist at a time as are not too wide.
    fn add(&mut self, passes: [&Pass<'_, '_>; 2], chunk: usize, readouts: [&ReadoutLayers; 2], hidden: &[Vec<f32>; 2]) {
        let rows: Vec<Vec<f32>> = (0..2).map(|at| passes[at].readout_rows(chunk, readouts[at], &hidden[at])).collect();
        let width = readouts[0].width;
        let read = readouts.map(|readout| readout.parts().1.map_or(width, |layer| layer.columns));
        let piece = (LOGITS / width.max(1)).max(1);
        let pieces = rows[0].chunks(piece * read[0]).zip(rows[1].chunks(piece * read[1]));
        for (model, reference) in pieces {
            let values = |at: usize, rows: &[f32]| passes[at].readout_values(readouts[at], rows, 0..width);
            let (model, reference) = (values(0, model), values(1, reference));
            self.errors.add(&model, &reference);
            for (model, reference) in model.chunks_exact(width).zip(reference.chunks_exact(width)) {
                self.rows += 1;
                self.agreeing += usize::from(largest(model) == largest(reference));
            }
        }
    }

    fn result(&self, readout: &ReadoutLayers) -> ReadoutComparison {
        ReadoutComparison {
            name: readout.name,
            decibels: self.errors.decibels(),
            agreement: self.agreeing as f64 / self.rows as f64,
        }
    }
}

fn largest(row: &[f32]) -> Option<usize> {
    row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeddings_are_pooled_and_compared() {
        let rows = [1.0, 0.0, 0.0, 3.0];
        assert_eq!(Pooling::Mean.embedding(&rows, 2), [0.5, 1.5]);
        assert_eq!(Pooling::First.embedding(&rows, 2), [1.0, 0.0]);
        assert!((cosine(&[1.0, 1.0], &[1.0, 0.0]) - 0.5f64.sqrt()).abs() < 1e-12);
        assert_eq!(largest(&[1.0, 3.0, 2.0]), Some(1));
    }
}
