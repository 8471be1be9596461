//! Checkpoints as others write them: AWQ, GPTQ, fp8 of DeepSeek and Qwen.

use super::model::{Model, verdict};
use crate::common::{Tensor, encoded};
use kvant_container::Dtype;
use kvant_formats::verify::Loads;
use kvant_quant::finding::Severity;
use serde_json::{Value, json};

/// The linear layers of the block: name, output and input channels.
const LAYERS: [(&str, usize, usize); 7] = [
    ("self_attn.q_proj", 64, 64),
    ("self_attn.k_proj", 32, 64),
    ("self_attn.v_proj", 32, 64),
    ("self_attn.o_proj", 64, 64),
    ("mlp.gate_proj", 128, 64),
    ("mlp.up_proj", 128, 64),
    ("mlp.down_proj", 64, 128),
];

fn words(name: String, shape: [usize; 2], word: u32) -> Tensor {
    // Not all alike, as if they were codes of a layer.
    let word = |i: usize| word.rotate_left(i as u32 % 5).to_le_bytes();
    (name, Dtype::I32, shape.to_vec(), (0..shape[0] * shape[1]).flat_map(word).collect())
}

fn constant(name: String, shape: [usize; 2], word: u32) -> Tensor {
    (name, Dtype::I32, shape.to_vec(), word.to_le_bytes().repeat(shape[0] * shape[1]))
}

fn scales(name: String, dtype: Dtype, shape: &[usize]) -> Tensor {
    (name, dtype, shape.to_vec(), encoded(dtype, &vec![0.01; shape.iter().product()]))
}

fn made(config: Value, tensors: impl Fn(String, usize, usize) -> Vec<Tensor>) -> Model {
    let mut model = Model::float().configured(|all| all["quantization_config"] = config);
    for (name, rows, columns) in LAYERS {
        model = model.without(&format!("{name}.weight"));
        model.tensors.extend(tensors(format!("model.layers.0.{name}"), rows, columns));
    }
    model
}

fn awq(group: usize) -> Model {
    let config = json!({"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": true, "version": "gemm"});
    made(config, |module, rows, columns| {
        vec![
            words(format!("{module}.qweight"), [columns, rows / 8], 0x1234_5678),
            words(format!("{module}.qzeros"), [columns / 32, rows / 8], 0x8765_4321),
            scales(format!("{module}.scales"), Dtype::F16, &[columns / 32, rows]),
        ]
    })
}

fn gptq(symmetric: bool) -> Model {
    let config = json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": symmetric, "desc_act": false, "checkpoint_format": "gptq"});
    made(config, |module, rows, columns| {
        let groups: Vec<u8> = (0..columns).flat_map(|column| (column as i32 / 32).to_le_bytes()).collect();
        let zeros = format!("{module}.qzeros");
        let shape = [columns / 32, rows / 8];
        vec![
            words(format!("{module}.qweight"), [columns / 8, rows], 0x1234_5678),
            if symmetric { constant(zeros, shape, 0x7777_7777) } else { words(zeros, shape, 0x1234_5678) },
            scales(format!("{module}.scales"), Dtype::F16, &[columns / 32, rows]),
            (format!("{module}.g_idx"), Dtype::I32, vec![columns], groups),
        ]
    })
}

fn fp8(block: usize) -> Model {
    let config = json!({"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [block, block]});
    made(config, |module, rows, columns| {
        let codes = (0..rows * columns).map(|i| (i % 0x70) as u8).collect();
        vec![
            (format!("{module}.weight"), Dtype::F8_E4M3, vec![rows, columns], codes),
            scales(format!("{module}.weight_scale_inv"), Dtype::F32, &[rows.div_ceil(32), columns.div_ceil(32)]),
        ]
    })
}

#[test]
fn foreign_formats_verify() {
    awq(32).assert_healthy();
    gptq(true).assert_healthy();
    gptq(false).assert_healthy();
    fp8(32).assert_healthy();
}

/// Blocks of 64x64 are as large as `q_proj`, and larger than `k_proj`, which engines fuse with it.
#[test]
fn fp8_blocks_as_large_as_a_layer_verify() {
    let config = json!({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [64, 64]});
    let model = made(config, |module, rows, columns| {
        let codes = (0..rows * columns).map(|i| (i % 0x70) as u8).collect();
        vec![
            (format!("{module}.weight"), Dtype::F8_E4M3, vec![rows, columns], codes),
            scales(format!("{module}.weight_scale_inv"), Dtype::F32, &[rows.div_ceil(64), columns.div_ceil(64)]),
        ]
    });
    model.assert_healthy();
}

#[test]
fn stated_group_blocks_and_bits_must_match_storage() {
    awq(64).assert_error("stated", "q_proj", "groups of 32; config.json states 64");
    fp8(16).assert_error("stated", "q_proj", "blocks of 32x32; config.json states 16x16");
    let bits = gptq(true).restated(|config| config["bits"] = json!(8));
    bits.assert_error("stated", "q_proj", "4 bits; config.json states 8");
}

#[test]
fn zero_points_ignored_by_symmetric_kernels_are_an_error() {
    let moved = gptq(true).edit("up_proj.qzeros", |bytes| bytes[0] = 0x78);
    moved.assert_error("zero-points", "up_proj.qzeros", "kernels ignore them");
}

#[test]
fn g_idx_out_of_range_is_an_error() {
    let beyond = gptq(true).edit("up_proj.g_idx", |bytes| bytes[0] = 9);
    beyond.assert_error("groups", "up_proj.g_idx", "1 entries are none of the 2 groups");
    let short = gptq(true).edit("up_proj.g_idx", |bytes| bytes[3] = 0xFF);
    short.assert_error("groups", "up_proj.g_idx", "none of the 2 groups");
}

#[test]
fn loaders_accept_what_their_kernels_run() {
    let loads = |model: &Model, loader: &str| verdict(&model.verify(), loader).loads;
    assert_eq!((loads(&awq(32), "vllm"), loads(&awq(32), "amd-quark")), (Loads::Yes, Loads::No));
    assert_eq!((loads(&gptq(true), "vllm"), loads(&gptq(false), "vllm")), (Loads::Yes, Loads::No));
    assert_eq!((loads(&gptq(true), "sglang"), loads(&gptq(false), "sglang")), (Loads::Yes, Loads::No));
    assert_eq!((loads(&fp8(32), "transformers"), loads(&fp8(32), "vllm")), (Loads::Yes, Loads::Yes));
    let report = awq(32).verify();
    assert_eq!(verdict(&report, "transformers").needs, Some("gptqmodel"));
}

#[test]
fn unlisted_float_layer_in_fp8_is_an_error() {
    let up = crate::common::weight("model.layers.0.mlp.up_proj.weight", Dtype::BF16, &[128, 64]);
    let mixed = fp8(32).without("up_proj.weight_scale_inv").with(up);
    assert!(mixed.verify().errors().any(|error| error.check == "listed" && error.place.ends_with("up_proj")));
    let listed = mixed.restated(|config| config["modules_to_not_convert"] = json!(["up_proj"])).verify();
    assert!(listed.errors().all(|error| error.check == "fused-schemes"), "{:?}", listed.findings);
}

#[test]
fn promised_cache_scales_that_are_missing_are_a_warning() {
    let promised = fp8(32)
        .restated(|config| config["kv_cache_scheme"] = json!({"dynamic": false, "num_bits": 8, "type": "float"}));
    promised.assert_found(Severity::Warning, "kv-cache", "block 0", "promises");
}
