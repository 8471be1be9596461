//! The configurations that AMD Quark 0.13 wrote for its schemes and for others, against what is written and read here.

// Helpers outside of test functions may fail a test too.
#![allow(clippy::unwrap_used, clippy::panic)]

use kvant_checkpoint::recipe::{Recipe, RuleMatch, Settings};
use kvant_container::Diagnostic;
use kvant_formats::format::quark::{
    AttentionModules, QuarkConfig, WeightFormat, describe_attention, layer_config, quantization_config,
};
use kvant_model::network::LayerKind;
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::scheme::{LayerScheme, PRESETS, Preset, Rotary};
use kvant_weights::recipe_error::RecipeError;
use serde_json::{Value, json};

/// Configurations with the scheme that each describes, or what must be refused.
fn observed() -> Vec<Value> {
    serde_json::from_str(include_str!("../data/quark_configs.json")).unwrap()
}

fn text<'a>(case: &'a Value, key: &str) -> Option<&'a str> {
    case[key].as_str()
}

fn scheme(text: &str) -> LayerScheme {
    Preset::find(text).map_or_else(|| text.parse().unwrap(), |preset| preset.scheme().unwrap())
}

#[test]
fn observed_quark_configs_round_trip() {
    let mut schemes = 0;
    for case in observed() {
        let (name, Some(spelled)) = (text(&case, "name").unwrap(), text(&case, "scheme")) else { continue };
        let read = QuarkConfig::read(&case["config"]).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(read.default, Some(scheme(spelled)), "{name}");
        if read.layers.is_empty() {
            let exclude: Vec<&str> = read.exclude.iter().map(String::as_str).collect();
            let layers = [("model.layers.0.mlp.up_proj", scheme(spelled))];
            let written = quantization_config(&layers, &exclude, read.order, read.weight_format).unwrap();
            assert_eq!(written, case["config"], "{name}");
            schemes += 1;
        }
    }
    assert!(schemes >= 47, "{schemes}");
}

#[test]
fn every_quark_scheme_was_observed() {
    let names: Vec<String> = observed().iter().filter_map(|case| text(case, "name").map(str::to_owned)).collect();
    let quark = PRESETS.iter().filter(|preset| preset.name.starts_with(char::is_lowercase));
    assert!(quark.clone().count() == 28 && quark.clone().all(|preset| names.contains(&preset.name.to_owned())));
}

/// The modules of the observed model.
fn llama_modules() -> Vec<String> {
    let leaves = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj"];
    (0..2).flat_map(|block| leaves.map(|leaf| format!("model.layers.{block}.{leaf}"))).collect()
}

#[test]
fn quantized_attention_round_trips() {
    let llama = AttentionModules::of(kvant_model::family::by_name("llama").unwrap());
    for (name, rotary, query) in [
        ("fp8_kv", Rotary::Before, false),
        ("fp8_kv_attn", Rotary::Before, true),
        ("fp8_kv_post_rope", Rotary::After, false),
    ] {
        let case = observed().into_iter().find(|case| case["name"] == name).unwrap();
        let read = QuarkConfig::read(&case["config"]).unwrap_or_else(|error| panic!("{name}: {error}"));
        let fp8 = "e4m3:tensor!static".parse().unwrap();
        assert_eq!((read.default, read.layers.len()), (Some(scheme("fp8")), 0), "{name}");
        assert_eq!((read.attention.rotary, read.attention.key_value.unwrap().scheme), (rotary, fp8), "{name}");
        assert_eq!((read.attention.query, read.attention.probabilities), (query.then_some(fp8), query.then_some(fp8)));
        let modules = llama_modules();
        let layers: Vec<_> = modules.iter().map(|name| (name.as_str(), scheme("fp8"))).collect();
        let mut written = quantization_config(&layers, &["lm_head"], read.order, read.weight_format).unwrap();
        describe_attention(&mut written, &read.attention, &llama, &layers).unwrap();
        assert_eq!(written, case["config"], "{name}");
        let settings = Settings::from_json("config.json", &case["config"].to_string()).unwrap();
        let recipe = Recipe::resolve(&Settings::default(), &settings).unwrap();
        assert_eq!(recipe.attention(), read.attention, "{name}");
    }
}

