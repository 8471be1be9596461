//! The shape of a family's description. It is data only: which names play which role, and which rules the forward
//! pass follows. Everything else (pairs for smoothing, order of rounding, fused siblings, owners of the KV cache) is
//! derived from it by [`crate::network`].

use super::decoder_stack::StackBlock;
use super::encoder::Encoder;
use super::leaked::leaked;
use super::math::{Indexer, Math, Residual, Routing};
use super::recurrent::{Recurrent, RecurrentBlocks, RecurrentParameter, is_feed_forward};
use super::role::{NormKind, NormSite, Orientation, Role, RowOrder};
use crate::model_config::{ModelConfig, SPARSE_ENTRIES};
use serde::{Deserialize, Serialize};

/// A text of a description: compiled in, or read from a file and kept for as long as the program runs.
pub type Text = &'static str;

/// Linear layers by role. A name is the module's path inside its container (a block or the trunk); `{}` is
/// the index of an expert.
pub type Linears = &'static [(Role, Text)];

/// Norms by position; `{}` in a name is the index of a head.
pub type Norms = &'static [(NormSite, Text)];

/// A model family: all that Kvant knows of an architecture.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// The name used in the CLI and in reports; the same as the most usual `model_type`.
    #[serde(deserialize_with = "leaked")]
    pub name: Text,
    /// One line for `kvant list families`.
    #[serde(deserialize_with = "leaked")]
    pub summary: Text,
    /// The values of `model_type` in config.json that mean this family.
    #[serde(deserialize_with = "leaked")]
    pub model_types: &'static [Text],
    /// The values of `architectures` that mean it when `model_type` says nothing.
    #[serde(deserialize_with = "leaked")]
    pub architectures: &'static [Text],
    /// The modules around the blocks.
    pub trunk: Trunk,
    /// The linear layers of attention, q before k before v, and the output last.
    #[serde(deserialize_with = "leaked")]
    pub attention: Linears,
    /// The mixer that some blocks have in place of attention.
    #[serde(default)]
    pub recurrent: Option<Recurrent>,
    /// The linear layers of the dense feed-forward network.
    #[serde(deserialize_with = "leaked")]
    pub mlp: Linears,
    /// The mixture of experts, where the family has one.
    #[serde(default)]
    pub moe: Option<Moe>,
    /// The norms of a block.
    #[serde(deserialize_with = "leaked")]
    pub norms: Norms,
    /// The formula of all norms of the family, but of those that [`Recurrent`] describes, and of [`NormSite::IndexKey`] of [`Indexer::Keys`], which is a LayerNorm.
    pub norm_kind: NormKind,
    /// How the 2-D weights are stored.
    pub orientation: Orientation,
    /// The row order of a matrix that holds q, k and v.
    pub qkv_rows: RowOrder,
    /// Small tensors of a block that belong to no linear layer and no norm, like attention sinks.
    #[serde(deserialize_with = "leaked")]
    pub parameters: &'static [Text],
    /// Layers that predict further tokens, which are kept unless a recipe says otherwise.
    #[serde(default)]
    pub extra: Option<Extra>,
    /// The blocks that attend to what another modality gives, where the family has some.
    #[serde(default)]
    pub cross_attention: Option<CrossAttention>,
    /// What the family has if it is one of encoders.
    #[serde(default)]
    pub encoder: Option<Encoder>,
    /// The rules of the forward pass.
    pub math: Math,
    /// Modules that stay in the source's precision by default: globs on full module names. Heads and routers are kept
    /// whether or not they stand here.
    #[serde(deserialize_with = "leaked")]
    pub keep: &'static [Text],
    /// The `model_type` as whose config.json that of the family is read, if not as its own: the same keys count, with the same names and
    /// defaults.
    #[serde(deserialize_with = "leaked", default)]
    pub config_like: Option<Text>,
    /// Parts of module names that transformers changes when it loads a model: on disk, then in memory.
    #[serde(deserialize_with = "leaked")]
    pub in_memory: &'static [(Text, Text)],
}

