//! Layers of a quantized source that the recipe excludes while others are quantized anew: they keep their codes, in the form that
//! the output holds, or the plan is refused.

use super::{CommonSchemes, Fitted, Task, Usual, some_of};
use crate::plan::build::Builder;
use crate::plan::error::PlanError;
use kvant_formats::format::OutputFormat;
use kvant_formats::transcode::{Conversion, Target};
use kvant_model::network::{FusedExperts, Linear};
use kvant_quant::scheme::ActivationScheme;

const STATIC: &str = "its activations have static scales, which cannot be combined with newly calibrated ones";

const ALGORITHMS: &str = "algorithms choose the codes of all layers of a block";

impl Builder<'_> {
    /// Whether an excluded weight has codes in the source that plain floats would not have.
    fn has_codes_to_keep(&self, weight: usize, reason: &str) -> bool {
        reason == "excluded"
            && self.format != OutputFormat::PlainFloats
            && self.import.is_some()
            && self.tensors[weight].has_codes()
    }

    /// Keeps the codes of an excluded layer; false where it has none.
    pub(in crate::plan) fn keep_codes(&mut self, linear: &Linear, reason: &str) -> Result<bool, PlanError> {
        if !self.has_codes_to_keep(linear.weight, reason) {
            return Ok(false);
        }
        let fitted = self.with_task(|builder, task| builder.fit_linear(task, linear))?;
        match fitted {
            Ok(Some(Fitted { layer, .. })) if is_static(layer.scheme.input) || is_static(layer.scheme.output) => {
                self.lose(linear.weight, STATIC);
            }
            Ok(Some(_)) if !self.recipe.algorithms().is_plain() => self.lose(linear.weight, ALGORITHMS),
            Ok(Some(Fitted { layer, fit })) => {
                self.kept_codes.push(layer.name.clone());
                self.convert_linear(linear, layer, fit)?;
            }
            Ok(None) => return Ok(false),
            Err(error) => self.lose(linear.weight, &reason_of(&error)),
        }
        self.take(linear.weight);
        Ok(true)
    }

    /// The same of all experts in one tensor.
    pub(in crate::plan) fn keep_expert_codes(
        &mut self,
        experts: &FusedExperts,
        weight: usize,
        reason: &str,
    ) -> Result<bool, PlanError> {
        if !self.has_codes_to_keep(weight, reason) {
            return Ok(false);
        }
        if !self.recipe.algorithms().is_plain() {
            self.lose(weight, ALGORITHMS);
            self.take(weight);
            return Ok(true);
        }
        if let Err(error) = self.with_task(|builder, task| builder.convert_experts(task, experts))? {
            self.lose(weight, &reason_of(&error));
        }
        self.kept_codes.push(experts.module.clone());
        self.take(weight);
        Ok(true)
    }

    /// Does something with what a conversion to the output's layout would know.
    fn with_task<T>(
        &mut self,
        work: impl FnOnce(&mut Self, &Task<'_, '_>) -> Result<T, PlanError>,
    ) -> Result<Result<T, PlanError>, PlanError> {
        let (Some(import), Some(usual), Some(format)) =
            (self.import.take(), Usual::of(&self.tensors), self.format.checkpoint())
        else {
            return Err(PlanError::NotQuantized);
        };
        let (target, max_shard_size) = (Target::Codes(format), self.recipe.max_shard_size());
        let conversion = Conversion { target, requantize: false, max_shard_size };
        self.ordered |= usual.ordered && self.format.capabilities().act_order;
        let task =
            Task { import: &import, usual, common: CommonSchemes::new(), conversion: &conversion, widens: false };
        let done = work(self, &task);
        self.import = Some(import);
        Ok(done)
    }

    fn lose(&mut self, weight: usize, reason: &str) {
        self.lost_codes.push((self.tensors[weight].name.clone(), reason.to_owned()));
    }

    /// Refuses the plan where codes of excluded layers have no place, and says which are kept.
    pub(in crate::plan) fn settle_codes(&mut self) -> Result<(), PlanError> {
        if let Some((_, reason)) = self.lost_codes.first() {
            let layers =
                self.lost_codes.iter().map(|(name, _)| name.strip_suffix(".weight").unwrap_or(name).to_owned());
            let (layers, format) = (layers.collect(), self.format.to_string());
            return Err(PlanError::ExcludedCodes { layers, format, reason: reason.clone() });
        }
        if self.kept_codes.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = self.kept_codes.iter().map(String::as_str).collect();
        let keep = if names.len() == 1 { "keeps the codes that it has" } else { "keep the codes that they have" };
        let notice = format!("{} {keep} in the source: excluded", some_of(&names));
        self.notices.push(notice);
        self.check_fused(true)
    }
}

fn is_static(scheme: Option<ActivationScheme>) -> bool {
    scheme.is_some_and(|scheme| scheme.needs_calibration())
}

/// Why a layer does not fit, without its name.
fn reason_of(error: &PlanError) -> String {
    match error {
        PlanError::Conversion { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}
