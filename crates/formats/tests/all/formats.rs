//! What the exports write, byte by byte, against what compressed-tensors 0.20 wrote for the same codes.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

#[path = "../../../../tests/golden/input.rs"]
mod input;

use kvant_formats::format::OutputFormat;
use kvant_numeric::format::{MiniFloat, e8m0_decode};
use kvant_numeric::pack::{NibbleOrder, unpack_bits};
use kvant_numeric::simd::Isa;
use kvant_quant::scheme::{LayerScheme, TensorScheme};
use kvant_quant::{Codes, QuantParts, QuantTensor};
use kvant_weights::parts::{Content, LayerSpec, Packer, Part};
use kvant_weights::weight::Band;
use serde_json::Value;

/// The spelling of the scheme of a golden case.
fn scheme(case: &Value) -> String {
    let weights = &case["weights"];
    let bits = weights["num_bits"].as_u64().unwrap();
    let granularity = match weights["strategy"].as_str().unwrap() {
        "group" | "tensor_group" => format!("g{}", weights["group_size"]),
        "block" => "b128x128".to_owned(),
        other => other.to_owned(),
    };
    let format = case["format"].as_str().unwrap();
    match format {
        "pack-quantized" if weights["symmetric"] == Value::Bool(false) => format!("int{bits}:{granularity}:zp"),
        "pack-quantized" => format!("int{bits}:{granularity}"),
        "int-quantized" => format!("int{bits}:{granularity}+int8:channel!dynamic"),
        "float-quantized" => format!("e4m3:{granularity}"),
        "nvfp4-pack-quantized" => "e2m1:g16:e4m3:f32".to_owned(),
        "mxfp4-pack-quantized" => "e2m1:g32:e8m0".to_owned(),
        "mxfp6-pack-quantized" => "e2m3:g32:e8m0".to_owned(),
        "mxfp8-quantized" => "e4m3:g32:e8m0".to_owned(),
        other => panic!("{other}"),
    }
}

/// The case's codes, scales and zero points as a quantized tensor.
fn quantized(case: &Value, scheme: TensorScheme, rows: usize, columns: usize) -> QuantTensor {
    let tensors = &case["tensors"];
    let packed = ["weight_packed", "weight"].iter().map(|name| &tensors[name]).find(|t| !t.is_null()).unwrap();
    let codes = match case.get("codes") {
        Some(codes) => input::bytes(codes),
        None => {
            let mut codes = vec![0; rows * columns];
            unpack_bits(Isa::best(), &input::bytes(packed), scheme.format().bits(), &mut codes);
            codes
        }
    };
    let points = case.get("zero_points").map(input::bytes).unwrap_or_default();
    let parts = QuantParts {
        codes: Codes::Bytes(codes),
        scales: scales(&tensors["weight_scale"]),
        zero_points: points.iter().map(|point| f64::from(*point as i8)).collect(),
        global_scale: tensors.get("weight_global_scale").map(|global| 1.0 / input::floats(global)[0]),
    };
    QuantTensor::new(scheme, rows, columns, parts).unwrap()
}

fn scales(tensor: &Value) -> Vec<f32> {
    match tensor["dtype"].as_str().unwrap() {
        "f8_e4m3" => input::bytes(tensor).iter().map(|code| MiniFloat::E4M3.decode(*code)).collect(),
        "u8" => input::bytes(tensor).iter().map(|code| e8m0_decode(*code)).collect(),
        _ => input::floats(tensor),
    }
}

/// Packs the case's codes, and says which tensors differ.
fn differences(case: &Value) -> Vec<String> {
    let size = |key: &str| case["input"][key].as_u64().unwrap() as usize;
    let (rows, columns) = (size("rows"), size("cols"));
    let scheme: LayerScheme = scheme(case).parse().unwrap();
    let source = input::source(&case["input"]["dtype"]);
    let layer = LayerSpec {
        name: "up",
        rows,
        columns,
        scheme,
        source,
        order: NibbleOrder::Awq,
        fused: None,
        act_order: false,
        input_rotation: None,
    };
    let tensor = quantized(case, scheme.weight, rows, columns);
    let parts = OutputFormat::COMPRESSED_TENSORS.parts(&layer).unwrap();
    let whole = Band { rows: 0..rows, columns: 0..columns };
    let expected = case["tensors"].as_object().unwrap();
    let differs = |part: &Part| {
        let mut packer = Packer::default();
        let written = packer.pack(Isa::best(), part, (&tensor).into(), &whole, &(rows, columns).into()).unwrap();
        let tensor = &expected[part.name.strip_prefix("up.").unwrap()];
        let shape: Vec<usize> = serde_json::from_value(tensor["shape"].clone()).unwrap();
        // The reciprocal of a reciprocal may be off by one unit in the last place.
        let same = written.bytes == input::bytes(tensor) || part.content == Content::GlobalScaleReciprocal;
        let fits = (part.shape.as_slice(), part.dtype.to_string()) == (&shape, dtype_name(tensor));
        (!same || !fits || written.offset != 0).then(|| format!("{} {:?} {}", part.name, part.shape, part.dtype))
    };
    let mut found: Vec<String> = parts.iter().filter_map(differs).collect();
    if parts.len() != expected.len() {
        found.push(format!("{} tensors instead of {}", parts.len(), expected.len()));
    }
    found
}

fn dtype_name(tensor: &Value) -> String {
    tensor["dtype"].as_str().unwrap().to_uppercase()
}

#[test]
fn compressed_tensors_tensors_match_golden_values() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/compressed_tensors.json");
    let cases: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let sound: Vec<&Value> = cases.iter().filter(|case| case["sound"] == Value::Bool(true)).collect();
    let failures: Vec<String> = sound
        .iter()
        .filter_map(|case| {
            let found = differences(case);
            (!found.is_empty()).then(|| format!("{}: {}", case["id"], found.join(", ")))
        })
        .collect();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), sound.len(), failures.join("\n"));
    assert!(sound.len() > 70, "{}", sound.len());
}
