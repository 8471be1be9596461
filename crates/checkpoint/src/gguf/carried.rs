//! Codes that a source has already as blocks: which type holds them, what that loses, and the blocks. Nothing is quantized
//! here; what no type holds is refused, or left to those who quantize values.

use half::f16;
use kvant_container::gguf::TensorType;
use kvant_formats::transcode::loss_of_tensor_scale;
use kvant_gguf::ftype::fitting;
use kvant_gguf::model::TensorSlice;
use kvant_numeric::format::MiniFloat;
use kvant_numeric::ggml::{Coded, GroupedType, Parts};
use kvant_numeric::simd::Isa;
use kvant_quant::QuantTensor;
use kvant_quant::scheme::{
    Axis, FloatScale, FloatScheme, Granularity, IntScheme, SchemeError, TensorScheme, ZeroPoint,
};
use kvant_weights::parts::{ScaleEncoding, encode};
use kvant_weights::weight::Band;
use kvant_weights::weight::PackedMatrix;

/// What becomes of codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Carried {
    /// They become blocks of a type.
    Codes {
        /// The type.
        coded: Coded,
        /// The scheme that describes the codes with signed integers.
        scheme: TensorScheme,
    },
    /// They are blocks of the type, and are copied.
    Blocks(GroupedType),
}

impl Carried {
    /// The type of the file's tensor.
    pub(super) fn kind(self) -> TensorType {
        let kind = match self {
            Carried::Codes { coded, .. } => coded.kind(),
            Carried::Blocks(blocks) => blocks.kind,
        };
        TensorType::from_id(kind.id()).unwrap_or(TensorType::F32)
    }

    /// The scheme of the codes.
    pub(super) fn scheme(self) -> TensorScheme {
        match self {
            Carried::Codes { scheme, .. } => scheme,
            Carried::Blocks(blocks) => TensorScheme::Gguf(blocks),
        }
    }

    /// Returns whether a scale of the tensor stands beside the blocks.
    pub(super) fn has_tensor_scale(self) -> bool {
        matches!(self, Carried::Codes { coded: Coded::Nvfp4, .. })
    }
}

/// The conversion of a weight that is quantized in the source.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fit {
    pub kind: TensorType,
    /// The conversion of its codes; `None` if values are requantized.
    pub carried: Option<Carried>,
    /// The loss, in words.
    pub loss: Option<String>,
}

/// The loss that is accepted in a file of existing codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Accepted {
    /// Nothing.
    Nothing,
    /// Digits of scales and minima beyond those of binary16.
    Rounding,
    /// Requantizing values that no type holds.
    Requantizing,
}

impl Accepted {
    /// The loss that `--requantize` accepts.
    pub fn requantizing(asked: bool) -> Accepted {
        if asked { Accepted::Requantizing } else { Accepted::Nothing }
    }
}

/// The largest relative error of a scale for which codes are still copied: half a unit in the last place of binary16.
const SMALL_LOSS: f64 = 1.0 / 2048.0;

