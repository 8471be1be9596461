//! What is reported of a model that is prepared and solved.

use super::Prepared;
use crate::count::{ConstantBytes, Counts};
use crate::report::{Report, TensorReport};
use crate::solution::{Ranges, Solution};

impl Report {
    /// Of a solved model.
    pub fn new(prepared: &Prepared, solution: &Solution, ranges: &Ranges, samples: usize) -> Self {
        let placement = &prepared.placement;
        let activations = placement.activations.iter().map(|(name, a)| {
            let channels = solution.channels.get(name);
            let first = channels.and_then(|c| c.first()).or_else(|| solution.activations.get(name));
            TensorReport {
                name: name.clone(),
                role: "activation",
                element: a.scheme.element.to_string(),
                scale: first.map(|p| p.scale),
                zero_point: first.map(|p| p.zero_point),
                scales: channels.map_or(1, Vec::len),
                range: a.range.or_else(|| ranges.whole.get(name).copied()),
                method: None,
                shares: a.provider.clone(),
                histogram: None,
            }
        });
        let weights = placement.weights.iter().map(|(name, w)| {
            let parameters = solution.weights.get(name).map_or(&[][..], Vec::as_slice);
            TensorReport {
                name: name.clone(),
                role: "weight",
                element: w.scheme.element.to_string(),
                scale: parameters.first().map(|p| p.scale),
                zero_point: parameters.first().map(|p| p.zero_point),
                scales: parameters.len(),
                range: w.range,
                method: None,
                shares: None,
                histogram: None,
            }
        });
        let biases = placement.biases.iter().map(|(name, bias)| TensorReport {
            name: name.clone(),
            role: "bias",
            element: bias.element.to_string(),
            scale: None,
            zero_point: None,
            scales: 0,
            range: None,
            method: None,
            shares: None,
            histogram: None,
        });
        let skipped = placement.skipped.iter().map(|s| (s.node.clone(), s.reason.to_owned()));
        let passes = prepared.passes.iter().filter(|(_, count)| *count > 0);
        Self {
            counts: Counts::of(prepared),
            constants: ConstantBytes { source_bytes: prepared.source_bytes, output_bytes: 0 },
            samples,
            passes: passes.map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            algorithms: prepared.recipe.algorithms.iter().map(ToString::to_string).collect(),
            equalized: prepared.equalized.clone(),
            rotated: prepared.rotations.rotated.clone(),
            not_rotated: prepared.rotations.left.clone(),
            scaled_inputs: Vec::new(),
            not_scaled: Vec::new(),
            limited_weights: Vec::new(),
            gains: Vec::new(),
            learned_blocks: Vec::new(),
            not_learned: Vec::new(),
            left_in_float: skipped.collect(),
            adjusted: Vec::new(),
            wide_biases: Vec::new(),
            limited: Vec::new(),
            raised: Vec::new(),
            not_numbers: Vec::new(),
            saturation: None,
            tensors: activations.chain(weights).chain(biases).collect(),
        }
    }
}
