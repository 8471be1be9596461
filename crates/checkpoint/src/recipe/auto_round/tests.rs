//! Recipes as AutoRound 0.16 writes and takes them, with the command line that asks for the same.

use super::*;
use crate::recipe::{Recipe, Settings, read_text};
use kvant_container::Diagnostic;
use serde_json::json;

fn read(value: &Value) -> Result<RecipeFile, RecipeError> {
    read_text("config.json", &value.to_string())
}

/// Scheme, format and algorithms, then overrides.
fn shown(file: &RecipeFile) -> (String, Vec<String>) {
    let algorithm = (!file.algorithm.is_empty()).then(|| file.algorithm.join(","));
    let head = [file.scheme.clone(), file.format.clone(), algorithm];
    let overrides = file.overrides.iter().map(|entry| format!("{}={}", entry.layers.clone().unwrap(), entry.scheme));
    (head.into_iter().flatten().collect::<Vec<_>>().join(" "), overrides.collect())
}

/// What all of them say of a run, as AutoRound saves it where no setting is the usual one.
fn saved(fields: Value) -> Value {
    let mut config = json!({"autoround_version": "0.16.0", "quant_method": "auto-round", "iters": 0});
    config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({"model_type": "llama", "quantization_config": config})
}

#[test]
fn saved_configurations_are_read_as_schemes() {
    for (config, expected) in [
        (
            json!({"bits": 4, "data_type": "int", "group_size": 128, "sym": true, "packing_format": "auto_round:auto_gptq", "block_name_to_quantize": "model.layers"}),
            "int4:g128 gptq",
        ),
        (
            json!({"bits": 4, "data_type": "int", "group_size": 128, "sym": false, "packing_format": "auto_round:auto_awq"}),
            "uint4:g128:zp awq",
        ),
        (
            json!({"bits": 2, "data_type": "int", "group_size": 64, "sym": false, "packing_format": "auto_round"}),
            "uint2:g64:zp gptq_v2",
        ),
        (
            json!({"bits": 4, "data_type": "mx_fp", "group_size": 32, "sym": true, "act_bits": 4, "act_data_type": "mx_fp", "act_group_size": 32, "act_sym": true, "act_dynamic": true, "packing_format": "auto_round:llm_compressor"}),
            "e2m1:g32:e8m0+e2m1:g32:e8m0-floor!dynamic compressed-tensors",
        ),
        (
            json!({"bits": 4, "data_type": "nv_fp", "group_size": 16, "sym": true, "act_bits": 4, "act_data_type": "nv_fp4_with_static_gs", "act_group_size": 16, "act_sym": true, "act_dynamic": true, "packing_format": "auto_round:llm_compressor"}),
            "e2m1:g16:e4m3:f32+e2m1:g16:e4m3:f32!local compressed-tensors",
        ),
        (
            json!({"bits": 8, "data_type": "fp", "group_size": -1, "sym": true, "act_bits": 8, "act_data_type": "fp", "act_group_size": 0, "act_dynamic": false, "act_sym": true, "activation_scheme": "static", "fmt": "e4m3", "packing_format": "auto_round:fp8_static"}),
            "e4m3:channel+e4m3:tensor!static compressed-tensors",
        ),
        (
            json!({"bits": 8, "data_type": "fp", "group_size": [128, 128], "sym": true, "act_bits": 8, "act_data_type": "fp", "act_group_size": 128, "act_dynamic": true, "act_sym": true}),
            "e4m3:b128x128+e4m3:g128!dynamic",
        ),
        (
            json!({"bits": 8, "data_type": "int", "group_size": -1, "sym": true, "act_bits": 8, "act_data_type": "int", "act_group_size": -1, "act_dynamic": true, "act_sym": true, "scale_dtype": "torch.float32"}),
            "int8:channel:f32+int8:channel!dynamic",
        ),
    ] {
        let file = read(&saved(config.clone())).unwrap_or_else(|error| panic!("{config}: {error}"));
        assert_eq!(shown(&file).0, expected, "{config}");
        assert!(file.is_foreign && file.notes.is_empty(), "{config}: {:?}", file.notes);
        Recipe::resolve(&Settings::default(), &Settings::try_from(file).unwrap()).unwrap();
    }
}

