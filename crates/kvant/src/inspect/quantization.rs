//! The existing quantization of a checkpoint: as stated in config.json, and as shown by tensor names and types. Only
//! for display; the plan decides whether such a source can be quantized again.

use kvant_checkpoint::recipe::attention_words;
use kvant_container::{Checkpoint, Dtype};
use kvant_formats::format::described_in_files;
use kvant_formats::format::quark::QuarkConfig;
use kvant_formats::format::stored::{method_of, quantization_config};
use kvant_quant::counts::number;
use kvant_quant::scheme::{LayerScheme, TensorScheme};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// The results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quantization {
    /// The method: config.json's `quant_method`, else the one that the tensors' names are usual for.
    pub method: String,
    /// The rest in words.
    pub details: Vec<String>,
    /// The number of tensors with names or types that only quantized checkpoints have.
    pub evidence: BTreeMap<&'static str, usize>,
    /// `quantization_config` as it is.
    pub config: Option<Value>,
}

/// Ends of names that only quantized checkpoints have.
const SUFFIXES: &[&str] = &[
    ".qweight",
    ".qzeros",
    ".scales",
    ".g_idx",
    ".weight_packed",
    ".weight_scale",
    ".weight_scale_2",
    ".weight_global_scale",
    ".weight_scale_inv",
    ".weight_zero_point",
    ".input_scale",
    "_blocks",
    "_scales",
];

/// The method that an end of a name is usual for; the first that occurs decides.
const DEFAULTS: &[(&str, &str)] = &[
    (".g_idx", "gptq"),
    (".qweight", "awq or gptq"),
    (".weight_packed", "compressed-tensors"),
    (".weight_scale_inv", "fp8 in blocks"),
    ("_blocks", "mxfp4"),
    (".weight_zero_point", "quark or compressed-tensors"),
    (".weight_scale", "quark, compressed-tensors or fp8"),
    (FP8, "fp8 without scales"),
];

const FP8: &str = "fp8 tensors";

/// Looks for quantization.
pub fn find(checkpoint: &Checkpoint, config: Option<&Value>) -> Option<Quantization> {
    let described = if config.is_none() { described_in_files(checkpoint) } else { None };
    let of_files = described.as_ref().map(|(method, _)| *method);
    let config = described.as_ref().map(|(_, config)| config).or_else(|| config.and_then(quantization_config));
    let evidence = evidence(checkpoint);
    let stated = of_files.or_else(|| method_of(config?));
    let usual = DEFAULTS.iter().find(|(sign, _)| evidence.contains_key(sign)).map(|(_, method)| *method);
    let method = stated.or(usual).or(config.map(|_| "unknown"))?.to_owned();
    let details = config.map(|config| details(&method, config)).unwrap_or_default();
    Some(Quantization { method, details, evidence, config: config.cloned() })
}

fn evidence(checkpoint: &Checkpoint) -> BTreeMap<&'static str, usize> {
    let mut evidence = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        let suffix = SUFFIXES.iter().find(|suffix| tensor.name().ends_with(**suffix)).copied();
        let fp8 = matches!(tensor.dtype(), Dtype::F8_E4M3 | Dtype::F8_E5M2).then_some(FP8);
        suffix.into_iter().chain(fp8).for_each(|sign| *evidence.entry(sign).or_default() += 1);
    }
    evidence
}

fn details(method: &str, config: &Value) -> Vec<String> {
    match method {
        "quark" => quark_details(config),
        "compressed-tensors" => group_details(config),
        "kvant-tensors" => layer_details(config, "scheme"),
        "comfyui" => layer_details(config, "format"),
        _ => plain_details(config),
    }
}

/// The schemes of Quark's configuration, as a recipe spells them.
fn quark_details(config: &Value) -> Vec<String> {
    let Ok(quark) = QuarkConfig::read(config) else {
        return vec!["its schemes are not known to Kvant".to_owned()];
    };
    let text = |scheme: Option<LayerScheme>| scheme.map_or("keep".to_owned(), |scheme| scheme.to_string());
    let kinds = quark.layer_types.iter().map(|(kind, scheme)| format!("{kind} {}", text(*scheme)));
    // Layers with quantized biases have entries of their own, which mostly repeat the scheme of all.
    let repeats = |(layer, scheme): &&(String, Option<LayerScheme>)| {
        *scheme == quark.default && quark.layer_biases.iter().any(|(other, _)| other == layer)
    };
    let layers = quark.layers.iter().rev().filter(|layer| !repeats(layer));
    let layers = layers.map(|(layer, scheme)| format!("{layer} {}", text(*scheme)));
    let scheme = format!("scheme {}", text(quark.default));
    let words = std::iter::once(scheme).chain(kinds).chain(layers).chain(bias_details(&quark));
    words.chain(attention_words(&quark.attention)).collect()
}

