//! Quantized models computed here against what the incumbent's operators gave, and against ONNX Runtime's own.

use kvant_container::onnx::{Bytes, parse};
use tempfile::TempDir;

use super::*;
use crate::data::{DataOptions, SampleSource, inputs};
use crate::runtime::{RuntimeChoice, found};

fn model(name: &str) -> ModelProto {
    let path = format!("{}/tests/data/{name}.onnx", env!("CARGO_MANIFEST_DIR"));
    parse(&Bytes::from(std::fs::read(path).unwrap())).unwrap()
}

fn samples(name: &str, model: &ModelProto) -> Samples {
    let path = format!("{}/tests/data/{name}.calib.npz", env!("CARGO_MANIFEST_DIR"));
    SampleSource::Path(path.into()).open(&inputs(&model.graph), &DataOptions::default()).unwrap()
}

fn options(choice: RuntimeChoice) -> RuntimeOptions {
    RuntimeOptions { choice, threads: Some(1), ..RuntimeOptions::default() }
}

const COMPARED: Compared = Compared { inside: true, distributions: false };

fn report(float: &str, quantized: &str, options: &RuntimeOptions) -> Report {
    let reference = model(&format!("{float}.float"));
    let mut samples = samples(float, &reference);
    let mut done = 0;
    let report = evaluate(&reference, &model(quantized), &mut samples, COMPARED, None, options, &mut |number| {
        done = number;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!((done, report.samples), (4, 4));
    report
}

/// Presets of AMD Quark 0.13 and the SQNR of their outputs on the calibration samples, by its own operators.
const MEASURED: &[(&str, f64, f64)] = &[
    ("XINT8", 36.08, 27.86),
    ("A8W8", 39.80, 30.86),
    ("A16W8", 42.94, 36.43),
    ("BF16", 50.91, 44.54),
    ("BFP16", 41.26, 31.41),
];

#[test]
fn embedded_engine_reproduces_quarks_measurements() {
    for (preset, cnn, transformer) in MEASURED {
        for (float, expected) in [("tinycnn", cnn), ("tinytransformer", transformer)] {
            let report = report(float, &format!("{preset}-{float}"), &options(RuntimeChoice::Rten));
            let found = report.outputs[0].sqnr_db;
            assert!((found - expected).abs() < 0.02, "{preset} {float}: {found}, not {expected}");
            assert!(report.outputs[0].cosine > 0.99 && report.engine.starts_with("rten"));
            assert!(report.tensors.len() > 5 && report.tensors.is_sorted_by(|a, b| a.sqnr_db <= b.sqnr_db));
        }
    }
}

#[test]
fn onnx_runtime_gives_the_same_measurements() {
    if let Err(error) = found(&options(RuntimeChoice::Ort)) {
        return eprintln!("not tested with ONNX Runtime: {error}");
    }
    for (preset, cnn, transformer) in MEASURED {
        for (float, expected) in [("tinycnn", cnn), ("tinytransformer", transformer)] {
            let name = format!("{preset}-{float}");
            let (own, embedded) = (
                report(float, &name, &options(RuntimeChoice::Ort)),
                report(float, &name, &options(RuntimeChoice::Rten)),
            );
            // The loss of its integer kernels depends on the processor.
            let allowed = |found: &Report| found.outputs[0].unoptimized_sqnr_db.unwrap_or(found.outputs[0].sqnr_db);
            let difference = (allowed(&own) - embedded.outputs[0].sqnr_db).abs();
            assert!((allowed(&own) - expected).abs() < 0.02, "{name}: {}", allowed(&own));
            assert!(difference < 0.02, "{name}: {difference}");
            assert_eq!(own.tensors.len(), embedded.tensors.len());
            // Operators of Quark's library are not ONNX Runtime's to optimize.
            assert_eq!(own.outputs[0].unoptimized_sqnr_db.is_some(), !preset.starts_with("BF"), "{name}");
            assert!(embedded.outputs[0].unoptimized_sqnr_db.is_none() && own.optimized_fails.is_none());
        }
    }
}

#[test]
fn small_memory_budget_changes_nothing() {
    let whole = report("tinycnn", "A8W8-tinycnn", &options(RuntimeChoice::Rten));
    let small = RuntimeOptions { budget: 4096, ..options(RuntimeChoice::Rten) };
    let small = report("tinycnn", "A8W8-tinycnn", &small);
    let text = |report: &Report| serde_json::to_string(report).unwrap();
    assert_eq!(text(&whole), text(&small));
}

#[test]
fn model_has_no_error_against_itself() {
    let reference = model("tinycnn.float");
    let mut samples = samples("tinycnn", &reference);
    let run = |samples: &mut Samples, labels: Option<&[i64]>| {
        evaluate(&reference, &reference, samples, COMPARED, labels, &options(RuntimeChoice::Rten), &mut |_| {
            ControlFlow::Continue(())
        })
    };
    let report = run(&mut samples, None).unwrap();
    assert!(report.tensors.iter().all(|t| t.sqnr_db == f64::INFINITY && t.max_error == 0.0));
    assert_eq!((report.top1_agreement, report.top1), (Some(1.0), None));
    let json = serde_json::to_value(&report).unwrap();
    assert!(json["outputs"][0]["sqnr_db"].is_null() && json["outputs"][0]["cosine"] == 1.0);
    let labelled = run(&mut samples, Some(&[0, 0, 0, 0])).unwrap();
    assert_eq!(labelled.top1, labelled.reference_top1);
    let few = run(&mut samples, Some(&[0])).unwrap_err();
    assert!(matches!(few, EvaluationError::Labels { labels: 1, samples: 4 }), "{few}");
}

#[test]
fn scratch_directory_is_left_empty() {
    let scratch = TempDir::new().unwrap();
    let options = RuntimeOptions { scratch: Some(scratch.path().to_path_buf()), ..options(RuntimeChoice::Rten) };
    report("tinycnn", "A8W8-tinycnn", &options);
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}
