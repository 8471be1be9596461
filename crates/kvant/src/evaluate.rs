//! Measuring how well models predict a text or answer questions, or how far encoders or graphs are from their float model.

mod changed;
mod choices;
mod json;
mod models;
mod timing;

pub use changed::ChangedTexts;
pub use choices::{ChoicesComparison, ChoicesReport};
pub use models::{ModelResult, ModelSize, ModelsReport};

use crate::cancel::CancelToken;
use crate::ending::concluded_reading;
use crate::error::{Error, ErrorKind};
use crate::evaluated_data::EvaluatedData;
use crate::events::{Events, Reporter, Stage, Unit};
use crate::images::{self, IMAGES, Media, SOUNDS, TowerRun};
use crate::job::{self, Limits, Precision, Source, SourceKind};
use crate::onnx::data::{is_text, of_path};
use crate::onnx::refuse_idle_library;
use crate::onnx::text::{PreparedText, TextRequest, TextResult, prepare};
use crate::page;
use crate::paths::{MODEL, Paths, data_file, refuse_directory, refuse_missing};
use crate::settings::first_given;
use crate::sounds;
use crate::text::shown;
use kvant_container::Checkpoint;
use kvant_container::onnx::{ModelProto, read};
use kvant_container::{Remedy, model_directory};
use kvant_data::calibration::{Documents, TokenDocument};
use kvant_data::images::{ImageOptions, ImageProcessor};
use kvant_data::sounds::{SoundInput, SoundOptions};
use kvant_forward::evaluation::{
    EncoderEvaluation, Evaluation as TextEvaluation, Options, Pooling, default_window, evaluate_documents,
    evaluate_encoder, evaluate_scored,
};
use kvant_forward::forward::Decoder;
use kvant_onnx::data::{DataOptions, inputs};
use kvant_onnx::error::QuantizeError;
use kvant_onnx::evaluation::{Compared, Report as GraphEvaluation, Timing, evaluate as evaluate_graph, widened};
use kvant_onnx::graph::check;
use kvant_onnx::runtime::RuntimeChoice;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An evaluation of a model, or of several on the same data.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// A float or quantized checkpoint, a GGUF file, or a quantized graph.
    pub source: Source,
    /// Further models, which are measured on the same data.
    pub others: Vec<PathBuf>,
    /// A file in a format of calibration data, or of text with another name; for models of images or sounds a file or folder of these or of
    /// arrays; for graphs that are no decoders arrays, images, or `random`.
    pub data: PathBuf,
    /// Whether the data are questions with choices, and the model answers them: see [`Questions`](kvant_data::calibration::Questions).
    pub choices: bool,
    /// The field of a row that holds its text, conversation or tokens; found by its name by default.
    pub column: Option<String>,
    /// The source of this model, to compare with. Required for graphs on arrays or images.
    pub reference: Option<PathBuf>,
    /// The path of the tokenizer; `None` is the model, and for a graph its directory or the one above.
    pub tokenizer: Option<PathBuf>,
    /// Tokens of a window; `None` is 2048, or as many as the model takes if these are fewer.
    pub seq_len: Option<usize>,
    /// Tokens from the start of one window to that of the next; `None` is as long as a window.
    pub stride: Option<usize>,
    /// The precision of activations.
    pub precision: Precision,
    /// The array of a graph's data with the class of each sample.
    pub labels: Option<String>,
    /// The path for a report for people, in HTML (.html) or Markdown (.md).
    pub page: Option<PathBuf>,
    /// Windows of a text, questions, samples of a graph's data, images or sounds to take, the first ones; `None` is all.
    pub num_samples: Option<usize>,
    /// The preprocessing of images for a graph.
    pub preprocess: Option<String>,
    /// Whether the time of inferences is measured, of graphs. Then `data` may be empty: the graph is timed on made-up inputs, and nothing
    /// else is measured.
    pub time: bool,
    /// Resources.
    pub limits: Limits,
}

/// The measurement.
pub enum EvaluationReport {
    /// Of a language model.
    Text(Box<TextReport>),
    /// Of an encoder.
    Encoder(Box<EncoderReport>),
    /// Of a graph.
    Graph(Box<GraphEvaluation>),
    /// Of the time that a graph takes, alone.
    Time(Box<Timing>),
    /// Of a language model that answers questions.
    Choices(Box<ChoicesReport>),
    /// Of several models.
    Models(Box<ModelsReport>),
}

