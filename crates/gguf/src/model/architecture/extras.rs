//! Metadata that only some architectures have.

use crate::model::metadata::{Facts, count};
use crate::model::rope;
use kvant_container::gguf::Metadata;
use kvant_model::model_config::ConfigError;

type Result = std::result::Result<(), ConfigError>;

/// The probability function of a router's logits (`llama_expert_gating_func_type`).
const SOFTMAX: u32 = 1;
const SIGMOID: u32 = 2;

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

/// The length of the sliding window, which must be there.
fn window(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let window = facts.need(facts.config.sliding_window, "sliding_window")?;
    metadata.set(facts.key("attention.sliding_window"), count(window));
    Ok(())
}

pub(crate) fn gemma(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let head = count(facts.head_dim()?);
    metadata.set(facts.key("attention.key_length"), head.clone());
    metadata.set(facts.key("attention.value_length"), head);
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

pub(crate) fn minimax_m2(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    metadata.set(facts.key("expert_gating_func"), SIGMOID);
    expert_width(facts, metadata, facts.config.intermediate_sizes.first().copied())
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
    metadata.set(facts.key("leading_dense_block_count"), count(experts.dense_prefix));
    metadata.set(facts.key("expert_shared_count"), count(experts.shared_count.unwrap_or(0)));
    metadata.set_some(facts.key("expert_weights_scale"), experts.scale.map(|scale| scale as f32));
    metadata.set(facts.key("expert_weights_norm"), experts.normalise.unwrap_or(false));
    metadata.set(facts.key("expert_gating_func"), gating);
    expert_width(facts, metadata, experts.intermediate_size)
}

pub(crate) fn glm4_moe(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    routed(facts, metadata, SIGMOID)
}

/// Multi-head latent attention becomes attention with one key/value head: `[c_kv; k_rope]`.
pub(crate) fn deepseek2(facts: &Facts<'_>, metadata: &mut Metadata) -> Result {
    let sigmoid = facts.family.name == "deepseek_v3";
    routed(facts, metadata, if sigmoid { SIGMOID } else { SOFTMAX })?;
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
