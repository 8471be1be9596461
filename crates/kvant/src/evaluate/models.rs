//! Several models on the same data. Everything that can be refused is refused before the first one runs.
//!
//! Decoders of text run together: the reference runs once, and weights of one block of each model are in use at a time. Graphs, encoders, and
//! models of images or sounds run one after the other, each beside the reference, so that no more than two are in memory.

use super::choices;
use super::{Evaluation, EvaluationReport, TextReport, TextRun, run_graph};
use super::{note_long_windows, reference_is_graph, reference_is_no_graph, refuse_other_kind};
use crate::error::{Error, ErrorKind};
use crate::events::{Reporter, Stage, Unit};
use crate::images;
use crate::inspect::gguf::elements_and_bytes;
use crate::job::{self, Limits, Precision, Source, SourceKind};
use crate::onnx::data::is_text;
use crate::onnx::quantize::model_size;
use crate::onnx::text::{PreparedText, window_of};
use crate::paths::refuse_directory;
use crate::sounds;
use crate::text::shown;
use kvant_container::gguf::{GgufFile, parts_named};
use kvant_container::{Checkpoint, Remedy};
use kvant_data::calibration::{CalibrationDataError, Documents, TokenDocument};
use kvant_data::tokenizer::TokenizerError;
use kvant_forward::evaluation::{JoinedSequences, Options, check_comparable, default_window, evaluate_models};
use kvant_forward::forward::Decoder;
use kvant_model::network::TensorMeta;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Several models, measured on the same data.
pub struct ModelsReport {
    /// The model that they are compared with.
    pub reference: Option<ModelSize>,
    /// The models, in the order in which they were named.
    pub models: Vec<ModelResult>,
    /// Time taken, in seconds.
    pub seconds: f64,
}

/// One of several models.
pub struct ModelResult {
    /// The model.
    pub size: ModelSize,
    /// What was measured.
    pub report: EvaluationReport,
}

/// A model and its size.
#[derive(Clone, Debug)]
pub struct ModelSize {
    /// Its path, as it was named.
    pub path: PathBuf,
    /// Bytes of its tensors; of a graph those of its files.
    pub bytes: u64,
    /// `8 bytes / weights`, where the number of weights is known.
    pub bits_per_weight: Option<f64>,
}

pub(super) fn no_model() -> Error {
    Error::internal("no model was evaluated".to_owned())
}

/// Evaluates all models of an evaluation that names several.
pub(super) fn evaluate(evaluation: &Evaluation, reporter: &Reporter<'_>) -> Result<EvaluationReport, Error> {
    let start = Instant::now();
    check(evaluation)?;
    let models: Vec<&Path> = evaluation.models().collect();
    let sizes = models.iter().map(|model| size(model)).collect::<Result<Vec<_>, Error>>()?;
    let reference = evaluation.reference.as_deref().map(size).transpose()?;
    let reports = match evaluation.choices {
        true => {
            let found = choices::evaluate(evaluation, reporter)?.into_iter();
            found.map(|report| EvaluationReport::Choices(Box::new(report))).collect()
        }
        false => reports(evaluation, &models, reporter)?,
    };
    let models = sizes.into_iter().zip(reports).map(|(size, report)| ModelResult { size, report }).collect();
    let seconds = start.elapsed().as_secs_f64();
    Ok(EvaluationReport::Models(Box::new(ModelsReport { reference, models, seconds })))
}

/// Refuses what cannot be meant.
fn check(evaluation: &Evaluation) -> Result<(), Error> {
    if !evaluation.source.adapters.is_empty() {
        let error = Error::new(ErrorKind::Usage, "‹lora› belongs to one model, and several are named");
        return Err(error.with_hint(Some("evaluate the model with the adapter alone, or merge the adapter".to_owned())));
    }
    let models: Vec<&Path> = evaluation.models().collect();
    for (index, model) in models.iter().enumerate() {
        if models[..index].iter().any(|earlier| same_model(earlier, model)) {
            let error = Error::new(ErrorKind::Usage, format!("{} is named twice", shown(model)));
            return Err(error.with_hint(Some("name each model once".to_owned())));
        }
    }
    Ok(())
}

/// Whether paths name one model: a file or a folder, or parts of one GGUF model.
fn same_model(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        parts_named(&path).into_iter().next().unwrap_or(path)
    };
    real(a) == real(b)
}

