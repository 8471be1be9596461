//! The parts of config.json that DeepSeek V4 has: entries compressed from tokens, groups of heads, several residual streams, and experts that
//! tokens themselves choose. Published checkpoints state some of it otherwise than transformers does.

use super::ConfigError;
use super::fields::{Fields, Section};
use super::rope::RopeParameters;
use serde_json::Value;

/// The type of blocks that attend to chosen ones of many entries.
pub const SPARSE_ENTRIES: &str = "compressed_sparse_attention";

/// The type of blocks that attend to all of few entries.
pub const HEAVY_ENTRIES: &str = "heavily_compressed_attention";

/// The type of blocks without entries.
const WINDOW: &str = "sliding_attention";

/// The sizes of attention to entries, and of residual streams.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressedConfig {
    /// Width of the query latent.
    pub query_rank: usize,
    /// Groups of heads whose outputs have a latent each.
    pub output_groups: usize,
    /// Width of that latent.
    pub output_rank: usize,
    /// Tokens of an entry in blocks with many entries.
    pub sparse_rate: usize,
    /// The same in blocks with few.
    pub heavy_rate: usize,
    /// Heads of what chooses entries.
    pub index_heads: usize,
    /// Width of one of these heads.
    pub index_width: usize,
    /// Entries that a token attends to at most.
    pub index_most: usize,
    /// Residual streams.
    pub streams: usize,
    /// How often rows and columns of what mixes them are divided by their sums.
    pub iterations: usize,
    /// What is added to their shares.
    pub stream_eps: f64,
    /// Whether tokens choose the experts of each block by themselves.
    pub hashed: Vec<bool>,
}

impl CompressedConfig {
    pub(super) fn read(fields: Fields<'_, '_>) -> Result<Option<CompressedConfig>, ConfigError> {
        if !fields.is_of("deepseek_v4") {
            return Ok(None);
        }
        let size = |key: &str, default: usize| Ok::<_, ConfigError>(fields.size(&[key])?.unwrap_or(default));
        Ok(Some(CompressedConfig {
            query_rank: size("q_lora_rank", 1024)?,
            output_groups: size("o_groups", 8)?,
            output_rank: size("o_lora_rank", 1024)?,
            sparse_rate: rate(fields, ("compress_rate_csa", SPARSE_ENTRIES), 4)?,
            heavy_rate: rate(fields, ("compress_rate_hca", HEAVY_ENTRIES), 128)?,
            index_heads: size("index_n_heads", 64)?,
            index_width: size("index_head_dim", 128)?,
            index_most: size("index_topk", 512)?,
            streams: size("hc_mult", 4)?,
            iterations: size("hc_sinkhorn_iters", 20)?,
            stream_eps: fields.positive(&["hc_eps"])?.unwrap_or(1e-6),
            hashed: hashed(fields)?,
        }))
    }

    /// Tokens of an entry in blocks of a type; `None` where they have no entries.
    pub fn rate(&self, kind: &str) -> Option<usize> {
        match kind {
            SPARSE_ENTRIES => Some(self.sparse_rate),
            HEAVY_ENTRIES => Some(self.heavy_rate),
            _ => None,
        }
    }

    /// Returns whether tokens choose the experts of a block by themselves.
    pub fn hashes(&self, block: usize) -> bool {
        self.hashed.get(block).copied().unwrap_or(false)
    }
}

/// Tokens of an entry: a key of older configurations counts before an entry of `compress_rates`.
fn rate(fields: Fields<'_, '_>, (older, kind): (&str, &str), default: usize) -> Result<usize, ConfigError> {
    if let Some(rate) = fields.size(&[older])? {
        return Ok(rate);
    }
    match fields.object(&["compress_rates"])? {
        Some(section) => Ok(Fields::new(std::slice::from_ref(&section)).size(&[kind])?.unwrap_or(default)),
        None => Ok(default),
    }
}

/// The blocks whose experts tokens choose: as listed, else the first `num_hash_layers`, three without that key.
fn hashed(fields: Fields<'_, '_>) -> Result<Vec<bool>, ConfigError> {
    const KEY: &str = "mlp_layer_types";
    let listed = fields.texts(&[KEY])?;
    if listed.is_empty() {
        let count = fields.count(&["num_hash_layers"])?.unwrap_or(3);
        return Ok(vec![true; count.min(blocks(fields)?)]);
    }
    let kind = |name: &String| match name.as_str() {
        "hash_moe" => Some(true),
        "moe" => Some(false),
        _ => None,
    };
    let kinds: Option<Vec<bool>> = listed.iter().map(kind).collect();
    kinds.ok_or_else(|| ConfigError::invalid(KEY, "a list of `hash_moe` and `moe`", &Value::from(listed)))
}

fn blocks(fields: Fields<'_, '_>) -> Result<usize, ConfigError> {
    Ok(fields.size(&["num_hidden_layers"])?.unwrap_or(43))
}

/// The types of blocks: as listed, as numbered by the tokens of their entries in `compress_ratios`, else two with few entries, then by turns.
pub(super) fn layer_types(fields: Fields<'_, '_>, listed: Vec<String>) -> Result<Vec<String>, ConfigError> {
    const RATIOS: &str = "compress_ratios";
    let count = blocks(fields)?;
    if !listed.is_empty() {
        return Ok(listed.into_iter().take(count).collect());
    }
    if let Some((key, value)) = fields.find(&[RATIOS]) {
        let kind = |ratio: &Value| match ratio.as_u64() {
            Some(0) => Some(WINDOW.to_owned()),
            Some(4) => Some(SPARSE_ENTRIES.to_owned()),
            Some(128) => Some(HEAVY_ENTRIES.to_owned()),
            _ => None,
        };
        let kinds: Option<Vec<String>> =
            value.as_array().and_then(|ratios| ratios.iter().take(count).map(kind).collect());
        return kinds.ok_or_else(|| ConfigError::invalid(key, "a list of the numbers 0, 4 and 128", value));
    }
    let kind = |block: usize| if block < 2 || block.is_multiple_of(2) { HEAVY_ENTRIES } else { SPARSE_ENTRIES };
    Ok((0..count).map(|block| kind(block).to_owned()).collect())
}

