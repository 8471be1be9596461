//! Speed of the block formats of llama.cpp: gigabytes of `f32` values a second that become blocks, without and with
//! importance, and that come out of blocks. Rounds alternate between types, and the best of each is printed.
//!
//! `cargo bench -p kvant-numeric --bench ggml [-- THREADS [TYPE ...]]`
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use kvant_numeric::ggml::{self, GgmlType};
use kvant_numeric::simd::Isa;
use rayon::prelude::*;
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 5;
const COLUMNS: usize = 2048;
const ROWS: usize = 1024;
/// Rows that a thread takes at a time.
const BAND: usize = 64;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let threads = arguments.first().and_then(|argument| argument.parse().ok()).unwrap_or(1);
    let named: Vec<GgmlType> = arguments.iter().filter_map(|argument| argument.parse().ok()).collect();
    let all: Vec<GgmlType> = GgmlType::ALL.iter().map(|row| row.kind).collect();
    let kinds = if named.is_empty() { all } else { named };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let (data, importance) = (values(ROWS * COLUMNS), values(COLUMNS).iter().map(|v| v * v).collect::<Vec<_>>());
    let mut best = vec![[f64::INFINITY; 3]; kinds.len()];
    for _ in 0..ROUNDS {
        for (kind, best) in kinds.iter().zip(&mut best) {
            let seconds = pool.install(|| round(*kind, &data, &importance));
            best.iter_mut().zip(seconds).for_each(|(best, seconds)| *best = best.min(seconds));
        }
    }
    println!("{threads} threads, {}: GB/s of f32", Isa::best().name());
    println!("{:>8} {:>10} {:>10} {:>10}", "type", "quantize", "weighted", "dequantize");
    for (kind, best) in kinds.iter().zip(best) {
        let [plain, weighted, back] = best.map(|seconds| (data.len() * 4) as f64 / seconds * 1e-9);
        println!("{:>8} {plain:>10.3} {weighted:>10.3} {back:>10.3}", kind.name());
    }
}

/// Seconds of each operation.
fn round(kind: GgmlType, data: &[f32], importance: &[f32]) -> [f64; 3] {
    let size = kind.row_bytes(COLUMNS).unwrap() * BAND;
    let mut blocks = vec![0; size * ROWS / BAND];
    let mut back = vec![0.0; data.len()];
    let quantize = |importance: Option<&[f32]>, blocks: &mut [u8]| {
        let start = Instant::now();
        let bands = data.par_chunks(BAND * COLUMNS).zip(blocks.par_chunks_mut(size));
        bands.for_each(|(values, out)| ggml::quantize(Isa::best(), kind, COLUMNS, values, importance, out));
        start.elapsed().as_secs_f64()
    };
    let (plain, weighted) = (quantize(None, &mut blocks), quantize(Some(importance), &mut blocks));
    let start = Instant::now();
    let bands = blocks.par_chunks(size).zip(back.par_chunks_mut(BAND * COLUMNS));
    bands.for_each(|(bytes, out)| ggml::dequantize(Isa::best(), kind, bytes, out));
    let seconds = start.elapsed().as_secs_f64();
    black_box(&back);
    [plain, weighted, seconds]
}

fn values(count: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut uniform = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from((state >> 16) as i16) / 32768.0
    };
    (0..count).map(|_| (uniform() + uniform() + uniform()) * 0.02).collect()
}
