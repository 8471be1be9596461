//! Which streams of a graph are rotated and by which matrix, before anything is changed.

use std::collections::HashSet;

use kvant_quant::rotation::Rotation;

use super::affine::{SharedInputGroup, readers};
use super::norm::{Norm, norms};
use super::stream::{Seed, Stream, by_input, grow};
use super::view::View;
use super::{LeftStream, RotateSettings};
use crate::graph::is;

/// A stream that is rotated.
pub(super) struct Planned {
    pub seed: Seed,
    pub stream: Stream,
    /// The readers of its normalizations.
    pub readers: Vec<SharedInputGroup>,
    /// The nodes that are whole normalizations.
    pub whole: Vec<usize>,
    pub rotation: Rotation,
    /// Whether the mean over the channels goes too.
    pub centred: bool,
}

/// All streams of a graph.
pub(super) fn plan(view: &View<'_>, settings: RotateSettings) -> (Vec<Planned>, Vec<LeftStream>) {
    let norms = norms(view);
    let (by_input, mut seen) = (by_input(&norms), HashSet::new());
    let (mut planned, mut left) = (Vec::new(), Vec::new());
    for seed in seeds(view, &norms, settings.heads) {
        if seen.contains(&(seed.channels, seed.tensor.clone())) {
            continue;
        }
        let stream = grow(view, &norms, &by_input, &seed);
        seen.extend(stream.tensors.keys().map(|tensor| (seed.channels, tensor.clone())));
        let number = (planned.len() + left.len()) as u64;
        let (channels, tensor, normalizations) = (seed.channels, seed.tensor.clone(), stream.norms.len());
        match one(view, &norms, seed, stream, u64::from(settings.seed) | number << 32) {
            Ok(stream) => planned.push(stream),
            Err(reason) => left.push(LeftStream { tensor, channels, normalizations, reason }),
        }
    }
    (planned, left)
}

/// What is normalized, and the values of attentions.
fn seeds(view: &View<'_>, norms: &[Norm], heads: bool) -> Vec<Seed> {
    let last = |tensor: &str| {
        let axis = view.rank(tensor)?.checked_sub(1)?;
        let channels = view.dim(tensor, axis).filter(|channels| *channels > 1)?;
        Some(Seed { tensor: tensor.to_owned(), axis, channels })
    };
    let attention = |at: usize| {
        let node = view.node(at);
        let [scores, values] = &node.input[..] else { return None };
        let softmax = view.index.producer(scores).is_some_and(|maker| is(view.node(maker), "Softmax"));
        (is(node, "MatMul") && softmax && !view.is_constant(values)).then(|| last(values)).flatten()
    };
    let normalized = norms.iter().filter_map(|norm| last(&norm.input));
    let values = (0..view.graph.node.len()).filter(|_| heads).filter_map(attention);
    normalized.chain(values).collect()
}

/// A stream with all that it takes to rotate it.
fn one(view: &View<'_>, norms: &[Norm], seed: Seed, stream: Stream, random: u64) -> Result<Planned, String> {
    if let Some(obstacle) = &stream.obstacle {
        return Err(obstacle.clone());
    }
    let of_stream = || stream.norms.iter().map(|&at| &norms[at]);
    let found: Vec<SharedInputGroup> =
        of_stream().map(|norm| readers(view, norm, seed.channels)).collect::<Result<_, _>>()?;
    let centres = of_stream().any(|norm| norm.centres);
    let rotation = match centres {
        true => Rotation::mean_keeping(seed.channels, random),
        false => Rotation::hadamard(seed.channels, random),
    };
    let rotation = rotation.ok_or_else(|| format!("no matrix for {} channels is at hand", seed.channels))?;
    let whole = of_stream().filter_map(|norm| norm.whole).collect();
    let centred = centres && !stream.mean_is_read;
    Ok(Planned { seed, stream, readers: found, whole, rotation, centred })
}
