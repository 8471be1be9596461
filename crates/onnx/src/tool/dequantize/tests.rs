use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto, TensorProto, data_type, tensor};

use super::*;
use crate::constant::Value;
use crate::graph::{add_opset, bodies, check, node, set_attribute};
use crate::test_models::{branches, floats, model, value};

fn codes(name: &str, shape: &[usize], values: &[i8]) -> TensorProto {
    tensor(name, DataType::INT8, shape, values.iter().map(|&v| v as u8).collect::<Vec<_>>())
}

fn pair(tensor: &str, scale: &str) -> [NodeProto; 2] {
    let (codes, output) = (format!("{tensor}_codes"), format!("{tensor}_dq"));
    [
        node("QuantizeLinear", &format!("{tensor}_q"), &[tensor, scale, "zero"], &[&codes]),
        node("DequantizeLinear", &format!("{tensor}_d"), &[&codes, scale, "zero"], &[&output]),
    ]
}

/// The scale and the zero point of pairs.
fn parameters() -> Vec<TensorProto> {
    vec![floats("s", &[], &[0.5]), codes("zero", &[], &[0])]
}

fn dequantized(model: &mut ModelProto) -> Dequantized {
    let done = dequantize(model, None).unwrap();
    assert_eq!(check(model), Ok(()));
    done
}

fn constant_of(graph: &GraphProto, name: &str) -> (DataType, Vec<f64>) {
    let found = graph.initializer.iter().find(|t| t.name() == name).unwrap();
    (data_type(found), Value::of_tensor(found).unwrap().as_floats().unwrap())
}

fn operators(graph: &GraphProto) -> Vec<&str> {
    graph.node.iter().map(|node| node.op_type()).collect()
}

#[test]
fn weights_and_biases_of_every_granularity_become_floats() {
    let with = |name: &str, inputs: &[&str], attributes: &[(&str, i64)]| {
        let mut made = node("DequantizeLinear", name, inputs, &[&format!("{name}_f")]);
        attributes.iter().for_each(|&(key, value)| set_attribute(&mut made, key, value));
        made
    };
    let half = [0.5f32, 2.0].map(|v| f16::from_f32(v).to_le_bytes()).concat();
    let nodes = vec![
        with("channels", &["w", "s2", "z2"], &[("axis", 0)]),
        with("blocks", &["w4", "sb"], &[("axis", 1), ("block_size", 2)]),
        with("bias", &["b", "s2"], &[("axis", 0)]),
        with("halves", &["w", "sh"], &[("axis", 1)]),
        node("Sum", "sum", &["x", "channels_f", "blocks_f", "bias_f"], &["y"]),
        node("Relu", "relu", &["halves_f"], &["z"]),
    ];
    let constants = vec![
        codes("w", &[2, 2], &[1, -2, 3, 4]),
        floats("s2", &[2], &[0.5, 0.25]),
        codes("z2", &[2], &[1, 0]),
        tensor("w4", DataType::INT4, &[1, 4], vec![0x21, 0x8f]),
        floats("sb", &[1, 2], &[1.0, 0.5]),
        tensor("b", DataType::INT32, &[2], [300i32, -8].map(i32::to_le_bytes).concat()),
        tensor("sh", DataType::FLOAT16, &[2], half),
    ];
    let mut made = model(21, nodes, constants, &["x"], &["y", "z"]);
    assert_eq!(dequantized(&mut made), Dequantized { constants: 4, ..Dequantized::default() });
    let graph = &made.graph;
    assert_eq!(operators(graph), ["Sum", "Relu"]);
    assert_eq!(constant_of(graph, "channels_f"), (DataType::FLOAT, vec![0.0, -1.5, 0.75, 1.0]));
    assert_eq!(constant_of(graph, "blocks_f"), (DataType::FLOAT, vec![1.0, 2.0, -0.5, -4.0]));
    assert_eq!(constant_of(graph, "bias_f"), (DataType::FLOAT, vec![150.0, -2.0]));
    assert_eq!(constant_of(graph, "halves_f"), (DataType::FLOAT16, vec![0.5, -4.0, 1.5, 8.0]));
    assert_eq!(graph.initializer.len(), 4);
}

#[test]
fn quantization_of_activations_goes_and_ends_keep_their_names() {
    let [q, d] = pair("x", "s");
    let [q2, d2] = pair("h", "s");
    let [q3, mut d3] = pair("r", "s");
    d3.output = vec!["y".to_owned()];
    let nodes = vec![q, d, node("Relu", "a", &["x_dq"], &["h"]), q2, d2, node("Abs", "b", &["h_dq"], &["r"]), q3, d3];
    let mut made = model(17, nodes, parameters(), &["x"], &["y"]);
    assert_eq!(dequantized(&mut made), Dequantized { activations: 3, ..Dequantized::default() });
    assert_eq!(made.graph.node, [node("Relu", "a", &["x"], &["h"]), node("Abs", "b", &["h"], &["y"])]);
    assert!(made.graph.initializer.is_empty());
}

