//! Small models for tests.

use kvant_container::onnx::{
    AttributeProto, AttributeType, DataType, GraphProto, MessageField, ModelProto, NodeProto, OperatorSetIdProto,
    TensorProto, ValueInfoProto, tensor,
};

use crate::shape::{Dim, ValueType};

/// A value of a name and no type.
pub(crate) fn value(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: Some(name.to_owned()), ..ValueInfoProto::default() }
}

/// A float value of a shape.
pub(crate) fn typed(name: &str, shape: &[usize]) -> ValueInfoProto {
    ValueType::new(DataType::FLOAT, shape.iter().map(|&d| Dim::Known(d)).collect()).to_proto(name).unwrap()
}

/// A float initializer.
pub(crate) fn floats(name: &str, shape: &[usize], values: &[f32]) -> TensorProto {
    tensor(name, DataType::FLOAT, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}

/// A 64-bit integer initializer.
pub(crate) fn integers(name: &str, values: &[i64]) -> TensorProto {
    tensor(name, DataType::INT64, &[values.len()], values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}

/// A model of one opset, its inputs and outputs without types.
pub(crate) fn model(
    opset: i64,
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
    inputs: &[&str],
    outputs: &[&str],
) -> ModelProto {
    let graph = GraphProto {
        node: nodes,
        initializer: initializers,
        input: inputs.iter().map(|name| value(name)).collect(),
        output: outputs.iter().map(|name| value(name)).collect(),
        ..GraphProto::default()
    };
    let set = OperatorSetIdProto { domain: Some(String::new()), version: Some(opset), ..OperatorSetIdProto::default() };
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![set],
        graph: MessageField::some(graph),
        ..ModelProto::default()
    }
}

/// If with two branches.
pub(crate) fn branches(condition: &str, output: &str, then: GraphProto, otherwise: GraphProto) -> NodeProto {
    let mut made = crate::graph::node("If", "if", &[condition], &[output]);
    made.attribute = [("then_branch", then), ("else_branch", otherwise)].map(|(name, body)| graph(name, body)).into();
    made
}

/// An attribute that is a graph.
pub(crate) fn graph(name: &str, body: GraphProto) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_owned()),
        type_: Some(AttributeType::GRAPH.into()),
        g: MessageField::some(body),
        ..AttributeProto::default()
    }
}
