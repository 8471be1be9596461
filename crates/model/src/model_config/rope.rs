//! The parameters of rotary embeddings, from both spellings: `rope_theta` with `rope_scaling`, and `rope_parameters`
//! of transformers 5, which may hold one set per kind of layer. Reads only; the angles are computed elsewhere.

use super::ConfigError;
use super::deepseek_v4;
use super::fields::{Fields, Section};

/// The parameters of the rotary embeddings of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RopeConfig {
    /// Parameters of ordinary layers.
    pub main: RopeParameters,
    /// Parameters of layers with sliding-window attention, where they differ (Gemma 3).
    pub sliding: Option<RopeParameters>,
}

/// One set of parameters. Fields that config.json does not state are `None` (lists: empty).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RopeParameters {
    /// `default`, `linear`, `dynamic`, `yarn`, `llama3`, `longrope` or what config.json says.
    pub kind: Option<String>,
    /// The base of the angles: component `i` of `d` turns by `theta^(-2i/d)` per position.
    pub theta: Option<f64>,
    /// The part of each head that turns.
    pub partial: Option<f64>,
    /// The number of components that turn, in the families that state it so.
    pub dim: Option<usize>,
    /// The ratio of the context length to the one the model was trained on.
    pub factor: Option<f64>,
    /// The context length before scaling.
    pub original_max_positions: Option<usize>,
    /// Factor on cos and sin (YaRN, LongRoPE).
    pub attention_factor: Option<f64>,
    /// YaRN: turns within the original context above which a component is left alone.
    pub beta_fast: Option<f64>,
    /// YaRN: turns below which a component is interpolated.
    pub beta_slow: Option<f64>,
    /// YaRN as DeepSeek has it: strength of the attention factor.
    pub mscale: Option<f64>,
    /// YaRN as DeepSeek has it: strength of the attention factor's denominator.
    pub mscale_all_dim: Option<f64>,
    /// YaRN: whether the correction range is rounded to whole components.
    pub truncate: Option<bool>,
    /// Llama 3: wavelengths above `original / low` are interpolated.
    pub low_freq_factor: Option<f64>,
    /// Llama 3: wavelengths below `original / high` are left alone.
    pub high_freq_factor: Option<f64>,
    /// Hunyuan: with `dynamic`, the base is `theta alpha^(d / (d - 2))`, whatever the length.
    pub alpha: Option<f64>,
    /// Strength of the growth of queries with their position (Ministral 3).
    pub query_beta: Option<f64>,
    /// LongRoPE: divisors of each frequency within the original context.
    pub short_factor: Vec<f64>,
    /// LongRoPE: divisors of each frequency beyond it.
    pub long_factor: Vec<f64>,
    /// Multimodal: the numbers of angles that turn by the time, the row and the column of a token.
    pub sections: Vec<f64>,
}

/// Families whose configuration classes read `rotary_dim`. Others ignore it.
///
/// Source: `configuration_*.py` of transformers 5.23.
const STATE_COMPONENTS: &[&str] = &["minimax_m2", "gptj", "codegen"];

/// Keys that hold the parameters, newest first.
const CONTAINERS: &[&str] = &["rope_parameters", "rope_scaling"];

impl RopeConfig {
    pub(super) fn read(fields: Fields<'_, '_>) -> Result<RopeConfig, ConfigError> {
        if fields.is_of("deepseek_v4") {
            let [main, window] = deepseek_v4::rotary(fields)?;
            return Ok(RopeConfig { main, sliding: Some(window) });
        }
        let mut main = RopeParameters::read(fields)?;
        let mut sliding = local_base(fields, &main)?;
        if let Some(section) = fields.object(CONTAINERS)? {
            let of_layers = |kind: &str| Fields::new(std::slice::from_ref(&section)).object(&[kind]);
            let (full, local) = (of_layers("full_attention")?, of_layers("sliding_attention")?);
            let shared = main.overlaid(section)?;
            if let Some(local) = local {
                sliding = Some(shared.clone().overlaid(local)?);
            }
            main = match full {
                Some(full) => shared.overlaid(full)?,
                None => shared,
            };
        }
        Ok(RopeConfig { main, sliding })
    }
}

/// Gemma 3 and ModernBERT before `rope_parameters`, and MiMo-V2: sliding layers have their own base and are not scaled.
fn local_base(fields: Fields<'_, '_>, main: &RopeParameters) -> Result<Option<RopeParameters>, ConfigError> {
    let local = fields.positive(&["rope_local_base_freq", "swa_rope_theta", "local_rope_theta"])?;
    Ok(local.map(|theta| RopeParameters { theta: Some(theta), ..main.clone() }))
}

fn components(fields: Fields<'_, '_>) -> Result<Option<usize>, ConfigError> {
    match STATE_COMPONENTS.iter().any(|model_type| fields.is_of(model_type)) {
        true => fields.size(&["rotary_dim"]),
        false => Ok(None),
    }
}

impl RopeParameters {
    /// The components of a head of `width` that turn: the stated part, else the stated number of components, else the part
    /// that is usual in the family. As transformers 5.23 does, a number is made a part of the head, `dim / width`, of which
    /// the product with `width` is cut off.
    pub fn turning_components(&self, width: usize, usual: f32) -> usize {
        let of_components = || Some(self.dim? as f64 / width.max(1) as f64);
        let part = self.partial.or_else(of_components).unwrap_or(f64::from(usual));
        (part * width as f64) as usize
    }

    /// Reads every field that stands directly in `fields`.
    fn read(fields: Fields<'_, '_>) -> Result<RopeParameters, ConfigError> {
        Ok(RopeParameters {
            theta: fields.positive(&["rope_theta", "rotary_emb_base", "global_rope_theta"])?,
            partial: fields.positive(&["partial_rotary_factor", "rotary_pct", "rope_pct"])?,
            dim: components(fields)?,
            original_max_positions: fields.size(&["original_max_position_embeddings"])?,
            ..RopeParameters::default()
        })
    }

    /// These parameters, replaced by those that `section` states.
    pub(super) fn overlaid(self, section: Section<'_>) -> Result<RopeParameters, ConfigError> {
        let fields = Fields::new(std::slice::from_ref(&section));
        let number = |key: &str| fields.number(&[key]);
        Ok(RopeParameters {
            kind: fields.text(&["rope_type", "type"])?.or(self.kind),
            theta: fields.positive(&["rope_theta"])?.or(self.theta),
            partial: fields.positive(&["partial_rotary_factor"])?.or(self.partial),
            dim: self.dim,
            factor: fields.positive(&["factor"])?.or(self.factor),
            original_max_positions: fields.size(&["original_max_position_embeddings"])?.or(self.original_max_positions),
            attention_factor: number("attention_factor")?.or(self.attention_factor),
            beta_fast: number("beta_fast")?.or(self.beta_fast),
            beta_slow: number("beta_slow")?.or(self.beta_slow),
            mscale: number("mscale")?.or(self.mscale),
            mscale_all_dim: number("mscale_all_dim")?.or(self.mscale_all_dim),
            truncate: fields.flag(&["truncate"])?.or(self.truncate),
            low_freq_factor: number("low_freq_factor")?.or(self.low_freq_factor),
            high_freq_factor: number("high_freq_factor")?.or(self.high_freq_factor),
            alpha: number("alpha")?.or(self.alpha),
            query_beta: number("llama_4_scaling_beta")?.or(self.query_beta),
            short_factor: fields.numbers(&["short_factor"])?,
            long_factor: fields.numbers(&["long_factor"])?,
            sections: fields.numbers(&["mrope_section"])?,
        })
    }
}
