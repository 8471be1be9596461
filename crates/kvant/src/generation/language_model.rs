//! A language model as evaluation harnesses ask it: likelihoods of texts, and texts up to where they end. Tokens in, since harnesses
//! have rules of their own for what is tokenized together.

use super::stop;
use super::text::{Prompts, Texts, Watcher, continued};
use super::{refuse_graph, report::GeneratedText};
use crate::cancel::CancelToken;
use crate::ending::concluded_reading;
use crate::error::{Error, ErrorKind};
use crate::events::{Events, Reporter, Stage, Unit};
use crate::job::{Limits, Precision, Source};
use crate::paths::{MODEL, refuse_missing};
use kvant_data::calibration::ChatTemplate;
use kvant_data::tokenizer::ModelTokenizer;
use kvant_forward::evaluation::{Likelihood, ScoredSequence, likelihoods};
use kvant_forward::forward::Decoder;
use kvant_forward::generation::{GenerationOptions, Sampling};
use std::path::PathBuf;

/// The context where config.json states none, as in lm-evaluation-harness.
const DEFAULT_LENGTH: usize = 2048;

/// A model that scores and continues sequences of tokens.
///
/// ```
/// use kvant::{CancelToken, LanguageModel, Source, TokenPair};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/models/nano_llama");
/// let model = LanguageModel::new(Source::new(model));
/// let tokenizer = model.tokenizer()?;
/// let pair = TokenPair { context: tokenizer.encode("The quick")?, continuation: tokenizer.encode(" brown fox")? };
/// let found = model.loglikelihood(&[pair], &mut (), &CancelToken::new())?;
/// assert!(found[0].log_likelihood < 0.0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LanguageModel {
    /// A float or quantized checkpoint, or a GGUF file.
    pub source: Source,
    /// The path of the tokenizer; `None` is the model.
    pub tokenizer: Option<PathBuf>,
    /// The longest sequence; `None` is the model's context.
    pub max_length: Option<usize>,
    /// The precision of activations.
    pub precision: Precision,
    /// Resources.
    pub limits: Limits,
}

/// A context and what follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenPair {
    /// The tokens before: at least one.
    pub context: Vec<u32>,
    /// The tokens that are scored.
    pub continuation: Vec<u32>,
}

/// What a harness must know of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// The longest sequence.
    pub max_length: usize,
    /// The number of tokens that there are.
    pub vocabulary: usize,
    /// The token that begins a text, if the tokenizer has one.
    pub begin_token: Option<u32>,
    /// The tokens that end a text.
    pub end_tokens: Vec<u32>,
}

/// How texts are continued up to where they end.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateUntil {
    /// Texts that end a continuation, and are not part of it.
    pub until: Vec<String>,
    /// Tokens of a continuation at most.
    pub max_gen_toks: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
}

impl LanguageModel {
    /// A model with defaults for everything else.
    pub fn new(source: Source) -> LanguageModel {
        let (precision, limits) = (Precision::F32, Limits::default());
        LanguageModel { source, tokenizer: None, max_length: None, precision, limits }
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// A missing or unsupported tokenizer.
    pub fn tokenizer(&self) -> Result<ModelTokenizer, Error> {
        Ok(ModelTokenizer::open(self.tokenizer.as_deref().unwrap_or(&self.source.model))?)
    }

    /// The chat template; `None` where there is none.
    ///
    /// # Errors
    /// A template that cannot be read.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>, Error> {
        Ok(ChatTemplate::open(self.tokenizer.as_deref().unwrap_or(&self.source.model))?)
    }

    /// The facts about the model. Reads headers only.
    ///
    /// # Errors
    /// Whatever is wrong with the model or its tokenizer.
    pub fn facts(&self) -> Result<ModelFacts, Error> {
        self.check()?;
        let checkpoint = self.source.open()?;
        let decoder = Decoder::open(&checkpoint)?;
        let tokenizer = self.tokenizer()?;
        Ok(ModelFacts {
            begin_token: stop::begin_token(&checkpoint, &tokenizer)?,
            max_length: self.length(&decoder),
            vocabulary: decoder.vocabulary(),
            end_tokens: stop::tokens(&checkpoint, &tokenizer)?,
        })
    }

    /// The likelihood of each continuation given its context. Of sequences beyond the longest length, the first tokens of the context are left
    /// out.
    ///
    /// # Errors
    /// Whatever is wrong with the model, contexts that are empty, continuations longer than the longest length.
    pub fn loglikelihood(
        &self,
        pairs: &[TokenPair],
        events: &mut dyn Events,
        cancel: &CancelToken,
    ) -> Result<Vec<Likelihood>, Error> {
        self.scored(events, cancel, |length| pairs.iter().map(|pair| pair.fitted(length)).collect())
    }