/// The size of a model, from its headers.
fn size(model: &Path) -> Result<ModelSize, Error> {
    let (bytes, weights) = match SourceKind::of(model) {
        SourceKind::Graph => (model_size(model), None),
        SourceKind::Gguf => {
            let (elements, bytes) = elements_and_bytes(&GgufFile::open(model)?);
            (bytes, Some(elements))
        }
        _ => {
            let checkpoint = job::open_whole(model)?;
            let elements = |meta: &TensorMeta| meta.shape.iter().map(|length| *length as u64).product::<u64>();
            let decoder = Decoder::open_any(&checkpoint).ok();
            let weights = decoder.map(|decoder| decoder.tensors().meta().iter().map(elements).sum::<u64>());
            (checkpoint.tensors().map(|tensor| tensor.byte_len()).sum(), weights)
        }
    };
    let bits_per_weight = weights.filter(|weights| *weights > 0).map(|weights| bytes as f64 * 8.0 / weights as f64);
    Ok(ModelSize { path: model.to_owned(), bytes, bits_per_weight })
}

/// The error of one of the models, with its name in front unless a path in the model stands there.
pub(super) fn of_model(model: &Path, error: impl Into<Error>) -> Error {
    let error = error.into();
    let name = shown(model);
    let is_named = error.message.strip_prefix(&name).is_some_and(|rest| rest.starts_with([':', '/', '\\']));
    match is_named {
        true => error,
        false => Error { message: format!("{name}: {}", error.message), ..error },
    }
}

fn is_graph(model: &Path) -> bool {
    SourceKind::of(model) == SourceKind::Graph
}

/// Evaluates the models, and returns their reports in their order.
fn reports(evaluation: &Evaluation, models: &[&Path], reporter: &Reporter<'_>) -> Result<Vec<EvaluationReport>, Error> {
    check_reference(evaluation, models)?;
    if models.iter().any(|model| is_graph(model)) && !is_text(&evaluation.data) {
        return graphs_on_samples(evaluation, models, reporter);
    }
    let checkpoints = models.iter().filter(|model| !is_graph(model));
    let checkpoints = checkpoints.map(|model| job::open(model).map_err(|error| of_model(model, error)));
    let checkpoints = checkpoints.collect::<Result<Vec<Checkpoint>, Error>>()?;
    let mut names = models.iter().filter(|model| !is_graph(model)).zip(&checkpoints);
    let reads_samples =
        |checkpoint: &Checkpoint| images::shape(checkpoint).is_some() || sounds::input(checkpoint).is_some();
    match names.find(|(_, checkpoint)| reads_samples(checkpoint)) {
        Some((model, _)) if checkpoints.len() < models.len() || !checkpoints.iter().all(reads_samples) => {
            let error = Error::new(
                ErrorKind::Usage,
                format!("{} reads images or sounds, and other models read text", shown(model)),
            );
            Err(error.with_hint(Some("evaluate models that read the same data together".to_owned())))
        }
        Some(_) => one_by_one(evaluation, models, reporter),
        None => texts(evaluation, models, &checkpoints, reporter),
    }
}

/// Refuses a reference that some model cannot be compared with.
fn check_reference(evaluation: &Evaluation, models: &[&Path]) -> Result<(), Error> {
    let Some(reference) = evaluation.reference.as_deref() else { return Ok(()) };
    match models.iter().find(|model| is_graph(model) != is_graph(reference)) {
        None => Ok(()),
        Some(model) if is_graph(model) => Err(of_model(model, reference_is_no_graph(reference))),
        Some(model) => Err(of_model(model, reference_is_graph(reference))),
    }
}

/// Graphs on arrays or images.
fn graphs_on_samples(
    evaluation: &Evaluation,
    models: &[&Path],
    reporter: &Reporter<'_>,
) -> Result<Vec<EvaluationReport>, Error> {
    if let Some(model) = models.iter().find(|model| !is_graph(model)) {
        let message = format!("{} reads text, and the data of ONNX graphs are samples", shown(model));
        let error = Error::new(ErrorKind::Usage, message);
        return Err(error.with_hint(Some("evaluate graphs on samples without other models".to_owned())));
    }
    for model in models {
        let graph = kvant_container::onnx::read(model).map_err(|error| of_model(model, error))?;
        kvant_onnx::graph::check(&graph)
            .map_err(|error| of_model(model, kvant_onnx::error::QuantizeError::from(error)))?;
    }
    one_by_one(evaluation, models, reporter)
}

/// The models one after the other, each beside the reference.
fn one_by_one(
    evaluation: &Evaluation,
    models: &[&Path],
    reporter: &Reporter<'_>,
) -> Result<Vec<EvaluationReport>, Error> {
    let run = |model: &&Path| {
        let source = Source::new(*model);
        let alone = Evaluation { source, others: Vec::new(), page: None, ..evaluation.clone() };
        alone.one(reporter).map_err(|error| of_model(model, error))
    };
    models.iter().map(run).collect()
}

