//! The tensors that are linked by sums and by operators that mix no channels, and all that makes and reads them: what a rotation of
//! their channels goes into. A stream with a single node that needs the channels as they are, is left alone.

use std::collections::{BTreeMap, BTreeSet};

use super::lanes::{Lane, Slot, across};
use super::norm::Norm;
use super::view::View;
use crate::graph::{is, positional_input};

/// The position of a stream.
#[derive(Debug, Clone)]
pub(super) struct Seed {
    pub tensor: String,
    pub axis: usize,
    pub channels: usize,
}

/// A stream, whole or not.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// Its tensors, and the axis of the channels.
    pub tensors: BTreeMap<String, usize>,
    /// The constants that make it or read it: node, input, axis.
    pub constants: BTreeSet<(usize, usize, usize)>,
    /// The layers that read it without a normalization, by node.
    pub readers: BTreeSet<usize>,
    /// The normalizations that read it, by their place in the list.
    pub norms: BTreeSet<usize>,
    /// Whether something reads it that a change of the mean over the channels would change.
    pub mean_is_read: bool,
    /// The reason that it cannot be rotated.
    pub obstacle: Option<String>,
}

/// The places of normalizations by what they normalize.
pub(super) type ByInput<'a> = BTreeMap<&'a str, Vec<usize>>;

/// Those of a list.
pub(super) fn by_input(norms: &[Norm]) -> ByInput<'_> {
    norms.iter().enumerate().fold(BTreeMap::new(), |mut all: ByInput<'_>, (at, norm)| {
        all.entry(norm.input.as_str()).or_default().push(at);
        all
    })
}

/// Finds all of a stream.
pub(super) fn grow(view: &View<'_>, norms: &[Norm], by_input: &ByInput<'_>, seed: &Seed) -> Stream {
    let mut growth =
        Growth { view, norms, by_input, channels: seed.channels, open: Vec::new(), stream: Stream::default() };
    growth.open.push((seed.tensor.clone(), seed.axis));
    while let Some((tensor, axis)) = growth.open.pop() {
        growth.reach(tensor, axis);
    }
    growth.stream
}

struct Growth<'a> {
    view: &'a View<'a>,
    norms: &'a [Norm],
    by_input: &'a ByInput<'a>,
    channels: usize,
    open: Vec<(String, usize)>,
    stream: Stream,
}

impl Growth<'_> {
    fn block(&mut self, why: impl FnOnce() -> String) {
        self.stream.obstacle.get_or_insert_with(why);
    }

    fn reach(&mut self, tensor: String, axis: usize) {
        match self.stream.tensors.insert(tensor.clone(), axis) {
            Some(before) if before == axis => return,
            Some(_) => return self.block(|| format!("`{tensor}` would be rotated along two axes")),
            None => {}
        }
        let whole = |size: usize| size > 0 && size.is_multiple_of(self.channels);
        if !self.view.dim(&tensor, axis).is_some_and(whole) {
            return self.block(|| format!("the shape of `{tensor}` is not known"));
        }
        if self.view.index.is_output(&tensor) {
            self.block(|| format!("`{tensor}` is an output of the model"));
        }
        match self.view.index.producer(&tensor) {
            Some(maker) => self.made_by(maker, &tensor, axis),
            None => self.block(|| format!("`{tensor}` is an input of the model")),
        }
        for &reader in self.view.index.consumers(&tensor) {
            self.read_by(reader, &tensor, axis);
        }
    }

    fn made_by(&mut self, maker: usize, tensor: &str, axis: usize) {
        let node = self.view.node(maker);
        let Some(weight) = self.view.layer(node) else {
            let at = node.output.iter().position(|name| name == tensor).unwrap_or(0);
            if !self.pass(maker, (Slot::Output(at), axis)) {
                self.block(|| format!("the node {} makes its channels", self.view.called(maker)));
            }
            return;
        };
        if self.view.layer_axis(node, tensor) != Some(axis) {
            return self.block(|| format!("the node {} makes other channels", self.view.called(maker)));
        }
        self.stream.constants.insert((maker, 1, weight.outputs));
        let Some(bias) = positional_input(node, 2) else { return };
        match self.view.floats(bias).filter(|dims| dims.last().copied() == self.view.dim(tensor, axis)) {
            Some(dims) => drop(self.stream.constants.insert((maker, 2, dims.len() - 1))),
            None => self.block(|| format!("the bias of the node {} is not a vector", self.view.called(maker))),
        }
    }

    fn read_by(&mut self, reader: usize, tensor: &str, axis: usize) {
        let (view, norms) = (self.view, self.norms);
        let found = self.by_input.get(tensor).into_iter().flatten().find(|&&at| norms[at].nodes.contains(&reader));
        if let Some(&at) = found {
            return self.normalized(at, tensor, axis);
        }
        if view.reads_sizes(reader) {
            return;
        }
        let node = view.node(reader);
        if let Some(weight) = view.layer(node) {
            let data = node.input.iter().filter(|name| *name == tensor).count() == 1 && node.input[0] == tensor;
            if !data || view.layer_axis(node, tensor) != Some(axis) {
                return self.block(|| format!("the node {} reads other channels", view.called(reader)));
            }
            self.stream.mean_is_read = true;
            self.stream.readers.insert(reader);
            self.stream.constants.insert((reader, 1, weight.inputs));
            return;
        }
        let slots = node.input.iter().enumerate().filter(|(_, name)| *name == tensor).map(|(at, _)| Slot::Input(at));
        // What a graph inside of a node reads is no input of the node.
        let slots: Vec<Slot> = slots.collect();
        if slots.is_empty() || !slots.into_iter().all(|slot| self.pass(reader, (slot, axis))) {
            self.block(|| format!("the node {} reads its channels", view.called(reader)));
        }
    }

    fn normalized(&mut self, at: usize, tensor: &str, axis: usize) {
        let last = self.view.rank(tensor) == Some(axis + 1);
        if !last || self.view.dim(tensor, axis) != Some(self.channels) {
            return self.block(|| format!("`{tensor}` is normalized over other channels"));
        }
        self.stream.mean_is_read |= !self.norms[at].centres;
        self.stream.norms.insert(at);
    }

    /// Goes on with the other tensors of a node; whether it passes channels on.
    fn pass(&mut self, position: usize, known: Lane) -> bool {
        let node = self.view.node(position);
        let Some(lanes) = across(self.view, node, known, self.channels) else { return false };
        let name = |&(slot, _): &Lane| match slot {
            Slot::Output(at) => node.output.get(at).cloned(),
            Slot::Input(at) => node.input.get(at).cloned(),
        };
        let Some(names) = lanes.iter().map(name).collect::<Option<Vec<_>>>() else { return false };
        self.stream.mean_is_read |= is(node, "MatMul");
        for ((slot, axis), name) in lanes.into_iter().zip(names) {
            match slot {
                Slot::Input(at) if self.view.is_constant(&name) => self.constant(position, at, axis),
                _ => self.open.push((name, axis)),
            }
        }
        true
    }

    fn constant(&mut self, position: usize, at: usize, axis: usize) {
        let name = &self.view.node(position).input[at];
        let size = self.view.floats(name).and_then(|dims| dims.get(axis).copied());
        if size.is_some_and(|size| size > 0 && size.is_multiple_of(self.channels)) {
            self.stream.constants.insert((position, at, axis));
        } else {
            self.block(|| format!("the constant `{name}` has no floats for all channels"));
        }
    }
}
