//! The inputs and tensors of the golden files, as `golden_input.py` describes them. Shared by the tests of several crates.
#![allow(dead_code, clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use kvant_numeric::kernel::{FloatDType, widen};
use kvant_numeric::simd::Isa;
use serde_json::Value;

/// The type of that name.
pub fn source(dtype: &Value) -> FloatDType {
    match dtype.as_str() {
        Some("bf16") => FloatDType::Bf16,
        Some("f16") => FloatDType::F16,
        _ => FloatDType::F32,
    }
}

/// The values of the input that a case describes, row-major, rounded to its type.
pub fn values(input: &Value) -> Vec<f32> {
    let size = |key: &str| input[key].as_u64().unwrap() as usize;
    let (rows, columns) = (size("rows"), size("cols"));
    let seed = input["seed"].as_u64().unwrap_or(12_345) as u32;
    let mut values = transformed(input["transform"].as_str().unwrap(), generated(rows * columns, seed), columns);
    let arithmetic = source(&input["dtype"]).arithmetic();
    values.iter_mut().for_each(|v| *v = arithmetic.round(*v));
    values
}

/// The bytes of a tensor in a golden file.
pub fn bytes(tensor: &Value) -> Vec<u8> {
    let hex = tensor["hex"].as_str().unwrap();
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

/// The values of a tensor of floats in a golden file.
pub fn floats(tensor: &Value) -> Vec<f32> {
    let (bytes, source) = (bytes(tensor), source(&tensor["dtype"]));
    let mut values = vec![0.0; bytes.len() / source.size()];
    widen(Isa::best(), source, &bytes, &mut values);
    values
}

fn generated(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut draw = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state) / 4_294_967_296.0
    };
    (0..count).map(|_| ((draw() + draw() + draw() + draw() - 2.0) * 1.5) as f32).collect()
}

fn transformed(name: &str, mut values: Vec<f32>, columns: usize) -> Vec<f32> {
    let power = |values: &mut Vec<f32>, exponent: i32| {
        values.iter_mut().for_each(|v| *v = (f64::from(*v) * f64::from(exponent).exp2()) as f32);
    };
    match name {
        "flat" => {}
        "probe" => {
            for (row, line) in values.chunks_mut(columns).enumerate() {
                line.iter_mut().for_each(|v| *v *= (row as f32 - 4.0).exp2());
            }
            values[..32].fill(0.0);
            values[columns + 5] = 7.0;
        }
        "zeros" => values.fill(0.0),
        "constant" => values.chunks_mut(columns).for_each(|line| line.fill(line[0])),
        "positive" => values.iter_mut().for_each(|v| *v = v.abs() + 1.0),
        "negative" => values.iter_mut().for_each(|v| *v = -(v.abs() + 1.0)),
        _ => match name.strip_prefix("pow") {
            Some(exponent) => power(&mut values, exponent.parse().unwrap()),
            None => {
                let exponent: i32 = name.strip_prefix("peaks").unwrap().parse().unwrap();
                power(&mut values, exponent - 3);
                let peak = (1.992_187_5 * f64::from(exponent).exp2()) as f32;
                values.chunks_mut(columns).for_each(|line| (line[0], line[1]) = (peak, -peak));
            }
        },
    }
    values
}
