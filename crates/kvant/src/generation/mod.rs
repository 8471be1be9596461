//! Text continued by a model, beside that of its float source; and the likelihoods and continuations that evaluation harnesses ask for.

pub mod language_model;
pub mod report;
mod stop;
mod text;

use crate::cancel::CancelToken;
use crate::ending::concluded_reading;
use crate::error::{Error, ErrorKind};
use crate::events::{Event, Events, Reporter, Stage, Unit};
use crate::job::{self, Limits, Precision, Source, SourceKind};
use crate::memory;
use crate::page;
use crate::paths::{MODEL, Paths, refuse_directory, refuse_missing};
use crate::text::{shown, size};
use kvant_container::{Checkpoint, Remedy};
use kvant_data::calibration::{ChatTemplate, Rendered};
use kvant_data::tokenizer::ModelTokenizer;
use kvant_forward::evaluation::{EvaluationError, read_text};
use kvant_forward::forward::Decoder;
use kvant_forward::generation::{GenerationOptions, Sampling};
use report::{GeneratedPrompt, GenerationReport};
use serde_json::json;
use std::path::{Path, PathBuf};
pub(crate) use stop::begin_token;
use text::{Prompts, Texts, Watcher, continued};

/// New tokens unless said otherwise.
const DEFAULT_NEW_TOKENS: usize = 64;

/// Prompts continued by a model.
///
/// ```
/// use kvant::{CancelToken, Generation, Source};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/models/nano_llama");
/// let mut generation = Generation::new(Source::new(model), "The quick brown fox");
/// generation.max_new_tokens = Some(8);
/// let report = generation.run(&mut (), &CancelToken::new())?;
/// assert!(report.prompts[0].model.tokens.len() <= 8);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Generation {
    /// A float or quantized checkpoint, or a GGUF file.
    pub source: Source,
    /// The prompts.
    pub prompts: Vec<Prompt>,
    /// Tokens of a continuation at most; `None` is 64, or as many as the model's context leaves.
    pub max_new_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Texts that end a continuation, and are not part of it.
    pub stop: Vec<String>,
    /// Whether prompts are messages of a user, in the model's chat template.
    pub chat: bool,
    /// The source of this model, which continues the same prompts.
    pub reference: Option<PathBuf>,
    /// The path of the tokenizer; `None` is the model.
    pub tokenizer: Option<PathBuf>,
    /// The precision of activations.
    pub precision: Precision,
    /// The path for a report for people, in HTML (.html) or Markdown (.md).
    pub page: Option<PathBuf>,
    /// Resources.
    pub limits: Limits,
}

/// A text to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// This text.
    Text(String),
    /// All of a file, in UTF-8.
    File(PathBuf),
}

impl Generation {
    /// A generation with defaults for everything but the model and a prompt.
    pub fn new(source: Source, prompt: impl Into<String>) -> Generation {
        Generation {
            source,
            prompts: vec![Prompt::Text(prompt.into())],
            max_new_tokens: None,
            sampling: Sampling::GREEDY,
            stop: Vec::new(),
            chat: false,
            reference: None,
            tokenizer: None,
            precision: Precision::F32,
            page: None,
            limits: Limits::default(),
        }
    }

    /// Continues the prompts.
    ///
    /// # Errors
    /// Whatever is wrong with the model, its tokenizer, the prompts or the settings.
    pub fn run(&self, events: &mut dyn Events, cancel: &CancelToken) -> Result<GenerationReport, Error> {
        self.check_page()?;
        let report = concluded_reading(|| self.carry_out(&Reporter::new(events, cancel)))?;
        page::write(self.page.as_deref(), &self.source.model, "generate", &[], || report.to_json())?;
        Ok(report)
    }

    /// Refuses a report that could not be written, would replace a file, or is in what is read.
    fn check_page(&self) -> Result<(), Error> {
        let Some(page) = self.page.as_deref() else { return Ok(()) };
        page::check_new(page)?;
        let mut paths = Paths::new(false, true);
        paths.reads_model(&self.source.model);
        paths.reads_adapters(&self.source.adapters);
        self.prompt_files().for_each(|file| paths.reads("the prompt", Some(file)));
        if let Some(reference) = &self.reference {
            paths.reads_model(reference);
        }
        paths.writes_page("‹report›", Some(page))?;
        paths.check()
    }

