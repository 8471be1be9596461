//! Decoders as graphs on text: perplexity, and the distance from a float graph. Windows and scores are those of checkpoints.

use crate::error::{Error, ErrorKind};
use crate::events::{Reporter, Stage, Unit};
use crate::job::Limits;
use crate::memory;
use crate::paths::full_path;
use crate::text::{shown, size};
use kvant_container::onnx::{ModelProto, read};
use kvant_container::{Remedy, directory_of};
use kvant_data::calibration::{CalibrationDataError, Documents};
use kvant_forward::evaluation::{
    Evaluation as TextEvaluation, EvaluationError, JoinedSequences, LogitsEvaluation, Window, WindowLogits,
    default_window,
};
use kvant_forward::forward::ForwardError;
use kvant_model::model_config::ModelConfig;
use kvant_onnx::decoder::{DecoderError, DecoderGraph, DecoderSession, context_of, least_memory};
use kvant_onnx::error::QuantizeError;
use kvant_onnx::graph::check;
use kvant_onnx::runtime::RuntimeOptions;
use serde::Serialize;
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// A decoder's graph to evaluate on text.
pub struct TextRequest<'a> {
    /// The graph.
    pub model: &'a Path,
    /// The graph to compare it with.
    pub reference: Option<&'a Path>,
    /// The text or tokens.
    pub data: &'a Path,
    /// The field of a row that holds them; found by its name by default.
    pub column: Option<&'a str>,
    /// The path of the tokenizer; `None` is found beside the graphs.
    pub tokenizer: Option<&'a Path>,
    /// Tokens of a window.
    pub seq_len: Option<usize>,
    /// Tokens from the start of one window to that of the next.
    pub stride: Option<usize>,
    /// The most windows, of which the first ones are taken.
    pub most: Option<usize>,
}

/// A decoder's graph with the windows that it runs on, and its reference behind it if there is one.
pub struct PreparedText {
    models: Vec<ModelProto>,
    /// The tokens of the text, in windows.
    pub sequences: JoinedSequences,
    vocabulary: Option<usize>,
}

/// The evaluation of a graph on text.
pub struct TextResult {
    /// The perplexity, and how far the graph is from its reference.
    pub found: TextEvaluation,
    /// The engine that ran it, with its version.
    pub engine: String,
}

/// Prepares the evaluation of the graph of a decoder, beside its reference if there is one.
///
/// # Errors
/// Graphs that are no decoders, vocabularies that differ, no tokenizer; errors of the text.
pub fn prepare(request: &TextRequest<'_>, reporter: &Reporter<'_>) -> Result<PreparedText, Error> {
    let paths: Vec<&Path> = std::iter::once(request.model).chain(request.reference).collect();
    let models = paths.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    let decoders = paths.iter().zip(&models).map(|(path, model)| decoder(path, model));
    let decoders = decoders.collect::<Result<Vec<_>, Error>>()?;
    let vocabulary = vocabulary(&decoders)?;
    let home = Home::of(&paths, request.tokenizer);
    let documents = documents(request, &home, &paths, vocabulary.unwrap_or(usize::MAX))?;
    documents.warnings.iter().for_each(|warning| reporter.warning(&warning.to_string()));
    let fixed = decoders.iter().find_map(DecoderGraph::length);
    let window = request.seq_len.or(fixed).unwrap_or_else(|| default_window(home.longest));
    if let Some(longest) = home.longest.filter(|longest| window > *longest) {
        reporter.note(&format!("windows of {window} tokens are longer than the {longest} that the model was made for"));
    }
    let mut sequences = JoinedSequences::of_documents(&documents.documents, window, request.stride)?;
    decoders.iter().try_for_each(|decoder| decoder.check_length(window))?;
    models.iter().try_for_each(|model| refuse_exhausting(model, window.min(sequences.tokens.len())))?;
    // Rows and the last of overlapping windows may be shorter, and are dropped as a tail where a graph takes one length.
    sequences.windows.retain(|piece| fixed.is_none() || piece.tokens.len() == window);
    if sequences.windows.is_empty() {
        return Err(EvaluationError::TooShort { tokens: sequences.tokens.len(), window }.into());
    }
    Ok(PreparedText { models, sequences: sequences.first(request.most), vocabulary })
}

/// The window of the graph of a decoder, where none is asked for: that which it takes alone, or the default for its context.
///
/// # Errors
/// Graphs that are no decoders.
pub fn window_of(graph: &Path, tokenizer: Option<&Path>) -> Result<usize, Error> {
    let fixed = decoder(graph, &read(graph)?)?.length();
    Ok(fixed.unwrap_or_else(|| default_window(Home::of(&[graph], tokenizer).longest)))
}

impl PreparedText {
    /// The vocabulary that the graphs state.
    pub fn vocabulary(&self) -> Option<usize> {
        self.vocabulary
    }

