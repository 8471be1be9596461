//! What of a GGUF file makes loaders stumble that read GGUF, and which are left. The rules are in the table of loaders.

use crate::loader_rules::{ModelFacts, file_refusal, loaders as known_loaders};
use kvant_container::gguf::{Metadata, Value};
use kvant_gguf::model::architecture::ARCHITECTURES;

/// The facts of a file with such metadata; `has` tells whether it has a tensor.
pub(super) fn facts(metadata: &Metadata, has: impl Fn(&str) -> bool) -> ModelFacts {
    let named = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
    let value = |key: &str| metadata.get(&format!("{named}.{key}"));
    let number = |key: &str| value(key).and_then(Value::as_u64).and_then(|number| usize::try_from(number).ok());
    let scaling = value("rope.scaling.type").and_then(Value::as_str);
    let factors = ["rope_freqs.weight", "rope_factors_long.weight"].iter().any(|name| has(name));
    let architecture = ARCHITECTURES.iter().map(|row| row.name).find(|name| *name == named);
    ModelFacts {
        described: architecture.is_some(),
        experts: number("expert_count").is_some_and(|count| count > 0),
        architecture,
        scaled_rope: factors || scaling.is_some_and(|kind| kind != "none"),
        head_size: number("attention.key_length"),
        ..ModelFacts::default()
    }
}

/// The loaders that take a file with such metadata.
pub fn loaders(metadata: &Metadata, has: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let facts = facts(metadata, has);
    let rows = known_loaders().iter().filter_map(|loader| loader.of_method("gguf"));
    rows.filter(|(_, layout)| file_refusal(layout, &facts).is_none()).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaders_that_ignore_gguf_metadata_are_not_listed() {
        let named = |pairs: &[(&str, u32)], architecture: &str, tensor: &str| {
            let mut metadata = Metadata::default();
            metadata.set("general.architecture", architecture);
            pairs.iter().for_each(|(key, value)| metadata.set(format!("{architecture}.{key}"), *value));
            loaders(&metadata, |name| name == tensor).contains(&"transformers")
        };
        assert!(named(&[], "llama", "") && named(&[("attention.key_length", 128)], "qwen3", ""));
        assert!(!named(&[("expert_count", 8)], "llama", ""), "experts are left as they were drawn");
        assert!(!named(&[("attention.key_length", 64)], "qwen3", ""), "heads of 128 are taken for granted");
        assert!(!named(&[], "llama", "rope_freqs.weight") && !named(&[], "olmo2", ""));
    }
}
