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

/// Experts as DeepSeek calls them.
pub(crate) const ROUTED: Restoration = Restoration { words: &[("expert_count", "n_routed_experts")], ..PLAIN };

pub(crate) const AFMOE: Restoration = Restoration {
    words: &[
        ("expert_shared_count", "num_shared_experts"),
        ("expert_weights_norm", "route_norm"),
        ("expert_weights_scale", "route_scale"),
        ("leading_dense_block_count", "num_dense_layers"),
    ],
    // Its graph has no other way.
    more: |_, config| drop(config.insert("mup_enabled".to_owned(), json!(true))),
    ..PLAIN
};

pub(crate) const BLOOM: Restoration = Restoration {
    words: &[
        ("block_count", "n_layer"),
        ("context_length", "seq_length"),
        ("feed_forward_length", ""),
        ("attention.head_count", "n_head"),
        ("attention.head_count_kv", ""),
        ("attention.layer_norm_epsilon", "layer_norm_epsilon"),
    ],
    ..PLAIN
};

pub(crate) const ERNIE4_5_MOE: Restoration = Restoration {
    words: &[
        ("expert_count", "moe_num_experts"),
        ("expert_shared_count", "moe_num_shared_experts"),
        ("expert_shared_feed_forward_length", ""),
        ("expert_used_count", "moe_k"),
        ("interleave_moe_layer_step", "moe_layer_interval"),
        ("leading_dense_block_count", "moe_layer_start_index"),
    ],
    ..PLAIN
};

pub(crate) const EXAONE4: Restoration = Restoration {
    more: |stated, config| {
        layer_types(stated, config);
        // Without windows every layer is a full one.
        let window = stated.size("attention.sliding_window");
        config.insert("sliding_window".to_owned(), json!(window));
        if window.is_none() {
            let blocks = stated.size("block_count").unwrap_or(0).min(stated.file.len());
            config.insert("layer_types".to_owned(), json!(vec!["full_attention"; blocks]));
        }
    },
    ..PLAIN
};

pub(crate) const FALCON: Restoration = Restoration {
    words: &[
        ("feed_forward_length", "ffn_hidden_size"),
        ("attention.head_count_kv", "num_kv_heads"),
        ("attention.layer_norm_epsilon", "layer_norm_epsilon"),
    ],
    more: |stated, config| {
        let has_two = stated.has("blk.0.attn_norm_2.weight");
        let keys = stated.size("attention.head_count_kv").unwrap_or(1);
        for (key, value) in [
            ("alibi", json!(false)),
            ("bias", json!(false)),
            ("multi_query", json!(keys == 1)),
            ("new_decoder_architecture", json!(keys > 1 || has_two)),
            ("num_ln_in_parallel_attn", json!(if has_two { 2 } else { 1 })),
            ("parallel_attn", json!(true)),
        ] {
            config.insert(key.to_owned(), value);
        }
    },
    ..PLAIN
};

/// Sizes of Mamba 2 as most hybrids call them.
const MAMBA2: Words = &[
    ("attention.head_count_kv", ""),
    ("expert_count", "num_local_experts"),
    ("expert_shared_feed_forward_length", "shared_intermediate_size"),
    ("attention.scale", "attention_multiplier"),
    ("embedding_scale", "embedding_multiplier"),
    ("residual_scale", "residual_multiplier"),
    ("logit_scale", "logits_scaling"),
    ("ssm.conv_kernel", "mamba_d_conv"),
    ("ssm.state_size", "mamba_d_state"),
    ("ssm.time_step_rank", "mamba_n_heads"),
    ("ssm.group_count", "mamba_n_groups"),
];

