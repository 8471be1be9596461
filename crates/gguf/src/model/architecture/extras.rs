//! Metadata that only some architectures have.

use crate::model::metadata::{Facts, count, dense_prefix};
use crate::model::rope;
use kvant_container::gguf::Metadata;
use kvant_model::model_config::ConfigError;

type Result = std::result::Result<(), ConfigError>;

/// The probability function of a router's logits (`llama_expert_gating_func_type`).
const SOFTMAX: u32 = 1;
const SIGMOID: u32 = 2;
/// Softmax over the chosen experts alone.
const SOFTMAX_OF_CHOSEN: u32 = 3;

/// The root of softplus (DeepSeek V4).
const SQRT_SOFTPLUS: u32 = 4;

/// Nothing.
pub(crate) fn none(_: &Facts<'_>, _: &mut Metadata) -> Result {
    Ok(())
}

pub(crate) fn cohere(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    // Models are trained on a longer context than `max_position_embeddings` states.
    metadata.set_some(facts.key("context_length"), facts.size("model_max_length")?);
    metadata.set(facts.key("logit_scale"), facts.float("logit_scale")?.unwrap_or(1.0));
    metadata.set(facts.key("rope.scaling.type"), "none");
    Ok(())
}

pub(crate) fn cohere2(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    cohere(facts, metadata)?;
    metadata
        .set(facts.key("context_length"), count(facts.need(facts.config.max_positions, "max_position_embeddings")?));
    window(facts, metadata)
}

/// Experts are chosen by their logits, whose probabilities are computed afterwards.
pub(crate) fn cohere2_moe(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let config = facts.config;
    cohere2(facts, metadata)?;
    metadata.set(facts.key("attention.sliding_window_pattern"), facts.slides());
    routed(facts, metadata, SIGMOID)?;
    let width = one_width(facts);
    metadata.set_some(facts.key("feed_forward_length"), config.dense_intermediate_size.or(width).map(count));
    let is_sigmoid = config.text("expert_selection_fn").is_none_or(|name| name == "sigmoid");
    metadata.set(facts.key("expert_gating_func"), if is_sigmoid { SIGMOID } else { SOFTMAX_OF_CHOSEN });
    let shared = config.experts.as_ref().and_then(|experts| width?.checked_mul(experts.shared_count.unwrap_or(0)));
    metadata.set_some(facts.key("expert_shared_feed_forward_length"), shared.filter(|width| *width > 0).map(count));
    Ok(())
}

/// Its loader wants a bound on queries, keys and values.
pub(crate) fn dbrx(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let clip = facts.need(facts.config.clip_qkv, "clip_qkv")?;
    metadata.set(facts.key("attention.clamp_kqv"), clip as f32);
    Ok(())
}

/// The length of the sliding window, and the layers that have it.
fn windows(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    window(facts, metadata)?;
    metadata.set(facts.key("attention.sliding_window_pattern"), facts.slides());
    Ok(())
}

/// The length of the sliding window, which must be there.
fn window(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let window = facts.need(facts.config.sliding_window, "sliding_window")?;
    metadata.set(facts.key("attention.sliding_window"), count(window));
    Ok(())
}

/// The width of heads, which config.json states beside the hidden size.
fn head_widths(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let head = count(facts.head_dim()?);
    metadata.set(facts.key("attention.key_length"), head.clone());
    metadata.set(facts.key("attention.value_length"), head);
    Ok(())
}

pub(crate) fn gemma(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    head_widths(facts, metadata)?;
    let (attention, logits) = (facts.config.attention_softcap, facts.config.logit_softcap);
    metadata.set_some(facts.key("attn_logit_softcapping"), attention.map(|cap| cap as f32));
    metadata.set_some(facts.key("final_logit_softcapping"), logits.map(|cap| cap as f32));
    metadata.set_some(facts.key("attention.sliding_window"), facts.config.sliding_window.map(count));
    Ok(())
}

pub(crate) fn gemma3(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    gemma(facts, metadata)?;
    let base = facts.config.rope.main.theta.unwrap_or(1_000_000.0);
    metadata.set(facts.key("rope.freq_base"), base as f32);
    Ok(())
}

