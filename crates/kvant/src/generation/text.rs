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

/// The receiver of what is continued.
pub(super) struct Watcher<'w> {
    /// Receives the tokens so far, and breaks to cancel.
    pub(super) done: &'w mut (dyn FnMut(u64) -> ControlFlow<()> + Send),
    /// Receives the number of a prompt and the further text.
    pub(super) text: &'w mut (dyn FnMut(usize, &str) + Send),
}

/// Continues the prompts.
pub(super) fn continued(
    decoder: &Decoder<'_>,
    prompts: &Prompts<'_>,
    options: &GenerationOptions,
    watcher: Watcher<'_>,
) -> Result<Continued, Error> {
    let Watcher { done, text: show } = watcher;
    let before = |tokens: &Vec<u32>| match prompts.texts {
        Texts::Continued => tokens.clone(),
        Texts::Alone => Vec::new(),
    };
    let mut streams: Vec<_> = prompts.tokens.iter().map(|tokens| prompts.tokenizer.stream(&before(tokens))).collect();
    let mut texts = vec![String::new(); prompts.tokens.len()];
    let mut shown = vec![0; prompts.tokens.len()];
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
                } else {
                    let end = certain(&texts[prompt], prompts.stop).max(shown[prompt]);
                    show_to(&texts[prompt], &mut shown[prompt], end, |text| show(prompt, text));
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
    for (prompt, ((continuation, mut stream), mut text)) in found.into_iter().zip(streams).zip(texts).enumerate() {
        text.push_str(&stream.finish()?);
        if let Some(end) = first_stop(&text, prompts.stop) {
            text.truncate(end);
        }
        show_to(&text, &mut shown[prompt], text.len(), |text| show(prompt, text));
        all.push(GeneratedText { text, tokens: continuation.tokens, finish: continuation.finish });
    }
    let speed = Speed { new_tokens: new, prompts: all.len(), seconds: start.elapsed().as_secs_f64(), reading };
    Ok(Continued { texts: all, speed })
}

/// Shows a text up to an end, from where it was shown to.
fn show_to(text: &str, shown: &mut usize, end: usize, show: impl FnOnce(&str)) {
    let further = &text[*shown..end];
    if !further.is_empty() {
        show(further);
    }
    *shown = end;
}

/// The end of the text that remains whatever follows: what may be the beginning of a text that ends it is behind.
fn certain(text: &str, stop: &[String]) -> usize {
    let begins = |at: &usize| stop.iter().any(|stop| stop.len() > text.len() - at && stop.starts_with(&text[*at..]));
    text.char_indices().map(|(at, _)| at).find(begins).unwrap_or(text.len())
}

/// Where the first of these texts begins.
fn first_stop(text: &str, stop: &[String]) -> Option<usize> {
    stop.iter().filter(|stop| !stop.is_empty()).filter_map(|stop| text.find(stop.as_str())).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_of_stop_texts_are_held_back() {
        let stop = ["end.".to_owned(), "\n\n".to_owned(), "é!".to_owned()];
        let held = |text: &str| text[certain(text, &stop)..].to_owned();
        assert_eq!(held("the en"), "en");
        assert_eq!(held("the end"), "end");
        assert_eq!(held("the\n"), "\n");
        assert_eq!((held("ende"), held("caf"), held("café")), ("e".to_owned(), String::new(), "é".to_owned()));
        assert_eq!(certain("anything", &[]), 8);
    }

    #[test]
    fn text_is_shown_once() {
        let (mut shown, mut parts) = (0, Vec::new());
        for end in [0, 3, 3, 7] {
            show_to("one two", &mut shown, end, |text| parts.push(text.to_owned()));
        }
        assert_eq!(parts, ["one", " two"]);
    }
}
