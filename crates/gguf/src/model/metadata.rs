//! The metadata of a model: what config.json says in the words of GGUF. What only one architecture has is in
//! [`super::architecture`], the tokenizer in [`super::tokenizer`].
//!
//! Source: `TextModel.set_gguf_parameters` of llama.cpp's converter, and `docs/gguf.md`.

use super::architecture::Architecture;
use super::rope;
use kvant_container::gguf::{Metadata, Value};
use kvant_model::family::{Family, NormKind, Positions, Window, is_feed_forward};
use kvant_model::model_config::{ConfigError, ModelConfig};

/// The version of the block formats (`GGML_QNT_VERSION`).
pub const QUANTIZATION_VERSION: u32 = 2;

/// Facts about a model for writing its metadata.
pub struct Facts<'a> {
    /// config.json.
    pub config: &'a ModelConfig,
    /// The family.
    pub family: &'a Family,
    /// The architecture of the file.
    pub architecture: &'static Architecture,
    /// Decoder blocks.
    pub blocks: usize,
    /// Rows of the embedding.
    pub vocabulary: usize,
}

impl Facts<'_> {
    /// A key of the architecture: `llama.block_count`.
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture.name)
    }

    /// A number that config.json may state, as a float.
    pub(crate) fn float(&self, key: &str) -> Result<Option<f32>, ConfigError> {
        Ok(self.config.number(key)?.map(|number| number as f32))
    }

    /// A size that config.json may state.
    pub(crate) fn size(&self, key: &str) -> Result<Option<u32>, ConfigError> {
        let number = self.config.number(key)?;
        Ok(number.filter(|number| *number >= 0.0 && *number <= f64::from(u32::MAX)).map(|number| number as u32))
    }

    /// A value that must be there.
    pub(crate) fn need<T>(&self, value: Option<T>, key: &str) -> Result<T, ConfigError> {
        self.config.need(value, key, "llama.cpp does not load a model without it")
    }

    /// Query heads, which must be stated.
    pub fn heads(&self) -> Result<usize, ConfigError> {
        self.need(self.config.num_heads, "num_attention_heads")
    }

    /// Components of a head, which must be known.
    pub fn head_dim(&self) -> Result<usize, ConfigError> {
        self.need(self.config.head_dim(), "head_dim")
    }

    /// Components of a head of layers without windows, where those of others have another width (Gemma 4).
    pub(crate) fn full_head_dim(&self) -> Result<usize, ConfigError> {
        const USUAL: u32 = 512;
        if self.config.states("per_layer_config") {
            let full = self.slides().iter().position(|slides| !slides);
            let own = full.and_then(|block| self.config.of_layer(block, "head_dim"));
            return own.map_or_else(|| self.head_dim(), Ok);
        }
        Ok(self.size("global_head_dim")?.unwrap_or(USUAL) as usize)
    }

    /// Components of a head that turn; `None` where positions are learned.
    pub(crate) fn rope_dim(&self) -> Result<Option<usize>, ConfigError> {
        let Positions::Rotary { partial, .. } = self.family.math.positions.resolve(self.config) else {
            return Ok(None);
        };
        if let Some(latent) = &self.config.latent {
            return Ok(Some(latent.rope_dim));
        }
        let width = self.head_dim()?;
        let dim = self.config.rope.main.turning_components(width, partial);
        match dim > 0 && dim <= width && dim.is_multiple_of(2) {
            true => Ok(Some(dim)),
            false => Err(ConfigError::Invalid {
                key: "partial_rotary_factor".to_owned(),
                expected: format!("an even part of heads of {width} components"),
                found: format!("{dim} components"),
            }),
        }
    }

    /// Returns whether the weights of the chosen experts are not divided by their sum.
    pub(crate) fn is_unnormalised(&self) -> bool {
        let usual = self.family.moe.is_some_and(|moe| moe.rule.normalises_by_default());
        self.config.experts.as_ref().is_some_and(|experts| !experts.normalise.unwrap_or(usual))
    }

    /// Returns whether a block has a recurrent mixer.
    pub(crate) fn is_recurrent(&self, block: usize) -> bool {
        self.family.recurrent.is_some_and(|recurrent| recurrent.is_in_block(self.config, block))
    }

    /// Returns whether a block has nothing but a feed-forward network.
    pub(crate) fn is_feed_forward(&self, block: usize) -> bool {
        self.config.layer_types.get(block).is_some_and(|kind| is_feed_forward(kind))
    }

    /// The layers with a sliding window, where config.json lists them.
    pub(crate) fn sliding_layers(&self) -> Option<Vec<bool>> {
        let types = &self.config.layer_types;
        (!types.is_empty()).then(|| types.iter().map(|kind| kind == "sliding_attention").collect())
    }

    /// Which layers have a sliding window, as config.json lists them, or as is usual in the family.
    pub(crate) fn slides(&self) -> Vec<bool> {
        let usual = |block: usize| match self.family.math.window {
            Window::Every => true,
            Window::Alternating { period } => {
                let stated = self.config.size("sliding_window_pattern").filter(|period| *period > 0);
                !(block + 1).is_multiple_of(stated.unwrap_or(period))
            }
            Window::FirstAndEvery { period } => block > 0 && !(block + 1).is_multiple_of(period),
            Window::FirstFull { period } => !block.is_multiple_of(period),
            Window::Full | Window::Chunks | Window::AllButEveryNth | Window::FromLayer => false,
        };
        self.sliding_layers().unwrap_or_else(|| (0..self.blocks).map(usual).collect())
    }
}

