//! Links and layers that fewer calibration tokens reach than they have inputs: what a transform finds for them is kept only where it
//! loses less on sequences that are held out. Not the searches themselves, nor what rounding by columns does instead
//! (`codes.rs`).

use super::error::BlockwiseError;
use super::inputs::{Inputs, Keep};
use super::loss::COMPARABLE;
use super::run::Blockwise;
use super::target::ResolvedPair;
use super::trial::PairTrial;
use super::work::Work;
use crate::plan::LayerId;
use crate::plan::PlannedBlock;
use kvant_forward::forward::WeightOverrides;
use kvant_quant::transform::{ChannelStatistic, Transform};
use kvant_weights::weight::{ClippingThresholds, WeightTransform};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Messages about algorithms that have more parameters than the tokens support.
pub(super) fn scarce(tokens: u64, inputs: usize) -> Option<String> {
    (tokens < inputs as u64).then(|| format!("few calibration tokens ({tokens} for {inputs} inputs)"))
}

/// The reason that results from few tokens are not used, in words.
pub(super) const UNMEASURABLE: &str = "too few held out to measure by";
const STATIC: &str = "static scales of inputs need their extremes";

/// Statistics of the inputs that a smoothing pair scales.
pub(super) fn statistic(target: &ResolvedPair<'_>, inputs: &HashMap<String, Inputs>) -> Option<ChannelStatistic> {
    let mut all = target.sites().iter().filter_map(|site| inputs.get(site)).map(|inputs| inputs.statistic.clone());
    let mut first = all.next()?;
    all.for_each(|other| first.merge(&other));
    Some(first)
}

/// Returns whether a link scales more inputs than there are tokens.
fn is_scarce(target: &ResolvedPair<'_>, inputs: &HashMap<String, Inputs>) -> bool {
    statistic(target, inputs).is_some_and(|known| scarce(known.tokens(), known.channels()).is_some())
}

/// Whether this number of held-out rows shows that one loss is less than another: a loss over `n` rows is known to about one part
/// in the root of `n`.
pub(super) fn is_shown(less: f64, than: f64, rows: usize) -> bool {
    less < than * (1.0 - 1.0 / (rows as f64).sqrt())
}

/// The losses of a link without scales and with some.
pub(super) struct Comparison {
    pub(super) unscaled: f64,
    pub(super) scaled: f64,
}

impl<'a> Blockwise<'_, 'a> {
    /// The modules at which held-out data are observed to judge smoothing pairs that few calibration tokens reach.
    pub(super) fn scarce_sites(
        &self,
        block: &PlannedBlock,
        targets: &[ResolvedPair<'_>],
        inputs: &HashMap<String, Inputs>,
    ) -> BTreeMap<String, Keep> {
        let scarce = targets.iter().filter(|target| is_scarce(target, inputs));
        let sites = scarce.flat_map(|target| target.sites().iter().map(move |site| (target, site)));
        let keep = |target: &ResolvedPair<'_>, site: &str| match (
            target.inspects_attention(),
            self.held_out_rows(block, site),
        ) {
            (true, Keep::Rows(step)) => Keep::Sequences(step),
            (_, keep) => keep,
        };
        sites.map(|(target, site)| (site.clone(), keep(target, site))).collect()
    }

    /// The reason that scales from few tokens cannot be compared with no scaling, in words. Static scales of inputs are found
    /// from the same few tokens: how much of other text exceeds them depends on rare extremes, of which a few more held-out tokens
    /// show nothing.
    pub(super) fn incomparable(
        &self,
        target: &ResolvedPair<'_>,
        planned: &[LayerId],
        held_out: &HashMap<String, Inputs>,
    ) -> Option<&'static str> {
        let inputs = planned.iter().filter_map(|layer| self.plan.layer(*layer).scheme.input);
        let is_static = inputs.into_iter().any(|scheme| scheme.needs_calibration());
        let has_tokens = statistic(target, held_out).is_some_and(|known| known.tokens() >= COMPARABLE);
        match (is_static, has_tokens) {
            (true, _) => Some(STATIC),
            (false, false) => Some(UNMEASURABLE),
            (false, true) => None,
        }
    }

    /// The loss of a transform's scales over the inputs of a trial, compared with no scaling; an error says why they cannot be tried.
    pub(super) fn compare(
        &self,
        trial: &PairTrial<'_, '_, 'a>,
        transform: &dyn Transform,
        scales: &[f32],
    ) -> Result<Result<Comparison, String>, BlockwiseError> {
        self.engine.check_cancelled()?;
        let (measure, reference) = (transform.measure(), trial.reference());
        let unscaled = trial.loss(&vec![1.0; scales.len()], &reference, measure)?;
        let scaled = trial.loss(scales, &reference, measure)?;
        Ok(unscaled.and_then(|unscaled| Ok(Comparison { unscaled, scaled: scaled? })))
    }

    /// Whether what is held out shows that a layer that reads what `module` does, rounded to nearest, loses less with limits.
    pub(super) fn gains_by(
        &self,
        work: &Work<'_, '_, 'a>,
        module: &str,
        index: LayerId,
        limits: &ClippingThresholds,
    ) -> Result<bool, BlockwiseError> {
        let (layer, block) = (self.plan.layer(index), work.block.index);
        let folding = work.foldings.folding(&layer.module).unwrap_or_default();
        let folding = WeightTransform { limits: Some(limits.clone()), ..folding };
        let source = self.matrix(&WeightOverrides::default(), block, layer)?;
        let mut limited = work.float.clone();
        limited.set_weight(&layer.module, source.folded(Arc::new(folding)));
        let loss = |weights: &WeightOverrides<'a>| {
            let context = self.context(weights, block, index)?;
            let tensor = self.nearest(layer, &self.matrix(weights, block, layer)?, context)?;
            self.held_out_loss(work, module, index, &tensor)
        };
        let rows = work.held_out.get(module).map_or(0, |inputs| inputs.rows.len() / inputs.columns.max(1));
        Ok(match (loss(&limited)?, loss(&work.float)?) {
            (Some(limited), Some(unlimited)) => is_shown(limited, unlimited, rows),
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{is_shown, scarce};

    #[test]
    fn fewer_tokens_than_inputs_are_scarce() {
        assert_eq!(scarce(8, 9).unwrap(), "few calibration tokens (8 for 9 inputs)");
        assert_eq!(scarce(9, 9), None);
    }

    #[test]
    fn fewer_rows_require_a_larger_gain() {
        assert!(is_shown(0.74, 1.0, 16) && !is_shown(0.76, 1.0, 16));
        assert!(is_shown(0.98, 1.0, 10_000) && !is_shown(1.0, 1.0, 10_000));
        assert!(!is_shown(f64::NAN, 1.0, 100) && !is_shown(0.0, 0.0, 100) && !is_shown(0.1, 1.0, 0));
    }
}
