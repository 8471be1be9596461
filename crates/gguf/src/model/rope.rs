//! Rotary embeddings: the keys of their scaling, and the tensors of factors that some scalings need.

use super::metadata::{Facts, count};
use kvant_container::gguf::Metadata;
use kvant_model::model_config::{ConfigError, RopeParameters};
use std::f64::consts::TAU;

/// The base where config.json states none.
const DEFAULT_BASE: f64 = 10_000.0;

/// The most components of a head that turn. Sizes of heads come from config.json, and no tensor need be as large.
const MOST_COMPONENTS: usize = 1 << 16;

/// Factors that divide the frequencies, as tensors of their own: names and values.
pub(crate) type Factors = Vec<(&'static str, Vec<f32>)>;

/// Describes base and scaling. Llama 3's scaling has no keys: see [`factors`].
pub(crate) fn describe(facts: &Facts<'_>, metadata: &mut Metadata) -> Result<(), ConfigError> {
    let Some(dim) = facts.rope_dim()? else { return Ok(()) };
    let rope = &facts.config.rope;
    metadata.set(facts.key("rope.dimension_count"), count(dim));
    metadata.set_some(facts.key("rope.freq_base"), base(facts, dim).map(|theta| theta as f32));
    let sliding = rope.sliding.as_ref().and_then(|sliding| sliding.theta);
    // Its graph takes that of windows for the usual one, and has another key for compressed keys.
    let sliding = sliding.filter(|_| facts.architecture.name != "deepseek4");
    metadata.set_some(facts.key("rope.freq_base_swa"), sliding.map(|theta| theta as f32));
    match (rope.main.kind.as_deref(), rope.main.factor) {
        (Some("linear"), Some(factor)) => {
            metadata.set(facts.key("rope.scaling.type"), "linear");
            metadata.set(facts.key("rope.scaling.factor"), factor as f32);
        }
        (Some("yarn"), Some(factor)) => yarn(facts, &rope.main, factor, metadata)?,
        (Some("longrope" | "su"), _) => metadata.set(facts.key("rope.scaling.type"), "longrope"),
        _ => {}
    }
    Ok(())
}

/// The base of the angles, stretched where config.json says so whatever the length of a text (Hunyuan).
fn base(facts: &Facts<'_>, dim: usize) -> Option<f64> {
    let rope = &facts.config.rope.main;
    let stretch = rope.alpha.filter(|alpha| facts.family.math.rotary_alpha && *alpha != 0.0 && dim > 2);
    match stretch.filter(|_| rope.kind.as_deref() == Some("dynamic")) {
        Some(alpha) => Some(rope.theta.unwrap_or(DEFAULT_BASE) * alpha.powf(dim as f64 / (dim as f64 - 2.0))),
        None => rope.theta,
    }
}

fn yarn(facts: &Facts<'_>, rope: &RopeParameters, factor: f64, metadata: &mut Metadata) -> Result<(), ConfigError> {
    let original =
        facts.need(rope.original_max_positions.or(facts.config.max_positions), "original_max_position_embeddings")?;
    metadata.set(facts.key("rope.scaling.type"), "yarn");
    metadata.set(facts.key("rope.scaling.factor"), factor as f32);
    metadata.set(facts.key("rope.scaling.original_context_length"), count(original));
    // llama.cpp multiplies by the usual factor of YaRN, and by this.
    let of_strength = |strength: f64| 0.1 * strength * factor.ln() + 1.0;
    let strengths = rope.mscale.zip(rope.mscale_all_dim).filter(|_| facts.config.latent.is_none());
    let of_strengths = strengths.map(|(one, all)| of_strength(one) / of_strength(all));
    let stated = rope.attention_factor.or(of_strengths);
    metadata.set_some(facts.key("rope.scaling.attn_factor"), stated.map(|stated| (stated / of_strength(1.0)) as f32));
    let more = [("attn_factor", rope.attention_factor), ("beta_fast", rope.beta_fast), ("beta_slow", rope.beta_slow)];
    for (name, value) in more {
        metadata.set_some(facts.key(&format!("rope.scaling.yarn_{name}")), value.map(|value| value as f32));
    }
    Ok(())
}

/// Whether config.json requests a scaling that the format cannot express, or states it incompletely. The factors of
/// LongRoPE are read by the graphs of Phi alone.
pub(crate) fn unknown_scaling<'r>(rope: &'r RopeParameters, architecture: &str) -> Option<&'r str> {
    let kind = rope.kind.as_deref()?;
    let is_known = match kind {
        "default" | "llama3" => true,
        "proportional" => architecture == "gemma4",
        "linear" | "yarn" => rope.factor.is_some(),
        "dynamic" => architecture.starts_with("hunyuan") && rope.alpha.is_some_and(|alpha| alpha != 0.0),
        "longrope" | "su" => {
            let (long, short) = (rope.long_factor.len(), rope.short_factor.len());
            architecture.starts_with("phi") && long > 0 && long == short
        }
        _ => false,
    };
    (!is_known).then_some(kind)
}

