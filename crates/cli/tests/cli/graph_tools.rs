//! `kvant graph`.

use crate::json;
use crate::kvant::{Place, names};
use crate::onnx::{place, quantize};
use kvant_container::onnx::{
    DataType, ExternalData, GraphProto, MessageField, ModelProto, OperatorSetIdProto, ValueInfoProto, read, tensor,
    write,
};
use kvant_onnx::graph::{check, for_each_node, node, opset, set_attribute};
use kvant_onnx::shape::{Dim, ValueType};
use std::path::Path;

fn operators(path: &Path) -> Vec<String> {
    let model = read(path).unwrap();
    assert_eq!(check(&model), Ok(()));
    let mut operators = Vec::new();
    for_each_node(&model.graph, &mut |node| operators.push(node.op_type().to_owned()));
    operators
}

#[test]
fn changed_graph_is_written_with_a_line_on_what_changed() {
    let place = place();
    let run = place.succeed(&["graph", "simplify", "float.onnx", "-o", "out.onnx"]);
    assert!(run.stdout.ends_with("out.onnx\n") && run.stdout.lines().count() == 1, "{run:?}");
    assert!(run.stderr.starts_with("simplify: ") && run.stderr.lines().count() == 1, "{run:?}");
    operators(&place.path("out.onnx"));
    assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx", "out.onnx"]);
    assert_eq!(place.succeed(&["graph", "simplify", "float.onnx", "-o", "b.onnx", "--quiet"]).stderr, "");
}

#[test]
fn files_are_replaced_only_on_request() {
    let place = place();
    let command = ["graph", "clip-infinities", "float.onnx", "-o", "out.onnx"];
    place.succeed(&command);
    let before = std::fs::read(place.path("out.onnx")).unwrap();
    let run = place.run(&command);
    assert!(run.code == Some(1) && run.stderr.contains("--overwrite"), "{run:?}");
    assert_eq!(std::fs::read(place.path("out.onnx")).unwrap(), before);
    place.succeed(&[&command[..], &["--overwrite"]].concat());
    let run = place.run(&["graph", "clip-infinities", "float.onnx", "-o", "float.onnx", "--overwrite"]);
    assert!(run.code == Some(2) && run.stderr.contains("is the source"), "{run:?}");
    let run = place.run(&["graph", "simplify", "calib.npz", "-o", "b.onnx"]);
    assert!(run.code == Some(2) && run.stderr.contains("is not an ONNX graph"), "{run:?}");
    let run = place.run(&["graph", "simplify", "float.onnx", "-o", "b.bin"]);
    assert!(run.code == Some(2) && run.stderr.contains(".onnx"), "{run:?}");
    assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx", "out.onnx"]);
}

#[test]
fn refused_requests_leave_nothing() {
    let place = place();
    let refused = |args: &[&str], code: i32, words: &str| {
        let run = place.run(&[&["graph"], args, &["-o", "out.onnx"]].concat());
        assert!(run.code == Some(code) && run.stderr.contains(words), "{args:?}: {run:?}");
        assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx"], "{args:?}");
    };
    refused(&["convert-opset", "float.onnx", "--opset", "8"], 1, "cannot be lowered to 8");
    refused(&["extract", "float.onnx", "--outputs", "none"], 1, "no tensor `none`");
    refused(&["fix-shapes", "float.onnx", "--dim", "none=3"], 1, "called `none`");
    refused(&["fix-shapes", "float.onnx"], 2, "--input-shape");
    refused(&["fix-shapes", "float.onnx", "--dim", "batch=-1"], 2, "e.g. batch=1");
    refused(&["rename-domain", "float.onnx", "--domain", "a=b"], 1, "does not use the domain `a`");
    refused(&["clip-infinities", "float.onnx", "--limit", "-1"], 1, "not a positive");
    refused(&["simplify", "float.onnx", "--disable-pass", "gelu-fusio"], 2, "did you mean `gelu-fusion`?");
    let whole = std::fs::read(place.path("float.onnx")).unwrap();
    std::fs::write(place.path("float.onnx"), &whole[..whole.len() / 2]).unwrap();
    refused(&["simplify", "float.onnx"], 1, "float.onnx");
}