impl EvaluationReport {
    /// Says which file texts or questions were read from.
    fn set_data(&mut self, data: &Option<EvaluatedData>) {
        match self {
            EvaluationReport::Text(report) => report.data.clone_from(data),
            EvaluationReport::Choices(report) => report.data.clone_from(data),
            EvaluationReport::Models(report) => report.models.iter_mut().for_each(|model| model.report.set_data(data)),
            EvaluationReport::Encoder(_) | EvaluationReport::Graph(_) | EvaluationReport::Time(_) => {}
        }
    }
}

/// Perplexity of a language model on a text.
pub struct TextReport {
    /// The perplexity, and how far the model is from its reference.
    pub found: TextEvaluation,
    /// How the model was run.
    pub run: TextRun,
    /// The text.
    pub data: Option<EvaluatedData>,
    /// The texts of the tokens whose prediction differs most from the reference's, in the order of the comparison.
    pub changed: Vec<ChangedTexts>,
}

impl TextReport {
    /// What a run has found, without the text's file and the texts of tokens.
    fn new(found: TextEvaluation, run: TextRun) -> TextReport {
        TextReport { found, run, data: None, changed: Vec::new() }
    }
}

/// An encoder beside its reference, on texts, images or sounds.
pub struct EncoderReport {
    /// How far it is from its reference.
    pub found: EncoderEvaluation,
    /// The activations that are quantized, in words.
    pub activations: Vec<String>,
    /// What it was run on, if not on texts.
    pub media: Option<Media>,
}

/// How a language model was run on a text.
pub enum TextRun {
    /// Kvant's own forward pass.
    Forward {
        /// The activations that are quantized, in words.
        activations: Vec<String>,
    },
    /// The engine that ran the graph, with its version.
    Engine(String),
}

impl Evaluation {
    /// An evaluation with defaults for everything but the model and the data.
    pub fn new(source: Source, data: impl Into<PathBuf>) -> Evaluation {
        Evaluation {
            source,
            others: Vec::new(),
            data: data.into(),
            choices: false,
            column: None,
            reference: None,
            tokenizer: None,
            seq_len: None,
            stride: None,
            precision: Precision::F32,
            labels: None,
            page: None,
            num_samples: None,
            preprocess: None,
            time: false,
            limits: Limits::default(),
        }
    }

    /// Runs the model over the data.
    ///
    /// # Errors
    /// Whatever is wrong with the model, its tokenizer or the data.
    pub fn run(&self, events: &mut dyn Events, cancel: &CancelToken) -> Result<EvaluationReport, Error> {
        self.check_page()?;
        let mut report = concluded_reading(|| self.carry_out(&Reporter::new(events, cancel)))?;
        let data = EvaluatedData::of(&self.data);
        report.set_data(&data);
        changed::add_texts(&mut report, self);
        let named = |path: Option<&Path>| path.map_or_else(String::new, |path| shown(path).to_string());
        let data = Some(self.data.as_path()).filter(|data| !data.as_os_str().is_empty());
        let about = [
            ("model", named(Some(&self.source.model))),
            ("reference", named(self.reference.as_deref())),
            ("data", named(data)),
        ];
        let about = if self.others.is_empty() { &about[..] } else { &about[1..] };
        page::write(self.page.as_deref(), &self.source.model, "eval", about, || report.to_json())?;
        Ok(report)
    }

    /// Refuses a report that could not be written, would replace a file, or is in what is read.
    fn check_page(&self) -> Result<(), Error> {
        let Some(page) = self.page.as_deref() else { return Ok(()) };
        page::check_new(page)?;
        let mut paths = Paths::new(false, true);
        self.models().for_each(|model| paths.reads_model(model));
        paths.reads_adapters(&self.source.adapters);
        paths.reads("the data", data_file(self.source.kind(), &self.data).filter(|_| self.has_data()));
        if let Some(reference) = &self.reference {
            paths.reads_model(reference);
        }
        paths.writes_page("‹report›", Some(page))?;
        paths.check()
    }

