//! Nodes that no output of the graph depends on go, and with them initializers, types and annotations of tensors that are
//! not there any more.

use std::collections::HashSet;

use kvant_container::onnx::{GraphProto, ModelProto};

use super::{Context, PassError};
use crate::graph::{Edit, Index};

pub(super) fn run(model: &mut ModelProto, _: &Context<'_>) -> Result<usize, PassError> {
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let alive = alive(graph);
    let mut edit = Edit::default();
    (0..graph.node.len()).filter(|i| !alive.contains(i)).for_each(|i| edit.replace(i, Vec::new()));
    let nodes = edit.apply(graph);
    Ok(nodes + drop_initializers(graph))
}

/// The nodes that the outputs depend on.
fn alive(graph: &GraphProto) -> HashSet<usize> {
    let index = Index::new(graph);
    let mut inputs: Vec<Vec<usize>> = vec![Vec::new(); graph.node.len()];
    for (maker, node) in graph.node.iter().enumerate() {
        let readers = node.output.iter().flat_map(|name| index.consumers(name));
        readers.for_each(|&reader| inputs[reader].push(maker));
    }
    let mut waiting: Vec<usize> = graph.output.iter().filter_map(|output| index.producer(output.name())).collect();
    let mut alive = HashSet::new();
    while let Some(node) = waiting.pop() {
        if alive.insert(node) {
            waiting.extend(&inputs[node]);
        }
    }
    alive
}

/// Initializers that are inputs stay: they are part of how the model is called.
fn drop_initializers(graph: &mut GraphProto) -> usize {
    let index = Index::new(graph);
    let used = |name: &str| !index.consumers(name).is_empty() || index.is_output(name) || index.is_input(name);
    let before = graph.initializer.len();
    graph.initializer.retain(|tensor| used(tensor.name()));
    graph.sparse_initializer.retain(|tensor| used(tensor.values.name()));
    let made: HashSet<String> = graph.node.iter().flat_map(|node| node.output.iter().cloned()).collect();
    graph.value_info.retain(|value| made.contains(value.name()) || index.initializer(value.name()).is_some());
    before - graph.initializer.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;
    use crate::test_models::{floats, model, typed};

    #[test]
    fn nodes_not_reaching_an_output_are_removed() {
        let nodes = vec![
            node("Relu", "dead", &["x"], &["a"]),
            node("Add", "dead too", &["a", "w"], &["b"]),
            node("Relu", "alive", &["x"], &["y"]),
        ];
        let mut model = model(17, nodes, vec![floats("w", &[1], &[1.0])], &["x"], &["y"]);
        model.graph.as_mut().unwrap().value_info = vec![typed("a", &[1])];
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 3);
        assert_eq!(model.graph.node, [node("Relu", "alive", &["x"], &["y"])]);
        assert!(model.graph.initializer.is_empty() && model.graph.value_info.is_empty());
    }
}
