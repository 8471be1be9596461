//! Restoration of files of an architecture: the family, and the config.json names of keys that only it states. The
//! inverse of [`super::extras`].

use crate::model::restore::{Stated, Words};
use kvant_container::gguf::{Array, Value as Stored};
use serde_json::{Map, Value, json};

/// The restoration of files of an architecture.
pub struct Restoration {
    /// Whether a file with the architecture's name is of this family.
    pub(crate) is_of: fn(&Stated<'_>) -> bool,
    /// Keys with unusual names in config.json.
    pub(crate) words: Words,
    /// Tensors of the first block, and flags that say that they are there.
    pub(crate) flags: Words,
    /// Adds what follows otherwise.
    pub(crate) more: fn(&Stated<'_>, &mut Map<String, Value>),
}

/// Words and names are the usual ones.
pub(crate) const PLAIN: Restoration = Restoration { is_of: |_| true, words: &[], flags: &[], more: |_, _| {} };

pub(crate) const LLAMA: Restoration = Restoration { is_of: |stated| !has_experts(stated), ..PLAIN };

pub(crate) const MIXTRAL: Restoration =
    Restoration { is_of: has_experts, words: &[("expert_count", "num_local_experts")], ..PLAIN };

pub(crate) const QWEN2_MOE: Restoration = Restoration { more: qwen_moe, ..PLAIN };

pub(crate) const QWEN3_MOE: Restoration = Restoration {
    more: |stated, config| {
        qwen_moe(stated, config);
        // Its graph has no other way.
        config.insert("norm_topk_prob".to_owned(), json!(true));
    },
    ..PLAIN
};

const SOFT_CAPS: Words =
    &[("attn_logit_softcapping", "attn_logit_softcapping"), ("final_logit_softcapping", "final_logit_softcapping")];

pub(crate) const GEMMA2: Restoration =
    Restoration { words: SOFT_CAPS, more: |stated, config| attention_scalar(stated, config, 46), ..PLAIN };

pub(crate) const GEMMA3: Restoration =
    Restoration { words: SOFT_CAPS, more: |stated, config| attention_scalar(stated, config, 62), ..PLAIN };

pub(crate) const COHERE: Restoration =
    Restoration { words: &[("logit_scale", "logit_scale")], flags: &[("attn_q_norm.weight", "use_qk_norm")], ..PLAIN };

const LATENT: Words = &[
    ("expert_count", "n_routed_experts"),
    ("attention.head_count_kv", ""),
    ("attention.key_length", ""),
    ("attention.kv_lora_rank", "kv_lora_rank"),
    ("attention.q_lora_rank", "q_lora_rank"),
    ("attention.value_length_mla", "v_head_dim"),
    ("rope.dimension_count", ""),
];

pub(crate) const DEEPSEEK_V2: Restoration = Restoration {
    is_of: |stated| has_latent_keys(stated) && stated.size("expert_gating_func") != Some(SIGMOID),
    words: LATENT,
    more: deepseek_v2,
    ..PLAIN
};

pub(crate) const DEEPSEEK_V3: Restoration = Restoration {
    is_of: |stated| has_latent_keys(stated) && stated.size("expert_gating_func") == Some(SIGMOID),
    words: LATENT,
    more: latent,
    ..PLAIN
};

pub(crate) const GLM4_MOE: Restoration = Restoration {
    words: &[("expert_count", "n_routed_experts")],
    flags: &[("attn_q_norm.weight", "use_qk_norm")],
    ..PLAIN
};

pub(crate) const GPT2: Restoration = Restoration {
    words: &[
        ("block_count", "n_layer"),
        ("context_length", "n_positions"),
        ("embedding_length", "n_embd"),
        ("feed_forward_length", "n_inner"),
        ("attention.head_count", "n_head"),
        ("attention.head_count_kv", ""),
        ("attention.layer_norm_epsilon", "layer_norm_epsilon"),
    ],
    ..PLAIN
};

pub(crate) const GPT_NEOX: Restoration = Restoration {
    words: &[
        ("rope.freq_base", "rotary_emb_base"),
        ("rope.dimension_count", "rotary_pct"),
        ("attention.head_count_kv", ""),
    ],
    flags: &[("attn_qkv.bias", "attention_bias")],
    ..PLAIN
};

pub(crate) const GPT_OSS: Restoration = Restoration {
    words: &[("expert_count", "num_local_experts"), ("expert_feed_forward_length", "intermediate_size")],
    more: gpt_oss,
    ..PLAIN
};

pub(crate) const GRANITE: Restoration = Restoration {
    words: &[
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
        ("expert_count", "num_local_experts"),
    ],
    ..PLAIN
};

pub(crate) const NEMOTRON: Restoration = Restoration {
    words: &[("attention.layer_norm_epsilon", "norm_eps"), ("attention.layer_norm_rms_epsilon", "")],
    ..PLAIN
};

pub(crate) const OLMO: Restoration =
    Restoration { words: &[("attention.clamp_kqv", "clip_qkv"), ("attention.layer_norm_epsilon", "")], ..PLAIN };

pub(crate) const OLMO2: Restoration =
    Restoration { is_of: |stated| stated.value("attention.sliding_window").is_none(), ..PLAIN };

pub(crate) const OLMO3: Restoration =
    Restoration { is_of: |stated| stated.value("attention.sliding_window").is_some(), more: layer_types, ..PLAIN };

pub(crate) const PHI3: Restoration = Restoration { words: &[("attention.sliding_window", "")], more: phi3, ..PLAIN };

pub(crate) const PHIMOE: Restoration = Restoration {
    words: &[("expert_count", "num_local_experts"), ("attention.sliding_window", "")],
    more: |stated, config| {
        phi3(stated, config);
        config.insert("lm_head_bias".to_owned(), json!(stated.has("output.bias")));
    },
    ..PLAIN
};

pub(crate) const STABLELM: Restoration =
    Restoration { flags: &[("attn_q_norm.weight", "qk_layernorm"), ("attn_q.bias", "use_qkv_bias")], ..PLAIN };

pub(crate) const STARCODER2: Restoration = Restoration {
    words: &[("attention.layer_norm_epsilon", "norm_epsilon"), ("attention.sliding_window", "")],
    flags: &[("attn_q.bias", "use_bias")],
    // The graph has no windows, which are the default of the class.
    more: |_, config| drop(config.insert("sliding_window".to_owned(), Value::Null)),
    ..PLAIN
};

/// Sigmoids as a router's probabilities (`llama_expert_gating_func_type`).
const SIGMOID: usize = 2;

fn has_experts(stated: &Stated<'_>) -> bool {
    stated.size("expert_count").is_some_and(|count| count > 0)
}

/// The blocks without experts; all others have some.
fn qwen_moe(stated: &Stated<'_>, config: &mut Map<String, Value>) {
    let blocks = stated.size("block_count").unwrap_or(0).min(stated.file.len());
    let dense: Vec<usize> =
        (0..blocks).filter(|block| !stated.has(&format!("blk.{block}.ffn_gate_inp.weight"))).collect();
    config.insert("mlp_only_layers".to_owned(), json!(dense));
    config.insert("decoder_sparse_step".to_owned(), json!(1));
}

/// The size whose root scales attention: the size of heads, except in the largest model, which has `blocks` blocks: the width
/// over the number of heads.
fn attention_scalar(stated: &Stated<'_>, config: &mut Map<String, Value>, blocks: usize) {
    let divided = || stated.size("embedding_length")?.checked_div(stated.size("attention.head_count")?);
    let is_largest = stated.size("block_count") == Some(blocks);
    if let Some(size) = if is_largest { divided() } else { stated.head_width() } {
        config.insert("query_pre_attn_scalar".to_owned(), json!(size));
    }
}

/// Whether keys are computed from the latent vector by a separate tensor, as in files that attend to the latent vectors.
fn has_latent_keys(stated: &Stated<'_>) -> bool {
    stated.has("blk.0.attn_k_b.weight")
}

/// Experts are chosen by groups where there are several.
fn deepseek_v2(stated: &Stated<'_>, config: &mut Map<String, Value>) {
    latent(stated, config);
    let grouped = stated.size("expert_group_count").is_some_and(|count| count > 1);
    config.insert("topk_method".to_owned(), json!(if grouped { "group_limited_greedy" } else { "greedy" }));
}

/// Published models do not round the bounds of YaRN's ramp, which llama.cpp does and no file states.
fn gpt_oss(_: &Stated<'_>, config: &mut Map<String, Value>) {
    if let Some(scaling) = config.get_mut("rope_scaling").and_then(Value::as_object_mut) {
        scaling.insert("truncate".to_owned(), json!(false));
    }
}

fn latent(stated: &Stated<'_>, config: &mut Map<String, Value>) {
    let (rope, key) = (stated.size("rope.dimension_count"), stated.size("attention.key_length_mla"));
    if let (Some(rope), Some(key)) = (rope, key) {
        config.insert("qk_rope_head_dim".to_owned(), json!(rope));
        config.insert("qk_nope_head_dim".to_owned(), json!(key.saturating_sub(rope)));
    }
    config.insert("num_key_value_heads".to_owned(), json!(stated.size("attention.head_count")));
    if config.get("q_lora_rank").is_none() {
        config.insert("q_lora_rank".to_owned(), Value::Null);
    }
    let strength = stated.number("rope.scaling.yarn_log_multiplier").map(|multiplier| multiplier / 0.1);
    let scaling = config.get_mut("rope_scaling").and_then(Value::as_object_mut);
    if let (Some(strength), Some(scaling)) = (strength, scaling) {
        scaling.insert("mscale".to_owned(), json!(strength as f32));
        scaling.insert("mscale_all_dim".to_owned(), json!(strength as f32));
    }
}

/// A window of zero means none, and LongRoPE's original context is outside of the scaling.
fn phi3(stated: &Stated<'_>, config: &mut Map<String, Value>) {
    let window = stated.size("attention.sliding_window").filter(|window| *window > 0);
    config.insert("sliding_window".to_owned(), json!(window));
    if let Some(original) = stated.size("rope.scaling.original_context_length") {
        config.insert("original_max_position_embeddings".to_owned(), json!(original));
    }
}

/// The kinds of layers, as the file lists them.
fn layer_types(stated: &Stated<'_>, config: &mut Map<String, Value>) {
    let Some(Stored::Array(Array::Bool(slides))) = stated.value("attention.sliding_window_pattern") else { return };
    let name = |slides: &bool| if *slides { "sliding_attention" } else { "full_attention" };
    config.insert("layer_types".to_owned(), slides.iter().map(name).collect());
}
