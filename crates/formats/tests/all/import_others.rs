//! Reading the layouts that Kvant does not write: AWQ, GPTQ, fp8, MXFP4, ModelOpt. Packed here code by code as the layouts
//! are described.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use crate::common::{Tensor, encoded, write};
use kvant_container::{Checkpoint, Diagnostic, Dtype};
use kvant_formats::import::{self, Import};
use kvant_numeric::format::{MiniFloat, e8m0_decode};
use kvant_numeric::simd::Isa;
use kvant_weights::weight::Stored;
use kvant_weights::weight::{Band, WeightMatrix};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

const ROWS: usize = 32;
const COLUMNS: usize = 96;
const UP: &str = "model.layers.0.mlp.up_proj";

/// A number below `bound` for a place.
fn number(row: usize, column: usize, bound: usize) -> usize {
    ((row * 131 + column * 31 + 7).wrapping_mul(2_654_435_769) >> 7) % bound
}

/// Words of a matrix of codes, `code(i)` from bit `i * bits` on, as one stream of `count` codes.
fn stream(count: usize, bits: usize, code: impl Fn(usize) -> usize) -> Vec<u32> {
    let mut words = vec![0u32; (count * bits).div_ceil(32)];
    for bit in 0..count * bits {
        words[bit / 32] |= ((code(bit / bits) >> (bit % bits) & 1) as u32) << (bit % 32);
    }
    words
}