#[test]
fn layers_of_extra_config_differ_in_what_they_name() {
    let config = saved(json!({
        "bits": 2, "data_type": "int", "group_size": 64, "sym": true, "packing_format": "auto_round:auto_gptq",
        "extra_config": {
            "model.layers.0.mlp.down_proj": {"bits": 4},
            ".*self_attn\\.o_proj.*": {"bits": 8, "group_size": 32},
            "up_proj": {"bits": 3},
            "model.layers.1.self_attn.q_proj": {"bits": 16, "data_type": "float"},
            "lm_head": {"bits": 4, "group_size": 128, "sym": false, "data_type": "int", "act_bits": 16, "act_group_size": null, "rotation_config": null},
        },
    }));
    let (head, overrides) = shown(&read(&config).unwrap());
    assert_eq!(head, "int2:g64 gptq");
    // Names win over expressions, and longer ones over shorter ones.
    let expected = [
        "re:.*(?:.*self_attn\\.o_proj.*)=int8:g32",
        "*up_proj*=int3:g64",
        "*lm_head*=uint4:g128:zp",
        "*model.layers.0.mlp.down_proj*=int4:g64",
        "*model.layers.1.self_attn.q_proj*=keep",
    ];
    assert_eq!(overrides, expected);
    let file = Settings::try_from(read(&config).unwrap()).unwrap();
    let recipe = Recipe::resolve(&Settings::default(), &file).unwrap();
    let scheme = |module: &str| match recipe.decide(module) {
        crate::recipe::RuleMatch::Override(scheme) | crate::recipe::RuleMatch::Default(scheme) => scheme.to_string(),
        crate::recipe::RuleMatch::Excluded => "keep".to_owned(),
    };
    assert_eq!(scheme("model.layers.3.self_attn.o_proj"), "int8:g32");
    assert_eq!(scheme("model.layers.0.mlp.down_proj"), "int4:g64");
    assert_eq!(scheme("model.layers.1.self_attn.q_proj"), "keep");
    assert_eq!(scheme("model.layers.1.self_attn.k_proj"), "int2:g64");
}

#[test]
fn arguments_of_autoround_give_layers_by_parts_of_names() {
    let arguments = json!({
        "scheme": "W3A16",
        "layer_config": {"mlp.down": "W4A16G64", "^model\\.layers\\.[01]\\.": {"bits": 8}, "q_proj": {"scheme": "BF16"}},
        "ignore_layers": "layers.3, k_proj",
        "quant_lm_head": true,
        "static_kv_dtype": "fp8",
        "iters": 50,
        "lr": 5e-3,
        "nsamples": 512,
        "format": "auto_round",
    });
    let file = read(&arguments).unwrap();
    let (head, overrides) = shown(&file);
    assert_eq!(head, "int3:g128 gptq_v2 autoround:iterations=50:reach=0.125:scales=0.025");
    let expected =
        ["re:.*(?:^model\\.layers\\.[01]\\.)=int8:g128", "*q_proj*=keep", "*lm_head*=int3:g128", "*mlp.down*=int4:g64"];
    assert_eq!(overrides, expected);
    assert_eq!(
        (file.exclude, file.kv_cache.as_deref()),
        (vec!["*layers.3.*".to_owned(), "*k_proj*".to_owned()], Some("fp8"))
    );
    assert!(file.notes.len() == 1 && file.notes[0].starts_with("nsamples is not used"), "{:?}", file.notes);
}

#[test]
fn a_layer_config_alone_leaves_the_others_to_the_command_line() {
    let file =
        read(&json!({"model.layers.0.mlp.down_proj": {"bits": 8, "group_size": -1}, "o_proj": "MXFP8"})).unwrap();
    let (head, overrides) = shown(&file);
    assert_eq!(head, "keep");
    assert_eq!(
        overrides,
        ["*o_proj*=e4m3:g32:e8m0+e4m3:g32:e8m0-floor!dynamic", "*model.layers.0.mlp.down_proj*=int8:channel"]
    );
    assert!(file.notes[0].contains("‹scheme›"), "{:?}", file.notes);
    let line = Settings { scheme: Some("int4:g64".to_owned()), ..Settings::default() };
    let recipe = Recipe::resolve(&line, &Settings::try_from(file).unwrap()).unwrap();
    assert_eq!(recipe.default_choice().spelling(), "int4:g64");
    // Kvant's own keys are no names of layers.
    assert!(!recognizes(&json!({"scheme": "int4:g64"})) && !recognizes(&json!({"version": 2, "override": []})));
}

