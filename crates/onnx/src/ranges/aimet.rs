//! AIMET's encodings: `activation_encodings` and `param_encodings` by the names of tensors.
//!
//! Version 0.6.1 has a list of encodings for each tensor, one for each channel: `min`, `max`, `scale`, `offset`, `bitwidth`, `dtype` and
//! `is_symmetric`. Version 1.0.0 has lists of tensors with `name`, `dtype`, `enc_type`, `bw`, `is_sym`, `scale` and `offset`. In both,
//! `value = scale * (code + offset)` for codes from 0 to `2^bits - 1`, also where codes are stored as signed integers.

use serde_json::{Map, Value, json};

use super::error::Problem;
use super::numbers::{bits, number, numbers, of_codes, range, whole};
use super::{Codes, Contents, RangeTable, TensorRanges};
use crate::quantization::Affine;

/// The keys of a file, and whether their tensors are constants.
const SECTIONS: [(&str, bool); 2] = [("activation_encodings", false), ("param_encodings", true)];

pub(super) fn is_of_0_6_1(contents: &Contents<'_>) -> bool {
    has_sections(contents, |section| section.is_object())
}

pub(super) fn is_of_1_0_0(contents: &Contents<'_>) -> bool {
    has_sections(contents, |section| section.is_array())
}

fn has_sections(contents: &Contents<'_>, is_of: impl Fn(&Value) -> bool) -> bool {
    let sections = SECTIONS.iter().filter_map(|(key, _)| contents.json()?.get(key));
    sections.map(is_of).reduce(|one, other| one || other).unwrap_or(false)
}

pub(super) fn read(contents: &Contents<'_>) -> Result<RangeTable, Problem> {
    let mut table = RangeTable::new();
    for (key, is_constant) in SECTIONS {
        let mut add =
            |name: &str, found: TensorRanges| table.insert(name.to_owned(), TensorRanges { is_constant, ..found });
        match contents.json().and_then(|json| json.get(key)) {
            None => {}
            Some(Value::Object(tensors)) => {
                for (name, encodings) in tensors {
                    add(name, channels(name, encodings)?);
                }
            }
            Some(Value::Array(tensors)) => {
                for tensor in tensors {
                    let name = tensor.get("name").and_then(Value::as_str);
                    let name = name.ok_or_else(|| Problem::Invalid(format!("a tensor of {key} has no name")))?;
                    add(name, one(name, tensor)?);
                }
            }
            Some(_) => return Err(Problem::Invalid(format!("{key} is neither an object nor a list"))),
        }
    }
    Ok(table)
}

/// Returns whether a dtype is that of floats.
fn is_float(tensor: &str, encoding: &Value) -> Result<bool, Problem> {
    match encoding.get("dtype").map(|dtype| dtype.as_str().map(str::to_ascii_lowercase)) {
        None => Ok(false),
        Some(Some(dtype)) if dtype == "int" => Ok(false),
        Some(Some(dtype)) if dtype == "float" => Ok(true),
        Some(_) => Err(Problem::of(tensor, "its dtype is neither int nor float")),
    }
}

/// Version 0.6.1: the encodings of a tensor's channels.
fn channels(tensor: &str, encodings: &Value) -> Result<TensorRanges, Problem> {
    let Value::Array(encodings) = encodings else {
        let problem = format!(
            "`{}` has encodings by its inputs and outputs, as those of a PyTorch model's layers",
            tensor.escape_debug()
        );
        let way_out = "give the file of the exported ONNX model, whose encodings have the names of its tensors (NAME.encodings, not NAME_torch.encodings)";
        return Err(Problem::Unsupported(problem, way_out));
    };
    let Some(first) = encodings.first() else { return Err(Problem::of(tensor, "it has no encodings")) };
    if is_float(tensor, first)? {
        return Ok(TensorRanges::float(None));
    }
    let bits = bits(tensor, "bitwidth", first.get("bitwidth"))?;
    let is_symmetric = first.get("is_symmetric").is_some_and(|is| is == "True" || is == "true" || is == true);
    let get = |encoding: &Value, key: &str| encoding.get(key).map(|value| number(tensor, key, value)).transpose();
    let (mut affines, mut ranges) = (Vec::new(), Vec::new());
    for encoding in encodings {
        if let (Some(scale), Some(offset)) = (get(encoding, "scale")?, get(encoding, "offset")?) {
            affines.push(affine(tensor, scale, offset, bits, is_symmetric)?);
        }
        if let (Some(min), Some(max)) = (get(encoding, "min")?, get(encoding, "max")?) {
            ranges.push(range(tensor, min, max)?);
        }
    }
    let all = |count: usize| count == encodings.len();
    match (all(affines.len()), all(ranges.len())) {
        (false, false) => Err(Problem::of(tensor, "it has neither scale and offset nor min and max")),
        (false, true) => Ok(TensorRanges::of_ranges(ranges)),
        (true, with_ranges) => {
            let codes = Codes { bits, is_symmetric, axis: None, affines };
            of_codes(tensor, codes, with_ranges.then_some(ranges))
        }
    }
}