/// Models of text: decoders, encoders, encoder-decoders, and the graphs of decoders.
fn texts(
    evaluation: &Evaluation,
    models: &[&Path],
    checkpoints: &[Checkpoint],
    reporter: &Reporter<'_>,
) -> Result<Vec<EvaluationReport>, Error> {
    refuse_directory("‹data›", &evaluation.data)?;
    let (graphs, names): (Vec<&Path>, Vec<&Path>) = models.iter().copied().partition(|model| is_graph(model));
    let original = evaluation.reference.as_deref().filter(|path| !is_graph(path)).map(job::open).transpose()?;
    let reference = original.as_ref().map(Decoder::open_any).transpose()?;
    let decoders = decoders(&names, checkpoints, reference.as_ref())?;
    match (decoders.iter().any(Decoder::is_encoder), graphs.first()) {
        (true, Some(graph)) => {
            let message = format!("{} is an encoder, and {} a decoder", shown(names[0]), shown(graph));
            return Err(Error::new(ErrorKind::Usage, message).with_hint(Some("evaluate them apart".to_owned())));
        }
        (true, None) => return one_by_one(evaluation, models, reporter),
        (false, None) => evaluation.refuse_settings_of_graphs_alone()?,
        (false, Some(_)) => {}
    }
    let window = match evaluation.seq_len {
        Some(window) => window,
        None => common_window(evaluation, &decoders, &graphs)?,
    };
    let prepared = prepared_graphs(evaluation, &graphs, window, !names.is_empty(), reporter)?;
    same_vocabulary(&names, &decoders, &graphs, &prepared)?;
    let Some(documents) = documents(evaluation, &names, checkpoints, &decoders, reporter)? else {
        return one_by_one(evaluation, models, reporter);
    };
    let options = evaluation.windows(window);
    same_tokens_in_graphs(&names, &documents, options, graphs.iter().copied().zip(&prepared))?;
    reporter.started();
    let mut of_checkpoints = Vec::new();
    if !decoders.is_empty() {
        note_long_windows(window, decoders.iter().filter_map(Decoder::longest).min(), reporter);
        let progress = reporter.stage(Stage::Evaluation, Unit::Tokens);
        let (watch, ops) = (progress.watch_cancelled(), evaluation.precision.ops());
        let all: Vec<&Decoder<'_>> = decoders.iter().collect();
        let work = || evaluate_models(&all, reference.as_ref(), &ops, &documents, options, watch);
        of_checkpoints = evaluation.limits.pool()?.install(work)?;
    }
    let mut of_checkpoints = of_checkpoints.into_iter().zip(&decoders).map(|(found, decoder)| {
        let run = TextRun::Forward { activations: decoder.quantized_activations() };
        TextReport::new(found, run)
    });
    let mut of_graphs = prepared.iter();
    let report = |model: &&Path| {
        let report = match is_graph(model) {
            true => of_graphs.next().map(|graph| run_graph(graph, &evaluation.limits, reporter)).transpose()?,
            false => of_checkpoints.next(),
        };
        Ok(EvaluationReport::Text(Box::new(report.ok_or_else(no_model)?)))
    };
    models.iter().map(report).collect()
}

/// The decoders of checkpoints, which can all be compared with the reference.
fn decoders<'a>(
    names: &[&Path],
    checkpoints: &'a [Checkpoint],
    reference: Option<&Decoder<'_>>,
) -> Result<Vec<Decoder<'a>>, Error> {
    let open = |(model, checkpoint): (&&Path, &'a Checkpoint)| {
        let decoder = Decoder::open_any(checkpoint).map_err(|error| of_model(model, error))?;
        refuse_other_kind(&decoder, reference).map_err(|error| of_model(model, error))?;
        if let Some(reference) = reference {
            check_comparable(&decoder, reference).map_err(|error| of_model(model, error))?;
        }
        Ok(decoder)
    };
    names.iter().zip(checkpoints).map(open).collect()
}

/// The graphs of decoders with the windows that they run on. Where there are other models, settings of these do not matter here.
fn prepared_graphs(
    evaluation: &Evaluation,
    graphs: &[&Path],
    window: usize,
    has_others: bool,
    reporter: &Reporter<'_>,
) -> Result<Vec<PreparedText>, Error> {
    let prepare = |graph: &&Path| {
        let source = Source::new(*graph);
        let mut alone = Evaluation { source, others: Vec::new(), seq_len: Some(window), ..evaluation.clone() };
        if has_others {
            (alone.precision, alone.limits.memory) = (Precision::default(), Limits::default().memory);
        }
        alone.prepare_graph(reporter).map_err(|error| of_model(graph, error))
    };
    graphs.iter().map(prepare).collect()
}