    /// The log-likelihood of each text as a whole: every token is scored once, in consecutive windows as long as the longest length. The
    /// first window begins with `prefix`, the others with the token before them.
    ///
    /// # Errors
    /// Whatever is wrong with the model.
    pub fn loglikelihood_rolling(
        &self,
        texts: &[Vec<u32>],
        prefix: u32,
        events: &mut dyn Events,
        cancel: &CancelToken,
    ) -> Result<Vec<f64>, Error> {
        let mut counts = Vec::new();
        let found = self.scored(events, cancel, |length| {
            let windows = texts.iter().map(|text| rolling(text, prefix, length));
            let windows: Vec<Vec<Scored>> = windows.collect();
            counts = windows.iter().map(Vec::len).collect();
            Ok(windows.concat())
        })?;
        let mut found = found.iter();
        let sum = |count: &usize| found.by_ref().take(*count).map(|window| window.log_likelihood).sum();
        Ok(counts.iter().map(sum).collect())
    }

    /// Continues prompts of tokens until a text of `until`, a token that ends texts, or as many tokens as allowed. Of prompts that are too long
    /// for that, the first tokens are left out.
    ///
    /// # Errors
    /// Whatever is wrong with the model, its tokenizer or the settings; prompts that are empty.
    pub fn generate_until(
        &self,
        prompts: &[Vec<u32>],
        options: &GenerateUntil,
        events: &mut dyn Events,
        cancel: &CancelToken,
    ) -> Result<Vec<GeneratedText>, Error> {
        concluded_reading(|| {
            self.check()?;
            let reporter = Reporter::new(events, cancel);
            let checkpoint = self.source.open()?;
            let decoder = Decoder::open(&checkpoint)?;
            let tokenizer = self.tokenizer()?;
            let room = self.length(&decoder).checked_sub(options.max_gen_toks).filter(|room| *room > 0);
            let room = room.ok_or_else(|| no_room(options.max_gen_toks, self.length(&decoder)))?;
            let tokens: Vec<Vec<u32>> = prompts.iter().map(|prompt| last(prompt, room).to_vec()).collect();
            let prompts = Prompts { tokens: &tokens, stop: &options.until, tokenizer: &tokenizer, texts: Texts::Alone };
            let options = GenerationOptions {
                max_new_tokens: options.max_gen_toks,
                sampling: options.sampling,
                stop: stop::tokens(&checkpoint, &tokenizer)?,
                cpu: self.precision.ops(),
                memory: self.limits.memory.0,
            };
            reporter.started();
            let progress = reporter.stage(Stage::Generation, Unit::Tokens);
            let mut watch = progress.watch_cancelled();
            let total = (tokens.len() * options.max_new_tokens) as u64;
            let mut done = |tokens: u64| watch(tokens, total);
            let watcher = Watcher { done: &mut done, text: &mut |_, _| () };
            let work = || continued(&decoder, &prompts, &options, watcher);
            Ok(self.limits.pool()?.install(work)?.texts)
        })
    }

    /// [`LanguageModel::loglikelihood`] as a part of other work.
    pub(crate) fn likelihoods(&self, pairs: &[TokenPair], reporter: &Reporter<'_>) -> Result<Vec<Likelihood>, Error> {
        self.scored_part(reporter, |length| pairs.iter().map(|pair| pair.fitted(length)).collect())
    }

    /// Refuses what [`LanguageModel::loglikelihood`] would, for a longest length.
    pub(crate) fn check_pairs(pairs: &[TokenPair], length: usize) -> Result<(), Error> {
        pairs.iter().try_for_each(|pair| pair.check(length))
    }

    /// Scores the sequences that `sequences` makes for a longest length.
    fn scored(
        &self,
        events: &mut dyn Events,
        cancel: &CancelToken,
        sequences: impl FnOnce(usize) -> Result<Vec<Scored>, Error>,
    ) -> Result<Vec<Likelihood>, Error> {
        concluded_reading(|| self.scored_part(&Reporter::new(events, cancel), sequences))
    }

