//! config.json against the tensors.

use super::model::Model;
use kvant_container::Dtype;
use kvant_formats::format::OutputFormat;
use kvant_quant::finding::Severity;
use serde_json::{Value, json};

fn packed(scheme: &str) -> Model {
    Model::quantized(scheme, OutputFormat::COMPRESSED_TENSORS)
}

#[test]
fn stated_scheme_differing_from_stored_is_an_error() {
    let group =
        |config: &mut Value, key: &str, value: Value| config["config_groups"]["group_0"]["weights"][key] = value;
    let restated = |key: &'static str, value: Value| packed("int4:g32").restated(|config| group(config, key, value));
    restated("group_size", json!(16)).assert_error("layout", "weight_scale", "does not fit");
    restated("num_bits", json!(8)).assert_error("layout", "weight_packed", "8 bits");
    restated("symmetric", json!(false)).assert_error("layout", "weight_zero_point", "missing");
    let quark = Model::quantized("int4:g32", OutputFormat::QUARK);
    let other = quark.restated(|config| config["global_quant_config"]["weight"]["group_size"] = json!(64));
    other.assert_error("layout", "weight_scale", "does not fit");
}

#[test]
fn transposed_scales_are_an_error() {
    let mut model = packed("int4:channel");
    let scale = model.tensors.iter_mut().find(|(name, ..)| name.ends_with("q_proj.weight_scale")).unwrap();
    scale.2.reverse();
    model.assert_error("layout", "q_proj.weight_scale", "does not fit");
}

#[test]
fn missing_scales_are_an_error() {
    let broken = packed("int4:g32").without("up_proj.weight_scale");
    broken.assert_error("layout", "up_proj.weight_scale", "missing");
    let quark = Model::quantized("int4:g32", OutputFormat::QUARK).without("up_proj.weight_scale").verify();
    assert!(!quark.passes());
}

#[test]
fn unlisted_float_layers_are_an_error() {
    let unlisted =
        packed("int4:g32").with(crate::common::weight("model.layers.0.mlp.up_proj.weight", Dtype::BF16, &[128, 64]));
    let unlisted =
        unlisted.without("up_proj.weight_packed").without("up_proj.weight_scale").without("up_proj.weight_shape");
    let report = unlisted.verify();
    let found = report.errors().find(|error| error.check == "listed").unwrap();
    assert_eq!(found.place, "model.layers.0.mlp.up_proj");
    assert!(found.hint.as_ref().unwrap().contains("`ignore`"));
    let listed =
        unlisted.restated(|config| config["ignore"] = json!(["lm_head", "model.layers.0.mlp.up_proj"])).verify();
    assert!(listed.errors().all(|error| error.check != "listed"));
}

#[test]
fn listed_quantized_layers_are_an_error() {
    let listed = packed("int4:g32")
        .restated(|config| config["ignore"] = json!(["lm_head", "model.layers.0.mlp.up_proj"]))
        .verify();
    assert!(listed.errors().any(|error| error.place.contains("up_proj")), "{:?}", listed.findings);
    let idle = packed("int4:g32").restated(|config| config["ignore"] = json!(["lm_head", "re:.*router$"]));
    idle.assert_found(Severity::Note, "listed", "re:.*router$", "no module");
}

#[test]
fn unlisted_heads_are_a_warning() {
    for (export, key) in [(OutputFormat::COMPRESSED_TENSORS, "ignore"), (OutputFormat::QUARK, "exclude")] {
        let model = Model::quantized("int4:g32", export).restated(|config| config[key] = json!([]));
        model.assert_found(Severity::Warning, "listed", "lm_head", "does not list it");
    }
}

/// Static fp8 inputs, with scales beside every layer.
fn static_inputs() -> Model {
    let mut model = packed("e4m3:tensor+e4m3:tensor!dynamic").restated(|config| {
        config["config_groups"]["group_0"]["input_activations"]["dynamic"] = json!(false);
    });
    let modules: Vec<String> =
        model.tensors.iter().filter_map(|tensor| tensor.0.strip_suffix(".weight_scale").map(str::to_owned)).collect();
    for module in modules {
        let scale = (format!("{module}.input_scale"), Dtype::F32, vec![1], 0.5f32.to_le_bytes().to_vec());
        model.tensors.push(scale);
    }
    model
}

#[test]
fn missing_or_zero_input_scales_are_an_error() {
    static_inputs().assert_healthy();
    static_inputs().without("o_proj.input_scale").assert_error("activations", "o_proj.input_scale", "missing");
    let zero = static_inputs().edit("o_proj.input_scale", |bytes| bytes.fill(0));
    zero.assert_error("scales", "o_proj.input_scale", "no value is left");
}

#[test]
fn missing_cache_scales_are_an_error() {
    let cached = |with: bool| {
        let scheme = json!({"num_bits": 8, "type": "float", "symmetric": true, "strategy": "tensor", "dynamic": false});
        let mut model = packed("int4:g32").restated(|config| config["kv_cache_scheme"] = scheme);
        for name in ["k_scale", "v_scale"].into_iter().filter(|_| with) {
            let scale =
                (format!("model.layers.0.self_attn.{name}"), Dtype::F32, vec![1], 0.5f32.to_le_bytes().to_vec());
            model.tensors.push(scale);
        }
        model
    };
    cached(true).assert_healthy();
    cached(false).assert_found(Severity::Warning, "kv-cache", "block 0", "promises");
}

#[test]
fn unknown_quantization_methods_are_a_warning() {
    let foreign = Model::float().configured(|config| config["quantization_config"] = json!({"quant_method": "hqq"}));
    foreign.assert_found(Severity::Warning, "config", "config.json", "hqq");
    let nonsense = Model::float().configured(|config| config["quantization_config"] = json!(7));
    nonsense.assert_error("config", "config.json", "not an object");
}
