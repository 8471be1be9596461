//! Scales, zero points, groups, numbers that are none, layers of zeros.

use super::model::{Model, float};
use half::{bf16, f16};
use kvant_formats::format::OutputFormat;
use kvant_formats::verify::{Options, Reads};
use kvant_quant::finding::Severity;

fn quark(scheme: &str) -> Model {
    Model::quantized(scheme, OutputFormat::QUARK)
}

fn put(bytes: &mut [u8], value: &[u8]) {
    bytes[..value.len()].copy_from_slice(value);
}

#[test]
fn scales_must_be_finite_and_positive() {
    let scale = "down_proj.weight_scale";
    let with = |value: f32| quark("int4:g32").edit(scale, |bytes| put(bytes, &bf16::from_f32(value).to_le_bytes()));
    for value in [f32::NAN, f32::INFINITY] {
        with(value).assert_error("scales", scale, "NaN or infinite");
    }
    // As half of those of llama.cpp's blocks are.
    with(-1.0).assert_found(Severity::Note, "scales", scale, "negative");
    // But not one of those is above 0 where signs were lost.
    let flip = |bytes: &mut Vec<u8>| bytes.chunks_exact_mut(2).for_each(|scale| scale[1] |= 0x80);
    quark("int4:g32").edit(scale, flip).assert_error("scales", scale, "negative");
    let fp8 = quark("fp8_e4m3:channel");
    fp8.edit(scale, |bytes| bytes[1] |= 0x80).assert_error("scales", scale, "negative");
    let zero = quark("int4:g32").edit(scale, |bytes| put(bytes, &[0, 0]));
    zero.assert_found(Severity::Warning, "scales", scale, "all zeros");
}

#[test]
fn nan_codes_of_e8m0_and_fp8_scales_are_an_error() {
    quark("e2m1:g32:e8m0").edit("q_proj.weight_scale", |bytes| bytes[3] = 255).assert_error(
        "scales",
        "q_proj.weight_scale",
        "1 of",
    );
    let nvfp4 = || Model::quantized("e2m1:g16:e4m3:f32", OutputFormat::COMPRESSED_TENSORS);
    nvfp4().edit("q_proj.weight_scale", |bytes| bytes[0] = 0x7F).assert_error(
        "scales",
        "q_proj.weight_scale",
        "NaN or infinite",
    );
    nvfp4().edit("q_proj.weight_scale", |bytes| bytes[0] = 0x80 | 0x30).assert_error(
        "scales",
        "q_proj.weight_scale",
        "negative",
    );
    let global = "o_proj.weight_global_scale";
    nvfp4().edit(global, |bytes| put(bytes, &float(f32::NAN))).assert_error("scales", global, "NaN or infinite");
    nvfp4().edit(global, |bytes| put(bytes, &float(0.0))).assert_error("scales", global, "no value is left");
}

#[test]
fn zero_global_scale_is_an_error_unless_all_codes_are_zero() {
    let scale = "down_proj.weight_scale";
    let zero = || quark("e4m3:tensor").edit(scale, |bytes| bytes.fill(0));
    zero().assert_error("scales", scale, "no value is left");
    // A layer of zeros has nothing to lose.
    zero().edit("down_proj.weight", |codes| codes.fill(0)).assert_found(Severity::Warning, "scales", scale, "are 0");
}

#[test]
fn subnormal_f16_scales_are_a_warning() {
    let small = |value: f32| {
        quark("int4:g32:f16").edit("up_proj.weight_scale", |bytes| put(bytes, &f16::from_f32(value).to_le_bytes()))
    };
    small(1e-5).assert_found(Severity::Warning, "scales", "up_proj.weight_scale", "least normal f16");
    small(1e-4).assert_healthy();
}

#[test]
fn outlying_scale_is_a_note() {
    let outlier =
        quark("int4:g32").edit("gate_proj.weight_scale", |bytes| put(bytes, &bf16::from_f32(1000.0).to_le_bytes()));
    outlier.assert_found(Severity::Note, "scale-outliers", "gate_proj.weight_scale", "2^");
}

#[test]
fn symmetric_zero_points_must_be_the_middle_and_in_range() {
    let moved = quark("int8:channel").with((
        "model.layers.0.mlp.up_proj.weight_zero_point".to_owned(),
        kvant_container::Dtype::I8,
        vec![128],
        vec![1; 128],
    ));
    moved.assert_error("zero-points", "up_proj.weight_zero_point", "symmetric");
    // Asymmetric ones may be anywhere.
    quark("uint4:g32:zp").edit("up_proj.weight_zero_point", |bytes| bytes[0] ^= 0x11).assert_healthy();
}

#[test]
fn kept_floats_must_be_finite() {
    for (value, found) in [(f32::NAN, true), (f32::NEG_INFINITY, true), (3e38, false)] {
        let model =
            quark("int4:g32").edit("model.norm.weight", |bytes| put(bytes, &bf16::from_f32(value).to_le_bytes()));
        match found {
            true => model.assert_error("floats", "model.norm.weight", "1 value is NaN"),
            false => model.assert_healthy(),
        }
    }
    let broken =
        Model::float().edit("embed_tokens.weight", |bytes| put(bytes, &bf16::from_f32(f32::NAN).to_le_bytes()));
    assert!(broken.verify_with(&Options { reads: Reads::Scales, ..Options::default() }).passes());
}

#[test]
fn fp8_nan_codes_are_an_error() {
    let fp8 = || quark("e4m3:channel+e4m3:channel!dynamic");
    for code in [0x7F, 0xFF] {
        fp8().edit("v_proj.weight", |bytes| bytes[5] = code).assert_error("codes", "v_proj.weight", "1 codes");
    }
    fp8().edit("v_proj.weight", |bytes| bytes[5] = 0x7E).assert_healthy();
}

#[test]
fn constant_layers_are_a_warning() {
    let same = quark("int4:g32").edit("up_proj.weight", |bytes| bytes.fill(0x33));
    same.assert_found(Severity::Warning, "zero-layers", "up_proj.weight", "same");
    Model::float().edit("up_proj.weight", |bytes| bytes.fill(0)).assert_found(
        Severity::Warning,
        "zero-layers",
        "up_proj.weight",
        "0",
    );
}

#[test]
fn reading_headers_only_skips_value_checks() {
    let broken = quark("int4:g32").edit("down_proj.weight_scale", |bytes| bytes.fill(0xFF));
    assert!(broken.verify_with(&Options { reads: Reads::Headers, ..Options::default() }).passes());
    assert!(!broken.verify_with(&Options { reads: Reads::Scales, ..Options::default() }).passes());
}
