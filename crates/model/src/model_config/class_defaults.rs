//! What transformers' configuration classes take for keys that config.json does not state, where that differs from what most classes take.
//! `tests/interop/test_absent_keys.py` compares all of them.

use serde_json::{Map, Value};

/// The default of a key in some classes.
struct ClassDefault {
    key: &'static str,
    /// The value in JSON.
    value: &'static str,
    /// The values of `model_type` whose class has it.
    types: &'static [&'static str],
    /// Further keys that say the same.
    unless: &'static [&'static str],
}

const fn row(key: &'static str, value: &'static str, types: &'static [&'static str]) -> ClassDefault {
    ClassDefault { key, value, types, unless: &[] }
}

/// The small number under the root of norms.
const fn epsilon(key: &'static str, value: &'static str, types: &'static [&'static str]) -> ClassDefault {
    ClassDefault {
        unless: &["rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"],
        ..row(key, value, types)
    }
}

/// The base of rotary embeddings.
const fn theta(value: &'static str, types: &'static [&'static str]) -> ClassDefault {
    ClassDefault { unless: &["rope_parameters", "global_rope_theta"], ..row("rope_theta", value, types) }
}

const DEFAULTS: &[ClassDefault] = &[
    row("norm_topk_prob", "true", &["qwen3_next", "qwen3_omni_moe_text"]),
    row("norm_topk_prob", "false", &["dots1"]),
    row(
        "routed_scaling_factor",
        "2.5",
        &["axk1", "bailing_hybrid", "deepseek_v3", "deepseek_v32", "exaone_moe", "glm_moe_dsa"],
    ),
    ClassDefault { unless: &["moe_renormalize"], ..row("norm_topk_prob", "true", &["kimi_linear"]) },
    row("routed_scaling_factor", "2.446", &["kimi_linear"]),
    row("routed_scaling_factor", "6.0", &["longcat_flash"]),
    row("routed_scaling_factor", "1.5", &["deepseek_v4"]),
    row("num_experts_per_tok", "6", &["kolibri1"]),
    row("sliding_window", "513", &["kolibri1"]),
    row("conv_L_cache", "7", &["lfm3"]),
    row("sliding_window", "256", &["lfm3"]),
    row("zero_expert_num", "256", &["longcat_flash"]),
    row("routed_scaling_factor", "2.0", &["minimax_m3_vl", "minimax_m3_vl_text"]),
    row("num_experts_per_tok", "4", &["minimax_m3_vl", "minimax_m3_vl_text"]),
    row("moe_topk", "12", &["longcat_flash"]),
    row("routed_scaling_factor", "1.8", &["glm4_moe_lite"]),
    row("router_scaling_factor", "2.826", &["hy_v3"]),
    row("num_shared_experts", "0", &["cohere2_moe"]),
    row("n_group", "8", &["axk1", "deepseek_v3", "deepseek_v32"]),
    ClassDefault { unless: &["num_expert_group"], ..row("n_group", "8", &["bailing_hybrid"]) },
    ClassDefault { unless: &["num_experts_per_token"], ..row("num_experts_per_tok", "8", &["bailing_hybrid"]) },
    row("topk_group", "4", &["axk1", "bailing_hybrid", "deepseek_v3", "deepseek_v32"]),
    row("first_k_dense_replace", "1", &["axk1"]),
    row("first_k_dense_replace", "2", &["bailing_hybrid"]),
    row("scale_embedding", "true", &["xglm"]),
    epsilon(
        "rms_norm_eps",
        "1e-5",
        &[
            "afmoe",
            "apertus",
            "arcee",
            "bamba",
            "bitnet",
            "cwm",
            "ernie4_5",
            "ernie4_5_moe",
            "exaone4",
            "exaone_moe",
            "falcon_h1",
            "glm4_moe",
            "glm4_moe_lite",
            "glm_moe_dsa",
            "gpt_oss",
            "hunyuan_v1_dense",
            "hunyuan_v1_moe",
            "hy_v3",
            "kimi_linear",
            "llama4_text",
            "longcat_flash",
            "mimo_v2_flash",
            "minimax",
            "ministral3",
            "mixtral",
            "mllama_text_model",
            "olmo2",
            "olmo3",
            "olmoe",
            "phi3",
            "qwen2_5_vl_text",
            "qwen2_vl_text",
            "solar_open",
        ],
    ),
    epsilon(
        "layer_norm_eps",
        "1e-12",
        &["bert", "camembert", "deit", "distilbert", "electra", "esm", "mpnet", "roberta", "vit", "xlm-roberta"],
    ),
    row(
        "image_size",
        "224",
        &["clip_vision_model", "deit", "dinov2", "dinov2_with_registers", "dinov3_vit", "siglip_vision_model", "vit"],
    ),
    row("patch_size", "16", &["deit", "dinov2_with_registers", "dinov3_vit", "siglip_vision_model", "vit"]),
    row("patch_size", "14", &["dinov2"]),
    row("patch_size", "32", &["clip_vision_model"]),
    row(
        "num_channels",
        "3",
        &["clip_vision_model", "deit", "dinov2", "dinov2_with_registers", "dinov3_vit", "siglip_vision_model", "vit"],
    ),
    row("conv_dim", "[512, 512, 512, 512, 512, 512, 512]", &["hubert", "wav2vec2"]),
    row("conv_kernel", "[10, 3, 3, 3, 3, 2, 2]", &["hubert", "wav2vec2"]),
    row("conv_stride", "[5, 2, 2, 2, 2, 2, 2]", &["hubert", "wav2vec2"]),
    row("num_conv_pos_embeddings", "128", &["hubert", "wav2vec2"]),
    row("num_conv_pos_embedding_groups", "16", &["hubert", "wav2vec2"]),
    row("num_mel_bins", "80", &["whisper"]),
    row("max_source_positions", "1500", &["whisper"]),
    row("decoder_start_token_id", "50257", &["whisper"]),
    row("feed_forward_proj", r#""gated-gelu""#, &["mt5", "umt5"]),
    row("feed_forward_proj", r#""relu""#, &["t5"]),
    row("d_kv", "64", &["mt5", "t5", "umt5"]),
    row("eos_token_id", "49407", &["clip_text_model"]),
    row("type_vocab_size", "0", &["deberta-v2"]),
    epsilon("layer_norm_eps", "1e-7", &["deberta-v2"]),
    epsilon("layer_norm_eps", "1e-6", &["dinov2", "dinov2_with_registers", "siglip_text_model", "siglip_vision_model"]),
    theta("100.0", &["dinov3_vit"]),
    row("attn_logit_softcapping", "50.0", &["gemma2"]),
    row("final_logit_softcapping", "30.0", &["gemma2", "gemma3n_text"]),
    row("final_logit_softcapping", "15.0", &["nanochat"]),
    // Where it is null, there are no rotary embeddings.
    ClassDefault {
        unless: &["rope_theta", "rope_scaling"],
        ..row("rope_parameters", r#"{"rope_theta": 10000.0, "rope_type": "default"}"#, &["olmo_hybrid"])
    },
    ClassDefault {
        unless: &["rope_theta", "rope_scaling"],
        ..row(
            "rope_parameters",
            r#"{"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}, "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5}}"#,
            &["lfm3"],
        )
    },
    row("local_attention", "128", &["modernbert"]),
    theta("160000.0", &["modernbert"]),
    ClassDefault { unless: &["rope_parameters"], ..row("local_rope_theta", "10000.0", &["modernbert"]) },
    epsilon("rms_norm_eps", "1.5625e-7", &["glm", "glm4"]),
    epsilon("rms_norm_eps", "1e-8", &["helium"]),
    epsilon("norm_eps", "1e-5", &["lfm2", "lfm2_moe", "lfm3"]),
    epsilon("layer_norm_epsilon", "1e-5", &["falcon_mamba", "mamba", "mamba2", "nemotron_h"]),
    theta("100000.0", &["helium"]),
    theta(
        "500000.0",
        &[
            "bitnet",
            "cohere",
            "ernie4_5",
            "ernie4_5_moe",
            "flex_olmo",
            "llama4_text",
            "mllama_text_model",
            "olmo3",
            "qwen3_vl_moe_text",
            "qwen3_vl_text",
        ],
    ),
    theta(
        "1000000.0",
        &[
            "lfm2",
            "lfm2_moe",
            "minimax",
            "mixtral",
            "phimoe",
            "qwen2_5_vl_text",
            "qwen2_vl_text",
            "qwen3_omni_moe_text",
            "solar_open",
        ],
    ),
    theta("2000000.0", &["smollm3"]),
    theta("6000000.0", &["bailing_hybrid"]),
    theta("5000000.0", &["minimax_m2", "minimax_m3_vl", "minimax_m3_vl_text"]),
    theta("10000000.0", &["longcat_flash"]),
    theta("11158840.0", &["hy_v3"]),
];

/// The keys of a language model with the defaults of the class of `model_type` for those that neither it nor the `whole` model states.
pub(super) fn completed(
    stated: &Map<String, Value>,
    whole: &Map<String, Value>,
    model_type: &str,
) -> Map<String, Value> {
    let mut all = stated.clone();
    let is_stated = |key: &str| stated.contains_key(key) || whole.contains_key(key);
    let is_absent =
        |default: &&ClassDefault| !is_stated(default.key) && !default.unless.iter().any(|key| is_stated(key));
    let of_class = DEFAULTS.iter().filter(|default| default.types.contains(&model_type)).filter(is_absent);
    for default in of_class {
        if let Ok(value) = serde_json::from_str(default.value) {
            all.insert(default.key.to_owned(), value);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_config::ModelConfig;
    use serde_json::json;

    #[test]
    fn defaults_are_json_and_each_class_has_one_for_a_key() {
        for (at, ClassDefault { key, value, types, .. }) in DEFAULTS.iter().enumerate() {
            assert!(serde_json::from_str::<Value>(value).is_ok(), "{key}: {value}");
            let mut others = DEFAULTS[at + 1..].iter().filter(|other| other.key == *key);
            assert!(others.all(|other| types.iter().all(|name| !other.types.contains(name))), "{key}");
        }
    }

    #[test]
    fn absent_keys_have_the_default_of_their_class() {
        let normalise = |config: Value| ModelConfig::from_json(&config).unwrap().experts.unwrap().normalise;
        assert_eq!(normalise(json!({"model_type": "qwen3_next", "num_experts": 4})), Some(true));
        assert_eq!(
            normalise(json!({"model_type": "qwen3_next", "num_experts": 4, "norm_topk_prob": false})),
            Some(false)
        );
        assert_eq!(normalise(json!({"model_type": "qwen3_moe", "num_experts": 4})), None);
        let epsilon = |config: Value| ModelConfig::from_json(&config).unwrap().norm_eps;
        assert_eq!(epsilon(json!({"model_type": "mixtral"})), Some(1e-5));
        assert_eq!(epsilon(json!({"model_type": "mixtral", "layer_norm_eps": 1e-3})), Some(1e-3));
        let theta = |config: Value| ModelConfig::from_json(&config).unwrap().rope.main.theta;
        assert_eq!(theta(json!({"model_type": "mixtral"})), Some(1e6));
        assert_eq!(theta(json!({"model_type": "mixtral", "rope_parameters": {"rope_theta": 1e4}})), Some(1e4));
        let nested = json!({"model_type": "qwen3_omni_moe", "text_config": {"model_type": "qwen3_omni_moe_text", "num_experts": 4}});
        assert_eq!(normalise(nested), Some(true));
    }
}