    fn scored_part(
        &self,
        reporter: &Reporter<'_>,
        sequences: impl FnOnce(usize) -> Result<Vec<Scored>, Error>,
    ) -> Result<Vec<Likelihood>, Error> {
        self.check()?;
        let checkpoint = self.source.open()?;
        let decoder = Decoder::open(&checkpoint)?;
        let sequences = sequences(self.length(&decoder))?;
        let borrowed: Vec<ScoredSequence<'_>> =
            sequences.iter().map(|Scored { tokens, scored }| ScoredSequence { tokens, scored: *scored }).collect();
        reporter.started();
        let progress = reporter.stage(Stage::Evaluation, Unit::Tokens);
        let watch = progress.watch_cancelled();
        let (ops, memory) = (self.precision.ops(), self.limits.memory.0);
        let work = || likelihoods(&decoder, &ops, &borrowed, memory, watch);
        Ok(self.limits.pool()?.install(work)?)
    }

    fn check(&self) -> Result<(), Error> {
        let named = [(MODEL, Some(self.source.model.as_path())), ("‹tokenizer›", self.tokenizer.as_deref())];
        refuse_missing(named.into_iter().filter_map(|(what, path)| Some((what, path?))))?;
        refuse_graph(&self.source.model)
    }

    fn length(&self, decoder: &Decoder<'_>) -> usize {
        self.max_length.or(decoder.longest()).unwrap_or(DEFAULT_LENGTH).max(1)
    }
}

/// A sequence and how many tokens at its end are scored.
#[derive(Clone)]
struct Scored {
    tokens: Vec<u32>,
    scored: usize,
}

impl TokenPair {
    /// Refuses empty contexts and continuations longer than a model reads.
    fn check(&self, length: usize) -> Result<(), Error> {
        let scored = self.continuation.len();
        if self.context.is_empty() {
            let hint = "begin it with the token that ends texts";
            return Err(Error::new(ErrorKind::Usage, "a context is empty").with_hint(Some(hint.to_owned())));
        }
        if scored > length {
            let message = format!("a continuation of {scored} tokens is longer than the {length} that the model reads");
            return Err(Error::new(ErrorKind::Usage, message));
        }
        Ok(())
    }

    /// The sequence, of which a model reads at most `length` tokens: all but the last.
    fn fitted(&self, length: usize) -> Result<Scored, Error> {
        self.check(length)?;
        let all = [&self.context[..], &self.continuation].concat();
        Ok(Scored { tokens: last(&all, length + 1).to_vec(), scored: self.continuation.len() })
    }
}

/// The last tokens, as many as there may be.
fn last(tokens: &[u32], most: usize) -> &[u32] {
    &tokens[tokens.len().saturating_sub(most)..]
}

/// The windows of a text, as lm-evaluation-harness cuts it: every token is scored in one, and all but the last window are full. The last one
/// begins earlier, so that its tokens have as many before them as the length allows.
fn rolling(text: &[u32], prefix: u32, length: usize) -> Vec<Scored> {
    let all = [&[prefix], text].concat();
    let mut windows = Vec::new();
    let mut reached = 0;
    while reached < text.len() {
        let end = text.len().min(reached + length);
        let start = end.saturating_sub(length);
        windows.push(Scored { tokens: all[start..end + 1].to_vec(), scored: end - reached });
        reached = end;
    }
    windows
}

fn no_room(new: usize, length: usize) -> Error {
    let message = format!("{new} new tokens leave no room for a prompt in the {length} that the model reads");
    Error::new(ErrorKind::Usage, message).with_hint(Some(format!("generate at most {}", length.saturating_sub(1))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows and scored counts of lm_eval.utils.get_rolling_token_windows with make_disjoint_window.
    #[test]
    fn rolling_windows_are_those_of_the_harness() {
        let text: Vec<u32> = (1..=7).collect();
        let found: Vec<(Vec<u32>, usize)> =
            rolling(&text, 0, 3).into_iter().map(|window| (window.tokens, window.scored)).collect();
        assert_eq!(found, [(vec![0, 1, 2, 3], 3), (vec![3, 4, 5, 6], 3), (vec![4, 5, 6, 7], 1)]);
        assert_eq!(rolling(&text, 0, 10).len(), 1);
        assert!(rolling(&[], 0, 10).is_empty());
    }

    #[test]
    fn contexts_are_cut_from_the_left() {
        let pair = TokenPair { context: vec![1, 2, 3], continuation: vec![4, 5] };
        let fitted = pair.fitted(3).unwrap();
        assert_eq!((fitted.tokens, fitted.scored), (vec![2, 3, 4, 5], 2));
        assert_eq!(pair.fitted(9).unwrap().tokens, [1, 2, 3, 4, 5]);
        assert!(pair.fitted(1).is_err());
        assert!(TokenPair { context: Vec::new(), ..pair }.fitted(9).is_err());
    }
}
