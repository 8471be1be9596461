//! A typed view of config.json: what planning and the forward pass need, under one name each, whatever the
//! architecture calls it. Absent keys are tolerated, present ones are checked: a number that is negative, huge or
//! of the wrong type is an error that names its key. Keys that the class of the model does not read count as absent. Rules
//! that hold for a whole family are not here but in [`crate::family`].

mod block_index;
mod class_defaults;
mod dbrx;
mod deepseek_v4;
mod fields;
mod likeness;
mod moe;
mod recurrent;
mod rope;
#[cfg(test)]
mod tests;
mod unread;
mod untie;

use kvant_container::python_json;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

pub use block_index::BlockIndexConfig;
pub use deepseek_v4::{CompressedConfig, HEAVY_ENTRIES, SPARSE_ENTRIES};
use fields::{Fields, Section};
pub(crate) use likeness::read_like;
pub use moe::{ExpertsConfig, LatentConfig};
pub use recurrent::{DeltaConfig, Mamba1Config, MambaConfig};
pub use rope::{RopeConfig, RopeParameters};
pub use untie::untie;

/// Keys under which multimodal checkpoints nest the language model, from the outside in.
const NESTS: &[&str] = &["thinker_config", "text_config", "language_config", "llm_config"];

/// Tokens for images that Llama 3.2 Vision reads and never predicts.
const IMAGE_TOKENS: usize = 8;

/// A defect of config.json.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file holds something else than an object.
    #[error("config.json must be a JSON object, found {found}")]
    NotAnObject {
        /// The value it has.
        found: String,
    },
    /// A value has the wrong type or is out of range.
    #[error("config.json: `{key}` must be {expected}, found {found}")]
    Invalid {
        /// The path of the key, e.g. `text_config.hidden_size`.
        key: String,
        /// The expected value.
        expected: String,
        /// The value, shortened.
        found: String,
    },
    /// A value that is needed is not there.
    #[error("config.json has no `{key}`: {purpose}")]
    Missing {
        /// The key.
        key: String,
        /// The purpose of the value, as a sentence.
        purpose: String,
    },
}

impl ConfigError {
    fn invalid(key: impl Into<String>, expected: &str, found: &Value) -> ConfigError {
        ConfigError::Invalid { key: key.into(), expected: expected.to_owned(), found: brief(found) }
    }
}

/// A value as a message shows it.
fn brief(value: &Value) -> String {
    // Numbers that JSON does not allow have a placeholder in the value.
    let text = python_json::to_text(value).unwrap_or_else(|_| value.to_string());
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(60) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text,
    }
}

