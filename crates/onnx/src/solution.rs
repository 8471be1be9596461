//! Scales and zero points of every quantized tensor of a graph: from observed ranges, weights and the placement.

use std::collections::BTreeMap;

use kvant_container::onnx::{GraphProto, Spill, TensorProto, shape, tensor_bytes};

use crate::element::Element;
use crate::error::QuantizeError;
use crate::graph::Index;
use crate::placement::{Placement, Weight};
use crate::quantization::{Affine, Range, WeightMethod, affine, weight_parameters};
use crate::recipe::{Align, TensorScheme};
use crate::writing::BlockMap;

/// Scale and zero point by tensor.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Solution {
    /// Of activations with one scale; those with a provider have the provider's.
    pub activations: BTreeMap<String, Affine>,
    /// Of activations with a scale for each channel.
    pub channels: BTreeMap<String, Vec<Affine>>,
    /// Of constants, one for each channel.
    pub weights: BTreeMap<String, Vec<Affine>>,
    /// The blocks of constants whose parameters are those of blocks, and the type of their codes.
    pub blocks: BTreeMap<String, (BlockMap, Element)>,
    /// Codes of constants that an algorithm chose; the others have the nearest.
    pub codes: BTreeMap<String, Vec<i32>>,
}

/// Ranges of activations by tensor, and of those of their channels that each have one.
#[derive(Debug, Clone, Default)]
pub struct Ranges {
    /// Of all values of a tensor.
    pub whole: BTreeMap<String, Range>,
    /// Of each channel.
    pub channels: BTreeMap<String, Vec<Range>>,
}

impl Weight {
    /// The way to this weight's codes.
    pub fn method(&self) -> WeightMethod {
        let TensorScheme { element, symmetric, scale, method, reduce_range, .. } = self.scheme;
        WeightMethod { element, symmetric, scale, method, reduce_range }
    }
}

