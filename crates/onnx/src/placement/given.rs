//! Ranges of a file in place of those that data would show. The recipe decides which tensors have codes, of which types, and which have a
//! scale for each channel; the file decides ranges, and scales where its codes are those of the recipe.

use std::collections::BTreeSet;

use kvant_container::onnx::GraphProto;
use kvant_quant::glob::{Glob, nearest_names};

use super::fusion::clip_bounds;
use super::placed::{Activation, Placement, Skipped, Weight};
use super::sources::RangeSources;
use super::unmatched::Named;
use crate::error::QuantizeError;
use crate::graph::is;
use crate::masks::HUGE;
use crate::quantization::{Affine, Range};
use crate::ranges::{Codes, RangeTable, RangesFile, TensorRanges};
use crate::recipe::TensorScheme;

/// Why a tensor stays in float that a file says so of.
pub(crate) const FLOAT_IN_FILE: &str = "‹ranges› keeps it in float";

/// Gives tensors what a file has of them. Tensors that are floats there, and attention masks, stay in float.
pub(crate) fn give(placement: &mut Placement, graph: &GraphProto, file: &RangesFile) {
    let sources = RangeSources::of(graph);
    let mut floats = BTreeSet::new();
    let Placement { activations, weights, given, .. } = placement;
    for (name, activation) in activations.iter_mut().filter(|(_, a)| a.scheme.element.has_range()) {
        let Some(found) = of_tensor(&file.table, name, &sources.observed(name)) else { continue };
        let is_mask = found.whole().is_some_and(|range| -range.min >= HUGE || range.max >= HUGE);
        if found.is_float || is_mask {
            floats.insert(name.clone());
            continue;
        }
        if activation.provider.is_none() && !found.ranges.is_empty() {
            given.used += 1;
            give_activation(activation, found);
            let has_codes = found.codes.is_some() && activation.scheme.element.is_integer();
            if has_codes && activation.given.is_empty() {
                given.rescaled.push(name.clone());
            }
        }
    }
    for (name, weight) in weights.iter_mut() {
        let Some(codes) = file.table.get(name).and_then(|found| found.codes.as_ref()) else { continue };
        let channels = weight.axis.and_then(|axis| sources.index.constant(graph, name)?.dims.get(axis).copied());
        match give_weight(weight, codes, channels) {
            true => given.used += 1,
            false => given.unused.push(name.clone()),
        }
    }
    placement.remove(&floats);
    placement.skipped.extend(floats.into_iter().map(|node| Skipped { node, reason: FLOAT_IN_FILE }));
    keep_needed_clamps(placement, graph, &sources);
}

/// What a table has of a tensor, or of the one that its range comes from: whichever is narrower. Values that a Relu cuts off need no codes.
fn of_tensor<'t>(table: &'t RangeTable, name: &str, source: &str) -> Option<&'t TensorRanges> {
    let width = |found: &TensorRanges| found.whole().map_or(f32::INFINITY, |range| range.max - range.min);
    match (table.get(name), table.get(source)) {
        (Some(own), Some(source)) if !own.is_float && width(source) < width(own) => Some(source),
        (Some(own), _) => Some(own),
        (None, source) => source,
    }
}

fn give_activation(activation: &mut Activation, found: &TensorRanges) {
    let exact = found.codes.as_ref().and_then(|codes| exact(codes, &activation.scheme));
    let has_channels = activation.scheme.per_channel && found.ranges.len() > 1;
    match has_channels {
        // Their number is checked when the channels are known.
        true => {
            let of_ranges = || {
                let s = activation.scheme;
                let affine = |range: &Range| crate::quantization::affine(*range, s.element, s.symmetric, s.scale);
                found.ranges.iter().map(affine).collect()
            };
            activation.given = exact.unwrap_or_else(of_ranges);
        }
        false => {
            activation.range = found.whole();
            activation.given = exact.filter(|affines| affines.len() == 1).unwrap_or_default();
        }
    }
}