/// The typed view. Fields that config.json does not state are `None` (lists: empty).
///
/// In multimodal checkpoints sizes are those of the language model; `tie_word_embeddings`, `dtype`, `architectures`
/// and `quantization` those of the whole model where it states them.
///
/// ```
/// use kvant_model::model_config::ModelConfig;
///
/// let json = serde_json::json!({"model_type": "gpt2", "n_embd": 768, "n_head": 12});
/// let config = ModelConfig::from_json(&json).unwrap();
/// assert_eq!(config.hidden_size, Some(768));
/// assert_eq!(config.head_dim(), Some(64));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelConfig {
    /// `model_type` of the whole model, then of the language model nested in it.
    pub model_types: Vec<String>,
    /// Class names of transformers.
    pub architectures: Vec<String>,
    /// Whether the model is a component of a diffusers pipeline, whose class is named by `_class_name`.
    pub is_component: bool,
    /// Width of the residual stream.
    pub hidden_size: Option<usize>,
    /// Width of the feed-forward network: empty if unknown, one value for all layers, or one per layer.
    pub intermediate_sizes: Vec<usize>,
    /// Width of the dense feed-forward networks beside those of experts, where it is another.
    pub dense_intermediate_size: Option<usize>,
    /// Number of blocks; of an encoder-decoder those of the encoder.
    pub num_layers: Option<usize>,
    /// Number of layers of the decoder of an encoder-decoder.
    pub decoder_layers: Option<usize>,
    /// Number of query heads.
    pub num_heads: Option<usize>,
    /// Number of query heads of each layer, where layers differ (Laguna).
    pub heads_by_layer: Vec<usize>,
    /// Number of key/value heads, as stated; see [`ModelConfig::num_kv_heads`].
    pub stated_kv_heads: Option<usize>,
    /// Width of a head, as stated; see [`ModelConfig::head_dim`].
    pub stated_head_dim: Option<usize>,
    /// Width of a value head, where it is stated for attention without latents (MiMo-V2).
    pub stated_value_dim: Option<usize>,
    /// Rows of the output head.
    pub vocab_size: Option<usize>,
    /// Rows of the token embedding beyond those of the head.
    pub further_tokens: usize,
    /// Longest context.
    pub max_positions: Option<usize>,
    /// Whether the head shares the embedding's weight; if the key is absent, the default of the class applies.
    pub tie_word_embeddings: Option<bool>,
    /// Whether the head is tied in the whole model, and the section of the language model says that it is not.
    pub is_untied_by_section: bool,
    /// The type of the weights, e.g. `bfloat16`, without a `torch.` in front.
    pub dtype: Option<String>,
    /// The `eps` of the norms.
    pub norm_eps: Option<f64>,
    /// The activation as config.json names it.
    pub activation: Option<String>,
    /// Rotary embeddings.
    pub rope: RopeConfig,
    /// Length of the sliding window.
    pub sliding_window: Option<usize>,
    /// Per layer `full_attention`, `sliding_attention`, `linear_attention`, or an older name of one of them; where blocks have one branch
    /// also `mlp` and `moe`.
    pub layer_types: Vec<String>,
    /// `c` of the soft-cap `c tanh(a / c)` on attention scores.
    pub attention_softcap: Option<f64>,
    /// `c` of the soft-cap on logits.
    pub logit_softcap: Option<f64>,
    /// The largest magnitude of queries, keys and values, where they are clipped.
    pub clip_qkv: Option<f64>,
    /// Mixture of experts.
    pub experts: Option<ExpertsConfig>,
    /// Multi-head latent attention.
    pub latent: Option<LatentConfig>,
    /// The indexer that chooses blocks of keys, where there is one.
    pub block_index: Option<BlockIndexConfig>,
    /// Attention to entries of tokens, and several residual streams.
    pub compressed: Option<CompressedConfig>,
    /// Gated delta nets.
    pub delta: Option<DeltaConfig>,
    /// Mamba mixers.
    pub mamba1: Option<Mamba1Config>,
    /// Mamba 2 mixers.
    pub mamba: Option<MambaConfig>,
    /// The `quantization_config` that is already there.
    pub quantization: Option<Value>,
    /// The language model's object with the whole model's keys beneath it, for keys that few families have.
    text: Map<String, Value>,
    /// What config.json itself states of both, without what the class takes for absent keys.
    stated: BTreeMap<String, Value>,
}

impl ModelConfig {
    /// Reads a parsed config.json.
    ///
    /// # Errors
    ///
    /// [`ConfigError::NotAnObject`], or [`ConfigError::Invalid`] naming the first key with an impossible value.
    pub fn from_json(config: &Value) -> Result<ModelConfig, ConfigError> {
        let Value::Object(outer) = config else {
            return Err(ConfigError::NotAnObject { found: brief(config) });
        };
        let Section { path, map: inner } = language_model(outer)?;
        let class = inner.get("model_type").or(outer.get("model_type")).and_then(Value::as_str).unwrap_or_default();
        let stated = merged(outer, inner).into_iter().collect();
        let inner = &class_defaults::completed(inner, outer, &likeness::rules_of(class));
        let whole = || Section { path: String::new(), map: outer };
        let nested = || Section { path: path.clone(), map: inner };
        let (mut inside_out, outside_in) = (vec![nested(), whole()], [whole(), nested()]);
        inside_out.extend(dbrx::sections(Fields::new(&outside_in))?);
        read(Fields::new(&inside_out), Fields::new(&outside_in), merged(outer, inner), stated)
    }