#[test]
fn output_that_cannot_take_another_name_is_an_identity() {
    let [q, mut d] = pair("x", "s");
    d.output = vec!["y".to_owned()];
    let again = node("DequantizeLinear", "again", &["x_codes", "s", "zero"], &["z"]);
    let mut made = model(17, vec![q, d, again], parameters(), &["x"], &["y", "z"]);
    assert_eq!(dequantized(&mut made).activations, 2);
    assert_eq!(made.graph.node, [node("Identity", "x_d", &["x"], &["y"]), node("Identity", "again", &["x"], &["z"])]);
    // Both a tensor and what dequantizing gives of it are outputs.
    let [q, d] = pair("h", "s");
    let nodes = vec![node("Relu", "r", &["x"], &["h"]), q, d];
    let mut made = model(17, nodes, parameters(), &["x"], &["h", "h_dq"]);
    dequantized(&mut made);
    assert_eq!(operators(&made.graph), ["Relu", "Identity"]);
}

#[test]
fn pairs_in_a_row_and_constants_that_others_read_are_handled() {
    let [q, d] = pair("x", "s");
    let [q2, d2] = pair("x_dq", "s");
    let nodes = vec![q, d, q2, d2, node("Mul", "m", &["x_dq_dq", "s"], &["y"])];
    let mut made = model(17, nodes, parameters(), &["x"], &["y"]);
    assert_eq!(dequantized(&mut made).activations, 2);
    assert_eq!(made.graph.node, [node("Mul", "m", &["x", "s"], &["y"])]);
    assert_eq!(made.graph.initializer.len(), 1);
}

#[test]
fn float_constant_between_a_pair_gets_its_rounded_values() {
    let [q, d] = pair("w", "s");
    let nodes = vec![q, d, node("Add", "a", &["x", "w_dq"], &["y"])];
    let constants = [vec![floats("w", &[2], &[0.6, 0.9])], parameters()].concat();
    let mut made = model(17, nodes, constants, &["x"], &["y"]);
    assert_eq!(dequantized(&mut made).constants, 1);
    assert_eq!(constant_of(&made.graph, "w_dq").1, [0.5, 1.0]);
    assert_eq!((operators(&made.graph), made.graph.initializer.len()), (vec!["Add"], 1));
}

#[test]
fn bodies_are_dequantized_with_constants_from_around_them() {
    let [q, d] = pair("h", "s");
    let inner =
        vec![q, d, node("DequantizeLinear", "dw", &["w", "s"], &["wf"]), node("Mul", "m", &["h_dq", "wf"], &["t"])];
    let body = GraphProto { node: inner, output: vec![value("t")], ..GraphProto::default() };
    let other = GraphProto {
        node: vec![node("DequantizeLinear", "de", &["w", "s"], &["e"])],
        output: vec![value("e")],
        ..GraphProto::default()
    };
    let nodes = vec![node("Relu", "r", &["x"], &["h"]), branches("c", "y", body, other)];
    let constants = [vec![codes("w", &[2], &[2, -4])], parameters()].concat();
    let mut made = model(17, nodes, constants, &["x", "c"], &["y"]);
    assert_eq!(dequantized(&mut made), Dequantized { constants: 2, activations: 1, left: vec![] });
    assert!(made.graph.initializer.is_empty());
    let inside: Vec<&GraphProto> = bodies(&made.graph.node[1]).collect();
    assert_eq!(inside[0].node, [node("Mul", "m", &["h", "wf"], &["t"])]);
    assert_eq!((constant_of(inside[0], "wf").1, constant_of(inside[1], "e").1), (vec![1.0, -2.0], vec![1.0, -2.0]));
}

#[test]
fn codes_at_the_ends_and_other_scales_stay_and_are_named() {
    let nodes = vec![
        node("DequantizeLinear", "first", &["given", "s"], &["f"]),
        node("QuantizeLinear", "x_q", &["f", "s"], &["x_codes"]),
        node("DequantizeLinear", "other", &["x_codes", "t"], &["o"]),
        node("QuantizeLinear", "last", &["o", "s"], &["y"]),
    ];
    let constants = vec![floats("s", &[], &[0.5]), floats("t", &[], &[0.25])];
    let mut made = model(17, nodes.clone(), constants, &["given"], &["y"]);
    let done = dequantized(&mut made);
    assert_eq!(done.left, ["first", "x_q", "other", "last"]);
    assert_eq!((done.activations, &made.graph.node), (0, &nodes));
}

#[test]
fn zero_points_that_are_zero_count_as_none() {
    let [mut q, d] = pair("x", "s");
    q.input.pop();
    let constants = vec![floats("s", &[], &[0.5]), tensor("zero", DataType::UINT8, &[], vec![0])];
    let mut made = model(17, vec![q, d, node("Relu", "r", &["x_dq"], &["y"])], constants, &["x"], &["y"]);
    assert_eq!(dequantized(&mut made).activations, 1);
    assert_eq!(operators(&made.graph), ["Relu"]);
}

