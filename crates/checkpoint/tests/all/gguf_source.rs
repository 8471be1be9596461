//! GGUF files as sources: whatever is written is found again, tensor by tensor; damage and what is not read is refused.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use crate::common::{Tensor, llama, llama_config, weight, write};
use kvant_checkpoint::engine::{Output, Silent, Start};
use kvant_checkpoint::gguf::run::run;
use kvant_checkpoint::gguf::{GgufPlan, GgufRecipe};
use kvant_checkpoint::plan::Plan;
use kvant_container::gguf::is_gguf;
use kvant_container::{Checkpoint, Diagnostic, Dtype, Durability, ErrorKind};
use kvant_data::tokenizer::ModelTokenizer;
use kvant_formats::import;
use kvant_formats::transcode::{Conversion, ConversionTarget};
use kvant_forward::forward::Decoder;
use kvant_forward::forward::cpu::Cpu;
use kvant_gguf::ftype::Ftype;
use kvant_gguf::model::restore;
use kvant_model::model_config::ModelConfig;
use kvant_numeric::simd::Isa;
use kvant_weights::weight::Band;
use kvant_weights::weight::Stored;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

fn tokenizer(tokens: usize) -> Value {
    let vocabulary: serde_json::Map<String, Value> = (0..tokens).map(|id| (format!("t{id}"), json!(id))).collect();
    json!({
        "added_tokens": [], "pre_tokenizer": {"type": "ByteLevel", "use_regex": true}, "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    })
}

/// A checkpoint, and the file that is made of it.
fn made(dir: &Path, config: &Value, tensors: &[Tensor], ftype: Ftype) -> (PathBuf, PathBuf) {
    let (source, target) = (dir.join("source"), dir.join("model.gguf"));
    write(&source, config, tensors);
    std::fs::write(source.join("tokenizer.json"), tokenizer(30).to_string()).unwrap();
    write_file(&source, &target, ftype);
    (source, target)
}

fn write_file(source: &Path, target: &Path, ftype: Ftype) {
    let checkpoint = Checkpoint::open(source).unwrap();
    let plan = GgufPlan::new(&checkpoint, GgufRecipe::plain(ftype), "model.gguf").unwrap();
    let Start::Working(output) = Output::begin(&plan, source, target, false).unwrap() else { panic!("finished") };
    run(&plan, &checkpoint, &output, 2, &AtomicBool::new(false), &Silent).unwrap();
    output.finish(&plan, &checkpoint, Durability::Process).unwrap();
}

fn config(more: Value) -> Value {
    let mut config = llama_config();
    config["max_position_embeddings"] = json!(128);
    config["rms_norm_eps"] = json!(1e-6);
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

/// The values of all tensors, by name: shape and elements in the order of the float model.
fn values(checkpoint: &Checkpoint) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let tensors = import::open(checkpoint).unwrap().into_tensors();
    let of = |stored: &Stored<'_>| -> Vec<f32> {
        match stored {
            Stored::Plain(view) => {
                assert_eq!(view.dtype(), Dtype::F32);
                view.bytes().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
            }
            Stored::Packed(matrices) => {
                let mut values = Vec::new();
                for matrix in matrices {
                    let band = Band { rows: 0..matrix.rows(), columns: 0..matrix.columns() };
                    matrix.read(Isa::best(), &band, &mut values);
                }
                values
            }
        }
    };
    tensors.iter().map(|tensor| (tensor.meta.name.clone(), (tensor.meta.shape.clone(), of(&tensor.stored)))).collect()
}

fn assert_restored(config: &Value, tensors: &[Tensor]) -> Checkpoint {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = made(dir.path(), config, tensors, Ftype::F32);
    let restored = restore::open(&target).unwrap();
    let (before, after) = (values(&Checkpoint::open(&source).unwrap()), values(&restored));
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    for (name, (shape, expected)) in &before {
        assert_eq!(&after[name].0, shape, "{name}");
        // Offsets of norms are added and subtracted in f32.
        let near = after[name].1.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-7 * b.abs().max(1.0));
        assert!(near, "{name}");
    }
    restored
}