    /// What config.json states of the language model and of the whole model, by key; without what the class takes for absent keys.
    pub fn stated(&self) -> &BTreeMap<String, Value> {
        &self.stated
    }

    /// Returns whether several query heads share a key/value head.
    pub fn has_grouped_heads(&self) -> bool {
        self.num_kv_heads() != self.num_heads
    }

    /// Width of the feed-forward network as a multiple of the hidden size, if it is one, and the same in every block.
    pub fn mlp_ratio(&self) -> Option<usize> {
        let (hidden, [first, others @ ..]) = (self.hidden_size?, &*self.intermediate_sizes) else { return None };
        let divides = hidden > 0 && first.is_multiple_of(hidden) && others.iter().all(|other| other == first);
        divides.then(|| first / hidden)
    }

    /// Number of key/value heads: as stated, otherwise as many as query heads.
    pub fn num_kv_heads(&self) -> Option<usize> {
        self.stated_kv_heads.or(self.num_heads)
    }

    /// Rows of the token embedding.
    pub fn embedding_rows(&self) -> Option<usize> {
        self.vocab_size?.checked_add(self.further_tokens)
    }

    /// Number of query heads of a layer.
    pub fn heads_of_layer(&self, index: usize) -> Option<usize> {
        self.heads_by_layer.get(index).copied().or(self.num_heads)
    }

    /// Width of a head: as stated, else hidden size over heads.
    pub fn head_dim(&self) -> Option<usize> {
        let divided = || {
            let (hidden, heads) = (self.hidden_size?, self.num_heads?);
            hidden.is_multiple_of(heads).then_some(hidden / heads)
        };
        self.stated_head_dim.or_else(divided)
    }

    /// Width of a value head.
    pub fn value_dim(&self) -> Option<usize> {
        match &self.latent {
            Some(latent) => Some(latent.value_dim),
            None => self.stated_value_dim.or(self.head_dim()),
        }
    }

    /// Returns whether some layers have windows of attention and others have not: as `layer_types` lists them, or as Qwen 2 states it,
    /// the layers from `max_window_layers` on if `use_sliding_window`.
    pub fn has_mixed_windows(&self) -> bool {
        let layers = self.num_layers.unwrap_or(0);
        let from =
            self.text.get("max_window_layers").and_then(Value::as_u64).and_then(|from| usize::try_from(from).ok());
        let is_window = |kind: &&String| kind.as_str() == "sliding_attention";
        match (self.layer_types.iter().filter(is_window).count(), from) {
            (_, Some(from)) if from == layers => false,
            (0, Some(from)) if self.layer_types.is_empty() => {
                self.flag_or("use_sliding_window", false) && (1..layers).contains(&from)
            }
            (windows, _) => windows > 0 && windows < self.layer_types.len(),
        }
    }

    /// A boolean that few families have, or `default` where it is absent or no boolean.
    pub fn flag_or(&self, key: &str, default: bool) -> bool {
        self.text.get(key).and_then(Value::as_bool).unwrap_or(default)
    }

    /// A number that few families have, e.g. `logit_scale`.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] if the key holds something else than a finite number.
    pub fn number(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        let section = [Section { path: String::new(), map: &self.text }];
        Fields::new(&section).number(&[key])
    }

    /// A number that few families have, in the object `attn_config` where there is one (MPT).
    ///
    /// # Errors
    ///
    /// As for [`ModelConfig::number`].
    pub fn attention_number(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        let map = match self.text.get("attn_config") {
            Some(Value::Object(nested)) => nested,
            _ => &self.text,
        };
        Fields::new(&[Section { path: String::new(), map }]).number(&[key])
    }

