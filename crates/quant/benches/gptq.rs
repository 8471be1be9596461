//! The parts of GPTQ on two threads, beside plain matrix products of equal cost in the same run: the
//! ratio means something on a shared machine, the time alone does not.
//!
//! `cargo bench -p kvant-quant --bench gptq [-- FILTER]`
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use cpu_time::ProcessTime;
use kvant_numeric::ComputeDType;
use kvant_numeric::linalg::{Matrix, MatrixMut, Precision, Threads, multiply};
use kvant_quant::hessian::Hessian;
use kvant_quant::rounding::{Gptq, TensorContext};
use std::hint::black_box;

const THREADS: usize = 2;
const REPETITIONS: usize = 5;
const TOKENS: usize = 2048;

fn main() {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(THREADS).build().unwrap();
    pool.install(|| {
        for (rows, columns) in [(5632, 2048), (2048, 5632)] {
            weight(&filter, rows, columns);
        }
    });
}

/// All parts for one weight. `flops` is what each needs: half of a product for what is symmetric or triangular.
fn weight(filter: &str, rows: usize, columns: usize) {
    let inputs = correlated(TOKENS, columns);
    let weights = noise(rows * columns, 1);
    let zeros = vec![0.0; weights.len()];
    let report = |name: &str, flops: usize, work: &mut dyn FnMut()| {
        if name.contains(filter) {
            let (ours, product) = (0..REPETITIONS).map(|_| (cpu(&mut *work), product())).reduce(least).unwrap();
            let speed = flops as f64 / ours;
            println!("{rows}x{columns} {name:24} {ours:7.3} s CPU {:5.2} of a product's speed", speed / product);
        }
    };
    let mut hessian = Hessian::new(columns);
    report("gram", TOKENS * columns * columns, &mut || hessian.add(&inputs));
    if hessian.tokens() == 0 {
        hessian.add(&inputs);
    }
    let mut in_bf16 = Hessian::with_precision(columns, Precision::Bf16);
    report("gram in bf16", TOKENS * columns * columns, &mut || in_bf16.add(&inputs));
    drop(in_bf16);
    report("loss", rows * columns * columns, &mut || {
        black_box(hessian.loss(&weights, &zeros));
    });
    report("factors", columns.pow(3) / 3, &mut || {
        black_box(Gptq::GPTQ.prepare(&hessian).unwrap());
    });
    let feedback = Gptq::GPTQ.prepare(&hessian).unwrap();
    for scheme in ["uint4:g128:zp", "int4:g128", "int3:channel", "e4m3:channel", "e2m1:g32:e8m0", "e2m1:g16:e4m3:f32"] {
        let context = TensorContext::new(ComputeDType::F32);
        report(scheme, rows * columns * columns, &mut || {
            black_box(feedback.round(&weights, rows, scheme.parse().unwrap(), context).unwrap());
        });
    }
}

/// Seconds of processor time.
fn cpu(work: impl FnOnce()) -> f64 {
    let start = ProcessTime::now();
    work();
    start.elapsed().as_secs_f64()
}

/// Flops a second of processor time in a product of 2048 x 2048 matrices.
fn product() -> f64 {
    const SIZE: usize = 2048;
    let (a, b) = (noise(SIZE * SIZE, 2), noise(SIZE * SIZE, 3));
    let mut out = vec![0.0; SIZE * SIZE];
    let view = |values| Matrix::new(values, SIZE, SIZE, SIZE);
    let seconds = cpu(|| multiply(MatrixMut::new(&mut out, SIZE, SIZE, SIZE), view(&a), view(&b), 1.0, Threads::Pool));
    black_box(out);
    2.0 * (SIZE * SIZE * SIZE) as f64 / seconds
}

fn least(a: (f64, f64), b: (f64, f64)) -> (f64, f64) {
    (a.0.min(b.0), a.1.max(b.1))
}

fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from((state >> 16) as i16) / 32768.0
    };
    (0..count).map(|_| uniform() + uniform()).collect()
}

/// Inputs whose neighbours depend on one another.
fn correlated(tokens: usize, features: usize) -> Vec<f32> {
    let mut inputs = noise(tokens * features, 7);
    for row in inputs.chunks_mut(features) {
        for i in 1..features {
            row[i] = 0.7 * row[i - 1] + 0.3 * row[i];
        }
    }
    inputs
}
