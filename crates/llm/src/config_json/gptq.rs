//! The `quantization_config` of GPTQ, as GPTQModel writes it and transformers, vLLM and SGLang read it. Written; what is read of it
//! is read by the importer.

use super::grouped::Grouping;
use super::selector::{Selector, commonest, select};
use crate::export::CannotHold;
use kvant_quant::scheme::LayerScheme;
use serde_json::{Map, Value, json};

/// Projections that engines fuse, and what the fused layer is called: its name is the one that they look up.
const FUSED: &[(&str, &[&str])] =
    &[("qkv_proj", &["q_proj", "k_proj", "v_proj"]), ("gate_up_proj", &["gate_proj", "up_proj"])];

/// The whole object. The commonest of the layers' groupings is said for all; `dynamic` has the others, and, behind `-:`, the
/// modules that stay as they are. `ordered` says that channels are grouped otherwise than as they stand.
///
/// # Errors
/// [`CannotHold`] for layers that are no integers in groups.
pub fn quantization_config(
    layers: &[(&str, LayerScheme)],
    exclude: &[&str],
    checkpoint_format: &str,
    ordered: bool,
) -> Result<Value, CannotHold> {
    let groupings: Vec<(&str, Grouping)> = layers.iter().filter_map(|(n, s)| Some((*n, Grouping::of(s)?))).collect();
    let usual = commonest(&groupings).ok_or_else(|| CannotHold::new("GPTQ has no such codes", "use int4:g128"))?;
    Ok(json!({
        "bits": usual.bits,
        "checkpoint_format": checkpoint_format,
        "desc_act": ordered,
        "dynamic": dynamic(&groupings, exclude, usual),
        "group_size": usual.size_number(),
        "lm_head": layers.iter().any(|(name, _)| *name == "lm_head"),
        "meta": {"quantizer": [concat!("kvant:", env!("CARGO_PKG_VERSION"))]},
        "pack_dtype": "int32",
        "quant_method": "gptq",
        "sym": usual.symmetric,
    }))
}

/// What differs from the usual, by regular expressions that are matched from the start of a module's name.
fn dynamic(groupings: &[(&str, Grouping)], exclude: &[&str], usual: Grouping) -> Map<String, Value> {
    let others = select(groupings, exclude).into_iter().filter(|(grouping, _)| *grouping != usual);
    let mut rules = Map::new();
    for (grouping, selectors) in others {
        let rule = json!({"bits": grouping.bits, "group_size": grouping.size_number(), "sym": grouping.symmetric});
        let patterns = with_fused(selectors.iter().map(expression).collect());
        rules.extend(patterns.into_iter().map(|pattern| (format!("+:{pattern}"), rule.clone())));
    }
    let kept = exclude.iter().map(|name| kept_expression(name)).collect();
    rules.extend(with_fused(kept).into_iter().map(|pattern| (format!("-:{pattern}"), json!({}))));
    rules
}

fn expression(selector: &Selector) -> String {
    match selector {
        Selector::Leaf(_) => format!("^{}", selector.regex().trim_start_matches("re:")),
        Selector::Name(name) => format!("^{}$", super::selector::escape(name)),
    }
}

/// A module's name, or an expression behind `re:`.
fn kept_expression(name: &str) -> String {
    match name.strip_prefix("re:") {
        Some(expression) => format!("^{expression}"),
        None => expression(&Selector::Name(name.to_owned())),
    }
}

/// The expressions, and after the first of projections that are fused, that of the fused layer.
fn with_fused(patterns: Vec<String>) -> Vec<String> {
    let of_fused = |pattern: &String| {
        let name = |(fused, parts): &(&str, &[&str])| {
            let before = pattern.strip_suffix(&format!("{}$", parts[0]))?;
            Some(format!("{before}{fused}$"))
        };
        FUSED.iter().find_map(name)
    };
    patterns.into_iter().flat_map(|pattern| [of_fused(&pattern), Some(pattern)]).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config_json::Pattern;

    fn scheme(text: &str) -> LayerScheme {
        text.parse().unwrap()
    }

    #[test]
    fn the_commonest_is_said_and_the_others_override_it() {
        let layers = [
            ("m.0.q_proj", scheme("int4:g128")),
            ("m.0.up_proj", scheme("int4:g128")),
            ("m.0.down_proj", scheme("int8:channel")),
            ("m.1.down_proj", scheme("int8:channel")),
            ("m.1.up_proj", scheme("int4:g128")),
        ];
        let config = quantization_config(&layers, &["lm_head", "m.1.q_proj"], "gptq", false).unwrap();
        assert_eq!((&config["bits"], &config["group_size"], &config["sym"]), (&json!(4), &json!(128), &json!(true)));
        let dynamic = config["dynamic"].as_object().unwrap();
        let fate = |module: &str| {
            let matches =
                |rule: &&String| Pattern::new("dynamic", &format!("re:{}", &rule[2..])).unwrap().matches(module);
            dynamic.keys().find(matches).map(|rule| (rule[..2].to_owned(), dynamic[rule].clone()))
        };
        let eight = json!({"bits": 8, "group_size": -1, "sym": true});
        assert_eq!(fate("m.1.down_proj"), Some(("+:".to_owned(), eight)));
        assert_eq!(fate("lm_head"), Some(("-:".to_owned(), json!({}))));
        assert_eq!(fate("m.1.qkv_proj"), Some(("-:".to_owned(), json!({}))));
        assert_eq!((fate("m.0.q_proj"), fate("m.0.up_proj"), fate("xlm_head")), (None, None, None));
    }
}
