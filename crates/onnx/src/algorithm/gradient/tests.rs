//! The gradients of every operator against differences, and their outputs against those of an engine.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use kvant_container::onnx::{DataType, ModelProto, NodeProto, TensorProto, tensor};

use super::*;
use crate::fake_quantization::open;
use crate::graph::{node, set_attribute};
use crate::runtime::{RuntimeChoice, RuntimeOptions};
use crate::test_models::{floats, integers, model};

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 131) % 1009) as f32 / 504.5 - 1.0).collect()
}

fn runtime() -> RuntimeOptions {
    RuntimeOptions { choice: RuntimeChoice::Rten, threads: Some(1), ..RuntimeOptions::default() }
}

/// `x [1, 3, 6, 6]` through a convolution of 4 channels, then through some nodes that begin with `a` and end with `y`.
fn of_convolution(nodes: Vec<NodeProto>, constants: Vec<TensorProto>) -> ModelProto {
    let mut convolution = node("Conv", "conv", &["x", "w"], &["a"]);
    set_attribute(&mut convolution, "pads", &[1, 1, 1, 1][..]);
    let weight = floats("w", &[4, 3, 3, 3], &numbers(108, 1));
    let nodes = std::iter::once(convolution).chain(nodes).collect();
    model(20, nodes, constants.into_iter().chain([weight]).collect(), &["x"], &["y"])
}

/// `x [1, 5, 6]` through a product of 6 features, then through some nodes that begin with `a` and end with `y`.
fn of_product(nodes: Vec<NodeProto>, constants: Vec<TensorProto>) -> ModelProto {
    let nodes = std::iter::once(node("MatMul", "product", &["x", "w"], &["a"])).chain(nodes).collect();
    let weight = floats("w", &[6, 6], &numbers(36, 1));
    model(20, nodes, constants.into_iter().chain([weight]).collect(), &["x"], &["y"])
}

/// Compares the outputs of a program with those of the engine, and its gradient of `w` with differences.
fn check(case: &str, made: &ModelProto, shape: &[usize]) {
    let graph = &made.graph;
    let x = Array::of(shape.to_vec(), numbers(shape.iter().product(), 2)).unwrap();
    let weight = graph.initializer.iter().find(|tensor| tensor.name() == "w").unwrap();
    let layer = TrainedLayer { weight: "w".to_owned(), shape: kvant_container::onnx::shape(weight).unwrap() };
    let engine = Engine { options: runtime(), opsets: made.opset_import.clone() };
    let outputs = ["y".to_owned()];
    let reader = graph.node.iter().find(|node| node.input.get(1).is_some_and(|name| name == "w")).unwrap();
    let product = LayerProduct::of(reader, &layer.shape).unwrap();
    let program = Program::new(graph, 0..graph.node.len(), &outputs, &[layer], &engine)
        .unwrap_or_else(|problem| panic!("{case}: {problem:?}"));

    let mut recorded: Vec<String> = program.reads().into_iter().filter(|name| name != "x").collect();
    recorded.push("y".to_owned());
    let mut session = open(made, &recorded, &runtime()).unwrap();
    let mut seen = HashMap::new();
    let mut show = |name: &str, array: &Array<'_>| {
        seen.insert(name.to_owned(), Arc::new(array.clone().into_owned()));
        ControlFlow::Continue(())
    };
    session.run(&[("x", x.view())], &recorded, &mut show).unwrap();
    let wanted = seen["y"].clone();
    seen.insert("x".to_owned(), Arc::new(x));
    let sample: Recorded = seen;

    let mut weights = vec![product.rows(constant(weight).unwrap().f32s().unwrap())];
    let slopes = numbers(wanted.len(), 3);
    let loss = |weights: &[Tensor]| -> f64 {
        let tape = program.forward(weights, &sample).unwrap();
        tape.output(0).values.iter().zip(&slopes).map(|(y, slope)| f64::from(*y) * f64::from(*slope)).sum()
    };
    let tape = program.forward(&weights, &sample).unwrap();
    assert_eq!(tape.output(0).shape, wanted.shape(), "{case}");
    for (made, wanted) in tape.output(0).values.iter().zip(wanted.f32s().unwrap()) {
        assert!((made - wanted).abs() < 1e-3 * wanted.abs().max(1.0), "{case}: {made} {wanted}");
    }
    let gradient = tape.backward(vec![slopes.clone()]).unwrap().remove(0);
    drop(tape);
    for at in (0..gradient.len()).step_by(gradient.len() / 12 + 1) {
        let (value, step) = (weights[0].values[at], 2e-3);
        let mut at_value = |value: f32| {
            weights[0].values[at] = value;
            loss(&weights)
        };
        let difference = (at_value(value + step) - at_value(value - step)) / f64::from((value + step) - (value - step));
        at_value(value);
        let found = f64::from(gradient[at]);
        assert!((found - difference).abs() < 2e-2 * difference.abs().max(1.0), "{case} {at}: {found} {difference}");
    }
}

