//! The same layer in amd-quark, whose codes are in `tests/golden/quark_gptq.json`. It computes in f32, so that it turns
//! near ties the other way, and all that follows from one in its row is then different.

use super::reference::judge;
use super::{context, order, scheme};
use crate::input;
use kvant_quant::hessian::Hessian;
use kvant_quant::rounding::{ColumnOrder, Gptq, Groups};
use kvant_quant::{Codes, QuantParts, QuantTensor};
use serde_json::{Value, json};

/// `make_gptq.py`'s mix of `rows` rows of inputs.
fn mixed(rows: u64, features: usize, seed: u64) -> Vec<f32> {
    let case = json!({ "rows": rows, "cols": features, "dtype": "f32", "transform": "flat", "seed": seed });
    let mut inputs = input::values(&case);
    for row in inputs.chunks_mut(features) {
        (1..features).for_each(|c| row[c] = row[c - 1] * 0.75 + row[c] * 0.25);
        row.iter_mut().skip(3).step_by(20).for_each(|x| *x *= 8.0);
        row[7] = 0.0;
    }
    inputs
}

fn settings(record: &Value) -> Gptq {
    let settings = match record["algorithm"].as_str().unwrap() {
        "gptq" => Gptq::GPTQ,
        "gptaq" => Gptq::GPTAQ,
        _ => Gptq::QRONOS,
    };
    let order = if record["act_order"].as_bool().unwrap() {
        ColumnOrder::Activation
    } else {
        ColumnOrder::Stored(Groups::Static)
    };
    Gptq { order, ..settings }
}

/// The incumbent's tensor, whose codes are given as steps from zero.
fn recorded(ours: &QuantTensor, record: &Value) -> QuantTensor {
    let (rows, columns) = ours.shape();
    let steps = input::bytes(&json!({ "hex": record["codes"] }));
    let float = record["scheme"].as_str().unwrap().starts_with("e2m1");
    let code = |(i, step): (usize, u8)| {
        let step = step as i8;
        let zero_point = ours.zero_points().get(i / 32).copied().unwrap_or(0.0);
        match float {
            // In halves: 0, 1, 2, 3, 4, 6, 8, 12.
            true => {
                let magnitude = [0, 1, 2, 3, 4, 6, 8, 12].iter().position(|h| *h == step.unsigned_abs()).unwrap();
                magnitude as u8 | if step < 0 { 8 } else { 0 }
            }
            false => (f64::from(step) + zero_point) as i64 as u8,
        }
    };
    let parts = QuantParts {
        codes: Codes::Bytes(steps.into_iter().enumerate().map(code).collect()),
        scales: input::floats(&record["scale"]),
        zero_points: ours.zero_points().to_vec(),
        global_scale: None,
    };
    QuantTensor::new(ours.scheme(), rows, columns, parts).unwrap()
}

#[test]
fn gptq_codes_match_quark_except_ties() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/quark_gptq.json");
    let document: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let size = |key: &str| document[key].as_u64().unwrap();
    let (rows, features, tokens) = (size("rows") as usize, size("features") as usize, size("tokens"));
    let case = json!({ "rows": rows, "cols": features, "dtype": "f32", "transform": "flat", "seed": 1 });
    let weights = input::values(&case);
    let inputs = mixed(tokens, features, 2);
    let mut floats = mixed(tokens, features, 3);
    floats.iter_mut().zip(&inputs).for_each(|(float, x)| *float = x + *float * 0.125);
    let mut hessian = Hessian::with_mismatch(features);
    hessian.add_with_float(&inputs, &mut floats);
    for record in document["records"].as_array().unwrap() {
        let settings = settings(record);
        let text = record["scheme"].as_str().unwrap();
        let ours = settings.prepare(&hessian).unwrap().round(&weights, rows, scheme(text), context()).unwrap();
        let theirs = recorded(&ours.tensor, record);
        assert_eq!(theirs.scales(), ours.tensor.scales(), "{record}");
        let verdict = judge(settings, &order(settings, &hessian), &hessian, &weights, &theirs, 5e-2);
        let same = theirs.dequantize().iter().zip(ours.tensor.dequantize()).filter(|(a, b)| **a == *b).count();
        assert!(verdict.wrong == 0 && verdict.ties <= 6, "{text} {settings:?} {verdict:?}");
        assert!(same >= 935, "{text} {settings:?}: only {same} codes are the same");
    }
}
