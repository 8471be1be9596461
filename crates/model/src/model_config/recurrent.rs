//! The parts of config.json that only models with recurrent token mixers have.

use super::ConfigError;
use super::block_index;
use super::deepseek_v4;
use super::fields::Fields;
use serde_json::Value;

/// The sizes of gated delta nets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaConfig {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values; each key head serves equally many.
    pub value_heads: usize,
    /// Width of a query and of a key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Tokens that the convolution sees, the last included.
    pub kernel: usize,
}

impl DeltaConfig {
    pub(super) fn read(fields: Fields<'_, '_>) -> Result<Option<DeltaConfig>, ConfigError> {
        if fields.is_of("olmo_hybrid") {
            return DeltaConfig::of_olmo_hybrid(fields);
        }
        if fields.is_of("bailing_hybrid") {
            return DeltaConfig::of_bailing(fields);
        }
        if fields.is_of("kimi_linear") {
            return DeltaConfig::of_kimi_linear(fields).map(Some);
        }
        let sizes = [
            fields.size(&["linear_num_key_heads"])?,
            fields.size(&["linear_num_value_heads"])?,
            fields.size(&["linear_key_head_dim"])?,
            fields.size(&["linear_value_head_dim"])?,
            fields.size(&["linear_conv_kernel_dim"])?,
        ];
        let [Some(key_heads), Some(value_heads), Some(key_dim), Some(value_dim), Some(kernel)] = sizes else {
            return Ok(None);
        };
        Ok(Some(DeltaConfig { key_heads, value_heads, key_dim, value_dim, kernel }))
    }

    /// Sizes that OLMo Hybrid does not state follow from those of attention.
    fn of_olmo_hybrid(fields: Fields<'_, '_>) -> Result<Option<DeltaConfig>, ConfigError> {
        let both = fields.size(&["hidden_size"])?.zip(fields.size(&["num_attention_heads"])?);
        let Some((hidden, heads)) = both else { return Ok(None) };
        let key_heads = fields.size(&["linear_num_key_heads"])?.unwrap_or(heads);
        let key_dim = fields.size(&["linear_key_head_dim"])?.unwrap_or(hidden * 3 / 4 / key_heads);
        Ok(Some(DeltaConfig {
            key_heads,
            value_heads: fields.size(&["linear_num_value_heads"])?.unwrap_or(heads),
            key_dim,
            value_dim: fields.size(&["linear_value_head_dim"])?.unwrap_or(key_dim.saturating_mul(2)),
            kernel: fields.size(&["linear_conv_kernel_dim"])?.unwrap_or(4),
        }))
    }

    /// The heads of Ling 3, as many as those of attention. What transformers saves counts before the keys of published checkpoints, as it saves
    /// another `head_dim`.
    fn of_bailing(fields: Fields<'_, '_>) -> Result<Option<DeltaConfig>, ConfigError> {
        let Some(heads) = fields.size(&["linear_num_heads", "num_attention_heads"])? else { return Ok(None) };
        let width = fields.size(&["linear_head_dim", "head_dim"])?.unwrap_or(128);
        let kernel = fields.size(&["linear_conv_kernel_dim", "short_conv_kernel_size"])?.unwrap_or(4);
        Ok(Some(DeltaConfig { key_heads: heads, value_heads: heads, key_dim: width, value_dim: width, kernel }))
    }

    /// The heads of Kimi Linear, alike for queries, keys and values. The section of published checkpoints takes precedence over the keys that
    /// transformers writes.
    fn of_kimi_linear(fields: Fields<'_, '_>) -> Result<DeltaConfig, ConfigError> {
        let section = fields.object(&[KIMI_SECTION])?;
        let size = |key: &str, inner: &str, default: usize| -> Result<usize, ConfigError> {
            let stated = match &section {
                Some(section) => Fields::new(std::slice::from_ref(section)).size(&[inner])?,
                None => None,
            };
            Ok(stated.or(fields.size(&[key])?).unwrap_or(default))
        };
        let heads = size("linear_num_heads", "num_heads", 32)?;
        let width = size("linear_head_dim", "head_dim", 128)?;
        let kernel = size("linear_conv_kernel_dim", "short_conv_kernel_size", 4)?;
        Ok(DeltaConfig { key_heads: heads, value_heads: heads, key_dim: width, value_dim: width, kernel })
    }