#[test]
fn external_data_stay_external() {
    let place = place();
    let model = read(&place.path("float.onnx")).unwrap();
    write(model, &place.path("apart.onnx"), ExternalData::Always).unwrap();
    place.succeed(&["graph", "simplify", "apart.onnx", "-o", "out.onnx"]);
    assert!(place.path("out.onnx.data").is_file());
    operators(&place.path("out.onnx"));
    let run = place.run(&["graph", "simplify", "apart.onnx", "-o", "apart.onnx", "--overwrite"]);
    assert_eq!(run.code, Some(2), "{run:?}");
}

#[test]
fn quantized_graph_is_dequantized_and_listed() {
    let place = place();
    place.succeed(&quantize(&["--per-channel"]));
    let object = json::check(&place, "graph", &["graph", "dequantize", "out.onnx", "-o", "back.onnx"]);
    assert!(object["changes"]["constants"].as_u64() > Some(3) && object["changes"]["left"] == 0, "{object}");
    assert!(operators(&place.path("back.onnx")).iter().all(|operator| !operator.ends_with("QuantizeLinear")));
    let listing = json::check(&place, "graph", &["graph", "show", "out.onnx", "--list-nodes"]);
    let quantized = listing["quantized"].as_array().unwrap();
    assert!(quantized.iter().any(|tensor| tensor["axis"].is_u64() && tensor["constant"] == true), "{listing}");
    assert!(quantized.iter().any(|tensor| tensor["scales"] == 1 && tensor["constant"] == false), "{listing}");
    let shown = place.succeed(&["graph", "show", "out.onnx", "--list-nodes"]).stdout;
    for word in ["ONNX graph of ", "operator", "quantized", "int8", "QuantizeLinear", "float["] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    let listing = json::check(&place, "graph", &["graph", "show", "back.onnx"]);
    assert!(listing["node_list"].is_null() && listing["quantized"].as_array().unwrap().is_empty());
}

/// `logits = relu(x) sum(mask)`, with the names that the examples of the help use.
fn write_example(path: &Path) {
    let value = |name: &str, dims: Vec<Dim>| ValueType::new(DataType::FLOAT, dims).to_proto(name).unwrap();
    let named = |name: &str| Dim::Symbol(name.to_owned());
    let picture = || vec![named("batch"), Dim::Known(3), Dim::Unknown, Dim::Unknown];
    let mut sum = node("ReduceSum", "sum", &["mask"], &["s"]);
    set_attribute(&mut sum, "keepdims", 0i64);
    let logits = ValueInfoProto { name: Some("logits".to_owned()), ..value("logits", picture()) };
    let graph = GraphProto {
        name: Some("example".to_owned()),
        node: vec![node("Relu", "r", &["x"], &["h"]), sum, node("Mul", "m", &["h", "s"], &["logits"])],
        input: vec![value("x", picture()), value("mask", vec![named("length")])],
        output: vec![logits],
        ..GraphProto::default()
    };
    let set = |domain: &str, version| OperatorSetIdProto {
        domain: Some(domain.to_owned()),
        version: Some(version),
        ..OperatorSetIdProto::default()
    };
    let model = ModelProto {
        ir_version: Some(8),
        opset_import: vec![set("", 13), set("ai.onnx.contrib", 1)],
        graph: MessageField::some(graph),
        ..ModelProto::default()
    };
    write(model, path, ExternalData::Auto).unwrap();
}

