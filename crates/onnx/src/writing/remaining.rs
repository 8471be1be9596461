//! What is left of the constants of a graph whose nodes will read others in their place: for the sizes of plans. Not what is made.

use kvant_container::onnx::{GraphProto, NodeProto};

use crate::count::{for_each_initializer, for_each_other_constant, size};
use crate::graph::{Index, bodies_mut};

/// The connections of a graph once `rewrite` has taken from each node the names that it will read no more.
pub fn read_without(graph: &GraphProto, rewrite: &mut dyn FnMut(&mut NodeProto)) -> Index {
    let (mut node, input, output) = (graph.node.clone(), graph.input.clone(), graph.output.clone());
    rewrite_all(&mut node, rewrite);
    Index::new(&GraphProto { node, input, output, ..GraphProto::default() })
}

fn rewrite_all(nodes: &mut [NodeProto], rewrite: &mut dyn FnMut(&mut NodeProto)) {
    for node in nodes {
        rewrite(node);
        bodies_mut(node).for_each(|body| rewrite_all(&mut body.node, rewrite));
    }
}

/// Bytes of the constants that are read then.
pub(super) fn constants_without(graph: &GraphProto, rewrite: &mut dyn FnMut(&mut NodeProto)) -> u64 {
    let index = read_without(graph, rewrite);
    let mut bytes = 0;
    for_each_initializer(graph, &mut |tensor| {
        if index.is_read(tensor.name()) || index.is_input(tensor.name()) {
            bytes += size(tensor);
        }
    });
    for_each_other_constant(graph, &mut |tensor| bytes += size(tensor));
    bytes
}
