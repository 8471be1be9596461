//! Throughput of bf16 bytes to packed codes on two threads, as a share of memcpy's on the same bytes in the same run: the
//! ratio means something on a shared machine, the time alone does not. Two ratios are given: of the wall times, and of the
//! CPU times of both threads, which depends less on other load.
//!
//! `cargo bench -p kvant-quant --bench throughput [-- FILTER]`
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use cpu_time::ProcessTime;
use kvant_numeric::ComputeDType;
use kvant_numeric::kernel::{Elements, FloatDType, Range, element_ranges};
use kvant_numeric::pack::{NibbleOrder, Word, pack_bits, pack_rows_transposed, packed_len};
use kvant_numeric::simd::Isa;
use kvant_quant::rounding::{Rtn, Scratch, TensorContext, Weights};
use kvant_quant::scheme::TensorScheme;
use rayon::prelude::*;
use std::hint::black_box;
use std::time::Instant;

const COLUMNS: usize = 4096;
const ROWS: usize = 11008;
const THREADS: usize = 2;
const REPETITIONS: usize = 25;
/// Rows that are worked on at a time: their codes stay in the second-level cache until they are packed.
const BAND: usize = 16;
/// Columns that are worked on at a time where the result is transposed, and rows whose codes are packed at a time.
const BAND_COLUMNS: usize = 1024;
const BLOCK_ROWS: usize = 128;

const SCHEMES: &[&str] = &[
    "int4:g128",
    "uint4:g128:zp",
    "uint4:g32:zp",
    "e2m1:g32:e8m0",
    "e2m3:g32:e8m0",
    "e3m2:g32:e8m0",
    "e4m3:g32:e8m0",
    "e4m3:channel",
    "e4m3:tensor",
    "int8:channel",
    "int8:tensor",
    "e2m1:g16:e5m3",
    "e2m1:g16:e4m3:f32",
];

fn main() {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let source = weights();
    let mut out = vec![1; source.len()];
    let pool = rayon::ThreadPoolBuilder::new().num_threads(THREADS).build().unwrap();
    println!("{} MB of bf16, {THREADS} threads, {}", source.len() / 1_000_000, Isa::best().name());
    pool.install(|| {
        let memcpy = Times::best(|| copy(&source, &mut out));
        let mut run = |name: String, work: &mut dyn FnMut(&mut [u8])| {
            if name.contains(&filter) {
                // Beside its own memcpy: the machine may be slower now than it was.
                let memcpy = memcpy.least(Times::best(|| copy(&source, &mut out)));
                Times::best(|| work(&mut out)).report(&name, &memcpy, source.len());
            }
        };
        run("memcpy".to_owned(), &mut |out| copy(&source, out));
        for isa in Isa::available() {
            for text in SCHEMES {
                let scheme = text.parse().unwrap();
                run(format!("{text} {}", isa.name()), &mut |out| quantize(&source, scheme, isa, out));
            }
            let name = format!("int8:tensor, range found, {}", isa.name());
            run(name, &mut |out| {
                black_box(range(&source, isa));
                quantize(&source, "int8:tensor".parse().unwrap(), isa, out);
            });
            let name = format!("int4:g128 transposed {}", isa.name());
            run(name, &mut |out| quantize_transposed(&source, isa, out));
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

/// The least times of some runs: what the machine can do when nobody disturbs it.
#[derive(Clone, Copy)]
struct Times {
    wall: f64,
    cpu: f64,
}

impl Times {
    fn best(mut work: impl FnMut()) -> Times {
        let once = |_| {
            let (wall, cpu) = (Instant::now(), ProcessTime::now());
            work();
            Times { wall: wall.elapsed().as_secs_f64(), cpu: cpu.elapsed().as_secs_f64() }
        };
        (0..REPETITIONS).map(once).reduce(Times::least).unwrap()
    }

    fn least(self, other: Times) -> Times {
        Times { wall: self.wall.min(other.wall), cpu: self.cpu.min(other.cpu) }
    }

    fn report(self, name: &str, memcpy: &Times, bytes: usize) {
        let speed = bytes as f64 / self.wall / 1e9;
        let (wall, cpu) = (memcpy.wall / self.wall, memcpy.cpu / self.cpu);
        println!("{name:32} {speed:6.2} GB/s  {wall:5.2} of memcpy by wall time  {cpu:5.2} by CPU time");
    }
}

fn copy(source: &[u8], out: &mut [u8]) {
    out.par_chunks_mut(1 << 20).zip(source.par_chunks(1 << 20)).for_each(|(to, from)| to.copy_from_slice(from));
    black_box(out);
}

/// The range of all values, which a scale for the tensor takes first.
fn range(source: &[u8], isa: Isa) -> Range {
    let of_band = |bytes: &[u8]| {
        let mut found = [Range::EMPTY];
        element_ranges(isa, Elements::stored(FloatDType::Bf16, bytes).unwrap(), bytes.len() / 2, &mut found);
        found[0]
    };
    source.par_chunks(BAND * COLUMNS * 2).map(of_band).reduce(|| Range::EMPTY, Range::join)
}

fn rtn(scheme: TensorScheme, isa: Isa) -> Rtn {
    let range = Some(Range { min: -1.0, max: 1.0 });
    Rtn::new(scheme, TensorContext { arithmetic: ComputeDType::Bf16, range }).unwrap().on(isa)
}

/// Codes in rows, packed to bits.
fn quantize(source: &[u8], scheme: TensorScheme, isa: Isa, out: &mut [u8]) {
    let (rtn, bits) = (rtn(scheme, isa), scheme.format().bits());
    let bands = source.par_chunks(BAND * COLUMNS * 2);
    let pieces = out.par_chunks_mut(packed_len(BAND * COLUMNS, bits));
    bands.zip(pieces).for_each_init(
        || (Scratch::default(), rtn.empty(COLUMNS)),
        |(scratch, tensor), (bytes, piece)| {
            tensor.clear();
            let weights = Weights::new(Elements::stored(FloatDType::Bf16, bytes).unwrap(), COLUMNS);
            rtn.round_onto(weights, scratch, tensor).unwrap();
            let codes = tensor.code_bytes().unwrap();
            pack_bits(isa, codes, bits, &mut piece[..packed_len(codes.len(), bits)]);
        },
    );
    black_box(out);
}

/// AMD Quark's layout: `[in, out / 8]` words, a band of input channels at a time.
fn quantize_transposed(source: &[u8], isa: Isa, out: &mut [u8]) {
    let rtn = rtn("int4:g128".parse().unwrap(), isa);
    let weights = Weights::new(Elements::stored(FloatDType::Bf16, source).unwrap(), COLUMNS);
    let pieces = out.par_chunks_mut(BAND_COLUMNS * ROWS / 2);
    pieces.take(COLUMNS / BAND_COLUMNS).enumerate().for_each_init(
        || (Scratch::default(), rtn.empty(BAND_COLUMNS), vec![Word::default(); BAND_COLUMNS * ROWS / 8]),
        |(scratch, tensor, words), (i, piece)| {
            let band = weights.columns(i * BAND_COLUMNS..(i + 1) * BAND_COLUMNS);
            for row in (0..ROWS).step_by(BLOCK_ROWS) {
                tensor.clear();
                rtn.round_onto(band.rows(row..row + BLOCK_ROWS), scratch, tensor).unwrap();
                let codes = tensor.code_bytes().unwrap();
                pack_rows_transposed(isa, NibbleOrder::Awq, codes, BAND_COLUMNS, words, ROWS / 8, row / 8);
            }
            piece.copy_from_slice(words.as_flattened());
        },
    );
    black_box(out);
}
