//! NVFP4 between checkpoints and GGUF files, where the scale of a tensor is a tensor beside the blocks.

use super::sources::{convert, open, write_file};
use kvant_checkpoint::gguf::{Accepted, GgufPlan, measure};
use kvant_checkpoint::recipe::Settings;
use kvant_container::Checkpoint;
use kvant_container::gguf::{GgufFile, TensorType};
use kvant_formats::format::{FormatHandle, OutputFormat};
use kvant_formats::transcode::ConversionTarget;
use kvant_gguf::model::GgufPlanError;
use std::path::{Path, PathBuf};

fn nano_llama() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/nano_llama")
}

fn nvfp4(dir: &Path, format: OutputFormat) -> PathBuf {
    let out = dir.join(format.to_string());
    let settings = Settings { format: Some(format), ..crate::common::scheme("e2m1:g16:e4m3:f32") };
    crate::common::quantize(&nano_llama(), &out, &settings, 1).unwrap();
    out
}

fn in_file(source: &Path, file: &Path, requantize: bool) -> Result<GgufPlan, GgufPlanError> {
    let checkpoint = Checkpoint::open(source).unwrap();
    let plan = GgufPlan::convert(&checkpoint, Accepted::requantizing(requantize), "model.gguf")?;
    write_file(&plan, &checkpoint, source, file);
    Ok(plan)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn nvfp4_codes_and_scales_round_trip_through_gguf() {
    let dir = tempfile::tempdir().unwrap();
    let (source, file) = (nvfp4(dir.path(), OutputFormat::QUARK), dir.path().join("model.gguf"));
    let plan = in_file(&source, &file, false).unwrap();
    let errors = measure(&plan, &Checkpoint::open(&source).unwrap(), &file).unwrap();
    assert!(errors.len() >= 7 && errors.iter().all(|error| error.max == 0.0), "{errors:?}");
    let (made, checkpoint) = (GgufFile::open(&file).unwrap(), Checkpoint::open(&source).unwrap());
    let blocks = made.tensor("blk.0.ffn_up.weight").unwrap();
    assert_eq!(blocks.kind(), TensorType::NVFP4);
    // The first scales of the first block are those of the first four groups, without their sign.
    let scales = checkpoint.tensor("model.layers.0.mlp.up_proj.weight_scale").unwrap();
    assert_eq!(blocks.bytes()[..4], scales.bytes()[..4]);
    let scale = made.tensor("blk.0.ffn_up.scale").unwrap();
    let stated = checkpoint.tensor("model.layers.0.mlp.up_proj.weight_scale_2").unwrap();
    assert_eq!((scale.shape(), floats(scale.bytes())), (&[1][..], floats(stated.bytes())));
    let back = dir.path().join("back");
    convert(&file, &back, ConversionTarget::Codes(FormatHandle::QUARK), false, 2).unwrap();
    let back = Checkpoint::open(&back).unwrap();
    for part in ["weight", "weight_scale", "weight_scale_2"] {
        for layer in ["self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"] {
            let name = format!("model.layers.1.{layer}.{part}");
            let (one, other) = (checkpoint.tensor(&name).unwrap(), back.tensor(&name).unwrap());
            assert!(one.bytes() == other.bytes(), "{name}");
        }
    }
}

#[test]
fn damaged_global_scale_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    in_file(&nvfp4(dir.path(), OutputFormat::QUARK), &file, false).unwrap();
    let name = b"blk.0.ffn_up.scale";
    let mut bytes = std::fs::read(&file).unwrap();
    let (offset, start) = {
        let made = GgufFile::open(&file).unwrap();
        let tensor = made.tensor("blk.0.ffn_up.scale").unwrap();
        let start = tensor.bytes().as_ptr() as usize - made.maps()[0].as_ptr() as usize;
        (bytes.windows(name.len()).position(|window| window == name).unwrap(), start)
    };
    bytes[start..start + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&file, &bytes).unwrap();
    let refused = kvant_gguf::model::restore::open(&file).unwrap_err();
    assert!(refused.to_string().contains("blk.0.ffn_up.scale"), "{refused}");
    // A scale of what the graph does not multiply has no place.
    bytes[start..start + 4].copy_from_slice(&1.0f32.to_le_bytes());
    bytes[offset..offset + name.len()].copy_from_slice(b"blk.0.ffn_uq.scale");
    std::fs::write(&file, &bytes).unwrap();
    let refused = kvant_gguf::model::restore::open(&file).unwrap_err();
    assert!(refused.to_string().contains("ffn_uq.scale"), "{refused}");
}

#[test]
fn graphs_that_ignore_global_scales_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let source = nvfp4(dir.path(), OutputFormat::QUARK);
    // The same weights under the name of a family whose graph multiplies no feed-forward layer.
    let path = source.join("config.json");
    let config = std::fs::read_to_string(&path).unwrap();
    let config = config.replace("LlamaForCausalLM", "SmolLM3ForCausalLM").replace("\"llama\"", "\"smollm3\"");
    std::fs::write(&path, config).unwrap();
    match in_file(&source, &dir.path().join("model.gguf"), false) {
        Err(GgufPlanError::Conversion { tensor, reason }) => {
            assert!(tensor.contains("mlp") && reason.contains("graph of smollm3"), "{tensor}: {reason}");
        }
        other => panic!("{other:?}"),
    }
    let plan = in_file(&source, &dir.path().join("model.gguf"), true).unwrap();
    let kind = |name: &str| plan.tensors.iter().find(|tensor| tensor.name == name).unwrap().kind;
    assert_eq!(kind("blk.0.attn_q.weight"), TensorType::NVFP4);
    assert_ne!(kind("blk.0.ffn_up.weight"), TensorType::NVFP4);
    let found = open(&dir.path().join("model.gguf"));
    assert!(found.config().unwrap().is_some());
}