    /// A size that config.json states for one layer.
    pub fn of_layer(&self, index: usize, key: &str) -> Option<usize> {
        let layer = self.text.get("per_layer_config")?.get(index.to_string())?;
        usize::try_from(layer.get(key)?.as_u64()?).ok().filter(|size| *size > 0 && *size <= i32::MAX as usize)
    }

    /// Returns whether there is such a key, if only with null.
    pub fn states(&self, key: &str) -> bool {
        self.text.contains_key(key)
    }

    /// A number that few families have.
    pub fn size(&self, key: &str) -> Option<usize> {
        usize::try_from(self.text.get(key)?.as_u64()?).ok()
    }

    /// A height and a width: a list of both, or one number for both.
    pub fn height_and_width(&self, key: &str) -> Option<[usize; 2]> {
        let size = |value: &Value| usize::try_from(value.as_u64()?).ok().filter(|size| *size <= i32::MAX as usize);
        let stated = self.text.get(key)?;
        match stated.as_array().map(Vec::as_slice) {
            Some([height, width]) => Some([size(height)?, size(width)?]),
            Some(_) => None,
            None => size(stated).map(|size| [size, size]),
        }
    }

    /// The number of entries of a list.
    pub fn entries(&self, key: &str) -> Option<usize> {
        self.text.get(key)?.as_array().map(Vec::len)
    }

    /// Entry `index` of a list that few families have.
    pub fn item(&self, key: &str, index: usize) -> Option<&Value> {
        self.text.get(key)?.as_array()?.get(index)
    }

    /// Returns whether a list that few families have contains a number; `None` without such a list.
    pub fn lists(&self, key: &str, number: usize) -> Option<bool> {
        let list = self.text.get(key)?.as_array()?;
        Some(list.iter().any(|entry| entry.as_u64() == Some(number as u64)))
    }

    /// A string that few families have.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.text.get(key).and_then(Value::as_str)
    }

    /// A required value.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Missing`] naming `key` and the purpose of the value.
    pub fn need<T>(&self, value: Option<T>, key: &str, purpose: &str) -> Result<T, ConfigError> {
        value.ok_or_else(|| ConfigError::Missing { key: key.to_owned(), purpose: purpose.to_owned() })
    }
}

/// Returns whether a parsed config.json describes its language model in a nested object.
pub fn is_multimodal(config: &Value) -> bool {
    NESTS.iter().any(|nest| config.get(nest).is_some_and(Value::is_object))
}

/// The object that describes the language model: the innermost nested one, or the whole model's.
fn language_model(outer: &Map<String, Value>) -> Result<Section<'_>, ConfigError> {
    let mut section = Section { path: String::new(), map: outer };
    for nest in NESTS {
        let found = Fields::new(std::slice::from_ref(&section)).object(&[nest])?;
        section = found.unwrap_or(section);
    }
    Ok(section)
}

fn merged(outer: &Map<String, Value>, inner: &Map<String, Value>) -> Map<String, Value> {
    let mut text = outer.clone();
    text.extend(inner.iter().map(|(key, value)| (key.clone(), value.clone())));
    text
}

