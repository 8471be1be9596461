//! The cache of keys and values in a decoder's graph: which output of a run is which input of the next, and where an input is
//! lengthened. Not how a decoder is run: that is `decoder`.

use std::collections::{BTreeSet, HashMap};

use kvant_container::onnx::{GraphProto, NodeProto};

use crate::graph::{Index, is};

/// Operators whose output has the values of their first input and no others.
const MOVES: &[&str] = &[
    "Cast",
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
];

/// Returns whether an input's name is that of cached keys or values: `past_key_values.0.key`, `past_key_values.0.decoder.value`,
/// `past_0`, `past_key_0`. Those of an encoder do not grow with the tokens.
pub(crate) fn is_past(name: &str) -> bool {
    name.starts_with("past")
        && !name.contains("encoder")
        && name.rsplit(['.', '_']).any(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The output that holds the values of a cache input together with those of the new tokens: `present.0.key` for
/// `past_key_values.0.key`.
pub(crate) fn present<'g>(graph: &'g GraphProto, past: &str) -> Option<&'g str> {
    let named = |from: &str, to: &str| {
        let wanted = format!("{to}{}", past.strip_prefix(from)?);
        graph.output.iter().map(|output| output.name()).find(|name| *name == wanted)
    };
    let names = [("past_key_values", "present"), ("past", "present")];
    names.iter().filter(|_| is_past(past)).find_map(|(from, to)| named(from, to))
}

/// Tensors that only hold cached values, each with the one that holds them and those of the new tokens. Samples begin with an
/// empty cache; what is cached later was new before, so that the range of the one is that of the other.
pub(crate) fn lengthened(graph: &GraphProto, index: &Index) -> HashMap<String, String> {
    let inputs = graph.input.iter().filter_map(|input| Some((input.name(), present(graph, input.name())?)));
    inputs.flat_map(|(past, present)| Cache { graph, index, present }.lengthened(past)).collect()
}

/// The cache that one output holds.
struct Cache<'g> {
    graph: &'g GraphProto,
    index: &'g Index,
    present: &'g str,
}

impl<'g> Cache<'g> {
    /// The input and what its values alone are moved to, each with the tensor that they are joined to.
    fn lengthened(&self, past: &'g str) -> Vec<(String, String)> {
        let held = self.reached(past, is_move);
        held.into_iter().map(|tensor| (tensor.to_owned(), self.joint(tensor).to_owned())).collect()
    }

    /// What the values of a tensor are joined with others to on their way to the output. Where they part, it is the output itself,
    /// which may hold keys beside values.
    fn joint(&self, tensor: &'g str) -> &'g str {
        let held = self.reached(tensor, is_move);
        let joins = held.into_iter().flat_map(|tensor| self.readers(tensor)).filter(|node| is(node, "Concat"));
        let joints: BTreeSet<&str> = joins.filter_map(|node| node.output.first()).map(String::as_str).collect();
        let is_kept = |node: &NodeProto, tensor: &str| is(node, "Concat") || is_move(node, tensor);
        let goes_on = |joint: &&str| self.reached(joint, is_kept).contains(&self.present);
        let mut joints = joints.into_iter().filter(|joint| goes_on(joint));
        match (joints.next(), joints.next()) {
            (Some(joint), None) => joint,
            _ => self.present,
        }
    }

    /// A tensor, and what is made of it by nodes that keep its values.
    fn reached(&self, tensor: &'g str, keeps: impl Fn(&NodeProto, &str) -> bool) -> Vec<&'g str> {
        let mut found = vec![tensor];
        let mut at = 0;
        while let Some(&tensor) = found.get(at) {
            let readers = self.readers(tensor).filter(|node| keeps(node, tensor));
            let made = readers.flat_map(|node| &node.output).map(String::as_str);
            let further: Vec<&str> = made.filter(|output| !found.contains(output)).collect();
            found.extend(further);
            at += 1;
        }
        found
    }

    fn readers(&self, tensor: &str) -> impl Iterator<Item = &'g NodeProto> {
        self.index.consumers(tensor).iter().map(|&position| &self.graph.node[position])
    }
}

/// Returns whether a node moves the values of a tensor.
fn is_move(node: &NodeProto, tensor: &str) -> bool {
    MOVES.iter().any(|op_type| is(node, op_type)) && node.input.first().is_some_and(|input| input == tensor)
}
