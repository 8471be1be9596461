//! OPT.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::{Family, Trunk};
use super::math::{Activation, ActivationRule, Math, Positions, Residual};
use super::role::NormSite::{AttentionInput, FeedForwardInput, Final};
use super::role::Role::{Down, Key, Output, ProjectIn, ProjectOut, Query, Up, Value};
use super::role::{NormKind, Orientation, RowOrder};

/// The description.
pub const FAMILY: Family = Family {
    name: "opt",
    summary: "OPT: learned positions, LayerNorm, plain MLP with ReLU",
    model_types: &["opt"],
    architectures: &["OPTForCausalLM", "OPTModel"],
    trunk: Trunk {
        path: "model.decoder",
        embedding: "embed_tokens",
        positions: Some("embed_positions"),
        other_embedding: None,
        layer_inputs: None,
        parameters: &[],
        blocks: "layers",
        norms: &[(Final, "final_layer_norm")],
        linears: &[(ProjectIn, "project_in"), (ProjectOut, "project_out")],
        heads: &["lm_head"],
    },
    attention: &[
        (Query, "self_attn.q_proj"),
        (Key, "self_attn.k_proj"),
        (Value, "self_attn.v_proj"),
        (Output, "self_attn.out_proj"),
    ],
    recurrent: None,
    mlp: &[(Up, "fc1"), (Down, "fc2")],
    moe: None,
    norms: &[(AttentionInput, "self_attn_layer_norm"), (FeedForwardInput, "final_layer_norm")],
    norm_kind: NormKind::LayerNorm,
    orientation: Orientation::OutIn,
    qkv_rows: RowOrder::Stacked,
    parameters: &[],
    extra: None,
    cross_attention: None,
    encoder: None,
    math: Math {
        activation: ActivationRule::Config(Activation::Relu),
        // The 350M checkpoint is post-norm.
        residual: Residual::PreNormIf("do_layer_norm_before", true),
        positions: Positions::Learned { offset: 2 },
        ..Math::LLAMA
    },
    keep: &["lm_head"],
    config_like: None,
    in_memory: &[],
};
