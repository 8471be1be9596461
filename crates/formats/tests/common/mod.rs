//! Small checkpoints made by tests.
#![allow(dead_code, clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use kvant_container::{Dtype, Durability, Layout, TensorDeclaration, Writer};
use std::path::Path;

/// A tensor to write: name, type, shape, bytes.
pub type Tensor = (String, Dtype, Vec<usize>, Vec<u8>);

/// Floats in the bytes of a type.
pub fn encoded(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::BF16 => values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
        Dtype::F16 => values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

/// A tensor of floats that look like weights: smooth enough to be deterministic, rough enough to fill all codes.
pub fn weight(name: &str, dtype: Dtype, shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let seed = name.bytes().fold(7u32, |seed, byte| seed.wrapping_mul(31).wrapping_add(u32::from(byte)));
    let value = |i: usize| {
        let mixed = (i as u32).wrapping_add(seed).wrapping_mul(2_654_435_769) >> 8;
        (mixed as f32 / (1 << 23) as f32 - 1.0) * 0.01 * (1 + seed % 13) as f32
    };
    let values: Vec<f32> = (0..count).map(value).collect();
    (name.to_owned(), dtype, shape.to_vec(), encoded(dtype, &values))
}

/// Writes a checkpoint.
pub fn write(dir: &Path, config: &serde_json::Value, tensors: &[Tensor]) {
    let declarations =
        tensors.iter().map(|(name, dtype, shape, _)| TensorDeclaration::new(name.clone(), *dtype, shape.clone()));
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    let writer = Writer::create(dir, Layout::new(declarations.collect(), 1 << 30, metadata).unwrap()).unwrap();
    for (index, (_, _, _, bytes)) in tensors.iter().enumerate() {
        writer.write_at(index, 0, bytes).unwrap();
    }
    writer.finish(Durability::Process).unwrap();
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

/// A Llama of one block.
pub fn llama(dtype: Dtype) -> Vec<Tensor> {
    let block = |name: &str| format!("model.layers.0.{name}.weight");
    let linear = |name: &str, rows, columns| weight(&block(name), dtype, &[rows, columns]);
    vec![
        weight("model.embed_tokens.weight", dtype, &[32, 64]),
        weight(&block("input_layernorm"), dtype, &[64]),
        linear("self_attn.q_proj", 64, 64),
        linear("self_attn.k_proj", 32, 64),
        linear("self_attn.v_proj", 32, 64),
        linear("self_attn.o_proj", 64, 64),
        weight(&block("post_attention_layernorm"), dtype, &[64]),
        linear("mlp.gate_proj", 128, 64),
        linear("mlp.up_proj", 128, 64),
        linear("mlp.down_proj", 64, 128),
        weight("model.norm.weight", dtype, &[64]),
        weight("lm_head.weight", dtype, &[32, 64]),
    ]
}

/// Its config.json.
pub fn llama_config() -> serde_json::Value {
    serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 32,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16"
    })
}

/// The bytes of every file of a directory.
pub fn files(dir: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())).collect()
}
