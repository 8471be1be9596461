//! Special tokens by what they are for, whether they are put around a text, and the chat template.

use super::Habits;
use super::files::Files;
use super::token::added;
use kvant_container::gguf::{Metadata, Text};
use serde_json::Value;

/// A special token: its name in Hugging Face's files and in GGUF, there in the spelling of llama.cpp.
pub const SPECIAL: &[(&str, &str)] =
    &[("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("sep", "seperator"), ("pad", "padding"), ("mask", "mask")];

/// Families trained without SentencePiece's leading space, whose files do not state it.
const WITHOUT_SPACE: &[&str] = &["gemma", "gemma2", "gemma3"];

/// Adds them to the metadata.
pub(crate) fn describe(files: &Files, habits: Habits, metadata: &mut Metadata) {
    for (name, key) in SPECIAL {
        let id = id(files, name).filter(|id| (*id as usize) < habits.rows);
        metadata.set_some(format!("tokenizer.ggml.{key}_token_id"), id);
    }
    for (name, is_added) in [("bos", begins(files)), ("eos", ends(files))] {
        let stated = files.stated(&format!("add_{name}_token")).and_then(Value::as_bool);
        metadata.set_some(format!("tokenizer.ggml.add_{name}_token"), stated.or(is_added));
    }
    if WITHOUT_SPACE.contains(&habits.family) {
        metadata.set("tokenizer.ggml.add_space_prefix", false);
    }
    template(files, metadata);
}

/// The number of a special token: of the one that tokenizer_config.json names, else as config.json or
/// generation_config.json say.
fn id(files: &Files, name: &str) -> Option<u32> {
    let text = named(files, name);
    let added = files.tokenizer.as_ref().map(added).unwrap_or_default();
    let found = text.and_then(|text| Some(added.iter().find(|token| token.text == text)?.id as u64));
    let in_vocabulary = || vocabulary_id(files, text?);
    let stated = || [&files.model, &files.generation].into_iter().find_map(|file| stated_id(file.as_ref()?, name));
    found.or_else(in_vocabulary).or_else(stated).and_then(|id| u32::try_from(id).ok())
}

/// The text of a special token.
fn named<'a>(files: &'a Files, name: &str) -> Option<&'a str> {
    let entry = files.stated(&format!("{name}_token"))?;
    entry.as_str().or_else(|| entry.get("content")?.as_str())
}

fn vocabulary_id(files: &Files, text: &str) -> Option<u64> {
    match &files.tokenizer {
        Some(tokenizer) => tokenizer.pointer("/model/vocab")?.get(text)?.as_u64(),
        None => Some(files.pieces.as_ref()?.iter().position(|piece| piece.text == text)? as u64),
    }
}

/// A number that a file states, the first where it states several.
fn stated_id(file: &Value, name: &str) -> Option<u64> {
    let key = format!("{name}_token_id");
    let of = |fields: &Value| {
        let value = fields.get(&key)?;
        value.as_u64().or_else(|| value.get(0)?.as_u64())
    };
    of(file).or_else(|| of(file.get("text_config")?))
}

/// Returns whether the tokenizer prepends a token to a text; `None` if no file states it.
fn begins(files: &Files) -> Option<bool> {
    let single = single(files)?;
    Some(single.first().is_some_and(|step| step.get("SpecialToken").is_some()))
}

/// Returns whether it appends one.
fn ends(files: &Files) -> Option<bool> {
    let single = single(files)?;
    Some(single.len() > 1 && single.last().is_some_and(|step| step.get("SpecialToken").is_some()))
}

/// The template of a single sequence; empty where there is none.
fn single(files: &Files) -> Option<Vec<&Value>> {
    fn of_step(node: &Value) -> Option<Vec<&Value>> {
        if let Some(inner) = node.get("processors").and_then(Value::as_array) {
            return inner.iter().find_map(of_step);
        }
        Some(node.get("single")?.as_array()?.iter().collect())
    }
    let processor = files.tokenizer.as_ref()?.get("post_processor").unwrap_or(&Value::Null);
    Some(of_step(processor).unwrap_or_default())
}

/// The chat template: a separate file, otherwise that of tokenizer_config.json, by name if there are several.
fn template(files: &Files, metadata: &mut Metadata) {
    const KEY: &str = "tokenizer.chat_template";
    let stated = files.stated("chat_template");
    if let Some(text) = files.template.as_deref().or_else(|| stated?.as_str()) {
        metadata.set(KEY, text);
        return;
    }
    let mut names: Vec<Text> = Vec::new();
    for entry in stated.and_then(Value::as_array).into_iter().flatten() {
        let text = |key: &str| entry.get(key).and_then(Value::as_str);
        match (text("name"), text("template")) {
            (Some("default"), Some(template)) => metadata.set(KEY, template),
            (Some(name), Some(template)) => {
                metadata.set(format!("{KEY}.{name}"), template);
                names.push(name.into());
            }
            _ => {}
        }
    }
    if !names.is_empty() {
        metadata.set("tokenizer.chat_templates", names);
    }
}
