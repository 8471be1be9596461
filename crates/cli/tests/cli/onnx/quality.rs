//! Results are measured, and limits of quality apply to them.

use super::{place, quantize};
use crate::kvant::{Place, names};
use kvant_container::onnx::{self, DataType, ExternalData, ValueInfoProto};
use kvant_onnx::graph::{add_opset, node};
use kvant_onnx::shape::{Dim, ValueType};

#[test]
fn method_chosen_by_auto_is_reported() {
    let run = place().succeed(&quantize(&["--calibration-method", "auto", "--json"]));
    let tensors = run.json()["report"]["tensors"].as_array().unwrap().clone();
    let own = tensors.iter().filter(|t| t["role"] == "activation" && t["shares"].is_null());
    let taken: Vec<&str> = own.map(|tensor| tensor["method"].as_str().unwrap()).collect();
    assert!(taken.len() > 3 && taken.contains(&"mse"), "{taken:?}");
    assert!(run.stderr.is_empty() || run.stderr.contains("by mse"), "{run:?}");
    let run = place().succeed(&quantize(&[]));
    assert!(!run.stderr.contains("ranges found by"), "{run:?}");
}

#[test]
fn integer_io_is_evaluated_with_its_scales() {
    let place = place();
    place.succeed(&quantize(&[]));
    let sqnr = |name: &str| {
        let args = ["eval", name, "--reference", "float.onnx", "--data", "calib.npz", "--runtime", "rten", "--json"];
        place.succeed(&args).json()["outputs"][0]["sqnr_db"].as_f64().unwrap()
    };
    let pairs = sqnr("out.onnx");
    place.succeed(&quantize(&["--boundary", "integer"]));
    assert!((sqnr("out.onnx") - pairs).abs() < 1e-6, "{pairs}");
}

#[test]
fn results_are_measured_before_they_are_placed() {
    let place = place();
    let run = place.succeed(&quantize(&["--num-samples", "3", "--report", "r.json"]));
    assert!(run.stderr.contains("measured on 1 held-out sample,"), "{run:?}");
    assert!(run.stderr.contains("SQNR") && run.stderr.contains("cosine") && !run.stderr.contains("warning"), "{run:?}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(place.path("r.json")).unwrap()).unwrap();
    let quality = &report["quality"];
    assert_eq!((quality["samples_from"].as_str(), quality["samples"].as_u64()), (Some("held-out"), Some(1)));
    assert!(quality["outputs"][0]["sqnr_db"].as_f64().unwrap() > 20.0, "{quality}");
    let all = place.succeed(&quantize(&["--json"])).json();
    assert_eq!(all["quality"]["samples_from"], "calibration");
    assert_eq!(all["quality"]["samples"], 4);
    assert!(all["quality"]["warnings"].as_array().unwrap().is_empty(), "{all}");
    let blind = ["quantize", "float.onnx", "--preset", "WEIGHTS_INT8", "-o", "w.onnx", "--runtime", "rten"];
    assert!(place.succeed(&blind).stderr.contains("was not measured: there are no data"));
    let given =
        place.succeed(&[&blind[..6], &["--overwrite", "--data", "calib.npz", "--runtime", "rten", "--json"]].concat());
    assert_eq!(given.json()["quality"]["samples_from"], "given");
}

#[test]
fn poor_results_give_a_warning_with_remedies() {
    let place = place();
    // Half of all values are cut.
    let run = place.succeed(&quantize(&["--weight", "int4", "--percentile", "50", "--quiet"]));
    assert!(run.stderr.contains("warning: output `"), "{run:?}");
    assert!(run.stderr.contains("below 15 dB") && run.stderr.contains("the most damaged tensors"), "{run:?}");
    // No two layers of it can be equalized, and adaround is dearer than the first three.
    assert!(run.stderr.contains("  --per-channel: a scale") && run.stderr.contains("bias-correction"), "{run:?}");
    assert!(!run.stderr.contains("--cle") && !run.stderr.contains("adaround"), "{run:?}");
}

#[test]
fn result_below_min_sqnr_is_not_written() {
    let place = place();
    let line = quantize(&["--min-sqnr", "90", "--report", "r.json"]);
    let run = place.run(&line.into_iter().filter(|option| *option != "--overwrite").collect::<Vec<_>>());
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stderr.contains("--min-sqnr asks for 90") && run.stdout.is_empty(), "{run:?}");
    assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx", "r.json"]);
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(place.path("r.json")).unwrap()).unwrap();
    assert!(report["output"].is_null() && report["quality"]["outputs"][0]["sqnr_db"].is_number(), "{report}");
    assert!(run.stderr.contains("report r.json is, and another run replaces it with --overwrite"), "{run:?}");
    place.succeed(&quantize(&["--min-sqnr", "10", "--report", "r.json"]));
    let run = place.run(&["quantize", "float.onnx", "--preset", "WEIGHTS_INT8", "-o", "w.onnx", "--min-sqnr", "9"]);
    assert!(run.code == Some(2) && run.stderr.contains("--min-sqnr needs samples"), "{run:?}");
}

