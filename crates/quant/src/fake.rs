//! Fake quantization: values rounded to the values of their codes, kept as floats. Covers every scheme, those without
//! codes included.

use crate::rounding::{RoundingError, Rtn, TensorContext};
use crate::scheme::{BlockFormat, TensorScheme};
use kvant_numeric::format::{
    BFP16_BLOCK, BlockElement, MicroExponent, ScaleRule, fake_quantize_bfp16, fake_quantize_mxint8, shared_scale,
};
use kvant_numeric::kernel::FloatDType;
use kvant_numeric::simd::Isa;

/// The values of a row-major `rows x columns` matrix after quantization. `source` is the type the weights came in.
///
/// # Errors
/// As [`Rtn::round`]; shared-exponent formats and casts accept every shape.
pub fn fake_quantize(
    scheme: TensorScheme,
    context: TensorContext,
    source: FloatDType,
    values: &[f32],
    rows: usize,
    columns: usize,
) -> Result<Vec<f32>, RoundingError> {
    match scheme {
        TensorScheme::Block(format) => {
            let mut out = finite(values)?.to_vec();
            fake_blocks(format, source.smallest_normal(), &mut out, columns);
            Ok(out)
        }
        TensorScheme::Cast(cast) => Ok(finite(values)?.iter().map(|v| cast.arithmetic().round(*v)).collect()),
        _ => {
            let quantized = Rtn::new(scheme, context)?.round(values, rows, columns)?;
            let mut out = Vec::with_capacity(values.len());
            quantized.dequantize_rows(Isa::best(), 0..rows, 0..columns, &mut out);
            Ok(out)
        }
    }
}

fn finite(values: &[f32]) -> Result<&[f32], RoundingError> {
    if values.iter().all(|v| v.is_finite()) { Ok(values) } else { Err(RoundingError::NotFinite) }
}

/// Shared-exponent formats in place. `smallest_normal` is that of the values' type.
pub(crate) fn fake_blocks(format: BlockFormat, smallest_normal: f32, values: &mut [f32], columns: usize) {
    for row in values.chunks_mut(columns.max(1)) {
        match format {
            BlockFormat::MicroExponent(format) => {
                row.chunks_mut(MicroExponent::BLOCK).for_each(|block| format.fake_quantize(block, smallest_normal));
            }
            BlockFormat::Bfp16 => row.chunks_mut(BFP16_BLOCK).for_each(fake_quantize_bfp16),
            BlockFormat::MxInt8(rule) => row.chunks_mut(32).for_each(|block| fake_mxint8(block, rule)),
        }
    }
}

fn fake_mxint8(block: &mut [f32], rule: ScaleRule) {
    let amax = block.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let scale = shared_scale(rule, BlockElement::MXINT8, amax);
    fake_quantize_mxint8(block, (scale.to_bits() >> 23) as i32 - 127);
}
