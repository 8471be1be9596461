//! Throughput of making values of packed weights on one thread, strip by strip as the forward pass does, as a share of that
//! of widening bfloat16. The ratio means something on a shared machine, the time alone does not.
//!
//! `cargo bench -p kvant-formats --bench dequantize [-- FILTER]`
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

#[path = "../tests/common/mod.rs"]
mod common;

use kvant_container::Checkpoint;
use kvant_formats::format::OutputFormat;
use kvant_formats::format::compressed_tensors;
use kvant_formats::format::quark::{self, WeightFormat};
use kvant_formats::import;
use kvant_numeric::kernel::FloatDType;
use kvant_numeric::pack::NibbleOrder;
use kvant_numeric::simd::Isa;
use kvant_quant::scheme::LayerScheme;
use kvant_weights::parts::LayerSpec;
use kvant_weights::weight::Stored;
use kvant_weights::weight::{Band, WeightMatrix};
use serde_json::json;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const ROWS: usize = 2048;
const COLUMNS: usize = 4096;
/// Rows read at a time.
const STRIP: usize = 16;
const REPETITIONS: usize = 9;

const CASES: &[(OutputFormat, &str)] = &[
    (OutputFormat::QUARK, "int4:g128"),
    (OutputFormat::QUARK, "uint4:g32:zp"),
    (OutputFormat::QUARK, "int4:channel"),
    (OutputFormat::QUARK, "int8:tensor"),
    (OutputFormat::QUARK, "int8:g32"),
    (OutputFormat::QUARK, "e4m3:channel"),
    (OutputFormat::QUARK, "e2m1:g32:e8m0"),
    (OutputFormat::QUARK, "e2m3:g32:e8m0"),
    (OutputFormat::QUARK, "e2m1:g16:e4m3:f32"),
    (OutputFormat::COMPRESSED_TENSORS, "int4:g128"),
    (OutputFormat::COMPRESSED_TENSORS, "int4:g32:zp"),
    (OutputFormat::COMPRESSED_TENSORS, "int3:g128"),
    (OutputFormat::COMPRESSED_TENSORS, "e4m3:b128x128"),
];

/// Reads all strips, and gives the least time of several goes.
fn least(isa: Isa, matrix: &WeightMatrix<'_>) -> f64 {
    let mut values = Vec::new();
    let once = |_| {
        let begun = Instant::now();
        for start in (0..ROWS).step_by(STRIP) {
            values.clear();
            matrix.read(isa, &Band { rows: start..start + STRIP, columns: 0..COLUMNS }, &mut values);
            black_box(&values);
        }
        begun.elapsed().as_secs_f64()
    };
    (0..REPETITIONS).map(once).fold(f64::INFINITY, f64::min)
}

/// A layer of the scheme in the export's layout, of bytes that are all alike.
fn checkpoint(export: OutputFormat, text: &str) -> (tempfile::TempDir, Checkpoint) {
    let scheme: LayerScheme = text.parse().unwrap();
    let source = FloatDType::Bf16;
    let layer = LayerSpec {
        name: "m.up",
        rows: ROWS,
        columns: COLUMNS,
        scheme,
        source,
        order: NibbleOrder::Awq,
        fused: None,
        act_order: false,
        input_rotation: None,
    };
    let tensors = export.parts(&layer).unwrap().into_iter().map(|part| {
        let length = part.shape.iter().product::<usize>() * part.dtype.bitsize() / 8;
        let bytes = match part.name.ends_with("weight_shape") {
            true => [ROWS as i64, COLUMNS as i64].map(i64::to_le_bytes).concat(),
            false => (0..length).map(|i| (i * 7 % 60) as u8).collect(),
        };
        (part.name, part.dtype, part.shape, bytes)
    });
    let layers = [("m.up", scheme)];
    let quantization = if export == OutputFormat::QUARK {
        quark::quantization_config(&layers, &[], NibbleOrder::Awq, WeightFormat::Real)
    } else {
        compressed_tensors::quantization_config(&layers, &[], &[], false)
    };
    let dir = tempfile::tempdir().unwrap();
    let config = json!({"quantization_config": quantization.unwrap()});
    common::write(dir.path(), &config, &tensors.collect::<Vec<_>>());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    (dir, checkpoint)
}

fn main() {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let plain: Vec<u8> = (0..ROWS * COLUMNS * 2).map(|i| (i * 7 % 60) as u8).collect();
    let plain = WeightMatrix::plain(&plain, FloatDType::Bf16, (ROWS, COLUMNS), false);
    for (export, text) in CASES.iter().filter(|(_, text)| text.contains(&filter)) {
        let (_dir, checkpoint) = checkpoint(*export, text);
        let tensors = import::open(&checkpoint).unwrap().into_tensors();
        let Stored::Packed(matrices) = &tensors[0].stored else { continue };
        let packed = WeightMatrix::packed(Arc::clone(&matrices[0]));
        for isa in Isa::available() {
            let (widening, time) = (least(isa, &plain), least(isa, &packed));
            let rate = (ROWS * COLUMNS) as f64 / time / 1e9;
            let share = widening / time;
            println!("{export:18} {text:20} {:9} {rate:6.2} G/s  {share:5.2} of bf16", isa.name());
        }
    }
}