#[test]
fn cache_owners_with_several_schemes_are_refused() {
    let llama = AttentionModules::of(kvant_model::family::by_name("llama").unwrap());
    let settings = Settings { scheme: Some("fp8".to_owned()), kv_cache: Some("fp8".to_owned()), ..Settings::default() };
    let attention = Recipe::resolve(&settings, &Settings::default()).unwrap().attention();
    let layers = [("m.0.k_proj", scheme("fp8")), ("m.1.k_proj", scheme("int4:g128")), ("m.0.v_proj", scheme("fp8"))];
    let mut written = quantization_config(&layers, &[], NibbleOrder::Awq, WeightFormat::Real).unwrap();
    let error = describe_attention(&mut written, &attention, &llama, &layers).unwrap_err();
    assert!(error.hint.contains("‹override›"), "{error}");
    // Layers that are kept still own the cache.
    let mut written = quantization_config(&layers[2..], &["m.0.k_proj"], NibbleOrder::Awq, WeightFormat::Real).unwrap();
    describe_attention(&mut written, &attention, &llama, &layers[2..]).unwrap();
    assert_eq!(written["kv_cache_quant_config"]["*k_proj"]["weight"], Value::Null);
    assert!(written["layer_quant_config"].get("*k_proj").is_none());
}

#[test]
fn algorithms_are_read_and_unknown_ones_are_unsupported() {
    let attention = ["fp8_kv", "fp8_kv_attn", "fp8_kv_post_rope"];
    let refused = observed().into_iter().filter(|case| case["refused"] == true);
    let refused: Vec<Value> = refused.filter(|case| !attention.contains(&case["name"].as_str().unwrap())).collect();
    let mut read = Vec::new();
    for case in &refused {
        match QuarkConfig::read(&case["config"]) {
            Ok(config) => read.push((case["name"].as_str().unwrap(), config.algorithms.to_string())),
            Err(error) => {
                assert!(matches!(error, RecipeError::Unsupported(_)), "{}: {error}", case["name"]);
                assert!(error.hint().is_some_and(|hint| !hint.is_empty()));
            }
        }
    }
    let algorithms: Vec<_> = read.iter().map(|(name, algorithms)| (*name, algorithms.as_str())).collect();
    let alpha = algorithms[1].1.strip_prefix("smoothquant").unwrap();
    assert!(alpha.is_empty() || alpha.starts_with(":alpha="));
    assert_eq!(algorithms[0], ("gptq_int4_wo_32", "gptq"));
    assert_eq!(algorithms[2], ("rotation_r1_offline_mxfp4", "rotate:heads=off"));
    assert_eq!(algorithms[3], ("uint4_wo_128_awq_quarkmode", "awq"));
    assert_eq!((refused.len(), read.len()), (6, 4));
}

#[test]
fn layer_overrides_become_recipe_rules() {
    let case = observed().into_iter().find(|case| case["name"] == "int4_wo_layer_override").unwrap();
    let whole = json!({"model_type": "llama", "quantization_config": case["config"]}).to_string();
    let settings = Settings::from_json("config.json", &whole).unwrap();
    let recipe = Recipe::resolve(&Settings::default(), &settings).unwrap();
    let fp8 = scheme("fp8");
    assert_eq!(recipe.decide("model.layers.0.mlp.up_proj"), RuleMatch::Default(scheme("int4:g128")));
    assert_eq!(recipe.decide("model.layers.0.mlp.down_proj"), RuleMatch::Override(fp8));
    assert_eq!(recipe.decide("model.layers.1.self_attn.o_proj"), RuleMatch::Excluded);
    assert_eq!(layer_config(&fp8).unwrap(), case["config"]["layer_quant_config"]["*down_proj"]);
}

