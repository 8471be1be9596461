//! Attention with latent keys and values: the matrix that becomes two in a file, one of them turned over, has no codes there.

use crate::common::{Tensor, quantize, scheme, weight, write};
use kvant_checkpoint::engine::{Output, Silent, Start};
use kvant_checkpoint::gguf::run::run;
use kvant_checkpoint::gguf::{Accepted, GgufPlan, measure};
use kvant_checkpoint::recipe::Settings;
use kvant_container::{Checkpoint, Diagnostic, Dtype, Durability};
use kvant_formats::format::OutputFormat;
use kvant_gguf::model::GgufPlanError;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// A quantized DeepSeek-V2 of one dense block.
fn model(dir: &Path) -> PathBuf {
    let config = json!({
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": 64, "intermediate_size": 96,
        "first_k_dense_replace": 1, "kv_lora_rank": 32, "q_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32,
        "v_head_dim": 64, "max_position_embeddings": 64, "moe_intermediate_size": 32, "n_group": 1, "n_routed_experts": 4,
        "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 2, "num_experts_per_tok": 2,
        "num_hidden_layers": 1, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "routed_scaling_factor": 1.0, "tie_word_embeddings": false, "topk_group": 1, "topk_method": "greedy",
        "torch_dtype": "bfloat16", "vocab_size": 32
    });
    let block = |name: &str, shape: &[usize]| weight(&format!("model.layers.0.{name}.weight"), Dtype::BF16, shape);
    let tensors: Vec<Tensor> = vec![
        weight("model.embed_tokens.weight", Dtype::BF16, &[32, 64]),
        block("input_layernorm", &[64]),
        block("self_attn.q_a_proj", &[64, 64]),
        block("self_attn.q_a_layernorm", &[64]),
        block("self_attn.q_b_proj", &[128, 64]),
        block("self_attn.kv_a_proj_with_mqa", &[64, 64]),
        block("self_attn.kv_a_layernorm", &[32]),
        block("self_attn.kv_b_proj", &[192, 32]),
        block("self_attn.o_proj", &[64, 128]),
        block("post_attention_layernorm", &[64]),
        block("mlp.gate_proj", &[96, 64]),
        block("mlp.up_proj", &[96, 64]),
        block("mlp.down_proj", &[64, 96]),
        weight("model.norm.weight", Dtype::BF16, &[64]),
        weight("lm_head.weight", Dtype::BF16, &[32, 64]),
    ];
    let (source, out) = (dir.join("model"), dir.join("quantized"));
    write(&source, &config, &tensors);
    let vocabulary: serde_json::Map<_, _> = (0..32).map(|id| (format!("t{id}"), json!(id))).collect();
    let tokenizer = json!({
        "added_tokens": [], "pre_tokenizer": {"type": "ByteLevel", "use_regex": true}, "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    });
    std::fs::write(source.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    // The family keeps attention by default.
    let overrides = vec!["*.kv_b_proj=int4:g32".parse().unwrap()];
    quantize(&source, &out, &Settings { format: Some(OutputFormat::GPTQ), overrides, ..scheme("int4:g32") }, 1)
        .unwrap();
    out
}

#[test]
fn transposed_layers_need_requantize() {
    let dir = tempfile::tempdir().unwrap();
    let source = model(dir.path());
    let checkpoint = Checkpoint::open(&source).unwrap();
    let refused = GgufPlan::convert(&checkpoint, Accepted::Nothing, "model.gguf").unwrap_err();
    assert!(
        matches!(&refused, GgufPlanError::Conversion { tensor, .. } if tensor.ends_with("kv_b_proj.weight")),
        "{refused}"
    );
    assert!(refused.hint().unwrap().contains("‹requantize›"));
    let plan = GgufPlan::convert(&checkpoint, Accepted::Requantizing, "model.gguf").unwrap();
    let target = dir.path().join("model.gguf");
    let Start::Working(output) = Output::begin(&plan, &source, &target, false).unwrap() else { panic!("finished") };
    run(&plan, &checkpoint, &output, 2, &AtomicBool::new(false), &Silent).unwrap();
    output.finish(&plan, &checkpoint, Durability::Process).unwrap();
    for error in measure(&plan, &checkpoint, &target).unwrap() {
        let is_turned = error.layer == "blk.0.attn_k_b.weight";
        let expected = if is_turned { 1e-3..0.2 } else { 0.0..1e-9 };
        assert!(expected.contains(&error.relative), "{error:?}");
    }
    assert!(
        plan.notices.iter().any(|notice| notice.contains("attn_k_b") && notice.contains("requantized")),
        "{:?}",
        plan.notices
    );
}