/// The documents as the tokenizers of all checkpoints read them; `None` where there are images in them. Those without a tokenizer read what that
/// of the first one reads.
fn documents(
    evaluation: &Evaluation,
    names: &[&Path],
    checkpoints: &[Checkpoint],
    decoders: &[Decoder<'_>],
    reporter: &Reporter<'_>,
) -> Result<Option<Vec<TokenDocument>>, Error> {
    let (Some(first), Some(decoder), Some(checkpoint)) = (names.first(), decoders.first(), checkpoints.first()) else {
        return Ok(Some(Vec::new()));
    };
    let images = decoder.text_images(checkpoint, evaluation.with_preprocessing());
    let (column, vocabulary) = (evaluation.column.as_deref(), decoder.vocabulary());
    let tokenizer = evaluation.tokenizer.as_deref().unwrap_or(first);
    let found = Documents::load_with_images(&evaluation.data, column, tokenizer, vocabulary, images)
        .map_err(|error| of_model(first, error))?;
    found.warnings.iter().for_each(|warning| reporter.warning(&warning.to_string()));
    if !found.images.is_empty() {
        return Ok(None);
    }
    let others = names.iter().skip(1).filter(|_| evaluation.tokenizer.is_none());
    for model in others {
        match Documents::load(&evaluation.data, column, model, vocabulary) {
            Ok(own) if own.documents != found.documents => return Err(other_tokens(first, model)),
            Ok(_) => {}
            Err(CalibrationDataError::Tokenizer(TokenizerError::Missing { .. })) => {
                let (model, first) = (shown(model), shown(first));
                reporter.note(&format!("{model} has no tokenizer: it reads the tokens of {first}"));
            }
            Err(error) => return Err(of_model(model, error)),
        }
    }
    Ok(Some(found.documents))
}

/// Refuses graphs whose tokenizers read the text differently than that of the first model.
fn same_tokens_in_graphs<'g>(
    names: &[&Path],
    documents: &[TokenDocument],
    options: Options,
    graphs: impl Iterator<Item = (&'g Path, &'g PreparedText)>,
) -> Result<(), Error> {
    let mut expected = None;
    if let Some(first) = names.first() {
        let sequences = JoinedSequences::of_documents(documents, options.window, options.stride)?;
        expected = Some((*first, sequences.first(options.most).tokens));
    }
    for (graph, prepared) in graphs {
        let tokens = &prepared.sequences.tokens;
        match &expected {
            None => expected = Some((graph, tokens.clone())),
            Some((first, expected)) if expected != tokens => return Err(other_tokens(first, graph)),
            Some(_) => {}
        }
    }
    Ok(())
}

/// The longest window that all models take.
fn common_window(evaluation: &Evaluation, decoders: &[Decoder<'_>], graphs: &[&Path]) -> Result<usize, Error> {
    let mut windows: Vec<usize> = decoders.iter().map(|decoder| default_window(decoder.longest())).collect();
    for graph in graphs {
        windows.push(window_of(graph, evaluation.tokenizer.as_deref()).map_err(|error| of_model(graph, error))?);
    }
    windows.into_iter().min().ok_or_else(no_model)
}

/// Refuses models of different vocabularies.
fn same_vocabulary(
    names: &[&Path],
    decoders: &[Decoder<'_>],
    graphs: &[&Path],
    prepared: &[PreparedText],
) -> Result<(), Error> {
    let of_graphs = graphs.iter().zip(prepared).filter_map(|(graph, prepared)| Some((graph, prepared.vocabulary()?)));
    let mut all = names.iter().zip(decoders).map(|(name, decoder)| (name, decoder.vocabulary())).chain(of_graphs);
    let Some((first, expected)) = all.next() else { return Ok(()) };
    match all.find(|(_, vocabulary)| *vocabulary != expected) {
        None => Ok(()),
        Some((other, vocabulary)) => {
            let message = format!(
                "the vocabulary of {} is {expected}, that of {} {vocabulary}: perplexities of different tokens are not comparable",
                shown(first),
                shown(other)
            );
            let error = Error::new(ErrorKind::Usage, message);
            Err(error.with_hint(Some("evaluate models of the same tokenizer together".to_owned())))
        }
    }
}

fn other_tokens(first: &Path, other: &Path) -> Error {
    let message = format!(
        "the tokenizers of {} and {} read the data differently: perplexities of different tokens are not comparable",
        shown(first),
        shown(other)
    );
    let remedy = Remedy::setting("tokenizer", "name the tokenizer of all of them with ‹tokenizer›");
    Error::new(ErrorKind::Usage, message).with_remedies(vec![remedy])
}
