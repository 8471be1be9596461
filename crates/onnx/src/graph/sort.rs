//! Nodes in an order in which each comes after those it reads from.

use std::collections::{BTreeSet, HashMap};

use kvant_container::onnx::GraphProto;

use super::GraphError;
use super::{Index, called};

/// Sorts the nodes of a graph (not those of its subgraphs). Among the nodes that could come next the earliest does, so a
/// sorted graph stays as it is.
///
/// # Errors
/// [`GraphError::Cycle`], for nodes that wait for each other.
pub fn sort(graph: &mut GraphProto) -> Result<(), GraphError> {
    let order = order(graph)?;
    let mut nodes: Vec<Option<_>> = std::mem::take(&mut graph.node).into_iter().map(Some).collect();
    graph.node = order.into_iter().filter_map(|i| nodes[i].take()).collect();
    Ok(())
}

/// The positions of the nodes in the order that [`sort`] gives them.
///
/// # Errors
/// As [`sort`].
pub fn order(graph: &GraphProto) -> Result<Vec<usize>, GraphError> {
    let index = Index::new(graph);
    let mut waits: Vec<usize> = vec![0; graph.node.len()];
    let mut followers: HashMap<usize, Vec<usize>> = HashMap::new();
    let made = graph.node.iter().enumerate().flat_map(|(i, n)| n.output.iter().map(move |name| (i, name)));
    for (maker, name) in made.filter(|(i, name)| index.producer(name) == Some(*i)) {
        for &reader in index.consumers(name) {
            waits[reader] += 1;
            followers.entry(maker).or_default().push(reader);
        }
    }
    let order = release(&mut waits, &followers);
    match waits.iter().position(|&n| n > 0) {
        Some(stuck) => Err(GraphError::Cycle(called(&graph.node[stuck]).to_owned())),
        None => Ok(order),
    }
}

fn release(waits: &mut [usize], followers: &HashMap<usize, Vec<usize>>) -> Vec<usize> {
    let mut ready: BTreeSet<usize> = (0..waits.len()).filter(|&i| waits[i] == 0).collect();
    let mut order = Vec::with_capacity(waits.len());
    while let Some(next) = ready.pop_first() {
        order.push(next);
        for &follower in followers.get(&next).into_iter().flatten() {
            waits[follower] -= 1;
            if waits[follower] == 0 {
                ready.insert(follower);
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;

    fn names(graph: &GraphProto) -> Vec<&str> {
        graph.node.iter().map(|n| n.name()).collect()
    }

    #[test]
    fn sort_puts_consumers_after_producers_and_is_stable() {
        let nodes = vec![
            node("Add", "c", &["a", "b"], &["c"]),
            node("Relu", "a", &["x"], &["a"]),
            node("Relu", "b", &["x"], &["b"]),
        ];
        let mut graph = GraphProto { node: nodes, ..GraphProto::default() };
        sort(&mut graph).unwrap();
        assert_eq!(names(&graph), ["a", "b", "c"]);
        let before = graph.clone();
        sort(&mut graph).unwrap();
        assert_eq!(graph, before);
    }

    #[test]
    fn sorting_a_cycle_is_an_error() {
        let nodes = vec![node("Add", "p", &["x", "b"], &["a"]), node("Relu", "q", &["a"], &["b"])];
        let mut graph = GraphProto { node: nodes, ..GraphProto::default() };
        assert_eq!(sort(&mut graph), Err(GraphError::Cycle("p".to_owned())));
        graph.node.iter_mut().for_each(|node| node.name = None);
        assert_eq!(
            sort(&mut graph),
            Err(GraphError::Cycle("a".to_owned())),
            "a node without a name is called by its output"
        );
    }
}
