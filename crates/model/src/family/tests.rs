//! Checks over the whole table, and the facts of the incumbents that must come out of it.

use super::*;
use serde_json::json;
use std::collections::HashSet;

#[test]
fn family_table_is_sorted_with_unique_names() {
    let names: Vec<_> = FAMILIES.iter().map(|family| family.name).collect();
    assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
    // Encoders of encoder-decoders share theirs with these.
    let whole = FAMILIES.iter().filter(|family| !family.encoder.is_some_and(|encoder| encoder.is_of_its_classes));
    let types: Vec<_> = whole.flat_map(|family| family.model_types).collect();
    assert_eq!(types.iter().collect::<HashSet<_>>().len(), types.len(), "a model_type means two families");
    let classes: Vec<_> = FAMILIES.iter().flat_map(|family| family.architectures).collect();
    assert_eq!(classes.iter().collect::<HashSet<_>>().len(), classes.len(), "a class means two families");
}

#[test]
fn every_family_description_is_complete() {
    for family in FAMILIES.iter() {
        let name = family.name;
        assert_eq!(file::check(family), Ok(()), "{name}");
        assert!(!family.summary.is_empty() && (family.encoder.is_some() || !family.keep.is_empty()), "{name}");
        assert!(!family.summary.ends_with('.') && family.summary.len() <= 120, "{name}: {}", family.summary);
    }
}

#[test]
fn model_type_wins_over_class_name() {
    let of = |value| of_config(&ModelConfig::from_json(&value).unwrap()).map(|family| family.name);
    assert_eq!(of(json!({"model_type": "qwen2"})), Some("qwen2"));
    assert_eq!(of(json!({"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]})), Some("kimi_k2"));
    assert_eq!(of(json!({"model_type": "new", "architectures": ["LlamaForCausalLM"]})), Some("llama"));
    assert_eq!(of(json!({"model_type": "llava", "text_config": {"model_type": "mistral"}})), Some("mistral"));
    assert_eq!(of(json!({"model_type": "rwkv"})), None);
    // An encoder is no encoder-decoder.
    assert_eq!(of(json!({"model_type": "t5", "architectures": ["T5EncoderModel"]})), Some("t5_encoder"));
    assert_eq!(of(json!({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]})), Some("t5"));
    assert_eq!(of(json!({"model_type": "umt5"})), Some("umt5"));
    // A tower is no whole model.
    assert_eq!(of(json!({"model_type": "clip_text_model"})), Some("clip_text"));
    assert_eq!(of(json!({"model_type": "clip", "text_config": {"model_type": "clip_text_model"}})), None);
    assert_eq!(of(json!({})), None);
}

/// `kv_layers_name` of AMD Quark's templates.
#[test]
fn kv_cache_owners_match_quark() {
    let split: &[&str] = &["*k_proj", "*v_proj"];
    let expected: &[(&str, &[&str])] =
        &[("deepseek_v2", &["*kv_b_proj"]), ("deepseek_v3", &["*kv_b_proj"]), ("phi3", &["*qkv_proj"])];
    let quark = [
        "cohere",
        "deepseek_v2",
        "deepseek_v3",
        "gemma2",
        "glm4_moe",
        "gpt_oss",
        "gptj",
        "hunyuan_v1_dense",
        "llama",
        "minimax_m2",
        "mistral",
        "mixtral",
        "olmo",
        "opt",
        "phi",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
    ];
    for name in quark {
        let special = expected.iter().find(|(family, _)| *family == name);
        let globs = special.map_or(split, |(_, globs)| globs);
        assert_eq!(by_name(name).unwrap().kv_globs(), globs, "{name}");
    }
}

/// `exclude` of AMD Quark's templates.
#[test]
fn modules_kept_in_float_match_quark() {
    let expected: &[(&str, &[&str])] = &[
        ("cohere", &["lm_head"]),
        ("deepseek_v2", &["lm_head", "*self_attn*", "*mlp.gate"]),
        ("deepseek_v3", &["lm_head", "*self_attn*", "*mlp.gate"]),
        ("gemma2", &["lm_head"]),
        ("gemma3", &["*vision_tower*", "*multi_modal_projector*", "*lm_head"]),
        ("gpt_oss", &["lm_head", "*router*"]),
        ("llama", &["lm_head"]),
        ("minimax_m2", &["lm_head", "*block_sparse_moe.gate*", "*self_attn*"]),
        ("mistral", &["lm_head"]),
        ("mixtral", &["lm_head", "*.gate"]),
        ("olmo", &["lm_head"]),
        ("opt", &["lm_head"]),
        ("phi", &["lm_head"]),
        ("phi3", &["lm_head"]),
        ("qwen2", &["lm_head"]),
        ("qwen2_moe", &["lm_head", "*.gate", "*.shared_expert_gate"]),
        ("qwen3", &["lm_head"]),
        ("qwen3_moe", &["lm_head", "*.gate"]),
    ];
    for (name, keep) in expected {
        assert_eq!(by_name(name).unwrap().keep, *keep, "{name}");
    }
}