    /// Rows of all queries, or of all keys; `None` beyond what can be counted.
    pub fn keys(&self) -> Option<usize> {
        self.key_heads.checked_mul(self.key_dim)
    }

    /// Rows of all values.
    pub fn values(&self) -> Option<usize> {
        self.value_heads.checked_mul(self.value_dim)
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> Option<usize> {
        self.keys()?.checked_mul(2)?.checked_add(self.values()?)
    }
}

/// The section of config.json in which published checkpoints of Kimi Linear describe their delta nets.
const KIMI_SECTION: &str = "linear_attn_config";

/// The least step of Nemotron-H, where config.json states none.
const NEMOTRON_STEP: f64 = 0.001;

/// The sizes of Mamba 2 mixers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MambaConfig {
    /// Heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Groups of heads that share what writes and reads their states; each serves equally many.
    pub groups: usize,
    /// Size of the state of each channel.
    pub state: usize,
    /// Tokens that the convolution sees, the last included.
    pub kernel: usize,
    /// The least step.
    pub least_step: f64,
    /// The largest step, which may be infinite.
    pub largest_step: f64,
}

impl MambaConfig {
    pub(super) fn read(fields: Fields<'_, '_>) -> Result<Option<MambaConfig>, ConfigError> {
        // Where there is no attention, its heads are meant.
        let (heads, width): (&[&str], &[&str]) = match fields.is_of("mamba2") {
            true => (&["num_heads"], &["head_dim"]),
            false => (&["mamba_n_heads", "mamba_num_heads"], &["mamba_d_head", "mamba_head_dim"]),
        };
        let Some(heads) = fields.size(heads)? else { return Ok(None) };
        let sizes = [
            head_width(fields, heads, width)?,
            fields.size(&["mamba_n_groups", "n_groups"])?,
            fields.size(&["mamba_d_state", "ssm_state_size", "state_size"])?,
            fields.size(&["mamba_d_conv", "conv_kernel"])?,
        ];
        let [Some(head_dim), Some(groups), Some(state), Some(kernel)] = sizes else { return Ok(None) };
        let (least_step, largest_step) = match fields.is_of("nemotron_h") {
            true => (fields.number(&["mamba_dt_min", "time_step_min"])?.unwrap_or(NEMOTRON_STEP), f64::INFINITY),
            false => step_limits(fields)?,
        };
        Ok(Some(MambaConfig { heads, head_dim, groups, state, kernel, least_step, largest_step }))
    }

    /// Channels of all heads; `None` beyond what can be counted.
    pub fn inner(&self) -> Option<usize> {
        self.heads.checked_mul(self.head_dim)
    }

    /// Channels of the convolution: those of all heads, and what writes and reads the states of each group.
    pub fn channels(&self) -> Option<usize> {
        self.groups.checked_mul(self.state)?.checked_mul(2)?.checked_add(self.inner()?)
    }

    /// Rows of the first layer: the gate, the channels of the convolution, and a step for each head.
    pub fn rows(&self) -> Option<usize> {
        self.inner()?.checked_add(self.channels()?)?.checked_add(self.heads)
    }
}

/// The sizes of Mamba mixers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mamba1Config {
    /// Channels.
    pub inner: usize,
    /// Size of the state of each channel.
    pub state: usize,
    /// Width of the latent of the steps.
    pub rank: usize,
    /// Tokens that the convolution sees, the last included.
    pub kernel: usize,
}

impl Mamba1Config {
    pub(super) fn read(fields: Fields<'_, '_>) -> Result<Option<Mamba1Config>, ConfigError> {
        let keys = if fields.is_of("mamba") || fields.is_of("falcon_mamba") {
            ["expand", "state_size", "conv_kernel", "time_step_rank"]
        } else if fields.is_of("jamba") {
            ["mamba_expand", "mamba_d_state", "mamba_d_conv", "mamba_dt_rank"]
        } else {
            return Ok(None);
        };
        let [expand, state, kernel, rank] = keys;
        let Some(hidden) = fields.size(&["hidden_size"])? else { return Ok(None) };
        let factor = fields.size(&[expand])?.unwrap_or(2);
        let inner = hidden.checked_mul(factor);
        let (state, kernel) = (fields.size(&[state])?.unwrap_or(16), fields.size(&[kernel])?.unwrap_or(4));
        let rank = match fields.find(&[rank]) {
            None => hidden.div_ceil(16),
            Some((_, Value::String(auto))) if auto == "auto" => hidden.div_ceil(16),
            Some(_) => fields.size(&[rank])?.unwrap_or(1),
        };
        Ok(inner.map(|inner| Mamba1Config { inner, state, rank, kernel }))
    }

