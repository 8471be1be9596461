//! Names that are not taken yet.

use std::collections::{HashMap, HashSet};

use kvant_container::onnx::GraphProto;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;

    #[test]
    fn fresh_names_skip_existing_numbers() {
        let graph = GraphProto { node: vec![node("Relu", "r", &["x"], &["x_2"])], ..GraphProto::default() };
        let mut names = Names::of(&graph);
        assert_eq!(["y", "x", "x", "y", "x"].map(|wanted| names.fresh(wanted)), ["y", "x_1", "x_3", "y_1", "x_4"]);
    }
}