/// A convolution with an int32 bias between Q/DQ pairs of a type.
fn write_quantized(path: &Path, element: DataType) {
    let of = |op: &str, name: &str, inputs: &[&str], output: &str| node(op, name, inputs, &[output]);
    let float = |name: &str| tensor(name, DataType::FLOAT, &[], 0.5f32.to_le_bytes().to_vec());
    let bytes = if element == DataType::UINT16 { 2 } else { 1 };
    let value = |name: &str| ValueType::new(DataType::FLOAT, [1; 4].map(Dim::Known).to_vec()).to_proto(name).unwrap();
    let graph = GraphProto {
        name: Some("quantized".to_owned()),
        node: vec![
            of("QuantizeLinear", "q", &["x", "s", "z"], "c"),
            of("DequantizeLinear", "d", &["c", "s", "z"], "f"),
            of("DequantizeLinear", "wd", &["w", "s"], "wf"),
            of("DequantizeLinear", "bd", &["b", "bs"], "bf"),
            of("Conv", "conv", &["f", "wf", "bf"], "h"),
            of("QuantizeLinear", "p", &["h", "s", "z"], "e"),
            of("DequantizeLinear", "l", &["e", "s", "z"], "y"),
        ],
        initializer: vec![
            float("s"),
            tensor("bs", DataType::FLOAT, &[], 0.25f32.to_le_bytes().to_vec()),
            tensor("z", element, &[], vec![0u8; bytes]),
            tensor("w", DataType::INT8, &[1, 1, 1, 1], vec![3u8]),
            tensor("b", DataType::INT32, &[1], 7i32.to_le_bytes().to_vec()),
        ],
        input: vec![value("x")],
        output: vec![value("y")],
        ..GraphProto::default()
    };
    let set = OperatorSetIdProto { domain: Some(String::new()), version: Some(21), ..OperatorSetIdProto::default() };
    let model = ModelProto {
        ir_version: Some(10),
        opset_import: vec![set],
        graph: MessageField::some(graph),
        ..ModelProto::default()
    };
    write(model, path, ExternalData::Auto).unwrap();
}

#[test]
fn examples_of_the_help_work() {
    let place = Place::empty();
    write_example(&place.path("model.onnx"));
    for (name, element) in [
        ("model.int8.onnx", DataType::INT8),
        ("model.s8s8.onnx", DataType::INT8),
        ("model.u16s8.onnx", DataType::UINT16),
    ] {
        write_quantized(&place.path(name), element);
    }
    let help = place.succeed(&["graph", "--help"]).stdout;
    let tools = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let tools: Vec<&str> =
        tools.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect();
    assert_eq!(tools.len(), 13, "{tools:?}");
    let of_tools = tools.iter().map(|tool| place.succeed(&["graph", tool, "--help"]).stdout);
    let texts: Vec<String> = std::iter::once(help.clone()).chain(of_tools).collect();
    let lines: Vec<&str> =
        texts.iter().flat_map(|text| text.lines()).filter_map(|line| line.strip_prefix("  kvant ")).collect();
    assert!(lines.len() > 15, "{lines:?}");
    for line in lines {
        let words: Vec<&str> = line.split(" | ").next().unwrap().split(' ').collect();
        let replaced = if words[1] == "show" { &[][..] } else { &["--overwrite"] };
        place.succeed(&[&words[..], replaced].concat());
    }
    assert_eq!(opset(&read(&place.path("newer.onnx")).unwrap(), ""), Some(17));
}

#[test]
fn json_of_graph_tools_matches_its_schema() {
    let place = Place::empty();
    write_example(&place.path("model.onnx"));
    let run = |args: &[&str], change: &str, count: i64| {
        let line = [&["graph"], args, &["-o", "out.onnx", "--overwrite"]].concat();
        let object = json::check(&place, "graph", &line);
        assert_eq!(object["tool"], args[0]);
        assert_eq!(object["changes"][change], count, "{object}");
    };
    run(&["convert-opset", "model.onnx", "--opset", "17"], "opset_before", 13);
    run(&["extract", "model.onnx", "--inputs", "h,mask", "--outputs", "logits"], "inputs", 2);
    run(&["fix-shapes", "model.onnx", "--input-shape", "x=2,3,8,8"], "batch", 2);
    run(&["rename-domain", "model.onnx", "--domain", "ai.onnx.contrib=com.example"], "nodes", 0);
    run(&["clip-infinities", "model.onnx"], "values", 0);
    run(&["to-float16", "model.onnx"], "nodes", 2);
    run(&["dequantize", "model.onnx"], "constants", 0);
    json::check(&place, "graph", &["graph", "simplify", "model.onnx", "-o", "out.onnx", "--overwrite"]);
    json::check(&place, "graph", &["graph", "show", "model.onnx", "--list-nodes"]);
    let refused = ["graph", "extract", "model.onnx", "--inputs", "h", "--outputs", "logits", "-o", "other.onnx"];
    let error = json::check(&place, "error", &refused);
    assert!(error.to_string().contains("`mask`"), "{error}");
    let run = place.run(&refused);
    assert!(run.stderr.contains("--inputs"), "{run:?}");
}
