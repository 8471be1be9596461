//! The layout of the compressed-tensors library (0.20), which llm-compressor writes: matrices stay `[out, in]`, codes of
//! fewer than eight bits are dense streams of words.

use super::args::Args;
use super::packing_format::{Format, format_of};
use kvant_container::Dtype;
use kvant_numeric::format::MiniFloat;
use kvant_quant::scheme::{
    ActivationScheme, Axis, FloatScale, FloatScheme, Granularity, IntScheme, TensorScheme, ZeroPoint,
};
use kvant_weights::parts::{CannotHold, Content, LayerSpec, Packing, Part, ScaleEncoding};

pub(super) fn parts(layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
    parts_as(format_of(&layer.scheme)?, layer)
}

/// The tensors of a layer in the layout that compressed-tensors chooses.
pub(super) fn parts_as(format: Format, layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
    match (format, layer.scheme.weight) {
        (Format::PackQuantized, TensorScheme::Int(scheme)) => packed_int_parts(layer, scheme),
        (Format::IntQuantized | Format::NaiveQuantized, TensorScheme::Int(scheme)) => plain_int_parts(layer, scheme),
        (_, TensorScheme::Float(scheme)) => float_parts(layer, scheme),
        (_, scheme) => {
            Err(CannotHold::new(format!("compressed-tensors has no `{scheme}`"), "use ‹format› quark or fake"))
        }
    }
}

fn packed_int_parts(layer: &LayerSpec<'_>, scheme: IntScheme) -> Result<Vec<Part>, CannotHold> {
    let packing = Packing::OffsetWords(scheme.format.bits());
    let codes = Content::Codes { packing, transposed: false };
    let mut parts = vec![
        layer.part("weight_packed", packing.dtype(), packing.shape(layer.rows, layer.columns), codes),
        scales(layer, scheme.granularity, layer.encoding(scheme.scale))?,
        layer.part("weight_shape", Dtype::I64, [2], Content::Shape),
    ];
    if scheme.zero_point == ZeroPoint::Integer {
        let down = Packing::OffsetWordsDown(scheme.format.bits());
        let (rows, columns) = scale_matrix(layer, scheme.granularity)?;
        let content = Content::ZeroPoints { packing: down, transposed: false, less_one: false };
        parts.push(layer.part("weight_zero_point", down.dtype(), down.shape(rows, columns), content));
    }
    if layer.act_order {
        parts.push(layer.part("weight_g_idx", Dtype::I32, [layer.columns], Content::Groups));
    }
    Ok(parts)
}

fn plain_int_parts(layer: &LayerSpec<'_>, scheme: IntScheme) -> Result<Vec<Part>, CannotHold> {
    let packing = Packing::Bytes;
    let codes = Content::Codes { packing, transposed: false };
    let mut parts = vec![
        layer.part("weight", Dtype::I8, [layer.rows, layer.columns], codes),
        scales(layer, scheme.granularity, layer.encoding(scheme.scale))?,
    ];
    if scheme.zero_point == ZeroPoint::Integer {
        let content = Content::ZeroPoints { packing, transposed: false, less_one: false };
        let shape = scale_shape(layer, scheme.granularity)?;
        parts.push(layer.part("weight_zero_point", Dtype::I8, shape, content));
    }
    Ok(parts)
}

fn float_parts(layer: &LayerSpec<'_>, scheme: FloatScheme) -> Result<Vec<Part>, CannotHold> {
    let (suffix, packing, dtype) = match scheme.format {
        MiniFloat::E4M3 => ("weight", Packing::Bytes, Dtype::F8_E4M3),
        other => ("weight_packed", Packing::Bits(other.bits()), Dtype::U8),
    };
    let encoding = match scheme.scale {
        FloatScale::Plain(scale) => layer.encoding(scale),
        FloatScale::E8m0(_) => ScaleEncoding::E8m0,
        FloatScale::E4m3WithGlobal => ScaleEncoding::E4m3,
        FloatScale::E5m3 | FloatScale::E5m3WithGlobal => ScaleEncoding::E5m3,
    };
    let codes = Content::Codes { packing, transposed: false };
    let mut parts = vec![
        layer.part(suffix, dtype, packing.shape(layer.rows, layer.columns), codes),
        scales(layer, scheme.granularity, encoding)?,
    ];
    if scheme.scale.has_global_scale() {
        parts.push(layer.part("weight_global_scale", Dtype::F32, [1], Content::GlobalScaleReciprocal));
    }
    Ok(parts)
}

fn scales(layer: &LayerSpec<'_>, granularity: Granularity, encoding: ScaleEncoding) -> Result<Part, CannotHold> {
    let shape = scale_shape(layer, granularity)?;
    Ok(layer.part("weight_scale", encoding.dtype(), shape, Content::Scales { encoding, transposed: false }))
}

/// `[1]` for the tensor, otherwise the matrix of scales.
fn scale_shape(layer: &LayerSpec<'_>, granularity: Granularity) -> Result<Vec<usize>, CannotHold> {
    let (rows, columns) = scale_matrix(layer, granularity)?;
    Ok(if granularity == Granularity::Tensor { vec![1] } else { vec![rows, columns] })
}

fn scale_matrix(layer: &LayerSpec<'_>, granularity: Granularity) -> Result<(usize, usize), CannotHold> {
    let by_columns =
        matches!(granularity, Granularity::Channel(Axis::Columns) | Granularity::Group { axis: Axis::Rows, .. });
    let shape = granularity.scale_shape(layer.rows, layer.columns);
    match shape {
        Ok(shape) if !by_columns => Ok(shape),
        _ => Err(CannotHold::new(
            format!("compressed-tensors has no scales per `{granularity}`"),
            "use groups along the input channels, `channel` or `tensor`",
        )),
    }
}

/// Checks whether compressed-tensors can describe activations.
///
/// # Errors
/// [`CannotHold`] where it has none.
pub(super) fn can_describe(scheme: ActivationScheme) -> Result<(), CannotHold> {
    Args::of_input(scheme).map(|_| ())
}
