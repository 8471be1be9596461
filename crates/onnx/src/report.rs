//! What a run did, tensor by tensor: for people as a table, for machines as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::algorithm::{EqualizedPair, LayerGain, LeftStream, LimitedWeight, RotatedStream, ScaledInput};
use crate::calibration::Method;
use crate::count::{ConstantBytes, Counts, constants, size};
use crate::quantization::Range;
use crate::quantize::Prepared;
use crate::solution::{Ranges, Solution};
use crate::verify::Saturation;
use crate::writing::float16::Converted;

/// One quantized tensor.
#[derive(Debug, Clone, Serialize)]
pub struct TensorReport {
    /// Its name.
    pub name: String,
    /// `activation`, `weight` or `bias`.
    pub role: &'static str,
    /// The element type.
    #[serde(rename = "dtype")]
    pub element: String,
    /// The first scale.
    pub scale: Option<f32>,
    /// The first zero point.
    pub zero_point: Option<i64>,
    /// Number of scales; none of a bias, whose scales are those of its product.
    pub scales: usize,
    /// The range the scale was made from.
    pub range: Option<Range>,
    /// The calibration method that the range comes from, where it was to be found (`auto`).
    pub method: Option<&'static str>,
    /// The tensor it has its scale from.
    pub shares: Option<String>,
}

/// What a run did.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// How much is quantized.
    #[serde(flatten)]
    pub counts: Counts,
    /// Bytes of constants.
    pub constants: ConstantBytes,
    /// Samples that ranges come from.
    pub samples: usize,
    /// Rewrites by each pass that made any.
    pub passes: Vec<(String, usize)>,
    /// The algorithms that ran, in order.
    pub algorithms: Vec<String>,
    /// Pairs of layers that were equalized.
    pub equalized: Vec<EqualizedPair>,
    /// Streams of channels that were rotated.
    pub rotated: Vec<RotatedStream>,
    /// Streams of channels that could not be rotated, and why.
    pub not_rotated: Vec<LeftStream>,
    /// Tensors whose channels were scaled.
    pub scaled_inputs: Vec<ScaledInput>,
    /// Weights whose largest values an algorithm has cut off.
    pub limited_weights: Vec<LimitedWeight>,
    /// What algorithms gained for each layer whose codes or biases they chose.
    pub gains: Vec<LayerGain>,
    /// Tensors and nodes that are left in float, and why.
    pub left_in_float: Vec<(String, String)>,
    /// Tensors whose scale was changed for the hardware or for a bias.
    pub adjusted: Vec<String>,
    /// Biases with int16 codes because int32 codes with the scale of the product cannot hold them.
    pub wide_biases: Vec<String>,
    /// Constants of a model converted to 16 bits that had values beyond the type's range, and how many: they are limited.
    pub limited: Vec<(String, usize)>,
    /// Tensors in which the float model computed NaN on the calibration data. Their ranges are those of the other values.
    pub not_numbers: Vec<String>,
    /// Products whose sums can saturate on some processors.
    pub saturation: Option<Saturation>,
    /// Every quantized tensor.
    pub tensors: Vec<TensorReport>,
}

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
        });
        let skipped = placement.skipped.iter().map(|s| (s.node.clone(), s.reason.to_owned()));
        let passes = prepared.passes.iter().filter(|(_, count)| *count > 0);
        Self {
            counts: Counts::of(prepared),
            constants: ConstantBytes { source_bytes: constants(&prepared.model.graph, size), output_bytes: 0 },
            samples,
            passes: passes.map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            algorithms: prepared.recipe.algorithms.iter().map(ToString::to_string).collect(),
            equalized: prepared.equalized.clone(),
            rotated: prepared.rotations.rotated.clone(),
            not_rotated: prepared.rotations.left.clone(),
            scaled_inputs: prepared.scaled_inputs.clone(),
            limited_weights: prepared.limited_weights.clone(),
            gains: Vec::new(),
            left_in_float: skipped.collect(),
            adjusted: Vec::new(),
            wide_biases: Vec::new(),
            limited: Vec::new(),
            not_numbers: Vec::new(),
            saturation: None,
            tensors: activations.chain(weights).chain(biases).collect(),
        }
    }

    /// Takes in by which methods the ranges of activations were found.
    pub fn methods(&mut self, methods: &BTreeMap<String, Method>) {
        let activations =
            self.tensors.iter_mut().filter(|tensor| tensor.role == "activation" && tensor.shares.is_none());
        activations.for_each(|tensor| tensor.method = methods.get(&tensor.name).map(|method| method.row().name));
    }

    /// Takes in what a conversion to another float type did.
    pub fn converted(&mut self, done: Converted) {
        self.limited = done.limited.into_iter().collect();
    }
}
