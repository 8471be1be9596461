//! The gain and bias between a normalization and its layers, which are moved into those layers, so that nothing
//! is left that treats channels differently.

use super::lanes::{Slot, across};
use super::norm::Norm;
use super::view::View;
use crate::graph::{float_attribute, is, positional_input};

/// A layer that reads what a normalization makes.
#[derive(Debug, Clone)]
pub(super) struct Reader {
    /// The layer.
    pub node: usize,
    /// The gain on its way.
    pub gain: Option<String>,
    /// The bias on its way.
    pub bias: Option<String>,
}

/// All that reads a normalization.
#[derive(Debug, Default)]
pub(super) struct SharedInputGroup {
    pub layers: Vec<Reader>,
    /// Nodes of gains and biases, which go, each with the place of the input that stays.
    pub bypassed: Vec<(usize, usize)>,
}

/// A tensor on the way, and what was met before it.
struct Way {
    tensor: String,
    axis: usize,
    gain: Option<String>,
    bias: Option<String>,
}

/// Operators that change no value, or take means of several: a bias comes through as it is.
const MOVERS: &[&str] = &[
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "ReduceMean",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
];

/// The layers behind a normalization of so many channels.
///
/// # Errors
/// The node that reads it otherwise, in words.
pub(super) fn readers(view: &View<'_>, norm: &Norm, channels: usize) -> Result<SharedInputGroup, String> {
    let own = |at: usize| Some(positional_input(view.node(norm.whole?), at)?.to_owned());
    let axis = view.rank(&norm.input).unwrap_or(1).saturating_sub(1);
    let mut open = vec![Way { tensor: norm.output.clone(), axis, gain: own(1), bias: own(2) }];
    let mut found = SharedInputGroup::default();
    while let Some(way) = open.pop() {
        if view.index.is_output(&way.tensor) {
            return Err(format!("`{}`, which is normalized, is an output of the model", way.tensor));
        }
        for &reader in view.index.consumers(&way.tensor) {
            let next = follow(view, &way, reader, channels, &mut found);
            let why = || format!("the node {} reads normalized values, but is not a layer", view.called(reader));
            open.extend(next.ok_or_else(why)?);
        }
    }
    Ok(found)
}

/// Where the way goes on behind a node; nowhere behind a layer. `None` where the node is neither a layer nor passed.
fn follow(
    view: &View<'_>,
    way: &Way,
    reader: usize,
    channels: usize,
    found: &mut SharedInputGroup,
) -> Option<Vec<Way>> {
    let node = view.node(reader);
    if view.reads_sizes(reader) {
        return Some(Vec::new());
    }
    let at = node.input.iter().position(|name| *name == way.tensor)?;
    (node.input.iter().filter(|name| **name == way.tensor).count() == 1).then_some(())?;
    if view.layer(node).is_some() {
        // Behind a border of zeros a filter would meet no bias.
        let shifted = way.bias.is_some() && !bias_fits(view, reader);
        let fits = at == 0 && view.layer_axis(node, &way.tensor) == Some(way.axis) && !shifted;
        found.layers.push(Reader { node: reader, gain: way.gain.clone(), bias: way.bias.clone() });
        return fits.then(Vec::new);
    }
    let behind = |slot: usize, axis| {
        Some(Way { tensor: node.output.get(slot)?.clone(), axis, gain: way.gain.clone(), bias: way.bias.clone() })
    };
    let vector = node.input.get(1 - at.min(1)).filter(|name| view.is_vector(name, channels));
    let last = view.rank(&way.tensor) == Some(way.axis + 1);
    let flat = |name: &&String| view.rank(name) <= view.rank(&way.tensor);
    if let Some(vector) = vector.filter(flat).filter(|_| last && (is(node, "Mul") || is(node, "Add"))) {
        let mut next = behind(0, way.axis)?;
        let free = if is(node, "Mul") { next.gain.is_none() && next.bias.is_none() } else { next.bias.is_none() };
        let place = if is(node, "Mul") { &mut next.gain } else { &mut next.bias };
        *place = Some(vector.clone());
        found.bypassed.push((reader, at));
        return free.then(|| vec![next]);
    }
    MOVERS.contains(&node.op_type()).then_some(())?;
    let lanes = across(view, node, (Slot::Input(at), way.axis), channels)?;
    let outputs = lanes.into_iter().filter_map(|(slot, axis)| match slot {
        Slot::Output(slot) => Some(behind(slot, axis)),
        Slot::Input(_) => None,
    });
    outputs.collect()
}

/// Returns whether what a bias before a layer adds to its output can be added behind it.
fn bias_fits(view: &View<'_>, layer: usize) -> bool {
    let node = view.node(layer);
    let outputs = node.output.first().and_then(|name| view.dim(name, view.rank(name)?.checked_sub(1)?));
    let vector = |name: &str| outputs.is_some_and(|outputs| view.is_vector(name, outputs));
    let usable = float_attribute(node, "beta").is_none_or(|beta| beta != 0.0);
    (is(node, "MatMul") || is(node, "Gemm") && usable)
        && outputs.is_some()
        && positional_input(node, 2).is_none_or(vector)
}