#[test]
fn llama_is_restored_with_config_and_tokenizer() {
    let scaling = json!({"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_theta": 5000.0});
    let restored = assert_restored(&config(scaling.clone()), &llama(Dtype::F32));
    let json = restored.config().unwrap().unwrap();
    let (found, stated) = (ModelConfig::from_json(&json), ModelConfig::from_json(&config(scaling)));
    let (found, stated) = (found.unwrap(), stated.unwrap());
    assert_eq!(found.rope, stated.rope);
    assert_eq!((found.hidden_size, found.head_dim(), found.num_kv_heads()), (Some(64), Some(32), Some(1)));
    assert_eq!((found.norm_eps, found.max_positions, found.tie_word_embeddings), (Some(1e-6), Some(128), Some(false)));
    assert!(json.get("quantization_config").is_none());
    let names: Vec<&str> = restored.made_files().map(|(name, _)| name).collect();
    assert_eq!(names, ["config.json", "tokenizer.json", "tokenizer_config.json"]);
    assert_eq!(restored.json("tokenizer.json").unwrap().unwrap()["model"]["vocab"]["t7"], 7);
}

#[test]
fn tied_heads_biases_and_experts_are_restored() {
    let mut tied: Vec<Tensor> = llama(Dtype::F32).into_iter().filter(|(name, ..)| name != "lm_head.weight").collect();
    tied.push(weight("model.layers.0.self_attn.q_proj.bias", Dtype::F32, &[64]));
    tied.push(weight("model.layers.0.self_attn.o_proj.bias", Dtype::F32, &[64]));
    let restored = assert_restored(&config(json!({"tie_word_embeddings": true, "attention_bias": true})), &tied);
    let json = restored.config().unwrap().unwrap();
    assert_eq!((&json["tie_word_embeddings"], &json["attention_bias"]), (&json!(true), &json!(true)));

    let mut experts: Vec<Tensor> = llama(Dtype::F32).into_iter().filter(|(name, ..)| !name.contains("mlp")).collect();
    experts.push(weight("model.layers.0.block_sparse_moe.gate.weight", Dtype::F32, &[3, 64]));
    for expert in 0..3 {
        for (name, shape) in [("w1", [128, 64]), ("w2", [64, 128]), ("w3", [128, 64])] {
            let name = format!("model.layers.0.block_sparse_moe.experts.{expert}.{name}.weight");
            experts.push(weight(&name, Dtype::F32, &shape));
        }
    }
    let mixtral = json!({
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2,
    });
    let restored = assert_restored(&config(mixtral), &experts);
    assert_eq!(restored.config().unwrap().unwrap()["model_type"], "mixtral");
}

#[test]
fn fused_projections_and_norm_offsets_are_restored() {
    let block = |name: &str, shape: &[usize]| weight(&format!("gpt_neox.layers.0.{name}"), Dtype::F32, shape);
    let neox = vec![
        weight("gpt_neox.embed_in.weight", Dtype::F32, &[32, 64]),
        block("input_layernorm.weight", &[64]),
        block("input_layernorm.bias", &[64]),
        block("post_attention_layernorm.weight", &[64]),
        block("post_attention_layernorm.bias", &[64]),
        block("attention.query_key_value.weight", &[192, 64]),
        block("attention.query_key_value.bias", &[192]),
        block("attention.dense.weight", &[64, 64]),
        block("attention.dense.bias", &[64]),
        block("mlp.dense_h_to_4h.weight", &[128, 64]),
        block("mlp.dense_h_to_4h.bias", &[128]),
        block("mlp.dense_4h_to_h.weight", &[64, 128]),
        block("mlp.dense_4h_to_h.bias", &[64]),
        weight("gpt_neox.final_layer_norm.weight", Dtype::F32, &[64]),
        weight("gpt_neox.final_layer_norm.bias", Dtype::F32, &[64]),
        weight("embed_out.weight", Dtype::F32, &[32, 64]),
    ];
    let stated = json!({
        "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "num_attention_heads": 2, "rotary_pct": 0.25,
        "layer_norm_eps": 1e-5, "use_parallel_residual": false,
    });
    let mut config = config(stated);
    for key in ["head_dim", "num_key_value_heads", "rms_norm_eps"] {
        config.as_object_mut().unwrap().remove(key);
    }
    let json = assert_restored(&config, &neox).config().unwrap().unwrap();
    assert_eq!((&json["rotary_pct"], &json["use_parallel_residual"]), (&json!(0.25), &json!(false)));

    let gemma: Vec<Tensor> = llama(Dtype::F32).into_iter().filter(|(name, ..)| name != "lm_head.weight").collect();
    let stated = json!({
        "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "tie_word_embeddings": true,
    });
    assert_restored(&self::config(stated), &gemma);
}

