//! The decoder of an encoder-decoder, beside the encoder that the other fields of a family describe. Data only.
//!
//! A layer of the decoder is two blocks: self-attention; then attention to what the encoder gives, with the feed-forward network.

use super::description::{Family, Linears, Norms, Text};
use super::leaked::leaked;
use super::role::NormSite;
use crate::model_config::ModelConfig;
use serde::{Deserialize, Serialize};

/// Blocks of a layer of a decoder.
pub(crate) const BLOCKS_IN_LAYER: usize = 2;

/// More blocks than an encoder has, for a config.json that does not state how many there are.
const UNSTATED: usize = 1 << 20;

/// Blocks of the encoder of an encoder-decoder.
pub(crate) fn encoder_blocks(config: &ModelConfig) -> usize {
    config.num_layers.unwrap_or(UNSTATED)
}

/// The decoder of an encoder-decoder. Paths are relative to the trunk, or to a layer of the decoder. Its tokens have the table of the
/// encoder's, if that reads tokens, and the embedding of the trunk otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecoderStack {
    /// The list of layers.
    #[serde(deserialize_with = "leaked")]
    pub blocks: Text,
    /// Learned positions.
    #[serde(deserialize_with = "leaked", default)]
    pub positions: Option<Text>,
    /// Norms outside the blocks: [`NormSite::Embedding`] and [`NormSite::Final`].
    #[serde(deserialize_with = "leaked")]
    pub trunk_norms: Norms,
    /// The linear layers of self-attention.
    #[serde(deserialize_with = "leaked")]
    pub attention: Linears,
    /// Those of attention to what the encoder gives.
    #[serde(deserialize_with = "leaked")]
    pub cross_attention: Linears,
    /// Those of the feed-forward network.
    #[serde(deserialize_with = "leaked")]
    pub mlp: Linears,
    /// The norms of a layer: [`NormSite::AttentionInput`], [`NormSite::CrossAttentionInput`] and [`NormSite::FeedForwardInput`].
    #[serde(deserialize_with = "leaked")]
    pub norms: Norms,
}

/// A block of an encoder-decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackBlock {
    /// A layer of the encoder.
    Encoder,
    /// Self-attention of a layer of the decoder.
    SelfAttention,
    /// The rest of a layer of the decoder.
    CrossAttention,
}

impl Family {
    /// The decoder, where the family is one of encoder-decoders.
    pub fn decoder_stack(&self) -> Option<DecoderStack> {
        self.encoder.and_then(|encoder| encoder.decoder)
    }

    /// Returns whether the family is one of encoders without decoders.
    pub fn is_encoder(&self) -> bool {
        self.encoder.is_some_and(|encoder| encoder.decoder.is_none())
    }

    /// The blocks of a model, if config.json states them.
    pub fn blocks_of(&self, config: &ModelConfig) -> Option<usize> {
        match self.decoder_stack() {
            None => config.num_layers,
            Some(_) => config.num_layers?.checked_add(config.decoder_layers?.checked_mul(BLOCKS_IN_LAYER)?),
        }
    }

    /// Which block of an encoder-decoder one is; `None` for other models.
    pub fn stack_block(&self, config: &ModelConfig, block: usize) -> Option<StackBlock> {
        self.decoder_stack()?;
        Some(match block.checked_sub(encoder_blocks(config)) {
            None => StackBlock::Encoder,
            Some(behind) if behind.is_multiple_of(BLOCKS_IN_LAYER) => StackBlock::SelfAttention,
            Some(_) => StackBlock::CrossAttention,
        })
    }

    /// The path in the trunk of what block `block` has under a path of the description.
    pub fn path_in_trunk(&self, config: &ModelConfig, block: usize, path: &str) -> String {
        let stack = self.decoder_stack().zip(block.checked_sub(encoder_blocks(config)));
        match stack {
            Some((decoder, behind)) => format!("{}.{}.{path}", decoder.blocks, behind / BLOCKS_IN_LAYER),
            None => format!("{}.{}", self.trunk.blocks, self.path_in_layers(block, path)),
        }
    }

    /// The norms of a block, with their places in it.
    pub fn norms_of_block(&self, config: &ModelConfig, block: usize) -> Vec<(NormSite, Text)> {
        let Some((decoder, part)) = self.decoder_stack().zip(self.stack_block(config, block)) else {
            return self.norms.to_vec();
        };
        match part {
            StackBlock::Encoder => self.norms.to_vec(),
            part => decoder.norms.iter().filter_map(|(site, path)| Some((in_part(*site, part)?, *path))).collect(),
        }
    }
}

impl DecoderStack {
    /// The linear layers of one of the two blocks, those of the other left out.
    pub fn mixer(&self, part: StackBlock) -> Linears {
        match part {
            StackBlock::Encoder => &[],
            StackBlock::SelfAttention => self.attention,
            StackBlock::CrossAttention => self.cross_attention,
        }
    }
}

/// The place in a block of a layer's norm; `None` where it belongs to the other block.
pub(crate) fn in_part(site: NormSite, part: StackBlock) -> Option<NormSite> {
    match (site, part) {
        (NormSite::AttentionInput, StackBlock::SelfAttention) => Some(site),
        (NormSite::CrossAttentionInput, StackBlock::CrossAttention) => Some(NormSite::AttentionInput),
        (NormSite::FeedForwardInput, StackBlock::CrossAttention) => Some(site),
        _ => None,
    }
}
