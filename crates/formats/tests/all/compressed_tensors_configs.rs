//! The configurations that compressed-tensors 0.20 wrote for its presets and for others, against what is written here.

// Helpers outside of test functions may fail a test too.
#![allow(clippy::unwrap_used, clippy::panic)]

use kvant_formats::format::compressed_tensors::{format_of, quantization_config};
use kvant_quant::scheme::{LayerScheme, Preset};
use serde_json::{Value, json};

fn scheme(text: &str) -> LayerScheme {
    Preset::find(text).map_or_else(|| text.parse().unwrap(), |preset| preset.scheme().unwrap())
}

#[test]
fn written_configs_match_observed_ones() {
    let observed: Vec<Value> = serde_json::from_str(include_str!("../data/compressed_tensors_configs.json")).unwrap();
    assert_eq!(observed.len(), 26);
    for case in observed {
        let scheme = scheme(case["scheme"].as_str().unwrap());
        let mut written =
            quantization_config(&[("model.layers.0.mlp.up_proj", scheme)], &["lm_head"], &[], false).unwrap();
        // A key that is new in 0.20 and always null.
        written["moe_sparsity_config"] = Value::Null;
        assert_eq!(written, case["config"], "{}", case["name"]);
        assert_eq!(format_of(&scheme).unwrap().name(), case["config"]["format"], "{}", case["name"]);
    }
}

#[test]
fn several_schemes_target_every_module_by_name_or_pattern() {
    let (int4, fp8, int8) = (scheme("W4A16"), scheme("FP8_DYNAMIC"), scheme("int8:g32"));
    let layers =
        [("m.0.up", int4), ("m.0.down", fp8), ("m.1.up", int4), ("m.1.down", fp8), ("m.2.down", int8), ("head", int4)];
    let config = quantization_config(&layers, &["lm_head"], &[], false).unwrap();
    let group = |index: usize| &config["config_groups"][format!("group_{index}")];
    assert_eq!(config["format"], "mixed-precision");
    assert_eq!(group(0)["targets"], json!([r"re:.*\.up$", "head"]));
    assert_eq!(group(1)["targets"], json!(["m.0.down", "m.1.down"]));
    assert_eq!((&group(0)["format"], &group(1)["format"]), (&json!("pack-quantized"), &json!("float-quantized")));
    assert_eq!(group(2)["weights"]["num_bits"], 8);
    assert_eq!(config["config_groups"].as_object().unwrap().len(), 3);
}

#[test]
fn several_schemes_of_one_format_are_not_mixed() {
    let layers = [("m.up", scheme("int4:g128")), ("m.down", scheme("int8:channel"))];
    assert_eq!(quantization_config(&layers, &[], &[], false).unwrap()["format"], "pack-quantized");
}

#[test]
fn schemes_without_a_layout_are_refused_with_a_hint() {
    for text in ["uint4:g128:zp", "amdfp4", "mx9", "int4_fp8", "mxfp6_e3m2", "int4:g32:fzp", "int8:channel+mx6!dynamic"]
    {
        let error = quantization_config(&[("m.up", scheme(text))], &[], &[], false).unwrap_err();
        assert!(!error.hint.is_empty() && error.reason.contains("compressed-tensors has no"), "{text}: {error}");
    }
}

#[test]
fn single_scheme_targets_the_class_and_several_use_loader_names() {
    let (int4, int8) = (scheme("W4A16"), scheme("int8:channel"));
    let (layers, aliases) =
        ([("net.0.up", int4), ("net.0.proj", int8)], [("model.0.up", int4), ("model.0.proj", int8)]);
    let one = quantization_config(&layers[..1], &["head.proj"], &aliases[..1], false).unwrap();
    assert_eq!(one["config_groups"]["group_0"]["targets"], json!(["Linear"]));
    let several = quantization_config(&layers, &["head.proj"], &aliases, false).unwrap();
    assert_eq!(several["config_groups"]["group_0"]["targets"], json!([r"re:.*\.up$"]));
    assert_eq!(several["config_groups"]["group_1"]["targets"], json!(["net.0.proj", "model.0.proj"]));
}