    /// Returns whether there are data: timing alone needs none.
    fn has_data(&self) -> bool {
        !self.data.as_os_str().is_empty()
    }

    /// All models, in the order in which they were named.
    fn models(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(self.source.model.as_path()).chain(self.others.iter().map(PathBuf::as_path))
    }

    fn carry_out(&self, reporter: &Reporter<'_>) -> Result<EvaluationReport, Error> {
        let data = if self.choices { "‹choices›" } else { "‹data›" };
        let named = [
            (data, data_file(self.source.kind(), &self.data).filter(|_| self.has_data())),
            ("‹reference›", self.reference.as_deref()),
            ("‹tokenizer›", self.tokenizer.as_deref()),
        ];
        let named = named.into_iter().filter_map(|(what, path)| Some((what, path?)));
        let adapters = self.source.adapters.iter().map(|path| ("‹lora›", path.as_path()));
        timing::check(self)?;
        refuse_missing(self.models().map(|model| (MODEL, model)).chain(named).chain(adapters))?;
        if !self.others.is_empty() {
            return models::evaluate(self, reporter);
        }
        if self.choices {
            let found = choices::evaluate(self, reporter)?;
            let report = found.into_iter().next().ok_or_else(models::no_model)?;
            return Ok(EvaluationReport::Choices(Box::new(report)));
        }
        self.one(reporter)
    }

    /// A model alone.
    fn one(&self, reporter: &Reporter<'_>) -> Result<EvaluationReport, Error> {
        match self.source.kind() {
            SourceKind::Graph if self.time => timing::evaluate(self, reporter),
            SourceKind::Graph if is_text(&self.data) => {
                Ok(EvaluationReport::Text(Box::new(self.graph_text(reporter)?)))
            }
            SourceKind::Graph => Ok(EvaluationReport::Graph(Box::new(self.graph(reporter)?))),
            _ => self.checkpoint(reporter),
        }
    }

    fn checkpoint(&self, reporter: &Reporter<'_>) -> Result<EvaluationReport, Error> {
        if let Some(graph) = self.reference.as_deref().filter(|path| SourceKind::of(path) == SourceKind::Graph) {
            return Err(reference_is_graph(graph));
        }
        let checkpoint = self.source.open()?;
        if images::shape(&checkpoint).is_some() {
            return self.images(&checkpoint, reporter);
        }
        if let Some(input) = sounds::input(&checkpoint) {
            return self.sounds(&checkpoint, input, reporter);
        }
        self.refuse_settings_of_graphs_alone()?;
        refuse_directory("‹data›", &self.data)?;
        let mut decoder = Decoder::open_any(&checkpoint)?;
        let original = self.reference.as_deref().map(job::open).transpose()?;
        let mut reference = original.as_ref().map(Decoder::open_any).transpose()?;
        refuse_other_kind(&decoder, reference.as_ref())?;
        let tokenizer = self.tokenizer.as_deref().unwrap_or(&self.source.model);
        let images = decoder.text_images(&checkpoint, self.with_preprocessing());
        let data =
            Documents::load_with_images(&self.data, self.column.as_deref(), tokenizer, decoder.vocabulary(), images)?;
        data.warnings.iter().for_each(|warning| reporter.warning(&warning.to_string()));
        let options = self.windows(self.seq_len.unwrap_or_else(|| default_window(decoder.longest())));
        note_long_windows(options.window, decoder.longest(), reporter);
        reporter.started();
        let activations = decoder.quantized_activations();
        if !data.images.is_empty() {
            self.give_images((&mut decoder, &checkpoint), (&mut reference, original.as_ref()), &data, reporter)?;
        }
        let progress = reporter.stage(Stage::Evaluation, Unit::Tokens);
        let watch = progress.watch_cancelled();
        let ops = self.precision.ops();
        if let Some(reference) = reference.as_ref().filter(|_| decoder.is_encoder()) {
            let pooling = pooling(&self.source.model, self.reference.as_deref())?;
            let both = (&decoder, reference);
            let work = || evaluate_encoder(both, &ops, &data.documents, pooling, options, watch);
            let found = self.limits.pool()?.install(work)?;
            let report = EncoderReport { found, activations, media: None };
            return Ok(EvaluationReport::Encoder(Box::new(report)));
        }
        let work = || evaluate_documents(&decoder, reference.as_ref(), &ops, &data.documents, options, watch);
        let found = self.limits.pool()?.install(work)?;
        Ok(EvaluationReport::Text(Box::new(TextReport::new(found, TextRun::Forward { activations }))))
    }

