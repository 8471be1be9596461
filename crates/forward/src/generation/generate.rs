//! Prompts continued together, as many at a time as memory allows. Which ones are together changes nothing about any.

use super::GenerationError;
use super::sampling::{Sampler, Sampling};
use crate::forward::cpu::Cpu;
use crate::forward::{Decoder, Session, SessionOps};
use std::collections::HashMap;

/// Sequences that are continued together: more take longer for each token, in proportion.
const MOST: usize = 32;

/// Options of a generation.
#[derive(Clone, Debug)]
pub struct GenerationOptions {
    /// Tokens of a continuation at most.
    pub max_new_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens that end a continuation, and are not part of it.
    pub stop: Vec<u32>,
    /// The arithmetic.
    pub cpu: Cpu,
    /// Bytes of keys, values, and weights that are read into memory.
    pub memory: u64,
}

/// A continued prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// The tokens behind the prompt.
    pub tokens: Vec<u32>,
    /// Why it ends there.
    pub finish: Finish,
}

/// Why a continuation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A token that ends texts follows.
    EndOfText,
    /// It has as many tokens as were allowed.
    Length,
    /// It was ended from outside.
    Stopped,
}

/// Something that has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Tokens of a prompt were read.
    Read {
        /// The number of the prompt, from 0.
        prompt: usize,
    },
    /// A token was chosen.
    Token {
        /// The number of the prompt, from 0.
        prompt: usize,
        /// The token.
        token: u32,
    },
    /// A continuation ends.
    End {
        /// The number of the prompt, from 0.
        prompt: usize,
    },
}

/// How the generation goes on after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The generation continues.
    Continue,
    /// The continuation of this prompt ends with this token.
    End,
    /// The generation is cancelled.
    Cancel,
}

/// A sequence that is being continued.
struct Active {
    prompt: usize,
    sequence: usize,
    tokens: Vec<u32>,
    sampler: Sampler,
}

/// Continues prompts of tokens. The result for a prompt does not depend on the others, on the number of threads, or on memory; equal
/// prompts draw different random numbers.
///
/// # Errors
///
/// Prompts that are empty or too long, settings out of range, tokens that the model does not know, logits that are NaN, and a `watch`
/// that cancels.
pub fn generate(
    decoder: &Decoder<'_>,
    prompts: &[Vec<u32>],
    options: &GenerationOptions,
    mut watch: impl FnMut(Progress) -> Next,
) -> Result<Vec<Continuation>, GenerationError> {
    let at_once = check(decoder, prompts, options)?;
    let (many, single) = (options.cpu, options.cpu.by_rows());
    let mut session = Session::new(decoder, SessionOps { many: &many, single: &single });
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    session.expand_weights(options.memory.saturating_sub(at_once as u64 * sequence_bytes(decoder, longest, options)));
    let mut done: Vec<Option<Continuation>> = vec![None; prompts.len()];
    let mut copies: HashMap<&[u32], usize> = HashMap::new();
    let mut waiting = prompts.iter().enumerate();
    let mut active: Vec<Active> = Vec::new();
    loop {
        let mut logits = match active.is_empty() {
            true => Vec::new(),
            false => {
                let last: Vec<(usize, [u32; 1])> = active.iter().map(|a| (a.sequence, [a.last()])).collect();
                let parts: Vec<(usize, &[u32])> =
                    last.iter().map(|(sequence, token)| (*sequence, &token[..])).collect();
                session.append(&parts)?
            }
        };
        for (prompt, tokens) in waiting.by_ref().take(at_once - active.len()) {
            let copy = copies.entry(tokens).or_default();
            let sampler = Sampler::new(options.sampling, *copy);
            *copy += 1;
            let sequence = session.begin();
            logits.extend(session.append(&[(sequence, tokens)])?);
            active.push(Active { prompt, sequence, tokens: Vec::new(), sampler });
            if watch(Progress::Read { prompt }) == Next::Cancel {
                return Err(GenerationError::Cancelled);
            }
        }
        if active.is_empty() {
            break;
        }
        let rows = logits.chunks_exact(decoder.vocabulary().max(1));
        let mut remaining = Vec::with_capacity(active.len());
        for (mut one, logits) in active.into_iter().zip(rows) {
            let finish = one.choose(logits, prompts, options, &mut watch)?;
            let Some(finish) = finish else {
                remaining.push(one);
                continue;
            };
            session.end(one.sequence);
            done[one.prompt] = Some(Continuation { tokens: one.tokens, finish });
            if watch(Progress::End { prompt: one.prompt }) == Next::Cancel {
                return Err(GenerationError::Cancelled);
            }
        }
        active = remaining;
    }
    Ok(done.into_iter().flatten().collect())
}

impl Active {
    /// The last token, which the session has not read.
    fn last(&self) -> u32 {
        self.tokens.last().copied().unwrap_or_default()
    }

    /// Chooses the next token. Returns why the continuation ends with it, if it does.
    fn choose(
        &mut self,
        logits: &[f32],
        prompts: &[Vec<u32>],
        options: &GenerationOptions,
        watch: &mut impl FnMut(Progress) -> Next,
    ) -> Result<Option<Finish>, GenerationError> {
        let not_a_number = || GenerationError::NotANumber {
            number: self.prompt + 1,
            tokens: prompts[self.prompt].len() + self.tokens.len(),
        };
        let token = self.sampler.choose(logits).ok_or_else(not_a_number)?;
        if options.stop.contains(&token) {
            return Ok(Some(Finish::EndOfText));
        }
        self.tokens.push(token);
        match watch(Progress::Token { prompt: self.prompt, token }) {
            Next::Cancel => Err(GenerationError::Cancelled),
            Next::End => Ok(Some(Finish::Stopped)),
            Next::Continue if self.tokens.len() >= options.max_new_tokens => Ok(Some(Finish::Length)),
            Next::Continue => Ok(None),
        }
    }
}

/// Bytes that are kept of a prompt and its continuation.
fn sequence_bytes(decoder: &Decoder<'_>, prompt: usize, options: &GenerationOptions) -> u64 {
    decoder.cache_bytes(prompt.saturating_add(options.max_new_tokens))
}

/// Refuses what cannot be generated. Returns how many sequences are continued together.
fn check(decoder: &Decoder<'_>, prompts: &[Vec<u32>], options: &GenerationOptions) -> Result<usize, GenerationError> {
    options.sampling.check()?;
    let new = options.max_new_tokens;
    if new == 0 {
        let (setting, value) = ("‹max-new-tokens›", "0".to_owned());
        return Err(GenerationError::Setting { setting, value, allowed: "at least 1" });
    }
    for (index, prompt) in prompts.iter().enumerate() {
        let number = index + 1;
        if prompt.is_empty() {
            return Err(GenerationError::EmptyPrompt { number });
        }
        if let Some(longest) = decoder.longest().filter(|longest| prompt.len().saturating_add(new) > *longest) {
            return Err(GenerationError::TooLong { number, prompt: prompt.len(), new, longest });
        }
    }
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let needed = sequence_bytes(decoder, longest, options);
    if needed > options.memory {
        let tokens = longest.saturating_add(new);
        return Err(GenerationError::Memory { tokens, needed, allowed: options.memory });
    }
    Ok(usize::try_from(options.memory / needed.max(1)).unwrap_or(MOST).clamp(1, MOST))
}