/// Version 1.0.0: a tensor with its scales and offsets.
fn one(tensor: &str, encoding: &Value) -> Result<TensorRanges, Problem> {
    if is_float(tensor, encoding)? {
        return Ok(TensorRanges::float(None));
    }
    let kind = encoding.get("enc_type").and_then(Value::as_str).unwrap_or("PER_TENSOR");
    if !matches!(kind, "PER_TENSOR" | "PER_CHANNEL") {
        // Scales of blocks are none of a tensor or a channel.
        return Ok(TensorRanges::of_ranges(Vec::new()));
    }
    let bits = bits(tensor, "bw", encoding.get("bw"))?;
    let is_symmetric = encoding.get("is_sym").is_some_and(|is| is == true);
    let list = |key: &str| {
        let value = encoding.get(key).ok_or_else(|| Problem::of(tensor, format!("it has no {key}")))?;
        numbers(tensor, key, value)
    };
    let (scales, offsets) = (list("scale")?, list("offset")?);
    if scales.len() != offsets.len() || scales.is_empty() {
        return Err(Problem::of(tensor, format!("it has {} scales and {} offsets", scales.len(), offsets.len())));
    }
    let pairs = scales.iter().zip(&offsets);
    let affines = pairs.map(|(&scale, &offset)| affine(tensor, scale, offset, bits, is_symmetric));
    of_codes(tensor, Codes { bits, is_symmetric, axis: None, affines: affines.collect::<Result<_, _>>()? }, None)
}

/// Scale and zero point. Symmetric codes without the lowest one are written with an offset that is higher by one.
fn affine(tensor: &str, scale: f64, offset: f64, bits: u32, is_symmetric: bool) -> Result<Affine, Problem> {
    let (zero_point, half) = (-whole(tensor, "offset", offset)?, 1_i64 << (bits - 1));
    let is_strict = is_symmetric && zero_point == half - 1;
    Ok(Affine { scale: scale as f32, zero_point: if is_strict { half } else { zero_point } })
}

pub(super) fn write_0_6_1(table: &RangeTable) -> Result<Vec<u8>, Problem> {
    let section = |is_constant: bool| {
        let tensors = table.iter().filter(|(_, tensor)| tensor.is_constant == is_constant);
        let encoded = tensors.filter_map(|(name, tensor)| Some((name.clone(), encodings(tensor)?)));
        Value::Object(encoded.collect::<Map<String, Value>>())
    };
    document("0.6.1", section(false), section(true))
}

fn encodings(tensor: &TensorRanges) -> Option<Value> {
    if tensor.is_float {
        return Some(json!([{"bitwidth": 32, "dtype": "float"}]));
    }
    let codes = tensor.codes.as_ref()?;
    let symmetric = if codes.is_symmetric { "True" } else { "False" };
    let encoding = |(affine, [min, max]): (&Affine, [f64; 2])| {
        json!({
            "bitwidth": codes.bits,
            "dtype": "int",
            "is_symmetric": symmetric,
            "max": max,
            "min": min,
            "offset": -affine.zero_point,
            "scale": f64::from(affine.scale),
        })
    };
    Some(codes.affines.iter().zip(codes.ends()).map(encoding).collect())
}

pub(super) fn write_1_0_0(table: &RangeTable) -> Result<Vec<u8>, Problem> {
    let section = |is_constant: bool| {
        let tensors = table.iter().filter(|(_, tensor)| tensor.is_constant == is_constant);
        tensors.filter_map(|(name, tensor)| named(name, tensor)).collect::<Value>()
    };
    document("1.0.0", section(false), section(true))
}

fn named(name: &str, tensor: &TensorRanges) -> Option<Value> {
    if tensor.is_float {
        return Some(json!({"name": name, "dtype": "FLOAT", "enc_type": "PER_TENSOR", "bw": 32}));
    }
    let codes = tensor.codes.as_ref()?;
    let scales: Vec<f64> = codes.affines.iter().map(|affine| f64::from(affine.scale)).collect();
    let offsets: Vec<i64> = codes.affines.iter().map(|affine| -affine.zero_point).collect();
    let kind = if scales.len() == 1 { "PER_TENSOR" } else { "PER_CHANNEL" };
    Some(json!({
        "name": name,
        "dtype": "INT",
        "enc_type": kind,
        "bw": codes.bits,
        "is_sym": codes.is_symmetric,
        "scale": scales,
        "offset": offsets,
    }))
}

fn document(version: &str, activations: Value, constants: Value) -> Result<Vec<u8>, Problem> {
    let [(of_activations, _), (of_constants, _)] = SECTIONS;
    let document =
        json!({"version": version, of_activations: activations, of_constants: constants, "quantizer_args": {}});
    text(&document)
}

/// The text of a JSON file.
pub(super) fn text(document: &Value) -> Result<Vec<u8>, Problem> {
    let mut text = serde_json::to_vec_pretty(document).map_err(|cause| Problem::Invalid(cause.to_string()))?;
    text.push(b'\n');
    Ok(text)
}
