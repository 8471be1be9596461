//! Throughput of fake quantization of activations in place on one thread, as a share of that of a loop that multiplies them:
//! what memory allows. The ratio means something on a shared machine, the time alone does not.
//!
//! `cargo bench -p kvant-quant --bench activations [-- FILTER]`
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use kvant_numeric::ComputeDType;
use kvant_numeric::simd::{Isa, Loop, dispatch};
use kvant_quant::activation::{ActivationQuantizer, ActivationStatistic, StaticParameters};
use std::hint::black_box;
use std::time::Instant;

const COLUMNS: usize = 4096;
const ROWS: usize = 2048;
const REPETITIONS: usize = 15;

const SCHEMES: &[&str] = &[
    "e4m3:tensor!static",
    "int8:tensor!static",
    "int8:tensor!dynamic",
    "int8:channel!dynamic",
    "e4m3:channel!dynamic",
    "e4m3:g128!dynamic",
    "e2m1:g32:e8m0!dynamic",
    "e2m1:g16:e4m3:f32!local",
    "int8:channel@1!static",
    "mx9!dynamic",
];

struct Multiply<'a>(&'a mut [f32]);

impl Loop for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.0.iter_mut().for_each(|value| *value *= 1.000_001);
    }
}

fn least(mut work: impl FnMut()) -> f64 {
    let once = |_| {
        let begun = Instant::now();
        work();
        begun.elapsed().as_secs_f64()
    };
    (0..REPETITIONS).map(once).fold(f64::INFINITY, f64::min)
}

fn main() {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let source: Vec<f32> = (0..ROWS * COLUMNS).map(|i| ((i as f32) * 0.731).sin() * 3.0).collect();
    let mut values = source.clone();
    for isa in Isa::available() {
        for text in SCHEMES.iter().filter(|text| text.contains(&filter)) {
            for arithmetic in [ComputeDType::F32, ComputeDType::Bf16] {
                let quantizer = quantizer(text);
                let memory = least(|| dispatch(isa, Multiply(black_box(&mut values))));
                values.copy_from_slice(&source);
                let time = least(|| quantizer.apply(isa, arithmetic, black_box(&mut values), COLUMNS));
                let rate = values.len() as f64 / time / 1e9;
                println!("{text:26} {:9} {arithmetic:?}  {rate:6.2} G/s  {:5.2} of memory", isa.name(), memory / time);
            }
        }
    }
    for text in ["int8:tensor!static", "int8:tensor:percentile99.9!static", "int8:channel@1!static"] {
        let mut statistic = ActivationStatistic::new(text.parse().unwrap()).unwrap();
        let time = least(|| statistic.update(Isa::best(), black_box(&source), COLUMNS));
        println!("observe {text:32}  {:6.2} G/s", source.len() as f64 / time / 1e9);
    }
}

fn quantizer(text: &str) -> ActivationQuantizer {
    let count = if text.contains("@1") { COLUMNS } else { 1 };
    let parameters = StaticParameters { scales: vec![0.0234; count], zero_points: vec![] };
    let parameters = (!text.ends_with("dynamic")).then_some(parameters);
    ActivationQuantizer::new(text.parse().unwrap(), parameters).unwrap()
}
