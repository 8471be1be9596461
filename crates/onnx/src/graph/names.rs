//! Names that are not taken yet, and names of nodes that are taken twice.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use kvant_container::onnx::{GraphProto, NodeProto};

use super::{bodies_mut, for_each_node};

/// The names of tensors and nodes in a graph and the graphs inside it.
#[derive(Debug, Clone, Default)]
pub struct Names {
    taken: HashSet<String>,
    /// The last number behind each name that was wanted more than once: counting from 1 each time would be quadratic.
    numbers: HashMap<String, usize>,
}

impl Names {
    /// All names of a graph.
    pub fn of(graph: &GraphProto) -> Self {
        let mut names = Self::default();
        names.add(graph);
        names
    }

    fn add(&mut self, graph: &GraphProto) {
        let values = graph.input.iter().chain(&graph.output).chain(&graph.value_info).map(|v| v.name());
        let tensors = graph.initializer.iter().map(|t| t.name());
        let sparse = graph.sparse_initializer.iter().map(|t| t.values.name());
        self.taken.extend(values.chain(tensors).chain(sparse).map(str::to_owned));
        for node in &graph.node {
            self.taken.extend(node.output.iter().chain(&node.input).cloned());
            self.taken.extend(node.name.clone());
            node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs)).for_each(|g| self.add(g));
        }
    }

    /// `wanted`, or it with the smallest number behind it that makes it new. The result is taken from then on.
    pub fn fresh(&mut self, wanted: &str) -> String {
        if self.taken.insert(wanted.to_owned()) {
            return wanted.to_owned();
        }
        let number = self.numbers.entry(wanted.to_owned()).or_default();
        loop {
            *number += 1;
            let name = format!("{wanted}_{number}");
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }
}

/// The operator of each named node of a graph and the graphs inside it.
#[derive(Debug, Default)]
pub struct NodeNames(HashMap<String, String>);

impl NodeNames {
    /// Those of a graph before nodes are added.
    pub fn of(graph: &GraphProto) -> Self {
        let mut operators = HashMap::new();
        for_each_node(graph, &mut |node| {
            operators.entry(node.name().to_owned()).or_insert_with(|| node.op_type().to_owned());
        });
        Self(operators)
    }

    /// Gives nodes that have been added other names where there are nodes of their names: ONNX Runtime takes each once in a graph.
    /// Nodes of the graph as it was keep theirs.
    pub fn tell_apart(&self, graph: &mut GraphProto) {
        let mut names = Names::default();
        for_each_node(graph, &mut |node| {
            names.taken.insert(node.name().to_owned());
        });
        self.in_graph(graph, &mut names);
    }

    fn in_graph(&self, graph: &mut GraphProto, names: &mut Names) {
        let mut keepers: HashMap<String, usize> = HashMap::new();
        for (position, node) in graph.node.iter().enumerate() {
            match keepers.entry(node.name().to_owned()) {
                Entry::Vacant(vacant) => drop(vacant.insert(position)),
                Entry::Occupied(mut first) => {
                    if self.is_there(node) && !self.is_there(&graph.node[*first.get()]) {
                        first.insert(position);
                    }
                }
            }
        }
        for (position, node) in graph.node.iter_mut().enumerate() {
            if !node.name().is_empty() && keepers.get(node.name()) != Some(&position) {
                node.name = Some(names.fresh(node.name()));
            }
            bodies_mut(node).for_each(|body| self.in_graph(body, names));
        }
    }

    /// Returns whether the graph had such a node.
    fn is_there(&self, node: &NodeProto) -> bool {
        self.0.get(node.name()).is_some_and(|op_type| op_type == node.op_type())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;
    use crate::test_models::{branches, model};

    #[test]
    fn fresh_names_skip_existing_numbers() {
        let graph = GraphProto { node: vec![node("Relu", "r", &["x"], &["x_2"])], ..GraphProto::default() };
        let mut names = Names::of(&graph);
        assert_eq!(["y", "x", "x", "y", "x"].map(|wanted| names.fresh(wanted)), ["y", "x_1", "x_3", "y_1", "x_4"]);
    }

    #[test]
    fn added_nodes_are_told_apart_and_others_keep_their_names() {
        let relu = |name: &str| node("Relu", name, &["x"], &[&format!("{name} of x")]);
        let before = model(17, vec![relu("x_QuantizeLinear"), relu("r")], vec![], &["x"], &["y"]);
        let quantize = |output: &str| node("QuantizeLinear", "x_QuantizeLinear", &["x", "s"], &[output]);
        let unnamed = node("Relu", "", &["x"], &["z"]);
        let inner = |name: &str| GraphProto { node: vec![relu(name), relu(name)], ..GraphProto::default() };
        let mut graph = GraphProto::clone(&before.graph);
        graph.node.splice(0..0, [quantize("q"), quantize("p"), unnamed.clone(), unnamed]);
        graph.node.push(branches("c", "y", inner("r"), inner("t")));
        NodeNames::of(&before.graph).tell_apart(&mut graph);
        let mut names = Vec::new();
        for_each_node(&graph, &mut |node| names.push(node.name().to_owned()));
        let expected =
            ["x_QuantizeLinear_1", "x_QuantizeLinear_2", "", "", "x_QuantizeLinear", "r", "if", "r", "r_1", "t", "t_1"];
        assert_eq!(names, expected);
        let told = graph.clone();
        NodeNames::of(&before.graph).tell_apart(&mut graph);
        assert_eq!(graph, told);
    }
}