fn words(name: &str, shape: [usize; 2], words: &[u32]) -> Tensor {
    (format!("{UP}.{name}"), Dtype::I32, shape.to_vec(), words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

fn scale(row: usize, group: usize) -> f32 {
    (1 + number(row, group, 64)) as f32 / 128.0
}

fn scales(name: &str, dtype: Dtype, shape: [usize; 2], value: impl Fn(usize) -> f32) -> Tensor {
    let values: Vec<f32> = (0..shape[0] * shape[1]).map(value).collect();
    (format!("{UP}.{name}"), dtype, shape.to_vec(), encoded(dtype, &values))
}

fn open_with(quantization: Value, side_file: Option<(&str, Value)>, tensors: &[Tensor], check: impl Fn(&Import<'_>)) {
    let dir = tempfile::tempdir().unwrap();
    let config = match quantization {
        Value::Null => json!({"model_type": "llama"}),
        quantization => json!({"model_type": "llama", "quantization_config": quantization}),
    };
    write(dir.path(), &config, tensors);
    if let Some((name, value)) = side_file {
        std::fs::write(dir.path().join(name), value.to_string()).unwrap();
    }
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    check(&import::open(&checkpoint).unwrap_or_else(|e| panic!("{e}")));
}

/// Every value of every matrix, in several bands.
fn assert_values(
    import: &Import<'_>,
    name: &str,
    (rows, columns): (usize, usize),
    value: impl Fn(usize, usize, usize) -> f32,
) {
    let tensor = import.tensors().iter().find(|tensor| tensor.meta.name == name).unwrap();
    let Stored::Packed(matrices) = &tensor.stored else { panic!("{tensor:?}") };
    for (expert, matrix) in matrices.iter().enumerate() {
        let matrix = WeightMatrix::packed(Arc::clone(matrix));
        assert_eq!((matrix.rows, matrix.columns), (rows, columns));
        for band in [(0..rows, 0..columns), (3..17, 0..columns), (rows - 1..rows, 33..70), (8..16, 64..columns)] {
            let band = Band { rows: band.0, columns: band.1 };
            let mut values = Vec::new();
            matrix.read(Isa::best(), &band, &mut values);
            let places = band.rows.clone().flat_map(|row| band.columns.clone().map(move |column| (row, column)));
            for ((row, column), found) in places.zip(values) {
                assert_eq!(found, value(expert, row, column), "{name} {expert} {row} {column}");
            }
        }
    }
}

fn weight() -> String {
    format!("{UP}.weight")
}

#[test]
fn awq_codes_are_imported() {
    const GROUP: usize = 32;
    const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
    let groups = COLUMNS / GROUP;
    let code = |row, column| number(row, column, 16);
    let zero = |row, group| number(row + 1000, group, 16);
    // Nibble `i` of a word holds output channel `8 * word + ORDER[i]`.
    let across = |lines: usize, code: &dyn Fn(usize, usize) -> usize| -> Vec<u32> {
        (0..lines).flat_map(|line| stream(ROWS, 4, |i| code(i / 8 * 8 + ORDER[i % 8], line))).collect()
    };
    let tensors = [
        words("qweight", [COLUMNS, ROWS / 8], &across(COLUMNS, &code)),
        words("qzeros", [groups, ROWS / 8], &across(groups, &zero)),
        scales("scales", Dtype::F16, [groups, ROWS], |i| scale(i % ROWS, i / ROWS)),
    ];
    let check = |import: &Import<'_>| {
        assert_values(import, &weight(), (ROWS, COLUMNS), |_, row, column| {
            let group = column / GROUP;
            (code(row, column) as f32 - zero(row, group) as f32) * scale(row, group)
        });
    };
    let config = json!({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true, "version": "gemm"});
    open_with(config, None, &tensors, check);
    let side = json!({"zero_point": true, "q_group_size": 32, "w_bit": 4, "version": "GEMM"});
    open_with(Value::Null, Some(("quant_config.json", side)), &tensors, check);
}

/// A layer of GPTQ; `group_of` is the group of an input channel.
fn gptq(bits: usize, v2: bool, group_of: Option<&dyn Fn(usize) -> usize>) {
    const GROUP: usize = 32;
    let groups = COLUMNS / GROUP;
    let code = |row, column| number(row, column, 1 << bits);
    // The first version cannot store 0, which it would store as -1.
    let zero = |row, group| 1 + number(row + 1000, group, (1 << bits) - 1);
    let columns: Vec<Vec<u32>> = (0..ROWS).map(|row| stream(COLUMNS, bits, |column| code(row, column))).collect();
    let lines = COLUMNS * bits / 32;
    let qweight: Vec<u32> = (0..lines).flat_map(|line| columns.iter().map(move |column| column[line])).collect();
    let stored = |row, group| zero(row, group) - usize::from(!v2);
    let qzeros: Vec<u32> = (0..groups).flat_map(|group| stream(ROWS, bits, |row| stored(row, group))).collect();
    let mut tensors = vec![
        words("qweight", [lines, ROWS], &qweight),
        words("qzeros", [groups, ROWS * bits / 32], &qzeros),
        scales("scales", Dtype::F16, [groups, ROWS], |i| scale(i % ROWS, i / ROWS)),
    ];
    let in_order = |column: usize| column / GROUP;
    if let Some(group_of) = group_of {
        let list: Vec<u8> = (0..COLUMNS).flat_map(|column| (group_of(column) as u32).to_le_bytes()).collect();
        tensors.push((format!("{UP}.g_idx"), Dtype::I32, vec![COLUMNS], list));
    }
    let group_of = group_of.unwrap_or(&in_order);
    let check = |import: &Import<'_>| {
        assert_eq!(import.tensors().len(), 1);
        assert_values(import, &weight(), (ROWS, COLUMNS), |_, row, column| {
            let group = group_of(column);
            (code(row, column) as f32 - zero(row, group) as f32) * scale(row, group)
        });
    };
    let format = if v2 { "gptq_v2" } else { "gptq" };
    let fields = json!({"bits": bits, "group_size": GROUP, "checkpoint_format": format, "desc_act": true});
    open_with(Value::Null, Some(("quantize_config.json", fields.clone())), &tensors, check);
    let mut config = fields;
    config["quant_method"] = json!("gptq");
    open_with(config, None, &tensors, check);
}

#[test]
fn gptq_of_all_bit_widths_and_versions_is_imported() {
    for bits in [2, 3, 4, 8] {
        for v2 in [false, true] {
            gptq(bits, v2, None);
            gptq(bits, v2, Some(&|column| column / 32));
            gptq(bits, v2, Some(&|column| (column * 7 + 5) % 3));
        }
    }
}

#[test]
fn g_idx_out_of_range_is_refused() {
    let broken = std::panic::catch_unwind(|| gptq(4, true, Some(&|column| column)));
    let message = *broken.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("g_idx") && message.contains("below 3"), "{message}");
}

