//! Single conversions: what is carried over, what is refused, what is written.

use super::sources::{convert, rewrite};
use crate::common::{llama, llama_config, quantize, scheme, write};
use half::{bf16, f16};
use kvant_checkpoint::conversion::measure;
use kvant_checkpoint::plan::PlanError;
use kvant_checkpoint::recipe::Settings;
use kvant_container::{Checkpoint, Dtype};
use kvant_formats::format::{FormatHandle, OutputFormat};
use kvant_formats::transcode::{ConversionTarget, FloatType};
use std::path::{Path, PathBuf};

fn quantized(dir: &Path, text: &str, format: OutputFormat) -> PathBuf {
    let (model, out) = (dir.join("model"), dir.join("quantized"));
    write(&model, &llama_config(), &llama(Dtype::BF16));
    quantize(&model, &out, &Settings { format: Some(format), ..scheme(text) }, 1).unwrap();
    out
}

#[test]
fn awq_and_gptq_store_symmetric_codes_with_the_middle_zero_point() {
    let dir = tempfile::tempdir().unwrap();
    let source = quantized(dir.path(), "int4:g32", OutputFormat::AWQ);
    let checkpoint = Checkpoint::open(&source).unwrap();
    let words = |checkpoint: &Checkpoint, name: &str| -> Vec<u32> {
        let bytes = checkpoint.tensor(&format!("model.layers.0.mlp.up_proj.{name}")).unwrap().bytes().to_vec();
        bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
    };
    assert!(words(&checkpoint, "qzeros").iter().all(|word| *word == 0x8888_8888));
    for (format, zero) in [(OutputFormat::GPTQ, 0x7777_7777), (OutputFormat::GPTQ_V2, 0x8888_8888)] {
        let out = dir.path().join(format.to_string());
        convert(&source, &out, ConversionTarget::Codes(format.checkpoint().unwrap()), false, 1).unwrap();
        let made = Checkpoint::open(&out).unwrap();
        assert!(words(&made, "qzeros").iter().all(|word| *word == zero), "{format}");
        assert_eq!(words(&made, "g_idx"), (0..64).map(|column| column / 32).collect::<Vec<u32>>());
    }
}

#[test]
fn conversion_round_trip_gives_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let source = quantized(dir.path(), "uint4:g32:zp", OutputFormat::AWQ);
    let steps = [
        OutputFormat::GPTQ_V2,
        OutputFormat::COMPRESSED_TENSORS,
        OutputFormat::QUARK,
        OutputFormat::GPTQ,
        OutputFormat::AWQ,
    ];
    let mut from = source.clone();
    for (index, step) in steps.into_iter().enumerate() {
        let out = dir.path().join(index.to_string());
        convert(&from, &out, ConversionTarget::Codes(step.checkpoint().unwrap()), false, 2).unwrap();
        from = out;
    }
    let read = |path: &Path| std::fs::read(path.join("model.safetensors")).unwrap();
    assert!(read(&source) == read(&from));
}

#[test]
fn inexact_scales_are_refused_unless_requantize_accepts_the_loss() {
    let dir = tempfile::tempdir().unwrap();
    let source = quantized(dir.path(), "int4:g32:bf16", OutputFormat::COMPRESSED_TENSORS);
    // Below the normal numbers of f16.
    let tiny = bf16::from_f32(1.2345e-6);
    let shrink = |tensor: crate::common::Tensor| match tensor.0.ends_with("up_proj.weight_scale") {
        true => (
            tensor.0,
            tensor.1,
            tensor.2,
            tensor.3.as_chunks::<2>().0.iter().flat_map(|_| tiny.to_le_bytes()).collect(),
        ),
        false => tensor,
    };
    rewrite(&source, shrink, |_| {});
    assert_ne!(f16::from_f32(tiny.to_f32()).to_f32(), tiny.to_f32());
    let out = dir.path().join("out");
    match convert(&source, &out, ConversionTarget::Codes(FormatHandle::AWQ), false, 1) {
        Err(PlanError::Conversion { tensor, reason, hint, .. }) => {
            assert!(tensor.ends_with("up_proj.weight") && reason.contains("not exact in F16"), "{tensor}: {reason}");
            assert!(hint.contains("‹requantize›"));
        }
        other => panic!("{other:?}"),
    }
    let plan = convert(&source, &out, ConversionTarget::Codes(FormatHandle::AWQ), true, 1).unwrap();
    let errors = measure(&plan, &Checkpoint::open(&source).unwrap(), &Checkpoint::open(&out).unwrap()).unwrap();
    let lost: Vec<&str> = errors.iter().filter(|error| error.max > 0.0).map(|error| error.layer.as_str()).collect();
    assert_eq!(lost, ["model.layers.0.mlp.up_proj"]);
}

