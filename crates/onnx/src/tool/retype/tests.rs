use super::*;
use crate::graph::{Index, check, node};
use crate::kernel::linear::constant;
use crate::test_models::{floats, model, typed};

/// x -> Conv with a bias -> Add with a constant -> y in pairs of int8; one zero point is that of weight and constant, and one is left out.
fn signed() -> ModelProto {
    let nodes = vec![
        node("QuantizeLinear", "q", &["x", "s", "z"], &["c"]),
        node("DequantizeLinear", "d", &["c", "s", "z"], &["f"]),
        node("DequantizeLinear", "wd", &["w", "s", "zero"], &["wf"]),
        node("DequantizeLinear", "bd", &["b", "bs"], &["bf"]),
        node("Conv", "conv", &["f", "wf", "bf"], &["h"]),
        node("QuantizeLinear", "r", &["h", "s", "zero"], &["e"]),
        node("DequantizeLinear", "u", &["e", "s", "zero"], &["g"]),
        node("DequantizeLinear", "kd", &["k", "s"], &["kf"]),
        node("Add", "sum", &["g", "kf"], &["y"]),
    ];
    let byte = |name: &str, shape: &[usize], values: &[u8]| tensor(name, DataType::INT8, shape, values.to_vec());
    let constants = vec![
        floats("s", &[], &[0.5]),
        byte("z", &[], &[10]),
        byte("zero", &[], &[0]),
        byte("w", &[2, 1, 1, 1], &[3, 0x80]),
        byte("k", &[1], &[0xff]),
        tensor("b", DataType::INT32, &[2], [300i32, -7].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()),
        floats("bs", &[], &[0.25]),
    ];
    let mut made = model(17, nodes, constants, &[], &[]);
    let graph = made.graph.as_mut().unwrap();
    (graph.input, graph.output) = (vec![typed("x", &[1, 1, 1, 1])], vec![typed("y", &[1, 2, 1, 1])]);
    made
}

fn to(codes: &str) -> RetypeRequest {
    RetypeRequest { codes: Some(codes.parse().unwrap()), bias: None }
}

/// Type and number of the first element of the constant at an input.
fn read(model: &ModelProto, name: &str, input: usize) -> (DataType, f32) {
    let index = Index::new(&model.graph);
    let node = model.graph.node.iter().find(|node| node.name() == name).unwrap();
    let held = index.constant(&model.graph, &node.input[input]).unwrap();
    (data_type(held), constant(held).unwrap().to_f32s()[0])
}

#[test]
fn activations_and_constants_beside_them_become_unsigned() {
    let mut made = signed();
    let done = retype(&mut made, &to("u8s8"), None).unwrap();
    assert_eq!(done, Retyped { activations: 2, constants: 1, ..Retyped::default() });
    assert_eq!(check(&made), Ok(()));
    assert_eq!((read(&made, "q", 2), read(&made, "u", 2)), ((DataType::UINT8, 138.0), (DataType::UINT8, 128.0)));
    assert_eq!((read(&made, "kd", 0), read(&made, "kd", 2)), ((DataType::UINT8, 127.0), (DataType::UINT8, 128.0)));
    // Its zero point was that of an activation too.
    assert_eq!((read(&made, "wd", 0), read(&made, "wd", 2)), ((DataType::INT8, 3.0), (DataType::INT8, 0.0)));
    retype(&mut made, &to("s8s8"), None).unwrap();
    for (name, input, expected) in [("q", 2, 10.0), ("r", 2, 0.0), ("kd", 0, -1.0), ("wd", 0, 3.0)] {
        assert_eq!(read(&made, name, input), (DataType::INT8, expected), "{name}");
    }
    let before = made.clone();
    assert!(matches!(retype(&mut made, &to("s8s8"), None), Err(ToolError::NothingToRetype { .. })));
    assert!(matches!(retype(&mut made, &to("u16s16"), None), Err(ToolError::NothingToRetype { .. })));
    assert_eq!(made, before);
    let done = retype(&mut made, &to("u8s4"), None).unwrap();
    assert_eq!((done.activations, done.of_other_widths), (2, vec!["w".to_owned()]));
}