/// Full layers have heads of another width, all components of which turn; how fast is in [`rope::factors`].
pub(crate) fn gemma4(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let config = facts.config;
    window(facts, metadata)?;
    let slides = facts.slides();
    metadata.set_some(facts.key("final_logit_softcapping"), config.logit_softcap.map(|cap| cap as f32));
    layer_inputs(facts, metadata)?;
    let (full, local) = (facts.full_head_dim()?, facts.head_dim()?);
    for (end, width) in [("", full), ("_swa", local)] {
        metadata.set(facts.key(&format!("attention.key_length{end}")), count(width));
        metadata.set(facts.key(&format!("attention.value_length{end}")), count(width));
    }
    let sliding = config.rope.sliding.as_ref().unwrap_or(&config.rope.main);
    metadata.set(facts.key("rope.dimension_count"), count(full));
    metadata.set(facts.key("rope.dimension_count_swa"), count(sliding.turning_components(local, 1.0)));
    let keys = facts.need(config.num_kv_heads(), "num_key_value_heads")?;
    let of_full = facts.size("num_global_key_value_heads")?.map(|count| count as usize);
    let of_full = of_full.filter(|count| *count > 0 && config.flag_or("attention_k_eq_v", false));
    let heads = slides.iter().enumerate().map(|(block, slides)| {
        let own = config.of_layer(block, "num_key_value_heads");
        let usual = if *slides { keys } else { of_full.unwrap_or(keys) };
        u32::try_from(own.unwrap_or(usual)).unwrap_or(u32::MAX)
    });
    metadata.set(facts.key("attention.head_count_kv"), heads.collect::<Vec<u32>>());
    metadata.set(facts.key("attention.sliding_window_pattern"), slides);
    if let Some(experts) = &config.experts {
        expert_width(facts, metadata, experts.intermediate_size)?;
    }
    Ok(())
}

/// The widths of inputs of layers, and how many layers at the end take keys and values of others.
fn layer_inputs(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let width = facts.need(facts.size("hidden_size_per_layer_input")?, "hidden_size_per_layer_input")?;
    let sharing = facts.need(facts.size("num_kv_shared_layers")?, "num_kv_shared_layers")?;
    metadata.set(facts.key("embedding_length_per_layer_input"), width);
    metadata.set(facts.key("attention.shared_kv_layers"), sharing);
    Ok(())
}

/// What else its graph computes, it computes in one way: see `expected.rs`.
pub(crate) fn gemma3n(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    window(facts, metadata)?;
    layer_inputs(facts, metadata)?;
    head_widths(facts, metadata)?;
    metadata.set(facts.key("attention.sliding_window_pattern"), facts.slides());
    Ok(())
}

pub(crate) fn gpt2(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    metadata.set_some(facts.key("context_length"), facts.size("n_ctx")?);
    Ok(())
}

/// Returns whether attention and feed-forward read the same stream.
pub(crate) fn parallel(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let residual = facts.family.math.residual.resolve(facts.config);
    metadata.set(facts.key("use_parallel_residual"), residual == kvant_model::family::Residual::Parallel);
    Ok(())
}

pub(crate) fn gpt_oss(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    window(facts, metadata)?;
    expert_width(facts, metadata, facts.config.intermediate_sizes.first().copied())
}

/// The width of one routed expert.
fn expert_width(facts: &Facts<'_>, metadata: &mut Metadata, width: Option<usize>) -> Result {
    let width = facts.need(width, "moe_intermediate_size")?;
    metadata.set(facts.key("expert_feed_forward_length"), count(width));
    Ok(())
}

pub(crate) fn qwen_moe(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let Some(experts) = &facts.config.experts else { return Ok(()) };
    metadata.set_some(facts.key("expert_feed_forward_length"), experts.intermediate_size.map(count));
    let shared = experts.shared_intermediate_size.map(count);
    metadata.set_some(facts.key("expert_shared_feed_forward_length"), shared);
    Ok(())
}