/// The first blocks that config.json says have no experts.
pub(crate) fn dense_prefix(config: &ModelConfig) -> usize {
    let stated =
        config.experts.as_ref().map(|experts| experts.dense_prefix).filter(|_| config.states("first_k_dense_replace"));
    let listed =
        || (0..).take_while(|block| config.item("mlp_layer_types", *block).is_some_and(|kind| kind == "dense")).count();
    let counted = stated.or(config.size("num_dense_layers")).or(config.size("moe_layer_start_index"));
    counted.unwrap_or_else(listed)
}

/// Sizes are stored in 32 bits; config.json's are checked to be below.
pub(crate) fn count(size: usize) -> Value {
    Value::U32(u32::try_from(size).unwrap_or(u32::MAX))
}

/// Metadata of every model: `general.*` and the sizes of the architecture.
///
/// # Errors
/// Where config.json lacks what loaders need.
pub fn of_model(facts: &Facts<'_>, name: &str, file_type: u32) -> Result<Metadata, ConfigError> {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", facts.architecture.name);
    metadata.set("general.type", "model");
    metadata.set("general.name", name);
    sizes(facts, &mut metadata)?;
    attention(facts, &mut metadata)?;
    experts(facts, &mut metadata)?;
    rope::describe(facts, &mut metadata)?;
    (facts.architecture.extras)(facts, &mut metadata)?;
    metadata.set("general.file_type", file_type);
    metadata.set("general.quantization_version", QUANTIZATION_VERSION);
    Ok(metadata)
}

fn sizes(facts: &Facts<'_>, metadata: &mut Metadata) -> Result<(), ConfigError> {
    let config = facts.config;
    metadata.set(facts.key("block_count"), count(facts.blocks));
    let hidden = facts.need(config.hidden_size, "hidden_size")?;
    // These have no longest context, and llama.cpp's converter takes this.
    let usual = match facts.architecture.name {
        "bloom" => Some(hidden),
        "mamba" | "mamba2" => Some(1 << 20),
        _ => None,
    };
    let context = facts.need(config.max_positions.or(usual), "max_position_embeddings")?;
    metadata.set(facts.key("context_length"), count(context));
    metadata.set(facts.key("embedding_length"), count(hidden));
    let has_network = !facts.family.mlp.is_empty() || facts.family.moe.is_some();
    let width = if has_network { feed_forward(config) } else { Some(count(0)) };
    metadata.set_some(facts.key("feed_forward_length"), width);
    metadata.set(facts.key("vocab_size"), count(facts.vocabulary));
    Ok(())
}

/// The width of the feed-forward network: one for all blocks, or one for each.
fn feed_forward(config: &ModelConfig) -> Option<Value> {
    match config.intermediate_sizes.as_slice() {
        // GPT-2 leaves it to its default.
        [] => config.hidden_size.map(|hidden| count(4 * hidden)),
        [one] => Some(count(*one)),
        many => Some(many.iter().map(|size| u32::try_from(*size).unwrap_or(u32::MAX)).collect::<Vec<u32>>().into()),
    }
}

fn attention(facts: &Facts<'_>, metadata: &mut Metadata) -> Result<(), ConfigError> {
    let config = facts.config;
    if facts.family.attention.is_empty() {
        metadata.set(facts.key("attention.head_count"), count(0));
        return epsilons(facts, metadata);
    }
    metadata.set(facts.key("attention.head_count"), count(facts.heads()?));
    metadata.set_some(facts.key("attention.head_count_kv"), config.num_kv_heads().map(count));
    metadata.set_some(facts.key("attention.key_length"), config.stated_head_dim.map(count));
    metadata.set_some(facts.key("attention.value_length"), config.stated_head_dim.map(count));
    epsilons(facts, metadata)
}

/// The `eps` of the norms under the key of their formula. A name that says the formula wins over the family's.
fn epsilons(facts: &Facts<'_>, metadata: &mut Metadata) -> Result<(), ConfigError> {
    const RMS: &str = "attention.layer_norm_rms_epsilon";
    const PLAIN: &str = "attention.layer_norm_epsilon";
    let rms = facts.float("rms_norm_eps")?;
    let plain = facts.float("layer_norm_eps")?.or(facts.float("layer_norm_epsilon")?).or(facts.float("norm_epsilon")?);
    metadata.set_some(facts.key(RMS), rms);
    metadata.set_some(facts.key(PLAIN), plain);
    if rms.is_none() && plain.is_none() && facts.family.norm_kind != NormKind::LayerNormPlain {
        let subtracts = facts.family.norm_kind.subtracts_mean();
        let (key, name) = if subtracts { (PLAIN, "layer_norm_eps") } else { (RMS, "rms_norm_eps") };
        // These have no key for it.
        let usual = ["dbrx", "mpt"].contains(&facts.family.name).then_some(1e-5);
        metadata.set(facts.key(key), facts.need(facts.config.norm_eps.or(usual), name)? as f32);
    }
    Ok(())
}

fn experts(facts: &Facts<'_>, metadata: &mut Metadata) -> Result<(), ConfigError> {
    // Some classes have experts in config.json that no block of the model has.
    let is_mixture = facts.family.moe.is_some() && facts.architecture.name != "nemotron_h";
    let Some(experts) = facts.config.experts.as_ref().filter(|_| is_mixture) else { return Ok(()) };
    metadata.set(facts.key("expert_count"), count(experts.count));
    metadata.set(facts.key("expert_used_count"), count(facts.need(experts.per_token, "num_experts_per_tok")?));
    metadata.set_some(facts.key("expert_group_count"), experts.groups.map(count));
    metadata.set_some(facts.key("expert_group_used_count"), experts.groups_per_token.map(count));
    Ok(())
}
