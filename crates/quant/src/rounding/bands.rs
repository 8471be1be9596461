//! Round to nearest on all threads of the current pool, in bands of rows. Not the rounding of a band, which is [`Rtn`]'s.

use super::rtn::{RoundingError, Rtn, Scratch, TensorContext};
use super::weights::Weights;
use crate::observer::ObserverRef;
use crate::quant_tensor::{Codes, QuantParts, QuantTensor};
use crate::scheme::{Axis, Granularity, TensorScheme};
use kvant_numeric::kernel::{Elements, Range, element_ranges};
use kvant_numeric::parts::in_parts;
use kvant_numeric::simd::Isa;
use rayon::prelude::*;

/// Elements of a band, at least: enough that threads have little to say to each other, few enough for the second-level cache.
const BAND: usize = 1 << 17;

/// A weight rounded to nearest. Codes and scales are those of [`Rtn::round`] for any number of threads.
///
/// # Errors
/// As [`Rtn::round`].
pub fn nearest_in_bands(
    scheme: TensorScheme,
    context: TensorContext,
    weights: Weights<'_>,
) -> Result<QuantTensor, RoundingError> {
    let (rows, columns) = weights.shape();
    let Some(unit) = rows_of_a_tile(scheme, rows, columns).filter(|_| scheme.format().bits() <= 8) else {
        return whole(scheme, context, weights);
    };
    let band = (BAND / columns.max(1) / unit).max(1) * unit;
    if band >= rows {
        return whole(scheme, context, weights);
    }
    scheme.check_shape(rows, columns)?;
    let range = context.range.or_else(|| scheme.needs_tensor_range().then(|| tensor_range(weights)));
    let rtn = Rtn::new(scheme, TensorContext { range, ..context })?;

    let state = || (Scratch::default(), rtn.empty(columns));
    let (codes, parameters) = in_parts(rows * columns, band * columns, state, |(scratch, out), codes| {
        out.clear();
        rtn.round_onto(weights.rows(codes.start / columns..codes.end / columns), scratch, out)?;
        let numbers = (out.scales.clone(), out.zero_points.clone(), out.factors.clone());
        let parameters = (numbers, out.global_scale);
        Ok::<_, RoundingError>((out.code_bytes().unwrap_or_default(), parameters))
    })?;

    let global_scale = parameters.first().and_then(|(_, global_scale)| *global_scale);
    let shares_one = scheme.granularity() == Some(Granularity::Tensor);
    let bands = if shares_one { &parameters[..parameters.len().min(1)] } else { &parameters[..] };
    let scales: Vec<&[f32]> = bands.iter().map(|((scales, _, _), _)| scales.as_slice()).collect();
    let zero_points: Vec<&[f64]> = bands.iter().map(|((_, zero_points, _), _)| zero_points.as_slice()).collect();
    let factors: Vec<&[f32]> = bands.iter().map(|((_, _, factors), _)| factors.as_slice()).collect();
    let (scales, zero_points, factors) = (scales.concat(), zero_points.concat(), factors.concat());
    let parts = QuantParts { codes: Codes::Bytes(codes), scales, zero_points, global_scale };
    Ok(QuantTensor::new(scheme, rows, columns, parts)?.with_factors(factors))
}

fn whole(scheme: TensorScheme, context: TensorContext, weights: Weights<'_>) -> Result<QuantTensor, RoundingError> {
    let rtn = Rtn::new(scheme, context)?;
    let mut out = rtn.empty(weights.shape().1);
    rtn.round_onto(weights, &mut Scratch::default(), &mut out)?;
    Ok(out)
}

/// Rows that have to be rounded together; `None` for all of them.
fn rows_of_a_tile(scheme: TensorScheme, rows: usize, columns: usize) -> Option<usize> {
    match scheme.granularity()? {
        Granularity::Channel(Axis::Rows) | Granularity::Group { axis: Axis::Columns, .. } => Some(1),
        granularity @ Granularity::Block { .. } => Some(granularity.tile(rows, columns).0.max(1)),
        // Only the least and the greatest value can be had from parts.
        Granularity::Tensor if scheme.observer() == ObserverRef::MIN_MAX => Some(1),
        _ => None,
    }
}

/// The range of all elements.
fn tensor_range(weights: Weights<'_>) -> Range {
    let (rows, columns) = weights.shape();
    let band = (BAND / columns.max(1)).max(1);
    let ranges = (0..rows.div_ceil(band)).into_par_iter().map_init(Vec::new, |buffer, index| {
        let rows = index * band..rows.min((index + 1) * band);
        range(weights.elements(Isa::best(), rows, buffer))
    });
    ranges.reduce(|| Range::EMPTY, Range::join)
}

/// The range of elements.
pub(super) fn range(elements: Elements<'_>) -> Range {
    let mut range = [Range::EMPTY];
    element_ranges(Isa::best(), elements, elements.len().max(1), &mut range);
    range[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_numeric::ComputeDType;

    #[test]
    fn bands_give_the_codes_of_the_whole() {
        let schemes = [
            "int4:g32",
            "uint4:g32:zp",
            "int8:channel",
            "int8:tensor",
            "uint8:tensor:zp",
            "int8:tensor:mse",
            "int8:channel@1",
            "int16:channel",
            "e4m3:b128x128:f32",
            "e4m3:tensor",
            "e2m1:g32:e8m0",
            "e2m1:g16:e4m3:f32",
            "int4:channel:f32/e4m3:tensor:f32",
            "gguf-q2_k",
            "gguf-q5_1",
        ];
        let (rows, columns) = (700, 512);
        let value = |i: usize| (((i * 2_654_435_769) >> 7) % 1999) as f32 / 500.0 - 1.5 + (i % columns) as f32 / 50.0;
        let values: Vec<f32> = (0..rows * columns).map(value).collect();
        for text in schemes {
            let (scheme, context) = (text.parse().unwrap(), TensorContext::new(ComputeDType::F32));
            let expected = Rtn::new(scheme, context).unwrap().round(&values, rows, columns).unwrap();
            let weights = Weights::new(Elements::Values(&values), columns);
            assert_eq!(nearest_in_bands(scheme, context, weights).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn nan_in_any_band_is_refused() {
        let mut values = vec![0.5; 1024 * 512];
        values[1023 * 512] = f32::NAN;
        for scheme in ["int4:g32", "int8:tensor", "e4m3:tensor"] {
            let weights = Weights::new(Elements::Values(&values), 512);
            let error = nearest_in_bands(scheme.parse().unwrap(), TensorContext::new(ComputeDType::F32), weights);
            assert_eq!(error, Err(RoundingError::NotFinite), "{scheme}");
        }
    }
}
