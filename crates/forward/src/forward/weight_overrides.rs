//! Replacements of a checkpoint's tensors in a pass: weights as they will be stored, with scales moved through the smoothing pairs
//! of a block, or both. The checkpoint itself is never changed.

use super::tensors::Vector;
use kvant_quant::activation::ActivationQuantizer;
use kvant_weights::weight::WeightMatrix;
use std::collections::HashMap;

/// Replacements of a checkpoint's tensors and input quantizers during a pass. Modules go by their full
/// names, those of single experts included; a tied head goes by the name of the embedding.
#[derive(Clone, Debug, Default)]
pub struct WeightOverrides<'a> {
    weights: HashMap<String, WeightMatrix<'a>>,
    biases: HashMap<String, Vec<f32>>,
    vectors: HashMap<Vector, Vec<f32>>,
    inputs: HashMap<String, ActivationQuantizer>,
}

impl<'a> WeightOverrides<'a> {
    /// The weight of a module, which must have the shape of the checkpoint's.
    pub fn set_weight(&mut self, module: &str, weight: WeightMatrix<'a>) {
        self.weights.insert(module.to_owned(), weight);
    }

    /// The bias of a module, whether the checkpoint has one or not: an element for every output feature.
    pub fn set_bias(&mut self, module: &str, bias: Vec<f32>) {
        self.biases.insert(module.to_owned(), bias);
    }

    /// A vector that belongs to no linear layer, such as the weight of a norm; as many elements as the checkpoint's.
    pub fn set_vector(&mut self, vector: &Vector, values: Vec<f32>) {
        self.vectors.insert(vector.clone(), values);
    }

    /// The quantizer of what a module reads.
    pub fn set_input(&mut self, module: &str, quantizer: ActivationQuantizer) {
        self.inputs.insert(module.to_owned(), quantizer);
    }

    /// Adds all replacements of another one, which win.
    pub fn extend(&mut self, other: &WeightOverrides<'a>) {
        let entries = other.weights.iter().map(|(module, weight)| (module.clone(), weight.clone()));
        self.weights.extend(entries);
        self.biases.extend(other.biases.iter().map(|(module, bias)| (module.clone(), bias.clone())));
        self.vectors.extend(other.vectors.iter().map(|(vector, values)| (vector.clone(), values.clone())));
        self.inputs.extend(other.inputs.iter().map(|(module, input)| (module.clone(), input.clone())));
    }

    /// The replacement of a module's weight.
    pub fn weight(&self, module: &str) -> Option<&WeightMatrix<'a>> {
        self.weights.get(module)
    }

    /// The bias of a module.
    pub fn bias(&self, module: &str) -> Option<&[f32]> {
        self.biases.get(module).map(Vec::as_slice)
    }

    /// The replacement of a vector.
    pub fn vector(&self, vector: &Vector) -> Option<&[f32]> {
        self.vectors.get(vector).map(Vec::as_slice)
    }

    /// The quantizer of what a module reads.
    pub fn input(&self, module: &str) -> Option<&ActivationQuantizer> {
        self.inputs.get(module)
    }
}
