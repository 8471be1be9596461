//! Rules that some checkpoints have and the forward pass does not compute: refused by name.

use super::Sources;
use crate::forward::error::ForwardError;
use kvant_model::family::{Activation, RotaryLayers, Window};
use kvant_model::model_config::ModelConfig;
use kvant_model::network::{Place, Reason};
use serde_json::Value;

/// Booleans of config.json that enable unsupported features.
const REFUSED_FLAGS: &[&str] = &[
    "use_bidirectional_attention",
    "scale_attn_by_inverse_layer_idx",
    "add_cross_attention",
    "use_cross_attention",
    "is_encoder_decoder",
];

/// Keys with a value that change what is computed.
const REFUSED_VALUES: &[&str] = &["clip_qkv", "attention_chunk_size", "sliding_window_layers"];

pub(super) fn unknown_architecture(config: &ModelConfig) -> ForwardError {
    let name = config.architectures.first().or(config.model_types.first());
    let name = name.map_or("an unknown architecture", String::as_str);
    ForwardError::unsupported(format!("{name}: no family describes it"))
}

/// Refuses unsupported rules that config.json or tensor names indicate.
pub(super) fn check(sources: &Sources<'_, '_>) -> Result<(), ForwardError> {
    check_flags(sources)?;
    check_tensors(sources)?;
    check_blocks(sources)?;
    check_layer_types(sources)?;
    let activation = sources.family.math.activation.resolve(sources.config);
    match activation {
        Activation::Unknown => {
            let name = sources.config.activation.as_deref().unwrap_or("");
            Err(ForwardError::unsupported(format!("the activation `{name}`")))
        }
        _ => Ok(()),
    }
}

fn check_flags(sources: &Sources<'_, '_>) -> Result<(), ForwardError> {
    let config = sources.config;
    let flag = REFUSED_FLAGS.iter().find(|key| config.flag_or(key, false));
    let value = REFUSED_VALUES.iter().find(|key| config.number(key) != Ok(None));
    // GPT-2 scales attention unless disabled.
    let unscaled = (!config.flag_or("scale_attn_weights", true)).then_some(&"scale_attn_weights");
    match flag.or(value).or(unscaled) {
        Some(key) => Err(ForwardError::unsupported(format!("`{key}` of config.json"))),
        None => Ok(()),
    }
}

fn check_tensors(sources: &Sources<'_, '_>) -> Result<(), ForwardError> {
    let both = sources.tensors.meta().iter().zip(sources.network.places());
    for (tensor, place) in both {
        match place {
            Place::Other(Reason::Quantized) => {
                return Err(ForwardError::unsupported(format!("{}, quantized in its own way", tensor.name)));
            }
            Place::Other(Reason::Unrecognised | Reason::NotLinear) => {
                return Err(ForwardError::unsupported(format!("{}, a tensor of unknown purpose", tensor.name)));
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_blocks(sources: &Sources<'_, '_>) -> Result<(), ForwardError> {
    let blocks = sources.network.blocks();
    let stated = sources.config.num_layers.unwrap_or(blocks.len());
    // They ascend: the first that is not where its number says follows a gap.
    let missing = (0..stated).find(|index| blocks.get(*index) != Some(index));
    match missing {
        Some(index) => Err(ForwardError::missing("the checkpoint", format!("block {index} of {stated}"))),
        None if blocks.len() > stated => {
            Err(ForwardError::unsupported(format!("{} blocks where config.json states {stated}", blocks.len())))
        }
        None => Ok(()),
    }
}

fn check_layer_types(sources: &Sources<'_, '_>) -> Result<(), ForwardError> {
    let (types, blocks) = (&sources.config.layer_types, sources.network.blocks().len());
    let unknown = |kind: &&String| !matches!(kind.as_str(), "full_attention" | "sliding_attention");
    match types.iter().find(unknown) {
        Some(kind) => Err(ForwardError::unsupported(format!("layers of the type `{kind}`"))),
        None if types.is_empty() || types.len() == blocks => Ok(()),
        None => {
            let stated = format!("type for each of {blocks} blocks: `layer_types` has {}", types.len());
            Err(ForwardError::missing("config.json", stated))
        }
    }
}

/// Returns whether block `index` sees a sliding window.
pub(super) fn is_sliding(sources: &Sources<'_, '_>, index: usize) -> Result<bool, ForwardError> {
    let config = sources.config;
    if let Some(kind) = config.layer_types.get(index) {
        return Ok(kind == "sliding_attention");
    }
    Ok(match sources.family.math.window {
        Window::Full => false,
        Window::Every => config.sliding_window.is_some(),
        Window::Alternating { period } => {
            let stated = config.number("sliding_window_pattern")?.map(|period| period as usize);
            let period = stated.unwrap_or(period).max(1);
            config.sliding_window.is_some() && !(index + 1).is_multiple_of(period)
        }
        Window::FirstFull { period } => config.sliding_window.is_some() && !index.is_multiple_of(period),
        Window::FromLayer => {
            let from = config.number("max_window_layers")?.unwrap_or(f64::INFINITY);
            config.flag_or("use_sliding_window", false) && index as f64 >= from
        }
    })
}

/// Returns whether block `index` applies rotary embedding.
pub(super) fn is_rotary(sources: &Sources<'_, '_>, layers: RotaryLayers, index: usize) -> Result<bool, ForwardError> {
    match layers {
        RotaryLayers::All => Ok(true),
        RotaryLayers::SlidingIfAny if sources.config.sliding_window.is_none() => Ok(true),
        RotaryLayers::Sliding | RotaryLayers::SlidingIfAny => is_sliding(sources, index),
        RotaryLayers::Listed => {
            let listed = sources.json.get("no_rope_layers").and_then(Value::as_array).and_then(|list| list.get(index));
            let every = sources.config.number("no_rope_layer_interval")?.unwrap_or(4.0).max(1.0) as usize;
            Ok(listed.and_then(Value::as_u64).map_or(!(index + 1).is_multiple_of(every), |turns| turns != 0))
        }
    }
}
