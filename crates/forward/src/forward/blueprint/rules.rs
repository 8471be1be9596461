//! Rules that some checkpoints have and the forward pass does not compute: refused by name.

use super::Sources;
use super::indexer::BLOCK_SPARSE;
use crate::forward::error::ForwardError;
use kvant_model::family::{
    Activation, Family, Indexer, Positions, Residual, Role, RotaryLayers, Window, attends_to_all, has_two_towers,
    is_feed_forward, is_recurrent,
};
use kvant_model::model_config::{HEAVY_ENTRIES, ModelConfig, SPARSE_ENTRIES};
use kvant_model::network::{Network, Place, Reason};

/// Booleans of config.json that enable unsupported features.
const REFUSED_FLAGS: &[&str] = &[
    "use_bidirectional_attention",
    "scale_attn_by_inverse_layer_idx",
    "add_cross_attention",
    "use_cross_attention",
    "is_encoder_decoder",
    "is_folding_model",
    "apply_residual_connection_post_layernorm",
    "moe_apply_router_weight_on_input",
    "router_bias",
    "add_adapter",
    "conv_pos_batch_norm",
];

/// What is asked of a family.
type FamilyTest = fn(&Family) -> bool;

/// Keys with a number other than 0 that change what is computed, and the rules with which it is.
const REFUSED_COUNTS: &[(&str, FamilyTest)] = &[
    ("hidden_size_per_layer_input", |family| family.trunk.layer_inputs.is_some()),
    ("num_kv_shared_layers", |family| family.math.shares_keys),
];

/// Keys with a value that change what is computed.
const REFUSED_VALUES: &[&str] = &["sliding_window_layers"];

