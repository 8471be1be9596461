//! Changes to a graph, gathered while it is read and made at once.

use std::collections::{BTreeMap, HashMap};

use kvant_container::onnx::{GraphProto, NodeProto, TensorProto};

use super::names::Names;

/// Nodes replaced, initializers added and tensors renamed. While changes are gathered, the graph and its
/// [`Index`](super::Index) stay as they were.
#[derive(Debug, Default)]
pub struct Edit {
    nodes: BTreeMap<usize, Vec<NodeProto>>,
    initializers: Vec<TensorProto>,
    renamed: HashMap<String, String>,
    /// Names that are taken, once one was asked for.
    names: Option<Names>,
    rewrites: usize,
}

impl Edit {
    /// Returns whether none of these nodes is changed yet: what was read of them still holds.
    pub fn leaves(&self, positions: &[usize]) -> bool {
        positions.iter().all(|position| !self.nodes.contains_key(position))
    }

    /// A name that neither the graph nor this edit has: `wanted`, or it with a number behind.
    pub fn fresh(&mut self, graph: &GraphProto, wanted: &str) -> String {
        self.names.get_or_insert_with(|| Names::of(graph)).fresh(wanted)
    }

    /// Puts nodes in place of one. This counts as a rewrite.
    pub fn replace(&mut self, position: usize, nodes: Vec<NodeProto>) {
        self.rewrites += 1;
        self.nodes.insert(position, nodes);
    }

    /// Takes a node away, as part of a rewrite.
    pub fn remove(&mut self, position: usize) {
        self.nodes.insert(position, Vec::new());
    }

    /// Adds an initializer.
    pub fn add(&mut self, tensor: TensorProto) {
        self.initializers.push(tensor);
    }

    /// Lets everything that reads or makes a tensor read or make another. The graph's own inputs and outputs stay.
    pub fn rename(&mut self, from: &str, to: &str) {
        self.renamed.insert(from.to_owned(), to.to_owned());
    }

    /// Makes the changes; how many rewrites they were.
    pub fn apply(mut self, graph: &mut GraphProto) -> usize {
        let nodes = std::mem::take(&mut graph.node).into_iter().enumerate();
        graph.node = nodes.flat_map(|(i, node)| self.nodes.remove(&i).unwrap_or_else(|| vec![node])).collect();
        graph.initializer.append(&mut self.initializers);
        if !self.renamed.is_empty() {
            graph.node.iter_mut().for_each(|node| self.in_node(node));
        }
        self.rewrites
    }

    fn in_node(&self, node: &mut NodeProto) {
        node.input.iter_mut().chain(&mut node.output).for_each(|name| self.resolve(name));
        for graph in node.attribute.iter_mut().flat_map(|a| a.g.as_mut().into_iter().chain(&mut a.graphs)) {
            self.in_subgraph(graph);
        }
    }

    /// What a subgraph gives may be a tensor from around it.
    fn in_subgraph(&self, graph: &mut GraphProto) {
        graph.node.iter_mut().for_each(|node| self.in_node(node));
        for output in &mut graph.output {
            let mut name = output.name().to_owned();
            self.resolve(&mut name);
            output.name = Some(name);
        }
    }

    fn resolve(&self, name: &mut String) {
        // A chain is at most as long as there are entries; a longer one would be a circle.
        for _ in 0..self.renamed.len() {
            match self.renamed.get(name) {
                Some(next) => next.clone_into(name),
                None => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;

    #[test]
    fn edits_apply_together_and_follow_renames() {
        let chain = ["a", "b", "c", "d"].windows(2).map(|w| node("Identity", w[1], &[w[0]], &[w[1]]));
        let mut graph = GraphProto { node: chain.collect(), ..GraphProto::default() };
        let mut edit = Edit::default();
        edit.replace(0, vec![]);
        edit.rename("b", "a");
        edit.replace(1, vec![]);
        edit.rename("c", "b");
        assert!(!edit.leaves(&[2, 0]) && edit.leaves(&[2]));
        assert_eq!(edit.apply(&mut graph), 2);
        assert_eq!(graph.node, [node("Identity", "d", &["a"], &["d"])]);
    }
}
