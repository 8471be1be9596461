//! Reading of config.json: both spellings of everything, nesting, and values that must be refused.

use super::*;
use serde_json::json;

fn read_json(value: Value) -> ModelConfig {
    ModelConfig::from_json(&value).unwrap()
}

fn error_of(value: Value) -> ConfigError {
    ModelConfig::from_json(&value).unwrap_err()
}

#[test]
fn sizes_are_read_under_every_architectures_key() {
    let llama = read_json(json!({
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "torch.bfloat16", "tie_word_embeddings": false,
    }));
    assert_eq!(llama.hidden_size, Some(4096));
    assert_eq!(llama.intermediate_sizes, [14336]);
    assert_eq!((llama.num_layers, llama.num_heads, llama.num_kv_heads()), (Some(32), Some(32), Some(8)));
    assert_eq!((llama.head_dim(), llama.value_dim()), (Some(128), Some(128)));
    assert_eq!(llama.dtype.as_deref(), Some("bfloat16"));
    assert_eq!(llama.tie_word_embeddings, Some(false));

    let gpt2 = read_json(json!({"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "n_inner": null}));
    assert_eq!(gpt2.hidden_size, Some(768));
    assert_eq!((gpt2.num_layers, gpt2.num_kv_heads(), gpt2.head_dim()), (Some(12), Some(12), Some(64)));
    assert_eq!(gpt2.max_positions, Some(1024));
    assert!(gpt2.intermediate_sizes.is_empty());
}

#[test]
fn nested_text_config_gives_sizes_and_outer_config_the_rest() {
    let config = read_json(json!({
        "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "tie_word_embeddings": true,
        "hidden_size": 1, "dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"},
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "tie_word_embeddings": false, "logit_scale": 2.0},
        "vision_config": {"hidden_size": 1152},
    }));
    assert_eq!(config.model_types, ["gemma3", "gemma3_text"]);
    assert_eq!(config.hidden_size, Some(2560));
    assert_eq!(config.tie_word_embeddings, Some(true));
    assert_eq!(config.quantization.clone().unwrap()["quant_method"], "fp8");
    assert_eq!(config.number("logit_scale"), Ok(Some(2.0)));
}

#[test]
fn two_levels_of_nested_config_are_followed() {
    let config = read_json(json!({"thinker_config": {"text_config": {"hidden_size": 8}}}));
    assert_eq!(config.hidden_size, Some(8));
    let error = error_of(json!({"thinker_config": {"text_config": {"hidden_size": -8}}}));
    assert!(error.to_string().contains("`thinker_config.text_config.hidden_size`"), "{error}");
}

#[test]
fn impossible_values_name_their_key() {
    let cases = [
        (json!({"hidden_size": -5}), "`hidden_size`"),
        (json!({"hidden_size": 0}), "`hidden_size`"),
        (json!({"hidden_size": 4096.5}), "`hidden_size`"),
        (json!({"hidden_size": 1e300}), "`hidden_size`"),
        (json!({"hidden_size": u64::MAX}), "`hidden_size`"),
        (json!({"n_embd": "768"}), "`n_embd`"),
        (json!({"num_hidden_layers": 1u64 << 40}), "`num_hidden_layers`"),
        (json!({"num_attention_heads": {}}), "`num_attention_heads`"),
        (json!({"num_local_experts": -1}), "`num_local_experts`"),
        (json!({"intermediate_size": [8, -1]}), "`intermediate_size`"),
        (json!({"rms_norm_eps": "small"}), "`rms_norm_eps`"),
        (json!({"rms_norm_eps": -1e-6}), "`rms_norm_eps`"),
        (kvant_container::python_json::parse(b"{\"rms_norm_eps\": NaN}").unwrap(), "number, found NaN"),
        (json!({"tie_word_embeddings": "yes"}), "`tie_word_embeddings`"),
        (json!({"architectures": "LlamaForCausalLM"}), "`architectures`"),
        (json!({"architectures": [1]}), "`architectures`"),
        (json!({"model_type": 7}), "`model_type`"),
        (json!({"text_config": []}), "`text_config`"),
        (json!({"rope_scaling": "linear"}), "`rope_scaling`"),
        (json!({"rope_parameters": {"full_attention": 3}}), "`rope_parameters.full_attention`"),
        (json!({"rope_scaling": {"factor": 0}}), "`rope_scaling.factor`"),
        (json!({"rope_scaling": {"long_factor": [1, "x"]}}), "`rope_scaling.long_factor`"),
    ];
    for (value, key) in cases {
        let message = error_of(value.clone()).to_string();
        assert!(message.contains(key), "{value}: {message}");
    }
}

#[test]
fn non_object_config_is_refused_and_long_values_are_cut() {
    assert!(matches!(error_of(json!([1])), ConfigError::NotAnObject { .. }));
    let message = error_of(json!({"model_type": vec!["é"; 500]})).to_string();
    assert!(message.ends_with("..."), "{message}");
    assert!(message.len() < 200, "{message}");
}

#[test]
fn empty_config_has_all_defaults() {
    assert_eq!(read_json(json!({})), ModelConfig::default());
    let nulls = read_json(json!({"hidden_size": null, "text_config": null, "rope_scaling": null}));
    assert_eq!(nulls.hidden_size, None);
}

#[test]
fn lists_of_sizes_are_per_layer() {
    let config = read_json(json!({"intermediate_size": [8, 16], "num_attention_heads": [2, 4]}));
    assert_eq!(config.intermediate_sizes, [8, 16]);
    assert_eq!(config.num_heads, None);
}

#[test]
fn old_and_new_rope_spellings_are_equivalent() {
    let old = read_json(json!({
        "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192},
    }));
    let new = read_json(json!({
        "rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    }));
    assert_eq!(old.rope, new.rope);
    assert_eq!(new.rope.main.kind.as_deref(), Some("llama3"));
    assert_eq!((new.rope.main.theta, new.rope.main.factor), (Some(500000.0), Some(8.0)));
    assert_eq!(new.rope.main.original_max_positions, Some(8192));
}

#[test]
fn sliding_layers_have_their_own_rope_parameters() {
    let old = read_json(json!({
        "rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }));
    let new = read_json(json!({
        "rope_parameters": {
            "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
            "sliding_attention": {"rope_theta": 1e4},
        },
    }));
    assert_eq!(old.rope, new.rope);
    assert_eq!(new.rope.main.factor, Some(8.0));
    let sliding = new.rope.sliding.unwrap();
    assert_eq!((sliding.theta, sliding.factor), (Some(1e4), None));
}

#[test]
fn partial_rotary_factor_has_three_spellings() {
    for json in [json!({"partial_rotary_factor": 0.25}), json!({"rotary_pct": 0.25})] {
        assert_eq!(read_json(json).rope.main.partial, Some(0.25));
    }
    let nested = read_json(json!({"rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 1e4}}));
    assert_eq!(nested.rope.main.partial, Some(0.25));
}

#[test]
fn minimax_m2_states_the_components_that_turn() {
    let turning = |json: Value| read_json(json).rope.main.turning_components(128, 1.0);
    let minimax =
        |part: Value| turning(json!({"model_type": "minimax_m2", "rotary_dim": 64, "partial_rotary_factor": part}));
    assert_eq!(minimax(Value::Null), 64);
    assert_eq!(minimax(json!(0.25)), 32, "a stated part wins");
    let nested =
        json!({"model_type": "minimax_m2", "rotary_dim": 64, "rope_parameters": {"partial_rotary_factor": 0.75}});
    assert_eq!(turning(nested), 96);
    assert_eq!(turning(json!({"model_type": "llama", "rotary_dim": 64})), 128, "its class ignores the key");
}

#[test]
fn expert_counts_and_dense_prefix_are_read() {
    let qwen = read_json(json!({
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": true,
    }));
    let experts = qwen.experts.unwrap();
    assert_eq!((experts.count, experts.per_token, experts.intermediate_size), (128, Some(8), Some(768)));
    assert_eq!(experts.dense_prefix, 0);

    let deepseek = read_json(json!({
        "n_routed_experts": 256, "first_k_dense_replace": 3, "moe_layer_freq": 1, "n_group": 8, "topk_group": 4,
        "kv_lora_rank": 512, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "num_attention_heads": 128, "hidden_size": 7168,
    }));
    let experts = deepseek.experts.as_ref().unwrap();
    assert_eq!(experts.dense_prefix, 3);
    assert_eq!(deepseek.latent.as_ref().unwrap().query_rank, None);
    assert_eq!(deepseek.value_dim(), Some(128));

    assert_eq!(read_json(json!({"num_local_experts": 0})).experts, None);
}

#[test]
fn missing_required_value_is_named() {
    let config = read_json(json!({}));
    let error = config.need(config.hidden_size, "hidden_size", "the forward pass needs it").unwrap_err();
    assert_eq!(error.to_string(), "config.json has no `hidden_size`: the forward pass needs it");
}

#[test]
fn keys_that_the_class_does_not_read_are_ignored() {
    let sizes = json!({"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8});
    let of = |model_type: &str, more: Value| {
        let mut config = sizes.clone();
        config["model_type"] = json!(model_type);
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        read_json(config)
    };
    for (model_type, heads) in [("opt", (4, 16)), ("gpt_neox", (4, 8)), ("llama", (2, 8))] {
        let config = of(model_type, json!({}));
        assert_eq!((config.num_kv_heads(), config.head_dim()), (Some(heads.0), Some(heads.1)), "{model_type}");
    }

    let without = json!({"num_experts": 2, "shared_expert_intermediate_size": 0});
    assert!(ModelConfig::from_json(&without).unwrap().experts.unwrap().excludes_shared());
    let experts = json!({"num_experts": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 16});
    for (model_type, widths) in
        [("olmoe", (None, Some(16))), ("deepseek_v3", (Some(8), None)), ("qwen2_moe", (Some(8), Some(16)))]
    {
        let read = of(model_type, experts.clone()).experts.unwrap();
        assert_eq!((read.intermediate_size, read.shared_intermediate_size), widths, "{model_type}");
    }

    // A wrong type in such a key is no defect either, and a key's other spelling is found.
    let opt = of("opt", json!({"head_dim": "wide", "intermediate_size": 8, "ffn_dim": 256}));
    assert_eq!(opt.intermediate_sizes, [256]);
}

#[test]
fn a_head_of_width_zero_is_not_stated() {
    let read =
        read_json(json!({"model_type": "glm5_next_text", "head_dim": 0, "num_attention_heads": 4, "hidden_size": 64}));
    assert_eq!(read.stated_head_dim, None);
}

#[test]
fn sizes_of_state_space_layers_go_by_the_names_of_their_class() {
    let stated = json!({"model_type": "bamba", "hidden_size": 64, "mamba_n_heads": 8, "mamba_d_head": "auto", "mamba_expand": 2,
        "mamba_n_groups": 2, "mamba_d_state": 6, "mamba_d_conv": 4});
    let mamba = read_json(stated.clone()).mamba.unwrap();
    assert_eq!((mamba.head_dim, mamba.inner(), mamba.channels(), mamba.rows()), (16, Some(128), Some(152), Some(288)));
    assert_eq!((mamba.least_step, mamba.largest_step), (0.0, f64::INFINITY));
    let with = |key: &str, value| {
        let mut changed = stated.clone();
        changed[key] = value;
        ModelConfig::from_json(&changed)
    };
    assert_eq!(with("mamba_d_ssm", json!(96)).unwrap().mamba.unwrap().head_dim, 12);
    for upper in [json!({"__float__": "Infinity"}), json!("\u{0}kvant:Infinity")] {
        let mamba = with("time_step_limit", json!([0.5, upper])).unwrap().mamba.unwrap();
        assert_eq!((mamba.least_step, mamba.largest_step), (0.5, f64::INFINITY));
    }
    let error = with("time_step_limit", json!([0.5, "much"])).unwrap_err();
    assert!(error.to_string().contains("`time_step_limit`"), "{error}");
    let nemotron = json!({"model_type": "nemotron_h", "mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 6,
        "conv_kernel": 4, "num_heads": 7, "head_dim": 3, "hybrid_override_pattern": "M*-E"});
    let nemotron = read_json(nemotron);
    let mamba = nemotron.mamba.unwrap();
    assert_eq!((mamba.heads, mamba.head_dim, mamba.least_step), (4, 8, 0.001));
    assert_eq!(nemotron.layer_types, ["linear_attention", "full_attention", "mlp", "moe"]);
    assert_eq!(nemotron.num_layers, Some(4));
    let alone = json!({"model_type": "mamba2", "num_heads": 4, "head_dim": 8, "n_groups": 2, "state_size": 6, "conv_kernel": 4});
    assert_eq!(read_json(alone).mamba.map(|mamba| mamba.heads), Some(4));
}

#[test]
fn width_of_lfm2_is_computed() {
    let width = |more: Value| {
        let mut stated = json!({"model_type": "lfm2", "intermediate_size": 1000});
        stated.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        read_json(stated).intermediate_sizes
    };
    assert_eq!(width(json!({})), [768]);
    assert_eq!(width(json!({"block_ffn_dim_multiplier": 1.3, "block_multiple_of": 100})), [900]);
    assert_eq!(width(json!({"block_ffn_dim_multiplier": null})), [666]);
    assert_eq!(width(json!({"block_auto_adjust_ff_dim": false, "block_ff_dim": 512})), [512]);
}

#[test]
fn sizes_of_mamba_follow_from_the_hidden_size() {
    let sizes = |stated: Value| read_json(stated).mamba1;
    let jamba = sizes(
        json!({"model_type": "jamba", "hidden_size": 72, "mamba_expand": 3, "mamba_d_state": 6, "mamba_dt_rank": "auto"}),
    );
    assert_eq!(jamba, Some(Mamba1Config { inner: 216, state: 6, rank: 5, kernel: 4 }));
    let mamba =
        json!({"model_type": "mamba", "hidden_size": 64, "state_size": 8, "conv_kernel": 3, "time_step_rank": 7});
    assert_eq!(sizes(mamba), Some(Mamba1Config { inner: 128, state: 8, rank: 7, kernel: 3 }));
    assert_eq!(sizes(json!({"model_type": "llama", "hidden_size": 64})), None);
}

#[test]
fn sizes_of_olmo_hybrid_follow_from_those_of_attention() {
    let stated = json!({"model_type": "olmo_hybrid", "hidden_size": 96, "num_attention_heads": 6});
    let delta = read_json(stated).delta.unwrap();
    assert_eq!((delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim, delta.kernel), (6, 6, 12, 24, 4));
}

#[test]
fn networks_of_gemma_4_that_share_keys_may_be_twice_as_wide() {
    let stated = json!({"model_type": "gemma4_text", "num_hidden_layers": 4, "num_kv_shared_layers": 1, "intermediate_size": 10,
        "use_double_wide_mlp": true});
    assert_eq!(read_json(stated.clone()).intermediate_sizes, [10, 10, 10, 20]);
    let mut narrow = stated;
    narrow["use_double_wide_mlp"] = json!(false);
    assert_eq!(read_json(narrow).intermediate_sizes, [10]);
}

#[test]
fn windows_in_some_layers_are_distinguished_from_windows_in_all() {
    let mixes = |value: Value| read_json(value).has_mixed_windows();
    let qwen = |used: bool, from: usize| {
        let layers = json!({"model_type": "qwen2", "num_hidden_layers": 4, "sliding_window": 8});
        let mut value = layers;
        value["use_sliding_window"] = used.into();
        value["max_window_layers"] = from.into();
        value
    };
    assert!(mixes(qwen(true, 2)));
    assert!(!mixes(qwen(false, 2)) && !mixes(qwen(true, 4)) && !mixes(qwen(true, 0)));
    let listed = |kinds: [&str; 2]| json!({"model_type": "gemma3_text", "num_hidden_layers": 2, "layer_types": kinds});
    assert!(mixes(listed(["sliding_attention", "full_attention"])));
    assert!(!mixes(listed(["sliding_attention", "sliding_attention"])));
    assert!(!mixes(listed(["full_attention", "full_attention"])));
}

#[test]
fn blocks_of_kimi_linear_are_numbered_from_one() {
    let stated = json!({"model_type": "kimi_linear", "num_hidden_layers": 3, "model_max_length": 99, "num_experts": 4, "num_experts_per_token": 2,
        "linear_attn_config": {"full_attn_layers": [3], "kda_layers": [1, 2], "head_dim": 16, "num_heads": 2, "short_conv_kernel_size": 3}});
    let config = ModelConfig::from_json(&stated).unwrap();
    assert_eq!(config.layer_types, ["linear_attention", "linear_attention", "full_attention"]);
    let delta = DeltaConfig { key_heads: 2, value_heads: 2, key_dim: 16, value_dim: 16, kernel: 3 };
    assert_eq!((config.delta, config.max_positions), (Some(delta), Some(99)));
    assert_eq!(config.experts.unwrap().per_token, Some(2));
    let mut incomplete = stated.clone();
    incomplete["linear_attn_config"]["kda_layers"] = json!([1]);
    let error = ModelConfig::from_json(&incomplete).unwrap_err().to_string();
    assert!(error.contains("linear_attn_config.full_attn_layers"), "{error}");
    let silent = json!({"model_type": "kimi_linear", "num_hidden_layers": 6});
    let types = ModelConfig::from_json(&silent).unwrap().layer_types;
    assert_eq!(types.iter().position(|kind| kind == "full_attention"), Some(4));
}

#[test]
fn layers_of_longcat_flash_are_two_blocks() {
    let stated = json!({"model_type": "longcat_flash", "num_layers": 3, "n_routed_experts": 4, "moe_topk": 2});
    let config = ModelConfig::from_json(&stated).unwrap();
    assert_eq!((config.num_layers, config.experts.unwrap().scored()), (Some(6), Some(260)));
}

#[test]
fn indexer_of_minimax_m3_is_read_from_either_form() {
    let section = json!({"model_type": "minimax_m3_vl_text", "num_hidden_layers": 2,
        "sparse_attention_config": {"sparse_attention_freq": [0, 1], "sparse_num_index_heads": 2, "sparse_topk_blocks": 3}});
    let config = ModelConfig::from_json(&section).unwrap();
    assert_eq!(config.layer_types, ["full_attention", "minimax_m3_sparse"]);
    let index = BlockIndexConfig { heads: 2, width: 128, size: 128, most: 3, local: 1 };
    assert_eq!(config.block_index, Some(index));
    let flat = json!({"model_type": "minimax_m3_vl_text", "index_block_size": 7});
    assert_eq!(ModelConfig::from_json(&flat).unwrap().block_index.map(|index| index.size), Some(7));
    assert_eq!(
        ModelConfig::from_json(&json!({"model_type": "minimax_m2", "index_block_size": 7})).unwrap().block_index,
        None
    );
}
