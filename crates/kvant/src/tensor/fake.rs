//! Fake quantization of a matrix: each number rounded to the nearest one that has a code.

use super::matrix::Matrix;
use super::quantized::QuantizedMatrix;
use super::scheme::WeightScheme;
use super::{of_activation, of_rounding};
use crate::error::{Error, ErrorKind};
use kvant_numeric::ComputeDType;
use kvant_numeric::kernel::FloatDType;
use kvant_numeric::simd::{Isa, Loop, dispatch};
use kvant_quant::activation::{ActivationQuantizer, StaticParameters};
use kvant_quant::fake;
use kvant_quant::parameters::{self, Affine};
use kvant_quant::rounding::TensorContext;
use kvant_quant::scheme::{ActivationScheme, FloatScale, FloatScheme, Granularity, ScaleType, TensorScheme, Timing};
use rayon::prelude::*;

/// The values of a matrix after quantization.
///
/// `scheme` is that of a weight (`int4:g128`, a preset's name, a GGUF type) or of activations (`int8:tensor!static`,
/// `e4m3:channel!dynamic`), for which rows are tokens and columns features. Without parameters they follow from the matrix; those of
/// a weight are row-major, as many as the scheme has for the matrix.
///
/// # Errors
/// As [`QuantizedMatrix::nearest`], and where parameters are missing, in excess or no scales.
pub fn fake_quantize(matrix: &Matrix<'_>, scheme: &str, given: Option<StaticParameters>) -> Result<Vec<f32>, Error> {
    if scheme.contains('!') {
        let scheme: ActivationScheme = scheme.parse().map_err(|error: kvant_quant::scheme::SchemeError| {
            Error::new(ErrorKind::Usage, error.to_string()).with_hint(Some(error.hint().to_owned()))
        })?;
        return of_activations(matrix, scheme, given);
    }
    let scheme: WeightScheme = scheme.parse()?;
    match given {
        None => Ok(QuantizedMatrix::nearest(matrix, &scheme)?.dequantize()),
        Some(given) => on_parameters(matrix, scheme.with_scales()?.weight, &given),
    }
}

/// A weight on the grid of a scheme without codes.
pub(super) fn of_weight(matrix: &Matrix<'_>, scheme: TensorScheme) -> Result<Vec<f32>, Error> {
    let (rows, columns) = matrix.shape();
    let context = TensorContext::new(matrix.dtype().arithmetic());
    fake::fake_quantize(scheme, context, matrix.dtype(), &matrix.values(), rows, columns).map_err(of_rounding)
}

fn of_activations(
    matrix: &Matrix<'_>,
    scheme: ActivationScheme,
    given: Option<StaticParameters>,
) -> Result<Vec<f32>, Error> {
    if scheme.timing != Timing::Dynamic && given.is_none() {
        let message = format!("`{scheme}` needs a scale");
        return Err(
            Error::new(ErrorKind::Usage, message).with_hint(Some("give the scale that an observer found".to_owned()))
        );
    }
    let quantizer = ActivationQuantizer::new(scheme, given).map_err(|error| of_activation(&error))?;
    let (arithmetic, (_, columns)) = (matrix.dtype().arithmetic(), matrix.shape());
    let mut values = matrix.to_values();
    let apply = |rows: &mut [f32]| quantizer.apply(Isa::best(), arithmetic, rows, columns);
    match quantizer.is_row_wise() {
        true => values.par_chunks_mut(((1 << 16) / columns.max(1) + 1) * columns.max(1)).for_each(apply),
        false => apply(&mut values),
    }
    Ok(values)
}

