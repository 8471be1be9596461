//! The contents of a GGUF file, from its header alone.

use super::checkpoint::TypeShare;
use crate::json::path as path_json;
use kvant_container::gguf::{Array, GgufFile, GgufTensor, Value as GgufValue};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A value as JSON; numbers that JSON does not support become strings.
pub fn json_of(value: &GgufValue) -> Value {
    match value {
        GgufValue::U8(n) => json!(n),
        GgufValue::I8(n) => json!(n),
        GgufValue::U16(n) => json!(n),
        GgufValue::I16(n) => json!(n),
        GgufValue::U32(n) => json!(n),
        GgufValue::I32(n) => json!(n),
        GgufValue::U64(n) => json!(n),
        GgufValue::I64(n) => json!(n),
        GgufValue::F32(x) => float(f64::from(*x), x.to_string()),
        GgufValue::F64(x) => float(*x, x.to_string()),
        GgufValue::Bool(yes) => json!(yes),
        GgufValue::String(text) => json!(text.to_lossy()),
        GgufValue::Array(array) => json_of_array(array, usize::MAX),
    }
}

/// The shortest number that is read as the same value.
fn float(x: f64, shortest: String) -> Value {
    if x.is_finite() { shortest.parse::<f64>().map_or(json!(x), |x| json!(x)) } else { json!(shortest) }
}

/// The first elements of an array.
pub fn json_of_array(array: &Array, most: usize) -> Value {
    macro_rules! each {
        ($values:expr, $variant:ident) => {
            $values.iter().take(most).map(|value| json_of(&GgufValue::$variant(value.clone()))).collect()
        };
    }
    Value::Array(match array {
        Array::U8(values) => each!(values, U8),
        Array::I8(values) => each!(values, I8),
        Array::U16(values) => each!(values, U16),
        Array::I16(values) => each!(values, I16),
        Array::U32(values) => each!(values, U32),
        Array::I32(values) => each!(values, I32),
        Array::F32(values) => each!(values, F32),
        Array::Bool(values) => each!(values, Bool),
        Array::String(values) => each!(values, String),
        Array::Array(values) => each!(values, Array),
        Array::U64(values) => each!(values, U64),
        Array::I64(values) => each!(values, I64),
        Array::F64(values) => each!(values, F64),
    })
}

/// Bytes of all tensors.
pub fn bytes(file: &GgufFile) -> u64 {
    file.tensors().map(|tensor| tensor.byte_len()).sum()
}

/// Tensors by type.
pub fn shares(file: &GgufFile) -> BTreeMap<&'static str, TypeShare> {
    let mut shares: BTreeMap<&'static str, TypeShare> = BTreeMap::new();
    for tensor in file.tensors() {
        let share = shares.entry(tensor.kind().name()).or_default();
        share.tensors += 1;
        share.elements += elements(tensor);
        share.bytes += tensor.byte_len();
    }
    shares
}

/// Elements and bytes of all tensors.
pub(crate) fn elements_and_bytes(file: &GgufFile) -> (u64, u64) {
    (file.tensors().map(elements).sum(), bytes(file))
}

fn elements(tensor: GgufTensor<'_>) -> u64 {
    tensor.shape().iter().map(|dim| *dim as u64).product()
}

pub(crate) fn to_json(file: &GgufFile) -> Value {
    let metadata: serde_json::Map<String, Value> =
        file.metadata().entries().iter().map(|(key, value)| (key.clone(), json_of(value))).collect();
    let share = |share: TypeShare| json!({"tensors": share.tensors, "elements": share.elements, "bytes": share.bytes});
    let types: BTreeMap<&str, Value> = shares(file).into_iter().map(|(kind, all)| (kind, share(all))).collect();
    json!({
        "model": path_json(file.path()),
        "version": file.version(),
        "alignment": file.alignment(),
        "bytes": bytes(file),
        "metadata": metadata,
        "types": types,
    })
}

/// Each tensor as JSON. Its dimensions have the slowest first, as in other formats.
pub(crate) fn tensors_json(file: &GgufFile) -> impl Iterator<Item = Value> {
    file.tensors().map(|tensor| {
        json!({"name": tensor.name(), "dtype": tensor.kind().name(), "shape": tensor.shape(), "bytes": tensor.byte_len()})
    })
}
