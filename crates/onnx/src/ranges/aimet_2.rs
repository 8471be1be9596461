//! AIMET's encodings 2.0.0: a list `encodings` of tensors with `name`, `output_dtype`, `y_scale`, `y_zero_point`, `axis` and `block_size`,
//! which mean what the inputs and attributes of ONNX's QuantizeLinear do.

use serde_json::{Value, json};

use super::aimet::text;
use super::error::Problem;
use super::numbers::{numbers, of_codes, whole};
use super::{Codes, Contents, RangeTable, TensorRanges};
use crate::quantization::Affine;

/// The key of the list.
const ENCODINGS: &str = "encodings";

pub(super) fn is_of(contents: &Contents<'_>) -> bool {
    contents.json().and_then(|json| json.get(ENCODINGS)).is_some_and(Value::is_array)
}

pub(super) fn read(contents: &Contents<'_>) -> Result<RangeTable, Problem> {
    let tensors = contents.json().and_then(|json| json.get(ENCODINGS)).and_then(Value::as_array);
    let mut table = RangeTable::new();
    for tensor in tensors.into_iter().flatten() {
        let name = tensor.get("name").and_then(Value::as_str);
        let name = name.ok_or_else(|| Problem::Invalid(format!("a tensor of {ENCODINGS} has no name")))?;
        table.insert(name.to_owned(), one(name, tensor)?);
    }
    Ok(table)
}

fn one(tensor: &str, encoding: &Value) -> Result<TensorRanges, Problem> {
    let Some(dtype) = encoding.get("output_dtype").and_then(Value::as_str) else {
        // Tensors without a type stay in float.
        return Ok(TensorRanges::float(None));
    };
    if dtype.contains("float") {
        return Ok(TensorRanges::float(None));
    }
    let wrong = || {
        Problem::of(tensor, format!("its output_dtype `{}` is not a type of integers or floats", dtype.escape_debug()))
    };
    let (is_signed, bits) = match dtype.strip_prefix("uint") {
        Some(bits) => (false, bits),
        None => (true, dtype.strip_prefix("int").ok_or_else(wrong)?),
    };
    let bits: u32 = bits.parse().ok().filter(|bits| (2..=32).contains(bits)).ok_or_else(wrong)?;
    let has = |key: &str| encoding.get(key).is_some_and(|value| !value.is_null());
    let of_blocks = has("block_size") || has("per_block_int_scale") || has("per_channel_float_scale");
    let scales = encoding.get("y_scale").filter(|_| !of_blocks);
    let Some(scales) = scales else { return Ok(TensorRanges::of_ranges(Vec::new())) };
    let scales = numbers(tensor, "y_scale", scales)?;
    let zeros = encoding.get("y_zero_point").filter(|zero| !zero.is_null());
    let zeros = zeros.map(|zeros| numbers(tensor, "y_zero_point", zeros)).transpose()?;
    let zeros = zeros.unwrap_or_else(|| vec![0.0; scales.len()]);
    if scales.len() != zeros.len() || scales.is_empty() {
        return Err(Problem::of(tensor, format!("it has {} scales and {} zero points", scales.len(), zeros.len())));
    }
    let shift = if is_signed { 1_i64 << (bits - 1) } else { 0 };
    let affine = |(&scale, &zero): (&f64, &f64)| {
        let zero_point = whole(tensor, "y_zero_point", zero)? + shift;
        Ok(Affine { scale: scale as f32, zero_point })
    };
    let affines = scales.iter().zip(&zeros).map(affine).collect::<Result<Vec<_>, Problem>>()?;
    let is_symmetric = is_signed && affines.iter().all(|affine| affine.zero_point == shift);
    let axis = encoding.get("axis").and_then(Value::as_u64).map(|axis| axis as usize);
    of_codes(tensor, Codes { bits, is_symmetric, axis, affines }, None)
}

pub(super) fn write(table: &RangeTable) -> Result<Vec<u8>, Problem> {
    let tensors = table.iter().filter_map(|(name, tensor)| named(name, tensor));
    text(&json!({"version": "2.0.0", ENCODINGS: tensors.collect::<Value>()}))
}

/// Tensors in float have no entry: the format has no word for them.
fn named(name: &str, tensor: &TensorRanges) -> Option<Value> {
    let codes = tensor.codes.as_ref().filter(|_| !tensor.is_float)?;
    let shift = if codes.is_symmetric { 1_i64 << (codes.bits - 1) } else { 0 };
    let scales: Vec<f64> = codes.affines.iter().map(|affine| f64::from(affine.scale)).collect();
    let zeros: Vec<i64> = codes.affines.iter().map(|affine| affine.zero_point - shift).collect();
    let sign = if codes.is_symmetric { "" } else { "u" };
    let mut encoding = json!({"name": name, "output_dtype": format!("{sign}int{}", codes.bits)});
    encoding["y_scale"] = if let [scale] = scales[..] { json!(scale) } else { json!(scales) };
    if zeros.iter().any(|&zero| zero != 0) {
        encoding["y_zero_point"] = if let [zero] = zeros[..] { json!(zero) } else { json!(zeros) };
    }
    if let Some(axis) = codes.axis.filter(|_| scales.len() > 1) {
        encoding["axis"] = json!(axis);
    }
    Some(encoding)
}