/// The type that holds the codes of these matrices, which are rows of one tensor.
///
/// # Errors
/// The reason that none does, or the loss that is not accepted.
pub(super) fn fit(isa: Isa, matrices: &[&PackedMatrix<'_>], accepted: Accepted) -> Result<Fit, String> {
    let columns = matrices.first().map_or(1, |matrix| matrix.columns());
    match held(isa, matrices) {
        Ok((carried, loss)) => match loss {
            None => Ok(Fit { kind: carried.kind(), carried: Some(carried), loss: None }),
            Some((reason, relative)) if accepted >= Accepted::Rounding && relative <= SMALL_LOSS => {
                Ok(Fit { kind: carried.kind(), carried: Some(carried), loss: Some(reason) })
            }
            Some((reason, _)) => anew(matrices, columns, accepted, reason),
        },
        Err(reason) => anew(matrices, columns, accepted, reason),
    }
}

fn type_of(coded: Coded) -> TensorType {
    TensorType::from_id(coded.kind().id()).unwrap_or(TensorType::F32)
}

/// The type to which values are requantized, in rows of `columns`: about as wide as the codes.
///
/// # Errors
/// The reason, if that is not accepted.
pub(super) fn anew(
    matrices: &[&PackedMatrix<'_>],
    columns: usize,
    accepted: Accepted,
    reason: String,
) -> Result<Fit, String> {
    if accepted < Accepted::Requantizing {
        return Err(reason);
    }
    let scheme = |matrix: &&PackedMatrix<'_>| matrix.scheme(true, None).or_else(|| matrix.like());
    let bits = matrices.iter().filter_map(scheme).map(|scheme| scheme.format().bits()).max().unwrap_or(8);
    let wanted = match bits {
        ..=4 => TensorType::Q4_K,
        5 => TensorType::Q5_K,
        6 => TensorType::Q6_K,
        _ => TensorType::Q8_0,
    };
    let kind = fitting(wanted, columns);
    Ok(Fit { kind, carried: None, loss: Some(format!("it is requantized to {kind}")) })
}

/// A description of the loss, and the largest relative error.
type Loss = Option<(String, f64)>;

/// The type of the codes of all matrices, and the loss of their scales.
fn held(isa: Isa, matrices: &[&PackedMatrix<'_>]) -> Result<(Carried, Loss), String> {
    let symmetric = matrices.iter().all(|matrix| matrix.is_symmetric(isa));
    let (mut found, mut loss): (Option<Carried>, Loss) = (None, None);
    for matrix in matrices {
        if matrix.groups().is_some() {
            return Err("its input channels are not grouped in storage order, and the layout has no group index".into());
        }
        let scheme = matrix.scheme(symmetric, None).ok_or_else(|| matrix.unlike())?;
        let coded = coded(scheme, matrix.columns())?;
        let carried = Carried::Codes { coded, scheme };
        if found.is_some_and(|found| found != carried) {
            return Err("what becomes one tensor has codes of several kinds".to_owned());
        }
        found = Some(carried);
        let worst = loss.as_ref().map_or(0.0, |(_, relative)| *relative);
        loss = loss_of(isa, matrix, coded).filter(|(_, relative)| *relative > worst).or(loss);
    }
    Ok((found.ok_or("it has no codes")?, loss))
}

/// The type that holds codes of a scheme.
///
/// # Errors
/// The reason that none does.
pub(super) fn coded(scheme: TensorScheme, columns: usize) -> Result<Coded, String> {
    let no_such = || Err(format!("GGUF has no blocks of `{scheme}`"));
    let granularity = match scheme {
        TensorScheme::Int(IntScheme { granularity, .. }) | TensorScheme::Float(FloatScheme { granularity, .. }) => {
            granularity
        }
        _ => return no_such(),
    };
    let group = match granularity {
        Granularity::Group { axis: Axis::Columns, size: Some(size) } => size.get() as usize,
        Granularity::Channel(Axis::Rows) | Granularity::Tensor => columns,
        _ => return no_such(),
    };
    if let TensorScheme::Float(FloatScheme { format: MiniFloat::E2M1, scale: FloatScale::E4m3WithGlobal, .. }) = scheme
        && group == 16
    {
        let whole = columns.is_multiple_of(Coded::Nvfp4.kind().block_elements());
        return if whole { Ok(Coded::Nvfp4) } else { Err(format!("rows of {columns} are not a multiple of 64")) };
    }
    // What no size would help is said first.
    let coded = match scheme {
        TensorScheme::Int(int) => match (int.zero_point, int.format.bits()) {
            (ZeroPoint::Zero, ..=4) => Coded::Q4_0,
            (ZeroPoint::Zero, 5) => Coded::Q5_0,
            (ZeroPoint::Zero, ..=8) => Coded::Q8_0,
            (_, ..=4) => Coded::Q4_1,
            (_, 5) => Coded::Q5_1,
            _ => return no_such(),
        },
        TensorScheme::Float(float) if float.format == MiniFloat::E2M1 && group == 32 => match float.scale {
            FloatScale::E8m0(_) => Coded::Mxfp4,
            _ => return no_such(),
        },
        _ => return no_such(),
    };
    match (group.is_multiple_of(32), group == columns) {
        (true, _) => Ok(coded),
        (false, true) => {
            Err(format!("its {columns} input channels are not a multiple of 32, the block size of {}", type_of(coded)))
        }
        (false, false) => {
            Err(format!("groups of {group} are not a multiple of 32, the block size of {}", type_of(coded)))
        }
    }
}

/// The loss of storing scales, and minima derived from zero points, as binary16.
fn loss_of(isa: Isa, matrix: &PackedMatrix<'_>, coded: Coded) -> Loss {
    match coded {
        Coded::Mxfp4 => return None,
        Coded::Nvfp4 => return loss_of_nvfp4(isa, matrix),
        _ => {}
    }
    let scales = matrix.scales(isa);
    let points = if coded.has_minima() { matrix.lowest_to_zero(isa) } else { Vec::new() };
    let minima = scales.iter().zip(&points).map(|(scale, point)| ("minimum", f64::from(*scale) * f64::from(*point)));
    let all = scales.iter().map(|scale| ("scale", f64::from(*scale))).chain(minima);
    let error = |(what, exact): (&'static str, f64)| {
        let relative = if exact == 0.0 { 0.0 } else { ((f64::from(f16::from_f64(exact)) - exact) / exact).abs() };
        (what, exact, if relative.is_nan() { f64::INFINITY } else { relative })
    };
    let worst = all.map(error).max_by(|a, b| a.2.total_cmp(&b.2)).filter(|(.., relative)| *relative > 0.0);
    worst.map(|(what, exact, relative)| (format!("the {what} {exact:e} is not exact in F16"), relative))
}

/// The loss of storing unsigned group scales, and a factor on them if the source has a divisor.
fn loss_of_nvfp4(isa: Isa, matrix: &PackedMatrix<'_>) -> Loss {
    let unheld = matrix.scales(isa).into_iter().find(|scale| scale.is_sign_negative() || !scale.is_finite());
    if let Some(scale) = unheld {
        return Some((format!("the scale {scale:e} is not a positive number"), f64::INFINITY));
    }
    loss_of_tensor_scale(matrix).map(|loss| (loss.reason, f64::from(loss.relative)))
}

/// Writes the blocks of a band of what a slab becomes.
///
/// # Errors
/// [`SchemeError`] where codes are not what the scheme says.
pub(super) fn blocks(
    isa: Isa,
    matrix: &PackedMatrix<'_>,
    slab: &TensorSlice,
    band: &Band,
    carried: Carried,
    out: &mut [u8],
) -> Result<(), SchemeError> {
    let (coded, scheme) = match carried {
        Carried::Codes { coded, scheme } => (coded, scheme),
        Carried::Blocks(blocks) => {
            copy_blocks(matrix, slab, band, blocks, out);
            return Ok(());
        }
    };
    let row_bytes = coded.kind().row_bytes(slab.size.1).unwrap_or(0);
    let mut written = 0;
    for rows in slab.rows.runs(band.rows.clone()) {
        let end = written + row_bytes * rows.len();
        let tensor = matrix.recoded(isa, &Band { rows, columns: 0..slab.size.1 }, scheme, Vec::new())?;
        if let Some(out) = out.get_mut(written..end) {
            write(isa, coded, &tensor, out);
        }
        written = end;
    }
    Ok(())
}

/// Copies the blocks of a band of what a slab becomes.
fn copy_blocks(matrix: &PackedMatrix<'_>, slab: &TensorSlice, band: &Band, blocks: GroupedType, out: &mut [u8]) {
    let PackedMatrix::Blocks(matrix) = matrix else { return };
    let rows = slab.rows.runs(band.rows.clone()).into_iter().flatten();
    let row_bytes = blocks.kind.row_bytes(slab.size.1).unwrap_or(0);
    for (row, out) in rows.zip(out.chunks_mut(row_bytes.max(1))) {
        if let Some(bytes) = matrix.row_blocks(row).filter(|bytes| bytes.len() == out.len()) {
            out.copy_from_slice(bytes);
        }
    }
}

/// Writes the blocks of whole rows.
fn write(isa: Isa, coded: Coded, tensor: &QuantTensor, out: &mut [u8]) {
    let (rows, columns) = tensor.shape();
    let half = match (coded, tensor.scheme()) {
        (Coded::Q4_0, _) => 8,
        (Coded::Q5_0, _) => 16,
        (Coded::Q4_1 | Coded::Q5_1, scheme) => 1u8 << (scheme.format().bits() - 1),
        _ => 0,
    };
    let codes: Vec<u8> = tensor.code_bytes().unwrap_or_default().iter().map(|code| code.wrapping_add(half)).collect();
    let (scale_rows, scale_columns) = tensor.scale_shape();
    let (mut scales, mut minima) = (Vec::new(), Vec::new());
    for row in 0..rows {
        let line = if scale_rows == 1 { 0 } else { row } * scale_columns;
        for block in 0..columns / coded.group() {
            let at = line + block * coded.group() * scale_columns / columns;
            let scale = tensor.scales().get(at).copied().unwrap_or(0.0);
            scales.push(bits(coded, scale));
            if coded.has_minima() {
                let point = tensor.zero_points().get(at).copied().unwrap_or(0.0) + f64::from(half);
                minima.push(f16::from_f64(-point * f64::from(scale)).to_bits());
            }
        }
    }
    coded.assemble(isa, Parts { codes: &codes, scales: &scales, minima: &minima }, out);
}

/// A scale as blocks have it.
fn bits(coded: Coded, scale: f32) -> u16 {
    match coded {
        Coded::Mxfp4 => encode(ScaleEncoding::E8m0, &[scale]).first().copied().unwrap_or(0).into(),
        Coded::Nvfp4 => encode(ScaleEncoding::E4m3, &[scale]).first().copied().unwrap_or(0).into(),
        _ => f16::from_f32(scale).to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_obstacle_that_no_size_removes_is_named_first() {
        let refusal = |scheme: &str, columns: usize| coded(scheme.parse().unwrap(), columns).err();
        for columns in [200, 256] {
            assert_eq!(refusal("e4m3:channel", columns).unwrap(), "GGUF has no blocks of `e4m3:channel`");
        }
        assert!(refusal("int4:channel", 200).unwrap().starts_with("its 200 input channels are not a multiple of 32"));
        assert!(refusal("int4:g40", 200).unwrap().starts_with("groups of 40 are not a multiple of 32"));
        assert!(refusal("int4:channel", 256).is_none());
    }
}
