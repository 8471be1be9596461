//! Layers that engines make one of, and cuts for several devices.

use super::model::{Model, float, verdict};
use kvant_container::Dtype;
use kvant_formats::format::OutputFormat;
use kvant_formats::verify::Options;
use kvant_quant::finding::Severity;
use serde_json::json;

fn packed(scheme: &str) -> Model {
    Model::quantized(scheme, OutputFormat::COMPRESSED_TENSORS)
}

#[test]
fn siblings_must_be_quantized_alike() {
    let up = crate::common::weight("model.layers.0.mlp.up_proj.weight", Dtype::BF16, &[128, 64]);
    let one = packed("int8:channel+int8:channel!dynamic")
        .without("up_proj.weight_scale")
        .without("mlp.up_proj.weight")
        .with(up);
    let one = one.restated(|config| config["ignore"] = json!(["lm_head", "model.layers.0.mlp.up_proj"]));
    one.assert_error("fused-schemes", "up_proj", "gate_proj");
}

#[test]
fn siblings_must_share_the_global_scale() {
    let nvfp4 = packed("e2m1:g16:e4m3:f32");
    nvfp4.assert_healthy();
    nvfp4.edit("k_proj.weight_global_scale", |bytes| *bytes = float(3.0)).assert_error(
        "fused-scales",
        "k_proj.weight_global_scale",
        "take one of them",
    );
    let fp8 = packed("e4m3:tensor+e4m3:tensor!dynamic").edit("up_proj.weight_scale", |bytes| {
        *bytes = half::bf16::from_f32(2.0).to_le_bytes().to_vec();
    });
    fp8.assert_found(Severity::Note, "fused-scales", "up_proj.weight_scale", "the larger");
}

#[test]
fn groups_must_not_straddle_shards() {
    let over = |scheme: &str, ways: usize| {
        packed(scheme).verify_with(&Options { tensor_parallel: Some(ways), ..Options::default() })
    };
    // 2 heads, 64 input channels of o_proj, 128 of down_proj.
    let fits = over("int4:g32", 2);
    assert!(fits.passes(), "{:?}", fits.findings);
    assert_eq!(verdict(&fits, "vllm").tensor_parallel, [1, 2]);
    let wide = over("int4:g64", 2);
    let found: Vec<_> = wide.errors().map(|error| (error.check, error.place.as_str())).collect();
    assert_eq!(found, [("tensor-parallel", "model.layers.0.self_attn.o_proj")]);
    assert_eq!(verdict(&wide, "vllm").tensor_parallel, [1]);
    assert!(over("int4:g32", 4).errors().any(|error| error.place.contains("num_attention_heads")));
}

#[test]
fn common_device_counts_that_do_not_fit_give_a_note() {
    packed("int4:g64").assert_found(Severity::Note, "tensor-parallel", "o_proj", "over 2 devices");
}
