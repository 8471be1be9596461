//! Tokenizes documents with the checkpoint's tokenizer and chat template, and checks them against its vocabulary.

use super::chat_template::{ChatTemplate, Rendered};
use super::document::{Document, Skip};
use super::error::shorten;
use super::{CalibrationDataError, Packing, conversation};
use crate::images::{ImageMarks, TextImages};
use crate::tokenizer::{ModelTokenizer, TokenizerError};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Makes tokens of documents.
pub(super) struct Encoder {
    model: PathBuf,
    /// The images of conversations.
    pub images: TextImages,
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
    /// What stands for images; found for the first conversation with one.
    marks: Option<ImageMarks>,
}

/// Where a document stands.
#[derive(Clone, Copy)]
pub(super) struct DocumentPlace<'p> {
    /// Its file.
    pub file: &'p Path,
    /// Its row, counted from 1.
    pub row: u64,
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
    pub(super) fn new(model: &Path, vocabulary: usize, longest: usize, images: TextImages) -> Encoder {
        let model = model.to_path_buf();
        Encoder { model, images, tools: None, vocabulary, longest, templated: 0, untemplated: 0, refusal: None }
    }

    fn tools(&mut self) -> Result<&mut Tools, TokenizerError> {
        let tools = match self.tools.take() {
            Some(tools) => tools,
            None => Tools { tokenizer: ModelTokenizer::open(&self.model)?, template: None, marks: None },
        };
        Ok(self.tools.insert(tools))
    }

    /// The hash of the chat template, where it was applied.
    pub(super) fn template_hash(&self) -> Option<String> {
        let template = self.tools.as_ref()?.template.as_ref()?.as_ref()?;
        (self.templated > 0).then(|| template.hash())
    }

    /// The tokens of a document: of a sample no more than the longest length, not counting those of images, which are whole.
    pub(super) fn encode(
        &mut self,
        document: Document,
        packing: Packing,
        place: DocumentPlace<'_>,
    ) -> Result<Vec<u32>, Unusable> {
        let mut tokens = match document {
            Document::Conversation(messages) if conversation::images(&messages).next().is_some() => {
                let mut tokens = self.conversation_with_images(&messages, place)?;
                if packing == Packing::Sample {
                    self.images.shortened(&mut tokens, self.longest);
                }
                return if tokens.is_empty() { Err(Unusable::Skip(Skip::Empty)) } else { Ok(tokens) };
            }
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
        let tokens: Vec<u32> = tokens.into_iter().map(|token| self.known(token)).collect::<Result<_, _>>()?;
        match tokens.iter().any(|token| self.images.is_placeholder(*token)) {
            true => Err(Unusable::Skip(Skip::OtherImages)),
            false => Ok(tokens),
        }
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

    /// The requirements of conversations.
    fn tools_with_template(&mut self) -> Result<&mut Tools, CalibrationDataError> {
        let model = self.model.clone();
        let tools = self.tools()?;
        if tools.template.is_none() {
            tools.template = Some(ChatTemplate::open(&model)?);
        }
        Ok(tools)
    }

    /// The numbers of the images in a conversation, whose paths are relative to the folder of its file.
    fn images_of(&mut self, messages: &[Value], place: DocumentPlace<'_>) -> Result<Vec<usize>, CalibrationDataError> {
        let DocumentPlace { file, row } = place;
        let file = || file.to_path_buf();
        if let Err(why) = self.images.format() {
            return Err(CalibrationDataError::ImagesUnread { file: file(), row, why: why.clone() });
        }
        let folder = place.file.parent().unwrap_or(Path::new(""));
        let mut images = Vec::new();
        for named in conversation::images(messages) {
            let Some(path) = named.as_str() else {
                return Err(CalibrationDataError::ImageWithoutFile { file: file(), row });
            };
            if is_address(path) {
                let address = shorten(path.get(..80).unwrap_or(path));
                return Err(CalibrationDataError::ImageAddress { file: file(), row, address });
            }
            let image = self.images.add(&folder.join(path));
            images.push(image.map_err(|cause| CalibrationDataError::Image { file: file(), row, cause })?);
        }
        Ok(images)
    }

    /// The tokens of a conversation with images, whose rows have the numbers behind the vocabulary.
    fn conversation_with_images(&mut self, messages: &[Value], place: DocumentPlace<'_>) -> Result<Vec<u32>, Unusable> {
        let images = self.images_of(messages, place)?;
        let (file, row) = (|| place.file.to_path_buf(), place.row);
        self.tools_with_template()?;
        let Some(Tools { tokenizer, template: Some(template), marks }) = &mut self.tools else {
            return Err(Unusable::Skip(Skip::Refused));
        };
        let Some(template) = template else {
            return Err(CalibrationDataError::ImagesWithoutTemplate { file: file(), row }.into());
        };
        let in_image = |cause| CalibrationDataError::Image { file: file(), row, cause };
        let marks = match marks {
            Some(marks) => marks,
            None => match self.images.format() {
                Ok(format) => marks.insert(format.marks(tokenizer).map_err(in_image)?),
                Err(_) => return Err(Unusable::Skip(Skip::Refused)),
            },
        };
        let text = match template.render(&conversation::in_parts(messages))? {
            Rendered::Text(text) => text,
            Rendered::Refused(why) => {
                self.refusal.get_or_insert(why);
                return Err(Unusable::Skip(Skip::Refused));
            }
        };
        let text = self.images.expanded(marks, &text, &images).ok_or(Unusable::Skip(Skip::OtherImages))?;
        // As processors of transformers do, unlike tokenizers alone.
        let tokens = match template.special_token("bos_token").is_some_and(|begin| text.starts_with(begin)) {
            true => tokenizer.encode_rendered(&text)?,
            false => tokenizer.encode(&text)?,
        };
        self.templated += 1;
        let is_unknown = |token: &&u32| **token as usize >= self.vocabulary && !self.images.is_placeholder(**token);
        if let Some(unknown) = tokens.iter().find(is_unknown) {
            return Err(Unusable::Unknown(i64::from(*unknown)));
        }
        self.images.numbered(&tokens, &images).ok_or(Unusable::Skip(Skip::OtherImages))
    }

    fn conversation(&mut self, messages: &[Value], packing: Packing) -> Result<Vec<u32>, Unusable> {
        let Tools { tokenizer, template: Some(Some(template)), .. } = self.tools_with_template()? else {
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

/// Returns whether what names an image is an address, as `https://...` or `data:...`, and no path.
fn is_address(path: &str) -> bool {
    let scheme = |scheme: &str| !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    path.split_once("://").is_some_and(|(before, _)| scheme(before)) || path.starts_with("data:")
}
