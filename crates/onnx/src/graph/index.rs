//! Producers, consumers and constants of a graph, indexed once. It does not follow later changes.

use std::collections::HashMap;

use kvant_container::onnx::{DataType, GraphProto, NodeProto, TensorProto, data_type, shape};

/// The connections of a graph as it was when this was made. Positions are those in `graph.node` and `graph.initializer`.
#[derive(Debug, Default)]
pub struct Index {
    producer: HashMap<String, usize>,
    consumers: HashMap<String, Vec<usize>>,
    initializers: HashMap<String, usize>,
    constants: HashMap<String, usize>,
    inputs: HashMap<String, usize>,
    outputs: HashMap<String, usize>,
}

impl Index {
    /// Reads a graph. Tensors of an outer graph that a subgraph reads count as read by the node that holds it.
    pub fn new(graph: &GraphProto) -> Self {
        let mut index = Self {
            initializers: graph.initializer.iter().enumerate().map(|(i, t)| (t.name().to_owned(), i)).collect(),
            inputs: graph.input.iter().enumerate().map(|(i, v)| (v.name().to_owned(), i)).collect(),
            outputs: graph.output.iter().enumerate().map(|(i, v)| (v.name().to_owned(), i)).collect(),
            ..Self::default()
        };
        for (position, node) in graph.node.iter().enumerate() {
            index.add(position, node);
        }
        index
    }

    fn add(&mut self, position: usize, node: &NodeProto) {
        for output in node.output.iter().filter(|name| !name.is_empty()) {
            self.producer.insert(output.clone(), position);
            if super::is(node, "Constant") {
                self.constants.insert(output.clone(), position);
            }
        }
        for_each_read(node, &mut |name| {
            let readers = self.consumers.entry(name.to_owned()).or_default();
            if readers.last() != Some(&position) {
                readers.push(position);
            }
        });
    }

    /// Position of the node that makes a tensor.
    pub fn producer(&self, tensor: &str) -> Option<usize> {
        self.producer.get(tensor).copied()
    }

    /// Positions of the nodes that read a tensor, in order, each once.
    pub fn consumers(&self, tensor: &str) -> &[usize] {
        self.consumers.get(tensor).map_or(&[], Vec::as_slice)
    }

    /// Position of the initializer of a name. It may be overridden by an input of the same name.
    pub fn initializer(&self, tensor: &str) -> Option<usize> {
        self.initializers.get(tensor).copied()
    }

    /// The contents of a tensor that nothing can change: an initializer that is no input as well, or a Constant's value.
    pub fn constant<'g>(&self, graph: &'g GraphProto, tensor: &str) -> Option<&'g TensorProto> {
        if let Some(position) = self.initializer(tensor).filter(|_| !self.is_input(tensor)) {
            return graph.initializer.get(position);
        }
        let node = graph.node.get(*self.constants.get(tensor)?)?;
        super::attribute(node, "value").and_then(|a| a.t.as_ref())
    }

    /// A float initializer that one node alone reads: what can be changed for that node.
    pub fn own_floats<'g>(&self, graph: &'g GraphProto, tensor: &str) -> Option<&'g TensorProto> {
        let constant = self.constant(graph, tensor).filter(|t| data_type(t) == DataType::FLOAT)?;
        let alone = self.initializer(tensor).is_some() && self.only_consumer(tensor).is_some();
        alone.then_some(constant)
    }

    /// The sizes of a constant.
    pub fn constant_shape(&self, graph: &GraphProto, tensor: &str) -> Option<Vec<usize>> {
        shape(self.constant(graph, tensor)?).ok()
    }

    /// Returns whether the graph takes the tensor as an input.
    pub fn is_input(&self, tensor: &str) -> bool {
        self.inputs.contains_key(tensor)
    }

    /// Returns whether the graph gives the tensor as an output.
    pub fn is_output(&self, tensor: &str) -> bool {
        self.outputs.contains_key(tensor)
    }

    /// Returns whether a node reads a tensor, or the graph gives it.
    pub fn is_read(&self, tensor: &str) -> bool {
        !self.consumers(tensor).is_empty() || self.is_output(tensor)
    }

    /// The one node that reads a tensor, if there is one and the tensor is no output of the graph.
    pub fn only_consumer(&self, tensor: &str) -> Option<usize> {
        match self.consumers(tensor) {
            [one] if !self.is_output(tensor) => Some(*one),
            _ => None,
        }
    }
}

/// Every tensor name a node reads: its inputs, and what its subgraphs read from outside of themselves.
pub(crate) fn for_each_read(node: &NodeProto, visit: &mut dyn FnMut(&str)) {
    node.input.iter().filter(|name| !name.is_empty()).for_each(|name| visit(name));
    for graph in node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs)) {
        for_each_outer_read(graph, visit);
    }
}

fn for_each_outer_read(graph: &GraphProto, visit: &mut dyn FnMut(&str)) {
    let made = graph.node.iter().flat_map(|n| &n.output).map(String::as_str);
    let given = graph.input.iter().map(|v| v.name()).chain(graph.initializer.iter().map(|t| t.name()));
    let own: std::collections::HashSet<&str> = made.chain(given).collect();
    let mut outer = |name: &str| {
        if !own.contains(name) {
            visit(name);
        }
    };
    graph.node.iter().for_each(|node| for_each_read(node, &mut outer));
    graph.output.iter().for_each(|output| outer(output.name()));
}

#[cfg(test)]
mod tests {
    use kvant_container::onnx::{AttributeProto, DataType, MessageField, ValueInfoProto, tensor};

    use super::*;
    use crate::graph::node;

    fn value(name: &str) -> ValueInfoProto {
        ValueInfoProto { name: Some(name.to_owned()), ..ValueInfoProto::default() }
    }

    #[test]
    fn producers_consumers_and_constants_are_found() {
        let graph = GraphProto {
            node: vec![node("Mul", "m", &["x", "w"], &["h"]), node("Add", "a", &["h", "h"], &["y"])],
            initializer: vec![tensor("w", DataType::UINT8, &[], vec![1])],
            input: vec![value("x")],
            output: vec![value("y")],
            ..GraphProto::default()
        };
        let index = Index::new(&graph);
        assert_eq!((index.producer("h"), index.consumers("h"), index.only_consumer("h")), (Some(0), &[1][..], Some(1)));
        assert_eq!(index.constant(&graph, "w").map(|t| t.name()), Some("w"));
        assert!(index.is_input("x") && index.is_output("y") && index.only_consumer("y").is_none());
    }

    #[test]
    fn outer_names_read_by_a_subgraph_count_for_its_node() {
        let inner = GraphProto {
            node: vec![node("Add", "", &["outer", "own"], &["z"])],
            initializer: vec![tensor("own", DataType::UINT8, &[], vec![1])],
            output: vec![value("z")],
            ..GraphProto::default()
        };
        let mut branch = node("If", "if", &["condition"], &["y"]);
        branch.attribute.push(AttributeProto { g: MessageField::some(inner), ..AttributeProto::default() });
        let graph = GraphProto { node: vec![branch], ..GraphProto::default() };
        let index = Index::new(&graph);
        assert_eq!((index.consumers("outer"), index.consumers("own")), (&[0][..], &[][..]));
    }

    #[test]
    fn initializer_listed_as_input_is_not_constant() {
        let graph = GraphProto {
            initializer: vec![tensor("w", DataType::UINT8, &[], vec![1])],
            input: vec![value("w")],
            ..GraphProto::default()
        };
        assert!(Index::new(&graph).constant(&graph, "w").is_none());
    }
}
