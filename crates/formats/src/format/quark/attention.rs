//! Attention in Quark's configuration: quantized outputs of the layers that compute queries, keys and values, and of the softmax.
//! Written and read.

use super::document::{SPELL_IT, object};
use super::read::activation_scheme;
use super::write::{layer_config, output_config};
use kvant_model::family::{Family, Role, leaf};
use kvant_quant::glob::Glob;
use kvant_quant::scheme::{ActivationScheme, AttentionScheme, KvCacheScheme, LayerScheme, MinScale, Rotary};
use kvant_weights::parts::CannotHold;
use kvant_weights::recipe_error::RecipeError;
use serde_json::{Map, Value, json};

/// The layers that make queries, keys and values, as globs, the form in which Quark names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttentionModules {
    /// Those of keys and values.
    pub key_value: Vec<String>,
    /// Those of queries.
    pub query: Vec<String>,
}

impl AttentionModules {
    /// Those of a family.
    pub fn of(family: &Family) -> AttentionModules {
        let is_query = |role: Role| matches!(role, Role::Query | Role::QueryUp | Role::QueryKeyValue);
        let queries = family.attention.iter().filter(|(role, _)| is_query(*role));
        // Some families have two kinds of blocks.
        let mut query: Vec<String> = queries.map(|(_, path)| format!("*{}", leaf(path))).collect();
        query.dedup();
        AttentionModules { key_value: family.kv_globs(), query }
    }
}

/// Adds attention to an otherwise complete `quantization_config`. `layers` are all quantized modules.
///
/// # Errors
/// [`CannotHold`] where the layers of a glob have several schemes, which its loaders do not understand.
pub fn describe_attention(
    config: &mut Value,
    scheme: &AttentionScheme,
    modules: &AttentionModules,
    layers: &[(&str, LayerScheme)],
) -> Result<(), CannotHold> {
    if let Some(cache) = scheme.key_value {
        let mut caches = Map::new();
        for glob in &modules.key_value {
            let described = owner_config(glob, cache.scheme, layers)?;
            if !described["weight"].is_null() {
                replace(config, glob, described.clone());
            }
            caches.insert(glob.clone(), described);
        }
        config["kv_cache_quant_config"] = Value::Object(caches);
        config["kv_cache_post_rope"] = json!(scheme.rotary == Rotary::After);
        config["export"]["kv_cache_group"] = json!(modules.key_value);
        // The digits that the user gave, not those that f32 makes of them.
        config["export"]["min_kv_scale"] = json!(cache.min_scale.to_string().parse::<f64>().unwrap_or_default());
    }
    if let Some(query) = scheme.query {
        for glob in &modules.query {
            let described = owner_config(glob, query, layers)?;
            replace(config, glob, described);
        }
    }
    if let Some(probabilities) = scheme.probabilities {
        config["softmax_quant_spec"] = output_config(probabilities)?;
    }
    Ok(())
}

/// The description of layers whose outputs are quantized: the scheme that all of them have, if they are quantized themselves.
fn owner_config(glob: &str, output: ActivationScheme, layers: &[(&str, LayerScheme)]) -> Result<Value, CannotHold> {
    let glob_text = glob;
    let glob = Glob::new(glob);
    let mut schemes = layers.iter().filter(|(name, _)| glob.matches(name)).map(|(_, scheme)| *scheme);
    let Some(first) = schemes.next() else {
        let untouched = ["bias", "input_tensors", "target_device", "weight"].map(|key| (key.to_owned(), Value::Null));
        let mut described = Map::from_iter(untouched);
        described.insert("output_tensors".to_owned(), output_config(output)?);
        described.sort_keys();
        return Ok(Value::Object(described));
    };
    if schemes.any(|scheme| scheme != first) || first.output.is_some_and(|own| own != output) {
        let reason = format!("Quark's layout wants one scheme for all `{glob_text}` whose outputs are quantized");
        return Err(CannotHold::new(reason, "give them one with ‹override›, or use ‹format› compressed-tensors"));
    }
    layer_config(&LayerScheme { output: Some(output), ..first })
}

/// Puts an entry into `layer_quant_config`, replacing those of the same layers.
fn replace(config: &mut Value, glob: &str, described: Value) {
    let Some(entries) = config["layer_quant_config"].as_object_mut() else { return };
    let matcher = Glob::new(glob);
    entries.retain(|pattern, _| !matcher.matches(pattern));
    entries.insert(glob.to_owned(), described);
    entries.sort_keys();
}