/// The parts of the model outside its blocks. Paths are relative to `path`, except for the heads, which are absolute.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trunk {
    /// The module that holds embeddings, blocks and final norm in a causal language model, e.g. `model`. Checkpoints
    /// of base models lack its first part, multimodal ones add `language_model`.
    #[serde(deserialize_with = "leaked")]
    pub path: Text,
    /// Token embedding.
    #[serde(deserialize_with = "leaked")]
    pub embedding: Text,
    /// Another name of it.
    #[serde(deserialize_with = "leaked", default)]
    pub other_embedding: Option<Text>,
    /// Learned positions.
    #[serde(deserialize_with = "leaked", default)]
    pub positions: Option<Text>,
    /// The table with an input of every block for each token.
    #[serde(deserialize_with = "leaked", default)]
    pub layer_inputs: Option<Text>,
    /// The list of blocks; block `i` is `{path}.{blocks}.{i}`.
    #[serde(deserialize_with = "leaked")]
    pub blocks: Text,
    /// Norms outside the blocks.
    #[serde(deserialize_with = "leaked")]
    pub norms: Norms,
    /// Linear layers outside the blocks, besides the head.
    #[serde(deserialize_with = "leaked")]
    pub linears: Linears,
    /// Small tensors outside the blocks that belong to no linear layer and no norm. They may have several names.
    #[serde(deserialize_with = "leaked", default)]
    pub parameters: &'static [Text],
    /// Names of the output head, the usual one first.
    #[serde(deserialize_with = "leaked")]
    pub heads: &'static [Text],
}

/// Layers outside the decoder that predict further tokens (multi-token prediction). They are not run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extra {
    /// The module that holds them, beside the trunk.
    #[serde(deserialize_with = "leaked")]
    pub path: Text,
    /// The list of blocks in it, whose layers are named like those of the decoder.
    #[serde(deserialize_with = "leaked")]
    pub blocks: Text,
    /// Linear layers outside these blocks.
    #[serde(deserialize_with = "leaked")]
    pub linears: Linears,
}

/// Blocks that attend to what another modality gives. For text alone they are passed over.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CrossAttention {
    /// The key of config.json that lists these blocks.
    #[serde(deserialize_with = "leaked")]
    pub listed: Text,
    /// The blocks, where config.json does not list them.
    #[serde(deserialize_with = "leaked")]
    pub usual: &'static [usize],
    /// Their linear layers in place of attention's, of which some read the other modality.
    #[serde(deserialize_with = "leaked")]
    pub linears: &'static [Text],
    /// Their tensors that belong to no linear layer and no norm of other blocks.
    #[serde(deserialize_with = "leaked")]
    pub parameters: &'static [Text],
}

impl CrossAttention {
    /// Returns whether a block is one of them.
    pub fn is_in_block(&self, config: &ModelConfig, block: usize) -> bool {
        config.lists(self.listed, block).unwrap_or_else(|| self.usual.contains(&block))
    }
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moe {
    /// The router, and the gate of the shared expert if there is one.
    #[serde(deserialize_with = "leaked")]
    pub routing: Linears,
    /// The layouts in which checkpoints of the family store the routed experts; the first one is what transformers finds where they
    /// are quantized.
    #[serde(deserialize_with = "leaked")]
    pub experts: &'static [ExpertLayout],
    /// The linear layers of the experts that all tokens pass.
    #[serde(deserialize_with = "leaked")]
    pub shared: Linears,
    /// How the experts are chosen.
    pub rule: Routing,
}

/// How routed experts are stored.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertLayout {
    /// One matrix per expert, or one tensor for all.
    pub storage: ExpertStorage,
    /// The orientation of each expert's matrix.
    pub orientation: Orientation,
    /// The row order of a matrix that holds gate and up.
    pub gate_up_rows: RowOrder,
    /// The names.
    #[serde(deserialize_with = "leaked")]
    pub linears: Linears,
}

/// Whether the experts of a block are one tensor or many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExpertStorage {
    /// A 2-D weight per expert; `{}` in the name is the expert's index.
    Separate,
    /// A 3-D tensor `[experts, ..]`.
    Fused,
    /// A 2-D tensor with the matrices of all experts one below the other (DBRX).
    Stacked,
}

/// What a block of a model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Branches {
    /// Attention.
    pub attention: bool,
    /// A recurrent mixer.
    pub recurrent: bool,
    /// A feed-forward network.
    pub feed_forward: bool,
}

