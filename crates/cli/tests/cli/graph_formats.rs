//! Several graph formats of one run.

use crate::kvant::{Place, names};
use crate::onnx::place;
use crate::resume_graph::{TRAINED, spawn, wait_for};

const BOTH: [&str; 4] = ["--graph-format", "qdq", "--graph-format", "qoperator"];

fn line<'a>(formats: &[&'a str], out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let line = ["quantize", "float.onnx", "--preset", "A8W8", "--data", "calib.npz", "--runtime", "rten", "-o", out];
    [&line[..], formats, more].concat()
}

fn bytes(place: &Place, name: &str) -> Vec<u8> {
    std::fs::read(place.path(name)).unwrap()
}

#[test]
fn one_calibration_makes_a_graph_of_each_format() {
    let place = place();
    let run = place.succeed(&line(&BOTH, "new/both", &["--report", "r.json"]));
    let paths: Vec<_> = ["qdq", "qoperator"].map(|name| place.path(&format!("new/both/{name}.onnx"))).into();
    assert_eq!(run.stdout.lines().collect::<Vec<_>>(), paths.iter().map(|p| p.to_str().unwrap()).collect::<Vec<_>>());
    assert_eq!(names(&place.path("new")), ["both"]);
    assert_eq!(names(&place.path("new/both")), ["qdq.onnx", "qoperator.onnx"]);
    for format in ["qdq", "qoperator"] {
        let alone = format!("{format}_alone.onnx");
        place.succeed(&line(&["--graph-format", format], &alone, &[]));
        assert!(bytes(&place, &format!("new/both/{format}.onnx")) == bytes(&place, &alone), "{format}");
        assert!(run.stderr.contains(&format!("{format}:\n")), "{run:?}");
    }
    assert_ne!(bytes(&place, "qdq_alone.onnx"), bytes(&place, "qoperator_alone.onnx"));
    let report: serde_json::Value = serde_json::from_slice(&bytes(&place, "r.json")).unwrap();
    let outputs = report["outputs"].as_array().unwrap();
    let formats: Vec<_> = outputs.iter().map(|output| output["graph_format"].as_str().unwrap()).collect();
    assert_eq!(formats, ["qdq", "qoperator"]);
    assert!(outputs[0]["quality"]["outputs"][0]["sqnr_db"].is_number(), "{report}");
    // The embedded engine has no integer operators, and says so.
    assert!(outputs[1]["quality"]["not_measured"].as_str().unwrap().contains("QLinearConv"), "{report}");
    assert_eq!(report["output"], outputs[0]["output"]);
    let again = line(&BOTH, "new/both", &["--external-data", "always"]);
    let run = place.run(&again);
    assert!(run.code == Some(1) && run.stderr.contains("qdq.onnx exists already"), "{run:?}");
    place.succeed(&[&again[..], &["--overwrite"]].concat());
    let expected = ["qdq.onnx", "qdq.onnx.data", "qoperator.onnx", "qoperator.onnx.data"];
    assert_eq!(names(&place.path("new/both")), expected);
}

#[test]
fn formats_that_cannot_be_had_together_are_refused_before_the_work() {
    let place = place();
    for (more, out, code, told) in [
        (&["--weight", "int4"][..], "both", 2, "--graph-format qoperator"),
        (&["--per-channel-activations"], "both", 1, "not that of QuantizeLinear/DequantizeLinear"),
        (&["--activation", "int16"], "both", 2, "--graph-format qoperator"),
        (&[], "both.onnx", 2, "several graph formats are written to a directory"),
        (&["--graph-format", "qdq"], "both", 2, "--graph-format qdq is given twice"),
        (&[], "calib.npz", 2, "calib.npz"),
    ] {
        let run = place.run(&line(&BOTH, out, more));
        assert!(run.code == Some(code) && run.stderr.contains(told), "{more:?} {out}: {run:?}");
        assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx"]);
    }
    let run = place.run(&[&["plan", "float.onnx", "--preset", "A8W8", "--weight", "int4"][..], &BOTH].concat());
    assert!(run.code == Some(2) && run.stderr.contains("--graph-format qoperator"), "{run:?}");
}

#[test]
fn a_graph_of_somebody_else_in_the_directory_is_not_replaced() {
    let place = place();
    std::fs::create_dir(place.path("both")).unwrap();
    std::fs::copy(place.path("float.onnx"), place.path("both/qoperator.onnx")).unwrap();
    let run = place.run(&line(&BOTH, "both", &["--overwrite"]));
    assert!(run.code == Some(1) && run.stderr.contains("Kvant has not made it"), "{run:?}");
    assert_eq!(bytes(&place, "both/qoperator.onnx"), bytes(&place, "float.onnx"));
    assert_eq!(names(&place.path("both")), ["qoperator.onnx"]);
}

#[test]
fn one_graph_that_is_not_good_enough_keeps_all_from_their_names() {
    let place = place();
    let run = place.run(&line(&BOTH, "both", &["--min-sqnr", "90", "--report", "r.json"]));
    assert!(run.code == Some(1) && run.stderr.contains("qdq: output `"), "{run:?}");
    assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx", "r.json"]);
}

#[test]
fn a_killed_run_of_several_formats_resumes_with_the_same_bytes() {
    let place = place();
    let line = line(&BOTH, "both", &["--algorithm", TRAINED]);
    place.succeed(&line);
    let expected = ["both/qdq.onnx", "both/qoperator.onnx"].map(|name| bytes(&place, name));
    std::fs::remove_dir_all(place.path("both")).unwrap();
    let mut child = spawn(&place, &line);
    wait_for(&place, "both", "layer.0");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!place.path("both").exists());
    let resumed = place.succeed(&line);
    assert!(resumed.stderr.contains("resuming with the statistics"), "{resumed:?}");
    assert_eq!(resumed.stderr.matches("resuming at layer").count(), 1, "{resumed:?}");
    assert!(["both/qdq.onnx", "both/qoperator.onnx"].map(|name| bytes(&place, name)) == expected);
    assert_eq!(names(&place.path("")), ["both", "calib.npz", "float.onnx"]);
}

/// Both have their names, or none has.
#[test]
fn graphs_of_a_run_that_is_killed_while_they_get_their_names_are_taken_back() {
    let place = place();
    place.succeed(&line(&BOTH, "both", &[]));
    let made = bytes(&place, "both/qoperator.onnx");
    std::fs::create_dir(place.path("both.partial")).unwrap();
    std::fs::rename(place.path("both/qoperator.onnx"), place.path("both.partial/qoperator.onnx")).unwrap();
    let stamp = |name: &str| {
        let metadata = place.path(name).metadata().unwrap();
        let modified = metadata.modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
        format!("{} {}", metadata.len(), modified.as_nanos())
    };
    let planned = |made: &str, placed: &str, stamp: String| serde_json::json!({"made": place.path(made), "place": place.path(placed), "stamp": stamp});
    let whole = serde_json::json!({"whole": true, "placing": [
        planned("both.partial/qdq.onnx", "both/qdq.onnx", stamp("both/qdq.onnx")),
        planned("both.partial/qoperator.onnx", "both/qoperator.onnx", stamp("both.partial/qoperator.onnx")),
    ]});
    let head = serde_json::json!({"kvant_journal": 1, "plan": "p", "options": {}});
    place.write("both.partial.journal", &format!("{head}\n{whole}\n"));
    place.succeed(&line(&BOTH, "both", &["--restart"]));
    assert!(bytes(&place, "both/qoperator.onnx") == made);
    assert_eq!(names(&place.path("")), ["both", "calib.npz", "float.onnx"]);
}
