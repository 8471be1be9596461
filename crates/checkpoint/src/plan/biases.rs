//! Biases of quantized layers that are quantized too.

use super::TensorAction;
use super::draft::{self, Draft, KeptDraft};
use super::error::PlanError;
use super::layer::LayerDraft;
use super::recognised::Recognised;
use kvant_model::network::LayerKind;
use kvant_quant::scheme::{Axis, Granularity, LayerScheme, TensorScheme};
use kvant_weights::parts::{CannotHold, LayerSpec};
use std::collections::HashMap;

const REASON: &str = "bias of a quantized layer";

/// The shape of a bias as a matrix: a row, or a column where each value has a scale.
pub(crate) fn bias_shape(scheme: TensorScheme, length: usize) -> (usize, usize) {
    let is_column = scheme.granularity() == Some(Granularity::Channel(Axis::Rows));
    if is_column { (length, 1) } else { (1, length) }
}

impl Recognised<'_> {
    /// The biases of drafted layers for which the recipe has a scheme. Those of experts in one tensor stay floats.
    pub(super) fn draft_biases(&self, drafts: &[Draft]) -> Result<Vec<Draft>, PlanError> {
        let biases = self.recipe.biases();
        if biases.is_empty() {
            return Ok(Vec::new());
        }
        let names: HashMap<&str, usize> =
            self.tensors.iter().enumerate().map(|(index, tensor)| (tensor.name(), index)).collect();
        let mut rounded = Vec::new();
        for drafted in draft::layers(drafts).filter(|drafted| drafted.layer.source.expert.is_none()) {
            let kind = self.kind_of(&drafted.layer.module);
            let bias = names.get(format!("{}.bias", drafted.layer.module).as_str());
            if let (Some(scheme), Some(bias)) = (biases.of_kind(kind), bias) {
                rounded.push(Draft::Kept(self.round_bias(&drafted.layer, *bias, scheme)?));
            }
        }
        if rounded.is_empty() {
            let scheme = biases.of_kind(LayerKind::Linear).map(|scheme| scheme.to_string()).unwrap_or_default();
            return Err(PlanError::NoBiases { scheme });
        }
        Ok(rounded)
    }

    fn kind_of(&self, module: &str) -> LayerKind {
        let shaped = self.shaped.iter().find(|layer| layer.module == module);
        shaped.map_or(LayerKind::Linear, |layer| layer.kind)
    }

    fn round_bias(&self, layer: &LayerDraft, bias: usize, scheme: TensorScheme) -> Result<KeptDraft, PlanError> {
        let tensor = &self.tensors[bias];
        let refused =
            |problem| PlanError::CannotHold { layer: tensor.name().to_owned(), scheme: scheme.to_string(), problem };
        let length: usize = tensor.shape().iter().product();
        if tensor.packed().is_some() || tensor.shape().len() != 1 || length == 0 {
            let problem = CannotHold::new("it is not a vector of floats", "leave ‹bias› out");
            return Err(refused(problem));
        }
        let from = self.source_type(bias)?;
        let (rows, columns) = bias_shape(scheme, length);
        let spec = LayerSpec {
            source: from,
            scheme: self.recipe.fitted(LayerScheme::weight_only(scheme)),
            ..LayerSpec::weight_only(&layer.name, (rows, columns), scheme, self.recipe.nibble_order())
        };
        let parts = self.format.bias_parts(&spec).map_err(refused)?;
        let action = TensorAction::Round { scheme: spec.scheme.weight, from, length, parts };
        Ok(KeptDraft { action, reason: REASON, ..self.copy(bias, REASON) })
    }
}