    /// Runs the graph.
    ///
    /// # Errors
    /// Errors of the engine; vocabularies that differ.
    pub fn run(&self, limits: &Limits, reporter: &Reporter<'_>) -> Result<TextResult, Error> {
        let JoinedSequences { tokens, windows } = &self.sequences;
        let text = Text { tokens, windows, vocabulary: self.vocabulary };
        let models: Vec<&ModelProto> = self.models.iter().collect();
        let progress = reporter.stage(Stage::Evaluation, Unit::Tokens);
        let watch = progress.watch_cancelled();
        let runtime = limits.runtime();
        let (found, engine) = limits.pool()?.install(|| text.run(&models, &runtime, watch))?;
        Ok(TextResult { found, engine })
    }
}

/// Refuses sequences for which even one attention takes more memory than there is.
///
/// # Errors
/// Names both.
pub fn refuse_exhausting(model: &ModelProto, tokens: usize) -> Result<(), Error> {
    let needed = least_memory(model, tokens);
    let Some(available) = memory::available().filter(|available| needed > *available) else { return Ok(()) };
    let (needed, available) = (size::bytes(needed), size::bytes(available));
    let message = format!(
        "sequences of {tokens} tokens take more than {needed} of memory in the graph, and {available} are available"
    );
    let error = Error::new(ErrorKind::Invalid, message);
    Err(error.with_remedies(vec![Remedy::setting("seq-len", "give a smaller ‹seq-len›")]))
}

/// The documents of the request's data. Tokens need no tokenizer.
fn documents(request: &TextRequest<'_>, home: &Home, graphs: &[&Path], vocabulary: usize) -> Result<Documents, Error> {
    let tokenizer = home.tokenizer(graphs);
    let directory = tokenizer.as_deref().unwrap_or_else(|_| directory_of(request.model));
    match (Documents::load(request.data, request.column, directory, vocabulary), tokenizer) {
        (Err(CalibrationDataError::Tokenizer(_)), Err(missing)) => Err(missing),
        (documents, _) => Ok(documents?),
    }
}

/// How well a quantized decoder predicts text, beside its float graph.
#[derive(Debug, Serialize)]
pub struct TextQuality {
    /// Scored tokens.
    pub tokens: usize,
    /// The perplexity.
    pub perplexity: f64,
    /// That of the float graph.
    pub reference_perplexity: f64,
    /// The mean Kullback-Leibler divergence from the float graph, in nats.
    pub kl_mean: f64,
    /// Its standard error.
    pub kl_mean_error: f64,
    /// The share of tokens for which both graphs find the same one likeliest.
    pub top1_agreement: f64,
}

/// Measures a quantized decoder beside its float graph, in this order, on sequences of tokens.
///
/// # Errors
/// Those of [`PreparedText::run`], and sequences that predict nothing.
pub fn distance(
    models: [&ModelProto; 2],
    sequences: &[Vec<u32>],
    runtime: &RuntimeOptions,
    watch: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<TextQuality, Error> {
    let JoinedSequences { tokens, windows } = JoinedSequences::of(sequences)?;
    let text = Text { tokens: &tokens, windows: &windows, vocabulary: None };
    let (found, _) = text.run(&models, runtime, watch)?;
    let comparison = found.comparison.ok_or_else(|| Error::internal("no float graph to compare with".to_owned()))?;
    Ok(TextQuality {
        tokens: found.tokens,
        perplexity: found.perplexity,
        reference_perplexity: comparison.reference_perplexity,
        kl_mean: comparison.kl_mean.value,
        kl_mean_error: comparison.kl_mean.error,
        top1_agreement: comparison.top1_agreement,
    })
}

/// The decoder that a graph is.
fn decoder(path: &Path, model: &ModelProto) -> Result<DecoderGraph, Error> {
    check(model).map_err(QuantizeError::from)?;
    DecoderGraph::of(&model.graph).map_err(|error| of_graph(path, error))
}

/// An error with the name of its graph.
fn of_graph(path: &Path, error: DecoderError) -> Error {
    let error = Error::from(error);
    Error { message: format!("{}: {}", shown(path), error.message), ..error }
}

/// The vocabulary that all graphs state.
fn vocabulary(decoders: &[DecoderGraph]) -> Result<Option<usize>, EvaluationError> {
    let mut stated = decoders.iter().filter_map(DecoderGraph::vocabulary);
    match (stated.next(), stated.next()) {
        (Some(model), Some(reference)) if model != reference => Err(other_vocabulary(model, reference)),
        (first, _) => Ok(first),
    }
}

fn other_vocabulary(model: usize, reference: usize) -> EvaluationError {
    EvaluationError::Reference { what: "vocabulary", model, reference }
}

fn refuse_unknown(tokens: &[u32], vocabulary: usize) -> Result<(), EvaluationError> {
    match tokens.iter().find(|token| **token as usize >= vocabulary) {
        Some(token) => Err(ForwardError::Token { token: *token, vocabulary }.into()),
        None => Ok(()),
    }
}

/// A text in windows.
struct Text<'t> {
    tokens: &'t [u32],
    windows: &'t [Window],
    /// The size of the vocabulary, where the graphs state it.
    vocabulary: Option<usize>,
}

