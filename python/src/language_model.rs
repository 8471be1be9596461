//! A language model as evaluation harnesses ask it. Texts and their defaults are the business of `kvant/_language_model.py`.

use crate::run::{Attended, attended};
use crate::spelling::Spelling;
use crate::tensor::raised;
use kvant::{
    CancelToken, ChatTemplate, Error, ErrorKind, Events, Finish, GenerateUntil, LanguageModel as Model, ModelFacts,
    ModelTokenizer, Precision, Rendered, Sampling, Source, TokenPair,
};
use pyo3::prelude::*;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;

/// A model, its tokenizer, and what is known of it. Weights are opened by each call.
#[pyclass(frozen, module = "kvant._kvant")]
pub struct LanguageModel {
    model: Model,
    tokenizer: ModelTokenizer,
    facts: ModelFacts,
    /// Opened when it is first asked for: most calls do not depend on whether it is intact.
    template: OnceLock<Option<ChatTemplate>>,
}

#[pymethods]
impl LanguageModel {
    /// Opens a model: headers and the tokenizer.
    #[new]
    #[pyo3(signature = (model, adapters, tokenizer, max_length, is_bf16, threads, max_memory))]
    #[allow(clippy::too_many_arguments)] // Keyword arguments of one Python function.
    fn new(
        py: Python<'_>,
        model: PathBuf,
        adapters: Vec<PathBuf>,
        tokenizer: Option<PathBuf>,
        max_length: Option<usize>,
        is_bf16: bool,
        threads: Option<u16>,
        max_memory: Option<String>,
    ) -> PyResult<LanguageModel> {
        let opened = py.detach(|| {
            let mut model = Model::new(Source { adapters, ..Source::new(model) });
            (model.tokenizer, model.max_length, model.limits.threads) = (tokenizer, max_length, threads);
            model.precision = if is_bf16 { Precision::Bf16 } else { Precision::F32 };
            if let Some(size) = max_memory {
                model.limits.memory = parsed(&size)?;
            }
            let facts = model.facts()?;
            let tokenizer = model.tokenizer()?;
            Ok::<_, Error>(LanguageModel { model, tokenizer, facts, template: OnceLock::new() })
        });
        opened.map_err(|error| raised(py, error))
    }

    /// The longest sequence in tokens.
    #[getter]
    fn max_length(&self) -> usize {
        self.facts.max_length
    }

    /// The number of tokens that there are.
    #[getter]
    fn vocabulary(&self) -> usize {
        self.facts.vocabulary
    }

    /// The token that begins a text.
    #[getter]
    fn begin_token(&self) -> Option<u32> {
        self.facts.begin_token
    }

    /// The tokens that end a text.
    #[getter]
    fn end_tokens(&self) -> Vec<u32> {
        self.facts.end_tokens.clone()
    }

    /// The tokens of texts.
    fn tokenize(&self, py: Python<'_>, texts: Vec<String>, special_tokens: bool) -> PyResult<Vec<Vec<u32>>> {
        let tokens = |text: &String| match special_tokens {
            true => self.tokenizer.encode(text),
            false => self.tokenizer.encode_rendered(text),
        };
        let found: Result<Vec<Vec<u32>>, _> = py.detach(|| texts.iter().map(tokens).collect());
        found.map_err(|error| raised(py, error.into()))
    }

    /// The text of tokens.
    fn detokenize(&self, py: Python<'_>, tokens: Vec<u32>, skip_special_tokens: bool) -> PyResult<String> {
        self.tokenizer.decode(&tokens, skip_special_tokens).map_err(|error| raised(py, error.into()))
    }

    /// The text of the chat template; None without one.
    fn chat_template(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let template = self.template().map_err(|error| raised(py, error))?;
        Ok(template.map(|template| template.source().to_owned()))
    }

