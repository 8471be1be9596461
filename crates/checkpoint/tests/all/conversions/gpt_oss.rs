//! Experts in one tensor, as gpt-oss is published: made from floats, converted to layouts of one module an expert.

use super::sources::convert;
use crate::common::{Tensor, quantize, scheme, weight, write};
use kvant_checkpoint::conversion::measure;
use kvant_checkpoint::recipe::Settings;
use kvant_container::{Checkpoint, Dtype};
use kvant_formats::format::OutputFormat;
use kvant_formats::transcode::{ConversionTarget, FloatType};
use serde_json::json;
use std::path::{Path, PathBuf};

const EXPERTS: usize = 3;

fn model(dir: &Path) -> PathBuf {
    let block = |name: &str, shape: &[usize]| weight(&format!("model.layers.0.{name}"), Dtype::BF16, shape);
    let tensors: Vec<Tensor> = vec![
        weight("model.embed_tokens.weight", Dtype::BF16, &[32, 64]),
        block("input_layernorm.weight", &[64]),
        block("self_attn.q_proj.weight", &[64, 64]),
        block("self_attn.q_proj.bias", &[64]),
        block("self_attn.k_proj.weight", &[32, 64]),
        block("self_attn.k_proj.bias", &[32]),
        block("self_attn.v_proj.weight", &[32, 64]),
        block("self_attn.v_proj.bias", &[32]),
        block("self_attn.o_proj.weight", &[64, 64]),
        block("self_attn.o_proj.bias", &[64]),
        block("self_attn.sinks", &[2]),
        block("post_attention_layernorm.weight", &[64]),
        block("mlp.router.weight", &[EXPERTS, 64]),
        block("mlp.router.bias", &[EXPERTS]),
        block("mlp.experts.gate_up_proj", &[EXPERTS, 64, 192]),
        block("mlp.experts.gate_up_proj_bias", &[EXPERTS, 192]),
        block("mlp.experts.down_proj", &[EXPERTS, 96, 64]),
        block("mlp.experts.down_proj_bias", &[EXPERTS, 64]),
        weight("model.norm.weight", Dtype::BF16, &[64]),
        weight("lm_head.weight", Dtype::BF16, &[32, 64]),
    ];
    let config = json!({
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 32,
        "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "torch_dtype": "bfloat16", "tie_word_embeddings": false,
    });
    let path = dir.join("model");
    write(&path, &config, &tensors);
    path
}

fn published(dir: &Path) -> PathBuf {
    let out = dir.join("published");
    let settings = Settings { format: Some(OutputFormat::MXFP4), ..scheme("mxfp4_weight_only") };
    quantize(&model(dir), &out, &settings, 2).unwrap();
    out
}

#[test]
fn gpt_oss_experts_become_mxfp4_blocks_and_others_are_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let made = Checkpoint::open(&published(dir.path())).unwrap();
    let shape = |name: &str| made.tensor(&format!("model.layers.0.mlp.experts.{name}")).map(|t| t.shape().to_vec());
    assert_eq!(shape("gate_up_proj_blocks").unwrap(), [EXPERTS, 192, 2, 16]);
    assert_eq!(shape("gate_up_proj_scales").unwrap(), [EXPERTS, 192, 2]);
    assert_eq!(shape("down_proj_blocks").unwrap(), [EXPERTS, 64, 3, 16]);
    assert_eq!((shape("gate_up_proj_bias").unwrap(), shape("gate_up_proj")), (vec![EXPERTS, 192], None));
    assert_eq!(made.tensor("model.layers.0.self_attn.q_proj.weight").unwrap().dtype(), Dtype::BF16);
    let config = made.config().unwrap().unwrap();
    assert_eq!(config["quantization_config"]["quant_method"], "mxfp4");
    let kept = config["quantization_config"]["modules_to_not_convert"].as_array().unwrap().clone();
    assert!(kept.contains(&json!("lm_head")) && kept.contains(&json!("model.layers.0.self_attn.q_proj")));
}

#[test]
fn published_experts_convert_without_loss() {
    let dir = tempfile::tempdir().unwrap();
    let source = published(dir.path());
    for export in [OutputFormat::QUARK, OutputFormat::COMPRESSED_TENSORS, OutputFormat::MXFP4] {
        let out = dir.path().join(export.to_string());
        let plan = convert(&source, &out, ConversionTarget::Codes(export.checkpoint().unwrap()), false, 2).unwrap();
        let (before, after) = (Checkpoint::open(&source).unwrap(), Checkpoint::open(&out).unwrap());
        let errors = measure(&plan, &before, &after).unwrap();
        assert!(errors.len() == 2 * EXPERTS && errors.iter().all(|error| error.max == 0.0), "{export}: {errors:?}");
    }
    let same = |dir: &Path| std::fs::read(dir.join("model.safetensors")).unwrap();
    assert!(same(&source) == same(&dir.path().join("mxfp4")));
}

#[test]
fn published_experts_convert_to_float_tensors() {
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (published(dir.path()), dir.path().join("float"));
    convert(&source, &out, ConversionTarget::Float(Some(FloatType::Bf16)), false, 2).unwrap();
    let floats = Checkpoint::open(&out).unwrap();
    assert_eq!(floats.tensor("model.layers.0.mlp.experts.gate_up_proj").unwrap().shape(), [EXPERTS, 64, 192]);
    // fp4 times a power of two is exact in bf16: quantizing it again changes nothing.
    let again = dir.path().join("again");
    let settings = Settings { format: Some(OutputFormat::MXFP4), ..scheme("mxfp4_weight_only") };
    quantize(&out, &again, &settings, 1).unwrap();
    let values = |dir: &Path| {
        let out = dir.with_extension("f32");
        convert(dir, &out, ConversionTarget::Float(Some(FloatType::F32)), false, 1).unwrap();
        std::fs::read(out.join("model.safetensors")).unwrap()
    };
    assert!(values(&source) == values(&again));
}