#[test]
fn weights_of_few_bits_become_those_of_a_product() {
    let mut product = node("MatMulNBits", "product", &["x", "b", "s", "", "", "bias"], &["y"]);
    product.domain = Some("com.microsoft".to_owned());
    for (name, value) in [("K", 16), ("N", 1), ("bits", 4), ("block_size", 16)] {
        set_attribute(&mut product, name, value);
    }
    let packed = tensor("b", DataType::UINT8, &[1, 1, 8], vec![0x9au8; 8]);
    let constants = vec![packed, floats("s", &[1], &[0.5]), floats("bias", &[1], &[10.0])];
    let mut made = model(17, vec![product], constants, &["x"], &["y"]);
    add_opset(&mut made, "com.microsoft", 1);
    assert_eq!(dequantized(&mut made).constants, 1);
    assert_eq!((operators(&made.graph), made.opset_import.len()), (vec!["MatMul", "Add"], 1));
    let (_, weight) = constant_of(&made.graph, "b_dequantized");
    assert_eq!(weight[..2], [1.0, 0.5]);
    assert_eq!(made.graph.initializer.len(), 2);
}

#[test]
fn integer_operators_and_unknown_types_are_refused() {
    let refused = |node_of: NodeProto, constants: Vec<TensorProto>| {
        let mut made = model(21, vec![node_of], constants, &["x"], &["y"]);
        let before = made.clone();
        let error = dequantize(&mut made, None).unwrap_err();
        assert_eq!(made, before);
        assert!(matches!(error, ToolError::NotDequantized { .. }), "{error}");
        error.to_string()
    };
    let integer = node("QLinearMatMul", "q", &["x", "x", "x", "x", "x", "x", "x", "x"], &["y"]);
    assert!(refused(integer, vec![]).contains("`q` (QLinearMatMul)"));
    let unknown = tensor("w", DataType::FLOAT8E4M3FNUZ, &[1], vec![0]);
    let reads = node("DequantizeLinear", "d", &["w", "s"], &["y"]);
    assert!(refused(reads, vec![unknown, floats("s", &[], &[1.0])]).contains("float8e4m3fnuz"));
    let misfit = node("DequantizeLinear", "d", &["w", "s"], &["y"]);
    assert!(refused(misfit, vec![codes("w", &[2, 3], &[0; 6]), floats("s", &[2], &[1.0; 2])]).contains("scale"));
}

/// The nodes of a graph whose tensor `h`, made by an operator, is quantized to codes of uint8 that begin at zero.
fn behind(operator: &str, opset: i64) -> GraphProto {
    let [q, d] = pair("h", "s");
    let nodes = vec![
        node("Neg", "n", &["x"], &["g"]),
        node(operator, "maker", &["g"], &["h"]),
        q,
        d,
        node("Abs", "a", &["h_dq"], &["y"]),
    ];
    let constants = vec![floats("s", &[], &[0.5]), tensor("zero", DataType::UINT8, &[], vec![0])];
    let mut made = model(opset, nodes, constants, &["x"], &["y"]);
    dequantized(&mut made);
    GraphProto::clone(&made.graph)
}

#[test]
fn codes_that_begin_at_zero_leave_their_limits_where_values_may_be_negative() {
    let graph = behind("Tanh", 17);
    assert_eq!(operators(&graph), ["Neg", "Tanh", "Clip", "Abs"]);
    assert_eq!(graph.node[2].input, ["h", "h_dq_min", "h_dq_max"]);
    assert_eq!((constant_of(&graph, "h_dq_min").1, constant_of(&graph, "h_dq_max").1), (vec![0.0], vec![127.5]));
    let old = behind("Tanh", 10);
    assert_eq!((crate::graph::float_attribute(&old.node[2], "max"), old.initializer.len()), (Some(127.5), 0));
    for never_negative in ["Relu", "Sigmoid"] {
        assert_eq!(operators(&behind(never_negative, 17)), ["Neg", never_negative, "Abs"]);
    }
    // What is negative stays so behind a pool.
    assert_eq!(operators(&behind("GlobalAveragePool", 17)), ["Neg", "GlobalAveragePool", "Clip", "Abs"]);
}

#[test]
fn limits_follow_from_what_comes_before_other_nodes() {
    let [q, d] = pair("r", "s");
    let [q2, d2] = pair("p", "s");
    let nodes = vec![
        node("Relu", "r", &["x"], &["r"]),
        q,
        d,
        node("GlobalAveragePool", "p", &["r_dq"], &["p"]),
        q2,
        d2,
        node("Abs", "a", &["p_dq"], &["y"]),
    ];
    let constants = vec![floats("s", &[], &[0.5]), tensor("zero", DataType::UINT8, &[], vec![0])];
    let mut made = model(17, nodes, constants, &["x"], &["y"]);
    dequantized(&mut made);
    assert_eq!(operators(&made.graph), ["Relu", "GlobalAveragePool", "Abs"]);
}
