//! A model in which every pass has something to look at.

use kvant_container::onnx::{
    DataType, GraphProto, MessageField, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, tensor,
};
use kvant_onnx::graph::{node, set_attribute};
use kvant_onnx::shape::{Dim, ValueType};

/// A tensor of 64-bit integers.
pub fn integers(name: &str, values: &[i64]) -> TensorProto {
    tensor(name, DataType::INT64, &[values.len()], values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}

/// A tensor of floats that count up from one.
pub fn floats(name: &str, shape: &[usize]) -> TensorProto {
    let count: usize = shape.iter().product();
    tensor(name, DataType::FLOAT, shape, (0..count).flat_map(|i| (1.0 + i as f32).to_le_bytes()).collect::<Vec<_>>())
}

fn with(mut node: NodeProto, lists: &[(&str, &[i64])], numbers: &[(&str, i64)]) -> NodeProto {
    lists.iter().for_each(|(name, values)| set_attribute(&mut node, name, *values));
    numbers.iter().for_each(|(name, value)| set_attribute(&mut node, name, *value));
    node
}

/// The model: one input `x` of `[2, 3, 8, 8]`, outputs of floats and of integers.
pub fn model() -> ModelProto {
    let nodes = vec![
        with(
            node("Conv", "conv", &["x", "w", "b"], &["c"]),
            &[("pads", &[1, 1, 1, 1]), ("kernel_shape", &[3, 3])],
            &[],
        ),
        node("BatchNormalization", "bn", &["c", "s", "b", "m", "v"], &["n"]),
        node("Add", "bias", &["n", "k"], &["a"]),
        node("Clip", "clip", &["a", "zero"], &["r"]),
        with(node("MaxPool", "pool", &["r"], &["p"]), &[("kernel_shape", &[2, 2]), ("strides", &[2, 2])], &[]),
        with(node("Split", "split", &["p", "lengths"], &["left", "right"]), &[], &[("axis", 1)]),
        with(node("Concat", "concat", &["right", "left"], &["j"]), &[], &[("axis", 1)]),
        with(node("Pad", "pad", &["j", "pads"], &["e"]), &[], &[]),
        node("Slice", "slice", &["e", "starts", "ends", "axes"], &["f"]),
        with(node("ReduceMean", "mean", &["f"], &["g"]), &[("axes", &[2, 3])], &[]),
        node("Shape", "shape", &["g"], &["sh"]),
        node("Gather", "gather", &["sh", "first"], &["batch"]),
        with(node("Concat", "cat", &["batch", "rest"], &["target"]), &[], &[("axis", 0)]),
        node("Reshape", "reshape", &["g", "target"], &["flat"]),
        node("MatMul", "mm", &["flat", "q"], &["h"]),
        node("Add", "mmb", &["h", "b"], &["i"]),
        with(node("Transpose", "tr", &["i"], &["t"]), &[("perm", &[1, 0])], &[]),
        node("Expand", "ex", &["t", "grow"], &["u"]),
        node("Tile", "tile", &["u", "times"], &["o"]),
        with(node("Unsqueeze", "un", &["o", "first"], &["l"]), &[], &[]),
        with(node("Softmax", "soft", &["l"], &["y"]), &[], &[("axis", -1)]),
        with(node("ConvTranspose", "up", &["p", "d"], &["z"]), &[("strides", &[2, 2])], &[]),
        node("GlobalAveragePool", "gap", &["z"], &["w2"]),
        node("Range", "range", &["from", "to", "by"], &["ra"]),
        node("ConstantOfShape", "cos", &["grow"], &["co"]),
    ];
    let vector = |name: &str| floats(name, &[4]);
    let initializers = vec![
        floats("w", &[4, 3, 3, 3]),
        vector("b"),
        vector("s"),
        vector("m"),
        vector("v"),
        floats("k", &[1, 4, 1, 1]),
        floats("zero", &[]),
        integers("lengths", &[1, 3]),
        integers("pads", &[0, 0, 0, 0, 0, 0, 0, 0]),
        integers("starts", &[0]),
        integers("ends", &[100]),
        integers("axes", &[2]),
        integers("first", &[0]),
        integers("rest", &[-1]),
        floats("q", &[4, 4]),
        integers("grow", &[4, 2]),
        integers("times", &[1, 2]),
        floats("d", &[4, 2, 2, 2]),
        integers("from", &[0]),
        integers("to", &[5]),
        integers("by", &[1]),
    ];
    let input = ValueType::new(DataType::FLOAT, [2, 3, 8, 8].map(Dim::Known).to_vec()).to_proto("x").unwrap();
    let output = |name: &str| ValueType::any(DataType::FLOAT).to_proto(name).unwrap();
    let graph = GraphProto {
        node: nodes,
        initializer: initializers,
        input: vec![input],
        output: ["y", "w2", "ra", "co"].map(output).to_vec(),
        ..GraphProto::default()
    };
    let opset = OperatorSetIdProto { domain: Some(String::new()), version: Some(17), ..Default::default() };
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![opset],
        graph: MessageField::some(graph),
        ..ModelProto::default()
    }
}