pub(super) fn unknown_architecture(config: &ModelConfig, network: &Network) -> ForwardError {
    let name = config.architectures.first().or(config.model_types.first());
    let name = name.map_or("this architecture", String::as_str);
    match config.is_component {
        _ if has_two_towers(config) => ForwardError::TwoTowers { class: name.to_owned() },
        true => ForwardError::Component { class: name.to_owned() },
        false => {
            ForwardError::Undescribed { architecture: name.to_owned(), can_be_described: network.can_be_described() }
        }
    }
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
        Activation::ClampedSwiglu => check_limits(sources, &[("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)]),
        Activation::LimitedSilu => check_limits(sources, &[("swiglu_limit", 10.0)]),
        Activation::Xielu if !sources.family.parameters.iter().any(|path| path.ends_with("alpha_p")) => {
            Err(ForwardError::unsupported(format!("xIELU in {}", sources.family.name)))
        }
        _ => Ok(()),
    }
}

/// The numbers of the clamped SwiGLU are those of gpt-oss, or of DeepSeek V4.
fn check_limits(sources: &Sources<'_, '_>, limits: &[(&str, f64)]) -> Result<(), ForwardError> {
    for (key, computed) in limits {
        if let Some(other) = sources.config.number(key)?.filter(|stated| stated != computed) {
            return Err(ForwardError::unsupported(format!("`{key}` {other} of config.json")));
        }
    }
    Ok(())
}

fn check_flags(sources: &Sources<'_, '_>) -> Result<(), ForwardError> {
    let config = sources.config;
    // config.json of an encoder may be that of the encoder-decoder that it is from.
    let is_part = sources.family.encoder.is_some_and(|encoder| encoder.is_of_its_classes || encoder.decoder.is_some());
    let is_refused = |key: &&&str| config.flag_or(key, false) && !(is_part && **key == "is_encoder_decoder");
    let flag = REFUSED_FLAGS.iter().find(is_refused);
    let value = REFUSED_VALUES.iter().find(|key| config.number(key) != Ok(None));
    let clip = config.clip_qkv.filter(|_| !sources.family.math.clips).map(|_| &"clip_qkv");
    // GPT-2 scales attention unless disabled.
    let unscaled = (!config.flag_or("scale_attn_weights", true)).then_some(&"scale_attn_weights");
    // Attention with latents turns neighbours unless told otherwise.
    let halves = config.latent.is_some() && !config.flag_or("rope_interleave", true);
    let halves = halves.then_some(&"rope_interleave");
    let stated = |key: &str| config.number(key).is_ok_and(|count| count.is_some_and(|count| count != 0.0));
    let mut counts = REFUSED_COUNTS.iter().filter(|(_, computes)| !computes(sources.family));
    let count = counts.find(|(key, _)| stated(key)).map(|(key, _)| key);
    // Experts of LongCat Flash that compute nothing give what they read.
    let zero = config.text("zero_expert_type").filter(|kind| *kind != "identity").map(|_| &"zero_expert_type");
    let both_ways = config.text("use_bidirectional_attention").filter(|tokens| *tokens == "all");
    let both_ways = both_ways.map(|_| &"use_bidirectional_attention");
    // transformers 5 may save another base beside that of DBRX's attention.
    let turns = matches!(sources.positions_rule(), Positions::Rotary { .. }) && config.states("attn_config");
    let base = if turns { config.attention_number("rope_theta")? } else { None };
    let bases = base.filter(|base| Some(*base) != config.rope.main.theta).map(|_| &"attn_config.rope_theta");
    // Only the scores of DeepSeek V4 are roots.
    let scores = config.text("scoring_func").filter(|name| *name != "sqrtsoftplus");
    let scores = scores.filter(|_| sources.family.math.compressed_keys).map(|_| &"scoring_func");
    let masked = (sources.family.encoder.is_some() && config.flag_or("is_decoder", false)).then_some(&"is_decoder");
    match flag
        .or(masked)
        .or(bases)
        .or(scores)
        .or(value)
        .or(clip)
        .or(count)
        .or(zero)
        .or(both_ways)
        .or(unscaled)
        .or(halves)
    {
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
    let stated = sources.family.blocks_of(sources.config).unwrap_or(blocks.len());
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
    let (chunks, recurs) = (sources.family.math.window == Window::Chunks, sources.family.recurrent.is_some());
    let unknown = |kind: &&String| match kind.as_str() {
        "sliding_attention" => false,
        "chunked_attention" => !chunks,
        // transformers 5.23 has the second name.
        "deepseek_sparse_attention" | "indexed_attention" => {
            !matches!(sources.family.math.indexer, Some(Indexer::Keys(_)))
        }
        SPARSE_ENTRIES | HEAVY_ENTRIES => !sources.family.math.compressed_keys,
        BLOCK_SPARSE => !matches!(sources.family.math.indexer, Some(Indexer::Blocks(_))),
        kind if is_recurrent(kind) => !recurs,
        kind if is_feed_forward(kind) => sources.family.math.residual != Residual::Single,
        kind => !attends_to_all(kind),
    };
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
        Window::Full | Window::Chunks => false,
        Window::Every => config.sliding_window.is_some(),
        Window::Alternating { period } => {
            let stated = config.number("sliding_window_pattern")?.map(|period| period as usize);
            let period = stated.unwrap_or(period).max(1);
            config.sliding_window.is_some() && !(index + 1).is_multiple_of(period)
        }
        Window::FirstAndEvery { period } => {
            config.sliding_window.is_some() && index > 0 && !(index + 1).is_multiple_of(period)
        }
        Window::FirstFull { period } => config.sliding_window.is_some() && !index.is_multiple_of(period),
        Window::AllButEveryNth => {
            let stated = config.number("global_attn_every_n_layers")?.map(|period| period as usize);
            !index.is_multiple_of(stated.unwrap_or(3).max(1))
        }
        Window::FromLayer => {
            let from = config.number("max_window_layers")?.unwrap_or(f64::INFINITY);
            config.flag_or("use_sliding_window", false) && index as f64 >= from
        }
    })
}

/// The chunks that block `index` sees.
pub(super) fn chunk(sources: &Sources<'_, '_>, index: usize) -> Result<Option<usize>, ForwardError> {
    const KEY: &str = "attention_chunk_size";
    let stated = sources.config.number(KEY)?;
    if sources.family.math.window != Window::Chunks {
        return match stated {
            None => Ok(None),
            Some(_) => Err(ForwardError::unsupported(format!("`{KEY}` of config.json"))),
        };
    }
    let chunked = match sources.config.layer_types.get(index) {
        Some(kind) => kind == "chunked_attention",
        None => is_turned(sources, index)?,
    };
    let stated = stated.map(|size| size as usize).filter(|size| *size > 0);
    if chunked { sources.need(stated, KEY).map(Some) } else { Ok(None) }
}

/// Returns whether block `index` applies rotary embedding, if the model does.
pub(super) fn is_turned(sources: &Sources<'_, '_>, index: usize) -> Result<bool, ForwardError> {
    match sources.positions_rule() {
        Positions::Rotary { layers, .. } => is_rotary(sources, layers, index),
        _ => Ok(false),
    }
}

/// Returns whether block `index` applies rotary embedding.
pub(super) fn is_rotary(sources: &Sources<'_, '_>, layers: RotaryLayers, index: usize) -> Result<bool, ForwardError> {
    match layers {
        RotaryLayers::All => Ok(true),
        RotaryLayers::SlidingIfAny if sources.config.sliding_window.is_none() => Ok(true),
        RotaryLayers::Sliding | RotaryLayers::SlidingIfAny => is_sliding(sources, index),
        RotaryLayers::SlidingOrDense => {
            let mut linears = sources.network.linears().iter().filter(|linear| linear.block == Some(index));
            let dense = linears.all(|linear| linear.role != Role::Router);
            let pattern = sources.config.number("prefix_dense_sliding_window_pattern")?.unwrap_or(1.0);
            Ok(is_sliding(sources, index)? || dense && pattern == 1.0)
        }
        RotaryLayers::Listed => {
            let listed = sources.config.item("no_rope_layers", index);
            let every = sources.config.number("no_rope_layer_interval")?.unwrap_or(4.0).max(1.0) as usize;
            let turns = listed.and_then(|turns| turns.as_bool().or_else(|| Some(turns.as_u64()? != 0)));
            Ok(turns.unwrap_or(!(index + 1).is_multiple_of(every)))
        }
    }
}
