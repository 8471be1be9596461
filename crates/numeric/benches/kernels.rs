//! Speed of the kernels over slices, one thread: elements a second on every instruction set of this processor. Rounds alternate between
//! instruction sets, and the best of each is printed.
//!
//! `cargo bench -p kvant-numeric --bench kernels [-- KERNEL ...]`
//!
//! With `--count ISA KERNEL REPETITIONS` one kernel runs a number of times and nothing is measured: for counters of instructions
//! (`benches/aarch64_instructions.py`). `--names` lists the kernels.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use kvant_numeric::ComputeDType;
use kvant_numeric::format::{Int, MiniFloat};
use kvant_numeric::ggml::{self, GgmlType};
use kvant_numeric::kernel::*;
use kvant_numeric::linalg::{
    AttentionBuffers, AttentionRule, KeysValues, Matrix, MatrixMut, Precision, QUERIES, ScoreBias, Weight, linear,
    linear_rows,
};
use kvant_numeric::pack::{pack_bits, unpack_bits};
use kvant_numeric::simd::Isa;
use std::hint::black_box;
use std::time::Instant;

/// Elements of each run: rows of [`COLUMNS`].
const COUNT: usize = 1 << 16;
const COLUMNS: usize = 2048;
const ROUNDS: usize = 15;

type Kernel = Box<dyn FnMut(Isa)>;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let named: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match named.as_slice() {
        ["--names"] => kernels().iter().for_each(|(name, _)| println!("{name}")),
        ["--count", isa, kernel, repetitions] => {
            let isa = Isa::available().into_iter().find(|found| found.name() == *isa).unwrap();
            let mut run = kernels().into_iter().find(|(name, _)| name == kernel).unwrap().1;
            (0..repetitions.parse::<usize>().unwrap()).for_each(|_| run(isa));
        }
        named => measure(named),
    }
}

fn measure(named: &[&str]) {
    let isas = Isa::available();
    println!("{:24} {}", "elements/ns", isas.iter().map(|isa| format!("{:>10}", isa.name())).collect::<String>());
    for (name, mut run) in kernels().into_iter().filter(|(name, _)| named.is_empty() || named.contains(&name.as_str()))
    {
        let mut best = vec![f64::INFINITY; isas.len()];
        for _ in 0..ROUNDS {
            for (isa, best) in isas.iter().zip(&mut best) {
                let start = Instant::now();
                run(*isa);
                *best = best.min(start.elapsed().as_secs_f64());
            }
        }
        println!("{name:24} {}", best.iter().map(|s| format!("{:>10.3}", COUNT as f64 / s * 1e-9)).collect::<String>());
    }
}

fn kernels() -> Vec<(String, Kernel)> {
    let mut all: Vec<(String, Kernel)> = Vec::new();
    ranges(&mut all);
    codes(&mut all);
    packing(&mut all);
    values_of_codes(&mut all);
    widths(&mut all);
    blocks(&mut all);
    all.push(("bins 2048".into(), bins()));
    all.push(("attention f32".into(), attention(Precision::F32)));
    all.push(("attention bf16".into(), attention(Precision::Bf16)));
    products(&mut all);
    all
}

fn ranges(all: &mut Vec<(String, Kernel)>) {
    for group in [16, 32, 128, COLUMNS] {
        let (bytes, mut out) = (bf16_bytes(), vec![0.0; COUNT / group]);
        let run = move |isa: Isa| {
            element_abs_max(isa, Elements::stored(FloatDType::Bf16, black_box(&bytes)).unwrap(), group, &mut out);
            black_box(&out);
        };
        all.push((format!("abs-max bf16 g{group}"), Box::new(run)));
    }
    for (source, bytes) in [(FloatDType::Bf16, bf16_bytes()), (FloatDType::F32, f32_bytes())] {
        let mut out = vec![Range::EMPTY; COUNT / 128];
        let run = move |isa: Isa| {
            element_ranges(isa, Elements::stored(source, black_box(&bytes)).unwrap(), 128, &mut out);
            black_box(&out);
        };
        all.push((format!("min-max {source:?} g128").to_lowercase(), Box::new(run)));
    }
}

