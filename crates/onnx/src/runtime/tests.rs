//! Small graphs on both engines, and what is refused before either sees it.

use kvant_container::Diagnostic;
use std::ops::ControlFlow;

use kvant_container::onnx::{
    AttributeProto, DataType, DimensionValue, GraphProto, ModelProto, NodeProto, TensorProto, TensorShapeProto,
    TypeProto, TypeValue, ValueInfoProto, tensor,
};

use super::*;
use crate::graph::{add_opset, node, set_attribute};

fn value(name: &str, data_type: DataType, shape: &[i64]) -> ValueInfoProto {
    let mut axes = TensorShapeProto::default();
    for &size in shape {
        let dim = match size {
            -1 => DimensionValue::DimParam("batch".to_owned()),
            size => DimensionValue::DimValue(size),
        };
        axes.dim.push(kvant_container::onnx::Dimension { value: Some(dim), ..Default::default() });
    }
    let tensor_type = kvant_container::onnx::TensorTypeProto {
        elem_type: Some(data_type as i32),
        shape: Some(axes).into(),
        ..Default::default()
    };
    let type_ = TypeProto { value: Some(TypeValue::TensorType(tensor_type)), ..TypeProto::default() };
    ValueInfoProto { name: Some(name.to_owned()), type_: Some(type_).into(), ..ValueInfoProto::default() }
}