pub(crate) const FALCON_H1: Restoration = Restoration {
    words: &[
        ("ssm.conv_kernel", "mamba_d_conv"),
        ("ssm.state_size", "mamba_d_state"),
        ("ssm.time_step_rank", "mamba_n_heads"),
        ("ssm.group_count", "mamba_n_groups"),
        ("ssm.inner_size", "mamba_d_ssm"),
    ],
    flags: &[("ssm_norm.weight", "mamba_rms_norm"), ("ssm_conv1d.bias", "mamba_conv_bias")],
    more: |stated, config| {
        mamba2_width(stated, config, "mamba_d_head");
        config.insert("mamba_norm_before_gate".to_owned(), json!(false));
        // All factors are in the weights.
        for key in [
            "embedding_multiplier",
            "lm_head_multiplier",
            "key_multiplier",
            "attention_in_multiplier",
            "attention_out_multiplier",
            "ssm_in_multiplier",
            "ssm_out_multiplier",
        ] {
            config.insert(key.to_owned(), json!(1.0));
        }
        config.insert("mlp_multipliers".to_owned(), json!([1.0, 1.0]));
        config.insert("ssm_multipliers".to_owned(), json!([1.0, 1.0, 1.0, 1.0, 1.0]));
    },
    ..PLAIN
};

pub(crate) const GRANITE_HYBRID: Restoration = Restoration {
    words: MAMBA2,
    more: |stated, config| {
        hybrid(stated, config, "mamba_d_head");
        kinds_of_layers(stated, config, "mamba", "attention");
        let is_rotary = matches!(stated.value("rope.scaling.finetuned"), Some(Stored::Bool(true)));
        config.insert("position_embedding_type".to_owned(), json!(if is_rotary { "rope" } else { "nope" }));
        if stated.value("expert_count").is_none() {
            config.insert("num_local_experts".to_owned(), json!(0));
            config.insert("shared_intermediate_size".to_owned(), json!(stated.size("feed_forward_length")));
        }
    },
    ..PLAIN
};

/// Files of the same architecture as Granite 4's, which state a factor on logits.
pub(crate) const BAMBA: Restoration = Restoration {
    is_of: |stated| stated.value("logit_scale").is_none() && !has_experts(stated),
    words: MAMBA2,
    more: |stated, config| {
        hybrid(stated, config, "mamba_d_head");
        let attends = attends(stated).into_iter().enumerate().filter(|(_, attends)| *attends);
        config.insert("attn_layer_indices".to_owned(), attends.map(|(block, _)| block).collect());
    },
    ..PLAIN
};

pub(crate) const LFM2: Restoration = Restoration {
    words: &[
        ("attention.head_count_kv", ""),
        ("attention.layer_norm_rms_epsilon", "norm_eps"),
        ("shortconv.l_cache", "conv_L_cache"),
    ],
    more: lfm2,
    ..PLAIN
};

pub(crate) const LFM2_MOE: Restoration = Restoration {
    words: &[
        ("attention.head_count_kv", ""),
        ("attention.layer_norm_rms_epsilon", "norm_eps"),
        ("leading_dense_block_count", "num_dense_layers"),
        ("shortconv.l_cache", "conv_L_cache"),
    ],
    more: |stated, config| {
        lfm2(stated, config);
        // Its graph has no other way.
        config.insert("use_expert_bias".to_owned(), json!(true));
        config.insert("norm_topk_prob".to_owned(), json!(true));
        config.insert("routed_scaling_factor".to_owned(), json!(1.0));
    },
    ..PLAIN
};

pub(crate) const MAMBA_2: Restoration = Restoration {
    words: &[
        ("context_length", ""),
        ("feed_forward_length", ""),
        ("attention.head_count", ""),
        ("attention.layer_norm_rms_epsilon", "layer_norm_epsilon"),
        ("ssm.conv_kernel", "conv_kernel"),
        ("ssm.state_size", "state_size"),
        ("ssm.time_step_rank", "num_heads"),
        ("ssm.group_count", "n_groups"),
    ],
    more: |stated, config| {
        mamba2_width(stated, config, "head_dim");
        let width = stated.size("embedding_length").filter(|width| *width > 0);
        if let Some(expand) = stated.size("ssm.inner_size").zip(width).map(|(inner, width)| inner / width) {
            config.insert("expand".to_owned(), json!(expand));
        }
        config.insert("use_bias".to_owned(), json!(false));
        config.insert("use_conv_bias".to_owned(), json!(true));
    },
    ..PLAIN
};