#[test]
fn float_conversion_uses_the_requested_dtype() {
    let dir = tempfile::tempdir().unwrap();
    let source = quantized(dir.path(), "int4:g32", OutputFormat::GPTQ);
    for (ty, dtype) in [(None, Dtype::BF16), (Some(FloatType::F16), Dtype::F16), (Some(FloatType::F32), Dtype::F32)] {
        let out = dir.path().join(dtype.to_string());
        let plan = convert(&source, &out, ConversionTarget::Float(ty), false, 1).unwrap();
        let made = Checkpoint::open(&out).unwrap();
        assert_eq!(made.tensor("model.layers.0.mlp.up_proj.weight").unwrap().dtype(), dtype);
        let config = made.config().unwrap().unwrap();
        assert!(config.get("quantization_config").is_none() && plan.layers().is_empty());
        assert_eq!(FloatType::of_config(config["torch_dtype"].as_str().unwrap()).unwrap().dtype(), dtype);
        assert!(made.tensor("model.layers.0.mlp.up_proj.qweight").is_none() && made.len() == 12);
    }
}

#[test]
fn unquantized_source_has_nothing_to_convert() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &llama_config(), &llama(Dtype::BF16));
    let refused = convert(dir.path(), &dir.path().join("out"), ConversionTarget::Codes(FormatHandle::AWQ), false, 1);
    assert!(matches!(refused, Err(PlanError::NotQuantized)), "{refused:?}");
}

#[test]
fn quantized_sources_need_requantize() {
    let dir = tempfile::tempdir().unwrap();
    let source = quantized(dir.path(), "int8:g32", OutputFormat::GPTQ);
    let again = Settings { format: Some(OutputFormat::COMPRESSED_TENSORS), ..scheme("int4:g32") };
    assert!(matches!(crate::common::plan(&source, &again), Err(PlanError::AlreadyQuantized { .. })));
    let out = dir.path().join("out");
    quantize(&source, &out, &Settings { requantize: Some(true), ..again }, 1).unwrap();
    let made = Checkpoint::open(&out).unwrap();
    assert!(
        made.tensor("model.layers.0.mlp.up_proj.weight_packed").is_some()
            && made.tensor("model.layers.0.mlp.up_proj.qweight").is_none()
    );
    assert_eq!(made.tensor("model.layers.0.mlp.up_proj.weight_scale").unwrap().dtype(), Dtype::BF16);
}

#[test]
fn static_inputs_and_kv_scales_are_copied() {
    let dir = tempfile::tempdir().unwrap();
    let source = quantized(dir.path(), "e4m3:tensor:f32+e4m3:tensor!dynamic", OutputFormat::FP8);
    let with_scales = |tensor: crate::common::Tensor| tensor;
    rewrite(&source, with_scales, |config| {
        config["quantization_config"]["activation_scheme"] = "static".into();
    });
    let mut tensors: Vec<crate::common::Tensor> = Checkpoint::open(&source)
        .unwrap()
        .tensors()
        .map(|view| (view.name().to_owned(), view.dtype(), view.shape().to_vec(), view.bytes().to_vec()))
        .collect();
    let modules: Vec<String> =
        tensors.iter().filter_map(|t| t.0.strip_suffix(".weight_scale").map(str::to_owned)).collect();
    let scalar = |name: String, value: f32| (name, Dtype::F32, vec![], value.to_le_bytes().to_vec());
    tensors.extend(modules.iter().map(|module| scalar(format!("{module}.input_scale"), 0.5)));
    for (name, value) in [("k_scale", 0.25), ("v_scale", 0.125)] {
        tensors.push(scalar(format!("model.layers.0.self_attn.{name}"), value));
    }
    let config = Checkpoint::open(&source).unwrap().config().unwrap().unwrap();
    std::fs::remove_dir_all(&source).unwrap();
    write(&source, &config, &tensors);
    let out = dir.path().join("out");
    convert(&source, &out, ConversionTarget::Codes(FormatHandle::COMPRESSED_TENSORS), false, 1).unwrap();
    let made = Checkpoint::open(&out).unwrap();
    let value = |name: &str| f32::from_le_bytes(*made.tensor(name).unwrap().bytes().first_chunk().unwrap());
    assert_eq!(value("model.layers.0.mlp.up_proj.input_scale"), 0.5);
    assert_eq!((value("model.layers.0.self_attn.k_scale"), value("model.layers.0.self_attn.v_scale")), (0.25, 0.125));
    let scheme = &made.config().unwrap().unwrap()["quantization_config"]["kv_cache_scheme"];
    assert_eq!((&scheme["num_bits"], &scheme["type"]), (&8.into(), &"float".into()));
}
