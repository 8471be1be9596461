//! The configurations that AMD Quark 0.13 wrote for its schemes and for others, against what is written and read here.

// Helpers outside of test functions may fail a test too.
#![allow(clippy::unwrap_used, clippy::panic)]

use kvant_llm::config_json::quark::{QuarkConfig, WeightFormat, layer_config, quantization_config};
use kvant_llm::recipe::{Decision, Recipe, RecipeError, Settings};
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::scheme::{LayerScheme, PRESETS, Preset};
use serde_json::{Value, json};

/// Configurations with the scheme that each describes, or what must be refused.
fn observed() -> Vec<Value> {
    serde_json::from_str(include_str!("data/quark_configs.json")).unwrap()
}

fn text<'a>(case: &'a Value, key: &str) -> Option<&'a str> {
    case[key].as_str()
}

fn scheme(text: &str) -> LayerScheme {
    Preset::find(text).map_or_else(|| text.parse().unwrap(), |preset| preset.scheme().unwrap())
}

#[test]
fn observed_configurations_are_read_and_written_back() {
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
fn every_scheme_of_quark_was_observed() {
    let names: Vec<String> = observed().iter().filter_map(|case| text(case, "name").map(str::to_owned)).collect();
    let quark = PRESETS.iter().filter(|preset| preset.name.starts_with(char::is_lowercase));
    assert!(quark.clone().count() == 28 && quark.clone().all(|preset| names.contains(&preset.name.to_owned())));
}

#[test]
fn what_needs_calibration_is_unsupported_and_not_invalid() {
    let refused: Vec<Value> = observed().into_iter().filter(|case| case["refused"] == true).collect();
    assert_eq!(refused.len(), 9);
    for case in refused {
        let error = QuarkConfig::read(&case["config"]).unwrap_err();
        assert!(matches!(error, RecipeError::Unsupported(_)), "{}: {error}", case["name"]);
        assert!(!error.hint().is_empty());
    }
}

#[test]
fn overrides_become_rules_of_a_recipe() {
    let case = observed().into_iter().find(|case| case["name"] == "int4_wo_layer_override").unwrap();
    let whole = json!({"model_type": "llama", "quantization_config": case["config"]}).to_string();
    let settings = Settings::from_json("config.json", &whole).unwrap();
    let recipe = Recipe::resolve(&Settings::default(), &settings).unwrap();
    let fp8 = scheme("fp8");
    assert_eq!(recipe.decide("model.layers.0.mlp.up_proj"), Decision::Default(scheme("int4:g128")));
    assert_eq!(recipe.decide("model.layers.0.mlp.down_proj"), Decision::Override(fp8));
    assert_eq!(recipe.decide("model.layers.1.self_attn.o_proj"), Decision::Excluded);
    assert_eq!(layer_config(&fp8).unwrap(), case["config"]["layer_quant_config"]["*down_proj"]);
}

#[test]
fn full_names_come_before_patterns() {
    let config = |scheme: &str| layer_config(&scheme.parse().unwrap()).unwrap();
    let layers = json!({"*.up": config("int8:channel"), "b.up": config("int4:g32"), "a.*": {"weight": null}});
    let read = QuarkConfig::read(&json!({"global_quant_config": config("int4:g128"), "layer_quant_config": layers}));
    let settings = Settings::from(read.unwrap());
    let recipe = Recipe::resolve(&Settings::default(), &settings).unwrap();
    assert_eq!(recipe.decide("b.up"), Decision::Override(scheme("int4:g32")));
    assert_eq!(recipe.decide("a.up"), Decision::Override(scheme("int8:channel")));
    assert_eq!(recipe.decide("a.down"), Decision::Excluded);
}

#[test]
fn the_commonest_scheme_is_global_and_the_others_are_patterns() {
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
fn what_is_written_is_read_back() {
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
fn schemes_without_words_are_refused() {
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
fn what_is_meant_and_not_done_is_unsupported() {
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
        ("/global_quant_config/output_tensors", json!({"dtype": "int8"})),
        ("/global_quant_config/bias", json!({"dtype": "int8"})),
        ("/kv_cache_post_rope", json!(true)),
        ("/export/kv_cache_group", json!(["*k_proj"])),
        ("/quant_mode", json!("fx_graph_mode")),
        ("/layer_type_quant_config", json!({"Conv2d": {"weight": {"dtype": "int8"}}})),
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
fn the_type_linear_is_the_default() {
    let int8 = json!({"Linear": layer_config(&scheme("int8:channel")).unwrap()});
    assert_eq!(changed("/layer_type_quant_config", int8).unwrap().default, Some(scheme("int8:channel")));
}