pub(crate) const MIMO2: Restoration = Restoration {
    words: &[
        ("attention.head_count_kv", ""),
        ("attention.value_length", "v_head_dim"),
        ("attention.value_scale", "attention_value_scale"),
        ("expert_count", "n_routed_experts"),
    ],
    more: mimo2,
    ..PLAIN
};

/// Sizes of gated delta nets, and those of attention that are lists or none.
const DELTA: Words = &[
    ("ssm.conv_kernel", "linear_conv_kernel_dim"),
    ("ssm.state_size", "linear_key_head_dim"),
    ("ssm.group_count", "linear_num_key_heads"),
    ("ssm.time_step_rank", "linear_num_value_heads"),
    ("full_attention_interval", "full_attention_interval"),
];

pub(crate) const QWEN3_NEXT: Restoration = Restoration {
    words: DELTA,
    more: |stated, config| {
        (QWEN3_MOE.more)(stated, config);
        delta(stated, config);
    },
    ..PLAIN
};

pub(crate) const QWEN3_5: Restoration = Restoration { words: DELTA, more: qwen3_5, ..PLAIN };

pub(crate) const QWEN3_5_MOE: Restoration = Restoration {
    words: DELTA,
    more: |stated, config| {
        (QWEN3_MOE.more)(stated, config);
        qwen3_5(stated, config);
    },
    ..PLAIN
};

pub(crate) const HUNYUAN_MOE: Restoration = Restoration {
    words: &[
        ("expert_feed_forward_length", ""),
        ("expert_shared_feed_forward_length", ""),
        ("expert_used_count", "moe_topk"),
    ],
    ..PLAIN
};

pub(crate) const MISTRAL3: Restoration = Restoration { more: mistral3, ..PLAIN };

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

