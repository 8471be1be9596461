//! Numbers in files of ranges, checked: no range has NaN, infinite or swapped ends.

use serde_json::Value;

use super::error::Problem;
use super::{Codes, TensorRanges};
use crate::quantization::{Affine, Range};

/// A value of a key as a number.
pub(super) fn number(tensor: &str, key: &str, value: &Value) -> Result<f64, Problem> {
    let number = value.as_f64().ok_or_else(|| Problem::of(tensor, format!("{key} is not a number")))?;
    match (number as f32).is_finite() {
        true => Ok(number),
        false => Err(Problem::of(tensor, format!("{key} is {number:e}, which float32 does not hold"))),
    }
}

/// A number, or a list of numbers.
pub(super) fn numbers(tensor: &str, key: &str, value: &Value) -> Result<Vec<f64>, Problem> {
    match value {
        Value::Array(values) => values.iter().map(|value| number(tensor, key, value)).collect(),
        value => Ok(vec![number(tensor, key, value)?]),
    }
}

/// A range from its ends.
pub(super) fn range(tensor: &str, min: f64, max: f64) -> Result<Range, Problem> {
    match min <= max {
        true => Ok(Range { min: min as f32, max: max as f32 }),
        false => Err(Problem::of(tensor, format!("the range from {min} to {max} is empty"))),
    }
}

/// A whole number of a key.
pub(super) fn whole(tensor: &str, key: &str, number: f64) -> Result<i64, Problem> {
    match number.fract() == 0.0 && number.abs() <= f64::from(u32::MAX) {
        true => Ok(number as i64),
        false => Err(Problem::of(tensor, format!("{key} is {number}, not a whole number of 32 bits"))),
    }
}

/// The bits of integer codes.
pub(super) fn bits(tensor: &str, key: &str, value: Option<&Value>) -> Result<u32, Problem> {
    let bits = value.and_then(Value::as_u64).filter(|bits| (2..=32).contains(bits));
    bits.map(|bits| bits as u32).ok_or_else(|| Problem::of(tensor, format!("{key} is not a number from 2 to 32")))
}

/// A tensor by its scales and zero points, the ranges given too or those of its codes. Zero points outside of the codes, and scales of
/// zero, leave the ranges alone.
pub(super) fn of_codes(tensor: &str, codes: Codes, given: Option<Vec<Range>>) -> Result<TensorRanges, Problem> {
    let Codes { bits, affines, .. } = &codes;
    if let Some(Affine { scale, .. }) = affines.iter().find(|affine| affine.scale < 0.0) {
        return Err(Problem::of(tensor, format!("its scale is {scale}, and scales are positive")));
    }
    let ranges = given.unwrap_or_else(|| codes.ranges());
    if let Some(range) = ranges.iter().find(|range| !range.min.is_finite() || !range.max.is_finite()) {
        return Err(Problem::of(tensor, format!("the range from {} to {} is beyond float32", range.min, range.max)));
    }
    let is_usable =
        |affine: &Affine| affine.scale >= f32::MIN_POSITIVE && (0..1_i64 << bits).contains(&affine.zero_point);
    let is_exact = !affines.is_empty() && affines.iter().all(is_usable);
    Ok(TensorRanges { is_constant: false, is_float: false, ranges, codes: is_exact.then_some(codes) })
}
