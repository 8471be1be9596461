//! AMD Quark's native layout: integers in groups are stored transposed, everything else as `[out, in]`. Facts: tensors
//! that Quark 0.13 writes and reads.

use kvant_container::Dtype;
use kvant_numeric::format::{Int, MiniFloat};
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::scheme::{Axis, FloatScale, FloatScheme, Granularity, IntScheme, ScaleType, TensorScheme, ZeroPoint};
use kvant_weights::parts::{CannotHold, Content, LayerSpec, Packing, Part, ScaleEncoding};

const FAKE_HINT: &str = "export it as floats with ‹format› fake";

pub(in crate::format) fn parts(layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
    match layer.scheme.weight {
        TensorScheme::Int(scheme) => int_parts(layer, scheme),
        TensorScheme::Float(scheme) => float_parts(layer, scheme),
        TensorScheme::Progressive { second, .. } => progressive_parts(layer, second),
        scheme => code_layout(scheme, layer.order).map(|_| Vec::new()),
    }
}

/// The tensors of a bias as those of a weight of one row, or of one column where each value has a scale. Codes have a byte each, as
/// amd-quark writes those of linear layers.
pub(super) fn bias_parts(bias: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
    let scheme = bias.scheme.weight;
    if scheme.format().bits() != 8 || !matches!(code_layout(scheme, bias.order), Ok((Packing::Bytes, false))) {
        let reason = format!("Quark's layout has codes of eight bits for biases, and no `{scheme}`");
        return Err(CannotHold::new(reason, "use int8:tensor or another scheme of eight bits, or ‹format› fake"));
    }
    let mut parts = of_bias(parts(bias)?, bias.name);
    let length = bias.rows * bias.columns;
    parts
        .iter_mut()
        .filter(|part| matches!(part.content, Content::Codes { .. }))
        .for_each(|part| part.shape = vec![length]);
    Ok(parts)
}

/// The tensors of a weight under the names of those of a bias.
pub(super) fn of_bias(mut parts: Vec<Part>, module: &str) -> Vec<Part> {
    let (weight, bias) = (format!("{module}.weight"), format!("{module}.bias"));
    for part in &mut parts {
        if let Some(suffix) = part.name.strip_prefix(&weight) {
            part.name = format!("{bias}{suffix}");
        }
    }
    parts
}

/// The packing of a scheme's codes, and whether their matrix is stored as `[in, out]`.
pub(super) fn code_layout(scheme: TensorScheme, order: NibbleOrder) -> Result<(Packing, bool), CannotHold> {
    match scheme {
        // 3-bit codes stay as they are while their scales are transposed.
        TensorScheme::Int(int) => {
            Ok((int_packing(order, int.format)?, is_grouped(int.granularity) && int.format != Int::INT3))
        }
        TensorScheme::Progressive { second, .. } => Ok((int_packing(order, second.format)?, false)),
        TensorScheme::Float(float) if float.format.bits() == 8 => Ok((Packing::Bytes, false)),
        TensorScheme::Float(float) => Ok((Packing::Bits(float.format.bits()), false)),
        TensorScheme::Gguf(_) | TensorScheme::Block(_) | TensorScheme::Cast(_) => {
            Err(CannotHold::new(format!("Quark's layout has no codes for `{scheme}`"), FAKE_HINT))
        }
    }
}

fn int_parts(layer: &LayerSpec<'_>, scheme: IntScheme) -> Result<Vec<Part>, CannotHold> {
    let (packing, transposed) = code_layout(layer.scheme.weight, layer.order)?;
    let encoding = match (scheme.granularity, scheme.scale) {
        // A scalar scale is kept in f32, regardless of the type it was computed in.
        (Granularity::Tensor, ScaleType::Model) => ScaleEncoding::F32,
        (_, scale) => layer.encoding(scale),
    };
    let shape = if transposed { (layer.columns, layer.rows) } else { (layer.rows, layer.columns) };
    check_packing(layer, scheme, packing)?;
    let dtype = int_dtype(scheme.format, packing);
    Ok(vec![
        layer.part("weight", dtype, packing.shape(shape.0, shape.1), Content::Codes { packing, transposed }),
        scales(layer, "weight_scale", scheme.granularity, encoding)?,
        zero_points(layer, "weight_zero_point", scheme, packing)?,
    ])
}

