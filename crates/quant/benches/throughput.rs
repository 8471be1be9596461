//! Throughput of widen + round + pack on two threads, as a share of memcpy's on the same bytes in the same run: the
//! ratio means something on a shared machine, the time alone does not.
//!
//! `cargo bench -p kvant-quant --bench throughput [-- FILTER]`
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use kvant_numeric::Arithmetic;
use kvant_numeric::kernel::{Range, Source, widen};
use kvant_numeric::pack::{NibbleOrder, pack_bits, pack_words_transposed, packed_len};
use kvant_numeric::simd::Isa;
use kvant_quant::QuantTensor;
use kvant_quant::rounding::{Rtn, TensorContext};
use kvant_quant::scheme::TensorScheme;
use rayon::prelude::*;
use std::hint::black_box;
use std::time::Instant;

const COLUMNS: usize = 4096;
const ROWS: usize = 11008;
const THREADS: usize = 2;
const REPETITIONS: usize = 15;
/// Rows that are worked on at a time: 64 Ki values, as in the engine.
const BAND: usize = 16;

fn main() {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let source = weights();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(THREADS).build().unwrap();
    println!("{} MB of bf16, {THREADS} threads, {}", source.len() / 1_000_000, Isa::best().name());
    pool.install(|| {
        let memcpy = best(|| copy(&source));
        report("memcpy", memcpy, memcpy, source.len());
        for text in [
            "int4:g128",
            "uint4:g128:zp",
            "e2m1:g32:e8m0",
            "e4m3:channel",
            "int8:channel",
            "e2m1:g16:e5m3",
            "e2m1:g16:e4m3:f32",
        ] {
            for isa in Isa::available() {
                let name = format!("{text} {}", isa.name());
                if name.contains(&filter) {
                    report(&name, best(|| quantize(&source, text.parse().unwrap(), isa)), memcpy, source.len());
                }
            }
        }
        if "int4:g128 transposed".contains(&filter) {
            report("int4:g128 transposed", best(|| quantize_transposed(&source)), memcpy, source.len());
        }
    });
}

fn weights() -> Vec<u8> {
    let mut state = 1u32;
    let value = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((f32::from((state >> 16) as i16) / 32768.0).to_bits() >> 16) as u16
    };
    (0..ROWS * COLUMNS).map(value).flat_map(u16::to_le_bytes).collect()
}

/// The least time of some runs: what the machine can do when nobody disturbs it.
fn best<T>(mut work: impl FnMut() -> T) -> f64 {
    let once = |_| {
        let start = Instant::now();
        black_box(work());
        start.elapsed().as_secs_f64()
    };
    (0..REPETITIONS).map(once).fold(f64::INFINITY, f64::min)
}

fn report(name: &str, seconds: f64, memcpy: f64, bytes: usize) {
    println!("{name:32} {:7.2} GB/s  {:5.2} of memcpy", bytes as f64 / seconds / 1e9, memcpy / seconds);
}

fn copy(source: &[u8]) -> usize {
    thread_local! { static BUFFER: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) }; }
    static OUT: std::sync::Mutex<Vec<u8>> = std::sync::Mutex::new(Vec::new());
    let mut out = OUT.lock().unwrap();
    out.resize(source.len(), 0);
    out.par_chunks_mut(1 << 20).zip(source.par_chunks(1 << 20)).for_each(|(to, from)| to.copy_from_slice(from));
    out.len()
}

fn quantize(source: &[u8], scheme: TensorScheme, isa: Isa) -> usize {
    let range = Some(Range { min: -1.0, max: 1.0 });
    let rtn = Rtn::new(scheme, TensorContext { arithmetic: Arithmetic::Bf16, range }).unwrap().on(isa);
    let bands = source.par_chunks(BAND * COLUMNS * 2);
    let band = |bytes: &[u8]| {
        let mut values = vec![0.0; bytes.len() / 2];
        widen(isa, Source::Bf16, bytes, &mut values);
        let tensor = rtn.round(&values, values.len() / COLUMNS, COLUMNS).unwrap();
        pack(isa, &tensor).len()
    };
    bands.map(band).sum()
}

fn pack(isa: Isa, tensor: &QuantTensor) -> Vec<u8> {
    let codes = tensor.code_bytes().unwrap();
    let bits = tensor.scheme().format().bits();
    let mut out = vec![0; packed_len(codes.len(), bits)];
    pack_bits(isa, codes, bits, &mut out);
    out
}

/// AMD Quark's layout: `[in, out / 8]` words, a band of input channels at a time.
fn quantize_transposed(source: &[u8]) -> usize {
    let isa = Isa::best();
    let rtn = Rtn::new("int4:g128".parse().unwrap(), TensorContext::new(Arithmetic::Bf16)).unwrap();
    let band = |left: usize| {
        let mut words = vec![0; 128 * ROWS / 8];
        let mut codes = Vec::with_capacity(128 * ROWS);
        let mut values = vec![0.0; 512 * 128];
        for rows in source.chunks(512 * COLUMNS * 2) {
            let count = rows.len() / COLUMNS / 2;
            for (row, values) in rows.chunks(COLUMNS * 2).zip(values.chunks_mut(128)) {
                widen(isa, Source::Bf16, &row[left * 2..], values);
            }
            let tensor = rtn.round(&values[..count * 128], count, 128).unwrap();
            codes.extend_from_slice(tensor.code_bytes().unwrap());
        }
        pack_words_transposed(isa, NibbleOrder::Awq, &codes, ROWS, 128, &mut words);
        words.len()
    };
    (0..COLUMNS / 128).into_par_iter().map(|i| band(i * 128)).sum()
}
