//! What fusions look for: a tensor's maker, constants of one number, the two sides of an operator.

use kvant_container::onnx::{GraphProto, NodeProto};

use crate::constant::Value;
use crate::graph::{Index, ints_attribute, is, positional_input};

/// A graph while patterns are looked for in it.
pub(crate) struct Pattern<'g> {
    pub(crate) graph: &'g GraphProto,
    pub(crate) index: Index,
}

impl<'g> Pattern<'g> {
    pub(crate) fn new(graph: &'g GraphProto) -> Self {
        Self { graph, index: Index::new(graph) }
    }

    /// The node of an operator that makes a tensor.
    pub(crate) fn maker(&self, tensor: &str, operator: &str) -> Option<&'g NodeProto> {
        self.graph.node.get(self.index.producer(tensor)?).filter(|node| is(node, operator))
    }

    /// The position and node of an operator that alone reads a tensor.
    pub(crate) fn reader(&self, tensor: &str, operator: &str) -> Option<(usize, &'g NodeProto)> {
        let position = self.index.only_consumer(tensor)?;
        Some((position, &self.graph.node[position])).filter(|(_, node)| is(node, operator))
    }

    /// The contents of a constant.
    pub(crate) fn value(&self, tensor: &str) -> Option<Value> {
        Value::of_tensor(self.index.constant(self.graph, tensor)?)
    }

    /// The number that a constant of one float is.
    pub(crate) fn number(&self, tensor: &str) -> Option<f64> {
        self.value(tensor)?.as_float()
    }

    /// Returns whether a tensor is a constant of one float near a number.
    pub(crate) fn is_number(&self, tensor: &str, number: f64) -> bool {
        self.number(tensor).is_some_and(|own| (own - number).abs() <= 1e-5 * number.abs())
    }

    /// The axes that a node takes as an attribute, or as its second input.
    pub(crate) fn axes(&self, node: &NodeProto) -> Option<Vec<i64>> {
        let by_input = || self.value(positional_input(node, 1)?)?.as_integers();
        ints_attribute(node, "axes").map(<[i64]>::to_vec).or_else(by_input)
    }
}

/// The other side of an operator of two inputs.
pub(crate) fn other<'n>(node: &'n NodeProto, tensor: &str) -> Option<&'n str> {
    match &node.input[..] {
        [a, b] if a == tensor && b != tensor => Some(b),
        [a, b] if b == tensor && a != tensor => Some(a),
        _ => None,
    }
}
