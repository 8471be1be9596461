//! The time that graphs take in ONNX Runtime, where its library is found.

use super::{place, quantize};
use crate::kvant::Place;
use kvant_onnx::runtime::{RuntimeChoice, RuntimeOptions, found};

/// Returns whether the library is found on this machine.
pub fn has_onnx_runtime() -> bool {
    found(&RuntimeOptions { choice: RuntimeChoice::Ort, ..RuntimeOptions::default() }).is_ok()
}

fn refused(place: &Place, args: &[&str], words: &str) {
    let run = place.run(args);
    assert!(run.code == Some(2) && run.stderr.contains(words), "{args:?}: {run:?}");
}

#[test]
fn timing_of_what_programs_do_not_run_is_refused() {
    let place = place();
    let eval = ["eval", "float.onnx", "--time"];
    for (more, words) in [
        (&["--runtime", "rten"][..], "--time measures in ONNX Runtime, and --runtime asks for rten"),
        (&["--report", "r.html"], "needs samples"),
        (&["--seq-len", "8"], "--seq-len applies only to text"),
    ] {
        refused(&place, &[&eval[..], more].concat(), words);
    }
    refused(&place, &["eval", "float.onnx", "float.onnx", "--time"], "--time takes one graph");
    std::fs::create_dir(place.path("model")).unwrap();
    refused(&place, &["eval", "model", "--time"], "--time applies only to ONNX graphs");
}

#[test]
fn graph_is_timed_beside_its_reference() {
    if !has_onnx_runtime() {
        return;
    }
    let place = place();
    place.succeed(&quantize(&[]));
    let eval = ["eval", "out.onnx", "--reference", "float.onnx", "--time", "--json"];
    let alone = place.succeed(&eval).json();
    assert_eq!(alone.as_object().unwrap().len(), 2, "nothing but the schema and the time: {alone}");
    let with_data = place.succeed(&[&eval[..], &["--data", "calib.npz", "--threads", "2"]].concat()).json();
    assert!(with_data["outputs"][0]["sqnr_db"].as_f64().unwrap() > 20.0, "{with_data}");
    for (report, threads, made_up) in [(&alone, 1, true), (&with_data, 2, false)] {
        let time = &report["time"];
        assert_eq!((time["threads"].as_u64(), time["made_up_inputs"].as_bool()), (Some(threads), Some(made_up)));
        assert!(time["engine"].as_str().unwrap().starts_with("onnxruntime") && time["runs"].as_u64() > Some(4));
        let of = |graph: &str, key: &str| time[graph][key].as_f64().unwrap();
        for graph in ["model", "reference"] {
            let [low, middle, high] = ["q1_ms", "median_ms", "q3_ms"].map(|key| of(graph, key));
            assert!(0.0 < low && low <= middle && middle <= high, "{time}");
        }
        let ratio = of("model", "median_ms") / of("reference", "median_ms");
        assert!((time["ratio"].as_f64().unwrap() - ratio).abs() < 1e-9, "{time}");
    }
}

#[test]
fn integer_inputs_are_timed_on_codes_of_the_reference_inputs() {
    if !has_onnx_runtime() {
        return;
    }
    let place = place();
    place.succeed(&quantize(&["--io-dtype", "integer"]));
    let run = place.succeed(&["eval", "out.onnx", "--reference", "float.onnx", "--time"]);
    assert!(run.stdout.contains("reference") && run.stdout.contains("made-up inputs"), "{run:?}");
    let alone = place.succeed(&["eval", "float.onnx", "--time"]);
    assert!(!alone.stdout.contains("reference  "), "{alone:?}");
}
