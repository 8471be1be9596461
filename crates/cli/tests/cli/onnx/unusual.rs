//! Graphs that most exporters do not write: nodes without names, operators of other makers, versions that are too new.

use super::place;
use crate::kvant::Place;
use kvant_container::onnx::{self, ExternalData, ModelProto};
use kvant_onnx::graph::add_opset;

/// A changed `float.onnx`.
fn changed(change: impl FnOnce(&mut ModelProto)) -> Place {
    let place = place();
    let mut model = onnx::read(&place.path("float.onnx")).unwrap();
    change(&mut model);
    onnx::write(model, &place.path("float.onnx"), ExternalData::Auto).unwrap();
    place
}

fn quantized_nodes(place: &Place, options: &[&str]) -> u64 {
    let plan = ["plan", "float.onnx", "--preset", "WEIGHTS_INT8", "--json"];
    place.succeed(&[&plan[..], options].concat()).json()["quantized_nodes"].as_u64().unwrap()
}

#[test]
fn nodes_without_names_are_named_by_their_first_output() {
    let mut convs = Vec::new();
    let place = changed(|model| {
        for node in &mut model.graph.as_mut().unwrap().node {
            node.name = None;
            convs.extend((node.op_type() == "Conv").then(|| node.output[0].clone()));
        }
    });
    // Passes would give an output the name of another.
    let passes = ["--disable-pass", "batch-norm-folding", "--disable-pass", "bias-fusion"];
    let all = quantized_nodes(&place, &passes);
    let (first, last) = (convs.first().unwrap().as_str(), convs.last().unwrap().as_str());
    assert_eq!(quantized_nodes(&place, &[&passes[..], &["-x", first]].concat()), all - 1);
    assert_eq!(quantized_nodes(&place, &[&passes[..], &["--nodes", first]].concat()), 1);
    let paths = format!("{first}..{last}");
    assert!(quantized_nodes(&place, &[&passes[..], &["--exclude-subgraph", &paths]].concat()) < all);
    let run = place.run(&["plan", "float.onnx", "--preset", "A8W8", "-x", "nothing"]);
    assert!(run.code == Some(1) && !run.stderr.contains("there are ;"), "{run:?}");
    let shown = place.succeed(&["inspect", "float.onnx", "--all"]).stdout;
    let is_row = |line: &str| line.split_whitespace().take(2).eq([first, "Conv"]);
    assert!(shown.lines().any(is_row), "{shown}");
}

#[test]
fn operators_that_there_are_not_are_refused_by_the_plan() {
    let place = changed(|model| {
        let graph = model.graph.as_mut().unwrap();
        graph.node.iter_mut().find(|node| node.op_type() == "Relu").unwrap().op_type = Some("NoSuchOp".to_owned());
    });
    for command in ["plan", "quantize"] {
        for options in [&["--data", "calib.npz"][..], &["--weights-only"]] {
            let run = place.run(&[&[command, "float.onnx", "--preset", "A8W8", "-o", "out.onnx"], options].concat());
            assert!(run.code == Some(1) && run.stderr.contains("`NoSuchOp` is not an ONNX operator"), "{run:?}");
            assert!(run.stderr.contains("hint: export the model again"), "{run:?}");
        }
    }
    place.succeed(&["plan", "float.onnx", "--preset", "A8W8", "--weights-only", "--no-verify"]);
}

#[test]
fn operators_of_other_makers_are_refused_by_a_plan_that_needs_data() {
    let place = changed(|model| {
        let graph = model.graph.as_mut().unwrap();
        let relu = graph.node.iter_mut().find(|node| node.op_type() == "Relu").unwrap();
        (relu.domain, relu.op_type) = (Some("my".to_owned()), Some("Foo".to_owned()));
        add_opset(model, "my", 1);
    });
    let plan = ["plan", "float.onnx", "--preset", "A8W8"];
    for data in [&[][..], &["--data", "calib.npz"]] {
        let run = place.run(&[&plan[..], data].concat());
        assert!(run.code == Some(1) && run.stderr.contains("no engine runs operators of the domain my"), "{run:?}");
    }
    place.succeed(&[&plan[..], &["--weights-only"]].concat());
    let run = place.succeed(&["quantize", "float.onnx", "--preset", "MATMUL_NBITS", "-o", "out.onnx"]);
    assert!(run.stderr.contains("ONNX Runtime does not open the result: my:Foo"), "{run:?}");
}

#[test]
fn operators_that_the_engine_lacks_are_refused_by_the_plan() {
    for (operator, hint) in
        [("Gelu", "run it with ONNX Runtime"), ("NoSuchOp", "without the operators that no engine has")]
    {
        let place = changed(|model| {
            let graph = model.graph.as_mut().unwrap();
            let relu = graph.node.iter_mut().find(|node| node.op_type() == "Relu").unwrap();
            (relu.domain, relu.op_type) = (Some("com.microsoft".to_owned()), Some(operator.to_owned()));
            add_opset(model, "com.microsoft", 1);
        });
        for command in ["plan", "quantize"] {
            let of_graph = [command, "float.onnx", "--preset", "A8W8", "-o", "out.onnx"];
            let run = place.run(&[&of_graph[..], &["--data", "calib.npz", "--runtime", "rten"]].concat());
            assert!(run.code == Some(1) && run.stderr.contains("an operator of com.microsoft"), "{run:?}");
            assert!(run.stderr.contains(hint), "{run:?}");
        }
    }
}

#[test]
fn versions_that_no_runtime_takes_are_refused() {
    let place = changed(|model| model.ir_version = Some(99));
    for command in ["plan", "quantize"] {
        let run = place.run(&[command, "float.onnx", "--preset", "MATMUL_NBITS", "-o", "out.onnx"]);
        assert!(run.code == Some(1) && run.stderr.contains("ir_version: is 99"), "{run:?}");
    }
    place.succeed(&["quantize", "float.onnx", "--preset", "MATMUL_NBITS", "-o", "out.onnx", "--no-verify"]);
}