/// The schemes of biases: of all layers, of kinds of layers, and of how many layers by name.
fn bias_details(quark: &QuarkConfig) -> Vec<String> {
    let text = |scheme: Option<TensorScheme>| scheme.map_or("float".to_owned(), |scheme| scheme.to_string());
    let all = quark.bias.map(|scheme| format!("biases {scheme}"));
    let kinds = quark.layer_type_biases.iter().filter(|(_, scheme)| scheme.is_some() || quark.bias.is_some());
    let kinds = kinds.map(|(kind, scheme)| format!("biases of {kind} {}", text(*scheme)));
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    quark.layer_biases.iter().for_each(|(_, scheme)| *counts.entry(text(*scheme)).or_default() += 1);
    let layers = counts.into_iter().map(|(scheme, count)| format!("biases of {} {scheme}", number(count, "layer")));
    all.into_iter().chain(kinds).chain(layers).collect()
}

/// The groups of compressed-tensors: format, bits, strategy.
fn group_details(config: &Value) -> Vec<String> {
    let groups = config.get("config_groups").and_then(Value::as_object);
    let group = |(name, group): (&String, &Value)| {
        let side =
            |key: &str| group.get(key).filter(|side| side.is_object()).map(|side| format!("{key} {}", arguments(side)));
        let sides: Vec<String> = ["weights", "input_activations"].into_iter().filter_map(side).collect();
        format!("{name}: {}", sides.join(", "))
    };
    let format = config.get("format").and_then(Value::as_str).map(|format| format!("format {format}"));
    let cache = config.get("kv_cache_scheme").filter(|cache| cache.is_object());
    let cache = cache.map(|cache| format!("KV cache {}", arguments(cache)));
    format.into_iter().chain(groups.into_iter().flatten().map(group)).chain(cache).collect()
}

/// The number of layers with each value of a key in the description that files hold.
fn layer_details(config: &Value, key: &str) -> Vec<String> {
    let layers = config.get("layers").and_then(Value::as_object).into_iter().flatten();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for value in layers.filter_map(|(_, layer)| layer.get(key)?.as_str()) {
        *counts.entry(value).or_default() += 1;
    }
    let line = |(value, count): (&str, usize)| format!("{} {value}", number(count, "layer"));
    counts.into_iter().map(line).collect()
}

fn arguments(side: &Value) -> String {
    let text = |key: &str| side.get(key).filter(|value| !value.is_null()).map(plain);
    let number = text("num_bits").zip(text("type")).map(|(bits, kind)| format!("{kind}{bits}"));
    let group = text("group_size").map(|size| format!("g{size}"));
    let dynamic = side.get("dynamic").is_some_and(|dynamic| dynamic == true).then(|| "dynamic".to_owned());
    [number, text("strategy"), group, dynamic].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Keys with plain values, as they are.
fn plain_details(config: &Value) -> Vec<String> {
    let entries = config.as_object().into_iter().flatten();
    let is_plain = |value: &Value| value.is_string() || value.is_number() || value.is_boolean();
    let shown = entries.filter(|(key, value)| *key != "quant_method" && is_plain(value));
    shown.map(|(key, value)| format!("{key} {}", plain(value))).collect()
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn compressed_tensors_config_is_described() {
        let weights = json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "dynamic": false});
        let inputs = json!({"num_bits": 8, "type": "float", "strategy": "token", "group_size": null, "dynamic": true});
        let group = json!({"targets": ["Linear"], "weights": weights, "input_activations": inputs});
        let config = json!({"format": "pack-quantized", "config_groups": {"group_0": group}});
        let words = "group_0: weights int4 group g128, input_activations float8 token dynamic";
        assert_eq!(details("compressed-tensors", &config), ["format pack-quantized", words]);
    }

    #[test]
    fn biases_of_quark_configs_are_described() {
        let tensor = |qscheme: &str, axis: Value| {
            json!({"dtype": "int8", "qscheme": qscheme, "ch_axis": axis, "symmetric": true, "is_dynamic": false,
                   "observer_cls": "PerTensorMinMaxObserver", "round_method": "half_even", "scale_type": "float"})
        };
        let weight = tensor("per_channel", json!(0));
        let layer =
            |bias: Value| json!({"weight": weight, "bias": bias, "input_tensors": null, "output_tensors": null});
        let bias = || tensor("per_tensor", Value::Null);
        let config = json!({"quant_method": "quark", "global_quant_config": layer(Value::Null),
            "layer_quant_config": {"a.fc": layer(bias()), "b.fc": layer(bias())}});
        assert_eq!(details("quark", &config), ["scheme int8:channel", "biases of 2 layers int8:tensor"]);
        let all = json!({"quant_method": "quark", "global_quant_config": layer(bias())});
        assert_eq!(details("quark", &all), ["scheme int8:channel", "biases int8:tensor"]);
    }

    #[test]
    fn unknown_configs_show_their_plain_values() {
        let config = json!({"quant_method": "awq", "bits": 4, "zero_point": true, "modules_to_not_convert": null});
        assert_eq!(details("awq", &config), ["bits 4", "zero_point true"]);
    }

    #[test]
    fn nested_quantization_config_is_found() {
        let config = json!({"text_config": {"quantization_config": {"quant_method": "fp8"}}});
        assert_eq!(quantization_config(&config).unwrap()["quant_method"], "fp8");
        assert_eq!(quantization_config(&json!({"quantization_config": 3})), None);
    }
}
