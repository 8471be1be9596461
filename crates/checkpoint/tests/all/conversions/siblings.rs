//! GGUF files whose layers are of several types, as mixes make them, in layouts for engines that make one layer of some.

use super::sources::{convert, open, write_file};
use crate::common::{Tensor, llama, llama_config, quantize, scheme, weight, write};
use kvant_checkpoint::conversion::measure;
use kvant_checkpoint::gguf::{GgufPlan, GgufRecipe};
use kvant_checkpoint::plan::{Plan, PlanError};
use kvant_checkpoint::recipe::Settings;
use kvant_container::{Checkpoint, Diagnostic, Dtype};
use kvant_formats::format::{FormatHandle, OutputFormat};
use kvant_formats::transcode::ConversionTarget;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A file of a Llama with types by name; the rest is F32.
fn file_of(dir: &Path, types: &[&str]) -> PathBuf {
    file_of_model(dir, json!({}), &llama(Dtype::F32), types)
}

/// The same of tensors and what their config.json says otherwise.
pub fn file_of_model(dir: &Path, stated: Value, tensors: &[Tensor], types: &[&str]) -> PathBuf {
    let (model, file) = (dir.join("model"), dir.join("model.gguf"));
    let mut config = llama_config();
    config["max_position_embeddings"] = json!(128);
    config["rms_norm_eps"] = json!(1e-6);
    stated.as_object().unwrap().iter().for_each(|(key, value)| config[key] = value.clone());
    write(&model, &config, tensors);
    let vocabulary: serde_json::Map<String, Value> = (0..30).map(|id| (format!("t{id}"), json!(id))).collect();
    let tokenizer = json!({
        "added_tokens": [], "pre_tokenizer": {"type": "ByteLevel", "use_regex": true}, "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    });
    std::fs::write(model.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let overrides = types.iter().map(|text| text.parse().unwrap()).collect();
    let settings = Settings { format: Some(OutputFormat::Gguf), overrides, ..scheme("F32") };
    let recipe = GgufRecipe::of(&settings, &Settings::default()).unwrap().unwrap();
    let checkpoint = Checkpoint::open(&model).unwrap();
    let plan = GgufPlan::new(&checkpoint, recipe, "model.gguf").unwrap();
    write_file(&plan, &checkpoint, &model, &file);
    file
}

fn scheme_of(plan: &Plan, layer: &str) -> String {
    plan.layers().iter().find(|found| found.name.ends_with(layer)).unwrap().scheme.to_string()
}

#[test]
fn fused_layers_get_the_widest_scheme() {
    let dir = tempfile::tempdir().unwrap();
    let file =
        file_of(dir.path(), &["*q_proj=Q4_0", "*k_proj=IQ4_NL", "*v_proj=Q8_0", "*gate_proj=Q4_0", "*up_proj=Q4_0"]);
    let out = dir.path().join("out");
    match convert(&file, &out, ConversionTarget::Codes(FormatHandle::GPTQ), false, 1) {
        Err(PlanError::Conversion { tensor, reason, hint, .. }) => {
            assert!(tensor.ends_with("k_proj.weight") && reason.contains("IQ4_NL"), "{tensor}: {reason}");
            assert!(hint.contains("‹requantize›"), "{hint}");
        }
        other => panic!("{other:?}"),
    }
    // Writing ends with a verification, which refuses layers that engines fuse and that differ.
    let plan = convert(&file, &out, ConversionTarget::Codes(FormatHandle::GPTQ), true, 1).unwrap();
    for layer in ["q_proj", "k_proj", "v_proj"] {
        assert_eq!(scheme_of(&plan, layer), "int8:g32:f16", "{layer}");
    }
    let kept = |layer: &str| plan.layers().iter().find(|found| found.name.ends_with(layer)).unwrap().is_recoded();
    assert!(kept("v_proj") && kept("gate_proj") && !kept("q_proj"));
    let errors = measure(&plan, &open(&file), &Checkpoint::open(&out).unwrap()).unwrap();
    let error = |layer: &str| errors.iter().find(|error| error.layer.ends_with(layer)).unwrap().relative;
    assert_eq!((error("v_proj"), error("gate_proj")), (0.0, 0.0));
    assert!(error("q_proj") > 0.0 && error("q_proj") < 0.01, "{}", error("q_proj"));
}

#[test]
fn blocks_without_a_scheme_are_refused_with_name_and_hint() {
    let dir = tempfile::tempdir().unwrap();
    let file = file_of(dir.path(), &["*_proj=IQ4_NL"]);
    for export in [OutputFormat::AWQ, OutputFormat::GPTQ, OutputFormat::COMPRESSED_TENSORS, OutputFormat::QUARK] {
        let out = dir.path().join(export.to_string());
        match convert(&file, &out, ConversionTarget::Codes(export.checkpoint().unwrap()), false, 1) {
            Err(error @ PlanError::Conversion { .. }) => {
                assert!(error.to_string().contains("no scheme describes blocks of IQ4_NL"), "{error}");
                assert!(error.hint().unwrap().contains("‹requantize›"));
            }
            other => panic!("{export}: {other:?}"),
        }
        let plan = convert(&file, &out, ConversionTarget::Codes(export.checkpoint().unwrap()), true, 1).unwrap();
        assert!(plan.notices().iter().any(|notice| notice.contains("requantized to")), "{:?}", plan.notices());
    }
}

#[test]
fn fused_layers_are_requantized_together() {
    // A block of 128 rows is larger than keys and values here, and Quark's layout has none that does not divide a layer.
    let dir = tempfile::tempdir().unwrap();
    let (model, blocks, out) = (dir.path().join("model"), dir.path().join("blocks"), dir.path().join("out"));
    let mut config = llama_config();
    for (key, value) in [("hidden_size", 128), ("num_attention_heads", 4), ("num_key_value_heads", 2)] {
        config[key] = json!(value);
    }
    let wide = |(name, dtype, shape, _): Tensor| {
        let is_narrow = name.contains("k_proj") || name.contains("v_proj");
        let longer = |length: usize| match length {
            64 => 128,
            32 if is_narrow => 64,
            other => other,
        };
        weight(&name, dtype, &shape.into_iter().map(longer).collect::<Vec<_>>())
    };
    write(&model, &config, &llama(Dtype::BF16).into_iter().map(wide).collect::<Vec<_>>());
    let settings = Settings { format: Some(OutputFormat::COMPRESSED_TENSORS), ..scheme("FP8_BLOCK") };
    quantize(&model, &blocks, &settings, 1).unwrap();

    let refused = convert(&blocks, &out, ConversionTarget::Codes(FormatHandle::QUARK), false, 1).unwrap_err();
    assert!(refused.hint().unwrap().contains("‹requantize›"), "{refused}");
    // Writing ends with a verification, which refuses layers that engines fuse and that differ.
    let plan = convert(&blocks, &out, ConversionTarget::Codes(FormatHandle::QUARK), true, 1).unwrap();
    for layer in ["q_proj", "k_proj", "v_proj"] {
        assert_eq!(scheme_of(&plan, layer), "e4m3:channel+e4m3:g128!dynamic", "{layer}");
    }
    let kept = |layer: &str| plan.layers().iter().find(|found| found.name.ends_with(layer)).unwrap().is_recoded();
    assert!(kept("o_proj") && kept("gate_proj") && kept("up_proj") && kept("down_proj"));

    // A layout of weights alone leaves activations out where a loss is accepted, and layers are told of together.
    let refused = convert(&blocks, &out, ConversionTarget::Codes(FormatHandle::GPTQ), false, 1).unwrap_err();
    assert!(refused.to_string().contains("only weights"), "{refused}");
    let plan =
        convert(&blocks, &dir.path().join("gptq"), ConversionTarget::Codes(FormatHandle::GPTQ), true, 1).unwrap();
    assert_eq!(scheme_of(&plan, "q_proj"), "int8:g128:f16");
    let told = |text: &str| plan.notices().iter().any(|notice| notice.contains(text));
    assert!(told("7 layers are requantized to `int8:g128:f16`: ") && told("stay in float"), "{:?}", plan.notices());
}
