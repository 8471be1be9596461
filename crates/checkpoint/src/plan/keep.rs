//! Tensors that are carried over, as they are or in floats, and those that have no successor.

use super::build::Builder;
use super::error::PlanError;
use super::{DroppedTensor, KeptTensor, TensorAction, names};
use kvant_container::Dtype;
use kvant_model::family::Orientation;
use kvant_model::network::{Linear, Place};

impl Builder<'_> {
    pub(super) fn drop_tensor(&mut self, position: usize, reason: &'static str) {
        self.take(position);
        self.dropped.push(DroppedTensor { name: self.tensors[position].stored_name(), reason });
    }

    pub(super) fn keep_linear(&mut self, linear: &Linear, reason: &'static str) -> Result<(), PlanError> {
        self.excluded.push(linear.module.clone());
        let (Some(scale), Some(scales)) = (self.scale_of(linear), self.scales(linear)?) else {
            self.copy(linear.weight, reason);
            return Ok(());
        };
        // A loader of the output has no use for fp8 weights with the source's scales.
        let shape = (linear.out_features, linear.in_features);
        let dtype = self.source_type(linear.weight)?;
        let name = format!("{}.weight", self.output_name(&linear.module));
        let tensor = self.declare(name, Dtype::BF16, vec![shape.0, shape.1]);
        self.take(linear.weight);
        self.drop_tensor(scale, "scales of a weight that is widened to bf16");
        let weight = &self.tensors[linear.weight];
        let (source, position) = (weight.stored_name(), weight.position);
        self.kept.push(KeptTensor {
            source,
            position,
            tensor,
            treatment: TensorAction::Widen { dtype, shape, scales },
            reason,
        });
        Ok(())
    }

    pub(super) fn copy(&mut self, position: usize, reason: &'static str) {
        let view = self.tensors[position].clone();
        let name = names::of_tensor(view.name(), |module| self.output_name(module));
        let tensor = self.declare(name, view.dtype(), view.shape().to_vec());
        let treatment = match view.packed() {
            None => TensorAction::Copy(0..view.byte_len() as usize),
            Some(_) => TensorAction::Dequantize { input_major: self.is_input_major(position), bytes: view.byte_len() },
        };
        self.take(position);
        self.kept.push(KeptTensor { source: view.stored_name(), position: view.position, tensor, treatment, reason });
    }

    /// Whether the matrices of a tensor stand as `[in, out]` in the float model.
    fn is_input_major(&self, position: usize) -> bool {
        let orientation = match self.network.places()[position] {
            Place::Linear(id, _) => self.network.linear(id).orientation,
            Place::Experts(id, _) => self.network.experts()[id.index()].orientation,
            _ => Orientation::OutIn,
        };
        orientation == Orientation::InOut
    }

    /// Whatever has no place yet is carried over as it is.
    pub(super) fn keep_the_rest(&mut self) -> Result<(), PlanError> {
        for position in 0..self.tensors.len() {
            if !self.taken.contains(&position) {
                let reason = names::reason(self.network.places()[position]);
                self.copy(position, reason);
            }
        }
        Ok(())
    }
}