impl Family {
    /// What a block has: a token mixer and a feed-forward network, one of them, or nothing where text alone passes it over.
    pub fn branches(&self, config: &ModelConfig, block: usize) -> Branches {
        if let Some(part) = self.stack_block(config, block) {
            return Branches { attention: true, recurrent: false, feed_forward: part != StackBlock::SelfAttention };
        }
        if self.cross_attention.is_some_and(|cross| cross.is_in_block(config, block)) {
            return Branches { attention: false, recurrent: false, feed_forward: false };
        }
        let recurrent = self.recurrent.is_some_and(|recurrent| recurrent.is_in_block(config, block));
        let feeds = config.layer_types.get(block).is_some_and(|kind| is_feed_forward(kind));
        match self.math.residual.resolve(config) == Residual::Single {
            true => Branches { attention: !recurrent && !feeds, recurrent, feed_forward: feeds },
            false => {
                let beside = |recurrent: Recurrent| recurrent.blocks == RecurrentBlocks::BesideAttention;
                let attention = !recurrent || self.recurrent.is_some_and(beside);
                Branches { attention, recurrent, feed_forward: true }
            }
        }
    }

    /// The blocks that a layer of the checkpoint is.
    pub fn blocks_in_layer(&self) -> usize {
        if self.math.shortcut_experts { 2 } else { 1 }
    }

    /// The path inside the list of layers of what block `block` has under a path of the description: the number of the layer in front, and
    /// that of the block in its layer where the path has a place for it.
    ///
    /// ```
    /// let family = kvant_model::family::by_name("longcat_flash").unwrap();
    /// assert_eq!(family.path_in_layers(3, "mlps.{}.up_proj"), "1.mlps.1.up_proj");
    /// let family = kvant_model::family::by_name("llama").unwrap();
    /// assert_eq!(family.path_in_layers(3, "mlp.up_proj"), "3.mlp.up_proj");
    /// ```
    pub fn path_in_layers(&self, block: usize, path: &str) -> String {
        let parts = self.blocks_in_layer();
        match parts {
            1 => format!("{block}.{path}"),
            parts => format!("{}.{}", block / parts, path.replacen("{}", &(block % parts).to_string(), 1)),
        }
    }

    /// The block whose keys and values a block attends to: its own, or those of the last block of its type that makes some.
    pub fn key_block(&self, config: &ModelConfig, block: usize) -> usize {
        let first = self.first_sharing(config).filter(|first| block >= *first);
        let Some(makers) = first.and_then(|first| config.layer_types.get(..first)) else { return block };
        let kind = config.layer_types.get(block);
        makers.iter().rposition(|maker| Some(maker) == kind).unwrap_or(block)
    }

    /// The first of the last blocks, which make no keys and values.
    fn first_sharing(&self, config: &ModelConfig) -> Option<usize> {
        let sharing = config.number("num_kv_shared_layers").ok().flatten().filter(|_| self.math.shares_keys)?;
        config.num_layers?.checked_sub(sharing as usize).filter(|first| *first > 0)
    }

    /// The site of a norm in a block, where names of norms depend on its mixer.
    pub fn norm_site(&self, config: &ModelConfig, site: NormSite, block: Option<usize>) -> NormSite {
        let Some(block) = block else { return self.trunk_norm_site(config, site) };
        if !self.math.norms_by_mixer {
            return site;
        }
        match (site, self.branches(config, block).recurrent) {
            (NormSite::FeedForwardInput, false) => NormSite::AttentionOutput,
            (NormSite::AttentionOutput, true) => NormSite::FeedForwardInput,
            _ => site,
        }
    }

    /// The site of a norm outside the blocks: where models of sounds have norms behind branches, their final norm stands on the embeddings
    /// (wav2vec 2.0).
    fn trunk_norm_site(&self, config: &ModelConfig, site: NormSite) -> NormSite {
        let reads_sounds = self.encoder.is_some_and(|encoder| encoder.sounds.is_some() && encoder.decoder.is_none());
        match reads_sounds && self.math.residual.resolve(config) == Residual::PostNorm {
            true if site == NormSite::Final => NormSite::Embedding,
            _ => site,
        }
    }

    /// Returns whether a block has the norm that the family has at a site, as far as its place, its mixer and its experts decide that.
    pub fn has_norm_at(&self, config: &ModelConfig, site: NormSite, block: usize) -> bool {
        if let Some(part) = self.stack_block(config, block) {
            return part != StackBlock::SelfAttention || site == NormSite::AttentionInput;
        }
        let dense = config.experts.as_ref().is_none_or(|experts| block < experts.dense_prefix);
        if site == NormSite::FeedForwardOutput && self.math.only_experts_have_output_norm && dense {
            return false;
        }
        let is_behind = matches!(site, NormSite::AttentionOutput | NormSite::FeedForwardOutput);
        if is_behind && self.math.output_norms_if.is_some_and(|key| !config.flag_or(key, true)) {
            return false;
        }
        let recurrent = self.branches(config, block).recurrent;
        match site {
            NormSite::AttentionInput if block == 0 && self.math.first_norm_is_absent => false,
            NormSite::AttentionInput | NormSite::FeedForwardInput => recurrent || !self.math.norms_by_mixer,
            NormSite::AttentionOutput | NormSite::FeedForwardOutput => !recurrent || !self.math.norms_by_mixer,
            _ => true,
        }
    }

