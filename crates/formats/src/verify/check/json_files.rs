//! The other JSON files that loaders parse: an object each.

use crate::verify::subject::CheckpointView;
use kvant_quant::finding::Findings;

/// Files that transformers parses where they are there. config.json and tokenizer.json have checks of their own.
const FILES: [&str; 8] = [
    "added_tokens.json",
    "chat_template.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
    "video_preprocessor_config.json",
];

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    if subject.json.is_none() {
        return;
    }
    for name in FILES {
        let reason = match subject.checkpoint.json(name) {
            Err(error) => error.to_string(),
            Ok(Some(value)) if !value.is_object() => "holds no JSON object".to_owned(),
            Ok(_) => continue,
        };
        findings.error(name, reason, "copy it from the original model, or remove it");
    }
}