/// Fills the view: sizes from `inner`, which looks into the language model first, the rest from `outer`, which looks
/// into the whole model first.
fn read(
    inner: Fields<'_, '_>,
    outer: Fields<'_, '_>,
    text: Map<String, Value>,
    stated: BTreeMap<String, Value>,
) -> Result<ModelConfig, ConfigError> {
    let model_types = model_types(inner, outer)?;
    let rules = model_types.last().map(|name| likeness::rules_of(name));
    let inner = inner.read_by(rules.as_deref());
    let layer_types = recurrent::layer_types(inner)?;
    Ok(ModelConfig {
        architectures: architectures(outer)?,
        is_component: outer.text(&["_class_name"])?.is_some(),
        hidden_size: inner.size(hidden_keys(inner))?,
        intermediate_sizes: intermediate_sizes(inner)?,
        dense_intermediate_size: inner.size(dense_width_keys(inner))?,
        num_layers: num_layers(inner, layer_types.len())?,
        decoder_layers: decoder_layers(inner)?,
        num_heads: inner.size(head_keys(inner))?,
        heads_by_layer: heads_by_layer(inner)?,
        stated_kv_heads: key_heads(inner)?,
        // transformers writes 0 where no part of a head turns (GLM 5 Next).
        stated_head_dim: inner.count(head_width_keys(inner))?.filter(|width| *width > 0),
        stated_value_dim: value_dim(inner)?,
        vocab_size: inner.size(&["vocab_size"])?,
        further_tokens: if inner.is_of("mllama_text_model") { IMAGE_TOKENS } else { 0 },
        max_positions: inner.size(position_keys(inner))?,
        tie_word_embeddings: if is_t5(inner) { None } else { outer.flag(&["tie_word_embeddings"])? },
        is_untied_by_section: outer.flag(&["tie_word_embeddings"])? == Some(true)
            && inner.flag(&["tie_word_embeddings"])? == Some(false),
        dtype: dtype(outer)?,
        norm_eps: inner.positive(&["rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"])?,
        activation: activation(inner)?,
        rope: RopeConfig::read(inner)?,
        sliding_window: sliding_window(inner)?,
        layer_types,
        attention_softcap: inner.positive(&["attn_logit_softcapping"])?,
        logit_softcap: inner.positive(&["final_logit_softcapping"])?,
        clip_qkv: clip_qkv(inner)?,
        experts: ExpertsConfig::read(inner)?,
        latent: LatentConfig::read(inner)?,
        block_index: BlockIndexConfig::read(inner)?,
        compressed: CompressedConfig::read(inner)?,
        delta: DeltaConfig::read(inner)?,
        mamba1: Mamba1Config::read(inner)?,
        mamba: MambaConfig::read(inner)?,
        model_types,
        quantization: outer.find(&["quantization_config"]).map(|(_, value)| value.clone()),
        text,
        stated,
    })
}

/// The keys of the width of the residual stream.
fn hidden_keys(inner: Fields<'_, '_>) -> &'static [&'static str] {
    if inner.is_of("distilbert") { &["dim"] } else { &["hidden_size", "n_embd", "d_model"] }
}

/// The keys of the number of query heads.
fn head_keys(inner: Fields<'_, '_>) -> &'static [&'static str] {
    match is_like_bart(inner) {
        true => &["encoder_attention_heads"],
        false => &["num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads"],
    }
}

/// The keys of the width of dense networks beside those of experts.
fn dense_width_keys(inner: Fields<'_, '_>) -> &'static [&'static str] {
    match block_index::is_minimax_m3(inner) {
        true => &["dense_intermediate_size"],
        false => &["intermediate_size_mlp", "prefix_dense_intermediate_size"],
    }
}

/// The keys of the longest context.
fn position_keys(inner: Fields<'_, '_>) -> &'static [&'static str] {
    match inner.is_of("kimi_linear") || inner.is_of("bailing_hybrid") {
        true => &["model_max_length", "max_position_embeddings"],
        false => &["max_position_embeddings", "n_positions", "max_seq_len"],
    }
}

/// Returns whether the class is one of T5's, which have names of their own for most keys.
fn is_t5(inner: Fields<'_, '_>) -> bool {
    ["t5", "mt5", "umt5"].iter().any(|name| inner.is_of(name))
}

/// Returns whether the class is of an encoder-decoder with the keys of BART.
fn is_like_bart(inner: Fields<'_, '_>) -> bool {
    ["bart", "marian", "mbart", "pegasus", "whisper"].iter().any(|name| inner.is_of(name))
}

/// The keys of the width of a head.
fn head_width_keys(inner: Fields<'_, '_>) -> &'static [&'static str] {
    if is_t5(inner) { &["d_kv"] } else { &["head_dim"] }
}

