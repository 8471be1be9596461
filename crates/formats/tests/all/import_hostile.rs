//! Damaged and hostile quantized checkpoints: whatever is changed in names, types, shapes, bytes and config.json, opening
//! refuses or what it accepts can be read. Nothing panics.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use crate::common::{Tensor, write};
use kvant_container::{Checkpoint, Diagnostic, Dtype};
use kvant_formats::import;
use kvant_numeric::simd::Isa;
use kvant_weights::weight::Stored;
use kvant_weights::weight::{Band, WeightMatrix};
use serde_json::{Value, json};
use std::sync::Arc;

const DTYPES: [Dtype; 9] =
    [Dtype::U8, Dtype::I8, Dtype::I32, Dtype::I64, Dtype::F8_E4M3, Dtype::BF16, Dtype::F16, Dtype::F32, Dtype::F8_E8M0];

struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }
}

fn tensor(name: &str, dtype: Dtype, shape: &[usize]) -> Tensor {
    let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
    (format!("m.0.up{name}"), dtype, shape.to_vec(), (0..bytes).map(|i| (i * 37 % 120) as u8).collect())
}

fn shape_tensor(rows: i64, columns: i64) -> Tensor {
    ("m.0.up.weight_shape".into(), Dtype::I64, vec![2], [rows, columns].map(i64::to_le_bytes).concat())
}

/// A sound layer in every layout, with what config.json says of it.
fn layers() -> Vec<(Value, Vec<Tensor>)> {
    let quark = |dtype: &str, qscheme: &str| {
        let weight = json!({"dtype": dtype, "qscheme": qscheme, "ch_axis": -1, "group_size": 32, "is_dynamic": false, "symmetric": true});
        let input = json!({"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": false});
        json!({"quant_method": "quark", "global_quant_config": {"weight": weight, "input_tensors": input}, "export": {}})
    };
    let packed = json!({"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": false});
    let compressed = |format: &str, weights: &Value| json!({"quant_method": "compressed-tensors", "format": format, "config_groups": {"g": {"targets": ["Linear"], "weights": weights}}});
    let nvfp4 = json!({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16});
    let scalar = |name: &str| tensor(name, Dtype::F32, &[1]);
    vec![
        (
            quark("int4", "per_group"),
            vec![
                tensor(".weight", Dtype::I32, &[64, 4]),
                tensor(".weight_scale", Dtype::BF16, &[2, 32]),
                tensor(".weight_zero_point", Dtype::I32, &[2, 4]),
                scalar(".input_scale"),
            ],
        ),
        (
            compressed("pack-quantized", &packed),
            vec![
                tensor(".weight_packed", Dtype::I32, &[32, 8]),
                tensor(".weight_scale", Dtype::BF16, &[32, 2]),
                tensor(".weight_zero_point", Dtype::I32, &[4, 2]),
                shape_tensor(32, 64),
            ],
        ),
        (
            compressed("nvfp4-pack-quantized", &nvfp4),
            vec![
                tensor(".weight_packed", Dtype::U8, &[32, 32]),
                tensor(".weight_scale", Dtype::F8_E4M3, &[32, 4]),
                scalar(".weight_global_scale"),
            ],
        ),
        (
            json!({"quant_method": "awq", "bits": 4}),
            vec![
                tensor(".qweight", Dtype::I32, &[64, 4]),
                tensor(".qzeros", Dtype::I32, &[2, 4]),
                tensor(".scales", Dtype::F16, &[2, 32]),
            ],
        ),
        (
            json!({"quant_method": "gptq", "bits": 3, "group_size": 32}),
            vec![
                tensor(".qweight", Dtype::I32, &[6, 32]),
                tensor(".qzeros", Dtype::I32, &[2, 3]),
                tensor(".scales", Dtype::F16, &[2, 32]),
                (
                    "m.0.up.g_idx".into(),
                    Dtype::I32,
                    vec![64],
                    (0..64).flat_map(|i: i32| (i % 2).to_le_bytes()).collect(),
                ),
            ],
        ),
        (
            json!({"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": [16, 16]}),
            vec![
                tensor(".weight", Dtype::F8_E4M3, &[32, 40]),
                tensor(".weight_scale_inv", Dtype::F32, &[2, 3]),
                scalar(".input_scale"),
            ],
        ),
        (
            json!({"quant_method": "mxfp4"}),
            vec![tensor("_blocks", Dtype::U8, &[2, 8, 2, 16]), tensor("_scales", Dtype::U8, &[2, 8, 2])],
        ),
        (
            json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}),
            vec![
                tensor(".weight", Dtype::U8, &[32, 32]),
                tensor(".weight_scale", Dtype::F8_E4M3, &[32, 4]),
                scalar(".weight_scale_2"),
                scalar(".input_scale"),
            ],
        ),
    ]
}

