//! Planning tensors that hold all experts of a block: one layer an expert, or one tensor of simulated values.

use super::build::{Builder, stored_type, values_type};
use super::error::PlanError;
use super::layer::LayerDraft;
use super::sites::Origin;
use super::source::SourceTensor;
use super::{KeptTensor, LayerOutput, Reuse, SourceStorage, SourceWeight, TensorAction};
use crate::recipe::Decision;
use kvant_container::Dtype;
use kvant_formats::format::OutputFormat;
use kvant_model::family::{Orientation, Role};
use kvant_model::network::{ExpertsStorage, FusedExperts, expert_module};
use kvant_numeric::kernel::Source;
use kvant_quant::scheme::LayerScheme;
use kvant_weights::parts::Fused;

impl Builder<'_> {
    pub(super) fn plan_experts(&mut self) -> Result<(), PlanError> {
        for experts in self.network.experts().to_vec() {
            let weight = match experts.storage {
                ExpertsStorage::Float { weight } => weight,
                ExpertsStorage::Mxfp4 { blocks, .. } => {
                    let first = self.tensors[blocks].name().to_owned();
                    return Err(PlanError::AlreadyQuantized { tensors: 2, first, method: Some("mxfp4".to_owned()) });
                }
            };
            let schemes: Vec<_> = (0..experts.experts).map(|expert| self.decide_expert(&experts, expert)).collect();
            match schemes.iter().find_map(|scheme| scheme.err()) {
                None => self.plan_fused(&experts, weight, &schemes)?,
                Some(reason) if self.keep_expert_codes(&experts, weight, reason)? => {}
                // The tensor is one: if one expert is kept, all are.
                Some(reason) => {
                    self.excluded.push(experts.module.clone());
                    self.copy(weight, reason);
                }
            }
        }
        Ok(())
    }

    /// The scheme of one expert: what is said of it, else what is said of the tensor of all.
    fn decide_expert(&self, experts: &FusedExperts, expert: usize) -> Result<LayerScheme, &'static str> {
        let own = expert_module(&experts.module, expert);
        let said_of_it = !matches!(self.recipe.decide(&own), Decision::Default(_));
        self.decide(if said_of_it { &own } else { &experts.module }, experts.kept)
    }

    fn plan_fused(
        &mut self,
        experts: &FusedExperts,
        weight: usize,
        schemes: &[Result<LayerScheme, &'static str>],
    ) -> Result<(), PlanError> {
        self.take(weight);
        let view = self.tensors[weight].clone();
        let dtype = self.source_type(weight)?;
        let stored = common_values_type(schemes, dtype);
        let mut shared = None;
        for (expert, scheme) in schemes.iter().enumerate() {
            let Ok(scheme) = *scheme else { continue };
            let origin = Origin::of_expert(experts, expert_module(&experts.module, expert));
            let layer = LayerDraft {
                name: self.output_name(&origin.module),
                module: origin.module.clone(),
                role: experts.role.name(),
                rows: experts.out_features,
                columns: experts.in_features,
                scheme,
                source: SourceWeight {
                    tensor: view.stored_name(),
                    position: view.position,
                    expert: Some(expert),
                    input_major: experts.orientation == Orientation::InOut && view.packed().is_none(),
                    dtype,
                    storage: expert_storage(&view, expert, Reuse::Values),
                },
                shares_scale: None,
                is_fused: matches!(experts.role, Role::Gate | Role::Up),
            };
            if self.format == OutputFormat::PlainFloats {
                self.add_fused_values(layer, stored, view.shape(), &mut shared);
            } else if self.format.capabilities().fused_experts_only {
                self.add_fused_parts(layer, experts, &mut shared)?;
            } else {
                self.add_layer(layer, &origin, Vec::new())?;
            }
        }
        let stays_whole = self.format == OutputFormat::PlainFloats || self.format.capabilities().fused_experts_only;
        if let (Some(bias), false) = (experts.bias, stays_whole) {
            self.split_bias(experts, bias);
        }
        Ok(())
    }

    /// The matrix of an expert inside the tensor of all.
    fn add_fused_values(&mut self, layer: LayerDraft, dtype: Dtype, shape: &[usize], shared: &mut Option<usize>) {
        if !self.check_layer(&layer) {
            return;
        }
        let tensor = *shared.get_or_insert_with(|| self.declare(layer.source.tensor.clone(), dtype, shape.to_vec()));
        let matrix = layer.rows * layer.columns * dtype.bitsize() / 8;
        let offset = (layer.source.expert.unwrap_or(0) * matrix) as u64;
        self.layers.push(layer.with_output(LayerOutput::Values { tensor, offset, dtype }));
    }

    /// The matrix of an expert inside tensors of all.
    pub(super) fn add_fused_parts(
        &mut self,
        layer: LayerDraft,
        experts: &FusedExperts,
        shared: &mut Option<usize>,
    ) -> Result<(), PlanError> {
        if !self.check_layer(&layer) {
            return Ok(());
        }
        let module = self.output_name(&experts.module);
        let parts = self.parts(&layer, Some(Fused { module: &module, count: experts.experts }))?;
        let first = *shared.get_or_insert_with(|| self.declare_all(&parts));
        let slice = (layer.source.expert.unwrap_or(0), experts.experts);
        self.layers.push(layer.with_output(LayerOutput::Parts { parts, first, slice }));
        Ok(())
    }

    /// The biases of experts that become linear layers of their own.
    pub(super) fn split_bias(&mut self, experts: &FusedExperts, bias: usize) {
        let view = self.tensors[bias].clone();
        let length = view.byte_len() as usize / experts.experts.max(1);
        for expert in 0..experts.experts {
            let module = self.output_name(&expert_module(&experts.module, expert));
            let tensor = self.declare(format!("{module}.bias"), view.dtype(), vec![experts.out_features]);
            let treatment = TensorAction::Copy(expert * length..(expert + 1) * length);
            self.kept.push(KeptTensor {
                source: view.stored_name(),
                position: view.position,
                tensor,
                treatment,
                reason: "bias",
            });
        }
        self.take(bias);
    }
}

/// How the matrix of an expert is stored.
pub(super) fn expert_storage(tensor: &SourceTensor<'_>, expert: usize, reuse: Reuse) -> SourceStorage {
    match tensor.packed().map(|matrices| matrices.get(expert).map_or(0, |matrix| matrix.stored_bytes())) {
        Some(bytes) => SourceStorage::Packed { reuse, bytes },
        None => SourceStorage::Plain,
    }
}

/// The type of a tensor that holds simulated values of all experts: the one that all their schemes ask for, else that of
/// the source.
fn common_values_type(schemes: &[Result<LayerScheme, &'static str>], source: Source) -> Dtype {
    let mut types = schemes.iter().flatten().map(|scheme| values_type(scheme.weight, source));
    let first = types.next();
    first.filter(|first| types.all(|other| other == *first)).unwrap_or_else(|| stored_type(source))
}
