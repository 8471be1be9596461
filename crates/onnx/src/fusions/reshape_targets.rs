//! Targets of Reshape that ONNX Runtime replaces by constants, so that it need not compute them from shapes: each Concat whose elements are numbers,
//! sizes that the data have at the same place, and at most one other, which follows from all others.

use std::collections::HashSet;

use kvant_container::onnx::{GraphProto, NodeProto};

use crate::graph::{Index, ints_attribute, is, positional_input};
use crate::shape::{Dim, Types};

/// From this opset on, ranks of what Reshape gives are known where its target is computed.
const INFERRED_SINCE: i64 = 13;

/// The nodes that nothing needs once these targets are constants.
pub(super) fn idle_nodes(graph: &GraphProto, types: &Types, opset: i64) -> HashSet<usize> {
    let targets = Targets { graph, types, opset, index: Index::new(graph) };
    let mut gone = HashSet::new();
    let mut open: Vec<usize> = graph.node.iter().filter_map(|node| targets.replaced(node)).collect();
    while let Some(position) = open.pop() {
        if gone.insert(position) {
            let inputs = graph.node[position].input.iter();
            open.extend(
                inputs.filter_map(|name| targets.index.producer(name)).filter(|&at| targets.is_idle(at, &gone)),
            );
        }
    }
    gone
}

struct Targets<'g> {
    graph: &'g GraphProto,
    types: &'g Types,
    opset: i64,
    index: Index,
}

impl Targets<'_> {
    fn maker(&self, tensor: &str) -> Option<&NodeProto> {
        self.index.producer(tensor).map(|at| &self.graph.node[at])
    }

    /// Returns whether all that reads a node is gone.
    fn is_idle(&self, position: usize, gone: &HashSet<usize>) -> bool {
        self.graph.node[position].output.iter().filter(|name| !name.is_empty()).all(|name| {
            !self.index.is_output(name) && self.index.consumers(name).iter().all(|reader| gone.contains(reader))
        })
    }

    /// The Concat that makes the target of a Reshape, where it becomes a constant.
    fn replaced(&self, reshape: &NodeProto) -> Option<usize> {
        let target = positional_input(reshape, 1).filter(|_| is(reshape, "Reshape"))?;
        let data = positional_input(reshape, 0)?;
        self.index.only_consumer(target)?;
        let position = self.index.producer(target).filter(|&at| is(&self.graph.node[at], "Concat"))?;
        let mut sizes: Vec<i64> = Vec::new();
        for part in &self.graph.node[position].input {
            match self.types.constant(part) {
                Some(constant) => sizes.extend(constant.as_integers()?),
                None if self.is_size_of_data(data, part, sizes.len()) => sizes.push(0),
                None if self.is_one_element(part) => sizes.push(-1),
                None => return None,
            }
        }
        (sizes.iter().filter(|&&size| size == -1).count() <= 1).then_some(position)
    }

    /// Returns whether a tensor is the size of the data at a place: Shape, Gather and Unsqueeze in a row, of the data or a tensor with that size.
    fn is_size_of_data(&self, data: &str, part: &str, place: usize) -> bool {
        let found = || {
            let unsqueeze =
                self.maker(part).filter(|node| is(node, "Unsqueeze") && self.axes(node) == Some(vec![0]))?;
            let gather = self.maker(unsqueeze.input.first()?).filter(|node| is(node, "Gather"))?;
            let at = self.types.constant(positional_input(gather, 1)?)?.as_integers()?;
            let shape = self.maker(gather.input.first()?).filter(|node| is(node, "Shape"))?;
            let source = shape.input.first()?;
            let is_same = || self.size(source, place).is_some_and(|size| Some(size) == self.size(data, place));
            Some(at == [place as i64] && (source == data || is_same()))
        };
        found().unwrap_or(false)
    }

    fn axes(&self, unsqueeze: &NodeProto) -> Option<Vec<i64>> {
        let stated = ints_attribute(unsqueeze, "axes").map(<[i64]>::to_vec);
        stated.or_else(|| self.types.constant(positional_input(unsqueeze, 1)?)?.as_integers())
    }

    /// The size of a tensor at a place, by number or name.
    fn size(&self, tensor: &str, place: usize) -> Option<&Dim> {
        self.types.get(tensor)?.shape.as_ref()?.get(place).filter(|size| **size != Dim::Unknown)
    }

    fn is_one_element(&self, tensor: &str) -> bool {
        self.types.known_shape(tensor).is_some_and(|shape| shape.iter().all(|&size| size == 1))
            && (self.opset >= INFERRED_SINCE || !self.is_behind_computed_reshape(tensor))
    }

    fn is_behind_computed_reshape(&self, tensor: &str) -> bool {
        let mut seen = HashSet::new();
        let mut open = vec![tensor];
        while let Some(tensor) = open.pop() {
            let Some(node) = self.maker(tensor) else { continue };
            let is_computed = |name: &str| self.types.constant(name).is_none();
            if is(node, "Reshape") && positional_input(node, 1).is_some_and(is_computed) {
                return true;
            }
            open.extend(node.input.iter().map(String::as_str).filter(|name| seen.insert(*name)));
        }
        false
    }
}