impl Text<'_> {
    /// Runs a model, and the reference behind it if there is one, window by window. Of the reference the logits of one window are kept.
    fn run(
        &self,
        models: &[&ModelProto],
        options: &RuntimeOptions,
        mut watch: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(TextEvaluation, String), Error> {
        let sessions = models.iter().map(|model| DecoderSession::open(model, options));
        let mut sessions = sessions.collect::<Result<Vec<_>, _>>()?.into_iter();
        let (Some(mut model), mut reference) = (sessions.next(), sessions.next()) else {
            return Err(Error::internal("no graph to evaluate".to_owned()));
        };
        let all: usize = self.windows.iter().map(|window| window.tokens.len()).sum();
        let (mut found, mut done) = (LogitsEvaluation::new(self.tokens, self.windows), 0);
        for window in self.windows {
            if watch(done as u64, all as u64).is_break() {
                return Err(EvaluationError::Cancelled.into());
            }
            let tokens = &self.tokens[window.tokens.clone()];
            let kept = reference.as_mut().map(|reference| reference.logits(tokens, <[f32]>::to_vec)).transpose()?;
            let kept = kept.as_deref();
            model.logits(tokens, |model| {
                self.check(tokens.len(), model, kept)?;
                found.add(WindowLogits { model, reference: kept })
            })??;
            done += tokens.len();
        }
        let _ = watch(done as u64, all as u64);
        Ok((found.finish()?, model.engine()))
    }

    /// Refuses logits of different vocabularies, and of one that has not all tokens of the text.
    fn check(&self, tokens: usize, model: &[f32], reference: Option<&[f32]>) -> Result<(), EvaluationError> {
        let of = |logits: &[f32]| logits.len() / tokens.max(1);
        match reference {
            Some(reference) if reference.len() != model.len() => Err(other_vocabulary(of(model), of(reference))),
            _ if self.vocabulary == Some(of(model)) => Ok(()),
            _ => refuse_unknown(self.tokens, of(model)),
        }
    }
}

/// The paths at which the files of a graph's model may be: a named one, else the graph's own directory, the one above it, where exporters
/// put graphs into a folder, and those of the reference.
pub struct Home {
    named: Option<PathBuf>,
    directories: Vec<PathBuf>,
    /// Tokens of the longest context, where config.json, genai_config.json or the graph says it.
    pub longest: Option<usize>,
}

impl Home {
    /// The paths for graphs, with that of the tokenizer if it is named.
    pub fn of(graphs: &[&Path], named: Option<&Path>) -> Home {
        let both = graphs.iter().flat_map(|graph| {
            let own = full_path(directory_of(graph));
            let above = own.parent().map(Path::to_path_buf);
            std::iter::once(own).chain(above)
        });
        let directories: Vec<PathBuf> = both.collect();
        let configured = named.into_iter().chain(directories.iter().map(PathBuf::as_path)).find_map(longest);
        let of_graph = || graphs.iter().filter_map(|graph| context_of(&read(graph).ok()?)).min();
        let longest = configured.or_else(of_graph);
        Home { named: named.map(Path::to_path_buf), directories, longest }
    }

    /// The path of the tokenizer: as it is named, or the directory with tokenizer.json.
    ///
    /// # Errors
    /// There is none.
    pub fn tokenizer(&self, graphs: &[&Path]) -> Result<PathBuf, Error> {
        let found = || self.directories.iter().find(|directory| directory.join("tokenizer.json").is_file()).cloned();
        self.named.clone().or_else(found).ok_or_else(|| no_tokenizer(graphs))
    }
}

fn no_tokenizer(graphs: &[&Path]) -> Error {
    let graphs: Vec<String> = graphs.iter().map(|graph| shown(graph)).collect();
    let message = format!("there is no tokenizer.json beside {}, nor in the directory above", graphs.join(" or "));
    Error::new(ErrorKind::Invalid, message).with_remedies(vec![
        Remedy::setting("tokenizer", "name its directory with ‹tokenizer›"),
        Remedy::text("copy tokenizer.json of the model beside the graph"),
    ])
}

/// The longest context that a directory's configuration states: config.json of transformers, genai_config.json of onnxruntime-genai.
fn longest(directory: &Path) -> Option<usize> {
    let read =
        |name: &str| -> Option<Value> { serde_json::from_slice(&std::fs::read(directory.join(name)).ok()?).ok() };
    let of_transformers = || ModelConfig::from_json(&read("config.json")?).ok()?.max_positions;
    let of_genai = || usize::try_from(read("genai_config.json")?["model"]["context_length"].as_u64()?).ok();
    of_transformers().or_else(of_genai).filter(|longest| *longest > 1)
}