/// Phi-3 with factors for long texts and short ones.
fn phi3() -> (Value, Vec<Tensor>) {
    let factors = |step: f64| (0..16).map(|i| 1.0 + step * f64::from(i)).collect::<Vec<f64>>();
    let stated = json!({
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "sliding_window": 20, "rope_theta": 10000.0,
        "original_max_position_embeddings": 64,
        "rope_scaling": {"type": "longrope", "long_factor": factors(0.5), "short_factor": factors(0.125)},
    });
    let fused = [("self_attn.qkv_proj", [128, 64]), ("mlp.gate_up_proj", [256, 64])];
    let is_apart =
        |name: &str| ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"].iter().any(|one| name.contains(one));
    let mut tensors: Vec<Tensor> = llama(Dtype::F32).into_iter().filter(|(name, ..)| !is_apart(name)).collect();
    tensors.extend(fused.map(|(name, shape)| weight(&format!("model.layers.0.{name}.weight"), Dtype::F32, &shape)));
    (config(stated), tensors)
}

#[test]
fn longrope_factors_are_restored() {
    let (config, tensors) = phi3();
    let json = assert_restored(&config, &tensors).config().unwrap().unwrap();
    let (found, stated) = (ModelConfig::from_json(&json).unwrap(), ModelConfig::from_json(&config).unwrap());
    assert_eq!((&found.rope, found.sliding_window), (&stated.rope, Some(20)));
    assert_eq!(found.rope.main.long_factor[15], 8.5);
    assert_eq!(json["rope_scaling"].as_object().unwrap().len(), 3);
}

#[test]
fn quantized_gguf_runs_with_the_tokens_of_its_model() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/nano_llama");
    let dir = tempfile::tempdir().unwrap();
    // Named like anything: files are known by how they begin.
    let file = dir.path().join("model");
    write_file(&model, &file, Ftype::Q8_0);
    assert!(is_gguf(&file) && !is_gguf(&model));
    let text = "The iterator yields every element of the slice,\n  in order: 1234 'it''s'.";
    let tokens = ModelTokenizer::open(&file).unwrap().encode(text).unwrap();
    assert_eq!(tokens, ModelTokenizer::open(&model).unwrap().encode(text).unwrap());
    let (restored, original) = (restore::open(&file).unwrap(), Checkpoint::open(&model).unwrap());
    let logits = |checkpoint: &Checkpoint| {
        let decoder = Decoder::open(checkpoint).unwrap();
        decoder.logits(&Cpu::default(), &tokens, tokens.len()).unwrap()
    };
    let (found, expected) = (logits(&restored), logits(&original));
    let largest = expected.iter().fold(0.0f32, |largest, logit| largest.max(logit.abs()));
    let worst = found.iter().zip(&expected).fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs()));
    assert!(worst > 0.0 && worst < 0.05 * largest, "{worst} of {largest}");
}

#[test]
fn unsupported_gguf_files_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (_, file) = made(dir.path(), &config(json!({})), &llama(Dtype::F32), Ftype::F32);
    let bytes = std::fs::read(&file).unwrap();
    let changed = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        let mut changed = bytes.clone();
        changed[at..at + to.len()].copy_from_slice(to.as_bytes());
        let path = dir.path().join("changed.gguf");
        std::fs::write(&path, changed).unwrap();
        restore::open(&path).unwrap_err()
    };
    let error = changed("general.architecture", "general.architectura");
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("general.architecture"), "{error}");
    let error = changed("blk.0.ffn_norm.weight", "blk.0.ffn_nerm.weight");
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("ffn_nerm"), "{error}");
    let error = changed("llama.block_count", "llama.block_caunt");
    assert!(error.to_string().contains("llama.block_count"), "{error}");
}

#[test]
fn unsupported_tokenizer_is_omitted_with_a_notice() {
    let dir = tempfile::tempdir().unwrap();
    let (_, file) = made(dir.path(), &config(json!({})), &llama(Dtype::F32), Ftype::F32);
    let convert = || {
        let conversion =
            Conversion { target: ConversionTarget::Float(None), requantize: false, max_shard_size: 1 << 30 };
        let restored = restore::open(&file).unwrap();
        Plan::convert(&restored, &conversion).unwrap().notices().join("\n")
    };
    assert!(!convert().contains("tokenizer"), "{}", convert());
    let mut bytes = std::fs::read(&file).unwrap();
    let key = b"tokenizer.ggml.model";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len();
    let at = at + bytes[at..].windows(4).position(|window| window == b"gpt2").unwrap();
    bytes[at..at + 4].copy_from_slice(b"gpt9");
    std::fs::write(&file, bytes).unwrap();
    let said = convert();
    assert!(
        said.contains("the tokenizer in ") && said.contains("model.gguf is left out: ") && said.contains("gpt9"),
        "{said}"
    );
}
