//! The parts of config.json that only DBRX has: objects for attention and for experts.

use super::ConfigError;
use super::fields::{Fields, Section};

/// The objects, beneath the keys of the model.
pub(super) fn sections<'a>(fields: Fields<'_, 'a>) -> Result<Vec<Section<'a>>, ConfigError> {
    if fields.text(&["model_type"])?.as_deref() != Some("dbrx") {
        return Ok(Vec::new());
    }
    let sections = [fields.object(&["attn_config"])?, fields.object(&["ffn_config"])?];
    Ok(sections.into_iter().flatten().collect())
}

/// Heads of keys and values. Saved models state them for the model as well, where their class does not look.
pub(super) fn key_heads(fields: Fields<'_, '_>) -> Result<usize, ConfigError> {
    Ok(fields.size(&["kv_n_heads"])?.unwrap_or(1))
}

/// The width of an expert.
pub(super) fn width(fields: Fields<'_, '_>) -> Result<usize, ConfigError> {
    Ok(fields.size(&["ffn_hidden_size"])?.unwrap_or(3584))
}

/// The activation of the experts; SiLU if config.json states none.
pub(super) fn activation(fields: Fields<'_, '_>) -> Result<Option<String>, ConfigError> {
    match fields.object(&["ffn_act_fn"])? {
        Some(function) => Fields::new(std::slice::from_ref(&function)).text(&["name"]),
        None => Ok(None),
    }
}