fn floats(name: &str, shape: &[usize], values: &[f32]) -> TensorProto {
    tensor(name, DataType::FLOAT, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
}

fn model(graph: GraphProto) -> ModelProto {
    let mut model = ModelProto { ir_version: Some(8), graph: Some(graph).into(), ..ModelProto::default() };
    add_opset(&mut model, "", 17);
    model
}

/// conv (2 channels of 3x3, no attributes) -> relu -> global pool; an embedding picked by int64 ids beside it.
fn small() -> ModelProto {
    let kernel: Vec<f32> = (0..18).map(|v| v as f32 / 9.0 - 1.0).collect();
    let nodes = vec![
        node("Conv", "conv", &["x", "w"], &["c"]),
        node("Relu", "relu", &["c"], &["r"]),
        node("GlobalAveragePool", "pool", &["r"], &["p"]),
        node("Gather", "gather", &["table", "ids"], &["e"]),
    ];
    model(GraphProto {
        name: Some("small".to_owned()),
        node: nodes,
        initializer: vec![
            floats("w", &[2, 1, 3, 3], &kernel),
            floats("table", &[4, 2], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
        ],
        input: vec![value("x", DataType::FLOAT, &[-1, 1, 4, 4]), value("ids", DataType::INT64, &[1, 3])],
        output: vec![value("p", DataType::FLOAT, &[-1, 2, 1, 1]), value("e", DataType::FLOAT, &[1, 3, 2])],
        ..GraphProto::default()
    })
}

fn options(choice: RuntimeChoice) -> RuntimeOptions {
    RuntimeOptions { choice, threads: Some(1), ..RuntimeOptions::default() }
}

/// The choices that can be tested here; tells where one is left out.
fn choices() -> Vec<RuntimeChoice> {
    match found(&options(RuntimeChoice::Ort)) {
        Ok(_) => vec![RuntimeChoice::Rten, RuntimeChoice::Ort],
        Err(error) => {
            eprintln!("not tested with ONNX Runtime: {error}");
            vec![RuntimeChoice::Rten]
        }
    }
}

#[test]
fn bfloat16_inputs_are_widened_for_the_run() {
    let mut cast = node("Cast", "wide", &["x"], &["f"]);
    set_attribute(&mut cast, "to", DataType::FLOAT as i64);
    let brain = |name: &str| value(name, DataType::BFLOAT16, &[2]);
    let graph = GraphProto {
        name: Some("brain".to_owned()),
        node: vec![cast, node("Relu", "r", &["f"], &["y"])],
        input: vec![brain("x")],
        output: vec![value("y", DataType::FLOAT, &[2])],
        ..GraphProto::default()
    };
    let x = Array::of(vec![2], vec![half::bf16::from_f32(-1.5), half::bf16::from_f32(2.5)]).unwrap();
    for choice in choices() {
        let seen = run(&model(graph.clone()), &["y", "f"], &[("x", x.view())], &options(choice));
        let values: Vec<&[f32]> = seen.iter().map(|(.., values)| &values[..]).collect();
        assert_eq!(values, [[0.0, 2.5], [-1.5, 2.5]], "{choice}");
    }
}

type Seen = Vec<(String, Vec<usize>, Vec<f32>)>;

fn run(model: &ModelProto, wanted: &[&str], inputs: &[(&str, Array<'_>)], options: &RuntimeOptions) -> Seen {
    let wanted: Vec<String> = wanted.iter().map(|s| s.to_string()).collect();
    let mut session = open(model, &wanted, options).unwrap();
    let mut seen = Vec::new();
    let mut visit = |name: &str, array: &Array<'_>| {
        seen.push((name.to_owned(), array.shape().to_vec(), array.to_f32s().into_owned()));
        ControlFlow::Continue(())
    };
    session.run(inputs, &wanted, &mut visit).unwrap();
    seen
}

fn inputs() -> [(&'static str, Array<'static>); 2] {
    let image: Vec<f32> = (0..16).map(|v| (v * 7 % 16) as f32 / 4.0 - 1.0).collect();
    let ids = Array::of(vec![1, 3], vec![3i64, 0, 1]).unwrap();
    [("x", Array::of(vec![1, 1, 4, 4], image).unwrap()), ("ids", ids)]
}

#[test]
fn every_tensor_is_observable_on_every_engine() {
    let wanted = ["x", "c", "r", "p", "e", "w", "ids"];
    let mut all = Vec::new();
    for choice in choices() {
        for optimize in [false, true] {
            let options = RuntimeOptions { optimize, ..options(choice) };
            let mut seen = run(&small(), &wanted, &inputs(), &options);
            seen.sort_by_key(|(name, ..)| wanted.iter().position(|w| w == name));
            assert_eq!(seen.iter().map(|(name, ..)| name.as_str()).collect::<Vec<_>>(), wanted);
            all.push(seen);
        }
    }
    let first = &all[0];
    assert_eq!((&first[1].1[..], &first[4].1[..]), (&[1, 2, 2, 2][..], &[1, 3, 2][..]));
    assert_eq!(first[4].2, [6.0, 7.0, 0.0, 1.0, 2.0, 3.0]);
    // By hand: the first window of the image and the first kernel.
    let (image, kernel) = (&first[0].2, &first[5].2);
    let window: f32 = (0..9).map(|i| image[i / 3 * 4 + i % 3] * kernel[i]).sum();
    assert!((first[1].2[0] - window).abs() < 1e-5);
    let relu: Vec<f32> = first[1].2.iter().map(|v| v.max(0.0)).collect();
    assert_eq!(first[2].2, relu);
    for other in &all[1..] {
        for (a, b) in first.iter().zip(other) {
            assert_eq!(a.1, b.1, "{}", a.0);
            assert!(a.2.iter().zip(&b.2).all(|(a, b)| (a - b).abs() < 1e-5), "{a:?} {b:?}");
        }
    }
}

#[test]
fn open_batch_dimension_accepts_any_size() {
    for choice in choices() {
        let mut inputs = inputs();
        inputs[0].1 = Array::of(vec![2, 1, 4, 4], vec![0.5f32; 32]).unwrap();
        let seen = run(&small(), &["p"], &inputs, &options(choice));
        assert_eq!(seen[0].1, [2, 2, 1, 1]);
    }
}

#[test]
fn large_models_are_mapped_with_the_same_results() {
    // 36 MB of weights, so that they go through a file.
    let side = 3000;
    let weight: Vec<f32> = (0..side * side).map(|i| ((i % 17) as f32 - 8.0) / 64.0).collect();
    let graph = GraphProto {
        name: Some("large".to_owned()),
        node: vec![node("MatMul", "m", &["x", "w"], &["y"])],
        initializer: vec![floats("w", &[side, side], &weight)],
        input: vec![value("x", DataType::FLOAT, &[1, side as i64])],
        output: vec![value("y", DataType::FLOAT, &[1, side as i64])],
        ..GraphProto::default()
    };
    let scratch = tempfile::tempdir().unwrap();
    let row = Array::of(vec![1, side], vec![1.0f32; side]).unwrap();
    for choice in choices() {
        let options = RuntimeOptions { scratch: Some(scratch.path().to_path_buf()), ..options(choice) };
        let seen = run(&model(graph.clone()), &["y"], &[("x", row.view())], &options);
        let column: f32 = (0..side).map(|r| weight[r * side]).sum();
        assert!((seen[0].2[0] - column).abs() < 1e-3, "{} {column}", seen[0].2[0]);
    }
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "nothing stays behind");
}

#[test]
fn unknown_tensors_and_custom_operators_are_refused() {
    let unknown = open(&small(), &["nothing".to_owned()], &options(RuntimeChoice::Rten)).err().unwrap();
    assert!(matches!(unknown, RuntimeError::UnknownTensor(name) if name == "nothing"));
    let mut foreign = small();
    foreign.graph.as_mut().unwrap().node[1].domain = Some("com.amd.quark".to_owned());
    let error = open(&foreign, &["p".to_owned()], &RuntimeOptions::default()).err().unwrap();
    assert_eq!(error.to_string(), "no engine runs operators of the domain com.amd.quark: Relu `relu`");
    let mut inside = small();
    let branch = foreign.graph.clone();
    let node = &mut inside.graph.as_mut().unwrap().node[1];
    node.attribute.push(AttributeProto {
        name: Some("then_branch".to_owned()),
        g: branch,
        ..AttributeProto::default()
    });
    assert_eq!(refuse_foreign_operators(&inside).unwrap_err().to_string(), error.to_string());
}

/// A model of one node that reads `x`.
fn one(op: &str, shape: &[i64], change: impl Fn(&mut NodeProto)) -> ModelProto {
    let mut node = node(op, "n", &["x"], &["y"]);
    change(&mut node);
    model(GraphProto {
        name: Some("one".to_owned()),
        node: vec![node],
        input: vec![value("x", DataType::FLOAT, shape)],
        output: vec![value("y", DataType::FLOAT, shape)],
        ..GraphProto::default()
    })
}

#[test]
fn operators_rten_computes_wrong_are_refused_naming_ort() {
    let refused = |model: ModelProto| match open(&model, &["y".to_owned()], &options(RuntimeChoice::Rten)) {
        Err(RuntimeError::NotEmbedded { reasons, .. }) => reasons.join("; "),
        other => panic!("{:?}", other.err()),
    };
    assert!(refused(one("Resize", &[1, 1, 4, 4], |n| set_attribute(n, "mode", "cubic"))).contains("cubic"));
    assert!(refused(one("ArgMax", &[1, 4], |_| ())).contains("ArgMax `n`"));
    assert!(refused(one("Sign", &[1, 4], |_| ())).contains("Sign"));
    assert!(refused(one("Cast", &[1, 4], |n| set_attribute(n, "to", DataType::FLOAT16 as i64))).contains("16 bits"));
    assert!(
        refused(one("MaxPool", &[1, 1, 4, 4], |n| set_attribute(n, "auto_pad", "SAME_LOWER"))).contains("SAME_LOWER")
    );
    let mut old = one("Softmax", &[1, 2, 3], |n| set_attribute(n, "axis", 1));
    old.opset_import[0].version = Some(11);
    assert!(refused(old).contains("opset 13"));
    let mut wide = one("Add", &[1], |n| n.input.push("c".to_owned()));
    wide.graph.as_mut().unwrap().initializer.push(tensor(
        "c",
        DataType::INT64,
        &[1],
        (1i64 << 40).to_le_bytes().to_vec(),
    ));
    assert!(refused(wide).contains("32 bits"));
    let mut short = one("Add", &[1], |n| n.input.push("c".to_owned()));
    short.graph.as_mut().unwrap().initializer.push(tensor("c", DataType::INT4, &[1], vec![1]));
    let error = open(&short, &["y".to_owned()], &options(RuntimeChoice::Rten)).err().unwrap();
    assert!(error.to_string().contains("INT4") && error.hint().unwrap().contains("‹runtime› ort"), "{error}");
}

#[test]
fn rten_refuses_integer_inputs_beyond_32_bits() {
    let mut inputs = inputs();
    inputs[1].1 = Array::of(vec![1, 3], vec![1i64 << 40, 0, 0]).unwrap();
    let mut session = open(&small(), &["p".to_owned()], &options(RuntimeChoice::Rten)).unwrap();
    let error = session.run(&inputs, &["p".to_owned()], &mut |_, _| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, RuntimeError::Input { input, .. } if input == "ids"));
}

#[test]
fn embedded_engine_knows_inferred_ranks() {
    let mut softmax = node("Softmax", "s", &["h"], &["y"]);
    set_attribute(&mut softmax, "axis", 2i64);
    let graph = GraphProto {
        name: Some("old".to_owned()),
        node: vec![node("Add", "a", &["x", "x"], &["h"]), softmax],
        input: vec![value("x", DataType::FLOAT, &[1, 2, 2])],
        output: vec![ValueInfoProto { name: Some("y".to_owned()), ..ValueInfoProto::default() }],
        ..GraphProto::default()
    };
    let mut old = model(graph);
    old.opset_import[0].version = Some(11);
    let x = Array::of(vec![1, 2, 2], vec![0.5f32; 4]).unwrap();
    let seen = run(&old, &["y"], &[("x", x.view())], &options(RuntimeChoice::Rten));
    assert_eq!(seen[0].2, [0.5; 4]);
}

/// As exporters before opset 17 write them: no types of what lies between, and all of it in one float type.
#[test]
fn recurrent_layers_run_embedded_in_both_float_types() {
    let mut lstm = node("LSTM", "lstm", &["h", "weights", "recurrent"], &["all"]);
    set_attribute(&mut lstm, "hidden_size", 2i64);
    let nodes = vec![
        node("MatMul", "first", &["x", "w"], &["h"]),
        lstm,
        node("Squeeze", "flat", &["all", "axes"], &["s"]),
        node("MatMul", "last", &["s", "w"], &["y"]),
    ];
    for data_type in [DataType::FLOAT, DataType::FLOAT16] {
        let is_half = data_type == DataType::FLOAT16;
        let constant = |name: &str, shape: &[usize]| {
            let values = (0..shape.iter().product::<usize>()).map(|at| (at % 5) as f32 / 4.0 - 0.5);
            let bytes: Vec<u8> = match is_half {
                true => values.flat_map(|value| half::f16::from_f32(value).to_le_bytes()).collect(),
                false => values.flat_map(f32::to_le_bytes).collect(),
            };
            tensor(name, data_type, shape, bytes)
        };
        let axes = tensor("axes", DataType::INT64, &[1], 1i64.to_le_bytes().to_vec());
        let graph = GraphProto {
            name: Some("recurrent".to_owned()),
            node: nodes.clone(),
            initializer: vec![
                constant("w", &[2, 2]),
                constant("weights", &[1, 8, 2]),
                constant("recurrent", &[1, 8, 2]),
                axes,
            ],
            input: vec![value("x", data_type, &[3, 1, 2])],
            output: vec![value("y", data_type, &[3, 1, 2])],
            ..GraphProto::default()
        };
        let mut old = model(graph);
        old.opset_import[0].version = Some(15);
        let x = [0.5, -1.0, 0.25, 2.0, -0.5, 1.0];
        let x = match is_half {
            true => Array::of(vec![3, 1, 2], x.map(half::f16::from_f32).to_vec()),
            false => Array::of(vec![3, 1, 2], x.to_vec()),
        };
        let seen = run(&old, &["y"], &[("x", x.unwrap().view())], &options(RuntimeChoice::Rten));
        let (_, shape, values) = &seen[0];
        assert_eq!(shape, &[3, 1, 2], "{data_type:?}");
        assert!(values.iter().all(|value| value.is_finite()) && values.iter().any(|value| *value != 0.0), "{values:?}");
    }
}