#[test]
fn gradients_of_functions_match_differences_and_values_match_the_engine() {
    for name in
        ["Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Gelu", "Elu", "Softplus", "Erf", "Exp", "Neg", "Reciprocal"]
    {
        // Away from kinks and poles.
        let shift = if name == "Reciprocal" { 9.0 } else { 0.1 };
        let nodes = vec![node("Add", "shift", &["a", "s"], &["b"]), node(name, "f", &["b"], &["y"])];
        check(name, &of_product(nodes, vec![floats("s", &[6], &[shift; 6])]), &[1, 5, 6]);
    }
    for name in ["Sqrt", "Log"] {
        let nodes = vec![node("Exp", "e", &["a"], &["b"]), node(name, "f", &["b"], &["y"])];
        check(name, &of_product(nodes, Vec::new()), &[1, 5, 6]);
    }
}

#[test]
fn gradients_of_broadcast_operators_reach_both_sides() {
    for name in ["Add", "Sub", "Mul"] {
        let nodes = vec![
            node("ReduceMean", "mean", &["a", "axes"], &["m"]),
            node(name, "both", &["a", "m"], &["b"]),
            node("Mul", "scaled", &["b", "s"], &["y"]),
        ];
        let constants = vec![integers("axes", &[2]), floats("s", &[5, 1], &numbers(5, 4))];
        check(name, &of_product(nodes, constants), &[1, 5, 6]);
    }
    let nodes = vec![
        node("Pow", "square", &["a", "two"], &["b"]),
        node("ReduceSum", "sum", &["b", "axes"], &["s"]),
        node("Add", "shift", &["s", "one"], &["t"]),
        node("Sqrt", "root", &["t"], &["r"]),
        node("Div", "divided", &["a", "r"], &["y"]),
    ];
    let constants = vec![floats("two", &[], &[2.0]), floats("one", &[1], &[1.0]), integers("axes", &[-1])];
    check("norm", &of_product(nodes, constants), &[1, 5, 6]);
}

#[test]
fn gradients_pass_attention_and_normalizations() {
    let mut transposed = node("Transpose", "t", &["k"], &["kt"]);
    set_attribute(&mut transposed, "perm", &[0, 2, 1][..]);
    let nodes = vec![
        node("MatMul", "keys", &["x", "u"], &["k"]),
        transposed,
        node("MatMul", "scores", &["a", "kt"], &["s"]),
        node("Where", "masked", &["mask", "s", "low"], &["m"]),
        node("Softmax", "softmax", &["m"], &["p"]),
        node("MatMul", "mixed", &["p", "a"], &["o"]),
        node("Add", "sum", &["o", "x"], &["r"]),
        node("LayerNormalization", "norm", &["r", "gain", "bias"], &["y"]),
    ];
    let mask = tensor("mask", DataType::BOOL, &[1, 1, 5], vec![1u8, 1, 0, 1, 1]);
    let constants = vec![
        floats("u", &[6, 6], &numbers(36, 5)),
        floats("gain", &[6], &numbers(6, 6)),
        floats("bias", &[6], &numbers(6, 7)),
        floats("low", &[], &[-1e4]),
        mask,
    ];
    check("attention", &of_product(nodes, constants), &[1, 5, 6]);
    let constants = || [floats("g", &[4], &numbers(4, 6)), floats("b", &[4], &numbers(4, 7))];
    let nodes = vec![node("InstanceNormalization", "norm", &["a", "g", "b"], &["y"])];
    check("instance", &of_convolution(nodes, constants().to_vec()), &[2, 3, 6, 6]);
    let nodes = vec![node("BatchNormalization", "norm", &["a", "g", "b", "b", "v"], &["y"])];
    let variance = floats("v", &[4], &[0.5, 1.0, 2.0, 3.0]);
    check("batch", &of_convolution(nodes, constants().into_iter().chain([variance]).collect()), &[2, 3, 6, 6]);
}

