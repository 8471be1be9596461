//! Architectures without a description whose module names are known well enough to list the modules to keep: the defaults
//! of AMD Quark's templates. Their linear layers are recognised by shape and name; adding a description moves a row into
//! its own file.

/// Model type, and globs on full module names.
const KEPT: &[(&str, &[&str])] = &[
    ("chatglm", &["transformer.output_layer"]),
    ("deepseek", &["lm_head", "*.gate"]),
    ("deepseek_vl_v2", &["lm_head", "model.sam_model*", "model.vision_model*", "model.projector*"]),
    ("gemma4_unified", &["*embed_vision*", "*vision_embedder*", "*embed_audio*", "*lm_head"]),
    (
        "glm5_next",
        &[
            "*self_attn*",
            "*mlp.gate",
            "*mlp.gate_proj",
            "*mlp.up_proj",
            "*mlp.down_proj",
            "*visual*",
            "*lm_head*",
            "model.language_model.layers.45.*",
        ],
    ),
    ("grok-1", &["lm_head", "*.gate"]),
    ("instella", &["lm_head"]),
    (
        "kimi_k3",
        &[
            "*block_sparse_moe.gate*",
            "*block_sparse_moe.routed_expert_down_proj*",
            "*block_sparse_moe.routed_expert_up_proj*",
            "*lm_head*",
            "*vision_tower*",
            "*mm_projector*",
            "*self_attention_res_proj*",
            "*mlp_res_proj*",
            "*output_attn_res_proj*",
            "*self_attn.*_conv1d*",
        ],
    ),
    ("muse_glimmer", &["*vision_tower*", "*vision_adapter*", "*vision_projection*", "lm_head"]),
    ("qwen", &["lm_head"]),
    (
        "qwen4_exp",
        &[
            "lm_head",
            "model.visual.*",
            "mtp.*",
            "*mlp.gate",
            "*shared_expert_gate*",
            "*.linear_attn.*",
            "*.self_attn.*",
            "*hyper_connection*",
            "*.ple.*",
        ],
    ),
    (
        "qwen4_exp_text",
        &[
            "lm_head",
            "model.visual.*",
            "mtp.*",
            "*mlp.gate",
            "*shared_expert_gate*",
            "*.linear_attn.*",
            "*.self_attn.*",
            "*hyper_connection*",
            "*.ple.*",
        ],
    ),
];

/// The modules to keep by default in an architecture without a description, if any are known. The language model of a multimodal
/// architecture (`kimi_k3_text`) keeps the same layers alone as inside it.
pub fn kept_by_default(model_type: &str) -> Option<&'static [&'static str]> {
    let row = |name: &str| KEPT.iter().find(|(row, _)| *row == name).map(|(_, globs)| *globs);
    row(model_type).or_else(|| row(model_type.strip_suffix("_text")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::FAMILIES;

    #[test]
    fn text_only_variant_keeps_the_same_modules() {
        assert!(kept_by_default("kimi_k3_text").is_some_and(|kept| Some(kept) == kept_by_default("kimi_k3")));
        assert!(kept_by_default("unheard_of_text").is_none());
    }

    #[test]
    fn kept_table_is_sorted_and_excludes_described_families() {
        assert!(KEPT.is_sorted_by(|a, b| a.0 < b.0));
        let described = |name: &str| FAMILIES.iter().any(|family| family.model_types.contains(&name));
        let both: Vec<_> = KEPT.iter().filter(|(name, _)| described(name)).collect();
        assert!(both.is_empty(), "{both:?}");
        assert!(KEPT.iter().all(|(_, globs)| !globs.is_empty()));
    }
}
