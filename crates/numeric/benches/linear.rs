//! Speed of linear layers on bf16 weights in both precisions, beside the product of `f32` weights on the same rows, in one
//! run whose rounds alternate: the ratios mean something on a shared machine, the times alone do not.
//!
//! `cargo bench -p kvant-numeric --bench linear [-- TOKENS THREADS ROWS COLUMNS]`
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

mod values;

use kvant_numeric::kernel::{Elements, FloatDType};
use kvant_numeric::linalg::{Matrix, MatrixMut, Precision, Weight, linear};
use std::hint::black_box;
use std::time::Instant;
use values::values;

const REPETITIONS: usize = 15;
/// Output and input features.
const SHAPES: [(usize, usize); 6] = [(2048, 2048), (256, 2048), (5632, 2048), (2048, 5632), (768, 256), (4096, 256)];

fn main() {
    let sizes: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let (tokens, threads) = (sizes.first().copied().unwrap_or(2048), sizes.get(1).copied().unwrap_or(2));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    println!("{tokens} rows, {threads} threads: GFLOP/s, and the ratio to f32 weights");
    println!("{:>14} {:>8} {:>16} {:>16}", "weight", "f32", "bf16 in f32", "bf16 in bf16");
    let asked = (sizes.len() == 4).then(|| vec![(sizes[2], sizes[3])]);
    for (rows, columns) in asked.unwrap_or(SHAPES.to_vec()) {
        let (x, values) = (values(tokens * columns), values(rows * columns));
        let bytes: Vec<u8> = values.iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect();
        let stored = Elements::stored(FloatDType::Bf16, &bytes).unwrap();
        let mut out = vec![0.0; tokens * rows];
        let cases = [(Elements::Values(&values), Precision::F32), (stored, Precision::F32), (stored, Precision::Bf16)];
        let mut seconds = [const { Vec::new() }; 3];
        for _ in 0..REPETITIONS {
            for ((elements, precision), seconds) in cases.iter().zip(&mut seconds) {
                let weight = Weight::new(*elements, rows, columns);
                let y = MatrixMut::new(&mut out, tokens, rows, rows);
                let start = Instant::now();
                pool.install(|| linear(y, Matrix::new(&x, tokens, columns, columns), weight, None, *precision));
                seconds.push(start.elapsed().as_secs_f64());
                black_box(&out);
            }
        }
        let rates = seconds.map(|seconds| (2 * tokens * rows * columns) as f64 / least(&seconds) * 1e-9);
        let ratio = |rate: f64| format!("{rate:.0} ({:.2})", rate / rates[0]);
        let name = format!("{rows}x{columns}");
        println!("{name:>14} {:>8.0} {:>16} {:>16}", rates[0], ratio(rates[1]), ratio(rates[2]));
    }
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}