fn change_tensor(chance: &mut Chance, tensors: &mut Vec<Tensor>) {
    let at = chance.below(tensors.len());
    let (name, dtype, shape, bytes) = &mut tensors[at];
    match chance.below(6) {
        0 => drop(tensors.remove(at)),
        1 => *dtype = chance.of(&DTYPES),
        2 => shape.push(chance.below(3)),
        3 => drop(shape.pop()),
        4 if !shape.is_empty() => {
            let axis = chance.below(shape.len());
            shape[axis] = chance.of(&[0, 1, 2, 3, 7, 31, 33, 64, 100]);
        }
        5 => bytes.iter_mut().for_each(|byte| *byte = chance.below(256) as u8),
        _ => name.push('x'),
    }
    for (_, dtype, shape, bytes) in tensors {
        bytes.resize(shape.iter().product::<usize>() * dtype.bitsize() / 8, 0xFF);
    }
}

/// Puts something else into one field, wherever it stands.
fn change_config(chance: &mut Chance, value: &mut Value) {
    let others = [
        json!(null),
        json!(0),
        json!(-1),
        json!(3),
        json!(16),
        json!(1e300),
        json!("int16"),
        json!("uint2"),
        json!([]),
        json!({}),
        json!("channel"),
        json!([0, 1]),
        json!(true),
        json!("re:("),
    ];
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let index = chance.below(fields.len());
            fields.values_mut().nth(index).into_iter().for_each(|field| change_config(chance, field));
        }
        other => *other = chance.of(&others),
    }
}

/// Opens and reads everything; returns whether it was accepted.
fn accepted(config: &Value, tensors: &[Tensor]) -> bool {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &json!({"quantization_config": config}), tensors);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let import = match import::open(&checkpoint) {
        Ok(import) => import,
        Err(error) => {
            assert!(error.hint().is_some() && !error.to_string().is_empty());
            return false;
        }
    };
    let matrices = import.into_tensors().into_iter().filter_map(|tensor| match tensor.stored {
        Stored::Packed(matrices) => Some(matrices),
        Stored::Plain(_) => None,
    });
    for matrix in matrices.flatten() {
        let matrix = WeightMatrix::packed(Arc::clone(&matrix));
        let mut values = Vec::new();
        matrix.read(Isa::best(), &Band { rows: 0..matrix.rows, columns: 0..matrix.columns }, &mut values);
        assert_eq!(values.len(), matrix.rows * matrix.columns);
    }
    true
}

#[test]
fn valid_layers_are_accepted() {
    for (config, tensors) in layers() {
        assert!(accepted(&config, &tensors), "{config}");
    }
}

#[test]
fn mutated_checkpoints_never_panic() {
    let mut chance = Chance(42);
    let mut refused = 0;
    for round in 0..1500 {
        let (mut config, mut tensors) = chance.of(&layers());
        for _ in 0..1 + chance.below(2) {
            match round % 3 {
                0 => change_config(&mut chance, &mut config),
                _ if tensors.is_empty() => {}
                _ => change_tensor(&mut chance, &mut tensors),
            }
        }
        refused += usize::from(!accepted(&config, &tensors));
    }
    assert!((500..1450).contains(&refused), "{refused}");
}
