//! Hunyuan models with experts.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{EXPERTS, FUSED_EXPERTS};
use super::description::{Family, Moe};
use super::hunyuan_v1_dense;
use super::math::Routing;
use super::role::Role::{Down, Gate, Router, Up};

/// The description.
pub const FAMILY: Family = Family {
    name: "hunyuan_v1_moe",
    summary: "Hunyuan A13B: attention of the dense models, routed experts and one that all tokens pass",
    model_types: &["hunyuan_v1_moe"],
    architectures: &["HunYuanMoEV1ForCausalLM", "HunYuanMoEV1Model"],
    mlp: &[],
    moe: Some(Moe {
        routing: &[(Router, "mlp.gate.wg")],
        experts: &[EXPERTS, FUSED_EXPERTS],
        shared: &[
            (Gate, "mlp.shared_mlp.gate_proj"),
            (Up, "mlp.shared_mlp.up_proj"),
            (Down, "mlp.shared_mlp.down_proj"),
        ],
        rule: Routing::SoftmaxThenTop,
    }),
    keep: &["lm_head", "*.gate.wg"],
    ..hunyuan_v1_dense::FAMILY
};