/// An fp8 weight whose codes are all finite.
fn fp8_code(row: usize, column: usize) -> u8 {
    let code = number(row, column, 256) as u8;
    if code & 0x7F == 0x7F { 0 } else { code }
}

fn fp8_weight() -> Tensor {
    let codes = (0..ROWS * COLUMNS).map(|i| fp8_code(i / COLUMNS, i % COLUMNS)).collect();
    (weight(), Dtype::F8_E4M3, vec![ROWS, COLUMNS], codes)
}

#[test]
fn fp8_scales_of_every_granularity_are_imported() {
    let config =
        |block: Value| json!({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": block});
    let cases = [
        ("weight_scale", [1, 1], Value::Null, (ROWS, COLUMNS)),
        ("weight_scale", [ROWS, 1], Value::Null, (1, COLUMNS)),
        ("weight_scale_inv", [4, 3], json!([8, 32]), (8, 32)),
        // 40 columns: the last block is short.
        ("weight_scale_inv", [2, 3], json!([16, 40]), (16, 40)),
    ];
    for (name, shape, block, tile) in cases {
        let tensors = [fp8_weight(), scales(name, Dtype::F32, shape, |i| scale(i / shape[1], i % shape[1]))];
        open_with(config(block), None, &tensors, |import| {
            assert_values(import, &weight(), (ROWS, COLUMNS), |_, row, column| {
                MiniFloat::E4M3.decode(fp8_code(row, column)) * scale(row / tile.0, column / tile.1)
            });
            let input = import.activations(UP).unwrap().input.as_ref().unwrap().scheme.to_string();
            let expected = if tile.1 < COLUMNS {
                format!("e4m3:g{}:f32!dynamic", tile.1)
            } else {
                "e4m3:channel:f32!dynamic".into()
            };
            assert_eq!(input, expected);
        });
    }
}

#[test]
fn fp8_static_inputs_and_cache_are_imported() {
    let one = |name: &str, value: f32| (name.to_owned(), Dtype::F32, vec![], encoded(Dtype::F32, &[value]));
    let mut tensors =
        vec![fp8_weight(), one(&format!("{UP}.weight_scale"), 0.5), one(&format!("{UP}.input_scale"), 0.25)];
    tensors.push(one("model.layers.0.self_attn.k_scale", 0.75));
    tensors.push(one("model.layers.0.self_attn.v_proj.v_scale", 0.125));
    let check = |import: &Import<'_>| {
        assert_values(import, &weight(), (ROWS, COLUMNS), |_, row, column| {
            MiniFloat::E4M3.decode(fp8_code(row, column)) * 0.5
        });
        let attention = import.attention(0).unwrap();
        let scales =
            [&attention.key, &attention.value].map(|found| found.as_ref().unwrap().parameters.clone().unwrap().scales);
        assert_eq!(scales, [[0.75], [0.125]]);
        assert_eq!(import.tensors().len(), 1);
    };
    let input = |import: &Import<'_>| {
        import.activations(UP).and_then(|found| found.input.clone()).map(|input| input.parameters.unwrap().scales)
    };
    open_with(json!({"quant_method": "fp8", "activation_scheme": "static"}), None, &tensors, |import| {
        check(import);
        assert_eq!(input(import), Some(vec![0.25]));
    });
    open_with(json!({"quant_method": "modelopt", "quant_algo": "FP8"}), None, &tensors, |import| {
        check(import);
        assert_eq!(input(import), Some(vec![0.25]));
    });
    open_with(Value::Null, None, &tensors, |import| {
        check(import);
        assert_eq!(input(import), None);
    });
}

