//! Counts of nodes, tensors and bytes of a graph: one method for plans, runs and reports.

use kvant_quant::counts::number;
use std::collections::BTreeSet;
use std::fmt;

use kvant_container::onnx::{
    AttributeProto, DataType, GraphProto, SparseTensorProto, TensorProto, tensor, tensor_bytes,
};
use serde::Serialize;

use crate::graph::{bodies, for_each_node, is};

/// The quantized part of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Nodes of the simplified model, those inside of If, Loop and Scan included.
    pub nodes: usize,
    /// Those of them that are quantized, or that compute in 16 bits.
    pub quantized_nodes: usize,
    /// Tensors that are quantized: activations, weights and biases.
    pub quantized_tensors: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, quantized_nodes, quantized_tensors } = self;
        write!(f, "{quantized_nodes} of {} quantized", number(nodes, "node"))?;
        // Of a conversion to a 16-bit type no tensor has codes.
        if *quantized_tensors > 0 { write!(f, ", {}", number(quantized_tensors, "tensor")) } else { Ok(()) }
    }
}

/// Bytes of the constants of a graph, before and after.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ConstantBytes {
    /// Of the source.
    pub source_bytes: u64,
    /// Of the quantized model.
    pub output_bytes: u64,
}

/// Nodes of a graph, those inside of others included.
pub fn nodes(graph: &GraphProto) -> usize {
    let mut count = 0;
    for_each_node(graph, &mut |_| count += 1);
    count
}

/// Bytes of the constants of a graph, those of the bodies of its nodes included, each as given by `size`.
pub fn constants(graph: &GraphProto, size: impl Fn(&TensorProto) -> u64) -> u64 {
    let mut bytes = 0;
    for_each_constant(graph, &mut |tensor| bytes += size(tensor));
    bytes
}

/// Visits the constants of a graph and of the bodies of its nodes: initializers, sparse ones, and what Constant nodes hold.
pub fn for_each_constant(graph: &GraphProto, visit: &mut dyn FnMut(&TensorProto)) {
    for_each_initializer(graph, visit);
    for_each_other_constant(graph, visit);
}

/// Visits the initializers of a graph itself, each name once.
pub(crate) fn for_each_initializer(graph: &GraphProto, visit: &mut dyn FnMut(&TensorProto)) {
    let mut seen = BTreeSet::new();
    graph.initializer.iter().filter(|tensor| seen.insert(tensor.name())).for_each(visit);
}

/// Visits all constants but the initializers of the graph itself.
pub(crate) fn for_each_other_constant(graph: &GraphProto, visit: &mut dyn FnMut(&TensorProto)) {
    graph.sparse_initializer.iter().for_each(|sparse| for_each_part(sparse, visit));
    for_each_node(graph, &mut |node| {
        if is(node, "Constant") {
            node.attribute.iter().for_each(|attribute| for_each_held(attribute, visit));
        }
        for body in bodies(node) {
            for_each_initializer(body, visit);
            body.sparse_initializer.iter().for_each(|sparse| for_each_part(sparse, visit));
        }
    });
}

/// Visits the values of a sparse constant and their positions.
fn for_each_part(sparse: &SparseTensorProto, visit: &mut dyn FnMut(&TensorProto)) {
    sparse.values.iter().chain(sparse.indices.iter()).for_each(visit);
}

/// Visits what an attribute of a Constant node holds, numbers as the tensor that the node makes of them. Strings have no size.
fn for_each_held(attribute: &AttributeProto, visit: &mut dyn FnMut(&TensorProto)) {
    attribute.t.iter().for_each(&mut *visit);
    attribute.sparse_tensor.iter().for_each(|sparse| for_each_part(sparse, visit));
    let floats = attribute.f.iter().chain(&attribute.floats).flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let integers = attribute.i.iter().chain(&attribute.ints).flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    for (data_type, width, bytes) in [(DataType::FLOAT, 4, floats), (DataType::INT64, 8, integers)] {
        if !bytes.is_empty() {
            visit(&tensor("", data_type, &[bytes.len() / width], bytes));
        }
    }
}

