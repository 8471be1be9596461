//! Names that are not taken yet.

use std::collections::HashSet;

use kvant_container::onnx::GraphProto;

/// The names of tensors and nodes in a graph and the graphs inside it.
#[derive(Debug, Clone, Default)]
pub struct Names {
    taken: HashSet<String>,
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
        let mut name = wanted.to_owned();
        let mut number = 1;
        while !self.taken.insert(name.clone()) {
            name = format!("{wanted}_{number}");
            number += 1;
        }
        name
    }
}