#[test]
fn result_that_is_not_measured_does_not_reach_min_sqnr() {
    let place = Place::empty();
    let mut model = uneven();
    // The embedded engine does not have it.
    let mut norm = node("LRN", "l", &["h"], &["p"]);
    kvant_onnx::graph::set_attribute(&mut norm, "size", 1i64);
    model.graph.as_mut().unwrap().node[1] = norm;
    onnx::write(model, &place.path("float.onnx"), ExternalData::Never).unwrap();
    let line = ["quantize", "float.onnx", "--preset", "WEIGHTS_INT8", "--data", "random", "--runtime", "rten"];
    let run = place.run(&[&line[..], &["--min-sqnr", "10", "-o", "out.onnx"]].concat());
    assert!(
        run.code == Some(1) && run.stderr.contains("--min-sqnr 10: the SQNR of the outputs is not known"),
        "{run:?}"
    );
    assert!(run.stderr.contains("hint: measure it with --runtime ort, or leave --min-sqnr out"), "{run:?}");
    // What was found of it is kept without its name.
    assert!(run.stderr.contains("out.onnx.partial.report.json\nhint: "), "{run:?}");
    assert_eq!(names(&place.path("")), ["float.onnx", "out.onnx.partial.report.json"]);
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(place.path("out.onnx.partial.report.json")).unwrap()).unwrap();
    assert_eq!(report["schema"], "kvant.quantize/1");
    // The next run that writes removes it.
    let written = place.succeed(&[&line[..], &["--quiet", "-o", "out.onnx"]].concat());
    assert!(written.stderr.contains("warning: the quality of the result was not measured"), "{written:?}");
    assert_eq!(names(&place.path("")), ["float.onnx", "out.onnx"]);
}

#[test]
fn older_softmax_of_a_quantized_graph_is_measured() {
    let place = Place::empty();
    let floats: Vec<u8> = (0..64 * 128).flat_map(|i| ((i % 13) as f32 / 50.0 - 0.1).to_le_bytes()).collect();
    let shape = [-1i64, 8, 16].iter().flat_map(|size| size.to_le_bytes()).collect::<Vec<u8>>();
    let mut softmax = node("Softmax", "", &["r"], &["y"]);
    kvant_onnx::graph::set_attribute(&mut softmax, "axis", 2i64);
    let batch = |name: &str, shape: &[usize]| {
        let dims = [Dim::Symbol("b".to_owned())].into_iter().chain(shape.iter().map(|&size| Dim::Known(size)));
        ValueType::new(DataType::FLOAT, dims.collect()).to_proto(name).unwrap()
    };
    let graph = onnx::GraphProto {
        name: Some("old".to_owned()),
        node: vec![node("MatMul", "", &["x", "w"], &["m"]), node("Reshape", "", &["m", "shape"], &["r"]), softmax],
        initializer: vec![
            onnx::tensor("w", DataType::FLOAT, &[64, 128], floats),
            onnx::tensor("shape", DataType::INT64, &[3], shape),
        ],
        input: vec![batch("x", &[64])],
        output: vec![batch("y", &[8, 16])],
        ..onnx::GraphProto::default()
    };
    let mut model = onnx::ModelProto { ir_version: Some(6), graph: Some(graph).into(), ..onnx::ModelProto::default() };
    add_opset(&mut model, "", 11);
    onnx::write(model, &place.path("float.onnx"), ExternalData::Never).unwrap();
    let line = ["quantize", "float.onnx", "--preset", "U8S8_AAWS", "--data", "random", "--num-samples", "8"];
    let run = place.succeed(&[&line[..], &["--runtime", "rten", "-o", "out.onnx"]].concat());
    assert!(run.stderr.contains("measured on ") && !run.stderr.contains("not measured"), "{run:?}");
}

#[test]
fn outputs_that_are_no_numbers_do_not_get_their_name() {
    let place = Place::empty();
    // One over values of which some get the code of zero.
    let mut model = uneven();
    let graph = model.graph.as_mut().unwrap();
    graph.node = vec![
        node("Conv", "conv", &["x", "v"], &["h"]),
        node("Abs", "abs", &["h"], &["a"]),
        node("Div", "divide", &["one", "a"], &["y"]),
    ];
    let weights: Vec<u8> = [1f32, -0.5, 0.5, 0.25].iter().flat_map(|weight| weight.to_le_bytes()).collect();
    graph.initializer[0] = onnx::tensor("v", DataType::FLOAT, &[2, 2, 1, 1], weights);
    graph.initializer.push(onnx::tensor("one", DataType::FLOAT, &[1], 1f32.to_le_bytes().to_vec()));
    onnx::write(model, &place.path("float.onnx"), ExternalData::Never).unwrap();
    let line = [
        &["quantize", "float.onnx", "--preset", "A8W8", "--more-op-types", "Div", "--io-dtype", "float"][..],
        &["--data", "random", "--runtime", "rten", "--report", "r.json", "-o", "out.onnx"],
    ]
    .concat();
    let run = place.run(&line);
    assert!(run.code == Some(1) && run.stdout.is_empty(), "{run:?}");
    for told in ["output `y` has NaN or infinite values", "damaged most in `", "out.onnx is not written", "--no-verify"]
    {
        assert!(run.stderr.contains(told), "{told}: {run:?}");
    }
    assert_eq!(names(&place.path("")), ["float.onnx", "r.json"]);
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(place.path("r.json")).unwrap()).unwrap();
    assert!(report["output"].is_null() && report["quality"]["outputs"][0]["non_finite"].as_u64() > Some(0), "{report}");
    assert!(run.stderr.contains("with --override 'h=keep' --override 'a=keep'"), "{run:?}");
    let rest = ["--overwrite", "--override", "h=keep", "--override", "a=keep"];
    place.succeed(&[&line[..], &rest].concat());
    place.succeed(&[&line[..], &["--overwrite", "--no-verify"]].concat());
}

