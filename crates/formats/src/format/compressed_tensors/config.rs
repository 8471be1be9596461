//! The `quantization_config` of compressed-tensors 0.20, which llm-compressor writes and vLLM, SGLang and transformers read.

use super::args::Args;
use super::packing_format::{Format, format_of};
use crate::format::selector::{Selector, select};
use kvant_quant::scheme::{ActivationScheme, LayerScheme};
use kvant_weights::parts::CannotHold;
use serde_json::{Map, Value, json};

/// The version of the library whose layout is written.
const VERSION: &str = "0.20.0";

/// The whole object, with a group for every scheme among `layers`, which are all quantized modules.
///
/// A single scheme targets the class `Linear`, whatever names loaders give to modules. Several target modules by name or pattern, all of
/// them: vLLM would take a class before it looked at the parts of a fused layer. `aliases` are the same modules under the names that
/// transformers gives them where those differ. `ignore` are the full names of the linear modules that stay as they are. `act_order`
/// says that a list beside each weight gives the groups of input channels.
///
/// # Errors
/// [`CannotHold`] for schemes that compressed-tensors cannot express.
pub fn quantization_config(
    layers: &[(&str, LayerScheme)],
    ignore: &[&str],
    aliases: &[(&str, LayerScheme)],
    act_order: bool,
) -> Result<Value, CannotHold> {
    let named: Vec<(&str, LayerScheme)> = layers.iter().chain(aliases).copied().collect();
    let schemes = select(&named, ignore);
    let (mut groups, mut formats) = (Map::new(), Vec::new());
    for (index, (scheme, selectors)) in schemes.iter().enumerate() {
        let format = format_of(scheme)?;
        let targets = match schemes.len() {
            1 => vec!["Linear".to_owned()],
            _ => selectors.iter().map(Selector::regex).collect(),
        };
        groups.insert(format!("group_{index}"), group(scheme, format, targets, act_order)?);
        formats.push(format);
    }
    let format = formats.first().copied().filter(|first| formats.iter().all(|format| format == first));
    Ok(json!({
        "config_groups": groups,
        "format": format.map_or("mixed-precision", Format::name),
        "global_compression_ratio": null,
        "ignore": ignore,
        "kv_cache_scheme": null,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": VERSION,
    }))
}

/// The `kv_cache_scheme`.
///
/// # Errors
/// [`CannotHold`] for what has no words.
pub fn kv_cache_scheme(scheme: ActivationScheme) -> Result<Value, CannotHold> {
    let args = Args::of_input(scheme)?;
    serde_json::to_value(args).map_err(|error| CannotHold::new(error.to_string(), "report this"))
}

fn group(scheme: &LayerScheme, format: Format, targets: Vec<String>, act_order: bool) -> Result<Value, CannotHold> {
    let weights = Args::of_weight(scheme.weight)?;
    let weights = if act_order { weights.act_order() } else { weights };
    Ok(json!({
        "format": format.name(),
        "input_activations": scheme.input.map(Args::of_input).transpose()?,
        "output_activations": scheme.output.map(Args::of_input).transpose()?,
        "targets": targets,
        "weights": weights,
    }))
}