    /// Windows of a length, as many as are to be taken.
    fn windows(&self, window: usize) -> Options {
        Options { window, stride: self.stride, most: self.num_samples, memory: self.limits.memory.0 }
    }

    /// Gives both models the images in the data.
    fn give_images<'a>(
        &self,
        (decoder, checkpoint): (&mut Decoder<'a>, &'a Checkpoint),
        (reference, original): (&mut Option<Decoder<'a>>, Option<&'a Checkpoint>),
        data: &Documents,
        reporter: &Reporter<'_>,
    ) -> Result<(), Error> {
        let given = [(self.stride.is_some(), "‹stride›")];
        refuse_given(&given, "does not apply to images in texts", "leave it out: each row is a window")?;
        let images = Arc::new(data.images.clone());
        let sequences = || data.documents.iter().map(|document| document.tokens.as_slice());
        let (precision, limits) = (self.precision, &self.limits);
        let how = TowerRun { stage: Stage::Evaluation, precision, limits, reporter };
        images::give(decoder, checkpoint, &images, sequences(), &how)?;
        match (reference, original) {
            (Some(reference), Some(original)) => images::give(reference, original, &images, sequences(), &how),
            _ => Ok(()),
        }
    }

    /// The first of the models that states how images are prepared.
    fn with_preprocessing(&self) -> &Path {
        let models = [Some(self.source.model.as_path()), self.reference.as_deref()].into_iter().flatten();
        let mut stating = models.filter(|model| ImageProcessor::of_model(model).is_ok());
        stating.next().unwrap_or(&self.source.model)
    }

    /// A model of images, on images.
    fn images(&self, checkpoint: &Checkpoint, reporter: &Reporter<'_>) -> Result<EvaluationReport, Error> {
        self.refuse_settings_of_graphs_alone()?;
        images::refuse_text_settings(IMAGES, &[(self.tokenizer.is_some(), "‹tokenizer›")])?;
        self.refuse_settings_of_windows(IMAGES)?;
        let mut model = Decoder::open_any(checkpoint)?;
        let original = self.reference.as_deref().map(job::open).transpose()?;
        let reference = original.as_ref().map(Decoder::open_any).transpose()?;
        refuse_other_kind(&model, reference.as_ref())?;
        let (Some(shape), Some(mut reference)) = (model.image_shape(), reference) else {
            return Err(Error::internal("a model of images without a shape or a reference".to_owned()));
        };
        let models = [Some(self.source.model.as_path()), self.reference.as_deref()];
        let models: Vec<&Path> = models.into_iter().flatten().collect();
        let options = ImageOptions { samples: self.num_samples, ..ImageOptions::default() };
        let images = images::open(&self.data, &models, shape, options)?;
        let sequences = model.give_images(Arc::clone(&images))?;
        reference.give_images(images)?;
        self.encoder_on((&model, &reference), sequences, IMAGES, reporter)
    }

    /// Refuses what only windows of text have.
    fn refuse_settings_of_windows(&self, media: Media) -> Result<(), Error> {
        images::refuse_text_settings(
            media,
            &[
                (self.seq_len.is_some(), "‹seq-len›"),
                (self.stride.is_some(), "‹stride›"),
                (self.column.is_some(), "‹column›"),
            ],
        )
    }

    /// A model of sounds, on sounds: an encoder beside its reference, or an encoder-decoder on the texts beside them.
    fn sounds(
        &self,
        checkpoint: &Checkpoint,
        input: SoundInput,
        reporter: &Reporter<'_>,
    ) -> Result<EvaluationReport, Error> {
        self.refuse_settings_of_graphs_alone()?;
        self.refuse_settings_of_windows(SOUNDS)?;
        let mut model = Decoder::open_any(checkpoint)?;
        let original = self.reference.as_deref().map(job::open).transpose()?;
        let mut reference = original.as_ref().map(Decoder::open_any).transpose()?;
        refuse_other_kind(&model, reference.as_ref())?;
        let models = [self.tokenizer.as_deref(), Some(self.source.model.as_path()), self.reference.as_deref()];
        let models: Vec<&Path> = models.into_iter().flatten().collect();
        let options = SoundOptions { samples: self.num_samples, ..SoundOptions::default() };
        if reference.as_ref().is_some_and(|reference| reference.sound_input() != Some(input)) {
            let message = "‹reference› reads other inputs than the model, which reads sounds";
            let remedy = Remedy::text("name the model that this one was made from");
            return Err(Error::new(ErrorKind::Usage, message).with_remedies(vec![remedy]));
        }
        let sounds = sounds::open(&self.data, &models, input, options)?;
        let sequences = sounds::give(&mut model, &sounds, &models, reporter)?;
        if let Some(reference) = &mut reference {
            reference.give_sounds(sounds)?;
        }
        if let Some(reference) = reference.as_ref().filter(|_| model.is_encoder()) {
            let sequences = sequences.into_iter().map(|sequence| sequence.tokens).collect();
            return self.encoder_on((&model, reference), sequences, SOUNDS, reporter);
        }
        reporter.started();
        let progress = reporter.stage(Stage::Evaluation, Unit::Tokens);
        let watch = progress.watch_cancelled();
        let (ops, memory) = (self.precision.ops(), self.limits.memory.0);
        let work = || evaluate_scored(&model, reference.as_ref(), &ops, &sequences, memory, watch);
        let found = self.limits.pool()?.install(work)?;
        let activations = model.quantized_activations();
        Ok(EvaluationReport::Text(Box::new(TextReport::new(found, TextRun::Forward { activations }))))
    }

    /// An encoder beside its reference, on the sequences of images or sounds that both were given.
    fn encoder_on(
        &self,
        (model, reference): (&Decoder<'_>, &Decoder<'_>),
        sequences: Vec<Vec<u32>>,
        media: Media,
        reporter: &Reporter<'_>,
    ) -> Result<EvaluationReport, Error> {
        let window = sequences.iter().map(Vec::len).max().unwrap_or(0);
        let documents: Vec<TokenDocument> =
            sequences.into_iter().map(|tokens| TokenDocument { tokens, is_row: true, has_images: false }).collect();
        reporter.started();
        let progress = reporter.stage(Stage::Evaluation, Unit::Tokens);
        let watch = progress.watch_cancelled();
        let (ops, both) = (self.precision.ops(), (model, reference));
        let options = Options { window, stride: None, most: None, memory: self.limits.memory.0 };
        let work = || evaluate_encoder(both, &ops, &documents, Pooling::Mean, options, watch);
        let found = self.limits.pool()?.install(work)?;
        let activations = model.quantized_activations();
        Ok(EvaluationReport::Encoder(Box::new(EncoderReport { found, activations, media: Some(media) })))
    }

    /// Refuses what no checkpoint has.
    fn refuse_settings_of_graphs_alone(&self) -> Result<(), Error> {
        let given = [
            (self.labels.is_some(), "‹labels›"),
            (self.preprocess.is_some(), "‹preprocess›"),
            (self.limits.engine.choice != RuntimeChoice::Auto, "‹runtime›"),
            (self.limits.engine.library.is_some(), "‹runtime-library›"),
        ];
        refuse_given(&given, "applies only to ONNX graphs", "leave it out")
    }

    /// Refuses what only text has.
    fn refuse_text_settings(&self) -> Result<(), Error> {
        self.refuse_checkpoint_settings()?;
        let given = [
            (self.tokenizer.is_some(), "‹tokenizer›"),
            (self.seq_len.is_some(), "‹seq-len›"),
            (self.stride.is_some(), "‹stride›"),
            (self.column.is_some(), "‹column›"),
        ];
        refuse_given(&given, "applies only to text", "leave it out: the graph is run on the samples of ‹data›")
    }

    /// Refuses what only arrays and images have.
    fn refuse_array_settings(&self) -> Result<(), Error> {
        let given = [(self.labels.is_some(), "‹labels›"), (self.preprocess.is_some(), "‹preprocess›")];
        refuse_given(&given, "does not apply to text", "leave it out")
    }

    /// Refuses what only checkpoints and GGUF files have.
    fn refuse_checkpoint_settings(&self) -> Result<(), Error> {
        let given = [
            (!self.source.adapters.is_empty(), "‹lora›"),
            (self.precision != Precision::default(), "‹precision›"),
            (self.limits.memory != Limits::default().memory, "‹max-memory›"),
        ];
        refuse_given(&given, "does not apply to an ONNX graph", "leave it out: an engine runs the graph as it is")
    }

    /// A decoder as a graph on text.
    fn graph_text(&self, reporter: &Reporter<'_>) -> Result<TextReport, Error> {
        let prepared = self.prepare_graph(reporter)?;
        reporter.started();
        run_graph(&prepared, &self.limits, reporter)
    }

    /// Everything that can be refused of a decoder as a graph on text is refused here.
    fn prepare_graph(&self, reporter: &Reporter<'_>) -> Result<PreparedText, Error> {
        self.refuse_checkpoint_settings()?;
        self.refuse_array_settings()?;
        refuse_idle_library(&self.limits.engine)?;
        if let Some(reference) = self.reference.as_deref().filter(|path| SourceKind::of(path) != SourceKind::Graph) {
            return Err(reference_is_no_graph(reference));
        }
        Documents::check(&self.data, self.column.as_deref(), None)?;
        let request = TextRequest {
            model: &self.source.model,
            reference: self.reference.as_deref(),
            data: &self.data,
            column: self.column.as_deref(),
            tokenizer: self.tokenizer.as_deref(),
            seq_len: self.seq_len,
            stride: self.stride,
            most: self.num_samples,
        };
        prepare(&request, reporter)
    }

    fn graph(&self, reporter: &Reporter<'_>) -> Result<GraphEvaluation, Error> {
        self.refuse_text_settings()?;
        let reference = self.reference.as_deref().ok_or_else(no_reference)?;
        refuse_idle_library(&self.limits.engine)?;
        if reference.is_dir() {
            return Err(reference_is_directory(reference));
        }
        self.compared(&read(&self.source.model)?, &read(reference)?, reporter)
    }

    /// How the samples of graphs are read.
    fn data_options(&self) -> Result<DataOptions, Error> {
        let preprocessing = self.preprocess.as_deref().map(str::parse).transpose()?;
        Ok(DataOptions { num_samples: self.num_samples, preprocessing, seed: 0, labels: self.labels.clone() })
    }

    /// A quantized graph and its float graph on the data.
    fn compared(
        &self,
        quantized: &ModelProto,
        reference: &ModelProto,
        reporter: &Reporter<'_>,
    ) -> Result<GraphEvaluation, Error> {
        for graph in [quantized, reference] {
            check(graph).map_err(QuantizeError::from)?;
        }
        let reference = widened(reference.clone()).map_err(QuantizeError::from)?;
        let source = of_path(&self.data);
        let options = self.data_options()?;
        let labels = self.labels.as_deref().map(|name| source.labels(name)).transpose()?;
        let mut samples = source.open(&inputs(&reference.graph), &options)?;
        let runtime = self.limits.runtime();
        let all = samples.len() as u64;
        reporter.started();
        let progress = reporter.stage(Stage::Evaluation, Unit::Samples);
        let mut watch = progress.watch_cancelled();
        // Nothing is done yet that could be stopped.
        let _ = watch(0, all);
        let done = &mut |done| watch(done as u64, all);
        let compared = Compared { inside: true, distributions: self.page.is_some() };
        let mut report =
            evaluate_graph(&reference, quantized, &mut samples, compared, labels.as_deref(), &runtime, done)?;
        if self.page.is_some() {
            report.show(&samples);
        }
        Ok(report)
    }
}