pub(crate) fn granite(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    for (key, name) in [
        ("attention_multiplier", "attention.scale"),
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
    ] {
        metadata.set_some(facts.key(name), facts.float(key)?);
    }
    metadata.set(facts.key("logit_scale"), facts.float("logits_scaling")?.unwrap_or(1.0));
    metadata.set_some(facts.key("expert_shared_feed_forward_length"), facts.size("shared_intermediate_size")?);
    Ok(())
}

/// One factor on all residuals; see `expected.rs`.
pub(crate) fn minimax_01(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    metadata.set(facts.key("residual_scale"), facts.float("mlp_alpha_factor")?.unwrap_or(1.0));
    let recurrent: Vec<bool> = (0..facts.blocks).map(|block| facts.is_recurrent(block)).collect();
    metadata.set(facts.key("attention.recurrent_layers"), recurrent);
    Ok(())
}

pub(crate) fn minimax_m2(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    metadata.set(facts.key("expert_gating_func"), SIGMOID);
    expert_width(facts, metadata, facts.config.intermediate_sizes.first().copied())
}

/// The slopes of biases on scores are those of all published models.
pub(crate) fn mpt(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    metadata.set_some(facts.key("attention.clamp_kqv"), facts.config.clip_qkv.map(|clip| clip as f32));
    metadata.set(facts.key("attention.max_alibi_bias"), 8f32);
    Ok(())
}

pub(crate) fn nemotron(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let eps = facts.need(facts.config.norm_eps, "norm_eps")?;
    metadata.set(facts.key("attention.layer_norm_epsilon"), eps as f32);
    if facts.config.rope.main.factor.is_none() {
        metadata.set(facts.key("rope.scaling.type"), "none");
    }
    Ok(())
}

pub(crate) fn olmo(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    metadata.set(facts.key("attention.layer_norm_epsilon"), 1e-5f32);
    metadata.set_some(facts.key("attention.clamp_kqv"), facts.float("clip_qkv")?);
    Ok(())
}

pub(crate) fn olmo3(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    window(facts, metadata)?;
    let usual = || (0..facts.blocks).map(|block| (block + 1) % 4 != 0).collect();
    metadata.set(facts.key("attention.sliding_window_pattern"), facts.sliding_layers().unwrap_or_else(usual));
    Ok(())
}

pub(crate) fn phi(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    metadata.set("tokenizer.ggml.add_bos_token", false);
    metadata.set_some(facts.key("feed_forward_length"), facts.config.intermediate_sizes.first().map(|n| count(*n)));
    Ok(())
}

/// Sizes of Mamba 2 mixers.
fn mamba2_sizes(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let mamba = facts.need(facts.config.mamba.as_ref(), "mamba_n_heads")?;
    for (key, value) in [
        ("ssm.conv_kernel", mamba.kernel),
        ("ssm.inner_size", facts.need(mamba.inner(), "mamba_d_head")?),
        ("ssm.state_size", mamba.state),
        ("ssm.time_step_rank", mamba.heads),
        ("ssm.group_count", mamba.groups),
    ] {
        metadata.set(facts.key(key), count(value));
    }
    Ok(())
}

/// Heads of keys of each block, none in those without attention.
fn heads_by_block(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let keys = facts.need(facts.config.num_kv_heads(), "num_key_value_heads")?;
    let of_block = |block: usize| {
        let attends = !facts.is_recurrent(block) && !facts.is_feed_forward(block);
        u32::try_from(if attends { keys } else { 0 }).unwrap_or(u32::MAX)
    };
    metadata.set(facts.key("attention.head_count_kv"), (0..facts.blocks).map(of_block).collect::<Vec<u32>>());
    Ok(())
}

/// The small number under the root of norms under the name of RMS norms, whatever config.json calls it.
fn rms_epsilon(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let eps = facts.need(facts.config.norm_eps, "rms_norm_eps")?;
    metadata.set(facts.key("attention.layer_norm_rms_epsilon"), eps as f32);
    Ok(())
}

pub(crate) fn mamba2(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    mamba2_sizes(facts, metadata)?;
    rms_epsilon(facts, metadata)
}

pub(crate) fn falcon_h1(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    mamba2_sizes(facts, metadata)
}