#[test]
fn steps_and_rates_become_those_of_learned_rounding() {
    let spelled = |fields: Value| shown(&read(&saved(fields)).unwrap()).0;
    assert_eq!(spelled(json!({"bits": 4, "iters": 200})), "int4:g128 autoround");
    assert_eq!(spelled(json!({"bits": 4, "iters": 1000})), "int4:g128 autoround:iterations=1000");
    let fixed = json!({"bits": 4, "iters": 100, "enable_minmax_tuning": false, "seed": 7});
    assert_eq!(spelled(fixed), "int4:g128 autoround:iterations=100:scales=0:seed=7");
    // Rounding to nearest without data, and with it, as they are saved.
    let model_free =
        json!({"bits": 4, "model_free": true, "extra_config": {"lm_head": {"bits": 16, "data_type": "float"}}});
    assert_eq!(spelled(model_free), "int4:g128");
    let mut config = saved(json!({"bits": 4, "amp": false, "enable_quanted_input": false}));
    config["quantization_config"].as_object_mut().unwrap().remove("iters");
    let file = read(&config).unwrap();
    assert!(file.algorithm.is_empty() && file.notes.is_empty(), "{file:?}");
    // What is not saved is as usual.
    let mut config = saved(json!({"bits": 4}));
    config["quantization_config"].as_object_mut().unwrap().remove("iters");
    let file = read(&config).unwrap();
    assert_eq!(file.algorithm, ["autoround"]);
    assert!(file.notes[0].starts_with("iters is not given, which stands for 200"), "{:?}", file.notes);
}

#[test]
fn what_is_unknown_or_cannot_be_made_is_named() {
    for (fields, expected) in [
        (json!({"bits": 4, "surprise": 1}), "surprise: is not a key of AutoRound that Kvant knows"),
        (json!({"bits": 4, "extra_config": {"a": {"bits": 4, "odd": 2}}}), "extra_config.a.odd: is not a key"),
        (json!({"bits": 9, "data_type": "int"}), "data_type: `int` of 9 bits"),
        (json!({"bits": 4, "data_type": "mx_int"}), "data_type: `mx_int` of 4 bits"),
        (json!({"bits": 4, "data_type": "int_asym_dq", "super_bits": 6}), "super_bits: Kvant does not make"),
        (json!({"scheme": "gguf:q4_k_m"}), "scheme: `gguf:q4_k_m` is a mix of GGUF files"),
        (json!({"scheme": "W9A16"}), "scheme: the scheme `W9A16` is not known"),
        (json!({"bits": "4"}), "bits: is not a number of bits"),
        (json!({"bits": 4, "group_size": -2}), "group_size: is not the size of a group"),
        (json!({"bits": 4, "extra_config": {"a[": {"bits": 8}}}), "extra_config.a[: is not a regular expression"),
        (json!({"bits": 4, "static_kv_dtype": "nvfp4"}), "static_kv_dtype: `nvfp4` is not a type"),
        (
            json!({"bits": 4, "static_kv_dtype": "fp8", "static_kv_granularity": "head"}),
            "static_kv_granularity: only one",
        ),
        (json!({"bits": 4, "static_attention_dtype": "fp8"}), "static_attention_dtype: is not a key"),
        (json!({"bits": 4, "iters": 10, "enable_quanted_input": false}), "enable_quanted_input: `false` tunes blocks"),
        (json!({"bits": 4, "enable_norm_bias_tuning": true}), "enable_norm_bias_tuning: is not a key"),
        (json!({"bits": 4, "rotation_config": {"a": 1}}), "rotation_config: Kvant does not make"),
        (json!({"bits": 4, "packing_format": "mlx"}), "packing_format: the format `mlx` is not written"),
        (json!({"bits": 4, "iters": 10, "lr": 100}), "lr: 100 in 10 steps"),
    ] {
        let error = read(&saved(fields.clone())).expect_err(&fields.to_string());
        let message = error.to_string();
        assert!(message.starts_with("config.json: ") && message.contains(expected), "{fields}: {message}");
        assert!(error.hint().is_some_and(|hint| !hint.is_empty()), "{fields}");
    }
}
