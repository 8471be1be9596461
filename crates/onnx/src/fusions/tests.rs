use super::*;
use crate::graph::node;
use crate::shape::{Dim, ValueType};
use crate::test_models::{floats, integers, model, typed};
use kvant_container::onnx::{DataType, NodeProto, TensorProto, tensor};

/// Nodes between pairs, and their constants.
#[derive(Default)]
struct Net {
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
}

impl Net {
    fn new(zero_point: DataType) -> Self {
        let bytes = if matches!(zero_point, DataType::INT16 | DataType::UINT16) { 2 } else { 1 };
        Self {
            nodes: Vec::new(),
            constants: vec![
                floats("s", &[], &[0.5]),
                floats("t", &[], &[0.25]),
                tensor("z", zero_point, &[], vec![0u8; bytes]),
                tensor("w", DataType::INT8, &[2, 2], vec![1u8; 4]),
                tensor("wz", DataType::INT8, &[], vec![0u8]),
                floats("b", &[2], &[0.5, 1.0]),
            ],
        }
    }

    fn op(&mut self, op: &str, inputs: &[&str], output: &str) -> &mut Self {
        self.nodes.push(node(op, output, inputs, &[output]));
        self
    }

    /// Q and DQ of a tensor: `NAME_q`, then `NAME_d`.
    fn pair(&mut self, tensor: &str, scale: &str) -> &mut Self {
        let (codes, floats) = (format!("{tensor}_q"), format!("{tensor}_d"));
        self.op("QuantizeLinear", &[tensor, scale, "z"], &codes).op("DequantizeLinear", &[&codes, scale, "z"], &floats)
    }

    fn weight(&mut self) -> &mut Self {
        self.op("DequantizeLinear", &["w", "s", "wz"], "wf")
    }

    fn fusions(&self, outputs: &[&str]) -> Fusions {
        let mut made = model(17, self.nodes.clone(), self.constants.clone(), &[], outputs);
        made.graph.as_mut().unwrap().input = vec![typed("x", &[2, 2])];
        Fusions::of(&made)
    }

    /// The nodes that stay, with the reason, but those at the ends of the graph.
    fn problems(&self, outputs: &[&str]) -> Vec<(String, &'static str)> {
        self.fusions(outputs).problems().map(|pair| (pair.node.clone(), pair.problem.name())).collect()
    }
}

