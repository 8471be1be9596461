//! The `quantization_config` of fp8 as vLLM, SGLang and transformers read it. Written; what is read of it is read by the importer.

use crate::export::CannotHold;
use kvant_quant::scheme::{Axis, Granularity, LayerScheme, TensorScheme, Timing};
use serde_json::{Value, json};

/// The whole object: one kind of weights and inputs for all layers.
///
/// # Errors
/// [`CannotHold`] where layers differ, where inputs stay floats, or are quantized in ways that readers do not.
pub fn quantization_config(layers: &[(&str, LayerScheme)], exclude: &[&str]) -> Result<Value, CannotHold> {
    let Some((_, first)) = layers.first() else {
        return Err(CannotHold::new("fp8's layout has no such layers", "use FP8_BLOCK"));
    };
    if let Some((name, other)) = layers.iter().find(|(_, scheme)| scheme != first) {
        let reason = format!("fp8's layout has one scheme: `{name}` is `{other}`, others `{first}`");
        return Err(CannotHold::new(reason, "use one scheme for all layers, or ‹format› compressed-tensors"));
    }
    let block = match first.weight.granularity() {
        Some(Granularity::Block { rows, columns }) => Some([rows.get(), columns.get()]),
        _ => None,
    };
    Ok(json!({
        "activation_scheme": activation_scheme(first, block)?,
        "fmt": "e4m3",
        "ignored_layers": exclude,
        "modules_to_not_convert": exclude,
        "quant_method": "fp8",
        "weight_block_size": block,
    }))
}

/// How inputs are quantized: with one static scale, one scale a token, or, beside blocks, one for as many features as a
/// block is wide.
fn activation_scheme(scheme: &LayerScheme, block: Option<[u32; 2]>) -> Result<&'static str, CannotHold> {
    let refuse = |reason: String| {
        let hint = "use FP8_BLOCK, or FP8 (e4m3:tensor with static inputs); ‹format› compressed-tensors holds others";
        Err(CannotHold::new(reason, hint))
    };
    let Some(input) = scheme.input else {
        return refuse("fp8's layout always quantizes inputs, which would stay floats".to_owned());
    };
    let is_fp8 =
        matches!(input.scheme, TensorScheme::Float(float) if float.format == kvant_numeric::format::MiniFloat::E4M3);
    let group = match input.scheme.granularity() {
        Some(Granularity::Group { axis: Axis::Columns, size: Some(size) }) => Some(size.get()),
        _ => None,
    };
    match (input.timing, input.scheme.granularity(), block) {
        _ if !is_fp8 => refuse(format!("fp8's layout has no inputs `{input}`")),
        (Timing::Static, Some(Granularity::Tensor), None) => Ok("static"),
        (Timing::Dynamic, Some(Granularity::Tensor | Granularity::Channel(Axis::Rows)), None) => Ok("dynamic"),
        (Timing::Dynamic, _, Some([_, columns])) if group == Some(columns) => Ok("dynamic"),
        _ => refuse(format!("fp8's layout has no inputs `{input}` beside such weights")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_decide_what_is_said() {
        let config = |text: &str| quantization_config(&[("a", text.parse().unwrap())], &["lm_head"]);
        let block = config("e4m3:b128x128:f32+e4m3:g128!dynamic").unwrap();
        assert_eq!((&block["activation_scheme"], &block["weight_block_size"]), (&json!("dynamic"), &json!([128, 128])));
        let tensor = config("e4m3:tensor:f32+e4m3:tensor!static").unwrap();
        assert_eq!((&tensor["activation_scheme"], &tensor["weight_block_size"]), (&json!("static"), &Value::Null));
        for refused in ["e4m3:tensor:f32", "e4m3:b128x128:f32+e4m3:g64!dynamic", "e4m3:tensor:f32+int8:tensor!static"] {
            assert!(config(refused).is_err(), "{refused}");
        }
    }
}