/// Rotary embeddings are on or off in the whole model.
pub(crate) fn granite_hybrid(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    granite(facts, metadata)?;
    if facts.config.experts.is_none() {
        metadata.set_some(facts.key("feed_forward_length"), facts.size("shared_intermediate_size")?);
    }
    mamba2_sizes(facts, metadata)?;
    heads_by_block(facts, metadata)?;
    metadata.set(facts.key("rope.scaling.finetuned"), facts.rope_dim()?.is_some());
    Ok(())
}

/// Rotary embeddings turn in all blocks with attention, as many components of a head as `rope.dimension_count` says.
pub(crate) fn bamba(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    mamba2_sizes(facts, metadata)?;
    heads_by_block(facts, metadata)?;
    metadata.set(facts.key("rope.scaling.finetuned"), true);
    Ok(())
}

/// Sizes of Mamba mixers.
fn mamba1_sizes(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let mamba = facts.need(facts.config.mamba1.as_ref(), "mamba_d_state")?;
    for (key, value) in [
        ("ssm.conv_kernel", mamba.kernel),
        ("ssm.inner_size", mamba.inner),
        ("ssm.state_size", mamba.state),
        ("ssm.time_step_rank", mamba.rank),
    ] {
        metadata.set(facts.key(key), count(value));
    }
    Ok(())
}

pub(crate) fn jamba(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    mamba1_sizes(facts, metadata)?;
    heads_by_block(facts, metadata)
}

pub(crate) fn lfm2(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let kernel = facts.need(facts.size("conv_L_cache")?, "conv_L_cache")?;
    metadata.set(facts.key("shortconv.l_cache"), kernel);
    heads_by_block(facts, metadata)
}

pub(crate) fn lfm2_moe(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    lfm2(facts, metadata)?;
    metadata.set(facts.key("leading_dense_block_count"), count(dense_prefix(facts.config)));
    metadata.set(facts.key("expert_gating_func"), SIGMOID);
    expert_width(facts, metadata, facts.config.experts.as_ref().and_then(|experts| experts.intermediate_size))
}

/// Blocks have one branch each: the widths say which have a feed-forward network, or experts.
pub(crate) fn nemotron_h(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    mamba2_sizes(facts, metadata)?;
    heads_by_block(facts, metadata)?;
    let experts = facts.config.experts.as_ref().filter(|_| facts.architecture.name == "nemotron_h_moe");
    let width = match experts {
        Some(experts) => experts.intermediate_size,
        None => facts.config.intermediate_sizes.first().copied(),
    };
    let width = u32::try_from(width.unwrap_or(0)).unwrap_or(u32::MAX);
    let of_block = |block: usize| if facts.is_feed_forward(block) { width } else { 0 };
    metadata.set(facts.key("feed_forward_length"), (0..facts.blocks).map(of_block).collect::<Vec<u32>>());
    let eps = facts.need(facts.config.norm_eps, "layer_norm_epsilon")?;
    metadata.set(facts.key("attention.layer_norm_epsilon"), eps as f32);
    if let Some(experts) = experts {
        routed(facts, metadata, SIGMOID)?;
        metadata.set(facts.key("expert_shared_count"), count(experts.shared_count.unwrap_or(1)));
        let shared = experts.shared_intermediate_size.map(count);
        metadata.set_some(facts.key("expert_shared_feed_forward_length"), shared);
    }
    Ok(())
}

/// How many components of a head turn by each of three positions, which are the same in texts; the last is that of none.
fn sections(facts: &Facts<'_>, metadata: &mut Metadata, usual: [u32; 3]) {
    let stated = ["rope_parameters", "rope_scaling"].iter().find_map(|key| {
        facts.config.stated().get(*key)?.get("mrope_section")?.as_array().map(|sizes| {
            sizes.iter().map(|size| size.as_u64().and_then(|size| u32::try_from(size).ok()).unwrap_or(0)).collect()
        })
    });
    let mut sizes: Vec<u32> = stated.unwrap_or_else(|| usual.to_vec());
    sizes.resize(4, 0);
    metadata.set(facts.key("rope.dimension_sections"), sizes);
}