/// Runs the graph of a decoder on text.
fn run_graph(prepared: &PreparedText, limits: &Limits, reporter: &Reporter<'_>) -> Result<TextReport, Error> {
    let TextResult { found, engine } = prepared.run(limits, reporter)?;
    Ok(TextReport::new(found, TextRun::Engine(engine)))
}

fn note_long_windows(window: usize, longest: Option<usize>, reporter: &Reporter<'_>) {
    if let Some(longest) = longest.filter(|longest| window > *longest) {
        reporter.note(&format!("windows of {window} tokens are longer than the {longest} that the model was made for"));
    }
}

/// Refuses the first setting that is given.
fn refuse_given(given: &[(bool, &'static str)], reason: &str, hint: &str) -> Result<(), Error> {
    first_given(given).map_or(Ok(()), |setting| {
        Err(Error::new(ErrorKind::Usage, format!("{setting} {reason}")).with_hint(Some(hint.to_owned())))
    })
}

/// Refuses an encoder alone or beside a decoder.
fn refuse_other_kind(model: &Decoder<'_>, reference: Option<&Decoder<'_>>) -> Result<(), Error> {
    let name = |encoder: bool| if encoder { "an encoder" } else { "a decoder" };
    match (model.is_encoder(), reference.map(Decoder::is_encoder)) {
        (true, None) => {
            let message = "an encoder predicts no next token: it is measured against the model that it was made from";
            let remedy = Remedy::setting("reference", "name that with ‹reference›");
            Err(Error::new(ErrorKind::Usage, message).with_remedies(vec![remedy]))
        }
        (model, Some(reference)) if model != reference => {
            let message = format!("‹reference› is {}, and the model is {}", name(reference), name(model));
            let remedy = Remedy::text("name the model that this one was made from");
            Err(Error::new(ErrorKind::Usage, message).with_remedies(vec![remedy]))
        }
        _ => Ok(()),
    }
}

/// How sentence-transformers makes an embedding of hidden states, by `1_Pooling/config.json` beside the model or its reference; the mean
/// where there is no such file.
fn pooling(model: &Path, reference: Option<&Path>) -> Result<Pooling, Error> {
    let places = [Some(model), reference].into_iter().flatten();
    let files = places.map(|place| model_directory(place).join("1_Pooling").join("config.json"));
    let Some(file) = files.into_iter().find(|file| file.is_file()) else { return Ok(Pooling::Mean) };
    let invalid = |cause: String| Error::new(ErrorKind::Invalid, format!("{}: {cause}", shown(&file)));
    let text = fs::read_to_string(&file).map_err(|cause| Error::io(format!("cannot read {}", shown(&file)), &cause))?;
    let config: Value = serde_json::from_str(&text).map_err(|cause| invalid(cause.to_string()))?;
    let is = |key: &str| config.get(key).and_then(Value::as_bool) == Some(true);
    match (is("pooling_mode_mean_tokens"), is("pooling_mode_cls_token")) {
        (true, false) => Ok(Pooling::Mean),
        (false, true) => Ok(Pooling::First),
        _ => Err(Error::new(
            ErrorKind::Unsupported,
            format!("{}: neither the mean of all tokens nor the first one", shown(&file)),
        )
        .with_hint(Some("without the file, embeddings are means of all tokens".to_owned()))),
    }
}

fn reference_is_directory(reference: &Path) -> Error {
    let message =
        format!("‹reference› {} is a directory: an ONNX graph is compared with another graph", shown(reference));
    let remedy = Remedy::setting("reference", "name the float graph (.onnx) with ‹reference›");
    Error::new(ErrorKind::Usage, message).with_remedies(vec![remedy, made_of_checkpoint()])
}

fn made_of_checkpoint() -> Remedy {
    Remedy::command("convert CHECKPOINT ‹to› onnx", "makes the float graph of a checkpoint")
}

fn reference_is_no_graph(reference: &Path) -> Error {
    let message = format!("‹reference› {} is no ONNX graph, and the model is one", shown(reference));
    let remedy = Remedy::setting("reference", "name the float graph (.onnx) with ‹reference›");
    Error::new(ErrorKind::Usage, message).with_remedies(vec![remedy, made_of_checkpoint()])
}

fn reference_is_graph(reference: &Path) -> Error {
    let message = format!("‹reference› {} is an ONNX graph, and the model is none", shown(reference));
    let remedy = Remedy::text("name the checkpoint or GGUF file that the model is to be compared with");
    Error::new(ErrorKind::Usage, message).with_remedies(vec![remedy])
}

fn no_reference() -> Error {
    let error = Error::new(ErrorKind::Usage, "an ONNX graph is measured against the float graph it was made from");
    error.with_remedies(vec![Remedy::setting("reference", "name that with ‹reference›")])
}
