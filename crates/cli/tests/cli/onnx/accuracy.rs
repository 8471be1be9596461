//! Recipes are tried until a graph keeps its limits of accuracy.

use super::place;
use crate::kvant::{Place, Run, names};

const QUANTIZE: [&str; 7] = ["quantize", "float.onnx", "--data", "calib.npz", "--runtime", "rten", "--json"];

/// Counts the pairs in a graph: a metric that falls with each layer in float.
#[cfg(unix)]
const PAIRS: &str = "sh -c 'grep -ao DequantizeLinear \"$1\" | wc -l' -";

fn quantized(place: &Place, options: &[&str]) -> Run {
    place.run(&[&QUANTIZE[..], &["-o", "out.onnx"], options].concat())
}

#[cfg(unix)]
#[test]
fn fewest_layers_stay_in_float_until_the_metric_is_good_enough() {
    let place = place();
    let gate = ["--preset", "A8W8", "--metric", PAIRS, "--lower-is-better"];
    let all = quantized(&place, &[&gate[..], &["--max-drop", "1000"]].concat()).json();
    let pairs = all["accuracy"]["attempts"][0]["drop"].as_f64().unwrap();
    assert!(pairs > 20.0 && all["accuracy"]["reference"] == 0.0, "{all}");
    std::fs::remove_file(place.path("out.onnx")).unwrap();
    let limit = (pairs / 2.0).floor();
    let run = quantized(&place, &[&gate[..], &["--max-drop", &limit.to_string()]].concat());
    let accuracy = run.json()["accuracy"].clone();
    let attempts = accuracy["attempts"].as_array().unwrap();
    let last = attempts.last().unwrap();
    assert!(last["accepted"] == true && last["drop"].as_f64().unwrap() <= limit, "{accuracy}");
    let layers = |attempt: &serde_json::Value| attempt["widened"].as_array().unwrap().len();
    let rejected = attempts.iter().filter(|attempt| attempt["accepted"] == false).map(layers).max().unwrap();
    assert_eq!(layers(last), rejected + 1, "one layer less does not suffice: {accuracy}");
    let file = std::fs::read(place.path("out.onnx")).unwrap();
    let count = file.windows(16).filter(|window| *window == b"DequantizeLinear").count();
    assert_eq!(count as f64, last["drop"].as_f64().unwrap(), "what was measured is what was written");
    assert!(run.stderr.contains("attempt 1, the recipe: metric"), "{run:?}");
    assert_eq!(names(place.path("").as_path()), ["calib.npz", "float.onnx", "out.onnx"]);
}

#[cfg(unix)]
#[test]
fn limits_that_no_recipe_keeps_leave_a_report() {
    let place = place();
    let gate = ["--preset", "A8W8", "--metric", PAIRS, "--lower-is-better", "--max-drop", "1"];
    let run = quantized(&place, &[&gate[..], &["--report", "r.json"]].concat());
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stderr.contains("keeps the limits: the best, the recipe + float in"), "{run:?}");
    assert!(run.stderr.contains("--auto") && !place.path("out.onnx").exists(), "{run:?}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(place.path("r.json")).unwrap()).unwrap();
    assert_eq!((&report["accuracy"], &report["output"]), (&run.json()["accuracy"], &serde_json::Value::Null));
}

#[cfg(unix)]
#[test]
fn metrics_that_say_nothing_fail_before_anything_is_made() {
    let place = place();
    for (metric, words) in [
        ("sh -c 'date +%N'", "for the same float graph"),
        ("sh -c 'echo missing >&2; exit 4'", "missing"),
        ("echo accuracy", "is not a number"),
        ("/no/such/program", "cannot be started"),
        ("sh -c 'sleep 30'", "took more than 1 s"),
    ] {
        let gate = ["--preset", "A8W8", "--max-drop", "0.1", "--metric-timeout", "1", "--metric", metric];
        let run = quantized(&place, &gate);
        assert!(run.code == Some(1) && run.stderr.contains(words), "{metric}: {run:?}");
        assert_eq!(names(place.path("").as_path()), ["calib.npz", "float.onnx"], "{metric}");
    }
}

#[test]
fn auto_needs_no_recipe() {
    let place = place();
    let run = quantized(&place, &["--auto", "--max-drop", "0", "--num-samples", "2", "--min-sqnr", "25"]);
    let report = run.json();
    let accuracy = &report["accuracy"];
    let last = accuracy["attempts"].as_array().unwrap().last().unwrap();
    assert_eq!(accuracy["metric"], "top-1 agreement");
    assert_eq!((&accuracy["samples"], &accuracy["samples_from"]), (&2.into(), &"held-out".into()));
    assert!(last["accepted"] == true && last["drop"] == 0.0 && last["sqnr_db"].as_f64() >= Some(25.0), "{accuracy}");
    assert!(place.path("out.onnx").exists());
    let unreachable = ["--auto", "--min-sqnr", "300", "--overwrite"];
    let run = quantized(&place, &unreachable);
    let attempts = run.json()["accuracy"]["attempts"].as_array().unwrap().clone();
    assert_eq!(run.code, Some(1), "{run:?}");
    let recipes: Vec<&str> = attempts.iter().map(|attempt| attempt["recipe"].as_str().unwrap()).collect();
    for part in ["scales per channel", "ranges by auto", "cle", "bias-correction", "adaround", "float in"] {
        assert!(recipes.iter().any(|recipe| recipe.contains(part)), "{part}: {recipes:?}");
    }
}

#[test]
fn settings_of_accuracy_without_effect_are_refused() {
    let place = place();
    let preset = ["--preset", "A8W8"];
    for (options, words) in [
        (&["--labels", "label"][..], "--labels of an ONNX graph has no effect without --max-drop"),
        (&["--eval", "calib.npz"], "--eval of an ONNX graph has no effect without --max-drop"),
        (&["--auto"], "--auto tries recipes until a limit holds"),
        (&["--max-drop", "1"], "is a share of samples"),
        (&["--max-drop", "0.01", "--labels", "label"], "--labels are those of --eval"),
        (&["--max-drop", "0.01", "--metric", "echo 'open"], "is not a command"),
        (&["--max-drop", "1", "--metric", "echo 1", "--eval", "calib.npz"], "exclude each other"),
        (&["--metric", "echo 1"], "--max-drop"),
        (&["--max-drop", "1", "--metric-timeout", "5"], "--metric"),
    ] {
        let run = quantized(&place, &[&preset[..], options].concat());
        assert!(run.code == Some(2) && run.stderr.contains(words), "{options:?}: {run:?}");
    }
    let run = place.run(&["quantize", "float.onnx", "--preset", "WEIGHTS_INT8", "--max-drop", "0.1", "-o", "out.onnx"]);
    assert!(run.code == Some(2) && run.stderr.contains("--max-drop needs samples"), "{run:?}");
    std::fs::create_dir(place.path("model")).unwrap();
    let run = place.run(&["quantize", "model", "--scheme", "int8", "--max-drop", "0.1", "-o", "out"]);
    assert!(run.code == Some(2) && run.stderr.contains("--max-drop"), "{run:?}");
}