/// Gives a constant the scales of a file, if these are those of its codes. Otherwise its values tell its range.
fn give_weight(weight: &mut Weight, codes: &Codes, channels: Option<i64>) -> bool {
    let Some(affines) = exact(codes, &weight.scheme) else { return false };
    let is_alone = affines.len() == 1;
    if !is_alone && channels != i64::try_from(affines.len()).ok() {
        return false;
    }
    weight.axis = weight.axis.filter(|_| !is_alone || channels == Some(1));
    weight.given = affines;
    true
}

/// Scales and zero points for the codes of a scheme, if those of a file are the same numbers.
fn exact(codes: &Codes, scheme: &TensorScheme) -> Option<Vec<Affine>> {
    let int = scheme.element.int().filter(|int| int.bits() == codes.bits)?;
    let middle = 1_i64 << (codes.bits - 1);
    let shift = if int.is_signed() { middle } else { 0 };
    let is_of_scheme = |affine: &Affine| {
        let is_symmetric = affine.zero_point == middle;
        scheme.scale.apply(affine.scale) == affine.scale && (is_symmetric || !scheme.symmetric)
    };
    let all = codes.affines.iter().all(is_of_scheme);
    let of_type = |affine: &Affine| Affine { zero_point: affine.zero_point - shift, ..*affine };
    all.then(|| codes.affines.iter().map(of_type).collect())
}

/// Keeps Relu and Clip nodes whose place codes do not take, because a given range is wider than what they let through.
fn keep_needed_clamps(placement: &mut Placement, graph: &GraphProto, sources: &RangeSources<'_>) {
    let Placement { activations, dropped, .. } = placement;
    dropped.retain(|&at| {
        let node = &graph.node[at];
        let given = node.output.first().and_then(|output| activations.get(output)?.range);
        let bounds = match is(node, "Relu") {
            true => Some((0.0, f32::MAX)),
            false => clip_bounds(graph, &sources.index, node),
        };
        let (Some(range), Some((min, max))) = (given, bounds) else { return given.is_none() };
        // The ends of codes are rounded.
        let slack = (range.max - range.min) * 1e-6;
        range.min >= min - slack && range.max <= max + slack
    });
}

/// Joins ranges of the channels of tensors that turned out to have one scale.
///
/// # Errors
/// Ranges for another number of channels than a tensor has.
pub(crate) fn settle(placement: &mut Placement) -> Result<(), QuantizeError> {
    for (name, activation) in placement.activations.iter_mut().filter(|(_, a)| a.given.len() > 1) {
        let (found, element) = (activation.given.len(), activation.scheme.element);
        match activation.channels {
            Some(channels) if channels.number != found => {
                return Err(QuantizeError::RangesOfChannels { tensor: name.clone(), found, wanted: channels.number });
            }
            Some(_) => {}
            None => {
                let codes = Codes::of(element, &std::mem::take(&mut activation.given), None);
                activation.range = codes.and_then(|codes| codes.ranges().into_iter().reduce(Range::join));
            }
        }
    }
    Ok(())
}

/// A sentence on the names of a file that neither the source nor the simplified graph has.
///
/// # Errors
/// [`QuantizeError::IdleRanges`] if that is all of them.
pub(crate) fn unmatched(
    file: &RangesFile,
    source: &Named,
    simplified: &Named,
) -> Result<Option<String>, QuantizeError> {
    let is_known = |name: &str| source.has_tensor(name) || simplified.has_tensor(name);
    let unknown: Vec<&String> = file.table.keys().filter(|name| !is_known(name)).collect();
    let Some(first) = unknown.first() else { return Ok(None) };
    if unknown.len() == file.table.len() {
        let near = nearest_names(&Glob::literal(first), simplified.tensors());
        let some = || simplified.tensors().map(str::to_owned).collect();
        return Err(QuantizeError::IdleRanges {
            file: file.path.display().to_string(),
            found: unknown.into_iter().cloned().collect(),
            model: if near.is_empty() { some() } else { near },
        });
    }
    let (count, all, first) = (unknown.len(), file.table.len(), first.escape_debug());
    Ok(Some(format!("‹ranges›: {count} of its {all} tensors are none of the model, `{first}` for one")))
}