/// Bytes of a constant as it is.
pub fn size(tensor: &TensorProto) -> u64 {
    tensor_bytes(tensor).map_or(0, |bytes| bytes.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Cost;
    use crate::graph::{node, set_attribute};
    use crate::preset::Preset;
    use crate::quantize::prepare;
    use crate::test_models::{branches, floats, integers, model, typed};
    use kvant_container::onnx::{AttributeType, MessageField, ModelProto, NodeProto};

    /// Two products around If, in whose branches there are two more each.
    fn around_branches() -> ModelProto {
        let square = |name: &str, scale: f32| floats(name, &[2, 2], &[scale, 0.5, -0.25, 1.0]);
        let branch = |name: &str, scale: f32| GraphProto {
            name: Some(name.to_owned()),
            node: vec![
                node("MatMul", &format!("{name}_own"), &["h", "w"], &["p"]),
                node("Add", &format!("{name}_bias"), &["p", "b"], &["q"]),
                node("MatMul", &format!("{name}_outer"), &["q", "outer"], &["r"]),
                node("Tanh", &format!("{name}_tanh"), &["r"], &["z"]),
            ],
            initializer: vec![square("w", scale), floats("b", &[2], &[0.5, -0.5])],
            output: vec![typed("z", &[4, 2])],
            ..GraphProto::default()
        };
        let mut sum = node("ReduceSum", "sum", &["h"], &["s"]);
        set_attribute(&mut sum, "keepdims", 0i64);
        let nodes = vec![
            node("MatMul", "first", &["x", "w0"], &["h0"]),
            node("Relu", "relu", &["h0"], &["h"]),
            sum,
            node("Greater", "greater", &["s", "zero"], &["c"]),
            branches("c", "i", branch("then", 0.25), branch("else", -2.0)),
            node("MatMul", "last", &["i", "outer"], &["o"]),
        ];
        let constants = vec![square("w0", 0.75), square("outer", 1.5), floats("zero", &[], &[0.0])];
        let mut made = model(17, nodes, constants, &[], &[]);
        let graph = made.graph.as_mut().unwrap();
        (graph.input, graph.output) = (vec![typed("x", &[4, 2])], vec![typed("o", &[4, 2])]);
        made
    }

    #[test]
    fn constants_of_bodies_are_counted() {
        // Two matrices and a number outside; a matrix and a vector in each branch.
        assert_eq!(constants(&around_branches().graph, size), 2 * 16 + 4 + 2 * (16 + 8));
    }

    /// A Constant node of one attribute.
    fn constant(output: &str, held: AttributeProto) -> NodeProto {
        NodeProto { attribute: vec![held], ..node("Constant", output, &[], &[output]) }
    }

    fn held(name: &str) -> AttributeProto {
        AttributeProto { name: Some(name.to_owned()), ..AttributeProto::default() }
    }

    fn whole(output: &str, value: TensorProto) -> NodeProto {
        let type_ = Some(AttributeType::TENSOR.into());
        constant(output, AttributeProto { t: MessageField::some(value), type_, ..held("value") })
    }

    #[test]
    fn constant_nodes_and_sparse_constants_are_counted() {
        let sparse = SparseTensorProto {
            values: MessageField::some(floats("", &[3], &[1.0; 3])),
            indices: MessageField::some(integers("", &[0, 2, 5])),
            dims: vec![2, 4],
            ..SparseTensorProto::default()
        };
        let nodes = vec![
            whole("a", floats("", &[2, 2], &[1.0; 4])),
            constant("b", AttributeProto { sparse_tensor: MessageField::some(sparse.clone()), ..held("sparse_value") }),
            constant("c", AttributeProto { f: Some(1.0), ..held("value_float") }),
            constant("d", AttributeProto { ints: vec![1, 2, 3], ..held("value_ints") }),
        ];
        let mut graph = GraphProto::clone(&model(17, nodes, vec![], &[], &[]).graph);
        graph.sparse_initializer.push(sparse);
        let (dense, sparse, numbers) = (16, 12 + 24, 4 + 24);
        assert_eq!(constants(&graph, size), dense + 2 * sparse + numbers);
    }

    #[test]
    fn weights_lifted_from_bodies_are_part_of_the_source() {
        let branch = |scale: f32| GraphProto {
            name: Some("branch".to_owned()),
            node: vec![
                whole("w", floats("", &[8, 8], &[scale; 64])),
                node("MatMul", "m", &["h", "w"], &["p"]),
                whole("k", floats("", &[8], &[scale; 8])),
                node("Mul", "n", &["p", "k"], &["z"]),
            ],
            output: vec![typed("z", &[4, 8])],
            ..GraphProto::default()
        };
        let nodes = vec![node("Relu", "r", &["x"], &["h"]), branches("c", "y", branch(0.5), branch(-2.0))];
        let mut made = model(17, nodes, vec![], &[], &[]);
        let graph = made.graph.as_mut().unwrap();
        let condition = crate::shape::ValueType::new(DataType::BOOL, [].into()).to_proto("c").unwrap();
        (graph.input, graph.output) = (vec![typed("x", &[4, 8]), condition], vec![typed("y", &[4, 8])]);
        let float = 2 * (64 + 8) * 4;
        for (preset, output) in [("UINT8_DYNAMIC_QUANT", 2 * (64 + 5 + 32)), ("FP16_MODEL", float / 2)] {
            let recipe = Preset::find(preset).unwrap().recipe();
            let prepared = prepare(made.clone(), recipe.clone(), &recipe.passes(), None).unwrap();
            let planned = Cost::of(&prepared, 1).constants;
            let observation = prepared.observation();
            let (_, report) = prepared.transformed(None, None).unwrap().finish(&observation, None, None).unwrap();
            assert_eq!(planned, ConstantBytes { source_bytes: float, output_bytes: output }, "{preset}");
            assert_eq!(report.constants, planned, "{preset}");
        }
    }

    #[test]
    fn nodes_inside_of_others_are_counted_once_among_all() {
        for (preset, quantized) in [("A8W8", 7), ("WEIGHTS_INT8", 6), ("INT8_DYNAMIC_QUANT", 6), ("MATMUL_NBITS", 6)] {
            let recipe = Preset::find(preset).unwrap().recipe();
            let counts = Counts::of(&prepare(around_branches(), recipe.clone(), &recipe.passes(), None).unwrap());
            assert_eq!((counts.quantized_nodes, counts.nodes), (quantized, 14), "{preset}");
            assert!(counts.to_string().starts_with(&format!("{quantized} of 14 nodes quantized")), "{counts}");
        }
    }
}