#[test]
fn full_names_win_over_patterns() {
    let config = |scheme: &str| layer_config(&scheme.parse().unwrap()).unwrap();
    let layers = json!({"*.up": config("int8:channel"), "b.up": config("int4:g32"), "a.*": {"weight": null}});
    let whole = json!({"global_quant_config": config("int4:g128"), "layer_quant_config": layers}).to_string();
    let settings = Settings::from_json("config.json", &whole).unwrap();
    let recipe = Recipe::resolve(&Settings::default(), &settings).unwrap();
    assert_eq!(recipe.decide("b.up"), RuleMatch::Override(scheme("int4:g32")));
    assert_eq!(recipe.decide("a.up"), RuleMatch::Override(scheme("int8:channel")));
    assert_eq!(recipe.decide("a.down"), RuleMatch::Excluded);
}

#[test]
fn commonest_scheme_is_global_and_others_are_patterns() {
    let (int4, int8) = (scheme("int4:g128"), scheme("int8:channel"));
    let layers = [("m.0.down", int8), ("m.0.up", int4), ("m.1.down", int8), ("m.1.up", int4), ("m.2.up", int4)];
    let written = quantization_config(&layers, &["lm_head"], NibbleOrder::Natural, WeightFormat::Real).unwrap();
    assert_eq!(written["global_quant_config"], layer_config(&int4).unwrap());
    assert_eq!(written["layer_quant_config"], json!({"*.down": layer_config(&int8).unwrap()}));
    assert_eq!(written["export"]["pack_method"], "order");
    let read = QuarkConfig::read(&written).unwrap();
    assert_eq!((read.default, read.layers), (Some(int4), vec![("*.down".to_owned(), Some(int8))]));
    assert_eq!(read.order, NibbleOrder::Natural);
}

/// Schemes that no observed configuration has.
#[test]
fn written_quark_schemes_read_back() {
    for text in [
        "int16:tensor",
        "uint8:g-1:f16:zp",
        "int8:channel:pow2",
        "int8:tensor:pow2:mse",
        "int8:tensor:mse",
        "int8:tensor:percentile99.99999999",
        "int4:g32@0",
        "int4:channel@1",
        "e4m3:b128x128:f32+e4m3:g128!dynamic",
        "e3m2:g32:f32",
        "e2m1:g32:e8m0-floor",
        "e2m1:g32:e8m0-ceil+e2m3:g32:e8m0-floor!dynamic",
        "mxint8:floor",
        "bf16+f16!dynamic",
        "e2m1:g16:e4m3:f32+e2m1:g16:e4m3:f32!static",
        "e2m1:g16:e4m3:f32+e2m1:g16:e4m3:f32!dynamic",
        "int4:channel/e4m3:tensor:f32+int4:channel/e4m3:tensor!dynamic",
        "int8:channel+uint8:channel:zp!dynamic",
        "e4m3:tensor:bf16+e4m3:tensor:f32!static",
    ] {
        let scheme: LayerScheme = text.parse().unwrap();
        let written = json!({"global_quant_config": layer_config(&scheme).unwrap()});
        let read = QuarkConfig::read(&written).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(read.default, Some(scheme), "{text}");
    }
}

#[test]
fn inexpressible_quark_schemes_are_refused() {
    for text in
        ["int5:g128", "int6:channel", "int7:channel", "uint32:tensor", "int8:channel+e2m1:g32:e8m0-rceil!dynamic"]
    {
        let error = layer_config(&text.parse().unwrap()).unwrap_err();
        assert!(error.reason.starts_with("Quark has no") && !error.hint.is_empty(), "{text}: {error}");
    }
    // The scales of weights are stored, whatever rule they came from.
    let rceil = layer_config(&scheme("e2m1:g32:e8m0-rceil")).unwrap();
    assert_eq!(rceil["weight"]["scale_calculation_mode"], "ceil");
}