fn codes(all: &mut Vec<(String, Kernel)>) {
    for (name, format, group, zero_point) in [
        ("int4 g32", Int::INT4, 32, 0),
        ("int4 g128", Int::INT4, 128, 0),
        ("uint4 g128", Int::UINT4, 128, 7),
        ("int8 channel", Int::INT8, COLUMNS, 0),
    ] {
        let (bytes, mut codes) = (bf16_bytes(), vec![0; COUNT]);
        let inverse_scale = format.max() as f32 / 0.06;
        let steps = vec![AffineStep { inverse_scale, zero_point }; COUNT / group];
        let run = move |isa: Isa| {
            let elements = Elements::stored(FloatDType::Bf16, black_box(&bytes)).unwrap();
            element_codes(isa, format, elements, group, &steps, &mut codes);
            black_box(&codes);
        };
        all.push((format!("{name} bf16"), Box::new(run)));
    }
    let divide = Scaling::Divide;
    for (name, source, format, scaling, group) in [
        ("mxfp4", FloatDType::Bf16, MiniFloat::E2M1, Scaling::PowerOfTwo, 32),
        ("mxfp8", FloatDType::Bf16, MiniFloat::E4M3, Scaling::PowerOfTwo, 32),
        ("nvfp4", FloatDType::Bf16, MiniFloat::E2M1, divide(ComputeDType::F32), 16),
        ("fp8 channel", FloatDType::Bf16, MiniFloat::E4M3, divide(ComputeDType::F32), COLUMNS),
        ("fp8 channel in bf16", FloatDType::Bf16, MiniFloat::E4M3, divide(ComputeDType::Bf16), COLUMNS),
        ("fp8 channel in f16", FloatDType::F16, MiniFloat::E4M3, divide(ComputeDType::F16), COLUMNS),
        ("fp8 channel", FloatDType::F32, MiniFloat::E4M3, divide(ComputeDType::F32), COLUMNS),
    ] {
        let bytes = match source {
            FloatDType::Bf16 => bf16_bytes(),
            FloatDType::F16 => f16_bytes(),
            _ => f32_bytes(),
        };
        let (mut codes, scales) = (vec![0; COUNT], vec![2.0f32.powi(-6); COUNT / group]);
        let run = move |isa: Isa| {
            let elements = Elements::stored(source, black_box(&bytes)).unwrap();
            encode_elements(isa, format, scaling, elements, group, &scales, &mut codes);
            black_box(&codes);
        };
        all.push((format!("{name} {source:?}").to_lowercase(), Box::new(run)));
    }
}

fn packing(all: &mut Vec<(String, Kernel)>) {
    for bits in [3, 4, 6] {
        let (codes, mut out) = (code_bytes(bits), vec![0; COUNT * bits as usize / 8]);
        let run = move |isa: Isa| {
            pack_bits(isa, black_box(&codes), bits, &mut out);
            black_box(&out);
        };
        all.push((format!("pack {bits} bits"), Box::new(run)));
        let (mut codes, bytes) = (vec![0; COUNT], code_bytes(8));
        let run = move |isa: Isa| {
            unpack_bits(isa, black_box(&bytes[..COUNT * bits as usize / 8]), bits, &mut codes);
            black_box(&codes);
        };
        all.push((format!("unpack {bits} bits"), Box::new(run)));
    }
}

fn values_of_codes(all: &mut Vec<(String, Kernel)>) {
    for (name, kind, bits, group) in [
        ("int4 g128", CodeKind::Integer { bits: 4, signed: true }, 4, 128),
        ("int8 channel", CodeKind::Integer { bits: 8, signed: true }, 8, COLUMNS),
        ("e2m1 g32", CodeKind::Float(MiniFloat::E2M1), 4, 32),
        ("e4m3 channel", CodeKind::Float(MiniFloat::E4M3), 8, COLUMNS),
    ] {
        let (codes, mut out, scales) = (code_bytes(bits), vec![0.0; COUNT], vec![0.01; COUNT / group]);
        let run = move |isa: Isa| {
            let scales = RowScales { scales: &scales, zero_points: &[], group, first: group };
            dequantize_row(isa, kind, black_box(&codes), scales, &mut out);
            black_box(&out);
        };
        all.push((format!("values of {name}"), Box::new(run)));
    }
}

fn widths(all: &mut Vec<(String, Kernel)>) {
    for (source, bytes) in [
        (FloatDType::Bf16, bf16_bytes()),
        (FloatDType::F16, f16_bytes()),
        (FloatDType::F32, f32_bytes()),
        (FloatDType::E4m3, code_bytes(8)),
    ] {
        let mut out = vec![0.0; COUNT];
        let run = move |isa: Isa| {
            widen(isa, source, black_box(&bytes), &mut out);
            black_box(&out);
        };
        all.push((format!("widen {source:?}").to_lowercase(), Box::new(run)));
    }
    for (name, narrow) in [("bf16", narrow_to_bf16 as fn(Isa, &[f32], &mut [[u8; 2]])), ("f16", narrow_to_f16)] {
        let (values, mut out) = (values(COUNT), vec![[0; 2]; COUNT]);
        let run = move |isa: Isa| {
            narrow(isa, black_box(&values), &mut out);
            black_box(&out);
        };
        all.push((format!("narrow to {name}"), Box::new(run)));
    }
}