    /// Rows of the first layer: what passes the convolution, and the gate; `None` beyond what can be counted.
    pub fn rows(&self) -> Option<usize> {
        self.inner.checked_mul(2)
    }

    /// Rows of the second layer: the latent of the steps, what is written and what is read.
    pub fn chosen(&self) -> Option<usize> {
        self.state.checked_mul(2)?.checked_add(self.rank)
    }
}

/// The width of a head; `auto` is an equal part of `mamba_d_ssm`, else of `mamba_expand` times the hidden size.
fn head_width(fields: Fields<'_, '_>, heads: usize, keys: &[&str]) -> Result<Option<usize>, ConfigError> {
    match fields.find(keys) {
        Some((_, Value::String(auto))) if auto == "auto" => {
            let both = fields.size(&["mamba_expand"])?.zip(fields.size(&["hidden_size"])?);
            let expanded = both.and_then(|(factor, hidden)| factor.checked_mul(hidden));
            Ok(fields.size(&["mamba_d_ssm"])?.or(expanded).map(|inner| inner / heads))
        }
        _ => fields.size(keys),
    }
}

/// The least and the largest step: all positive ones unless `time_step_limit` says otherwise.
fn step_limits(fields: Fields<'_, '_>) -> Result<(f64, f64), ConfigError> {
    const KEY: &str = "time_step_limit";
    let Some((key, value)) = fields.find(&[KEY]) else { return Ok((0.0, f64::INFINITY)) };
    let limits = value.as_array().filter(|limits| limits.len() == 2);
    let limits = limits.and_then(|limits| Some((limits[0].as_f64()?, upper_limit(&limits[1])?)));
    limits.ok_or_else(|| ConfigError::invalid(key, "two numbers", value))
}

/// JSON has no number for infinity: transformers writes an object, older versions the text that Python prints.
fn upper_limit(value: &Value) -> Option<f64> {
    let is_infinite = |name: &str| name.ends_with("Infinity") && !name.ends_with("-Infinity");
    match value {
        Value::Object(object) => {
            object.get("__float__")?.as_str().filter(|name| is_infinite(name)).map(|_| f64::INFINITY)
        }
        Value::String(name) => is_infinite(name).then_some(f64::INFINITY),
        _ => value.as_f64(),
    }
}

/// The width of the feed-forward networks of LFM2, of which config.json states another number: two thirds of it, times a factor, up to the
/// next multiple.
pub(super) fn adjusted_width(fields: Fields<'_, '_>) -> Result<Option<usize>, ConfigError> {
    let Some(stated) = fields.size(&["block_ff_dim", "intermediate_size"])? else { return Ok(None) };
    if !fields.flag(&["block_auto_adjust_ff_dim"])?.unwrap_or(true) {
        return Ok(Some(stated));
    }
    let width = stated * 2 / 3;
    if fields.states_null("block_ffn_dim_multiplier") {
        return Ok(Some(width));
    }
    let factor = fields.positive(&["block_ffn_dim_multiplier"])?.unwrap_or(1.0);
    let multiple = fields.size(&["block_multiple_of"])?.unwrap_or(256);
    Ok(((factor * width as f64) as usize).div_ceil(multiple).checked_mul(multiple))
}

/// What blocks have: as listed, as numbered by Kimi Linear, or as spelled by the letters of Nemotron-H.
pub(super) fn layer_types(fields: Fields<'_, '_>) -> Result<Vec<String>, ConfigError> {
    let listed = fields.texts(&["layer_types", "layers_block_type"])?;
    if fields.is_of("deepseek_v4") {
        return deepseek_v4::layer_types(fields, listed);
    }
    if fields.is_of("minimax") {
        return minimax_layer_types(fields, listed);
    }
    if listed.is_empty() && fields.is_of("lfm3") {
        return lfm3_layer_types(fields);
    }
    if listed.is_empty() && fields.is_of("bailing_hybrid") {
        return bailing_layer_types(fields);
    }
    if listed.is_empty() && fields.is_of("kimi_linear") {
        return kimi_layer_types(fields);
    }
    if listed.is_empty() && block_index::is_minimax_m3(fields) {
        return block_index::layer_types(fields);
    }
    let Some((key, pattern)) = fields.find(&["hybrid_override_pattern"]).filter(|_| listed.is_empty()) else {
        return Ok(listed);
    };
    let name = |letter: char| match letter {
        'M' => Some("linear_attention".to_owned()),
        '*' => Some("full_attention".to_owned()),
        '-' => Some("mlp".to_owned()),
        'E' => Some("moe".to_owned()),
        _ => None,
    };
    let names: Option<Vec<String>> = pattern.as_str().and_then(|letters| letters.chars().map(name).collect());
    names.ok_or_else(|| ConfigError::invalid(key, "a string of the letters M, *, - and E", pattern))
}

