use super::*;
use crate::graph::check;
use crate::test_models::{floats, model, typed};
use crate::tool::to_qoperator;
use crate::writing::integer_operators::of_integer;

fn bytes(name: &str, element: DataType, shape: &[usize], values: &[u8]) -> TensorProto {
    tensor(name, element, shape, values.to_vec())
}

/// x -> Conv with a bias -> `clamp` -> Reshape -> y, in pairs: scales of channels, and codes from 0 on.
fn pairs(clamp: NodeProto) -> ModelProto {
    let of_axis = |op: &str, name: &str, inputs: &[&str], output: &str| {
        let mut made = node(op, name, inputs, &[output]);
        set_attribute(&mut made, "axis", 0i64);
        made
    };
    let nodes = vec![
        node("QuantizeLinear", "q", &["x", "s", "z"], &["c"]),
        node("DequantizeLinear", "d", &["c", "s", "z"], &["f"]),
        of_axis("DequantizeLinear", "wd", &["w", "ws", "wz"], "wf"),
        of_axis("DequantizeLinear", "bd", &["b", "bs"], "bf"),
        node("Conv", "conv", &["f", "wf", "bf"], &["h"]),
        clamp,
        node("QuantizeLinear", "r", &["k", "t", "z"], &["e"]),
        node("DequantizeLinear", "u", &["e", "t", "z"], &["g"]),
        node("Reshape", "flat", &["g", "shape"], &["v"]),
        node("QuantizeLinear", "p", &["v", "t", "z"], &["o"]),
        node("DequantizeLinear", "l", &["o", "t", "z"], &["y"]),
    ];
    let constants = vec![
        floats("s", &[], &[0.5]),
        floats("t", &[], &[0.25]),
        bytes("z", DataType::UINT8, &[], &[10]),
        bytes("w", DataType::INT8, &[2, 1, 1, 1], &[3, 4]),
        floats("ws", &[2], &[0.25, 0.5]),
        bytes("wz", DataType::INT8, &[2], &[0, 0]),
        bytes("b", DataType::INT32, &[2], &[1, 0, 0, 0, 2, 0, 0, 0]),
        floats("bs", &[2], &[0.125, 0.25]),
        floats("low", &[], &[-1.0]),
        floats("high", &[], &[2.0]),
        crate::test_models::integers("shape", &[2]),
    ];
    let mut made = model(17, nodes, constants, &[], &[]);
    let graph = made.graph.as_mut().unwrap();
    (graph.input, graph.output) = (vec![typed("x", &[1, 1, 1, 1])], vec![typed("y", &[2])]);
    made
}

fn operators(model: &ModelProto) -> Vec<&str> {
    model.graph.node.iter().map(|n| n.op_type()).collect()
}

fn maker<'m>(model: &'m ModelProto, operator: &str) -> &'m NodeProto {
    model.graph.node.iter().find(|n| n.op_type() == operator).unwrap()
}

#[test]
fn integer_operators_become_the_pairs_that_they_were() {
    for clamp in [node("Relu", "k", &["h"], &["k"]), node("Clip", "k", &["h", "low", "high"], &["k"])] {
        let source = pairs(clamp.clone());
        let mut made = source.clone();
        assert_eq!(to_qoperator(&mut made).unwrap().left, [""; 0]);
        assert_eq!(operators(&made), ["QuantizeLinear", "QLinearConv", "Clip", "Reshape", "DequantizeLinear"]);
        assert_eq!(to_qdq(&mut made).unwrap(), Separated { operators: 2, left: vec![] });
        assert_eq!(check(&made), Ok(()));
        assert!(made.graph.node.iter().all(|node| of_integer(node).is_none_or(|row| row.is_move())));
        let mut expected = operators(&source);
        let mut found = operators(&made);
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected);
        let index = Index::new(&made.graph);
        let number = |name: &str| constant(index.constant(&made.graph, name).unwrap()).unwrap().to_f32s().to_vec();
        let bias = &made.graph.node[index.producer(&maker(&made, "Conv").input[2]).unwrap()];
        assert_eq!((number(&bias.input[1]), int_attribute(bias, "axis")), (vec![0.125, 0.25], Some(0)));
        if clamp.op_type() == "Clip" {
            let limits = maker(&made, "Clip").input[1..].iter().map(|name| number(name)[0]);
            assert_eq!(limits.collect::<Vec<_>>(), [-1.0, 2.0]);
        }
    }
}

#[test]
fn operators_without_a_float_form_are_left() {
    let mut integer = node("ConvInteger", "i", &["c", "w"], &["y"]);
    integer.domain = None;
    let mut add = node("QLinearAdd", "a", &["c", "s", "z", "c", "s", "z", "s", "z"], &["e"]);
    add.domain = Some("com.microsoft".to_owned());
    let nodes = vec![
        node("QuantizeLinear", "q", &["x", "s", "z"], &["c"]),
        add,
        node("DequantizeLinear", "d", &["e", "s", "z"], &["o"]),
        integer,
    ];
    let constants = vec![
        floats("s", &[], &[0.5]),
        bytes("z", DataType::UINT8, &[], &[10]),
        bytes("w", DataType::INT8, &[2, 1, 1, 1], &[3, 4]),
    ];
    let mut made = model(17, nodes, constants, &["x"], &["o", "y"]);
    crate::graph::add_opset(&mut made, "com.microsoft", 1);
    assert_eq!(to_qdq(&mut made).unwrap(), Separated { operators: 1, left: vec!["i".to_owned()] });
    // The pair of the source serves both operands.
    assert_eq!(operators(&made).iter().filter(|op| **op == "DequantizeLinear").count(), 2);
    let domains: Vec<&str> = made.opset_import.iter().map(|set| set.domain()).collect();
    assert_eq!(domains, [""]);
    let before = made.clone();
    assert!(matches!(to_qdq(&mut made), Err(ToolError::NothingToSeparate { left: 1 })));
    assert_eq!(made, before);
}