    fn prompt_files(&self) -> impl Iterator<Item = &Path> + Clone {
        self.prompts.iter().filter_map(|prompt| match prompt {
            Prompt::Text(_) => None,
            Prompt::File(file) => Some(file.as_path()),
        })
    }

    fn carry_out(&self, reporter: &Reporter<'_>) -> Result<GenerationReport, Error> {
        self.check()?;
        let texts = self.prompts.iter().map(Prompt::read).collect::<Result<Vec<String>, Error>>()?;
        let checkpoint = self.source.open()?;
        let decoder = Decoder::open(&checkpoint)?;
        let original = self.reference.as_deref().map(job::open).transpose()?;
        let reference = original.as_ref().map(Decoder::open).transpose()?;
        if let Some(reference) = &reference {
            same_vocabulary(&decoder, reference)?;
        }
        let files = self.tokenizer.as_deref().unwrap_or(&self.source.model);
        let tokenizer = ModelTokenizer::open(files)?;
        let tokens = self.encode(files, &tokenizer, &texts)?;
        let options = GenerationOptions {
            max_new_tokens: self.max_new_tokens.unwrap_or_else(|| default_new_tokens(&decoder, &tokens)),
            sampling: self.sampling,
            stop: stop::tokens(&checkpoint, &tokenizer)?,
            cpu: self.precision.ops(),
            memory: self.limits.memory.0,
        };
        let prompts = Prompts { tokens: &tokens, stop: &self.stop, tokenizer: &tokenizer, texts: Texts::Continued };
        warn_of_size(reporter, [Some(&checkpoint), original.as_ref()]);
        reporter.started();
        let progress = reporter.stage(Stage::Generation, Unit::Tokens);
        let mut watch = progress.watch_cancelled();
        let runs = 1 + u64::from(reference.is_some());
        let total = runs * (tokens.len() * options.max_new_tokens) as u64;
        let mut run = |number: u64, decoder: &Decoder<'_>| {
            let before = number * total / runs;
            let mut done = |tokens: u64| watch(before + tokens, total);
            let is_reference = number > 0;
            let mut text = |prompt: usize, text: &str| reporter.event(Event::Text { prompt, is_reference, text });
            let watcher = Watcher { done: &mut done, text: &mut text };
            self.limits.pool()?.install(|| continued(decoder, &prompts, &options, watcher))
        };
        let model = run(0, &decoder)?;
        let other = reference.as_ref().map(|reference| run(1, reference)).transpose()?;
        let mut others = other.as_ref().map(|other| other.texts.clone()).unwrap_or_default().into_iter();
        let prompts = texts.into_iter().zip(&tokens).zip(model.texts.iter().cloned());
        let prompts = prompts.map(|((prompt, tokens), model)| GeneratedPrompt {
            prompt,
            prompt_tokens: tokens.len(),
            model,
            reference: others.next(),
        });
        Ok(GenerationReport {
            prompts: prompts.collect(),
            speed: model.speed,
            reference_speed: other.map(|other| other.speed),
            activations: decoder.quantized_activations(),
        })
    }

    /// Refuses what can be refused without opening the model.
    fn check(&self) -> Result<(), Error> {
        let named = [
            (MODEL, Some(self.source.model.as_path())),
            ("‹reference›", self.reference.as_deref()),
            ("‹tokenizer›", self.tokenizer.as_deref()),
        ];
        let adapters = self.source.adapters.iter().map(|path| ("‹lora›", path.as_path()));
        let named = named.into_iter().filter_map(|(what, path)| Some((what, path?))).chain(adapters);
        refuse_missing(named.chain(self.prompt_files().map(|file| ("‹prompt-file›", file))))?;
        self.prompt_files().try_for_each(|file| refuse_directory("‹prompt-file›", file))?;
        refuse_graph(&self.source.model)?;
        self.reference.as_deref().map_or(Ok(()), refuse_graph)?;
        if self.prompts.is_empty() {
            return Err(Error::new(ErrorKind::Usage, "there is no prompt")
                .with_remedies(vec![Remedy::setting("prompt", "give one with ‹prompt›")]));
        }
        self.sampling.check()?;
        let idle = [(self.sampling.top_k.is_some(), "‹top-k›"), (self.sampling.top_p.is_some(), "‹top-p›")];
        if let Some(setting) = crate::settings::first_given(&idle).filter(|_| self.sampling.temperature == 0.0) {
            let message =
                format!("{setting} has no effect without a temperature: the likeliest token is chosen always");
            return Err(Error::new(ErrorKind::Usage, message)
                .with_remedies(vec![Remedy::setting("temperature", "give one above 0 with ‹temperature›")]));
        }
        Ok(())
    }

    /// The tokens of the prompts, in the chat template of the model at `files` if that is asked for.
    fn encode(&self, files: &Path, tokenizer: &ModelTokenizer, texts: &[String]) -> Result<Vec<Vec<u32>>, Error> {
        if !self.chat {
            return texts.iter().map(|text| Ok(tokenizer.encode(text)?)).collect();
        }
        let Some(template) = ChatTemplate::open(files)? else {
            let message = format!("{} has no chat template", shown(files));
            return Err(Error::new(ErrorKind::Usage, message)
                .with_remedies(vec![Remedy::LeaveOut { setting: "chat", effect: "to continue the text itself" }]));
        };
        let tokens = |text: &String| match template.render_prompt(&[json!({"role": "user", "content": text})])? {
            Rendered::Text(text) => Ok(tokenizer.encode_rendered(&text)?),
            Rendered::Refused(why) => Err(Error::new(ErrorKind::Invalid, why)),
        };
        texts.iter().map(tokens).collect()
    }
}