/// The blocks of LFM3: of four, the third attends to all tokens, and the first to a window, but for that of all.
fn lfm3_layer_types(fields: Fields<'_, '_>) -> Result<Vec<String>, ConfigError> {
    let layers = fields.size(&["num_hidden_layers"])?.unwrap_or(0);
    let kind = |block: usize| match block % 4 {
        2 => "full_attention",
        0 if block > 0 => "sliding_attention",
        _ => "conv",
    };
    Ok((0..layers).map(|block| kind(block).to_owned()).collect())
}

/// The blocks of Ling 3: the last of each group has attention.
fn bailing_layer_types(fields: Fields<'_, '_>) -> Result<Vec<String>, ConfigError> {
    let group = fields.size(&["layer_group_size"])?.unwrap_or(6);
    let layers = fields.size(&["num_hidden_layers"])?.unwrap_or(0);
    let kind = |block: usize| if (block + 1).is_multiple_of(group) { "full_attention" } else { "linear_attention" };
    Ok((0..layers).map(|block| kind(block).to_owned()).collect())
}

/// The blocks of MiniMax-Text-01: every second has lightning attention, beginning with the second, unless config.json lists them. Where
/// it states a window, all that attend have it.
fn minimax_layer_types(fields: Fields<'_, '_>, listed: Vec<String>) -> Result<Vec<String>, ConfigError> {
    let layers = fields.size(&["num_hidden_layers"])?.filter(|_| listed.is_empty()).unwrap_or(0);
    let usual = (0..layers).map(|block| if block % 2 == 0 { "full_attention" } else { "linear_attention" }.to_owned());
    let attends = if fields.size(&["sliding_window"])?.is_some() { "sliding_attention" } else { "full_attention" };
    let kinds = listed.into_iter().chain(usual);
    Ok(kinds.map(|kind| if kind == "full_attention" { attends.to_owned() } else { kind }).collect())
}

/// The blocks of Kimi Linear: those with attention and those with delta nets, each numbered from 1 on; without both lists every fourth
/// has attention, beginning with the fifth.
fn kimi_layer_types(fields: Fields<'_, '_>) -> Result<Vec<String>, ConfigError> {
    const KINDS: [(&str, &str); 2] = [("full_attn_layers", "full_attention"), ("kda_layers", "linear_attention")];
    let Some(layers) = fields.size(&["num_hidden_layers"])? else { return Ok(Vec::new()) };
    let section = fields.object(&[KIMI_SECTION])?;
    let list = |key: &str| section.as_ref().and_then(|section| section.map.get(key)?.as_array());
    let (Some(attends), Some(recurs)) = (list(KINDS[0].0), list(KINDS[1].0)) else {
        let kind = |block: usize| if block > 0 && block.is_multiple_of(4) { KINDS[0].1 } else { KINDS[1].1 };
        return Ok((0..layers).map(|block| kind(block).to_owned()).collect());
    };
    let has = |numbers: &[Value], block: usize| numbers.iter().any(|number| number.as_u64() == Some(block as u64 + 1));
    let kind = |block: usize| match (has(attends, block), has(recurs, block)) {
        (true, false) => Some(KINDS[0].1.to_owned()),
        (false, true) => Some(KINDS[1].1.to_owned()),
        _ => None,
    };
    let kinds: Option<Vec<String>> = (0..layers).map(kind).collect();
    let key = format!("{KIMI_SECTION}.{}", KINDS[0].0);
    let expected = "a list that, with `kda_layers`, has the number of each block once";
    kinds.ok_or_else(|| ConfigError::invalid(key, expected, &Value::from(attends.to_vec())))
}