#[test]
fn modelopt_nvfp4_is_imported() {
    let codes = (0..ROWS * COLUMNS / 2).map(|i| (number(i, 0, 16) | number(i, 1, 16) << 4) as u8).collect();
    let block = |row: usize, group: usize| 0x30 + number(row, group, 24) as u8;
    let blocks = (0..ROWS * COLUMNS / 16).map(|i| block(i / (COLUMNS / 16), i % (COLUMNS / 16))).collect();
    let one = |name: &str, value: f32| (format!("{UP}.{name}"), Dtype::F32, vec![], encoded(Dtype::F32, &[value]));
    let tensors = [
        (weight(), Dtype::U8, vec![ROWS, COLUMNS / 2], codes),
        (format!("{UP}.weight_scale"), Dtype::F8_E4M3, vec![ROWS, COLUMNS / 16], blocks),
        one("weight_scale_2", 0.01),
        one("input_scale", 0.002),
    ];
    let side = json!({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}});
    open_with(Value::Null, Some(("hf_quant_config.json", side)), &tensors, |import| {
        assert_values(import, &weight(), (ROWS, COLUMNS), |_, row, column| {
            let byte = row * (COLUMNS / 2) + column / 2;
            let code = number(byte, column % 2, 16) as u8;
            MiniFloat::E2M1.decode(code) * (MiniFloat::E4M3.decode(block(row, column / 16)) * 0.01)
        });
        let input = import.activations(UP).unwrap().input.clone().unwrap();
        assert_eq!(input.scheme.to_string(), "e2m1:g16:e4m3:f32!local");
        assert_eq!(input.parameters.unwrap().scales, [0.002]);
    });
}

#[test]
fn mxfp4_experts_are_imported() {
    const EXPERTS: usize = 3;
    let (name, groups) = ("model.layers.0.mlp.experts.gate_up_proj", COLUMNS / 32);
    let code = |expert, row, column| number(row + 777 * expert, column, 16) as u8;
    let power = |expert, row, group| (118 + number(row + 99 * expert, group, 12)) as u8;
    let places =
        |width: usize| (0..EXPERTS * ROWS * width).map(move |i| (i / width / ROWS, i / width % ROWS, i % width));
    let codes = places(COLUMNS / 2).map(|(e, r, b)| code(e, r, 2 * b) | code(e, r, 2 * b + 1) << 4).collect();
    let powers = places(groups).map(|(e, r, g)| power(e, r, g)).collect();
    let tensors = [
        (format!("{name}_blocks"), Dtype::U8, vec![EXPERTS, ROWS, groups, 16], codes),
        (format!("{name}_scales"), Dtype::U8, vec![EXPERTS, ROWS, groups], powers),
        crate::common::weight(&format!("{name}_bias"), Dtype::BF16, &[EXPERTS, ROWS]),
    ];
    open_with(json!({"quant_method": "mxfp4"}), None, &tensors, |import| {
        assert_eq!(import.tensors()[0].meta.shape, [EXPERTS, COLUMNS, ROWS]);
        assert_eq!(import.tensors().len(), 2);
        assert_values(import, name, (ROWS, COLUMNS), |expert, row, column| {
            MiniFloat::E2M1.decode(code(expert, row, column)) * e8m0_decode(power(expert, row, column / 32))
        });
    });
}

#[test]
fn unsupported_layouts_are_refused_with_a_hint() {
    for config in [
        json!({"quant_method": "awq", "bits": 8}),
        json!({"quant_method": "awq", "bits": 4, "version": "gemv"}),
        json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}),
        json!({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}),
        json!({"quant_method": "auto-round", "packing_format": "auto_round:exllamav2"}),
        json!({"quant_method": "fp8", "activation_scheme": "sometimes"}),
        json!({"quant_method": "bitsandbytes"}),
        json!({}),
    ] {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &json!({"quantization_config": config}), &[]);
        let checkpoint = Checkpoint::open(Path::new(dir.path())).unwrap();
        let error = import::open(&checkpoint).unwrap_err();
        assert_eq!(error.kind(), kvant_container::ErrorKind::Unsupported, "{config} {error}");
        assert!(error.hint().is_some());
    }
}
