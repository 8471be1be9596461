//! Speed of causal attention on one thread in both precisions, in one run with alternating rounds. Counted are the
//! products of a full lower triangle, and the ratio of the two.
//!
//! `cargo bench -p kvant-numeric --bench attention [-- LENGTH]`
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

mod values;

use kvant_numeric::linalg::{
    AttentionBuffers, AttentionRule, KeysValues, Matrix, MatrixMut, Precision, QUERIES, ScoreBias,
};
use kvant_numeric::simd::Isa;
use std::hint::black_box;
use std::time::Instant;
use values::values;

const REPETITIONS: usize = 9;
const WIDTHS: [usize; 4] = [32, 64, 80, 128];

fn main() {
    let length = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(1024);
    println!("{length} positions, 1 thread: GFLOP/s");
    println!("{:>6} {:>8} {:>16}", "width", "f32", "bf16");
    for width in WIDTHS {
        let rows = values(length * width);
        let mut seconds = [const { Vec::new() }; 2];
        for _ in 0..REPETITIONS {
            for (precision, seconds) in [Precision::F32, Precision::Bf16].into_iter().zip(&mut seconds) {
                let start = Instant::now();
                attend(&rows, length, width, precision);
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
        let rates = seconds.map(|seconds| (2 * length * length * width) as f64 / least(&seconds) * 1e-9);
        let ratio = format!("{:.0} ({:.2})", rates[1], rates[1] / rates[0]);
        println!("{width:>6} {:>8.0} {ratio:>16}", rates[0]);
    }
}

fn attend(rows: &[f32], length: usize, width: usize, precision: Precision) {
    let matrix = Matrix::new(rows, length, width, width);
    let keys = KeysValues::new(matrix, matrix, precision);
    let rule = AttentionRule {
        scale: (width as f32).powf(-0.5),
        cap: None,
        window: None,
        ahead: 0,
        ends: &[],
        chunk: None,
        sink: None,
        bias: ScoreBias::NONE,
    };
    let (mut buffers, mut out) = (AttentionBuffers::default(), vec![0.0; QUERIES * width]);
    for first in (0..length).step_by(QUERIES) {
        let count = QUERIES.min(length - first);
        let queries = Matrix::new(&rows[first * width..], count, width, width);
        keys.attend(Isa::best(), queries, first, rule, MatrixMut::new(&mut out, count, width, width), &mut buffers);
        black_box(&out);
    }
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}
