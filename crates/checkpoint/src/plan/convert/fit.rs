//! The action on a weight: codes in the target's form, or requantized values.

use super::coded::CodedLayer;
use super::{ACCEPT, SMALL_LOSS, Task, way_out};
use crate::plan::PackedUse;
use crate::plan::error::PlanError;
use crate::plan::quantization_config::can_say;
use crate::plan::recognised::Recognised;
use kvant_formats::transcode::{Loss, forms, loss_of_scales, nearest};
use kvant_model::network::Linear;
use kvant_numeric::simd::Isa;
use kvant_quant::scheme::LayerScheme;
use kvant_weights::parts::{Fused, Part};
use kvant_weights::weight::PackedMatrix;

/// The rounding of a weight.
pub(super) struct Fit {
    pub(super) scheme: LayerScheme,
    pub(super) packed_use: PackedUse,
    pub(super) loss: Option<Loss>,
}

/// A layer, and what becomes of its weight.
pub(super) struct Fitted {
    pub(super) layer: CodedLayer,
    pub(super) fit: Fit,
}

impl Recognised<'_> {
    /// A layer and what becomes of its weight by itself; `None` for one that stays as it is.
    pub(super) fn fit_linear(&self, task: &Task<'_, '_>, linear: &Linear) -> Result<Option<Fitted>, PlanError> {
        // A GGUF file has codes of what other layouts keep in floats, too.
        let is_kept = task.widens && linear.role.is_kept_by_default();
        if is_kept || !self.tensors[linear.weight].has_codes() {
            return Ok(None);
        }
        let (layer, matrix) = self.draft_of_codes(task, linear)?;
        let common = linear.siblings.and_then(|group| task.common.get(&group)).filter(|_| task.conversion.requantize);
        let fit = match common.filter(|common| task.defaults.scheme_of(matrix).as_ref() != Some(*common)) {
            Some(weight) => self.requantized(task, &layer, layer.scheme(*weight), None, None)?,
            None => self.fit(task, matrix, &layer, None)?,
        };
        Ok(Some(Fitted { layer, fit }))
    }

    /// The form in which the target holds a weight without loss; where loss is accepted, with as little as can be.
    pub(super) fn fit(
        &self,
        task: &Task<'_, '_>,
        matrix: &PackedMatrix<'_>,
        layer: &CodedLayer,
        fused: Option<Fused<'_>>,
    ) -> Result<Fit, PlanError> {
        let Some(stored) = task.defaults.scheme_of(matrix) else {
            let refusal = self.refusal(&layer.tensor, matrix.unlike(), way_out(task.conversion.requantize));
            return match matrix.like().filter(|_| task.conversion.requantize) {
                Some(weight) => self.requantized(task, layer, layer.scheme(weight), fused, Some(refusal)),
                None => Err(refusal),
            };
        };
        let (mut least, mut refused) = (None::<(LayerScheme, Loss)>, None);
        for weight in forms(stored) {
            let scheme = layer.scheme(weight);
            let parts = match self.held(task, layer, scheme, fused, matrix.groups().is_some()) {
                Ok(parts) => parts,
                Err(error) => {
                    refused.get_or_insert(error);
                    continue;
                }
            };
            match loss_of_scales(Isa::best(), matrix, &parts) {
                None => return Ok(Fit { scheme, packed_use: PackedUse::Codes, loss: None }),
                Some(loss) if least.as_ref().is_none_or(|(_, other)| loss.relative < other.relative) => {
                    least = Some((scheme, loss));
                }
                Some(_) => {}
            }
        }
        if task.conversion.requantize || least.is_some() {
            matrix.refuse_broken_scales(Isa::best(), &layer.tensor)?;
        }
        match (task.conversion.requantize, least) {
            (false, Some((_, loss))) => Err(self.refusal(&layer.tensor, loss.reason, ACCEPT)),
            (false, None) => Err(self.advised(refused.unwrap_or(PlanError::NotQuantized))),
            (true, Some((scheme, loss))) if loss.relative <= SMALL_LOSS => {
                Ok(Fit { scheme, packed_use: PackedUse::Codes, loss: Some(loss) })
            }
            (true, _) => {
                let refused = refused.map(|error| self.advised(error));
                self.requantized(task, layer, layer.scheme(stored), fused, refused)
            }
        }
    }

    /// A refusal with the advice that can be followed where the target holds no ordinary layers.
    fn advised(&self, error: PlanError) -> PlanError {
        match error {
            PlanError::Conversion { tensor, reason, .. } if self.format.capabilities().fused_experts_only => {
                self.refusal(&tensor, reason, "choose another format (`kvant list formats`)")
            }
            other => other,
        }
    }

    /// The nearest scheme to which values are requantized.
    fn requantized(
        &self,
        task: &Task<'_, '_>,
        layer: &CodedLayer,
        stored: LayerScheme,
        fused: Option<Fused<'_>>,
        refused: Option<PlanError>,
    ) -> Result<Fit, PlanError> {
        let holds = |scheme: &LayerScheme| self.holds(task, layer, *scheme, fused);
        let found = nearest(self.format, stored, |scheme| holds(&scheme));
        let as_reference =
            || task.reference.as_ref().map(|(_, reference)| layer.scheme(reference.weight)).filter(holds);
        let scheme = found.or_else(as_reference).ok_or_else(|| refused.unwrap_or(PlanError::NotQuantized))?;
        Ok(Fit { scheme, packed_use: PackedUse::Values, loss: None })
    }

    /// Returns whether the target holds a layer that is requantized to a scheme.
    pub(super) fn holds(
        &self,
        task: &Task<'_, '_>,
        layer: &CodedLayer,
        scheme: LayerScheme,
        fused: Option<Fused<'_>>,
    ) -> bool {
        let whole = scheme.weight.check_shape(layer.rows, layer.columns).is_ok();
        whole && self.held(task, layer, scheme, fused, false).is_ok()
    }

    /// The tensors of a layer under a scheme, if the target holds it.
    fn held(
        &self,
        task: &Task<'_, '_>,
        layer: &CodedLayer,
        scheme: LayerScheme,
        fused: Option<Fused<'_>>,
        act_order: bool,
    ) -> Result<Vec<Part>, PlanError> {
        let hint = way_out(task.conversion.requantize);
        if act_order && !self.format.capabilities().act_order {
            let reason = "its input channels are not grouped in storage order, and the layout has no group index";
            return Err(self.refusal(&layer.tensor, reason, hint));
        }
        let parts = self.parts(&layer.draft(scheme, PackedUse::Codes), fused, task.act_order);
        let layers = task.reference.iter().cloned().chain([(layer.name.clone(), scheme)]).collect::<Vec<_>>();
        let said = |parts| can_say(self.format, &self.recipe, &layers).map(|()| parts);
        // The problem's own hint is for quantizing: it names schemes, which a source has already.
        let error = |problem: kvant_weights::parts::CannotHold| self.refusal(&layer.tensor, problem.reason, hint);
        match parts {
            Ok(parts) => said(parts).map_err(error),
            Err(PlanError::CannotHold { problem, .. }) => Err(error(problem)),
            Err(other) => Err(other),
        }
    }
}
