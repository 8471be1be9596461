//! The config.json of a file's source model, from its metadata: the names of the file's keys there. What only one
//! architecture has is in [`crate::model::architecture`].

use super::{Stated, names, rope};
use crate::model::architecture::{ARCHITECTURES, Architecture, Restoration};
use kvant_container::gguf::{Array, GgufFile, Value as Stored};
use kvant_model::family::{Family, by_name};
use kvant_model::network::TensorMeta;
use kvant_weights::import_error::ImportError;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Pairs of keys: that of a file, behind the architecture's name, and that of config.json; empty for none.
pub type Words = &'static [(&'static str, &'static str)];

/// Its name in most architectures.
const DEFAULTS: Words = &[
    ("block_count", "num_hidden_layers"),
    ("context_length", "max_position_embeddings"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.layer_norm_epsilon", "layer_norm_eps"),
    ("attention.sliding_window", "sliding_window"),
    ("expert_count", "num_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ("expert_shared_count", "n_shared_experts"),
    ("expert_group_count", "n_group"),
    ("expert_group_used_count", "topk_group"),
    ("expert_weights_norm", "norm_topk_prob"),
    ("expert_weights_scale", "routed_scaling_factor"),
    ("leading_dense_block_count", "first_k_dense_replace"),
    ("use_parallel_residual", "use_parallel_residual"),
];

/// Flags that say that there are tensors, with one of those in the first block.
const USUAL_FLAGS: Words = &[("attn_q.bias", "attention_bias"), ("ffn_up.bias", "mlp_bias")];

/// Numbers of tokens, which metadata and config.json both state.
const TOKENS: Words = &[("bos", "bos_token_id"), ("eos", "eos_token_id"), ("padding", "pad_token_id")];

/// The model behind a file.
pub(crate) struct Restored {
    /// Its config.json.
    pub config: Value,
    /// Its tensors.
    pub metas: Vec<TensorMeta>,
    /// Its description in llama.cpp.
    pub architecture: &'static Architecture,
}

/// Finds the model behind a file.
///
/// # Errors
/// *Unsupported* for architectures that are not read, *invalid* where a key is missing.
pub(crate) fn restore(file: &GgufFile) -> Result<Restored, ImportError> {
    let stated = Stated::of(file)?;
    let (family, row, restoration) = architecture(&stated)?;
    let blocks = stated.need("block_count")?;
    if blocks > file.len() {
        return Err(ImportError::invalid("block_count", format!("{blocks} blocks are more than there are tensors")));
    }
    let embedding = file.tensor("token_embd.weight").and_then(|tensor| tensor.shape().first().copied());
    let embedding = embedding.ok_or_else(|| ImportError::invalid("token_embd.weight", "is missing"))?;
    let mut config = Map::new();
    config.insert("architectures".to_owned(), json!([family.architectures.first()]));
    config.insert("model_type".to_owned(), json!(family.model_types.first()));
    config.insert("vocab_size".to_owned(), json!(embedding));
    config.insert("tie_word_embeddings".to_owned(), json!(!stated.has("output.weight")));
    config.insert("torch_dtype".to_owned(), json!("float32"));
    say(&stated, restoration, &mut config);
    rope::restore(&stated, family, restoration, &mut config)?;
    (restoration.more)(&stated, &mut config);
    if file.tensors().any(|tensor| tensor.kind().block_elements() > 1) {
        config.insert("quantization_config".to_owned(), json!({"quant_method": "gguf"}));
    }
    let metas = names::expected(family, row, file, blocks);
    Ok(Restored { config: Value::Object(config), metas, architecture: row })
}

/// The family of a file, and how it is read.
pub(crate) fn architecture(
    stated: &Stated<'_>,
) -> Result<(&'static Family, &'static Architecture, &'static Restoration), ImportError> {
    let named = ARCHITECTURES.iter().filter(|row| row.name == stated.architecture);
    let read = named.filter_map(|row| Some((by_name(row.family)?, row, row.restoration?)));
    let mut fitting = read.filter(|(.., restoration)| (restoration.is_of)(stated));
    fitting.next().ok_or_else(|| {
        let read = ARCHITECTURES.iter().filter(|row| row.restoration.is_some());
        let known: BTreeSet<&str> = read.map(|row| row.name).collect();
        let known: Vec<&str> = known.into_iter().collect();
        let reason = format!(
            "models of the architecture {} are not read",
            kvant_weights::recipe_error::quoted(stated.architecture)
        );
        let hint = format!("use the checkpoint that the file was made of; read are {}", known.join(", "));
        ImportError::unsupported("general.architecture", reason, hint)
    })
}

/// Metadata with their own vocabulary.
fn say(stated: &Stated<'_>, restoration: &Restoration, config: &mut Map<String, Value>) {
    let own = restoration.words.iter().filter(|(key, _)| !key.starts_with("rope."));
    let usual = DEFAULTS.iter().filter(|(key, _)| !restoration.words.iter().any(|(own, _)| own == key));
    for (key, name) in usual.chain(own).filter(|(_, name)| !name.is_empty()) {
        if let Some(value) = stated.value(key).and_then(as_json) {
            config.insert((*name).to_owned(), value);
        }
    }
    for (tensor, name) in USUAL_FLAGS.iter().chain(restoration.flags) {
        config.insert((*name).to_owned(), json!(stated.has(&format!("blk.0.{tensor}"))));
    }
    for (token, name) in TOKENS {
        let id = stated.metadata().get(&format!("tokenizer.ggml.{token}_token_id")).and_then(Stored::as_u64);
        if let Some(id) = id {
            config.insert((*name).to_owned(), json!(id));
        }
    }
}

/// A value as config.json has it; what all layers have in common is stated once.
fn as_json(value: &Stored) -> Option<Value> {
    match value {
        Stored::Bool(flag) => Some(json!(flag)),
        Stored::F32(_) | Stored::F64(_) => {
            value.as_f64().filter(|number| number.is_finite()).map(|number| json!(number))
        }
        Stored::Array(array) => {
            let numbers = whole_numbers(array)?;
            let first = *numbers.first()?;
            Some(if numbers.iter().all(|number| *number == first) { json!(first) } else { json!(numbers) })
        }
        other => other.as_u64().map(|number| json!(number)),
    }
}

fn whole_numbers(array: &Array) -> Option<Vec<u64>> {
    match array {
        Array::U32(numbers) => Some(numbers.iter().map(|number| u64::from(*number)).collect()),
        Array::I32(numbers) => numbers.iter().map(|number| u64::try_from(*number).ok()).collect(),
        _ => None,
    }
}
