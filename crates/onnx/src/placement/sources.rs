//! Where the range of a tensor comes from, if it is not its own.

use std::collections::HashMap;

use kvant_container::onnx::{GraphProto, NodeProto};

use crate::graph::{Index, is};
use crate::kv_cache;

/// The tensors that are observed for the ranges of others.
pub(crate) struct RangeSources<'g> {
    graph: &'g GraphProto,
    pub(crate) index: Index,
    /// Tensors of cached values, with those that hold the new ones too.
    lengthened: HashMap<String, String>,
}

impl<'g> RangeSources<'g> {
    /// Of a graph.
    pub(crate) fn of(graph: &'g GraphProto) -> Self {
        let index = Index::new(graph);
        let lengthened = kv_cache::lengthened(graph, &index);
        Self { graph, index, lengthened }
    }

    /// The tensor that determines a tensor's range: a cached one is lengthened to it, and one that only Relu, Clip or the Min of a
    /// bound read needs codes for their output.
    pub(crate) fn observed(&self, tensor: &str) -> String {
        let behind = |tensor: &str, clamps: &dyn Fn(&NodeProto) -> bool| {
            let reader = self.index.only_consumer(tensor).map(|i| &self.graph.node[i]);
            reader.filter(|node| clamps(node)).and_then(|node| node.output.first()).cloned()
        };
        if let Some(whole) = self.lengthened.get(tensor) {
            return whole.clone();
        }
        let clamped = behind(tensor, &|node| is(node, "Relu") || is(node, "Clip"));
        let tensor = clamped.unwrap_or_else(|| tensor.to_owned());
        // Equalization leaves a bound for each channel behind a Relu.
        let constant = |name: &String| self.index.constant(self.graph, name).is_some();
        behind(&tensor, &|node| is(node, "Min") && node.input.iter().any(constant)).unwrap_or(tensor)
    }
}
