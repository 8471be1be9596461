//! The scheme that layers get in common which engines make one of, where their codes in the source are of several kinds (mixes of
//! GGUF give values more bits than queries and keys), or where the target holds those of some alone. Of the first the widest counts; of the second one that keeps codes, if there is one.

use super::{Fit, Fitted, Task, way_out};
use crate::plan::PackedUse;
use crate::plan::draft::{self, Draft};
use crate::plan::error::PlanError;
use crate::plan::recognised::Recognised;
use crate::plan::source::SourceTensor;
use kvant_formats::loader_rules::LayerFacts;
use kvant_model::network::{Linear, Siblings, SiblingsId};
use kvant_quant::scheme::{IntScheme, LayerScheme, TensorScheme, ZeroPoint};
use kvant_weights::weight::PackedMatrix;
use std::collections::HashMap;

/// The schemes of groups whose layers differ.
pub(super) type CommonSchemes = HashMap<SiblingsId, TensorScheme>;

impl Recognised<'_> {
    /// The widest scheme of every group whose layers differ in what they are nearest to.
    pub(super) fn common_schemes(
        &self,
        nearest_to: impl Fn(&PackedMatrix<'_>) -> Option<TensorScheme>,
    ) -> CommonSchemes {
        let scheme = |tensor: &SourceTensor<'_>| match tensor.packed().filter(|_| tensor.has_codes()) {
            Some([matrix]) => nearest_to(matrix),
            _ => None,
        };
        let of_group = |group: &Siblings| -> Option<(SiblingsId, TensorScheme)> {
            let members = group.members.iter().map(|id| self.network.linear(*id));
            let id = self.network.linear(*group.members.first()?).siblings?;
            let schemes = members.map(|linear| scheme(&self.tensors[linear.weight])).collect::<Option<Vec<_>>>()?;
            let differ = schemes.windows(2).any(|pair| pair[0] != pair[1]);
            let widest = schemes.into_iter().max_by_key(|scheme| (scheme.format().bits(), has_zero_points(*scheme)))?;
            differ.then_some((id, widest))
        };
        self.network.siblings().iter().filter_map(of_group).collect()
    }

    /// How a weight of a scheme looks to engines.
    fn weight_facts(&self, weight: TensorScheme) -> LayerFacts {
        LayerFacts::of_scheme(LayerScheme::weight_only(weight)).stored_in(self.format)
    }

    /// Where loss is accepted: gives layers one scheme that engines make one of and that would end apart, as some keep their codes
    /// and the target does not hold those of others. `fitted` has all linear layers.
    pub(super) fn agree(&self, task: &Task<'_, '_>, fitted: &mut [Option<Fitted>]) {
        for group in self.network.siblings() {
            let members = group.members.iter().map(|id| fitted[id.index()].as_ref()).collect::<Option<Vec<_>>>();
            let Some(weight) = members.and_then(|members| self.agreed_scheme(task, members)) else { continue };
            for id in &group.members {
                let Some(Fitted { layer, fit }) = &mut fitted[id.index()] else { continue };
                if fit.scheme.weight != weight {
                    let scheme = layer.scheme(weight);
                    *fit = Fit { scheme, packed_use: PackedUse::Values, loss: None };
                }
            }
        }
    }

    /// What all of the layers can have, if they would end apart. A scheme in which codes are kept comes first.
    fn agreed_scheme(&self, task: &Task<'_, '_>, mut members: Vec<&Fitted>) -> Option<TensorScheme> {
        let facts = |member: &Fitted| self.weight_facts(member.fit.scheme.weight);
        if members.windows(2).all(|pair| facts(pair[0]) == facts(pair[1])) {
            return None;
        }
        members.sort_by_key(|member| member.fit.packed_use == PackedUse::Values);
        let holds = |Fitted { layer, .. }: &Fitted, weight| self.holds(task, layer, layer.scheme(weight), None);
        let all_hold = |weight: &TensorScheme| members.iter().all(|member| holds(member, *weight));
        members.iter().map(|member| member.fit.scheme.weight).find(all_hold)
    }

    /// Layers that engines make one of must be quantized alike: what verification asks of the output.
    pub(super) fn check_fused(&self, drafts: &[Draft], requantize: bool) -> Result<(), PlanError> {
        let planned: HashMap<usize, TensorScheme> =
            draft::layers(drafts).map(|drafted| (drafted.weight, drafted.layer.scheme.weight)).collect();
        let in_words = |linear: &Linear| {
            let weight = planned.get(&linear.weight);
            weight.map_or_else(|| "in floats".to_owned(), |weight| self.weight_facts(*weight).to_string())
        };
        for group in self.network.siblings() {
            let mut members = group.members.iter().map(|id| self.network.linear(*id));
            let Some(first) = members.next() else { continue };
            let Some(other) = members.find(|other| in_words(other) != in_words(first)) else { continue };
            let both = [in_words(other), in_words(first)];
            // Values that are floats have no kind of code in common with others.
            let hint = way_out(requantize || both.iter().any(|words| words == "in floats"));
            let reason =
                format!("it would be {}, and `{}`, which engines fuse with it, {}", both[0], first.module, both[1]);
            return Err(self.refusal(&self.tensors[other.weight].name, reason, hint));
        }
        Ok(())
    }
}

fn has_zero_points(scheme: TensorScheme) -> bool {
    matches!(scheme, TensorScheme::Int(IntScheme { zero_point, .. }) if zero_point != ZeroPoint::Zero)
}
