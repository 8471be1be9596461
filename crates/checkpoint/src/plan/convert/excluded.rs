//! Layers of a quantized source that the recipe excludes while others are requantized: they keep their codes, in the form that
//! the output holds, or the plan is refused.

use super::{CommonSchemes, Fitted, SHOWN, StoredDefaults, Task, some_of};
use crate::plan::activation_points::is_static;
use crate::plan::decisions::{Decisions, EXCLUDED};
use crate::plan::draft::{Drafts, LostCodes};
use crate::plan::error::PlanError;
use crate::plan::recognised::Recognised;
use kvant_formats::format::OutputFormat;
use kvant_formats::import::Import;
use kvant_formats::transcode::{Conversion, ConversionTarget};
use kvant_model::network::{FusedExperts, Linear};

const STATIC: &str = "its activations have static scales, which are only kept where all layers are converted";

/// How excluded layers keep the codes that they have in the source, if any do.
pub(in crate::plan) struct ExcludedCodes<'c, 'a> {
    /// What a conversion to the output's layout would know.
    task: Option<Task<'c, 'a>>,
}

impl<'c, 'a> ExcludedCodes<'c, 'a> {
    /// Looks for excluded layers with codes. Plain floats have no place for them.
    pub(in crate::plan) fn of(decisions: &Decisions<'_, '_>, import: Option<&'c Import<'a>>) -> ExcludedCodes<'c, 'a> {
        ExcludedCodes {
            task: import.filter(|_| any_excluded(decisions)).and_then(|import| task(decisions.source, import)),
        }
    }

    /// Whether input channels of kept codes are grouped otherwise than as they stand: the layout says so of all layers.
    pub(in crate::plan) fn act_order(&self) -> bool {
        self.task.as_ref().is_some_and(|task| task.act_order)
    }

    /// A task for an excluded weight that has codes.
    fn task_for(&self, source: &Recognised<'_>, weight: usize, reason: &str) -> Option<&Task<'c, 'a>> {
        self.task.as_ref().filter(|_| reason == EXCLUDED && source.tensors[weight].has_codes())
    }

    /// A layer that keeps its codes, or loses them; `None` for a layer without codes.
    pub(in crate::plan) fn of_linear(
        &self,
        source: &Recognised<'_>,
        linear: &Linear,
        reason: &str,
    ) -> Result<Option<Drafts>, PlanError> {
        let Some(task) = self.task_for(source, linear.weight, reason) else { return Ok(None) };
        let lost = |reason: &str| Ok(Some(lose(source, linear.weight, reason)));
        match source.fit_linear(task, linear) {
            Ok(Some(Fitted { layer, .. })) if is_static(layer.input) || is_static(layer.output) => lost(STATIC),
            Ok(Some(fitted)) => {
                let kept_codes = vec![fitted.layer.name.clone()];
                Ok(Some(Drafts { kept_codes, ..source.convert_linear(task, linear, fitted)? }))
            }
            Ok(None) => Ok(None),
            Err(error) => lost(&reason_of(&error)),
        }
    }

    /// The same of all experts in one tensor.
    pub(in crate::plan) fn of_experts(
        &self,
        source: &Recognised<'_>,
        experts: &FusedExperts,
        weight: usize,
        reason: &str,
    ) -> Result<Option<Drafts>, PlanError> {
        let Some(task) = self.task_for(source, weight, reason) else { return Ok(None) };
        Ok(Some(match source.convert_experts(task, experts) {
            Ok(converted) => Drafts { kept_codes: vec![experts.module.clone()], ..converted },
            Err(error) => lose(source, weight, &reason_of(&error)),
        }))
    }
}

/// Returns whether any excluded weight has codes that the output could hold.
fn any_excluded(decisions: &Decisions<'_, '_>) -> bool {
    let Recognised { network, tensors, format, .. } = decisions.source;
    let mut linears = network.linears().iter();
    let mut experts = network.experts().iter();
    let is_linear = |linear: &Linear| {
        tensors[linear.weight].has_codes() && decisions.decide(&linear.module, linear.kept) == Err(EXCLUDED)
    };
    let is_experts = |experts: &FusedExperts| {
        experts.float_weight().is_some_and(|weight| tensors[weight].has_codes())
            && decisions.decide_experts(experts) == Err(EXCLUDED)
    };
    *format != OutputFormat::PlainFloats && (linears.any(is_linear) || experts.any(is_experts))
}

/// What a conversion of the source to the output's layout would know.
fn task<'c, 'a>(source: &Recognised<'_>, import: &'c Import<'a>) -> Option<Task<'c, 'a>> {
    let (defaults, format) = (StoredDefaults::of(&source.tensors)?, source.format.checkpoint()?);
    let max_shard_size = source.recipe.max_shard_size();
    let conversion = Conversion { target: ConversionTarget::Codes(format), requantize: false, max_shard_size };
    let act_order = defaults.act_order && source.format.capabilities().act_order;
    let common = CommonSchemes::new();
    Some(Task { import, defaults, common, reference: None, conversion, widens: false, act_order })
}

fn lose(source: &Recognised<'_>, weight: usize, reason: &str) -> Drafts {
    let lost = LostCodes { tensor: source.tensors[weight].name.clone(), reason: reason.to_owned() };
    Drafts { lost_codes: vec![lost], ..Drafts::default() }
}

impl Recognised<'_> {
    /// Refuses the plan where codes of excluded layers have no place, and says which are kept.
    pub(in crate::plan) fn settle_codes(&self, layers: &Drafts) -> Result<Option<String>, PlanError> {
        if let Some(LostCodes { reason, .. }) = layers.lost_codes.first() {
            let module =
                |LostCodes { tensor, .. }: &LostCodes| tensor.strip_suffix(".weight").unwrap_or(tensor).to_owned();
            return Err(PlanError::ExcludedCodes {
                layers: layers.lost_codes.iter().map(module).collect(),
                format: self.format.to_string(),
                reason: reason.clone(),
                formats: Vec::new(),
            });
        }
        if layers.kept_codes.is_empty() {
            return Ok(None);
        }
        let names: Vec<&str> = layers.kept_codes.iter().map(String::as_str).collect();
        let keep = if names.len() == 1 { "keeps the codes that it has" } else { "keep the codes that they have" };
        self.check_fused(&layers.drafts, true)?;
        Ok(Some(format!("{} {keep} in the source: excluded", some_of(&names, SHOWN))))
    }
}

/// The reason that a layer does not fit, without its name.
fn reason_of(error: &PlanError) -> String {
    match error {
        PlanError::Conversion { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}