fn names<'a>(found: &'a [(String, &'static str)]) -> Vec<&'a str> {
    found.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn kernels_absorb_pairs_and_ends_stay() {
    let mut net = Net::new(DataType::UINT8);
    net.pair("x", "s")
        .weight()
        .op("MatMul", &["x_d", "wf"], "m")
        .pair("m", "t")
        .op("Sigmoid", &["m_d"], "g")
        .pair("g", "s");
    let found = net.fusions(&["g_d"]);
    assert_eq!((found.fused, found.problems().count()), (2, 0));
    let ends: Vec<&str> = found.unfused.iter().map(|pair| pair.node.as_str()).collect();
    assert_eq!(ends, ["x_q", "g_d"]);
}

#[test]
fn operator_without_a_kernel_keeps_the_pairs_around_it() {
    let mut net = Net::new(DataType::UINT8);
    net.pair("x", "s").op("Tanh", &["x_d"], "h").pair("h", "s").op("Sigmoid", &["h_d"], "g").pair("g", "s");
    assert_eq!(net.problems(&["g_d"]), [("x_d".to_owned(), "no-kernel"), ("h_q".to_owned(), "no-kernel")]);
}

#[test]
fn int8_data_of_several_readers_stay_int8() {
    let mut net = Net::new(DataType::INT8);
    net.pair("x", "s").weight().op("MatMul", &["x_d", "wf"], "m").pair("m", "t");
    assert_eq!(net.problems(&["m_d"]), []);
    net.op("Sigmoid", &["x_d"], "g").pair("g", "s");
    let found = net.problems(&["m_d", "g_d"]);
    assert!(found.iter().all(|(_, problem)| *problem == "signed-data"), "{found:?}");
    // One DequantizeLinear for each reader.
    assert_eq!(names(&found), ["x_d", "wf", "m_q", "g_q", "x_d"]);
}

#[test]
fn types_widths_and_float_inputs_are_named() {
    let mut constant = Net::new(DataType::UINT8);
    constant.pair("x", "s").weight().op("Add", &["x_d", "wf"], "a").pair("a", "t");
    assert_eq!(constant.problems(&["a_d"])[0].1, "types");
    let mut wide = Net::new(DataType::UINT16);
    wide.pair("x", "s").op("Softmax", &["x_d"], "a").pair("a", "t");
    assert_eq!(wide.problems(&["a_d"])[0].1, "width");
    let mut float = Net::new(DataType::UINT8);
    float.pair("x", "s").op("Add", &["x_d", "b"], "a").pair("a", "t");
    assert_eq!(float.problems(&["a_d"])[0].1, "float-input");
}

#[test]
fn pairs_move_over_what_moves_values() {
    let mut net = Net::new(DataType::UINT8);
    net.op("Tanh", &["x"], "h").op("Transpose", &["h"], "p").pair("p", "s").op("Transpose", &["p_d"], "y").op(
        "Tanh",
        &["y"],
        "o",
    );
    let found = net.problems(&["o"]);
    // One quantizes before the first Transpose, and one dequantizes behind the second.
    assert_eq!(names(&found), ["p_q", "p_d"]);
    let beside: Vec<String> =
        net.fusions(&["o"]).unfused.iter().map(|pair| pair.beside.as_ref().unwrap().name.clone()).collect();
    assert_eq!(beside, ["h", "o"]);
    let mut flat = Net::new(DataType::UINT8);
    flat.pair("x", "s").op("Flatten", &["x_d"], "f").pair("f", "t");
    assert_eq!(flat.problems(&["f_d"])[0].1, "parameters");
}

#[test]
fn output_with_several_readers_is_not_fused() {
    let mut net = Net::new(DataType::UINT8);
    net.pair("x", "s").op("Sigmoid", &["x_d"], "g").pair("g", "s").op("Tanh", &["g"], "t");
    assert_eq!(net.problems(&["g_d", "t"])[0].1, "shared-output");
    let mut none = Net::new(DataType::UINT8);
    none.pair("x", "s").op("Sigmoid", &["x_d"], "g");
    assert_eq!(none.problems(&["g"]), [("x_d".to_owned(), "float-output")]);
}

#[test]
fn clamps_that_codes_imply_are_no_obstacle() {
    for (zero_point, expected) in [(0u8, None), (10, Some("clamp"))] {
        let mut net = Net::new(DataType::UINT8);
        net.constants[2] = tensor("z", DataType::UINT8, &[], vec![zero_point]);
        net.pair("x", "s").weight().op("MatMul", &["x_d", "wf"], "m").op("Relu", &["m"], "r").pair("r", "s");
        assert_eq!(net.problems(&["r_d"]).first().map(|(_, problem)| *problem), expected);
    }
}

#[test]
fn weights_alone_are_absorbed_by_products_with_float_data() {
    let mut net = Net::new(DataType::UINT8);
    net.weight().op("MatMul", &["x", "wf"], "m");
    assert_eq!((net.fusions(&["m"]).fused, net.problems(&["m"])), (1, vec![]));
    net.pair("m", "s");
    assert_eq!(names(&net.problems(&["m_d"])), ["wf", "m_q"]);
}

#[test]
fn integer_operators_of_the_graph_count() {
    let mut net = Net::new(DataType::UINT8);
    net.op("QLinearSigmoid", &["x", "s", "z", "s", "z"], "g").op("MatMulInteger", &["g", "w"], "m");
    net.op("Sigmoid", &["m"], "f");
    assert_eq!(net.fusions(&["f"]).fused, 2);
}

#[test]
fn pairs_in_a_row_are_joined() {
    let mut net = Net::new(DataType::UINT8);
    net.pair("x", "s").pair("x_d", "t").op("Sigmoid", &["x_d_d"], "g").pair("g", "s");
    assert_eq!(net.problems(&["g_d"]), []);
}

/// The nodes that stay where the target of a Reshape is one size of its data, which the graph does not state, and another number.
fn beside_computed_target(place: i64, other: i64, is_read: bool) -> Vec<(String, &'static str)> {
    let mut net = Net::new(DataType::UINT8);
    net.constants.extend([integers("place", &[place]), integers("axis", &[0]), integers("other", &[other])]);
    net.constants.iter_mut().filter(|constant| constant.name() == "place").for_each(|place| place.dims.clear());
    net.pair("x", "s").op("Sigmoid", &["x_d"], "g").pair("g", "s");
    net.op("Shape", &["g_d"], "sizes").op("Gather", &["sizes", "place"], "size").op(
        "Unsqueeze",
        &["size", "axis"],
        "part",
    );
    net.op("Concat", &["part", "other"], "target").op("Reshape", &["g_d", "target"], "r").pair("r", "s");
    net.op("Sigmoid", &["r_d"], "h").pair("h", "s");
    let mut outputs = vec!["h_d"];
    if is_read {
        net.op("Cast", &["sizes"], "c");
        outputs.push("c");
    }
    let mut made = model(17, net.nodes.clone(), net.constants.clone(), &[], &outputs);
    let sizes = ["rows", "columns"].map(|name| Dim::Symbol(name.to_owned())).to_vec();
    made.graph.as_mut().unwrap().input = vec![ValueType::new(DataType::FLOAT, sizes).to_proto("x").unwrap()];
    Fusions::of(&made).problems().map(|pair| (pair.node.clone(), pair.problem.name())).collect()
}

#[test]
fn computed_target_of_reshape_becomes_a_constant_with_one_size_left_to_follow() {
    let stays = [("g_d".to_owned(), "no-kernel")];
    assert_eq!(beside_computed_target(0, -1, false), []);
    // The second size is no 0 at the first place, but follows from the other.
    assert_eq!(beside_computed_target(1, 2, false), []);
    assert_eq!(beside_computed_target(1, -1, false), stays);
    assert_eq!(beside_computed_target(0, -1, true), stays);
}

#[test]
fn max_pool_takes_codes_from_opset_12_on() {
    for (opset, expected) in [(11, Some("no-kernel")), (12, None)] {
        let mut net = Net::new(DataType::UINT8);
        net.pair("x", "s").op("MaxPool", &["x_d"], "m").pair("m", "s");
        let mut made = model(opset, net.nodes.clone(), net.constants.clone(), &[], &["m_d"]);
        made.graph.as_mut().unwrap().input = vec![typed("x", &[1, 1, 2, 2])];
        let found = Fusions::of(&made);
        assert_eq!(found.problems().next().map(|pair| pair.problem.name()), expected);
    }
}