/// The activation; DBRX has its name in an object. Of T5 what follows `gated-`, and GELU in the first networks with gates is that by the tangent.
fn activation(inner: Fields<'_, '_>) -> Result<Option<String>, ConfigError> {
    if inner.is_of("dbrx") {
        return dbrx::activation(inner);
    }
    let stated = inner.text(activation_keys(inner))?;
    Ok(stated.map(|name| match name.strip_prefix("gated-").filter(|_| is_t5(inner)) {
        Some("gelu") => "gelu_new".to_owned(),
        Some(name) => name.to_owned(),
        None => name,
    }))
}

/// The keys of the activation.
fn activation_keys(inner: Fields<'_, '_>) -> &'static [&'static str] {
    match inner.is_of("distilbert") {
        true => &["activation"],
        false if is_t5(inner) => &["feed_forward_proj"],
        false => &["hidden_activation", "hidden_act", "mlp_hidden_act", "activation_function"],
    }
}

/// Positions that a token sees, itself included and later ones aside; of ModernBERT half of what it sees on both sides.
fn sliding_window(inner: Fields<'_, '_>) -> Result<Option<usize>, ConfigError> {
    match inner.is_of("modernbert") {
        true => Ok(inner.count(&["local_attention"])?.map(|both| both / 2 + 1)),
        false => Ok(inner.count(&["sliding_window"])?.filter(|window| *window > 0)),
    }
}

/// The number of blocks; Nemotron-H has as many as it lists types of, LongCat Flash two in each of its layers.
fn num_layers(inner: Fields<'_, '_>, listed: usize) -> Result<Option<usize>, ConfigError> {
    if inner.is_of("longcat_flash")
        && let Some(layers) = inner.size(&["num_layers"])?
    {
        return Ok(layers.checked_mul(2));
    }
    if is_like_bart(inner) {
        return inner.size(&["encoder_layers"]);
    }
    match inner.is_of("nemotron_h") && listed > 0 {
        true => Ok(Some(listed)),
        false => inner.size(&["num_hidden_layers", "n_layer", "num_layers", "n_layers"]),
    }
}

/// The number of layers of the decoder of an encoder-decoder; as many as the encoder's where T5 does not say.
fn decoder_layers(inner: Fields<'_, '_>) -> Result<Option<usize>, ConfigError> {
    match (is_t5(inner), is_like_bart(inner)) {
        (true, _) => inner.size(&["num_decoder_layers", "num_layers"]),
        (_, true) => inner.size(&["decoder_layers"]),
        _ => Ok(None),
    }
}

/// Widths of feed-forward networks; those of LFM2 are computed, and blocks of Gemma 4 that share keys may be twice as wide.
fn intermediate_sizes(inner: Fields<'_, '_>) -> Result<Vec<usize>, ConfigError> {
    if inner.is_of("lfm2") {
        return Ok(recurrent::adjusted_width(inner)?.into_iter().collect());
    }
    if inner.is_of("distilbert") {
        return inner.sizes(&["hidden_dim"]);
    }
    if inner.is_of("dbrx") {
        return dbrx::width(inner).map(|width| vec![width]);
    }
    if is_t5(inner) {
        return inner.sizes(&["d_ff"]);
    }
    if is_like_bart(inner) {
        return widths_of_stacks(inner);
    }
    let stated = inner.sizes(&["intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"])?;
    if !inner.is_of("gemma4_text") || inner.flag(&["use_double_wide_mlp"])? != Some(true) {
        return Ok(stated);
    }
    let (layers, sharing) = (inner.size(&["num_hidden_layers"])?, inner.count(&["num_kv_shared_layers"])?);
    let first = layers.zip(sharing).and_then(|(layers, sharing)| Some((layers, layers.checked_sub(sharing)?)));
    match (&stated[..], first.filter(|(_, first)| *first > 0)) {
        ([width], Some((layers, first))) => {
            Ok((0..layers).map(|layer| if layer < first { *width } else { width.saturating_mul(2) }).collect())
        }
        _ => Ok(stated),
    }
}

