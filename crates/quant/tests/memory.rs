//! The planned memory of rounding against the memory that the process takes. Alone in its process, whose high-water
//! mark it reads from Linux.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use kvant_numeric::ComputeDType;
use kvant_quant::hessian::Hessian;
use kvant_quant::rounding::{Gptq, TensorContext};

/// A line of the process's status, in bytes.
fn status(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
}

#[test]
fn estimated_memory_is_close_to_actual_use() {
    let (features, rows) = (2048, 512);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    pool.install(|| {
        let mut hessian = Hessian::new(features);
        hessian.add(&(0..64 * features).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>());
        let weights: Vec<f32> = (0..rows * features).map(|i| (i as f32 * 0.3).sin()).collect();
        let before = status("VmRSS");
        let feedback = Gptq::GPTQ.prepare(&hessian).unwrap();
        let scheme = "int4:g128".parse().unwrap();
        feedback.round(&weights, rows, scheme, TensorContext::new(ComputeDType::F32)).unwrap();
        let taken = status("VmHWM") - before;
        let foretold = Gptq::GPTQ.peak_bytes(features, rows) as f64;
        assert!((0.5..2.0).contains(&(taken / foretold)), "taken {taken:e}, foretold {foretold:e}");
    });
}
