//! TensorRT's calibration cache: a line with version and calibrator, then `name: scale` for each activation, the scale in the hexadecimal
//! digits of its 32 bits. `value = scale * code` for codes from -127 to 127.

use super::error::Problem;
use super::numbers::of_codes;
use super::{Codes, Contents, RangeTable, TensorRanges};
use crate::quantization::{Affine, Range};

/// The first line. TensorRT may refuse a cache that another version of it wrote.
const HEADER: &str = "TRT-8601-EntropyCalibration2";
/// The largest code.
const HIGHEST: f32 = 127.0;

pub(super) fn is_of(contents: &Contents<'_>) -> bool {
    contents.text().starts_with("TRT-")
}

pub(super) fn read(contents: &Contents<'_>) -> Result<RangeTable, Problem> {
    let lines = contents.text().lines().enumerate().skip(1).filter(|(_, line)| !line.trim().is_empty());
    let tensor = |(at, line): (usize, &str)| {
        let wrong = || Problem::Invalid(format!("line {} is not a name, a colon and 8 hexadecimal digits", at + 1));
        let (name, digits) = line.rsplit_once(':').ok_or_else(wrong)?;
        let digits = digits.trim().trim_start_matches("0x");
        let scale = f32::from_bits(u32::from_str_radix(digits, 16).map_err(|_| wrong())?);
        if !scale.is_finite() {
            return Err(Problem::of(name, format!("its scale is {scale}")));
        }
        let ends = Range { min: -HIGHEST * scale, max: HIGHEST * scale };
        let affines = vec![Affine { scale, zero_point: 128 }];
        let codes = Codes { bits: 8, is_symmetric: true, axis: None, affines };
        Ok((name.to_owned(), of_codes(name, codes, Some(vec![ends]))?))
    };
    lines.map(tensor).collect()
}

pub(super) fn write(table: &RangeTable) -> Result<Vec<u8>, Problem> {
    let mut text = format!("{HEADER}\n");
    for (name, tensor) in table {
        let Some(scale) = scale(tensor) else { continue };
        refuse_line_break(name)?;
        text.push_str(&format!("{name}: {:08x}\n", scale.to_bits()));
    }
    Ok(text.into_bytes())
}

/// The scale of symmetric int8 codes; `None` for constants and tensors in float.
fn scale(tensor: &TensorRanges) -> Option<f32> {
    let magnitude = magnitude(tensor)?;
    let codes = tensor.codes.as_ref().filter(|codes| codes.bits == 8 && codes.is_symmetric);
    let own = codes.and_then(|codes| <&[Affine; 1]>::try_from(&codes.affines[..]).ok());
    Some(own.map_or((f64::from(magnitude) / f64::from(HIGHEST)) as f32, |[affine]| affine.scale))
}

/// The largest magnitude of an activation with codes.
pub(super) fn magnitude(tensor: &TensorRanges) -> Option<f32> {
    let whole = tensor.whole().filter(|_| !tensor.is_float && !tensor.is_constant)?;
    Some(whole.abs_max().min(f32::MAX))
}

/// Refuses a name that takes more than a line.
pub(super) fn refuse_line_break(name: &str) -> Result<(), Problem> {
    match name.contains(['\n', '\r']) {
        true => Err(Problem::of(name, "its name has a line break, and the format a line for each tensor")),
        false => Ok(()),
    }
}