pub(crate) fn qwen3_vl(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    sections(facts, metadata, [24, 20, 20]);
    // Layers of the part for images whose outputs are added to the first layers of this one.
    let vision = facts.config.stated().get("vision_config").and_then(|vision| vision.get("deepstack_visual_indexes"));
    let layers = vision.and_then(|layers| layers.as_array()).map_or(0, Vec::len);
    metadata.set(facts.key("n_deepstack_layers"), count(layers));
    Ok(())
}

pub(crate) fn qwen3_vl_moe(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    qwen3_vl(facts, metadata)?;
    qwen_moe(facts, metadata)
}

/// Gated delta nets in the words of state-space layers.
fn delta_sizes(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let delta = facts.need(facts.config.delta.as_ref(), "linear_num_key_heads")?;
    for (key, value) in [
        ("ssm.conv_kernel", delta.kernel),
        ("ssm.state_size", delta.key_dim),
        ("ssm.group_count", delta.key_heads),
        ("ssm.time_step_rank", delta.value_heads),
        ("ssm.inner_size", facts.need(delta.values(), "linear_value_head_dim")?),
    ] {
        metadata.set(facts.key(key), count(value));
    }
    let recurrent: Vec<bool> = (0..facts.blocks).map(|block| facts.is_recurrent(block)).collect();
    metadata.set(facts.key("attention.recurrent_layers"), recurrent);
    metadata.set(facts.key("full_attention_interval"), facts.size("full_attention_interval")?.unwrap_or(4));
    Ok(())
}

pub(crate) fn qwen3_next(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    qwen_moe(facts, metadata)?;
    delta_sizes(facts, metadata)
}

pub(crate) fn qwen3_5(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    sections(facts, metadata, [11, 11, 10]);
    delta_sizes(facts, metadata)
}

pub(crate) fn qwen3_5_moe(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    qwen3_5(facts, metadata)?;
    qwen_moe(facts, metadata)
}

/// A window of zero distinguishes Phi-4 from Phi-3.
pub(crate) fn phi3(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let config = facts.config;
    let context = facts.need(config.max_positions, "max_position_embeddings")?;
    let original = config.rope.main.original_max_positions.unwrap_or(context);
    metadata.set(facts.key("rope.scaling.original_context_length"), count(original));
    metadata.set(facts.key("attention.sliding_window"), count(config.sliding_window.unwrap_or(0)));
    if !config.rope.main.long_factor.is_empty() {
        let factor = rope::long_attention_factor(context, original);
        metadata.set(facts.key("rope.scaling.attn_factor"), factor);
    }
    Ok(())
}

/// Shared settings of mixtures of experts after DeepSeek.
fn routed(facts: &Facts<'_>, metadata: &mut Metadata, gating: u32) -> Result {
    let Some(experts) = &facts.config.experts else { return Ok(()) };
    let normalises = facts.family.moe.is_some_and(|moe| moe.rule.normalises_by_default());
    metadata.set(facts.key("leading_dense_block_count"), count(dense_prefix(facts.config)));
    metadata.set(facts.key("expert_shared_count"), count(experts.shared_count.unwrap_or(0)));
    metadata.set_some(facts.key("expert_weights_scale"), experts.scale.map(|scale| scale as f32));
    metadata.set(facts.key("expert_weights_norm"), experts.normalise.unwrap_or(normalises));
    metadata.set(facts.key("expert_gating_func"), gating);
    // Where `intermediate_size` is the width of experts, there may be another key for dense networks.
    let width = experts.intermediate_size.or(facts.config.dense_intermediate_size.and(one_width(facts)));
    expert_width(facts, metadata, width)
}

/// The width of feed-forward networks, where it is one for all blocks.
fn one_width(facts: &Facts<'_>) -> Option<usize> {
    facts.config.intermediate_sizes.first().copied()
}

pub(crate) fn sigmoid_routed(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    routed(facts, metadata, SIGMOID)
}

pub(crate) fn afmoe(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    sigmoid_routed(facts, metadata)?;
    window(facts, metadata)
}

/// Full layers have no rotary embeddings.
pub(crate) fn exaone_moe(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    windows(facts, metadata)?;
    sigmoid_routed(facts, metadata)?;
    shared_width(facts, metadata);
    metadata.set(facts.key("rope.scaling.type"), "none");
    Ok(())
}