pub(crate) const MPT: Restoration = Restoration {
    words: &[
        ("block_count", "n_layers"),
        ("context_length", "max_seq_len"),
        ("embedding_length", "d_model"),
        ("feed_forward_length", ""),
        ("attention.head_count", "n_heads"),
        ("attention.head_count_kv", ""),
        ("attention.layer_norm_epsilon", "layer_norm_epsilon"),
    ],
    more: |stated, config| {
        let clip = stated.number("attention.clamp_kqv");
        config.insert("attn_config".to_owned(), json!({"clip_qkv": clip}));
    },
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

/// A list of one number for each block.
fn numbers(stated: &Stated<'_>, key: &str) -> Vec<usize> {
    match stated.value(key) {
        Some(Stored::Array(Array::U32(numbers))) => numbers.iter().map(|number| *number as usize).collect(),
        Some(Stored::Array(Array::I32(numbers))) => {
            numbers.iter().map(|number| usize::try_from(*number).unwrap_or(0)).collect()
        }
        _ => Vec::new(),
    }
}

/// Which blocks have attention: those with heads of keys.
fn attends(stated: &Stated<'_>) -> Vec<bool> {
    numbers(stated, "attention.head_count_kv").iter().map(|keys| *keys > 0).collect()
}

/// The kinds of layers, and how many heads of keys attention has.
fn kinds_of_layers(stated: &Stated<'_>, config: &mut Map<String, Value>, recurrent: &str, attention: &str) {
    let name = |attends: bool| if attends { attention } else { recurrent };
    config.insert("layer_types".to_owned(), attends(stated).into_iter().map(name).collect());
}

/// What Mamba 2 hybrids have in common.
fn hybrid(stated: &Stated<'_>, config: &mut Map<String, Value>, width: &str) {
    mamba2_width(stated, config, width);
    let keys = numbers(stated, "attention.head_count_kv").into_iter().max();
    config.insert("num_key_value_heads".to_owned(), json!(keys));
    let hidden = stated.size("embedding_length").filter(|hidden| *hidden > 0);
    if let Some(expand) = stated.size("ssm.inner_size").zip(hidden).map(|(inner, hidden)| inner / hidden) {
        config.insert("mamba_expand".to_owned(), json!(expand));
    }
    for (stem, key, is_in) in [("ssm_conv1d.bias", "mamba_conv_bias", false), ("attn_q.bias", "attention_bias", true)] {
        let found = attends(stated).iter().position(|attends| *attends == is_in);
        let has = found.is_some_and(|block| stated.has(&format!("blk.{block}.{stem}")));
        config.insert(key.to_owned(), json!(has));
    }
    config.insert("mamba_proj_bias".to_owned(), json!(false));
}

/// The width of the heads of a Mamba 2 mixer.
fn mamba2_width(stated: &Stated<'_>, config: &mut Map<String, Value>, key: &str) {
    let sizes = stated.size("ssm.inner_size").zip(stated.size("ssm.time_step_rank"));
    if let Some(width) = sizes.and_then(|(inner, heads)| inner.checked_div(heads)) {
        config.insert(key.to_owned(), json!(width));
    }
}

/// Widths of the file are those that are computed.
fn lfm2(stated: &Stated<'_>, config: &mut Map<String, Value>) {
    kinds_of_layers(stated, config, "conv", "full_attention");
    let keys = numbers(stated, "attention.head_count_kv").into_iter().max();
    config.insert("num_key_value_heads".to_owned(), json!(keys));
    config.insert("block_auto_adjust_ff_dim".to_owned(), json!(false));
    config.insert("conv_bias".to_owned(), json!(false));
}

/// Values are as wide as keys.
fn delta(stated: &Stated<'_>, config: &mut Map<String, Value>) {
    config.insert("linear_value_head_dim".to_owned(), json!(stated.size("ssm.state_size")));
    let Some(Stored::Array(Array::Bool(recurrent))) = stated.value("attention.recurrent_layers") else { return };
    let name = |recurrent: &bool| if *recurrent { "linear_attention" } else { "full_attention" };
    config.insert("layer_types".to_owned(), recurrent.iter().map(name).collect());
}

/// Rotary embeddings of positions in images too, in one object.
fn qwen3_5(stated: &Stated<'_>, config: &mut Map<String, Value>) {
    delta(stated, config);
    let theta = stated.number("rope.freq_base").unwrap_or(10_000.0);
    let mut rope =
        Map::from_iter([("rope_type".to_owned(), json!("default")), ("rope_theta".to_owned(), json!(theta))]);
    if let Some(part) = config.get("partial_rotary_factor") {
        rope.insert("partial_rotary_factor".to_owned(), part.clone());
    }
    let sections: Vec<usize> = numbers(stated, "rope.dimension_sections").into_iter().take(3).collect();
    rope.insert("mrope_section".to_owned(), json!(sections));
    config.insert("rope_parameters".to_owned(), Value::Object(rope));
}

/// Layers with windows have twice the key heads, and a base of their own.
fn mimo2(stated: &Stated<'_>, config: &mut Map<String, Value>) {
    layer_types(stated, config);
    let keys = numbers(stated, "attention.head_count_kv").into_iter().min();
    config.insert("num_key_value_heads".to_owned(), json!(keys));
    let blocks = stated.size("block_count").unwrap_or(0).min(stated.file.len());
    let kind = |block: usize| match stated.has(&format!("blk.{block}.ffn_gate_inp.weight")) {
        true => "sparse",
        false => "dense",
    };
    config.insert("mlp_layer_types".to_owned(), (0..blocks).map(kind).collect());
    let part = config.remove("partial_rotary_factor").unwrap_or(json!(1.0));
    config.remove("rope_local_base_freq");
    let base = stated.number("rope.freq_base").unwrap_or(10_000.0);
    let local = stated.number("rope.freq_base_swa").unwrap_or(base);
    let of = |theta: f64| json!({"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": part});
    let both = json!({"full_attention": of(base), "sliding_attention": of(local)});
    config.insert("rope_parameters".to_owned(), both);
    config.insert("norm_topk_prob".to_owned(), json!(true));
    config.insert("routed_scaling_factor".to_owned(), json!(1.0));
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

/// Growth of queries is a parameter of rotary embeddings.
fn mistral3(stated: &Stated<'_>, config: &mut Map<String, Value>) {
    let growth = stated.number("attention.temperature_scale");
    let scaling = config.get_mut("rope_scaling").and_then(Value::as_object_mut);
    if let (Some(growth), Some(scaling)) = (growth, scaling) {
        scaling.insert("llama_4_scaling_beta".to_owned(), json!(growth));
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
