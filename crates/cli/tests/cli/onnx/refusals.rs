//! Graphs, data and places that a run refuses before it works.

use super::{QUANTIZE, place, quantize};
use crate::kvant::names;
use kvant_container::onnx::{self, DataType, ExternalData};
use kvant_onnx::graph::node;

#[test]
fn infinite_weights_are_refused_first() {
    let place = place();
    let mut model = onnx::read(&place.path("float.onnx")).unwrap();
    let graph = model.graph.as_mut().unwrap();
    let name = graph.node.iter().find(|node| node.op_type() == "Conv").unwrap().input[1].clone();
    let weight = graph.initializer.iter_mut().find(|tensor| tensor.name() == name).unwrap();
    let mut bytes = onnx::tensor_bytes(weight).unwrap().to_vec();
    bytes[4..8].copy_from_slice(&f32::INFINITY.to_le_bytes());
    onnx::set_contents(weight, bytes);
    onnx::write(model, &place.path("float.onnx"), ExternalData::Auto).unwrap();
    for preset in ["A8W8", "WEIGHTS_INT8"] {
        let run = place.run(&["quantize", "float.onnx", "--preset", preset, "--data", "calib.npz", "-o", "out.onnx"]);
        assert!(run.code == Some(1) && run.stderr.contains("has an infinite value at element 1"), "{run:?}");
    }
}

#[test]
fn nothing_quantized_is_an_error_with_reasons() {
    let place = place();
    let ops = ["--op-types", "Relu", "--exclude-op-types", "Relu"];
    let run = place.run(&quantize(&ops));
    assert!(
        run.code == Some(1) && run.stderr.contains("no node of the model is quantized by this recipe\n"),
        "{run:?}"
    );
    let mut model = onnx::read(&place.path("float.onnx")).unwrap();
    let graph = model.graph.as_mut().unwrap();
    let input = graph.input[0].name().to_owned();
    let huge = onnx::tensor("huge", DataType::FLOAT, &[], 1e30f32.to_le_bytes().to_vec());
    let first = graph.node.iter_mut().find(|node| node.input.first() == Some(&input)).unwrap();
    first.input[0] = "scaled".to_owned();
    let conv = first.name().to_owned();
    graph.node.insert(0, node("Mul", "scale", &[&input, "huge"], &["scaled"]));
    graph.initializer.push(huge);
    onnx::write(model, &place.path("huge.onnx"), ExternalData::Auto).unwrap();
    let options = ["huge.onnx", "--preset", "A8W8", "--nodes", conv.as_str(), "--nodes", "scale"];
    let run = place.run(&[&["plan"], &options[..]].concat());
    assert!(run.code == Some(1) && run.stderr.contains("values beyond 1e30"), "{run:?}");
    // Data stay in float there, whatever they are.
    let plan = place.succeed(&["plan", "huge.onnx", "--preset", "WEIGHTS_INT8", "--nodes", conv.as_str(), "--json"]);
    assert_eq!(plan.json()["quantized_nodes"], 1);
}

#[cfg(target_os = "linux")]
#[test]
fn unwritable_report_leaves_no_graph() {
    let place = place();
    let run = place.run(&quantize(&["--report", "/dev/full"]));
    assert!(run.code == Some(1) && run.stderr.contains("/dev/full"), "{run:?}");
    // Results are kept for a run with another report.
    let left = ["calib.npz", "float.onnx", "out.onnx.partial.blocks", "out.onnx.partial.journal"];
    assert_eq!(names(&place.path("")), left);
    let run = place.succeed(&quantize(&["--report", "r.json"]));
    assert!(run.stderr.contains("resuming with the statistics"), "{run:?}");
    assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx", "out.onnx", "r.json"]);
}

#[test]
fn invalid_graphs_and_data_are_refused_with_hints() {
    let place = place();
    let cut = |name: &str, to: &str| {
        let bytes = std::fs::read(place.path(name)).unwrap();
        std::fs::write(place.path(to), &bytes[..bytes.len() / 2]).unwrap();
    };
    cut("float.onnx", "cut.onnx");
    cut("calib.npz", "cut.npz");
    std::fs::create_dir(place.path("dir.onnx")).unwrap();
    let refused = |args: &[&str], told: &[&str]| {
        let run = place.run(args);
        assert_eq!(run.code, Some(if told[0] == "--data" { 2 } else { 1 }), "{run:?}");
        assert!(told.iter().all(|told| run.stderr.contains(told)) && run.stderr.contains("hint: "), "{run:?}");
    };
    refused(&["plan", "cut.onnx", "--preset", "A8W8"], &["cut short", "cut.onnx"]);
    refused(&["plan", "dir.onnx", "--preset", "A8W8"], &["is not a regular file", "name a file that ends with .onnx"]);
    let with = |data: &'static str| [&QUANTIZE[..5], &[data, "-o", "out.onnx"]].concat();
    refused(&with("cut.npz"), &["cut short", "numpy.savez"]);
    refused(&with("nothing.npz"), &["--data", "nothing.npz"]);
}

#[test]
fn missing_arrays_are_named_with_their_purpose() {
    let place = place();
    place.succeed(&quantize(&[]));
    let eval = ["eval", "out.onnx", "--reference", "float.onnx", "--data", "calib.npz", "--labels", "nope"];
    let run = place.run(&eval);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stderr.contains("no array `nope` of labels") && run.stderr.contains("--labels"), "{run:?}");
}

#[test]
fn activations_that_no_disk_has_room_for_are_refused_before_the_work() {
    let place = place();
    let many = ["--num-samples", "4294967295", "--algorithm", "bias-correction", "-o", "out.onnx"];
    let line = ["quantize", "float.onnx", "--preset", "A8W8", "--data", "random", "--runtime", "rten"];
    let run = place.run(&[&line[..], &many].concat());
    assert_eq!(run.code, Some(1), "{run:?}");
    for told in [" bytes of disk space", "temporary files", " are free in ", "--num-samples"] {
        assert!(run.stderr.contains(told), "{told}: {run:?}");
    }
    assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx"]);
}