/// The width of all experts that every token passes, where they are as wide as routed ones.
fn shared_width(facts: &Facts<'_>, metadata: &mut Metadata) {
    let experts = facts.config.experts.as_ref();
    let width = experts.and_then(|experts| experts.intermediate_size?.checked_mul(experts.shared_count.unwrap_or(1)));
    metadata.set_some(facts.key("expert_shared_feed_forward_length"), width.map(count));
}

pub(crate) fn hy_v3(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    sigmoid_routed(facts, metadata)?;
    shared_width(facts, metadata);
    let normalise = facts.config.flag_or("route_norm", true);
    metadata.set(facts.key("expert_weights_norm"), normalise);
    Ok(())
}

/// Heads of queries differ by block, and a part of each head turns, another in blocks with windows.
pub(crate) fn laguna(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let config = facts.config;
    let heads = (0..facts.blocks).map(|block| config.heads_of_layer(block).or(config.num_heads).unwrap_or(0));
    let heads: Vec<u32> = heads.map(|heads| u32::try_from(heads).unwrap_or(u32::MAX)).collect();
    metadata.set(facts.key("attention.head_count"), heads);
    sigmoid_routed(facts, metadata)?;
    metadata.set(facts.key("expert_shared_count"), count(1));
    metadata.set(facts.key("expert_weights_norm"), true);
    let shared = config.experts.as_ref().and_then(|experts| experts.shared_intermediate_size);
    metadata.set_some(facts.key("expert_shared_feed_forward_length"), shared.map(count));
    if config.sliding_window.is_some() {
        windows(facts, metadata)?;
    }
    if let Some(sliding) = &config.rope.sliding {
        let turning = sliding.turning_components(facts.head_dim()?, 1.0);
        metadata.set(facts.key("rope.dimension_count_swa"), count(turning));
    }
    Ok(())
}

/// Mamba, whose steps and states Falcon Mamba norms.
pub(crate) fn mamba(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    mamba1_sizes(facts, metadata)?;
    metadata.set(facts.key("ssm.dt_b_c_rms"), facts.family.name == "falcon_mamba");
    rms_epsilon(facts, metadata)
}

pub(crate) fn bloom(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    metadata.set_some(facts.key("context_length"), facts.size("seq_length")?);
    Ok(())
}

pub(crate) fn ernie4_5_moe(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let Some(experts) = &facts.config.experts else { return Ok(()) };
    metadata.set(facts.key("interleave_moe_layer_step"), facts.size("moe_layer_interval")?.unwrap_or(1));
    metadata.set(facts.key("leading_dense_block_count"), count(dense_prefix(facts.config)));
    let shared = experts.shared_count.unwrap_or(0);
    metadata.set(facts.key("expert_shared_count"), count(shared));
    let width = experts.intermediate_size.and_then(|width| width.checked_mul(shared));
    metadata.set_some(facts.key("expert_shared_feed_forward_length"), width.map(count));
    expert_width(facts, metadata, experts.intermediate_size)
}

/// Models without windows state none.
pub(crate) fn exaone4(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    if facts.config.sliding_window.is_some() {
        windows(facts, metadata)?;
    }
    Ok(())
}

pub(crate) fn hunyuan_moe(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let width = facts.config.intermediate_sizes.first().copied();
    metadata.set_some(facts.key("expert_shared_feed_forward_length"), width.map(count));
    expert_width(facts, metadata, width)
}

/// Layers with windows have twice the key heads. The graph multiplies what attention gives by the factor on values.
pub(crate) fn mimo2(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    window(facts, metadata)?;
    let slides = facts.slides();
    let keys = facts.need(facts.config.num_kv_heads(), "num_key_value_heads")?;
    let heads: Vec<u32> =
        slides.iter().map(|slides| u32::try_from(if *slides { 2 * keys } else { keys }).unwrap_or(u32::MAX)).collect();
    metadata.set(facts.key("attention.head_count_kv"), heads);
    metadata.set(facts.key("attention.sliding_window_pattern"), slides);
    metadata.set_some(facts.key("attention.value_length"), facts.config.value_dim().map(count));
    if let Some((key, usual)) = facts.family.math.value_scale {
        let absent = if facts.config.states(key) { 1.0 } else { usual as f32 };
        metadata.set(facts.key("attention.value_scale"), facts.float(key)?.unwrap_or(absent));
    }
    expert_width(facts, metadata, facts.config.experts.as_ref().and_then(|experts| experts.intermediate_size))
}