/// The f32 values of a constant.
pub fn values(tensor: &TensorProto) -> Result<Vec<f32>, QuantizeError> {
    let bytes = tensor_bytes(tensor).map_err(QuantizeError::Model)?;
    Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

/// What a Gemm multiplies its product by over what it multiplies its bias by: codes of both are added.
pub fn unit(product: &kvant_container::onnx::NodeProto) -> f32 {
    let factor = |name: &str| crate::graph::float_attribute(product, name).filter(|&f| f != 0.0).unwrap_or(1.0).abs();
    if product.op_type() == "Gemm" { factor("alpha") / factor("beta") } else { 1.0 }
}

/// Solves for all tensors.
///
/// `ranges` holds what calibration observed; `spill` tells whether to go on. Errors: a tensor that must have a range and has
/// none, NaN in a weight.
pub fn solve(
    graph: &GraphProto,
    placement: &Placement,
    ranges: &Ranges,
    spill: Option<&Spill>,
) -> Result<Solution, QuantizeError> {
    let index = Index::new(graph);
    let mut solution = Solution::default();
    for (name, weight) in &placement.weights {
        spill.map_or(Ok(()), Spill::check)?;
        let Some(tensor) = index.constant(graph, name) else { continue };
        solution.weights.insert(name.clone(), solve_weight(name, tensor, weight)?);
    }
    for (name, activation) in placement.activations.iter().filter(|(_, a)| a.provider.is_none()) {
        let s = activation.scheme;
        let made = |range: Range| affine(range, s.element, s.symmetric, s.scale);
        if let Some(channels) = ranges.channels.get(name).filter(|_| activation.channels.is_some()) {
            solution.channels.insert(name.clone(), channels.iter().copied().map(made).collect());
            continue;
        }
        let observed = activation.range.or_else(|| ranges.whole.get(name).copied());
        let needed = s.element.is_integer() || s.element.is_float8();
        if needed && (observed.is_none() || activation.channels.is_some()) {
            return Err(QuantizeError::NoRange { tensor: name.clone() });
        }
        solution.activations.insert(name.clone(), made(observed.unwrap_or_default()));
    }
    solution.follow_providers(placement);
    Ok(solution)
}

/// Refuses a weight that holds what is no number.
pub(crate) fn refuse_nan(name: &str, values: &[f32]) -> Result<(), QuantizeError> {
    match values.iter().position(|value| value.is_nan()) {
        Some(position) => Err(QuantizeError::NotANumber { tensor: name.to_owned(), position }),
        None => Ok(()),
    }
}

fn solve_weight(name: &str, tensor: &TensorProto, weight: &Weight) -> Result<Vec<Affine>, QuantizeError> {
    let values = values(tensor)?;
    refuse_nan(name, &values)?;
    if let Some(range) = weight.range {
        let s = weight.scheme;
        return Ok(vec![affine(range, s.element, s.symmetric, s.scale)]);
    }
    let shape = shape(tensor).map_err(QuantizeError::Model)?;
    Ok(weight_parameters(&values, &shape, weight.axis, weight.method()))
}

/// How often larger a weight's scale may become for a bias. Beyond it the weight would lose more than the bias is worth.
const LARGEST_RAISE: f64 = 4.0;

/// What was done for biases that int32 cannot hold.
#[derive(Debug, Default)]
pub struct Room {
    /// The weights whose scale was raised.
    pub raised: Vec<String>,
    /// The biases that are better left in float.
    pub float: Vec<String>,
}

/// Bias codes beyond this are not representable in int32, with room for the rounding of the scale.
const LARGEST_BIAS_CODE: f64 = 2147483647.0 / 1.0001;

impl Solution {
    /// Raises the scales of weights so that every int32 bias has codes: where `s_input * s_weight` is so small that
    /// `bias / (s_input * s_weight)` leaves int32. The weight's codes are computed from the raised scale.
    pub fn make_room_for_biases(&mut self, graph: &GraphProto, placement: &Placement) -> Result<Room, QuantizeError> {
        let index = Index::new(graph);
        let (mut raised, mut float) = (Vec::new(), Vec::new());
        for (name, bias) in &placement.biases {
            let Some(tensor) = index.constant(graph, name) else { continue };
            let input =
                self.activations.get(&bias.input).or_else(|| self.weights.get(&bias.input).and_then(|w| w.first()));
            let (Some(input), values) = (input.map(|a| f64::from(a.scale)), values(tensor)?) else { continue };
            let unit = graph.node.get(bias.node).map_or(1.0, |node| f64::from(unit(node)));
            let Some(weights) = self.weights.get_mut(&bias.weight) else { continue };
            let one = weights.len() == 1;
            let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
            for (channel, weight) in weights.iter_mut().enumerate() {
                let bound = f64::from(if one { largest } else { values.get(channel).map_or(0.0, |v| v.abs()) });
                let least = bound / LARGEST_BIAS_CODE / (input * unit);
                if f64::from(weight.scale) * LARGEST_RAISE < least {
                    float.push(name.clone());
                } else if f64::from(weight.scale) < least {
                    weight.scale = least as f32;
                    raised.push(bias.weight.clone());
                }
            }
        }
        raised.dedup();
        Ok(Room { raised, float })
    }

    /// Makes the scales at joints equal: those of Concat and Pad the largest of inputs and output, so that nothing is cut; the
    /// output of pooling and Slice gets the input's. Where an NPU's positions are refined, that does more.
    pub fn align(&mut self, graph: &GraphProto, placement: &Placement, align: Align) {
        for node in &graph.node {
            let (wanted, widest) = match node.op_type() {
                "Concat" => (align.concat, true),
                "Pad" => (align.pad, true),
                "MaxPool" | "AveragePool" | "GlobalAveragePool" => (align.pool, false),
                "Slice" => (align.slice, false),
                _ => continue,
            };
            let tensors: Vec<&String> = node.input.iter().chain(&node.output).collect();
            let affines = || tensors.iter().filter_map(|name| self.activations.get(*name)).copied();
            let chosen = match widest {
                true => affines().reduce(|a, b| if b.scale > a.scale { b } else { a }),
                false => affines().next(),
            };
            // One zero point fits all only where it is the same for all.
            let alike = affines().all(|a| chosen.is_some_and(|c| c.zero_point == a.zero_point));
            let Some(affine) = chosen.filter(|_| wanted && (alike || !widest)) else { continue };
            tensors.iter().for_each(|name| self.set(placement, name, affine));
        }
        self.follow_providers(placement);
    }

    /// Sets the parameters of the tensor that a tensor has its own from.
    fn set(&mut self, placement: &Placement, name: &str, affine: Affine) {
        let provider = placement.activations.get(name).and_then(|a| a.provider.as_deref());
        if let Some(own) = self.activations.get_mut(provider.unwrap_or(name)) {
            *own = affine;
        }
    }

    /// Gives the tensors that share a scale the one of their provider.
    pub fn follow_providers(&mut self, placement: &Placement) {
        for (name, activation) in &placement.activations {
            let Some(provider) = &activation.provider else { continue };
            let found = self.activations.get(provider).or_else(|| self.weights.get(provider).and_then(|w| w.first()));
            if let Some(&affine) = found {
                self.activations.insert(name.clone(), affine);
            }
        }
    }
}