fn blocks(all: &mut Vec<(String, Kernel)>) {
    for kind in GgmlType::ALL.iter().map(|row| row.kind) {
        let (values, mut out) = (values(COUNT), vec![0; kind.row_bytes(COUNT).unwrap()]);
        let run = move |isa: Isa| {
            ggml::quantize(isa, kind, COLUMNS, black_box(&values), None, &mut out);
            black_box(&out);
        };
        all.push((format!("to {kind}"), Box::new(run)));
        let (blocks, mut out) = (vec![0x35; kind.row_bytes(COUNT).unwrap()], vec![0.0; COUNT]);
        let run = move |isa: Isa| {
            ggml::dequantize(isa, kind, black_box(&blocks), &mut out);
            black_box(&out);
        };
        all.push((format!("from {kind}"), Box::new(run)));
    }
}

fn bins() -> Kernel {
    let (values, mut unsure) = (values(COUNT), Vec::new());
    let bins = Bins { first: 0.0, last: 0.061, number: 2048, margin: 1e-6 };
    Box::new(move |isa: Isa| {
        unsure.clear();
        black_box(count_in_bins(isa, black_box(&values), true, &bins, &mut unsure));
    })
}

/// As many queries as are taken at a time see 512 keys, all of 128 numbers.
fn attention(precision: Precision) -> Kernel {
    let (keys, width) = (COUNT / 128, 128);
    let (q, k, v, mut out) = (values(QUERIES * width), values(COUNT), values(COUNT), vec![0.0; QUERIES * width]);
    let mut buffers = AttentionBuffers::default();
    Box::new(move |isa: Isa| {
        let rule = AttentionRule {
            scale: 0.1,
            cap: None,
            window: None,
            ahead: 0,
            ends: &[],
            chunk: None,
            sink: None,
            bias: ScoreBias::NONE,
        };
        let matrix = |data| Matrix::new(data, keys, width, width);
        let keys_values = KeysValues::new(matrix(black_box(&k)), matrix(&v), precision);
        let (queries, out) = (Matrix::new(&q, QUERIES, width, width), MatrixMut::new(&mut out, QUERIES, width, width));
        keys_values.attend(isa, queries, keys - QUERIES, rule, out, &mut buffers);
    })
}

/// 128 features of 512 inputs, for as many rows as two tiles have and for one. They take the best instruction set, whichever is asked for.
fn products(all: &mut Vec<(String, Kernel)>) {
    let (rows, columns) = (128, COUNT / 128);
    for (name, precision, tokens) in
        [("f32", Precision::F32, 32), ("bf16", Precision::Bf16, 32), ("f32, one row", Precision::F32, 1)]
    {
        let (bytes, x, mut out) = (bf16_bytes(), values(tokens * columns), vec![0.0; tokens * rows]);
        let run = move |_: Isa| {
            let weight = Weight::new(Elements::stored(FloatDType::Bf16, black_box(&bytes)).unwrap(), rows, columns);
            let (y, x) = (MatrixMut::new(&mut out, tokens, rows, rows), Matrix::new(&x, tokens, columns, columns));
            let product = if tokens == 1 { linear_rows } else { linear };
            product(y, x, weight, None, precision);
            black_box(&out);
        };
        all.push((format!("linear {name}"), Box::new(run)));
    }
}

/// None is NaN in e4m3.
fn code_bytes(bits: u32) -> Vec<u8> {
    let code = |value: &f32| (value.to_bits() >> 8) as u8 & ((1u16 << bits) - 1) as u8;
    values(COUNT).iter().map(code).map(|code| if code & 0x7F == 0x7F { 0 } else { code }).collect()
}

fn bf16_bytes() -> Vec<u8> {
    let mut out = vec![[0; 2]; COUNT];
    narrow_to_bf16(Isa::BASELINE, &values(COUNT), &mut out);
    out.into_flattened()
}

fn f16_bytes() -> Vec<u8> {
    let mut out = vec![[0; 2]; COUNT];
    narrow_to_f16(Isa::BASELINE, &values(COUNT), &mut out);
    out.into_flattened()
}

fn f32_bytes() -> Vec<u8> {
    values(COUNT).iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn values(count: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut uniform = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from((state >> 16) as i16) / 32768.0
    };
    (0..count).map(|_| (uniform() + uniform() + uniform()) * 0.02).collect()
}
