//! Planning tensors that hold all experts of a block: one layer an expert, or one tensor of simulated values.

use super::activation_points::LayerOrigin;
use super::convert::ExcludedCodes;
use super::decisions::Decisions;
use super::draft::{Draft, Drafts, KeptDraft, OutputDraft, drafted};
use super::error::PlanError;
use super::layer::{LayerDraft, stored_type, values_type};
use super::recognised::Recognised;
use super::source::SourceTensor;
use super::{PackedUse, SourceStorage, SourceWeight, TensorAction};
use crate::recipe::RuleMatch;
use kvant_container::Dtype;
use kvant_formats::format::OutputFormat;
use kvant_model::family::{Orientation, Role};
use kvant_model::network::{ExpertsStorage, FusedExperts, expert_module};
use kvant_numeric::kernel::FloatDType;
use kvant_quant::scheme::LayerScheme;
use kvant_weights::parts::Fused;

impl Decisions<'_, '_> {
    pub(super) fn draft_experts(
        &self,
        experts: &FusedExperts,
        codes: &ExcludedCodes<'_, '_>,
    ) -> Result<Drafts, PlanError> {
        let weight = match experts.storage {
            ExpertsStorage::Float { weight } => weight,
            ExpertsStorage::Mxfp4 { blocks, .. } => {
                let first = self.source.tensors[blocks].name().to_owned();
                return Err(PlanError::AlreadyQuantized { tensors: 2, first, method: Some("mxfp4".to_owned()) });
            }
        };
        match self.decide_experts(experts) {
            Ok(schemes) => self.quantize_experts(experts, weight, &schemes, codes.act_order()),
            Err(reason) => match codes.of_experts(self.source, experts, weight, reason)? {
                Some(kept) => Ok(kept),
                // The tensor is one: if one expert is kept, all are.
                None => Ok(Drafts::from(vec![self.source.keep_experts(experts, weight, reason)])),
            },
        }
    }

    /// The schemes of all experts, or why they are kept.
    pub(super) fn decide_experts(&self, experts: &FusedExperts) -> Result<Vec<LayerScheme>, &'static str> {
        (0..experts.experts).map(|expert| self.decide_expert(experts, expert)).collect()
    }

    /// The scheme of one expert: what is said of it, else what is said of the tensor of all.
    fn decide_expert(&self, experts: &FusedExperts, expert: usize) -> Result<LayerScheme, &'static str> {
        let own = expert_module(&experts.module, expert);
        let said_of_it = !matches!(self.source.recipe.decide(&own), RuleMatch::Default(_));
        self.decide(if said_of_it { &own } else { &experts.module }, experts.kept)
    }

    fn quantize_experts(
        &self,
        experts: &FusedExperts,
        weight: usize,
        schemes: &[LayerScheme],
        act_order: bool,
    ) -> Result<Drafts, PlanError> {
        let source = self.source;
        let view = &source.tensors[weight];
        let stored = common_values_type(schemes, source.source_type(weight)?);
        let is_transposed = experts.orientation == Orientation::InOut && !view.has_codes();
        let draft = |(expert, scheme): (usize, &LayerScheme)| {
            let origin = LayerOrigin::of_expert(experts, expert_module(&experts.module, expert));
            let storage = expert_storage(view, expert, PackedUse::Values);
            let layer = LayerDraft {
                name: source.output_name(&origin.module),
                module: origin.module.clone(),
                role: experts.role.name(),
                rows: experts.out_features,
                columns: experts.in_features,
                scheme: *scheme,
                source: SourceWeight { expert: Some(expert), ..source.source_weight(weight, is_transposed, storage)? },
                shares_scale: None,
                fused_rows: matches!(experts.role, Role::Gate | Role::Up).then_some(experts.out_features),
            };
            if source.format == OutputFormat::PlainFloats {
                source.fused_values(weight, layer, stored)
            } else if source.format.capabilities().fused_experts_only {
                source.fused_parts(weight, layer, experts, act_order)
            } else {
                source.layer(weight, layer, &origin, act_order)
            }
        };
        let stays_whole = source.format == OutputFormat::PlainFloats || source.format.capabilities().fused_experts_only;
        let biases = experts.bias.filter(|_| !stays_whole).map(|bias| Ok(source.split_bias(experts, bias)));
        Drafts::join(schemes.iter().enumerate().map(draft).chain(biases))
    }
}

impl Recognised<'_> {
    /// All experts of a tensor as they are.
    pub(super) fn keep_experts(&self, experts: &FusedExperts, weight: usize, reason: &'static str) -> Draft {
        let (module, role) = (Some(experts.module.clone()), Some(experts.role.name()));
        Draft::Kept(KeptDraft { module, role, ..self.copy(weight, reason) })
    }

    /// The matrix of an expert inside the tensor of all.
    fn fused_values(&self, weight: usize, layer: LayerDraft, dtype: Dtype) -> Result<Drafts, PlanError> {
        drafted(weight, layer, |layer| {
            let matrix = layer.rows * layer.columns * dtype.bitsize() / 8;
            let offset = (layer.source.expert.unwrap_or(0) * matrix) as u64;
            let shape = self.tensors[weight].shape().to_vec();
            Ok((OutputDraft::Values { dtype, shape, offset }, Vec::new()))
        })
    }

    /// The matrix of an expert inside tensors of all.
    pub(super) fn fused_parts(
        &self,
        weight: usize,
        layer: LayerDraft,
        experts: &FusedExperts,
        act_order: bool,
    ) -> Result<Drafts, PlanError> {
        drafted(weight, layer, |layer| {
            let module = self.output_name(&experts.module);
            let parts = self.parts(layer, Some(Fused { module: &module, count: experts.experts }), act_order)?;
            let slice = (layer.source.expert.unwrap_or(0), experts.experts);
            Ok((OutputDraft::Parts { parts, slice }, Vec::new()))
        })
    }

    /// The biases of experts that become linear layers of their own.
    pub(super) fn split_bias(&self, experts: &FusedExperts, bias: usize) -> Drafts {
        let view = &self.tensors[bias];
        let length = view.byte_len() as usize / experts.experts.max(1);
        let of_expert = |expert: usize| {
            let module = self.output_name(&expert_module(&experts.module, expert));
            Draft::Kept(KeptDraft {
                tensor: bias,
                module: None,
                name: format!("{module}.bias"),
                dtype: view.dtype(),
                shape: vec![experts.out_features],
                action: TensorAction::Copy(expert * length..(expert + 1) * length),
                reason: "bias",
                role: None,
            })
        };
        Drafts::from(Vec::from_iter((0..experts.experts).map(of_expert)))
    }
}

/// How the matrix of an expert is stored.
pub(super) fn expert_storage(tensor: &SourceTensor<'_>, expert: usize, packed_use: PackedUse) -> SourceStorage {
    match tensor.packed().map(|matrices| matrices.get(expert).map_or(0, |matrix| matrix.stored_bytes())) {
        Some(bytes) => SourceStorage::Packed { packed_use, bytes },
        None => SourceStorage::Plain,
    }
}

/// The type of a tensor that holds simulated values of all experts: the one that all their schemes ask for, else that of
/// the source.
fn common_values_type(schemes: &[LayerScheme], source: FloatDType) -> Dtype {
    let mut types = schemes.iter().map(|scheme| values_type(scheme.weight, source));
    let first = types.next();
    first.filter(|first| types.all(|other| other == *first)).unwrap_or_else(|| stored_type(source))
}