/// Blocks with experts come at intervals. Windows are chunks, which the graph has of one length.
pub(crate) fn llama4(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let width = facts.config.intermediate_sizes.first().copied();
    metadata.set(facts.key("feed_forward_length"), count(facts.config.dense_intermediate_size.or(width).unwrap_or(0)));
    metadata.set(facts.key("interleave_moe_layer_step"), facts.size("interleave_moe_layer_step")?.unwrap_or(1));
    expert_width(facts, metadata, width)
}

pub(crate) fn mistral4(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    deepseek2(facts, metadata)?;
    mistral3(facts, metadata)?;
    if let Some(original) = facts.config.rope.main.original_max_positions {
        metadata.set(facts.key("attention.temperature_length"), count(original));
    }
    Ok(())
}

/// Queries grow with their position beyond the original context.
pub(crate) fn mistral3(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let rope = &facts.config.rope.main;
    if let Some(growth) = rope.query_beta {
        let original = facts.need(rope.original_max_positions, "original_max_position_embeddings")?;
        metadata.set(facts.key("rope.scaling.original_context_length"), count(original));
        metadata.set(facts.key("attention.temperature_scale"), growth as f32);
    }
    Ok(())
}

/// What chooses the keys that a token attends to, in every block or in those that config.json lists.
pub(crate) fn deepseek32(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    deepseek2(facts, metadata)?;
    for (key, name) in [
        ("index_n_heads", "attention.indexer.head_count"),
        ("index_head_dim", "attention.indexer.key_length"),
        ("index_topk", "attention.indexer.top_k"),
    ] {
        metadata.set(facts.key(name), facts.need(facts.size(key)?, key)?);
    }
    if facts.architecture.name == "glm-dsa" {
        let is_full = |block| facts.config.item("indexer_types", block).is_none_or(|kind| kind == "full");
        metadata.set(facts.key("attention.indexer.types"), (0..facts.blocks).map(is_full).collect::<Vec<bool>>());
    }
    Ok(())
}

/// Kimi delta attention with bounded decays, and bounds on the activations of experts where config.json states any: 0 for none.
pub(crate) fn bailing_hybrid(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    kimi_linear(facts, metadata)?;
    shared_width(facts, metadata);
    metadata.set(facts.key("kda.safe_gate"), true);
    metadata.set(facts.key("kda.gate_lower_bound"), facts.float("kda_lower_bound")?.unwrap_or(-5.0));
    for (key, name) in
        [("expert_swiglu_limit_list", "swiglu_clamp_exp"), ("share_expert_swiglu_limit_list", "swiglu_clamp_shexp")]
    {
        if facts.config.states(key) {
            let of_block = |block| facts.config.item(key, block).and_then(|limit| limit.as_f64()).unwrap_or(0.0) as f32;
            metadata.set(facts.key(name), (0..facts.blocks).map(of_block).collect::<Vec<f32>>());
        }
    }
    Ok(())
}

/// Kimi delta attention has no keys in the cache, and latent attention has one head of them. The components of queries and keys behind the
/// latent count as those that turn, also where none do (Kimi Linear).
pub(crate) fn kimi_linear(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    routed(facts, metadata, SIGMOID)?;
    let latent = facts.need(facts.config.latent.as_ref(), "kv_lora_rank")?;
    let delta = facts.need(facts.config.delta.as_ref(), "linear_attn_config")?;
    for (key, value) in [
        ("attention.kv_lora_rank", latent.key_value_rank),
        ("attention.key_length", latent.key_value_rank + latent.rope_dim),
        ("attention.key_length_mla", latent.nope_dim + latent.rope_dim),
        ("attention.value_length_mla", latent.value_dim),
        ("rope.dimension_count", latent.rope_dim),
        ("ssm.conv_kernel", delta.kernel),
        ("kda.head_dim", delta.key_dim),
    ] {
        metadata.set(facts.key(key), count(value));
    }
    let heads = (0..facts.blocks).map(|block| u32::from(!facts.is_recurrent(block)));
    metadata.set(facts.key("attention.head_count_kv"), heads.collect::<Vec<u32>>());
    Ok(())
}

