//! The tokenizer: some file of one, and no token beyond the embedding, which some models have all the same.

use crate::verify::subject::CheckpointView;
use kvant_quant::finding::Findings;
use serde_json::Value;

/// Files of which one holds the vocabulary.
const FILES: [&str; 6] =
    ["tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "spiece.model"];

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    // Of a component of a pipeline the tokenizer, if any, is a component too.
    let reads_text =
        subject.config.vocab_size.is_some() || subject.network.family().is_some() && !subject.reads_no_tokens();
    let has_own = subject.json.is_some() && !subject.config.is_component && reads_text;
    let Some(dir) = subject.checkpoint.directory().filter(|_| has_own) else { return };
    if !FILES.iter().any(|file| dir.join(file).is_file()) {
        let hint = "copy tokenizer.json, tokenizer_config.json and their like from the original model";
        return findings.warning("tokenizer.json", "there is no tokenizer next to the weights", hint);
    }
    match subject.checkpoint.json("tokenizer.json") {
        Err(error) => findings.error("tokenizer.json", error.to_string(), "copy it from the original model"),
        Ok(Some(tokenizer)) => {
            contents(&tokenizer, findings);
            vocabulary(subject, &tokenizer, findings);
        }
        Ok(None) => {}
    }
}

/// What `tokenizers` and transformers ask of the file: a model with a vocabulary, merges of tokens that it has, and a list of added
/// tokens.
fn contents(tokenizer: &Value, findings: &mut Findings) {
    const HINT: &str = "copy it from the original model";
    let vocabulary = tokenizer.get("model").and_then(|model| model.get("vocab"));
    if !vocabulary.is_some_and(|vocabulary| vocabulary.is_object() || vocabulary.is_array()) {
        return findings.error("tokenizer.json", "has no model with a vocabulary", HINT);
    }
    if !tokenizer.get("added_tokens").is_some_and(Value::is_array) {
        findings.error("tokenizer.json", "has no list of added tokens: transformers raises", HINT);
    }
    if let Some(token) = unknown_in_merges(&tokenizer["model"]) {
        let shown: String = token.chars().take(60).flat_map(char::escape_debug).collect();
        findings.error("tokenizer.json", format!("merges the token `{shown}`, which is not in the vocabulary"), HINT);
    }
}

/// The first part of a merge that is no token. Merges are pairs, or texts with a space between both.
fn unknown_in_merges(model: &Value) -> Option<&str> {
    let vocabulary = model.get("vocab")?.as_object()?;
    let merges = model.get("merges")?.as_array()?;
    let parts = merges.iter().flat_map(|merge| match merge {
        Value::String(text) => text.split(' ').collect(),
        other => other.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>(),
    });
    parts.into_iter().find(|part| !vocabulary.contains_key(*part))
}

fn vocabulary(subject: &CheckpointView<'_>, tokenizer: &Value, findings: &mut Findings) {
    let Some(rows) = subject.config.embedding_rows() else { return };
    let largest = largest_token(tokenizer).filter(|largest| *largest >= rows as u64);
    if let Some(largest) = largest {
        let reason = format!("has a token {largest}, and the embedding {rows} rows");
        // Padding tokens that were added without a row are harmless as long as nobody asks for them.
        findings.warning(
            "tokenizer.json",
            reason,
            "a model that is given such a token fails: is it the tokenizer of another?",
        );
    }
}

/// The largest number of a token.
fn largest_token(tokenizer: &Value) -> Option<u64> {
    let vocabulary = tokenizer.get("model").and_then(|model| model.get("vocab"));
    let listed = match vocabulary {
        Some(Value::Object(tokens)) => tokens.values().filter_map(Value::as_u64).max(),
        Some(Value::Array(tokens)) => (tokens.len() as u64).checked_sub(1),
        _ => None,
    };
    let added = tokenizer.get("added_tokens").and_then(Value::as_array).into_iter().flatten();
    listed.into_iter().chain(added.filter_map(|token| token.get("id")?.as_u64())).max()
}
