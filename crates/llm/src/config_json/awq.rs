//! The `quantization_config` of AWQ, as AutoAWQ wrote it and transformers, vLLM and SGLang read it. Written; what is read of it is
//! read by the importer.

use super::grouped::Grouping;
use crate::export::CannotHold;
use kvant_quant::scheme::LayerScheme;
use serde_json::{Value, json};

/// The whole object. Readers take names of `exclude` as parts of names.
///
/// # Errors
/// [`CannotHold`] where layers differ in their groups, for which there is one number.
pub fn quantization_config(layers: &[(&str, LayerScheme)], exclude: &[&str]) -> Result<Value, CannotHold> {
    let groupings: Vec<(&str, Grouping)> = layers.iter().filter_map(|(n, s)| Some((*n, Grouping::of(s)?))).collect();
    let Some((_, first)) = groupings.first() else {
        return Err(CannotHold::new("AWQ has no such codes", "use uint4 (`uint4:g128:zp`)"));
    };
    if let Some((name, other)) = groupings.iter().find(|(_, grouping)| grouping.size != first.size) {
        let reason =
            format!("AWQ has one group size: `{name}` has {}, others {}", other.size_text(), first.size_text());
        return Err(CannotHold::new(reason, "use one scheme for all layers, or ‹format› gptq"));
    }
    Ok(json!({
        "bits": 4,
        "group_size": first.size_number(),
        "modules_to_not_convert": if exclude.is_empty() { Value::Null } else { json!(exclude) },
        "quant_method": "awq",
        "version": "gemm",
        "zero_point": true,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_group_size_is_said_for_all() {
        let scheme = |text: &str| text.parse::<LayerScheme>().unwrap();
        let same = [("a", scheme("uint4:g64:zp")), ("b", scheme("int4:g64"))];
        let config = quantization_config(&same, &["lm_head"]).unwrap();
        assert_eq!((&config["group_size"], &config["modules_to_not_convert"]), (&json!(64), &json!(["lm_head"])));
        let channel = quantization_config(&[("a", scheme("int4:channel"))], &[]).unwrap();
        assert_eq!((&channel["group_size"], &channel["modules_to_not_convert"]), (&json!(-1), &Value::Null));
        let mixed = [same[0], ("c", scheme("uint4:g128:zp"))];
        assert!(quantization_config(&mixed, &[]).unwrap_err().reason.contains("`c` has 128"));
    }
}