#[test]
fn gradients_pass_convolutions_pools_and_moved_elements() {
    let weight = |shape: &[usize]| floats("v", shape, &numbers(shape.iter().product(), 8));
    for (name, strides, dilations, group, shape) in [
        ("Conv", 2, 1, 1, [5, 4, 3, 3]),
        ("Conv", 1, 2, 2, [6, 2, 3, 3]),
        ("Conv", 1, 1, 4, [4, 1, 3, 3]),
        ("ConvTranspose", 2, 1, 2, [4, 3, 3, 3]),
        ("ConvTranspose", 3, 1, 1, [4, 2, 2, 2]),
    ] {
        let mut next = node(name, "next", &["a", "v", "c"], &["y"]);
        let pad = i64::from(shape[2] == 3);
        set_attribute(&mut next, "strides", &[strides; 2][..]);
        set_attribute(&mut next, "dilations", &[dilations; 2][..]);
        set_attribute(&mut next, "group", group);
        set_attribute(&mut next, "pads", &[pad, 0, pad, 1][..]);
        let outputs = if name == "Conv" { shape[0] } else { shape[1] * group as usize };
        let bias = floats("c", &[outputs], &numbers(outputs, 9));
        check(name, &of_convolution(vec![next], vec![weight(&shape), bias]), &[2, 3, 6, 6]);
    }
    for name in ["MaxPool", "AveragePool"] {
        let mut pool = node(name, "pool", &["a"], &["y"]);
        set_attribute(&mut pool, "kernel_shape", &[3, 2][..]);
        set_attribute(&mut pool, "strides", &[2, 2][..]);
        set_attribute(&mut pool, "pads", &[1, 0, 1, 1][..]);
        check(name, &of_convolution(vec![pool], Vec::new()), &[2, 3, 6, 6]);
    }
    check(
        "GlobalAveragePool",
        &of_convolution(vec![node("GlobalAveragePool", "p", &["a"], &["y"])], Vec::new()),
        &[1, 3, 6, 6],
    );
    let mut split = node("Split", "split", &["a"], &["b", "c"]);
    set_attribute(&mut split, "axis", 1i64);
    set_attribute(&mut split, "num_outputs", 2i64);
    let mut concat = node("Concat", "concat", &["c", "x", "b"], &["d"]);
    set_attribute(&mut concat, "axis", 1i64);
    let mut resize = node("Resize", "resize", &["d", "", "scales"], &["e"]);
    set_attribute(&mut resize, "mode", "nearest");
    let nodes = vec![
        split,
        concat,
        resize,
        node("Shape", "shape", &["x"], &["sizes"]),
        node("Gather", "batch", &["sizes", "zero"], &["n"]),
        node("Concat", "target", &["n", "minus"], &["to"]),
        node("Reshape", "flat", &["e", "to"], &["y"]),
    ];
    let mut nodes = nodes;
    set_attribute(&mut nodes[5], "axis", 0i64);
    let constants =
        vec![floats("scales", &[4], &[1.0, 1.0, 2.0, 2.0]), integers("zero", &[0]), integers("minus", &[-1])];
    check("moves", &of_convolution(nodes, constants), &[2, 3, 6, 6]);
}

#[test]
fn gradients_pass_rounding_and_stop_where_codes_are_cut() {
    let zero = tensor("z", DataType::INT8, &[], vec![0u8]);
    let nodes = vec![
        node("QuantizeLinear", "q", &["a", "s", "z"], &["codes"]),
        node("DequantizeLinear", "d", &["codes", "s", "z"], &["y"]),
    ];
    let made = of_product(nodes, vec![floats("s", &[], &[0.01]), zero]);
    let engine = Engine { options: runtime(), opsets: made.opset_import.clone() };
    let layer = TrainedLayer { weight: "w".to_owned(), shape: vec![6, 6] };
    let count = made.graph.node.len();
    let program = Program::new(&made.graph, 0..count, &["y".to_owned()], &[layer], &engine).unwrap();
    let x = Array::of(vec![1, 1, 6], vec![1.0f32, 0.0, 0.0, 0.0, 0.0, 0.0]).unwrap();
    let sample: Recorded = [("x".to_owned(), Arc::new(x))].into();
    // Outputs are the first weight of each row: within the codes, and beyond them.
    let mut weights = vec![Tensor { shape: vec![6, 6], values: vec![0.0; 36] }];
    weights[0].values[..7].copy_from_slice(&[0.123, 0.0, 0.0, 0.0, 0.0, 0.0, 5.0]);
    let tape = program.forward(&weights, &sample).unwrap();
    assert!((tape.output(0).values[0] - 0.12).abs() < 1e-6 && (tape.output(0).values[1] - 1.27).abs() < 1e-6);
    let gradient = tape.backward(vec![vec![1.0; 6]]).unwrap().remove(0);
    assert!((gradient[0] - 1.0).abs() < 1e-5 && gradient[6] == 0.0, "{gradient:?}");
}

#[test]
fn operators_without_gradients_are_named() {
    let made = of_product(vec![node("CumSum", "sums", &["a", "axis"], &["y"])], vec![integers("axis", &[1])]);
    let engine = Engine { options: runtime(), opsets: made.opset_import.clone() };
    let layer = TrainedLayer { weight: "w".to_owned(), shape: vec![6, 6] };
    let problem = Program::new(&made.graph, 0..2, &["y".to_owned()], &[layer], &engine).err().unwrap();
    assert_eq!((problem.node.as_str(), problem.operator.as_str()), ("sums", "CumSum"));
}