/// The rotary embeddings of blocks with entries, and of those without.
pub(super) fn rotary(fields: Fields<'_, '_>) -> Result<[RopeParameters; 2], ConfigError> {
    let stated = fields.positive(&["partial_rotary_factor"])?;
    let width = fields.size(&["head_dim"])?.unwrap_or(512) as f64;
    let turning = fields.size(&["qk_rope_head_dim"])?.map(|turning| turning as f64 / width);
    let partial = Some(stated.or(turning).unwrap_or(64.0 / 512.0));
    let of = |theta: f64| RopeParameters { theta: Some(theta), partial, ..RopeParameters::default() };
    let base = |key: &str, default: f64| Ok::<_, ConfigError>(fields.positive(&[key])?.unwrap_or(default));
    let both = [of(base("compress_rope_theta", 160_000.0)?), of(base("rope_theta", 10_000.0)?)];
    let Some(section) = fields.object(&["rope_parameters", "rope_scaling"])? else { return Ok(both) };
    let nested = |key: &str| Fields::new(std::slice::from_ref(&section)).object(&[key]);
    let [entries, window] = both;
    match (nested("compress")?, nested("main")?) {
        (Some(of_entries), Some(of_window)) => Ok([entries.overlaid(of_entries)?, window.overlaid(of_window)?]),
        _ => {
            let theta = entries.theta;
            let entries = entries.overlaid(Section { path: section.path, map: section.map })?;
            // YaRN without its factor on cosines and sines.
            let factor = if entries.kind.as_deref() == Some("yarn") { Some(1.0) } else { None };
            let attention_factor = entries.attention_factor.or(factor);
            Ok([RopeParameters { theta, partial, attention_factor, ..entries }, window])
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::model_config::{CompressedConfig, HEAVY_ENTRIES, ModelConfig, SPARSE_ENTRIES};
    use serde_json::{Value, json};

    fn config(keys: Value) -> ModelConfig {
        let mut all = json!({"model_type": "deepseek_v4", "num_hidden_layers": 5, "head_dim": 128});
        keys.as_object().unwrap().iter().for_each(|(key, value)| all[key] = value.clone());
        ModelConfig::from_json(&all).unwrap()
    }

    fn sizes(keys: Value) -> CompressedConfig {
        config(keys).compressed.unwrap()
    }

    #[test]
    fn types_of_blocks_are_listed_numbered_or_usual() {
        let usual = config(json!({})).layer_types;
        let (heavy, sparse) = (HEAVY_ENTRIES, SPARSE_ENTRIES);
        assert_eq!(usual, [heavy, heavy, heavy, sparse, heavy]);
        let numbered = config(json!({"compress_ratios": [0, 0, 4, 128, 4, 0]})).layer_types;
        assert_eq!(numbered, ["sliding_attention", "sliding_attention", sparse, heavy, sparse]);
        let other = json!({"model_type": "deepseek_v4", "num_hidden_layers": 2, "compress_ratios": [0, 5]});
        assert!(ModelConfig::from_json(&other).is_err());
    }

    #[test]
    fn first_blocks_choose_experts_by_token() {
        assert_eq!(sizes(json!({})).hashed, [true; 3]);
        let listed = sizes(json!({"mlp_layer_types": ["moe", "hash_moe"]}));
        assert!(!listed.hashes(0) && listed.hashes(1) && !listed.hashes(2));
        assert_eq!(sizes(json!({"num_hash_layers": 9})).hashed.len(), 5);
    }

    #[test]
    fn entries_turn_by_their_own_base() {
        let plain = config(json!({"qk_rope_head_dim": 32})).rope;
        let window = plain.sliding.unwrap();
        assert_eq!((plain.main.theta, window.theta, window.partial), (Some(160_000.0), Some(10_000.0), Some(0.25)));
        let yarn = json!({"type": "yarn", "factor": 16, "original_max_position_embeddings": 64});
        let scaled = config(json!({"rope_scaling": yarn})).rope;
        assert_eq!((scaled.main.attention_factor, scaled.main.factor), (Some(1.0), Some(16.0)));
        assert_eq!(scaled.sliding.unwrap().kind, None);
        let both = json!({"main": {"rope_theta": 7.0}, "compress": {"rope_theta": 8.0, "partial_rotary_factor": 0.5}});
        let nested = config(json!({"rope_parameters": both})).rope;
        assert_eq!((nested.main.theta, nested.main.partial), (Some(8.0), Some(0.5)));
        assert_eq!(nested.sliding.unwrap().theta, Some(7.0));
    }

    #[test]
    fn rates_of_older_configurations_count_first() {
        let rates = json!({"compressed_sparse_attention": 8, "heavily_compressed_attention": 64});
        let found = sizes(json!({"compress_rates": rates, "compress_rate_hca": 32}));
        assert_eq!((found.sparse_rate, found.heavy_rate), (8, 32));
        assert_eq!((found.rate(SPARSE_ENTRIES), found.rate("sliding_attention")), (Some(8), None));
    }
}
