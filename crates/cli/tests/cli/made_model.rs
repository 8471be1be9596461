//! Models made by the tests, of any size.

use kvant_container::{Dtype, Durability, Layout, TensorDeclaration, Writer};
use serde_json::json;
use std::path::Path;

/// A llama with random weights in bfloat16.
pub struct MadeModel {
    pub layers: usize,
    pub hidden: usize,
    pub intermediate: usize,
    pub vocabulary: usize,
    pub max_shard_size: u64,
}

impl MadeModel {
    /// Writes config.json and the shards.
    pub fn write(&self, dir: &Path) {
        write(dir, &self.config(), self.declarations(), self.max_shard_size);
    }

    fn config(&self) -> serde_json::Value {
        json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
            "hidden_size": self.hidden, "intermediate_size": self.intermediate, "num_hidden_layers": self.layers,
            "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": self.vocabulary,
            "tie_word_embeddings": false, "rms_norm_eps": 1e-6,
        })
    }

    fn declarations(&self) -> Vec<TensorDeclaration> {
        let (hidden, wide) = (self.hidden, self.intermediate);
        let declare = |name: String, shape: &[usize]| TensorDeclaration::new(name, Dtype::BF16, shape);
        let mut all = vec![declare("model.embed_tokens.weight".to_owned(), &[self.vocabulary, hidden])];
        for layer in 0..self.layers {
            let mut add =
                |name: &str, shape: &[usize]| all.push(declare(format!("model.layers.{layer}.{name}.weight"), shape));
            add("input_layernorm", &[hidden]);
            ["q", "k", "v", "o"].iter().for_each(|name| add(&format!("self_attn.{name}_proj"), &[hidden, hidden]));
            add("post_attention_layernorm", &[hidden]);
            ["gate", "up"].iter().for_each(|name| add(&format!("mlp.{name}_proj"), &[wide, hidden]));
            add("mlp.down_proj", &[hidden, wide]);
        }
        all.push(declare("model.norm.weight".to_owned(), &[hidden]));
        all.push(declare("lm_head.weight".to_owned(), &[self.vocabulary, hidden]));
        all
    }
}

/// Writes a small BERT with a pooler and random weights in bfloat16.
pub fn write_encoder(dir: &Path) {
    let (hidden, wide, vocabulary) = (32, 64, 64);
    let config = json!({
        "architectures": ["BertModel"], "model_type": "bert", "dtype": "bfloat16", "hidden_size": hidden,
        "intermediate_size": wide, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": vocabulary,
        "max_position_embeddings": 16,
    });
    let mut all = Vec::new();
    let mut add = |name: &str, shape: &[usize]| all.push(TensorDeclaration::new(name.to_owned(), Dtype::BF16, shape));
    for (table, rows) in [("word", vocabulary), ("position", 16), ("token_type", 2)] {
        add(&format!("embeddings.{table}_embeddings.weight"), &[rows, hidden]);
    }
    let block = "encoder.layer.0";
    for (layer, [rows, columns]) in [
        ("attention.self.query", [hidden, hidden]),
        ("attention.self.key", [hidden, hidden]),
        ("attention.self.value", [hidden, hidden]),
        ("attention.output.dense", [hidden, hidden]),
        ("intermediate.dense", [wide, hidden]),
        ("output.dense", [hidden, wide]),
    ] {
        add(&format!("{block}.{layer}.weight"), &[rows, columns]);
        add(&format!("{block}.{layer}.bias"), &[rows]);
    }
    for norm in ["embeddings", &format!("{block}.attention.output"), &format!("{block}.output")] {
        ["weight", "bias"].iter().for_each(|part| add(&format!("{norm}.LayerNorm.{part}"), &[hidden]));
    }
    add("pooler.dense.weight", &[hidden, hidden]);
    add("pooler.dense.bias", &[hidden]);
    write(dir, &config, all, u64::MAX);
}

/// Writes a layer, and two experts in one tensor, of an architecture without a description.
pub fn write_unknown_experts(dir: &Path) {
    let config = json!({"model_type": "strange", "architectures": ["StrangeForCausalLM"], "vocab_size": 32});
    let declare = |name: &str, shape: &[usize]| TensorDeclaration::new(name.to_owned(), Dtype::BF16, shape);
    let all = vec![
        declare("model.layers.0.self_attn.q_proj.weight", &[64, 64]),
        declare("model.layers.0.feed_forward.experts.down_proj", &[2, 64, 64]),
    ];
    write(dir, &config, all, u64::MAX);
}

fn write(dir: &Path, config: &serde_json::Value, tensors: Vec<TensorDeclaration>, max_shard_size: u64) {
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    let layout = Layout::new(tensors, max_shard_size, metadata).unwrap();
    let writer = Writer::create(dir, layout).unwrap();
    let mut state = 0x9E37_79B9_7F4A_7C15;
    let sizes: Vec<u64> = writer.geometry().places.iter().map(|place| place.len).collect();
    for (tensor, size) in sizes.into_iter().enumerate() {
        writer.write_at(tensor, 0, &weights(size, &mut state)).unwrap();
    }
    writer.finish(Durability::Process).unwrap();
}

/// Random signs and mantissas, magnitudes from 2^-9 to 2^-2.
fn weights(size: u64, state: &mut u64) -> Vec<u8> {
    let value = |_| {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        let exponent = 118 + (*state >> 20) % 8;
        ((*state & 0x807F) | exponent << 7) as u16
    };
    (0..size / 2).map(value).flat_map(u16::to_le_bytes).collect()
}
