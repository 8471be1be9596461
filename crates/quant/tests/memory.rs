//! The memory that a plan foretells for rounding, against what the process takes. Alone in its process, whose high-water
//! mark it reads where Linux tells it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use kvant_numeric::Arithmetic;
use kvant_quant::hessian::Hessian;
use kvant_quant::rounding::{Gptq, TensorContext};

/// A line of the process's status, in bytes.
fn status(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
}

#[test]
fn the_foretold_memory_is_about_what_is_taken() {
    let (features, rows) = (2048, 512);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    pool.install(|| {
        let mut hessian = Hessian::new(features);
        hessian.add(&(0..64 * features).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>());
        let weights: Vec<f32> = (0..rows * features).map(|i| (i as f32 * 0.3).sin()).collect();
        let before = status("VmRSS");
        let feedback = Gptq::GPTQ.prepare(&hessian).unwrap();
        let scheme = "int4:g128".parse().unwrap();
        feedback.round(&weights, rows, scheme, TensorContext::new(Arithmetic::F32)).unwrap();
        let taken = status("VmHWM") - before;
        let foretold = Gptq::GPTQ.peak_bytes(features, rows) as f64;
        assert!((0.5..2.0).contains(&(taken / foretold)), "taken {taken:e}, foretold {foretold:e}");
    });
}
