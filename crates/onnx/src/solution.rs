//! Scales and zero points of every quantized tensor of a graph: from observed ranges, weights and the placement.

use std::collections::BTreeMap;

use kvant_container::onnx::{GraphProto, TensorProto, shape, tensor_bytes};

use crate::error::QuantizeError;
use crate::graph::Index;
use crate::placement::{Placement, Weight};
use crate::quantization::{Affine, Range, WeightMethod, affine, weight_parameters};
use crate::recipe::TensorScheme;

/// Scale and zero point by tensor.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Solution {
    /// Of activations; those with a provider have the provider's.
    pub activations: BTreeMap<String, Affine>,
    /// Of constants, one for each channel.
    pub weights: BTreeMap<String, Vec<Affine>>,
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

/// Solves for all tensors.
///
/// `ranges` holds what calibration observed. Errors: a tensor that must have a range and has none, NaN in a weight.
pub fn solve(
    graph: &GraphProto,
    placement: &Placement,
    ranges: &BTreeMap<String, Range>,
) -> Result<Solution, QuantizeError> {
    let index = Index::new(graph);
    let mut solution = Solution::default();
    for (name, weight) in &placement.weights {
        let Some(tensor) = index.constant(graph, name) else { continue };
        solution.weights.insert(name.clone(), solve_weight(name, tensor, weight)?);
    }
    for (name, activation) in placement.activations.iter().filter(|(_, a)| a.provider.is_none()) {
        let s = activation.scheme;
        let observed = activation.range.or_else(|| ranges.get(name).copied());
        let needed = s.element.is_integer() || s.element.is_float8();
        if needed && observed.is_none() {
            return Err(QuantizeError::NoRange { tensor: name.clone() });
        }
        let made = affine(observed.unwrap_or_default(), s.element, s.symmetric, s.scale);
        solution.activations.insert(name.clone(), made);
    }
    solution.follow_providers(placement);
    Ok(solution)
}

fn solve_weight(name: &str, tensor: &TensorProto, weight: &Weight) -> Result<Vec<Affine>, QuantizeError> {
    let values = values(tensor)?;
    if let Some(position) = values.iter().position(|v| v.is_nan()) {
        return Err(QuantizeError::NotANumber { tensor: name.to_owned(), position });
    }
    if let Some(range) = weight.range {
        let s = weight.scheme;
        return Ok(vec![affine(range, s.element, s.symmetric, s.scale)]);
    }
    let shape = shape(tensor).map_err(QuantizeError::Model)?;
    Ok(weight_parameters(&values, &shape, weight.axis, weight.method()))
}

impl Solution {
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