/// Refuses scales and zero points that a weight cannot have, and returns rows and columns of the scales.
pub(super) fn check_parameters(
    scheme: TensorScheme,
    (rows, columns): (usize, usize),
    given: &StaticParameters,
) -> Result<(usize, usize), Error> {
    let granularity = match scheme {
        TensorScheme::Int(int) => int.granularity,
        TensorScheme::Float(float) if !float.scale.has_global_scale() => float.granularity,
        _ => {
            let hint = "leave the scale out: it is found from the tensor";
            let error = Error::new(
                ErrorKind::Unsupported,
                format!("a scale cannot be given for `{scheme}`: its scales have several levels"),
            );
            return Err(error.with_hint(Some(hint.to_owned())));
        }
    };
    let scale_shape = granularity.scale_shape(rows, columns).map_err(|error| of_rounding(error.into()))?;
    let count = scale_shape.0 * scale_shape.1;
    if given.scales.len() != count || !(given.zero_points.is_empty() || given.zero_points.len() == count) {
        let message = format!(
            "`{scheme}` has {count} scales for {rows} x {columns} numbers, and {} scales with {} zero points were given",
            given.scales.len(),
            given.zero_points.len()
        );
        return Err(Error::new(ErrorKind::Usage, message));
    }
    if let Some(scale) = given.scales.iter().find(|scale| !(**scale > 0.0 && scale.is_finite())) {
        return Err(Error::new(ErrorKind::Invalid, format!("{scale} is no scale: scales are finite and above zero")));
    }
    Ok(scale_shape)
}

/// The precision in which values are divided by their scale, as the roundings to nearest do.
pub(super) fn quotient_dtype(scheme: TensorScheme, source: FloatDType) -> ComputeDType {
    match scheme {
        TensorScheme::Float(FloatScheme { scale: FloatScale::Plain(ScaleType::Model), granularity, .. })
            if !matches!(granularity, Granularity::Group { .. }) =>
        {
            source.arithmetic()
        }
        _ => ComputeDType::F32,
    }
}

/// A weight under scales and zero points of any granularity.
fn on_parameters(matrix: &Matrix<'_>, scheme: TensorScheme, given: &StaticParameters) -> Result<Vec<f32>, Error> {
    let (rows, columns) = matrix.shape();
    let scale_shape = check_parameters(scheme, (rows, columns), given)?;
    let tile = scheme.granularity().unwrap_or(Granularity::Tensor).tile(rows, columns);
    let quotient = quotient_dtype(scheme, matrix.dtype());
    let mut values = matrix.to_values();
    values.par_chunks_mut(columns.max(1)).enumerate().for_each(|(row, values)| {
        let line = row / tile.0.max(1) * scale_shape.1;
        for (group, values) in values.chunks_mut(tile.1.max(1)).enumerate() {
            let scale = given.scales[line + group];
            let zero_point = given.zero_points.get(line + group).copied().unwrap_or(0.0);
            match scheme {
                // Codes and zero points of these are exact in f32.
                TensorScheme::Int(int) if int.format.bits() <= 16 && zero_point.fract() == 0.0 => {
                    let (least, greatest) = (int.format.min() as f32, int.format.max() as f32);
                    dispatch(Isa::best(), OnIntegers { values, scale, zero_point, least, greatest });
                }
                _ => {
                    let affine = Affine { scale, zero_point: f64::from(zero_point) };
                    values.iter_mut().for_each(|value| *value = on_grid(scheme, *value, affine, quotient));
                }
            }
        }
    });
    Ok(values)
}

/// Values under one scale of integers, rounded to those that have a code: [`on_grid`], vectorized.
struct OnIntegers<'v> {
    values: &'v mut [f32],
    scale: f32,
    zero_point: f32,
    least: f32,
    greatest: f32,
}

impl Loop for OnIntegers<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let inverse = 1.0 / self.scale;
        for value in self.values {
            let code = (*value * inverse).round_ties_even() + self.zero_point;
            *value = (code.clamp(self.least, self.greatest) - self.zero_point) * self.scale;
        }
    }
}

/// A value rounded to one that has a code.
fn on_grid(scheme: TensorScheme, value: f32, affine: Affine, quotient: ComputeDType) -> f32 {
    match scheme {
        _ if value.is_nan() => value,
        TensorScheme::Int(int) => {
            let code = parameters::quantize(int.format, value, 1.0 / affine.scale, affine.zero_point);
            parameters::dequantize(code, affine)
        }
        TensorScheme::Float(float) => float.format.round(quotient.round(value / affine.scale)) * affine.scale,
        _ => value,
    }
}
