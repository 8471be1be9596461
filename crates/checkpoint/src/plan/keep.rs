//! Tensors that are carried over, as they are or in floats, and those that have no successor.

use super::draft::{Draft, DroppedDraft, KeptDraft};
use super::error::PlanError;
use super::recognised::Recognised;
use super::{TensorAction, names};
use kvant_container::Dtype;
use kvant_model::family::Orientation;
use kvant_model::network::{Linear, Place};
use kvant_weights::parts::ScaleEncoding;

impl Recognised<'_> {
    /// A linear layer that stays as it is, or becomes bfloat16.
    pub(super) fn keep_linear(&self, linear: &Linear, reason: &'static str) -> Result<Vec<Draft>, PlanError> {
        let (module, role) = (Some(linear.module.clone()), Some(linear.role.name()));
        let (Some(scale), Some(scales)) = (self.scale_of(linear), self.scales(linear)?) else {
            return Ok(vec![Draft::Kept(KeptDraft { module, role, ..self.copy(linear.weight, reason) })]);
        };
        // A loader of the output has no use for fp8 weights with the source's scales.
        let shape = (linear.out_features, linear.in_features);
        let widened = KeptDraft {
            tensor: linear.weight,
            module,
            name: format!("{}.weight", self.output_name(&linear.module)),
            dtype: Dtype::BF16,
            shape: vec![shape.0, shape.1],
            action: TensorAction::Widen { dtype: self.source_type(linear.weight)?, shape, scales },
            reason,
            role,
        };
        let dropped = DroppedDraft { tensor: scale, reason: "scales of a weight that is widened to bf16" };
        Ok(vec![Draft::Kept(widened), Draft::Dropped(dropped)])
    }

    /// A tensor that stays as it is, or of whose codes the values stay.
    pub(super) fn copy(&self, tensor: usize, reason: &'static str) -> KeptDraft {
        let view = &self.tensors[tensor];
        let action = match view.packed() {
            None => TensorAction::Copy(0..view.byte_len() as usize),
            Some(_) => TensorAction::Dequantize { is_transposed: self.is_input_major(tensor), bytes: view.byte_len() },
        };
        KeptDraft {
            tensor,
            module: None,
            name: names::of_tensor(view.name(), |module| self.output_name(module)),
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            action,
            reason,
            role: None,
        }
    }

    /// All tensors with their plain floats in another type.
    pub(super) fn cast_all(&self, float: Dtype) -> Vec<Draft> {
        let all: Vec<usize> = (0..self.tensors.len()).collect();
        let cast = |draft: Draft| match draft {
            Draft::Kept(kept) if self.is_cast(kept.tensor, float) => {
                let view = &self.tensors[kept.tensor];
                let action = TensorAction::Cast { from: view.dtype(), bytes: view.byte_len() };
                Draft::Kept(KeptDraft { dtype: float, action, ..kept })
            }
            other => other,
        };
        self.keep_all(&all).into_iter().map(cast).collect()
    }

    /// Returns whether a tensor has plain floats of another type.
    pub(super) fn is_cast(&self, tensor: usize, float: Dtype) -> bool {
        let tensor = &self.tensors[tensor];
        tensor.packed().is_none() && tensor.dtype() != float && ScaleEncoding::of_float(tensor.dtype()).is_some()
    }

    /// Returns whether the matrices of a tensor stand as `[in, out]` in the float model.
    fn is_input_major(&self, position: usize) -> bool {
        let orientation = match self.network.places()[position] {
            Place::Linear(id, _) => self.network.linear(id).orientation,
            Place::Experts(id, _) => self.network.experts()[id.index()].orientation,
            _ => Orientation::OutIn,
        };
        orientation == Orientation::InOut
    }

    /// Tensors that have no other place are carried over as they are.
    pub(super) fn keep_all(&self, tensors: &[usize]) -> Vec<Draft> {
        let kept = |tensor: &usize| Draft::Kept(self.copy(*tensor, names::reason(self.network.places()[*tensor])));
        tensors.iter().map(kept).collect()
    }
}