/// Attention as described by a configuration. The family decides which layers own queries, keys and values, so their
/// outputs are removed from `layers`, and with them the entries that say nothing else.
pub(super) fn read_attention(
    config: &Map<String, Value>,
    default: Option<LayerScheme>,
    layers: &mut Vec<(String, Option<LayerScheme>)>,
) -> Result<AttentionScheme, RecipeError> {
    let export = |key: &str| config.get("export").and_then(|export| export.get(key));
    let owners = owner_patterns(config, export("kv_cache_group"))?;
    let cache = cache_scheme(config, &owners, layers)?;
    let after = config.get("kv_cache_post_rope").and_then(Value::as_bool).unwrap_or(false);
    let probabilities = config.get("softmax_quant_spec").filter(|value| !value.is_null());
    let probabilities = probabilities.map(|value| activation_scheme("softmax_quant_spec", value)).transpose()?;
    take_outputs(layers, default, |pattern, _| owners.iter().any(|owner| owner == pattern));
    // Beside a quantized softmax, layers that differ in their outputs alone make queries.
    let is_plain = |scheme: LayerScheme| Some(LayerScheme { output: None, ..scheme }) == default;
    let makes_queries = |_: &str, scheme: LayerScheme| probabilities.is_some() && is_plain(scheme);
    Ok(AttentionScheme {
        rotary: if after { Rotary::After } else { Rotary::Before },
        query: take_outputs(layers, default, makes_queries),
        key_value: cache
            .map(|scheme| least(export("min_kv_scale")).map(|min_scale| KvCacheScheme { scheme, min_scale }))
            .transpose()?,
        probabilities,
    })
}

fn least(value: Option<&Value>) -> Result<MinScale, RecipeError> {
    let number = value.and_then(Value::as_f64).unwrap_or(0.0) as f32;
    number.try_into().map_err(|_| RecipeError::invalid("export.min_kv_scale", "is no scale", SPELL_IT))
}

/// The patterns of the layers that own keys and values.
fn owner_patterns(config: &Map<String, Value>, group: Option<&Value>) -> Result<Vec<String>, RecipeError> {
    let group = group.and_then(Value::as_array).into_iter().flatten();
    let named = object(config, "kv_cache_quant_config")?.map(|(pattern, _)| pattern.clone());
    Ok(named.chain(group.filter_map(|pattern| pattern.as_str().map(str::to_owned))).collect())
}

/// The scheme of keys and values, which is one.
fn cache_scheme(
    config: &Map<String, Value>,
    owners: &[String],
    layers: &[(String, Option<LayerScheme>)],
) -> Result<Option<ActivationScheme>, RecipeError> {
    let mut found: Vec<ActivationScheme> = Vec::new();
    for (pattern, value) in object(config, "kv_cache_quant_config")? {
        if let Some(output) = value.get("output_tensors").filter(|output| !output.is_null()) {
            found.push(activation_scheme(&format!("kv_cache_quant_config.{pattern}.output_tensors"), output)?);
        }
    }
    let of_layers = layers.iter().filter(|(pattern, _)| owners.contains(pattern));
    found.extend(of_layers.filter_map(|(_, scheme)| scheme.as_ref()?.output));
    match found.first() {
        Some(first) if found.iter().any(|other| other != first) => {
            Err(RecipeError::unsupported("kv_cache_quant_config", "has several schemes", SPELL_IT))
        }
        first => Ok(first.copied()),
    }
}

/// Takes quantized outputs from the layers for which `is_owner` holds, and the entries that then say what is said by
/// default; returns the first of them.
fn take_outputs(
    layers: &mut Vec<(String, Option<LayerScheme>)>,
    default: Option<LayerScheme>,
    is_owner: impl Fn(&str, LayerScheme) -> bool,
) -> Option<ActivationScheme> {
    let mut taken = None;
    layers.retain_mut(|(pattern, scheme)| {
        let Some(found) = scheme.as_mut().filter(|found| found.output.is_some() && is_owner(pattern, **found)) else {
            return true;
        };
        taken = taken.or(found.output.take());
        *scheme != default
    });
    taken
}
