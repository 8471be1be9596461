//! What of a GGUF file makes loaders stumble that read GGUF, and which are left. The rules are in the table of loaders.

use crate::loader_rules::{GgufFacts, ModelFacts, file_refusal, loaders as known_loaders};
use kvant_container::gguf::{Metadata, Value, parts_named};
use kvant_gguf::model::architecture::ARCHITECTURES;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The facts of a file with such a name, metadata and tensors.
pub(super) fn facts<'t>(name: &str, metadata: &Metadata, tensors: impl IntoIterator<Item = &'t str>) -> ModelFacts {
    let named = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
    let numbers = numbers(metadata, named);
    let scaling = metadata.get(&format!("{named}.rope.scaling.type")).and_then(Value::as_str);
    let tensors: BTreeSet<String> = tensors.into_iter().map(|name| without_block(name).to_owned()).collect();
    let factors = ["rope_freqs.weight", "rope_factors_long.weight"].iter().any(|name| tensors.contains(*name));
    let architecture = ARCHITECTURES.iter().map(|row| row.name).find(|name| *name == named);
    ModelFacts {
        described: architecture.is_some(),
        experts: numbers.get("expert_count").is_some_and(|count| *count > 0.0),
        architecture,
        scaled_rope: factors || scaling.is_some_and(|kind| kind != "none"),
        file: GgufFacts {
            is_named: name.to_ascii_lowercase().ends_with(".gguf"),
            is_part: parts_named(Path::new(name)).len() > 1,
            numbers,
            tensors,
        },
        ..ModelFacts::default()
    }
}

/// `blk.0.attn_q.bias` is `attn_q.bias`.
fn without_block(name: &str) -> &str {
    let inner = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    inner.map_or(name, |(_, stem)| stem)
}

/// The numbers of an architecture, and those that follow from them.
fn numbers(metadata: &Metadata, architecture: &str) -> BTreeMap<String, f64> {
    let of_architecture = |key: &str| Some(key.strip_prefix(architecture)?.strip_prefix('.')?.to_owned());
    let entries = metadata.entries().iter();
    let mut numbers: BTreeMap<String, f64> =
        entries.filter_map(|(key, value)| Some((of_architecture(key)?, value.as_f64()?))).collect();
    let number = |key: &str| numbers.get(key).copied().filter(|number| *number > 0.0);
    let width = number("embedding_length").zip(number("attention.head_count"));
    let head = number("attention.key_length").or_else(|| width.map(|(width, heads)| (width / heads).floor()));
    let head_part = head.zip(width).map(|(head, (width, heads))| head * heads / width);
    let rope_part = number("rope.dimension_count").zip(head).map(|(turning, head)| turning / head);
    let derived = GgufFacts::DERIVED.into_iter().zip([head, head_part, rope_part]);
    numbers.extend(derived.filter_map(|(name, number)| Some((name.to_owned(), number?))).collect::<Vec<_>>());
    numbers
}

/// The loaders that take a file with such a name, metadata and tensors.
pub fn loaders<'t>(name: &str, metadata: &Metadata, tensors: impl IntoIterator<Item = &'t str>) -> Vec<&'static str> {
    let facts = facts(name, metadata, tensors);
    let rows = known_loaders().iter().filter_map(|loader| loader.of_method("gguf"));
    rows.filter(|(_, layout)| file_refusal(layout, &facts).is_none()).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_listed(architecture: &str, pairs: &[(&str, f32)], tensors: &[&str]) -> bool {
        let mut metadata = Metadata::default();
        metadata.set("general.architecture", architecture);
        pairs.iter().for_each(|(key, value)| metadata.set(format!("{architecture}.{key}"), *value));
        loaders("model.gguf", &metadata, tensors.iter().copied()).contains(&"transformers")
    }

    #[test]
    fn loaders_that_look_for_a_name_are_listed_for_that() {
        let mut metadata = Metadata::default();
        metadata.set("general.architecture", "llama");
        let found = |name: &str| loaders(name, &metadata, []);
        assert!(found("M.GGUF").contains(&"transformers"));
        assert_eq!(found("m-00002-of-00003.gguf"), ["llama.cpp"]);
        assert!(!found("model.bin").contains(&"transformers") && found("model.bin").contains(&"llama.cpp"));
    }

    #[test]
    fn loaders_that_ignore_gguf_metadata_are_not_listed() {
        assert!(is_listed("llama", &[], &[]) && is_listed("qwen3", &[("attention.key_length", 128.0)], &[]));
        assert!(!is_listed("llama", &[("expert_count", 8.0)], &[]), "experts are left as they were drawn");
        assert!(!is_listed("qwen3", &[("attention.key_length", 64.0)], &[]), "heads of 128 are taken for granted");
        assert!(!is_listed("llama", &[], &["rope_freqs.weight"]) && !is_listed("olmo2", &[], &[]));
    }

    #[test]
    fn loaders_that_leave_tensors_out_are_not_listed() {
        assert!(is_listed("qwen2", &[], &["blk.0.attn_q.bias"]) && is_listed("stablelm", &[], &["blk.1.attn_q.bias"]));
        assert!(!is_listed("llama", &[], &["blk.11.attn_q.bias"]) && !is_listed("llama", &[], &["blk.0.ffn_up.bias"]));
        assert!(!is_listed("stablelm", &[], &["blk.0.attn_q_norm.weight"]));
    }

    #[test]
    fn loaders_that_assume_numbers_are_not_listed_for_others() {
        let stablelm = |turning: f32, base: f32| {
            let sizes = [("embedding_length", 256.0), ("attention.head_count", 4.0)];
            let rope = [("rope.dimension_count", turning), ("rope.freq_base", base)];
            is_listed("stablelm", &[sizes, rope].concat(), &[])
        };
        assert!(stablelm(16.0, 10_000.0), "a quarter of heads of 64");
        assert!(!stablelm(32.0, 10_000.0) && !stablelm(16.0, 500_000.0));
        let eps = |eps: f32| is_listed("nemotron", &[("attention.layer_norm_epsilon", eps)], &[]);
        assert!(eps(1e-5) && !eps(1e-6));
    }
}
