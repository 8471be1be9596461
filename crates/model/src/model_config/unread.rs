//! Keys of config.json that the class of an architecture does not read. transformers keeps them in the configuration and
//! computes without them, so the view leaves them out as well: a key left over from another architecture changes nothing.
//! Only keys that would change sizes or results here are listed.

/// Models whose attention has one key head for each query head, of `hidden_size / num_attention_heads` components.
const MULTI_HEAD: &[&str] = &["bloom", "gpt2", "gpt_neox", "gptj", "mpt", "opt", "persimmon", "xglm"];

/// Encoders, whose attention is likewise.
const ENCODERS: &[&str] = &[
    "bert",
    "camembert",
    "clip_text_model",
    "clip_vision_model",
    "deberta-v2",
    "deit",
    "dinov2",
    "dinov2_with_registers",
    "dinov3_vit",
    "distilbert",
    "electra",
    "esm",
    "hubert",
    "modernbert",
    "mpnet",
    "roberta",
    "siglip_text_model",
    "siglip_vision_model",
    "vit",
    "wav2vec2",
    "xlm-roberta",
];

/// Mixtures of experts whose experts have the width `intermediate_size`.
const ONE_WIDTH: &[&str] = &[
    "cohere2_moe",
    "flex_olmo",
    "gpt_oss",
    "granitemoe",
    "granitemoehybrid",
    "hunyuan_v1_moe",
    "jamba",
    "llama4_text",
    "minimax",
    "minimax_m2",
    "minimax_m3_vl",
    "minimax_m3_vl_text",
    "mixtral",
    "olmoe",
    "phimoe",
];

/// Mixtures of experts whose shared network is as wide as `n_shared_experts` routed experts.
const COUNTED_SHARED: &[&str] = &[
    "afmoe",
    "axk1",
    "bailing_hybrid",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "dots1",
    "ernie4_5_moe",
    "exaone_moe",
    "glm4_moe",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "hy_v3",
    "kimi_k2",
    "kimi_linear",
    "mistral4",
    "solar_open",
];

/// Mixtures of experts with a rule of their own: one group, weights divided by their sum, a factor under another name.
const ONE_RULE: &[&str] = &["afmoe", "hy_v3", "laguna"];

/// Each key with the values of `model_type` whose class does not read it.
const UNREAD: &[(&str, &[&str])] = &[
    ("num_key_value_heads", MULTI_HEAD),
    ("num_kv_heads", MULTI_HEAD),
    ("num_key_value_heads", ENCODERS),
    ("num_kv_heads", ENCODERS),
    ("head_dim", ENCODERS),
    ("intermediate_size", &["dinov2", "dinov2_with_registers"]),
    ("sliding_window", ENCODERS),
    // Not gpt_neox, persimmon and stablelm: their rotary embedding reads it.
    ("head_dim", &["bloom", "falcon", "gpt2", "gpt_bigcode", "gptj", "mpt", "opt", "xglm"]),
    ("intermediate_size", &["bloom", "falcon", "gpt2", "gpt_bigcode", "gptj", "mpt", "opt", "xglm"]),
    ("ffn_dim", &["gpt2", "gpt_bigcode", "gptj"]),
    ("n_inner", &["opt", "xglm"]),
    ("ffn_hidden_size", MULTI_HEAD),
    ("hidden_act", &["falcon", "gpt2", "gpt_bigcode", "gptj", "nemotron_h", "opt", "xglm"]),
    ("hidden_activation", MULTI_HEAD),
    ("moe_intermediate_size", ONE_WIDTH),
    ("shared_expert_intermediate_size", COUNTED_SHARED),
    ("n_group", ONE_RULE),
    ("topk_group", ONE_RULE),
    ("norm_topk_prob", &["afmoe", "hy_v3", "jamba", "laguna", "llama4_text"]),
    ("routed_scaling_factor", ONE_RULE),
    ("n_group", &["longcat_flash", "minimax_m3_vl", "minimax_m3_vl_text"]),
    ("topk_group", &["longcat_flash", "minimax_m3_vl", "minimax_m3_vl_text"]),
    ("norm_topk_prob", &["longcat_flash", "minimax_m3_vl", "minimax_m3_vl_text"]),
    ("num_experts_per_tok", &["longcat_flash"]),
    ("moe_intermediate_size", &["longcat_flash"]),
    ("intermediate_size", &["longcat_flash"]),
    ("layer_types", &["falcon_h1", "falcon_mamba", "jamba", "mamba", "ministral3"]),
    ("layers_block_type", &["bamba", "falcon_h1", "falcon_mamba", "jamba", "mamba"]),
    ("n_shared_experts", &["mimo_v2_flash", "nemotron_h"]),
    ("rms_norm_eps", &["falcon_mamba", "mamba", "mamba2", "nemotron_h"]),
    ("attn_logit_softcapping", &["bloom", "falcon", "mpt"]),
];

/// Returns whether the class of `model_type` does not read `key`. Without a `model_type`, every key counts.
pub(super) fn is_unread(model_type: Option<&str>, key: &str) -> bool {
    let Some(model_type) = model_type else { return false };
    UNREAD.iter().any(|(listed, types)| *listed == key && types.contains(&model_type))
}