fn int_packing(order: NibbleOrder, format: Int) -> Result<Packing, CannotHold> {
    match format {
        Int::INT8 | Int::UINT8 => Ok(Packing::Bytes),
        Int::INT4 | Int::UINT4 => Ok(Packing::Words(order)),
        Int::INT3 => Ok(Packing::Bits(3)),
        Int::INT2 => Ok(Packing::Int32),
        Int::UINT2 => Ok(Packing::CrumbsFirstHigh),
        _ => Err(CannotHold::new(
            format!("Quark's layout has no {}-bit integers", format.bits()),
            format!("{FAKE_HINT}, or use 2, 3, 4 or 8 bits; compressed-tensors holds 2 to 8"),
        )),
    }
}

fn int_dtype(format: Int, packing: Packing) -> Dtype {
    if format == Int::UINT8 { Dtype::U8 } else { packing.dtype() }
}

/// Packed axes must end on a unit: readers compute shapes from the packed ones.
fn check_packing(layer: &LayerSpec<'_>, scheme: IntScheme, packing: Packing) -> Result<(), CannotHold> {
    let unit = match packing {
        Packing::Words(_) | Packing::Bits(_) => 8,
        Packing::CrumbsFirstHigh => 4,
        _ => return Ok(()),
    };
    if scheme.granularity == Granularity::Tensor && !matches!(packing, Packing::Words(_)) {
        let reason = format!("Quark's layout has no {}-bit integers with one scale", scheme.format.bits());
        return Err(CannotHold::new(reason, "use one scale an output channel (`:channel`), int4 or int8"));
    }
    let odd = if !layer.rows.is_multiple_of(unit) { Some(("output", layer.rows)) } else { None };
    let odd = odd.or((!layer.columns.is_multiple_of(unit)).then_some(("input", layer.columns)));
    odd.map_or(Ok(()), |(axis, length)| {
        Err(CannotHold::new(
            format!("Quark's layout packs {unit} codes at a time, and it has {length} {axis} channels"),
            "use ‹format› compressed-tensors, or keep the layer with ‹exclude›",
        ))
    })
}

fn is_grouped(granularity: Granularity) -> bool {
    matches!(granularity, Granularity::Group { .. })
}

/// The tensor of scales; groups of integers store it transposed.
fn scales(
    layer: &LayerSpec<'_>,
    suffix: &str,
    granularity: Granularity,
    encoding: ScaleEncoding,
) -> Result<Part, CannotHold> {
    let transposed = is_grouped(granularity);
    let shape = scale_shape(layer, granularity)?;
    Ok(layer.part(suffix, encoding.dtype(), shape, Content::Scales { encoding, transposed }))
}

/// `[]` for the tensor, `[out]` for channels, `[in / group, out]` for groups.
fn scale_shape(layer: &LayerSpec<'_>, granularity: Granularity) -> Result<Vec<usize>, CannotHold> {
    match granularity {
        Granularity::Tensor => Ok(vec![]),
        Granularity::Channel(Axis::Rows) => Ok(vec![layer.rows]),
        Granularity::Group { axis: Axis::Columns, size } => {
            Ok(vec![layer.columns / size.map_or(layer.columns, |s| s.get() as usize).max(1), layer.rows])
        }
        other => Err(CannotHold::new(
            format!("Quark's layout has no integers with scales per `{other}`"),
            "use groups along the input channels (g128), `channel` or `tensor`",
        )),
    }
}

fn zero_points(layer: &LayerSpec<'_>, suffix: &str, scheme: IntScheme, packing: Packing) -> Result<Part, CannotHold> {
    if scheme.zero_point == ZeroPoint::Float {
        let reason = "Quark's layout truncates zero points to integers";
        return Err(CannotHold::new(reason, "use integer zero points (`:zp`), or ‹format› fake"));
    }
    // A scalar is not packed.
    let scalar = scheme.granularity == Granularity::Tensor && packing != Packing::Bytes;
    let packing = if scalar { Packing::Int32 } else { packing };
    let dtype = int_dtype(scheme.format, packing);
    let mut shape = scale_shape(layer, scheme.granularity)?;
    if let Some(last) = shape.last_mut() {
        *last = packing.shape(1, *last)[1];
    }
    Ok(layer.part(suffix, dtype, shape, Content::ZeroPoints { packing, transposed: true, less_one: false }))
}

