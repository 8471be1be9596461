//! MXFP4 as gpt-oss is published (`quant_method` mxfp4): the experts of a block in two tensors, `*_blocks` with two codes a byte,
//! the even one low, and `*_scales` of powers of two. Only experts that are one tensor are quantized.

use super::part::{Content, Packing, Part, ScaleEncoding};
use super::{CannotHold, LayerSpec};
use kvant_container::Dtype;
use kvant_numeric::format::MiniFloat;
use kvant_quant::scheme::{FloatScale, FloatScheme, Granularity, TensorScheme};

/// Codes that share a scale.
const BLOCK: usize = 32;

/// `*_blocks` `[experts, out, in / 32, 16]` and `*_scales` `[experts, out, in / 32]`, the same for all experts of a tensor.
pub(super) fn parts(layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
    let Some(fused) = layer.fused else {
        let reason = "gpt-oss's layout holds experts that are one tensor, and nothing else";
        return Err(CannotHold::new(reason, "use ‹format› quark or compressed-tensors"));
    };
    if !is_mxfp4(layer) {
        let reason = format!("gpt-oss's layout has no `{}`", layer.scheme);
        return Err(CannotHold::new(reason, "use mxfp4_weight_only (e2m1:g32:e8m0)"));
    }
    let blocks = layer.columns / BLOCK;
    let part = |suffix: &str, shape: Vec<usize>, content| Part {
        name: format!("{}_{suffix}", fused.module),
        dtype: Dtype::U8,
        shape,
        content,
    };
    let codes = Content::Codes { packing: Packing::Bits(4), transposed: false };
    let scales = Content::Scales { encoding: ScaleEncoding::E8m0, transposed: false };
    Ok(vec![
        part("blocks", vec![fused.count, layer.rows, blocks, BLOCK / 2], codes),
        part("scales", vec![fused.count, layer.rows, blocks], scales),
    ])
}

fn is_mxfp4(layer: &LayerSpec<'_>) -> bool {
    let grouped = Granularity::group(BLOCK as u32);
    let weight = matches!(layer.scheme.weight, TensorScheme::Float(FloatScheme { format: MiniFloat::E2M1, granularity, scale: FloatScale::E8m0(_), .. }) if granularity == grouped);
    weight && layer.scheme.input.is_none() && layer.scheme.output.is_none()
}
