//! Tensors without a model around them: codes, scales and zero points as plainly as they can be stored, so that what the metadata
//! says of them (see [`crate::config_json::tensors`]) is all that a reader needs. Two-stage integers are stored as in Quark's layout.

use super::part::{Content, Packing, Part, ScaleEncoding};
use super::{CannotHold, LayerSpec, quark};
use kvant_container::Dtype;
use kvant_numeric::format::{Int, MiniFloat};
use kvant_quant::scheme::{Axis, FloatScale, FloatScheme, Granularity, IntScheme, TensorScheme, ZeroPoint};

const FAKE_HINT: &str = "write floats with ‹format› fake";

pub(super) fn parts(layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
    match layer.scheme.weight {
        TensorScheme::Int(scheme) => int_parts(layer, scheme),
        TensorScheme::Float(scheme) => float_parts(layer, scheme),
        TensorScheme::Progressive { .. } => quark::parts(layer),
        scheme @ (TensorScheme::Block(_) | TensorScheme::Cast(_)) => {
            Err(CannotHold::new(format!("there are no codes for `{scheme}`"), FAKE_HINT))
        }
    }
}

fn int_parts(layer: &LayerSpec<'_>, scheme: IntScheme) -> Result<Vec<Part>, CannotHold> {
    if scheme.format.bits() > 8 {
        return Err(CannotHold::new(format!("codes of {} bits are not stored", scheme.format.bits()), FAKE_HINT));
    }
    let packing = packing_of(scheme.format.bits());
    if scheme.zero_point == ZeroPoint::Float {
        return Err(CannotHold::new("zero points are stored as integers (`:zp`)", FAKE_HINT));
    }
    let mut parts = vec![
        codes(layer, packing, byte_type(scheme.format, packing)),
        scales(layer, scheme.granularity, layer.encoding(scheme.scale))?,
    ];
    if scheme.zero_point == ZeroPoint::Integer || !scheme.format.is_signed() {
        let packing = Packing::Bytes;
        let content = Content::ZeroPoints { packing, transposed: false, less_one: false };
        let shape = scale_shape(layer, scheme.granularity)?;
        parts.push(layer.part("weight_zero_point", byte_type(scheme.format, packing), shape, content));
    }
    Ok(parts)
}

fn float_parts(layer: &LayerSpec<'_>, scheme: FloatScheme) -> Result<Vec<Part>, CannotHold> {
    let encoding = match scheme.scale {
        FloatScale::Plain(scale) => layer.encoding(scale),
        FloatScale::E8m0(_) => ScaleEncoding::E8m0,
        FloatScale::E5m3 | FloatScale::E5m3OfTensor => ScaleEncoding::E5m3,
        FloatScale::E4m3OfTensor => ScaleEncoding::E4m3,
    };
    let dtype = match scheme.format {
        MiniFloat::E4M3 => Dtype::F8_E4M3,
        MiniFloat::E5M2 => Dtype::F8_E5M2,
        _ => Dtype::U8,
    };
    let mut parts =
        vec![codes(layer, packing_of(scheme.format.bits()), dtype), scales(layer, scheme.granularity, encoding)?];
    if scheme.scale.has_tensor_scale() {
        parts.push(layer.part("weight_scale_2", Dtype::F32, [], Content::TensorScale));
    }
    Ok(parts)
}

/// A byte a code of eight bits; a stream of smaller ones, every row from a byte on.
fn packing_of(bits: u32) -> Packing {
    if bits == 8 { Packing::Bytes } else { Packing::Bits(bits) }
}

fn byte_type(format: Int, packing: Packing) -> Dtype {
    if packing == Packing::Bytes && format.is_signed() { Dtype::I8 } else { Dtype::U8 }
}

fn codes(layer: &LayerSpec<'_>, packing: Packing, dtype: Dtype) -> Part {
    let content = Content::Codes { packing, transposed: false };
    layer.part("weight", dtype, packing.shape(layer.rows, layer.columns), content)
}

fn scales(layer: &LayerSpec<'_>, granularity: Granularity, encoding: ScaleEncoding) -> Result<Part, CannotHold> {
    let shape = scale_shape(layer, granularity)?;
    Ok(layer.part("weight_scale", encoding.dtype(), shape, Content::Scales { encoding, transposed: false }))
}

/// The matrix of scales: `[1, 1]` for the tensor, `[out, 1]` for channels, `[out, in / group]` for groups.
fn scale_shape(layer: &LayerSpec<'_>, granularity: Granularity) -> Result<Vec<usize>, CannotHold> {
    match granularity {
        Granularity::Channel(Axis::Columns) | Granularity::Group { axis: Axis::Rows, .. } => Err(CannotHold::new(
            format!("scales per `{granularity}` are not stored"),
            "use groups along the input channels (g128), `channel` or `tensor`",
        )),
        _ => layer.scale_shape().map(|(rows, columns)| vec![rows, columns]),
    }
}
