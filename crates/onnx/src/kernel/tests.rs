//! The kernels of blocks against what AMD Quark 0.13 computes, bit for bit.

use kvant_container::onnx::NodeProto;
use serde_json::Value;

use super::*;
use crate::graph::{node, set_attribute};

fn floats(value: &Value) -> Vec<f32> {
    let bits = |v: &Value| f32::from_bits(u32::from_str_radix(v.as_str().unwrap(), 16).unwrap());
    value.as_array().unwrap().iter().map(bits).collect()
}

fn node_of(case: &Value) -> NodeProto {
    let mut node = node(case["op"].as_str().unwrap(), "n", &["x"], &["y"]);
    for (name, value) in case["attrs"].as_object().unwrap() {
        match value {
            Value::String(text) => set_attribute(&mut node, name, &text[..]),
            number => set_attribute(&mut node, name, number.as_i64().unwrap()),
        }
    }
    node
}

#[test]
fn block_kernels_match_quark() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../../tests/data/block_vectors.json")).unwrap();
    assert_eq!(cases.len(), 26);
    for case in &cases {
        let shape: Vec<usize> =
            case["shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap() as usize).collect();
        let (node, x, mut y) = (node_of(case), floats(&case["x"]), floats(&case["x"]));
        match node.op_type() {
            "BFPQuantizeDequantize" => Bfp::of(&node).unwrap().apply(&shape, &mut y),
            _ => Microscaling::of(&node).unwrap().apply(&shape, &mut y),
        }
        for ((x, got), want) in x.iter().zip(&y).zip(floats(&case["y"])) {
            let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
            assert!(same, "{} {}: {x:e} gave {got:e}, not {want:e}", case["tag"], case["attrs"]);
        }
    }
}

#[test]
fn unsupported_kernel_attributes_are_errors() {
    let with = |op: &str, name: &str, value: i64| {
        let mut node = node(op, "n", &["x"], &["y"]);
        set_attribute(&mut node, name, value);
        node
    };
    assert!(Bfp::of(&with("BFPQuantizeDequantize", "bit_width", 40)).is_err());
    assert!(Bfp::of(&with("BFPQuantizeDequantize", "block_size", 0)).is_err());
    assert!(Bfp::of(&with("BFPQuantizeDequantize", "rounding_mode", 3)).is_err());
    assert!(Microscaling::of(&with("MXQuantizeDequantize", "block_size", -1)).is_err());
}
