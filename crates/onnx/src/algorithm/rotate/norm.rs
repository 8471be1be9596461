//! Normalizations of a graph, whole or in their parts: what commutes with a rotation of the channels, up to its gain and bias.

use std::collections::BTreeSet;

use kvant_container::onnx::NodeProto;

use super::view::View;
use crate::graph::{int_attribute, is_standard, positional_input};
use crate::pass::{Normalized, Pattern, quotient, square, sum, trailing};

/// A normalization over the last axis.
#[derive(Debug, Clone)]
pub(super) struct Norm {
    /// The normalized tensor.
    pub input: String,
    /// Its nodes.
    pub nodes: BTreeSet<usize>,
    /// Its output, with the gain and bias of its node.
    pub output: String,
    /// The node, where one operator does it all.
    pub whole: Option<usize>,
    /// Whether it subtracts the mean.
    pub centres: bool,
}

/// All of them, in the order of the graph.
pub(super) fn norms(view: &View<'_>) -> Vec<Norm> {
    let pattern = Pattern::new(view.graph);
    (0..view.graph.node.len()).filter_map(|at| whole(view, at).or_else(|| parts(view, &pattern, at))).collect()
}

/// Operators that normalize, and whether they subtract the mean. The third is ONNX Runtime's, which has it in the standard domain.
const WHOLE: &[(&str, bool)] =
    &[("LayerNormalization", true), ("RMSNormalization", false), ("SimplifiedLayerNormalization", false)];

fn whole(view: &View<'_>, position: usize) -> Option<Norm> {
    let node = view.node(position);
    let (_, centres) = *WHOLE.iter().find(|(name, _)| *name == node.op_type())?;
    let input = positional_input(node, 0)?;
    let rank = view.rank(input)? as i64;
    let last = int_attribute(node, "axis").is_none_or(|axis| axis == -1 || axis == rank - 1);
    let channels = view.dim(input, rank.checked_sub(1)? as usize)?;
    let constants = [1, 2].into_iter().filter_map(|at| positional_input(node, at));
    let vectors =
        positional_input(node, 1).is_some() && constants.into_iter().all(|name| view.is_vector(name, channels));
    // Means and deviations are those of the unrotated channels.
    let rest = node.output.get(1..).unwrap_or_default();
    let alone = rest.iter().all(|name| !view.index.is_read(name));
    let output = node.output.first()?.clone();
    let known = is_standard(node) || node.op_type() == "SimplifiedLayerNormalization";
    (known && last && vectors && alone).then(|| Norm {
        input: input.to_owned(),
        nodes: BTreeSet::from([position]),
        output,
        whole: Some(position),
        centres,
    })
}

/// The one whose quotient a node is.
fn parts(view: &View<'_>, pattern: &Pattern<'_>, position: usize) -> Option<Norm> {
    let node = view.node(position);
    let (input, centres) = match Normalized::around(node, pattern) {
        Some(found) => (found.input.to_owned(), is_last(view, found.input, &found.axes).then_some(true)?),
        None => (root_mean_square(view, pattern, node)?, false),
    };
    let output = node.output.first()?.clone();
    let nodes = between(view, &input, position)?;
    let inside = |at: &usize| {
        let outputs = || view.node(*at).output.iter();
        let read_inside = outputs().flat_map(|name| view.index.consumers(name)).all(|reader| nodes.contains(reader));
        *at == position || read_inside && outputs().all(|name| !view.index.is_output(name))
    };
    nodes.iter().all(inside).then_some(())?;
    Some(Norm { input, nodes: nodes.clone(), output, whole: None, centres })
}

/// `x / sqrt(mean(x^2) + epsilon)`: the name of `x`.
fn root_mean_square(view: &View<'_>, pattern: &Pattern<'_>, node: &NodeProto) -> Option<String> {
    let (dividend, divisor) = quotient(node, pattern)?;
    let (mean, _) = sum(pattern.maker(divisor, "Sqrt")?.input.first()?, pattern)?;
    let mean = pattern.maker(mean, "ReduceMean")?;
    let keeps = int_attribute(mean, "keepdims").unwrap_or(1) != 0;
    let axes = pattern.axes(mean)?;
    let right = square(mean.input.first()?, pattern)? == dividend && keeps && is_last(view, dividend, &axes);
    right.then(|| dividend.to_owned())
}

fn is_last(view: &View<'_>, tensor: &str, axes: &[i64]) -> bool {
    view.rank(tensor).is_some_and(|rank| trailing(axes, rank) == rank.checked_sub(1))
}

/// The nodes from a tensor to a node, both ends included; `None` where they are too many to be a normalization.
fn between(view: &View<'_>, input: &str, last: usize) -> Option<BTreeSet<usize>> {
    /// Those of a LayerNorm with its difference computed twice, and some.
    const MOST: usize = 12;
    let (mut nodes, mut open) = (BTreeSet::new(), vec![last]);
    while let Some(at) = open.pop() {
        nodes.insert(at);
        let makers = view.node(at).input.iter().filter(|name| *name != input);
        open.extend(makers.filter_map(|name| view.index.producer(name)).filter(|maker| !nodes.contains(maker)));
        if nodes.len() > MOST {
            return None;
        }
    }
    Some(nodes)
}