/// The observed int4 configuration with one field of one place changed.
fn changed(pointer: &str, value: Value) -> Result<QuarkConfig, RecipeError> {
    let case = observed().into_iter().find(|case| case["name"] == "int4_wo_128").unwrap();
    let mut config = case["config"].clone();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    config.pointer_mut(parent).unwrap()[key] = value;
    QuarkConfig::read(&config)
}

#[test]
fn hostile_fields_are_refused_by_name() {
    for (pointer, value) in [
        ("/global_quant_config", json!([])),
        ("/global_quant_config/weight", json!("int4")),
        ("/global_quant_config/weight/dtype", json!(4)),
        ("/global_quant_config/weight/ch_axis", json!("x")),
        ("/global_quant_config/weight/block_size", json!([1, -1])),
        ("/exclude", json!("lm_head")),
        ("/exclude", json!([1])),
        ("/layer_quant_config", json!([])),
        ("/layer_quant_config", json!({"*": 1})),
        ("/export/pack_method", json!("any")),
        ("/export/weight_format", json!(1)),
    ] {
        let error = changed(pointer, value).unwrap_err();
        assert!(matches!(error, RecipeError::Invalid(_)), "{pointer}: {error}");
    }
    assert!(matches!(QuarkConfig::read(&json!({"quant_method": "quark"})).unwrap_err(), RecipeError::Invalid(_)));
    assert!(QuarkConfig::read(&json!([])).is_err());
}

#[test]
fn unimplemented_fields_are_unsupported_not_invalid() {
    for (pointer, value) in [
        ("/global_quant_config/weight/dtype", json!("int5x")),
        ("/global_quant_config/weight/group_size", json!(0)),
        ("/global_quant_config/weight/group_size", json!(i64::MAX)),
        ("/global_quant_config/weight/ch_axis", json!(7)),
        ("/global_quant_config/weight/qscheme", json!("per_row")),
        ("/global_quant_config/weight/is_dynamic", json!(true)),
        ("/global_quant_config/weight/round_method", json!("floor")),
        ("/global_quant_config/weight/scale_type", json!("float8")),
        ("/global_quant_config/weight/observer_cls", json!("LSQObserver")),
        ("/global_quant_config/weight/qat_spec", json!({"a": 1})),
        ("/global_quant_config/output_tensors", json!({"dtype": "int5x"})),
        ("/global_quant_config/bias", json!({"dtype": "int8"})),
        ("/softmax_quant_spec", json!({"dtype": "int5x"})),
        ("/kv_cache_quant_config", json!({"*k_proj": {"output_tensors": {"dtype": "int5x"}}})),
        ("/quant_mode", json!("fx_graph_mode")),
        ("/layer_type_quant_config", json!({"BatchNorm2d": {"weight": {"dtype": "int8"}}})),
        ("/something_new", json!(1)),
    ] {
        let error = changed(pointer, value).unwrap_err();
        assert!(matches!(error, RecipeError::Unsupported(_)), "{pointer}: {error}");
    }
    // Fields that say nothing do no harm.
    assert!(changed("/something_new", json!(null)).is_ok());
    assert!(changed("/global_quant_config/weight/qat_spec", json!(null)).is_ok());
}

#[test]
fn layer_type_linear_is_the_default_scheme() {
    let int8 = json!({"Linear": layer_config(&scheme("int8:channel")).unwrap()});
    assert_eq!(changed("/layer_type_quant_config", int8).unwrap().default, Some(scheme("int8:channel")));
}

#[test]
fn other_layer_types_get_their_schemes() {
    let types = json!({
        "Conv2d": layer_config(&scheme("int8:channel")).unwrap(),
        "EmbeddingBag": layer_config(&scheme("e4m3:tensor")).unwrap(),
        "ConvTranspose1d": null,
    });
    let read = changed("/layer_type_quant_config", types).unwrap().layer_types;
    let expected =
        [(LayerKind::Conv2d, Some(scheme("int8:channel"))), (LayerKind::Embedding, Some(scheme("e4m3:tensor")))];
    assert_eq!(read.into_iter().collect::<Vec<_>>(), expected);
}
