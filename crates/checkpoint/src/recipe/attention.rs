//! The attention settings, as a scheme.

use super::Settings;
use kvant_quant::scheme::{ActivationScheme, AttentionScheme, KvCacheScheme, MinScale, Rotary};
use kvant_weights::recipe_error::{RecipeError, quoted};

/// Names of static activations with one scale.
const NAMES: &[(&str, &str)] = &[("fp8", "e4m3:tensor!static"), ("int8", "int8:tensor!static")];

/// The scheme that command line and file ask for; the former wins.
pub(super) fn resolve(line: &Settings, file: &Settings) -> Result<AttentionScheme, RecipeError> {
    let find = |option: &str, field: &str, of: fn(&Settings) -> Option<&String>| match (of(line), of(file)) {
        (Some(text), _) => scheme(option, text),
        (None, Some(text)) => scheme(field, text),
        (None, None) => Ok(None),
    };
    let cache = find("‹kv-cache›", "kv_cache", |settings| settings.kv_cache.as_ref())?;
    let idle =
        [("‹kv-cache-post-rope›", line.kv_cache_post_rope.is_some()), ("‹min-kv-scale›", line.min_kv_scale.is_some())];
    if let (None, Some((option, _))) = (cache, idle.iter().find(|(_, given)| *given)) {
        return Err(RecipeError::invalid(
            *option,
            "the KV cache is not quantized",
            "add ‹kv-cache› fp8, or leave it out",
        ));
    }
    let least = line.min_kv_scale.or(file.min_kv_scale).unwrap_or(0.0);
    let wrong = || RecipeError::invalid("‹min-kv-scale›", quoted(&least.to_string()), "give a number from 0 on");
    let min_scale = MinScale::try_from(least).map_err(|_| wrong())?;
    let after = line.kv_cache_post_rope.or(file.kv_cache_post_rope).unwrap_or(false);
    Ok(AttentionScheme {
        rotary: if after { Rotary::After } else { Rotary::Before },
        key_value: cache.map(|scheme| KvCacheScheme { scheme, min_scale }),
        query: find("‹attention›", "queries", |settings| settings.queries.as_ref())?,
        probabilities: find("‹attention›", "probabilities", |settings| settings.probabilities.as_ref())?,
    })
}

/// In words, what is quantized of attention; nothing where nothing is.
pub fn attention_words(scheme: &AttentionScheme) -> Vec<String> {
    let side = if scheme.rotary == Rotary::After { "after" } else { "before" };
    let cache = scheme.key_value.map(|cache| {
        let least =
            if cache.min_scale.value() > 0.0 { format!(", scales from {}", cache.min_scale) } else { String::new() };
        format!("KV cache {} {side} the rotary embedding{least}", cache.scheme)
    });
    let query = scheme.query.map(|scheme| format!("queries {scheme}"));
    let probabilities = scheme.probabilities.map(|scheme| format!("softmax {scheme}"));
    [cache, query, probabilities].into_iter().flatten().collect()
}

/// A name or a spelling; scales are static where it says nothing else. `none` leaves activations as they are.
fn scheme(place: &str, text: &str) -> Result<Option<ActivationScheme>, RecipeError> {
    if text == "none" {
        return Ok(None);
    }
    let spelling = NAMES.iter().find(|(name, _)| *name == text).map_or(text, |(_, spelling)| *spelling);
    let whole = if spelling.contains('!') { spelling.to_owned() } else { format!("{spelling}!static") };
    let hint = "use fp8, int8, none or a spelling such as e4m3:tensor:percentile99.9!static";
    whole.parse().map(Some).map_err(|_| RecipeError::invalid(place, format!("unknown scheme {}", quoted(text)), hint))
}
