//! Mixes to measure: single groups in one of their options, or whole ones.

use super::error::MixError;
use super::mixture::Mixture;
use kvant_forward::evaluation::{Comparison, ModelStage, Variants, evaluate_variants};
use kvant_forward::forward::WeightOverrides;
use kvant_forward::forward::ops::Ops;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::ControlFlow;

/// A mix to measure: the groups that are not float, and their choices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Trial {
    changed: Vec<(usize, usize)>,
}

impl Trial {
    /// One group in one of its choices, all others in float.
    pub fn single(group: usize, choice: usize) -> Trial {
        Trial { changed: vec![(group, choice)] }
    }

    /// A choice for every group.
    pub fn whole(mixture: &Mixture<'_>, choices: &[usize]) -> Trial {
        let all = choices.iter().copied().enumerate();
        Trial { changed: all.filter(|(group, choice)| !mixture.is_float(*group, *choice)).collect() }
    }

    /// Whether nothing is quantized.
    pub fn is_float(&self) -> bool {
        self.changed.is_empty()
    }

    /// The first stage of the model that it changes.
    fn first(&self, mixture: &Mixture<'_>) -> ModelStage {
        let stages = self.changed.iter().map(|(group, _)| mixture.groups()[*group].stage);
        stages.min().unwrap_or(ModelStage::Head)
    }
}

/// Takes the index of a trial and its distance from the model.
type Found<'f> = dyn FnMut(usize, Comparison) -> Result<(), MixError> + Send + 'f;

/// Trials of a mixture.
pub struct Trials<'m, 'a> {
    mixture: &'m Mixture<'a>,
    trials: Vec<Trial>,
}

impl<'m, 'a> Trials<'m, 'a> {
    /// Some trials. Of one that is float nothing is measured.
    pub fn new(mixture: &'m Mixture<'a>, trials: Vec<Trial>) -> Trials<'m, 'a> {
        Trials { mixture, trials }
    }

    /// Measures all of them on sequences, each evaluated separately, in order of the first stage that they change; `found` receives the index of
    /// each with its distance from the model, and its error ends the run.
    ///
    /// # Errors
    /// Weights that cannot be rounded, sequences that predict nothing, likelihoods that are NaN; a `watch` that breaks.
    pub fn measure(
        &self,
        ops: &dyn Ops,
        sequences: &[Vec<u32>],
        memory: u64,
        found: &mut Found<'_>,
        watch: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), MixError> {
        let measured: Vec<usize> = (0..self.trials.len()).filter(|index| !self.trials[*index].is_float()).collect();
        if measured.is_empty() {
            return Ok(());
        }
        let first: Vec<ModelStage> = measured.iter().map(|index| self.trials[*index].first(self.mixture)).collect();
        let mut variants = MixVariants { trials: self, measured, rounded: HashMap::new(), stage: None, found };
        evaluate_variants(self.mixture.decoder, ops, sequences, memory, &first, &mut variants, watch)
    }
}

/// The trials as variants of the model.
struct MixVariants<'t, 'm, 'a> {
    trials: &'t Trials<'m, 'a>,
    /// The trials that are measured.
    measured: Vec<usize>,
    /// Weights of the stage, by group and choice.
    rounded: HashMap<(usize, usize), WeightOverrides<'a>>,
    stage: Option<ModelStage>,
    found: &'t mut dyn FnMut(usize, Comparison) -> Result<(), MixError>,
}

impl<'a> Variants<'a> for MixVariants<'_, '_, 'a> {
    type Error = MixError;

    fn weights(&mut self, stage: ModelStage, variant: usize) -> Result<Option<WeightOverrides<'a>>, MixError> {
        if self.stage != Some(stage) {
            self.rounded.clear();
            self.stage = Some(stage);
        }
        let mixture = self.trials.mixture;
        let is_in_use = |group: usize| {
            let group = &mixture.groups()[group];
            group.stage == stage || group.is_tied && stage == ModelStage::Head
        };
        let trial = &self.trials.trials[self.measured[variant]];
        let mut all = WeightOverrides::default();
        let mut is_changed = false;
        for (group, choice) in trial.changed.iter().copied().filter(|(group, _)| is_in_use(*group)) {
            let rounded = match self.rounded.entry((group, choice)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => {
                    let mut weights = WeightOverrides::default();
                    mixture.add_to(group, choice, &mut weights)?;
                    place.insert(weights)
                }
            };
            all.extend(rounded);
            is_changed = true;
        }
        Ok(is_changed.then_some(all))
    }

    fn found(&mut self, variant: usize, comparison: Comparison) -> Result<(), MixError> {
        (self.found)(self.measured[variant], comparison)
    }
}
