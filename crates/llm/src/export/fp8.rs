//! fp8 as vLLM, SGLang and DeepSeek's checkpoints have it (`quant_method` fp8): e4m3 with one scale for the tensor, or one for
//! every block of rows and columns, in f32. Inputs are always quantized.

use super::part::{Content, Packing, Part, ScaleEncoding};
use super::{CannotHold, LayerSpec};
use kvant_container::Dtype;
use kvant_numeric::format::MiniFloat;
use kvant_quant::scheme::{FloatScale, FloatScheme, Granularity, ScaleType, TensorScheme};

const HINT: &str =
    "use FP8_BLOCK, or FP8 (e4m3:tensor with inputs e4m3:tensor); ‹format› compressed-tensors holds others";

/// `weight` `[out, in]`; `weight_scale` `[]`, or `weight_scale_inv` `[ceil(out / rows), ceil(in / columns)]`. Despite its name the
/// latter multiplies codes.
pub(super) fn parts(layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
    let scheme = scheme(layer)?;
    let (suffix, shape) = match scheme.granularity {
        Granularity::Block { .. } => {
            let (down, across) = layer.scale_shape()?;
            ("weight_scale_inv", vec![down, across])
        }
        _ => ("weight_scale", vec![]),
    };
    let scales = Content::Scales { encoding: ScaleEncoding::F32, transposed: false };
    let codes = Content::Codes { packing: Packing::Bytes, transposed: false };
    Ok(vec![
        layer.part("weight", Dtype::F8_E4M3, [layer.rows, layer.columns], codes),
        layer.part(suffix, Dtype::F32, shape, scales),
    ])
}

fn scheme(layer: &LayerSpec<'_>) -> Result<FloatScheme, CannotHold> {
    let refuse = || CannotHold::new(format!("fp8's layout has no `{}`", layer.scheme), HINT);
    let TensorScheme::Float(scheme) = layer.scheme.weight else { return Err(refuse()) };
    let whole = matches!(scheme.granularity, Granularity::Tensor | Granularity::Block { .. });
    let plain = scheme.scale == FloatScale::Plain(ScaleType::F32);
    match whole && plain && scheme.format == MiniFloat::E4M3 && layer.scheme.output.is_none() {
        true => Ok(scheme),
        false => Err(refuse()),
    }
}