    /// Returns whether a block has the small tensor of a path, as far as the type of the block decides that: those of entries of tokens, of
    /// what chooses among them, and of experts that tokens choose by themselves.
    pub fn has_parameter_at(&self, config: &ModelConfig, path: &str, block: usize) -> bool {
        let Some(sizes) = config.compressed.as_ref().filter(|_| self.math.compressed_keys) else { return true };
        let kind = config.layer_types.get(block).map_or("", String::as_str);
        match leaf(path) {
            "ape" if path.contains("indexer") => kind == SPARSE_ENTRIES,
            "ape" => sizes.rate(kind).is_some(),
            "tid2eid" => sizes.hashes(block),
            "bias" => !sizes.hashes(block),
            _ => true,
        }
    }

    /// The formula of the norms of a checkpoint, but of those that [`Recurrent`] describes.
    pub fn norm_kind_of(&self, config: &ModelConfig) -> NormKind {
        let stated = || matches!(config.number("rms_norm_eps"), Ok(Some(_)));
        if self.math.rms_norm_if_stated && stated() { NormKind::Rms } else { self.norm_kind }
    }

    /// Every role that a linear layer of the family can have, with its name, blocks and trunk together.
    pub fn linears(&self) -> impl Iterator<Item = (Role, &'static str)> {
        let moe = self.moe.iter().flat_map(|moe| {
            let experts = moe.experts.iter().flat_map(|layout| layout.linears);
            experts.chain(moe.routing).chain(moe.shared)
        });
        let recurrent = self.recurrent.iter().flat_map(|recurrent| recurrent.linears);
        let dense = self.attention.iter().chain(recurrent).chain(self.mlp).chain(self.trunk.linears);
        let cross = self.cross_attention.into_iter().flat_map(|cross| cross.linears);
        let stack = self.decoder_stack().into_iter();
        let stack = stack.flat_map(|stack| [stack.attention, stack.cross_attention, stack.mlp]);
        let dense = dense.chain(stack.flatten());
        dense.chain(moe).copied().chain(cross.map(|path| (Role::Unknown, *path)))
    }

    /// The formula of the norm at a site of a checkpoint.
    pub fn norm_kind_at(&self, config: &ModelConfig, site: NormSite) -> NormKind {
        match (site, &self.recurrent) {
            (NormSite::RecurrentOutput, Some(recurrent)) => recurrent.norm_kind,
            (NormSite::IndexKey, _) if matches!(self.math.indexer, Some(Indexer::Keys(_))) => NormKind::LayerNorm,
            _ => self.norm_kind_of(config),
        }
    }

    /// The names of all small tensors of blocks that belong to no linear layer and no norm.
    pub fn all_parameters(&self) -> impl Iterator<Item = &'static str> {
        let recurrent = self.recurrent.iter().flat_map(|recurrent| recurrent.parameters);
        let recurrent = recurrent.map(|(_, path): &(RecurrentParameter, &'static str)| *path);
        let cross = self.cross_attention.into_iter().flat_map(|cross| cross.parameters);
        self.parameters.iter().copied().chain(recurrent).chain(cross.copied())
    }

    /// The layers whose outputs are the keys and values that a cache stores: k and v, the fused q/k/v, or the up
    /// projection of MLA's latent. As globs, the form in which exported configurations name the owners of KV scales.
    ///
    /// ```
    /// let family = kvant_model::family::by_name("llama").unwrap();
    /// assert_eq!(family.kv_globs(), ["*k_proj", "*v_proj"]);
    /// ```
    pub fn kv_globs(&self) -> Vec<String> {
        let owners = self.attention.iter().filter(|(role, _)| owns_kv(*role));
        owners.map(|(_, path)| format!("*{}", leaf(path))).collect()
    }
}

/// Returns whether a layer of this role writes what the KV cache stores.
pub fn owns_kv(role: Role) -> bool {
    matches!(role, Role::Key | Role::Value | Role::QueryKeyValue | Role::KeyValueUp)
}

/// The last part of a dotted path.
pub fn leaf(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}
