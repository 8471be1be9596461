//! From tokens that a model appends to text, which ends at the first of the texts that end it.

use super::report::{GeneratedText, Speed};
use crate::error::Error;
use kvant_data::tokenizer::{ModelTokenizer, TokenizerError};
use kvant_forward::forward::Decoder;
use kvant_forward::generation::{GenerationError, GenerationOptions, Next, Progress, generate};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// What is continued.
pub(super) struct Prompts<'p> {
    pub(super) tokens: &'p [Vec<u32>],
    /// Texts that end a continuation.
    pub(super) stop: &'p [String],
    pub(super) tokenizer: &'p ModelTokenizer,
    pub(super) texts: Texts,
}

/// The text of a continuation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Texts {
    /// What follows the prompt, the space between them included.
    Continued,
    /// The text of the new tokens alone.
    Alone,
}

/// All continuations of one model.
pub(super) struct Continued {
    pub(super) texts: Vec<GeneratedText>,
    pub(super) speed: Speed,
}

/// Continues the prompts. `done` receives the tokens so far, and breaks to cancel.
pub(super) fn continued(
    decoder: &Decoder<'_>,
    prompts: &Prompts<'_>,
    options: &GenerationOptions,
    done: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Continued, Error> {
    let before = |tokens: &Vec<u32>| match prompts.texts {
        Texts::Continued => tokens.clone(),
        Texts::Alone => Vec::new(),
    };
    let mut streams: Vec<_> = prompts.tokens.iter().map(|tokens| prompts.tokenizer.stream(&before(tokens))).collect();
    let mut texts = vec![String::new(); prompts.tokens.len()];
    let mut counts = vec![0; prompts.tokens.len()];
    let mut broken: Option<TokenizerError> = None;
    let (start, mut reading, mut last) = (Instant::now(), Duration::ZERO, Instant::now());
    let (mut finished, mut new) = (0, 0);
    let watch = |progress: Progress| {
        let mut next = Next::Continue;
        match progress {
            Progress::Read { .. } => reading += last.elapsed(),
            Progress::Token { prompt, token } => {
                (counts[prompt], new) = (counts[prompt] + 1, new + 1);
                match streams[prompt].push(token) {
                    Ok(text) => texts[prompt].push_str(&text),
                    Err(error) => broken = Some(error),
                }
                if first_stop(&texts[prompt], prompts.stop).is_some() {
                    next = Next::End;
                }
            }
            // A continuation that ends early leaves nothing to do.
            Progress::End { prompt } => finished += options.max_new_tokens - counts[prompt],
        }
        last = Instant::now();
        let is_cancelled = done((new + finished) as u64).is_break();
        if is_cancelled || broken.is_some() { Next::Cancel } else { next }
    };
    let found = generate(decoder, prompts.tokens, options, watch);
    if let Some(error) = broken {
        return Err(error.into());
    }
    let found = found.map_err(|error: GenerationError| Error::from(error))?;
    let mut all = Vec::with_capacity(found.len());
    for ((continuation, mut stream), mut text) in found.into_iter().zip(streams).zip(texts) {
        text.push_str(&stream.finish()?);
        if let Some(end) = first_stop(&text, prompts.stop) {
            text.truncate(end);
        }
        all.push(GeneratedText { text, tokens: continuation.tokens, finish: continuation.finish });
    }
    let speed = Speed { new_tokens: new, prompts: all.len(), seconds: start.elapsed().as_secs_f64(), reading };
    Ok(Continued { texts: all, speed })
}

/// Where the first of these texts begins.
fn first_stop(text: &str, stop: &[String]) -> Option<usize> {
    stop.iter().filter(|stop| !stop.is_empty()).filter_map(|stop| text.find(stop.as_str())).min()
}
