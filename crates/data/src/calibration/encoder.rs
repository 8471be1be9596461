//! Tokenizes documents with the checkpoint's tokenizer and chat template, and checks them against its vocabulary.

use super::chat_template::{ChatTemplate, Rendered};
use super::document::{Document, Skip};
use super::{CalibrationDataError, Packing};
use crate::tokenizer::{ModelTokenizer, TokenizerError};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Makes tokens of documents.
pub(super) struct Encoder {
    model: PathBuf,
    /// Opened for the first text: tokens need none.
    tools: Option<Tools>,
    pub vocabulary: usize,
    longest: usize,
    /// Conversations rendered with the chat template.
    pub templated: u64,
    /// Conversations joined without one.
    pub untemplated: u64,
    /// The message of the chat template's first refusal.
    pub refusal: Option<String>,
}

/// The requirements of text.
struct Tools {
    tokenizer: ModelTokenizer,
    /// Opened for the first conversation: plain text does not depend on whether the template is intact.
    template: Option<Option<ChatTemplate>>,
}

/// The reason that a document has no tokens.
pub(super) enum Unusable {
    /// It is of no use.
    Skip(Skip),
    /// It has a token that the model does not.
    Unknown(i64),
    /// Nothing can be encoded.
    Error(CalibrationDataError),
}

impl From<CalibrationDataError> for Unusable {
    fn from(error: CalibrationDataError) -> Unusable {
        Unusable::Error(error)
    }
}

impl From<TokenizerError> for Unusable {
    fn from(error: TokenizerError) -> Unusable {
        Unusable::Error(error.into())
    }
}

impl Encoder {
    /// An encoder for a model of `vocabulary` tokens, and samples of at most `longest`.
    pub(super) fn new(model: &Path, vocabulary: usize, longest: usize) -> Encoder {
        let model = model.to_path_buf();
        Encoder { model, tools: None, vocabulary, longest, templated: 0, untemplated: 0, refusal: None }
    }

    fn tools(&mut self) -> Result<&mut Tools, TokenizerError> {
        let tools = match self.tools.take() {
            Some(tools) => tools,
            None => Tools { tokenizer: ModelTokenizer::open(&self.model)?, template: None },
        };
        Ok(self.tools.insert(tools))
    }

    /// The hash of the chat template, where it was applied.
    pub(super) fn template_hash(&self) -> Option<String> {
        let template = self.tools.as_ref()?.template.as_ref()?.as_ref()?;
        (self.templated > 0).then(|| template.hash())
    }

    /// The tokens of a document: of a sample no more than the longest length.
    pub(super) fn encode(&mut self, document: Document, packing: Packing) -> Result<Vec<u32>, Unusable> {
        let mut tokens = match document {
            Document::Tokens(tokens) => tokens,
            Document::Text(text) => self.text(&text, packing)?.into_iter().map(i64::from).collect(),
            Document::Conversation(messages) => {
                self.conversation(&messages, packing)?.into_iter().map(i64::from).collect()
            }
        };
        if packing == Packing::Sample {
            tokens.truncate(self.longest);
        }
        if tokens.is_empty() {
            return Err(Unusable::Skip(Skip::Empty));
        }
        tokens.into_iter().map(|token| self.known(token)).collect()
    }

    fn known(&self, token: i64) -> Result<u32, Unusable> {
        let known = u32::try_from(token).ok().filter(|&token| (token as usize) < self.vocabulary);
        known.ok_or(Unusable::Unknown(token))
    }

    fn text(&mut self, text: &str, packing: Packing) -> Result<Vec<u32>, Unusable> {
        // A tokenizer that adds special tokens would make a sample of nothing else.
        if text.is_empty() {
            return Err(Unusable::Skip(Skip::Empty));
        }
        let longest = self.longest;
        let tokenizer = &self.tools()?.tokenizer;
        Ok(match packing {
            Packing::Sample => tokenizer.encode_truncated(text, longest)?,
            _ => tokenizer.encode(text)?,
        })
    }

    fn conversation(&mut self, messages: &[Value], packing: Packing) -> Result<Vec<u32>, Unusable> {
        let model = self.model.clone();
        let tools = self.tools()?;
        if tools.template.is_none() {
            tools.template = Some(ChatTemplate::open(&model)?);
        }
        let Tools { tokenizer, template: Some(Some(template)) } = tools else {
            self.untemplated += 1;
            return self.text(&joined(messages), packing);
        };
        match template.render(messages)? {
            Rendered::Text(text) => {
                let tokens = tokenizer.encode_rendered(&text)?;
                self.templated += 1;
                Ok(tokens)
            }
            Rendered::Refused(why) => {
                self.refusal.get_or_insert(why);
                Err(Unusable::Skip(Skip::Refused))
            }
        }
    }
}

/// A conversation as plain text, for models without a chat template: the messages, separated by blank lines.
fn joined(messages: &[Value]) -> String {
    messages.iter().filter_map(|message| message["content"].as_str()).collect::<Vec<_>>().join("\n\n")
}
