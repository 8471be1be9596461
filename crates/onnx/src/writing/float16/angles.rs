//! Angles that are computed from positions: `sin` and `cos` of integers times frequencies. 11 bits hold no position beyond 2048
//! and no angle to a useful digit, so that all between the integers and `sin` and `cos` stays in f32.

use std::collections::HashSet;

use kvant_container::onnx::{DataType, GraphProto};

use super::operators::makes_angles;
use crate::graph::{Index, is};

/// First outputs of the nodes of a graph that compute angles, `sin` and `cos` included.
pub fn angles(graph: &GraphProto, data_type: &dyn Fn(&str) -> Option<DataType>) -> HashSet<String> {
    let index = Index::new(graph);
    let ends = graph.node.iter().enumerate().filter(|(_, node)| is(node, "Sin") || is(node, "Cos"));
    let found = ends.filter_map(|(position, _)| sources(graph, &index, position, data_type)).flatten();
    found.filter_map(|position| graph.node[position].output.first().cloned()).collect()
}

/// The nodes that a node depends on down to casts of integers; `None` where it depends on other floats than constants.
fn sources(
    graph: &GraphProto,
    index: &Index,
    end: usize,
    data_type: &dyn Fn(&str) -> Option<DataType>,
) -> Option<HashSet<usize>> {
    let mut found = HashSet::from([end]);
    let mut waiting = vec![end];
    while let Some(position) = waiting.pop() {
        let node = &graph.node[position];
        if !makes_angles(node) {
            return None;
        }
        for name in node.input.iter().filter(|name| data_type(name) == Some(DataType::FLOAT)) {
            if index.constant(graph, name).is_some() {
                continue;
            }
            let producer = index.producer(name)?;
            if found.insert(producer) {
                waiting.push(producer);
            }
        }
    }
    Some(found)
}