/// Streams, compressed keys and the index that chooses among them. Without a ratio, a block has no compressed keys.
pub(crate) fn deepseek4(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    const LIMIT: f32 = 10.0;
    let config = facts.config;
    let compressed = facts.need(config.compressed.as_ref(), "compress_ratios")?;
    routed(facts, metadata, SQRT_SOFTPLUS)?;
    window(facts, metadata)?;
    head_widths(facts, metadata)?;
    for (key, value) in [
        ("attention.head_count_kv", 1),
        ("attention.q_lora_rank", compressed.query_rank),
        ("attention.indexer.head_count", compressed.index_heads),
        ("attention.indexer.key_length", compressed.index_width),
        ("attention.indexer.top_k", compressed.index_most),
        ("attention.output_group_count", compressed.output_groups),
        ("attention.output_lora_rank", compressed.output_rank),
        ("hyper_connection.count", compressed.streams),
        ("hyper_connection.sinkhorn_iterations", compressed.iterations),
        ("hash_layer_count", (0..facts.blocks).filter(|block| compressed.hashes(*block)).count()),
        ("embedding_length_out", compressed.streams.saturating_mul(config.hidden_size.unwrap_or(0))),
    ] {
        metadata.set(facts.key(key), count(value));
    }
    metadata.set(facts.key("hyper_connection.epsilon"), compressed.stream_eps as f32);
    let ratio = |block: usize| config.layer_types.get(block).and_then(|kind| compressed.rate(kind)).unwrap_or(0);
    let ratios = (0..facts.blocks).map(|block| u32::try_from(ratio(block)).unwrap_or(u32::MAX));
    metadata.set(facts.key("attention.compress_ratios"), ratios.collect::<Vec<u32>>());
    let limits = vec![facts.float("swiglu_limit")?.unwrap_or(LIMIT); facts.blocks];
    metadata.set(facts.key("swiglu_clamp_exp"), limits.clone());
    metadata.set(facts.key("swiglu_clamp_shexp"), limits);
    let base = |rope: &kvant_model::model_config::RopeParameters, usual: f64| rope.theta.unwrap_or(usual) as f32;
    metadata.set(facts.key("attention.compress_rope_freq_base"), base(&config.rope.main, 160_000.0));
    let windows = config.rope.sliding.as_ref().unwrap_or(&config.rope.main);
    metadata.set(facts.key("rope.freq_base"), base(windows, 10_000.0));
    Ok(())
}

/// Multi-head latent attention becomes attention with one key/value head: `[c_kv; k_rope]`.
pub(crate) fn deepseek2(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let softmax = ["deepseek_v2", "mistral4"].contains(&facts.family.name);
    routed(facts, metadata, if softmax { SOFTMAX } else { SIGMOID })?;
    let latent = facts.need(facts.config.latent.as_ref(), "kv_lora_rank")?;
    for (key, value) in [
        ("attention.head_count_kv", 1),
        ("attention.kv_lora_rank", latent.key_value_rank),
        ("attention.key_length", latent.key_value_rank + latent.rope_dim),
        ("attention.value_length", latent.key_value_rank),
        ("attention.key_length_mla", latent.nope_dim + latent.rope_dim),
        ("attention.value_length_mla", latent.value_dim),
    ] {
        metadata.set(facts.key(key), count(value));
    }
    metadata.set_some(facts.key("attention.q_lora_rank"), latent.query_rank.map(count));
    let all_dims = facts.config.rope.main.mscale_all_dim;
    metadata.set_some(facts.key("rope.scaling.yarn_log_multiplier"), all_dims.map(|scale| 0.1 * scale as f32));
    Ok(())
}
