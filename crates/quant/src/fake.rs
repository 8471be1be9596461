//! Fake quantization: values rounded to what their codes stand for, kept as floats. Covers every scheme, those without
//! codes included.

use crate::rounding::{RoundingError, Rtn, TensorContext};
use crate::scheme::{BlockFormat, Cast, TensorScheme};
use kvant_numeric::arithmetic::{round_to_bf16, round_to_f16};
use kvant_numeric::format::{
    BFP16_BLOCK, BlockElement, MicroExponent, ScaleRule, fake_quantize_bfp16, fake_quantize_mxint8, shared_scale,
};
use kvant_numeric::kernel::Source;

/// The values of a row-major `rows x columns` matrix after quantization. `source` is the type the weights came in.
///
/// # Errors
/// As [`Rtn::round`]; shared-exponent formats and casts accept every shape.
pub fn fake_quantize(
    scheme: TensorScheme,
    context: TensorContext,
    source: Source,
    values: &[f32],
    rows: usize,
    columns: usize,
) -> Result<Vec<f32>, RoundingError> {
    match scheme {
        TensorScheme::Block(format) => Ok(fake_blocks(format, source, finite(values)?, columns)),
        TensorScheme::Cast(Cast::F16) => Ok(finite(values)?.iter().map(|v| round_to_f16(*v)).collect()),
        TensorScheme::Cast(Cast::Bf16) => Ok(finite(values)?.iter().map(|v| round_to_bf16(*v)).collect()),
        _ => Ok(Rtn::new(scheme, context)?.round(values, rows, columns)?.dequantize()),
    }
}

fn finite(values: &[f32]) -> Result<&[f32], RoundingError> {
    if values.iter().all(|v| v.is_finite()) { Ok(values) } else { Err(RoundingError::NotFinite) }
}

fn fake_blocks(format: BlockFormat, source: Source, values: &[f32], columns: usize) -> Vec<f32> {
    let mut out = values.to_vec();
    for row in out.chunks_mut(columns.max(1)) {
        match format {
            BlockFormat::MicroExponent(format) => {
                row.chunks_mut(MicroExponent::BLOCK)
                    .for_each(|block| format.fake_quantize(block, source.smallest_normal()));
            }
            BlockFormat::Bfp16 => row.chunks_mut(BFP16_BLOCK).for_each(fake_quantize_bfp16),
            BlockFormat::MxInt8(rule) => row.chunks_mut(32).for_each(|block| fake_mxint8(block, rule)),
        }
    }
    out
}

fn fake_mxint8(block: &mut [f32], rule: ScaleRule) {
    let amax = block.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let scale = shared_scale(rule, BlockElement::MXINT8, amax);
    fake_quantize_mxint8(block, (scale.to_bits() >> 23) as i32 - 127);
}
