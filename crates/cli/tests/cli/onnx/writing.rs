//! Versions and names of the written graph.

use super::{place, quantize};
use crate::kvant::Place;
use kvant_container::onnx::{self, DataType, ExternalData, ValueInfoProto};
use kvant_onnx::graph::node;
use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn int4_types_raise_the_ir_version() {
    let place = place();
    let mut model = onnx::read(&place.path("float.onnx")).unwrap();
    model.ir_version = Some(8);
    onnx::write(model, &place.path("float.onnx"), ExternalData::Auto).unwrap();
    place.succeed(&quantize(&["--weight", "int4", "--form", "microsoft"]));
    assert_eq!(onnx::read(&place.path("out.onnx")).unwrap().ir_version, Some(10));
}

/// The model at `from` with constants of these names, each of which makes an output of its own.
fn with_taken_names(from: &Path, taken: &BTreeSet<String>, to: &Path) {
    let mut model = onnx::read(from).unwrap();
    let graph = model.graph.as_mut().unwrap();
    for (i, name) in taken.iter().enumerate() {
        let output = format!("taken{i}");
        let one = onnx::tensor(name, DataType::FLOAT, &[1], 1.5f32.to_le_bytes().to_vec());
        graph.initializer.push(one);
        graph.node.push(node("Abs", &output, &[name], &[&output]));
        graph.output.push(ValueInfoProto { name: Some(output), ..graph.output[0].clone() });
    }
    onnx::write(model, to, ExternalData::Auto).unwrap();
}

fn names_of_tensors(path: &Path) -> BTreeSet<String> {
    let graph = onnx::read(path).unwrap().graph;
    let constants = graph.initializer.iter().map(|tensor| tensor.name().to_owned());
    constants.chain(graph.node.iter().flat_map(|node| node.output.clone())).collect()
}

#[test]
fn existing_tensor_names_are_not_reused() {
    let layouts: [&[&str]; 4] = [
        &["--preset", "A8W8", "--data", "calib.npz"],
        &["--preset", "U8S8_AAWS", "--layout", "qoperator", "--data", "calib.npz"],
        &["--preset", "UINT8_DYNAMIC_QUANT"],
        &["--preset", "MATMUL_NBITS"],
    ];
    for model in ["tinycnn", "tinytransformer"] {
        let place = Place::empty();
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data");
        for (from, to) in [("float.onnx", "float.onnx"), ("calib.npz", "calib.npz")] {
            std::fs::copy(data.join(format!("{model}.{from}")), place.path(to)).unwrap();
        }
        let sqnr = |float: &str, out: &str| {
            let eval = ["eval", out, "--reference", float, "--data", "calib.npz", "--runtime", "rten", "--json"];
            let run = place.run(&eval);
            // The embedded engine has no operators of integers; that the graph is sound was verified when it was written.
            (run.code == Some(0)).then(|| run.json()["outputs"][0]["sqnr_db"].as_f64())
        };
        for layout in layouts {
            let quantize = |float: &str, out: &str, without: &[&str]| {
                let to = ["--runtime", "rten", "-o", out, "--overwrite"];
                place.succeed(&[&["quantize", float][..], layout, without, &to].concat());
            };
            quantize("float.onnx", "out.onnx", &[]);
            let before = names_of_tensors(&place.path("float.onnx"));
            let new = names_of_tensors(&place.path("out.onnx")).difference(&before).cloned().collect();
            with_taken_names(&place.path("float.onnx"), &new, &place.path("taken.onnx"));
            quantize("taken.onnx", "taken_out.onnx", &["--exclude-op-types", "Abs"]);
            let (free, taken) = (sqnr("float.onnx", "out.onnx"), sqnr("taken.onnx", "taken_out.onnx"));
            assert_eq!(free, taken, "{model} {layout:?}, {} names", new.len());
            assert!(free.is_some() || layout[1] != "A8W8", "{model} is evaluated");
        }
    }
}
