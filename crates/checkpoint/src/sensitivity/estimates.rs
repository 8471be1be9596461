//! Divergences of single groups, estimated by the model's Fisher information: in three passes of the model instead of one for every option
//! of every group.

use super::error::MixError;
use super::group::{LayerGroup, projections};
use super::mixture::Mixture;
use super::option::MixOption;
use kvant_forward::evaluation::{BlockChanges, ModelStage, WeightChange, fisher_divergences, missing_gradient};
use kvant_forward::forward::WeightOverrides;
use kvant_forward::forward::ops::Ops;
use kvant_numeric::simd::Isa;
use std::ops::ControlFlow;

/// The seed of labels.
const SEED: u64 = 0x5eed;

/// Takes a group, its choice and the estimated divergence.
type Found<'f> = dyn FnMut(usize, usize, f64) -> Result<(), MixError> + Send + 'f;

/// Choices of groups of blocks, to be estimated.
pub struct Estimates<'m, 'a> {
    mixture: &'m Mixture<'a>,
    wanted: Vec<(usize, usize)>,
}

impl<'m, 'a> Estimates<'m, 'a> {
    /// Of these pairs of group and choice those that can be estimated: weights of blocks.
    pub fn new(mixture: &'m Mixture<'a>, pairs: &[(usize, usize)]) -> Estimates<'m, 'a> {
        let wanted = pairs.iter().copied().filter(|(group, _)| block(&mixture.groups()[*group]).is_some());
        Estimates { mixture, wanted: wanted.collect() }
    }

    /// Why the model or the options cannot be estimated; `None` if they can.
    pub fn obstacle(mixture: &Mixture<'_>) -> Option<String> {
        let changes_inputs = mixture.options().iter().find(|option| match option {
            MixOption::Scheme(_, named) => named.scheme.input.is_some(),
            MixOption::Float | MixOption::Type(_) => false,
        });
        match (missing_gradient(mixture.decoder), changes_inputs) {
            (Some(step), _) => Some(format!("gradients of {step} are not computed")),
            (None, Some(option)) => Some(format!("{} quantizes activations", option.name())),
            (None, None) => None,
        }
    }

    /// What is estimated.
    pub fn pairs(&self) -> &[(usize, usize)] {
        &self.wanted
    }

    /// Estimates all of them, from the last block to the first.
    ///
    /// # Errors
    /// Weights that cannot be rounded, sequences that predict nothing; a `watch` that breaks.
    pub fn estimate(
        &self,
        ops: &dyn Ops,
        sequences: &[Vec<u32>],
        memory: u64,
        found: &mut Found<'_>,
        watch: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), MixError> {
        let blocks = self.wanted.iter().filter_map(|(group, _)| block(&self.mixture.groups()[*group]));
        let Some(first) = blocks.min() else { return Ok(()) };
        let mut changes = MixChanges { estimates: self, found };
        fisher_divergences(self.mixture.decoder, ops, sequences, memory, (SEED, first), &mut changes, watch)
    }

    fn of_block(&self, index: usize) -> impl Iterator<Item = (usize, usize)> {
        self.wanted.iter().copied().filter(move |(group, _)| block(&self.mixture.groups()[*group]) == Some(index))
    }
}

fn block(group: &LayerGroup) -> Option<usize> {
    if let ModelStage::Block(block) = group.stage { Some(block) } else { None }
}

struct MixChanges<'e, 'm, 'a> {
    estimates: &'e Estimates<'m, 'a>,
    found: &'e mut Found<'e>,
}

impl BlockChanges for MixChanges<'_, '_, '_> {
    type Error = MixError;

    fn changes(&mut self, block: usize) -> Result<Vec<Vec<WeightChange>>, MixError> {
        let mixture = self.estimates.mixture;
        let layers = projections(mixture.decoder);
        let change = |(group, choice): (usize, usize)| {
            let mut rounded = WeightOverrides::default();
            mixture.add_to(group, choice, &mut rounded)?;
            let of_module = |module: &String| {
                let (layer, rounded) = (layers.get(module.as_str())?, rounded.weight(module)?);
                let mut values = rounded.all_values(Isa::best());
                let weight = mixture.decoder.weight(layer).all_values(Isa::best());
                values.iter_mut().zip(weight).for_each(|(value, weight)| *value -= weight);
                Some(WeightChange { module: module.clone(), outputs: layer.rows, inputs: layer.columns, values })
            };
            Ok(mixture.groups()[group].modules.iter().filter_map(of_module).collect())
        };
        self.estimates.of_block(block).map(change).collect()
    }

    fn found(&mut self, block: usize, divergences: Vec<f64>) -> Result<(), MixError> {
        let pairs = self.estimates.of_block(block).zip(divergences);
        pairs.into_iter().try_for_each(|((group, choice), kl)| (self.found)(group, choice, kl))
    }
}