    /// A conversation in the chat template, whole or up to where the model answers. `messages` are JSON.
    fn render_chat(&self, py: Python<'_>, messages: &str, up_to_answer: bool) -> PyResult<String> {
        let rendered = || {
            let messages: Vec<serde_json::Value> =
                serde_json::from_str(messages).map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
            let template = self.template()?.ok_or_else(no_template)?;
            let render = if up_to_answer { ChatTemplate::render_prompt } else { ChatTemplate::render };
            match render(template, &messages)? {
                Rendered::Text(text) => Ok(text),
                Rendered::Refused(why) => Err(Error::new(ErrorKind::Invalid, why)),
            }
        };
        rendered().map_err(|error| raised(py, error))
    }

    /// The log-likelihood of each second part given the first, and whether it is the likeliest.
    fn loglikelihood(
        &self,
        py: Python<'_>,
        pairs: Vec<(Vec<u32>, Vec<u32>)>,
        deliver: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<(f64, bool)>> {
        let pairs: Vec<TokenPair> =
            pairs.into_iter().map(|(context, continuation)| TokenPair { context, continuation }).collect();
        let model = self.model.clone();
        let found = done(py, deliver, move |events, cancel| model.loglikelihood(&pairs, events, cancel))?;
        Ok(found.into_iter().map(|found| (found.log_likelihood, found.is_greedy)).collect())
    }

    /// The log-likelihood of each text.
    fn loglikelihood_rolling(
        &self,
        py: Python<'_>,
        texts: Vec<Vec<u32>>,
        prefix: u32,
        deliver: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<f64>> {
        let model = self.model.clone();
        done(py, deliver, move |events, cancel| model.loglikelihood_rolling(&texts, prefix, events, cancel))
    }

    /// Continuations of prompts: text, tokens, and why each ends. `sampling` is temperature, top-k, top-p and seed.
    fn generate_until(
        &self,
        py: Python<'_>,
        prompts: Vec<Vec<u32>>,
        until: Vec<String>,
        max_new_tokens: usize,
        sampling: (f64, Option<usize>, Option<f64>, u64),
        deliver: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<(String, Vec<u32>, &'static str)>> {
        let (temperature, top_k, top_p, seed) = sampling;
        let sampling = Sampling { temperature, top_k, top_p, seed };
        let options = GenerateUntil { until, max_gen_toks: max_new_tokens, sampling };
        let model = self.model.clone();
        let found = done(py, deliver, move |events, cancel| model.generate_until(&prompts, &options, events, cancel))?;
        Ok(found.into_iter().map(|text| (text.text, text.tokens, finish(text.finish))).collect())
    }
}

impl LanguageModel {
    fn template(&self) -> Result<Option<&ChatTemplate>, Error> {
        if self.template.get().is_none() {
            let opened = self.model.chat_template()?;
            self.template.get_or_init(|| opened);
        }
        Ok(self.template.get().and_then(Option::as_ref))
    }
}

fn no_template() -> Error {
    let error = Error::new(ErrorKind::Unsupported, "the model has no chat template");
    error.with_hint(Some("use a model or a tokenizer that has one".to_owned()))
}

/// Does work and raises its error.
fn done<T: Send + 'static>(
    py: Python<'_>,
    deliver: &Bound<'_, PyAny>,
    work: impl FnOnce(&mut dyn Events, &CancelToken) -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    let Attended { result, raised: exception } = attended(py, deliver, &Spelling::of_command("generate"), false, work)?;
    match exception {
        Some(exception) => Err(exception),
        None => result.map_err(|error| raised(py, error)),
    }
}

/// A setting that is given as text.
fn parsed<T: FromStr<Err: Display>>(text: &str) -> Result<T, Error> {
    text.parse().map_err(|error| Error::new(ErrorKind::Usage, format!("{text}: {error}")))
}

fn finish(finish: Finish) -> &'static str {
    match finish {
        Finish::EndOfText => "eos",
        Finish::Length => "length",
        Finish::Stopped => "stop",
    }
}
