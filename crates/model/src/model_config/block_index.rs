//! The parts of config.json of an indexer that chooses blocks of keys (MiniMax M3): under keys of their own, or in the section of published
//! checkpoints, which counts first.

use super::ConfigError;
use super::fields::Fields;
use serde_json::Value;

/// The section of published checkpoints.
const SECTION: &str = "sparse_attention_config";

/// An indexer that chooses blocks of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockIndexConfig {
    /// Heads of its queries.
    pub heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Keys of a block.
    pub size: usize,
    /// Blocks that a token attends to at most.
    pub most: usize,
    /// Of these, how many up to its own are always among them.
    pub local: usize,
}

impl BlockIndexConfig {
    pub(super) fn read(fields: Fields<'_, '_>) -> Result<Option<BlockIndexConfig>, ConfigError> {
        if !is_minimax_m3(fields) {
            return Ok(None);
        }
        let section = fields.object(&[SECTION])?;
        let count = |inner: &str, key: &str, default: usize| -> Result<usize, ConfigError> {
            let stated = match &section {
                Some(section) => Fields::new(std::slice::from_ref(section)).count(&[inner])?,
                None => None,
            };
            Ok(stated.or(fields.count(&[key])?).unwrap_or(default))
        };
        Ok(Some(BlockIndexConfig {
            heads: count("sparse_num_index_heads", "index_n_heads", 4)?,
            width: count("sparse_index_dim", "index_head_dim", 128)?,
            size: count("sparse_block_size", "index_block_size", 128)?,
            most: count("sparse_topk_blocks", "index_topk_blocks", 16)?,
            local: count("sparse_local_block", "index_local_blocks", 1)?,
        }))
    }
}

/// Returns whether the class is that of MiniMax M3. The section of its language model may name none.
pub(super) fn is_minimax_m3(fields: Fields<'_, '_>) -> bool {
    fields.is_of("minimax_m3_vl_text") || fields.is_of("minimax_m3_vl")
}

/// What the blocks of MiniMax M3 attend to, where `layer_types` does not say: as the section lists it.
pub(super) fn layer_types(fields: Fields<'_, '_>) -> Result<Vec<String>, ConfigError> {
    const KEY: &str = "sparse_attention_freq";
    let section = fields.object(&[SECTION])?;
    let Some(listed) = section.as_ref().and_then(|section| section.map.get(KEY)) else { return Ok(Vec::new()) };
    let kind = |sparse: &Value| match (sparse.as_bool(), sparse.as_i64()) {
        (Some(true), _) | (_, Some(1)) => Some("minimax_m3_sparse".to_owned()),
        (Some(false), _) | (_, Some(0)) => Some("full_attention".to_owned()),
        _ => None,
    };
    let kinds: Option<Vec<String>> = listed.as_array().and_then(|listed| listed.iter().map(kind).collect());
    kinds.ok_or_else(|| ConfigError::invalid(format!("{SECTION}.{KEY}"), "a list of 0 and 1", listed))
}