/// The factors that divide the frequencies of a model.
///
/// # Errors
/// Where config.json does not state what they are computed from.
pub fn factors(facts: &Facts<'_>) -> Result<Factors, ConfigError> {
    let Some(dim) = facts.rope_dim()? else { return Ok(Vec::new()) };
    let rope = &facts.config.rope.main;
    let floats = |values: &[f64]| values.iter().map(|value| *value as f32).collect();
    match rope.kind.as_deref() {
        Some("llama3") => Ok(vec![("rope_freqs.weight", llama3(facts, rope, dim)?)]),
        Some("proportional") => Ok(vec![("rope_freqs.weight", proportional(facts, rope)?)]),
        Some("longrope" | "su") if !rope.long_factor.is_empty() => Ok(vec![
            ("rope_factors_long.weight", floats(&rope.long_factor)),
            ("rope_factors_short.weight", floats(&rope.short_factor)),
        ]),
        _ => Ok(Vec::new()),
    }
}

/// A part of the components turns as if all did, and the others are divided so far that they stand still.
fn proportional(facts: &Facts<'_>, rope: &RopeParameters) -> Result<Vec<f32>, ConfigError> {
    const STILL: f32 = 1e30;
    let width = bounded(facts.full_head_dim()?)?;
    let turning = (rope.partial.unwrap_or(1.0) * width as f64 / 2.0).floor() as usize;
    let factor = rope.factor.unwrap_or(1.0) as f32;
    Ok((0..width / 2).map(|i| if i < turning { factor } else { STILL }).collect())
}

/// Refuses heads whose factors would fill memory.
fn bounded(dim: usize) -> Result<usize, ConfigError> {
    match dim > MOST_COMPONENTS {
        true => Err(ConfigError::Invalid {
            key: "head_dim".to_owned(),
            expected: format!("at most {MOST_COMPONENTS} where rotary embeddings are scaled"),
            found: dim.to_string(),
        }),
        false => Ok(dim),
    }
}

/// Llama 3's scaling: component `i` of `d` has the wavelength `2 pi theta^(2i/d)`. Short ones are left alone, long ones are
/// stretched by `factor`, between the two bounds the frequency is interpolated.
fn llama3(facts: &Facts<'_>, rope: &RopeParameters, dim: usize) -> Result<Vec<f32>, ConfigError> {
    let dim = bounded(dim)?;
    let theta = rope.theta.unwrap_or(DEFAULT_BASE);
    let factor = rope.factor.unwrap_or(8.0);
    let (low, high) = (rope.low_freq_factor.unwrap_or(1.0), rope.high_freq_factor.unwrap_or(4.0));
    let original = facts.need(rope.original_max_positions, "original_max_position_embeddings")? as f64;
    let of_component = |i: usize| {
        let wavelength = TAU * theta.powf(2.0 * i as f64 / dim as f64);
        if wavelength < original / high {
            1.0
        } else if wavelength > original / low {
            factor
        } else {
            let smooth = (original / wavelength - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    Ok((0..dim / 2).map(|i| of_component(i) as f32).collect())
}

/// The factor on cos and sin of LongRoPE: `sqrt(1 + ln(s) / ln(L))` with `L` the original context and `s` how many times
/// longer the context is.
pub(crate) fn long_attention_factor(context: usize, original: usize) -> f32 {
    let scale = context as f64 / original as f64;
    if scale <= 1.0 { 1.0 } else { (1.0 + scale.ln() / (original as f64).ln()).sqrt() as f32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::architecture::Architecture;
    use kvant_model::family::by_name;
    use kvant_model::model_config::ModelConfig;
    use serde_json::json;

    #[test]
    fn llama3_rope_factors_match_llama_cpp() {
        let config = ModelConfig::from_json(&json!({
            "model_type": "llama", "head_dim": 128, "rope_theta": 500000.0,
            "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                             "original_max_position_embeddings": 8192},
        }))
        .unwrap();
        let family = by_name("llama").unwrap();
        let architecture = Architecture::of(family).unwrap();
        let facts = Facts { config: &config, family, architecture, blocks: 1, vocabulary: 1 };
        let factors = factors(&facts).unwrap();
        let (name, values) = &factors[0];
        assert_eq!((*name, values.len(), values[0], values[63]), ("rope_freqs.weight", 64, 1.0, 8.0));
        let between: Vec<f32> = values.iter().copied().filter(|v| *v != 1.0 && *v != 8.0).collect();
        assert_eq!((between.len(), between[0]), (6, values[29]));
        // Computed by the formula of transformers' `_compute_llama3_parameters` in Python.
        let expected = [1.207_484, 1.553_415, 2.026_313, 2.694_53, 3.684_253, 5.257_327];
        assert!(between.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{between:?}");
    }

    #[test]
    fn long_contexts_have_a_larger_attention_factor() {
        assert_eq!(long_attention_factor(4096, 4096), 1.0);
        assert!((long_attention_factor(131_072, 4096) - 1.190_238).abs() < 1e-6);
    }
}