/// Widths of the networks of an encoder-decoder, of all blocks where those of the decoder have another width.
fn widths_of_stacks(inner: Fields<'_, '_>) -> Result<Vec<usize>, ConfigError> {
    let [encoder, decoder] = ["encoder_ffn_dim", "decoder_ffn_dim"].map(|key| inner.size(&[key]));
    let (encoder, decoder) = (encoder?, decoder?);
    let layers = inner.size(&["encoder_layers"])?.zip(inner.size(&["decoder_layers"])?);
    Ok(match (encoder, decoder, layers) {
        (Some(encoder), Some(decoder), Some((first, last))) if encoder != decoder => {
            [vec![encoder; first], vec![decoder; last.saturating_mul(2)]].concat()
        }
        (encoder, ..) => encoder.into_iter().collect(),
    })
}

/// Other classes do not read it.
fn heads_by_layer(inner: Fields<'_, '_>) -> Result<Vec<usize>, ConfigError> {
    match inner.is_of("laguna") {
        true => inner.sizes(&["num_attention_heads_per_layer"]),
        false => Ok(Vec::new()),
    }
}

/// The key of Falcon's configuration, whose older models share one key head unless they say otherwise, as all of GPT-BigCode do.
fn key_heads(inner: Fields<'_, '_>) -> Result<Option<usize>, ConfigError> {
    if inner.is_of("dbrx") {
        return dbrx::key_heads(inner).map(Some);
    }
    let stated = inner.size(&["num_key_value_heads", "num_kv_heads"])?;
    if inner.is_of("gpt_bigcode") {
        return Ok(inner.flag(&["multi_query"])?.unwrap_or(true).then_some(1));
    }
    if !inner.is_of("falcon") {
        return Ok(stated);
    }
    let flag = |key, default| Ok::<_, ConfigError>(inner.flag(&[key])?.unwrap_or(default));
    match (flag("new_decoder_architecture", false)?, flag("multi_query", true)?) {
        (true, _) => Ok(stated),
        (false, true) => Ok(Some(1)),
        (false, false) => Ok(None),
    }
}

/// Other classes without latents do not read it.
fn value_dim(inner: Fields<'_, '_>) -> Result<Option<usize>, ConfigError> {
    match inner.is_of("mimo_v2_flash") {
        true => inner.size(&["v_head_dim"]),
        false => Ok(None),
    }
}

/// Stated for the model, or (MPT) for its attention. 0 is none.
fn clip_qkv(inner: Fields<'_, '_>) -> Result<Option<f64>, ConfigError> {
    let nested = inner.object(&["attn_config"])?;
    let clip = match &nested {
        Some(section) => Fields::new(std::slice::from_ref(section)).number(&["clip_qkv"])?,
        None => inner.number(&["clip_qkv"])?,
    };
    Ok(clip.filter(|clip| *clip != 0.0))
}

fn model_types(inner: Fields<'_, '_>, outer: Fields<'_, '_>) -> Result<Vec<String>, ConfigError> {
    let both = [outer.text(&["model_type"])?, inner.text(&["model_type"])?];
    let mut types: Vec<String> = both.into_iter().flatten().collect();
    types.dedup();
    Ok(types)
}

/// Components of diffusers name their class otherwise.
fn architectures(outer: Fields<'_, '_>) -> Result<Vec<String>, ConfigError> {
    let stated = outer.texts(&["architectures"])?;
    match stated.is_empty() {
        true => Ok(outer.text(&["_class_name"])?.into_iter().collect()),
        false => Ok(stated),
    }
}

fn dtype(fields: Fields<'_, '_>) -> Result<Option<String>, ConfigError> {
    let name = fields.text(&["dtype", "torch_dtype"])?;
    Ok(name.map(|name| name.trim_start_matches("torch.").to_owned()))
}