#[test]
fn graph_onnxruntime_cannot_open_fails_verification() {
    let place = place();
    let run = place.run(&["verify", "float.onnx", "--for", "onnxruntime"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let brain = ["quantize", "float.onnx", "--preset", "BF16_MODEL", "-o", "brain.onnx"];
    let run = place.succeed(&brain);
    assert!(run.stderr.contains("bfloat16"), "{run:?}");
    let run = place.run(&["verify", "brain.onnx", "--json"]);
    assert_eq!(run.code, Some(0), "other runtimes take it: {run:?}");
    let verdict = run.json()["loaders"].as_array().unwrap().iter().find(|l| l["id"] == "onnxruntime").cloned();
    assert_eq!(verdict.unwrap()["loads"], "no", "{run:?}");
    assert_eq!(place.run(&["verify", "brain.onnx", "--for", "onnxruntime"]).code, Some(1));
}

/// Two convolutions with a Relu between them, the channels of the first of very different size.
fn uneven() -> onnx::ModelProto {
    let floats = |name: &str, shape: &[usize], values: &[f32]| {
        onnx::tensor(name, DataType::FLOAT, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
    };
    let graph = onnx::GraphProto {
        name: Some("uneven".to_owned()),
        node: vec![
            node("Conv", "a", &["x", "v"], &["h"]),
            node("Relu", "r", &["h"], &["p"]),
            node("Conv", "b", &["p", "w"], &["y"]),
        ],
        initializer: vec![
            floats("v", &[2, 2, 1, 1], &[40.0, -30.0, 0.02, 0.03]),
            floats("w", &[2, 2, 1, 1], &[0.02, 25.0, -0.01, 30.0]),
        ],
        input: vec![typed("x", &[1, 2, 4, 4])],
        output: vec![typed("y", &[1, 2, 4, 4])],
        ..onnx::GraphProto::default()
    };
    let mut model = onnx::ModelProto { ir_version: Some(8), graph: Some(graph).into(), ..onnx::ModelProto::default() };
    add_opset(&mut model, "", 17);
    model
}

fn typed(name: &str, shape: &[usize]) -> ValueInfoProto {
    let dims = shape.iter().map(|&size| Dim::Known(size)).collect();
    ValueType::new(DataType::FLOAT, dims).to_proto(name).unwrap()
}

#[test]
fn scaled_channels_are_not_reported_as_damaged() {
    let place = Place::empty();
    onnx::write(uneven(), &place.path("float.onnx"), ExternalData::Never).unwrap();
    let damaged = |options: &[&str]| {
        let random = ["--preset", "A16W8", "--data", "random", "--runtime", "rten", "--overwrite", "-o", "out.onnx"];
        place.succeed(&[&["quantize", "float.onnx"], &random[..], options].concat());
        let eval = ["eval", "out.onnx", "--reference", "float.onnx", "--data", "random", "--runtime", "rten", "--json"];
        let report = place.succeed(&eval).json();
        let tensors = report["tensors"].as_array().unwrap().iter().map(|t| t["sqnr_db"].as_f64().unwrap_or(99.0));
        (report["scaled_tensors"].as_u64().unwrap(), tensors.fold(f64::INFINITY, f64::min))
    };
    let (none, plain) = damaged(&[]);
    let (scaled, equalized) = damaged(&["--cle"]);
    assert_eq!((none, scaled), (0, 2), "h and p");
    assert!(equalized > plain - 6.0, "{equalized} dB, {plain} without equalization");
}

#[test]
fn constants_beyond_the_range_of_float16_are_a_warning() {
    let place = Place::empty();
    let mut model = uneven();
    let large: Vec<u8> = [1e6f32, 1.0, 2.0, 3.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    model.graph.as_mut().unwrap().initializer[0] = onnx::tensor("v", DataType::FLOAT, &[2, 2, 1, 1], large);
    onnx::write(model, &place.path("float.onnx"), ExternalData::Never).unwrap();
    let run = place.succeed(&["quantize", "float.onnx", "--preset", "FP16_MODEL", "--quiet", "-o", "half.onnx"]);
    assert!(run.stderr.contains("warning: 1 value of 1 constant is beyond the 16-bit type's range"), "{run:?}");
}