#[test]
fn inputs_that_hold_codes_keep_their_type() {
    let mut made = signed();
    let graph = made.graph.as_mut().unwrap();
    graph.node.remove(0);
    graph.input = vec![crate::shape::ValueType::any(DataType::INT8).to_proto("c").unwrap()];
    let done = retype(&mut made, &to("u8u8"), None).unwrap();
    assert_eq!(done, Retyped { activations: 1, constants: 2, left: vec!["c".to_owned()], ..Retyped::default() });
    assert_eq!((read(&made, "d", 2), read(&made, "wd", 0)), ((DataType::INT8, 10.0), (DataType::UINT8, 131.0)));
    assert_eq!(check(&made), Ok(()));
}

#[test]
fn integer_operators_keep_one_type_for_all_that_they_compute() {
    let mut made = signed();
    crate::tool::to_qoperator(&mut made).unwrap();
    let refused = retype(&mut made.clone(), &to("s8u8"), None);
    assert!(matches!(refused, Err(ToolError::NotRetyped { name, .. }) if name == "conv"));
    let done = retype(&mut made, &to("u8s8"), None).unwrap();
    assert_eq!((done.activations, done.constants), (2, 1));
    assert_eq!((read(&made, "conv", 2).0, read(&made, "conv", 5).0), (DataType::UINT8, DataType::INT8));
    let refused = retype(&mut made, &RetypeRequest { codes: None, bias: Some(Element::Int16) }, None);
    assert!(matches!(refused, Err(ToolError::NotRetyped { reason, .. }) if reason.contains("to-qdq")));
}

#[test]
fn biases_become_int16_where_they_fit() {
    let request = |bias| RetypeRequest { codes: None, bias: Some(bias) };
    let mut made = signed();
    assert_eq!(retype(&mut made, &request(Element::Int16), None).unwrap().biases, 1);
    assert_eq!(read(&made, "bd", 0), (DataType::INT16, 300.0));
    assert_eq!(crate::graph::opset(&made, ""), Some(21));
    assert_eq!(retype(&mut made, &request(Element::Int32), None).unwrap().biases, 1);
    assert_eq!(read(&made, "bd", 0), (DataType::INT32, 300.0));
    let wide = [40_000i32, 1].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
    let graph = made.graph.as_mut().unwrap();
    let bias = graph.initializer.iter_mut().find(|tensor| tensor.name() == "b").unwrap();
    *bias = tensor("b", DataType::INT32, &[2], wide);
    let refused = retype(&mut made, &request(Element::Int16), None).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "`b` cannot get the type: int16 does not hold 1 of its 2 codes, the largest of which is 40000"
    );
}

#[test]
fn sign_changes_move_the_code_by_half_of_the_range() {
    for (from, bytes, expected) in [
        (DataType::INT8, vec![0x80, 0xff, 5], [0.0, 127.0, 133.0]),
        (DataType::UINT8, vec![0, 127, 133], [-128.0, -1.0, 5.0]),
        (DataType::INT16, vec![0, 0x80, 0xff, 0xff, 5, 0], [0.0, 32767.0, 32773.0]),
        (DataType::INT4, vec![0xf8, 0x05], [0.0, 7.0, 13.0]),
    ] {
        let made = of_other_sign(&tensor("t", from, &[3], bytes.clone()), "t", None).unwrap();
        assert_eq!(constant(&made).unwrap().to_f32s()[..], expected, "{from:?}");
        let back = of_other_sign(&made, "t", None).unwrap();
        assert_eq!(tensor_bytes(&back).unwrap()[..], bytes, "{from:?}");
    }
}

#[test]
fn types_are_written_as_one_word() {
    for text in ["u8s8", "s16u8", "u4s16"] {
        assert_eq!(text.parse::<CodeTypes>().unwrap().to_string(), text);
    }
    for text in ["", "u8", "u8s7", "s8s8s8", "üü8", "u32s8"] {
        assert!(text.parse::<CodeTypes>().is_err(), "{text}");
    }
}
