//! The chat template of a checkpoint: found, compiled and rendered as transformers does it, with what a hostile template
//! could do without end cut off. Templates see the conversation and the names of special tokens, and nothing else.

mod found;
mod python;

use super::CalibrationDataError;
use super::error::shorten;
use found::Found;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_128;

/// Steps of a rendering. The longest conversations in use take some ten thousand.
const FUEL: u64 = 5_000_000;
/// The longest rendered conversation in bytes.
const MAX_RENDERED: usize = 32 << 20;
/// Nested calls of macros.
const MAX_RECURSION: usize = 50;
/// The name under which the template is known to its environment.
const NAME: &str = "chat_template";

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Vec<(String, String)>,
    file: PathBuf,
    source: String,
}

/// The result of rendering a conversation.
#[derive(Debug, PartialEq)]
pub enum Rendered {
    /// A text, with its special tokens.
    Text(String),
    /// The template refuses it, or cannot handle it, and says why.
    Refused(String),
}

impl ChatTemplate {
    /// The template of the checkpoint in `model`, where it has one.
    ///
    /// # Errors
    ///
    /// Files that cannot be read, and templates that are not understood.
    pub fn open(model: &Path) -> Result<Option<ChatTemplate>, CalibrationDataError> {
        let Some(Found { file, source, special_tokens }) = found::find(model)? else { return Ok(None) };
        let unusable = |error: &Error| CalibrationDataError::Template {
            file: file.clone(),
            message: message("the chat template", error),
        };
        let mut environment = environment().map_err(|error| unusable(&error))?;
        environment.add_template_owned(NAME, without_generation_tags(&source)).map_err(|error| unusable(&error))?;
        Ok(Some(ChatTemplate { environment, special_tokens, file, source }))
    }

    /// The XXH3 hash of its text.
    pub(super) fn hash(&self) -> String {
        format!("{:032x}", xxh3_128(self.source.as_bytes()))
    }

    /// The special token of this name, such as `bos_token`.
    pub(super) fn special_token(&self, name: &str) -> Option<&str> {
        self.special_tokens.iter().find(|(known, _)| known == name).map(|(_, token)| token.as_str())
    }

    /// Its text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation whole, without asking for an answer.
    ///
    /// # Errors
    ///
    /// A template that does not come to an end.
    pub fn render(&self, messages: &[serde_json::Value]) -> Result<Rendered, CalibrationDataError> {
        self.rendered(messages, false)
    }

    /// Renders a conversation up to where the model answers.
    ///
    /// # Errors
    ///
    /// A template that does not come to an end.
    pub fn render_prompt(&self, messages: &[serde_json::Value]) -> Result<Rendered, CalibrationDataError> {
        self.rendered(messages, true)
    }

    fn rendered(&self, messages: &[serde_json::Value], asks: bool) -> Result<Rendered, CalibrationDataError> {
        let tokens = self.special_tokens.iter().map(|(name, token)| (name.as_str(), Value::from(token.as_str())));
        let others = [
            ("messages", Value::from(Serde(messages))),
            ("add_generation_prompt", asks.into()),
            ("tools", ().into()),
            ("documents", ().into()),
        ];
        let context = Value::from_pairs(tokens.chain(others));
        let mut text = Bounded(Vec::new());
        let done = self
            .environment
            .get_template(NAME)
            .and_then(|template| template.render_captured_to(context, &mut text).map(drop));
        match done {
            Ok(()) => Ok(Rendered::Text(String::from_utf8_lossy(&text.0).into_owned())),
            Err(error) if matches!(error.kind(), ErrorKind::OutOfFuel | ErrorKind::WriteFailure) => {
                let message = message("rendering a conversation with the chat template has no end", &error);
                Err(CalibrationDataError::Template { file: self.file.clone(), message })
            }
            Err(error) => Ok(Rendered::Refused(message("the chat template", &error))),
        }
    }
}

/// The template environment of transformers: trimmed blocks, loop controls, and two functions.
fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(MAX_RECURSION);
    environment.set_formatter(python::format);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", python::to_json);
    environment.add_function("strftime_now", python::strftime);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    Ok(environment)
}

/// transformers knows a block `generation` that marks what the model says and renders what is in it. It becomes a condition
/// that always holds, which treats white space around it in the same way.
fn without_generation_tags(source: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(source.len()), source);
    while let Some((before, after)) = rest.split_once("{%") {
        let sign = after.find(|c| c != '-' && c != '+' && !char::is_whitespace(c)).unwrap_or(after.len());
        let (space, tag) = after.split_at(sign);
        let names = [("generation", "if true"), ("endgeneration", "endif")];
        let known = names.iter().find_map(|(name, instead)| Some((instead, tag.strip_prefix(name)?)));
        let known = known.filter(|(_, end)| end.trim_start().trim_start_matches(['-', '+']).starts_with("%}"));
        let (instead, after) = known.map_or(("", tag), |(instead, end)| (instead, end));
        out.extend([before, "{%", space, instead]);
        rest = after;
    }
    out + rest
}

/// An error on one line, with the line of the template.
fn message(what: &str, error: &Error) -> String {
    let line = error.line().map_or(String::new(), |line| format!(", line {line}"));
    let detail = error.detail().map_or(error.kind().to_string(), str::to_owned);
    shorten(&format!("{what}{line}: {detail}"))
}

/// A text that does not grow for ever.
struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_RENDERED {
            return Err(std::io::Error::other("the text is too long"));
        }
        self.0.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