impl Prompt {
    /// The text, which is not empty.
    fn read(&self) -> Result<String, Error> {
        let text = match self {
            Prompt::Text(text) => text.clone(),
            Prompt::File(file) => read_text(file)?,
        };
        match (text.is_empty(), self) {
            (false, _) => Ok(text),
            (true, Prompt::Text(_)) => Err(empty("a prompt is empty".to_owned())),
            (true, Prompt::File(file)) => Err(empty(format!("{} is empty", shown(file)))),
        }
    }
}

fn empty(message: String) -> Error {
    Error::new(ErrorKind::Usage, message).with_hint(Some("give a text to continue".to_owned()))
}

/// Graphs have no tokenizer and no cache.
fn refuse_graph(model: &Path) -> Result<(), Error> {
    if SourceKind::of(model) != SourceKind::Graph {
        return Ok(());
    }
    let message = format!("{} is an ONNX graph, and only checkpoints and GGUF files are continued", shown(model));
    Err(Error::new(ErrorKind::Unsupported, message).with_remedies(vec![Remedy::text(
        "give the checkpoint that the graph was made from, or run the graph with onnxruntime-genai",
    )]))
}

/// As many as the longest prompt leaves of the context, so that no more than the default is generated unasked.
fn default_new_tokens(decoder: &Decoder<'_>, prompts: &[Vec<u32>]) -> usize {
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let left = decoder.longest().map_or(DEFAULT_NEW_TOKENS, |context| context.saturating_sub(longest));
    DEFAULT_NEW_TOKENS.min(left).max(1)
}

fn same_vocabulary(decoder: &Decoder<'_>, reference: &Decoder<'_>) -> Result<(), EvaluationError> {
    let (model, reference) = (decoder.vocabulary(), reference.vocabulary());
    match model == reference {
        true => Ok(()),
        false => Err(EvaluationError::Reference { what: "vocabulary", model, reference }),
    }
}

/// Warns where every token would read weights from the disk.
fn warn_of_size<'c>(reporter: &Reporter<'_>, checkpoints: impl IntoIterator<Item = Option<&'c Checkpoint>>) {
    let bytes = |checkpoint: &Checkpoint| checkpoint.tensors().map(|tensor| tensor.bytes().len() as u64).sum::<u64>();
    let needed = checkpoints.into_iter().flatten().map(bytes).max().unwrap_or(0);
    if let Some(available) = memory::available().filter(|available| needed > *available) {
        let (needed, available) = (size::bytes(needed), size::bytes(available));
        reporter.warning(&format!(
            "the weights take {needed}, and {available} of memory are available: every token reads weights from the disk"
        ));
    }
}

#[cfg(test)]
mod tests;