fn progressive_parts(layer: &LayerSpec<'_>, second: IntScheme) -> Result<Vec<Part>, CannotHold> {
    let (packing, _) = code_layout(layer.scheme.weight, layer.order)?;
    if second.granularity != Granularity::Channel(Axis::Rows) {
        let reason = format!("Quark's layout has no two-stage integers with scales per `{}`", second.granularity);
        return Err(CannotHold::new(reason, "use int4:channel/e4m3:tensor:f32"));
    }
    check_packing(layer, second, packing)?;
    let codes = Content::Codes { packing, transposed: false };
    Ok(vec![
        layer.part("weight", packing.dtype(), packing.shape(layer.rows, layer.columns), codes),
        layer.part("weight_scale", Dtype::F32, [], Content::GlobalScale),
        scales(layer, "weight_scale_2", second.granularity, ScaleEncoding::F32)?,
        zero_points(layer, "weight_zero_point_2", second, packing)?,
    ])
}

fn float_parts(layer: &LayerSpec<'_>, scheme: FloatScheme) -> Result<Vec<Part>, CannotHold> {
    let (shape, encoding) = (float_scale_shape(layer, scheme)?, scale_encoding(layer, scheme));
    let (packing, _) = code_layout(layer.scheme.weight, layer.order)?;
    let dtype = match scheme.format {
        MiniFloat::E4M3 => Dtype::F8_E4M3,
        MiniFloat::E5M2 => Dtype::F8_E5M2,
        _ => Dtype::U8,
    };
    let content = Content::Scales { encoding, transposed: false };
    let codes = Content::Codes { packing, transposed: false };
    let mut parts = vec![
        layer.part("weight", dtype, packing.shape(layer.rows, layer.columns), codes),
        layer.part("weight_scale", encoding.dtype(), shape, content),
    ];
    if scheme.scale.has_global_scale() {
        parts.push(layer.part("weight_scale_2", Dtype::F32, [], Content::GlobalScale));
    }
    Ok(parts)
}

fn scale_encoding(layer: &LayerSpec<'_>, scheme: FloatScheme) -> ScaleEncoding {
    match scheme.scale {
        // vLLM reads the scales of blocks in f32.
        FloatScale::Plain(ScaleType::Model) if matches!(scheme.granularity, Granularity::Block { .. }) => {
            ScaleEncoding::F32
        }
        FloatScale::Plain(scale) => layer.encoding(scale),
        FloatScale::E8m0(_) => ScaleEncoding::E8m0,
        FloatScale::E5m3 | FloatScale::E5m3WithGlobal => ScaleEncoding::E5m3,
        FloatScale::E4m3WithGlobal => ScaleEncoding::E4m3,
    }
}

fn float_scale_shape(layer: &LayerSpec<'_>, scheme: FloatScheme) -> Result<Vec<usize>, CannotHold> {
    let small = scheme.format.bits() < 8;
    let refuse = |what: &str, hint: &str| Err(CannotHold::new(format!("Quark's layout has no {what}"), hint));
    match scheme.granularity {
        Granularity::Group { axis: Axis::Columns, size } if small => {
            let size = size.map_or(layer.columns, |s| s.get() as usize).max(1);
            Ok(vec![layer.rows, layer.columns / size])
        }
        _ if small => refuse("fp4 or fp6 but in groups along the input channels", "use e2m1:g32:e8m0 or the like"),
        Granularity::Tensor => Ok(vec![]),
        Granularity::Channel(Axis::Rows) => Ok(vec![layer.rows]),
        Granularity::Block { rows, columns } if !divides(layer, rows.get() as usize, columns.get() as usize) => refuse(
            "fp8 blocks that do not divide the layer",
            "use ‹format› compressed-tensors, or keep the layer with ‹exclude›",
        ),
        Granularity::Block { rows, columns } => {
            Ok(vec![layer.rows.div_ceil(rows.get() as usize), layer.columns.div_ceil(columns.get() as usize)])
        }
        Granularity::Group { .. } => {
            refuse("fp8 in groups", "use ‹format› compressed-tensors for MXFP8, or ‹format› fake")
        }
        Granularity::Channel(Axis::Columns) => refuse("fp8 with a scale an input channel", "use e4m3:channel"),
    }
}

fn divides(layer: &LayerSpec<'_>, rows: usize, columns: usize) -> bool {
    layer.rows.is_multiple_of(rows) && layer.columns.is_multiple_of(columns)
}
