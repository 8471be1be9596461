//! Rounding the layers of a block, stage by stage: what a stage reads is computed from the stages that are rounded already.

use super::capture::{DistributionsTap, HessianTap, MeansTap, RowsTap};
use super::codes::Known;
use super::error::BlockwiseError;
use super::inputs::{Inputs, InputsTap};
use super::loss::Losses;
use super::report::LayerReport;
use super::run::Blockwise;
use super::scarcity::{UNMEASURABLE, scarce};
use super::work::Work;
use crate::engine::EngineError;
use crate::plan::{LayerId, PlannedLayer, PlannedStage};
use kvant_forward::forward::{ActivationHook, ForwardOptions, Routing, StopAt, WeightOverrides};
use kvant_model::family::Role;
use kvant_numeric::kernel::Range;
use kvant_quant::hessian::{Hessian, HessianError};
use kvant_quant::rounding::{AnyRounding, Needs, SharedInputs, TensorContext};
use kvant_weights::weight::WeightMatrix;
use std::collections::{BTreeMap, HashMap};

/// Layers that read the same rows: they share a Hessian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SharedInputGroup {
    /// The module whose input is observed.
    pub(super) module: String,
    /// Input features.
    pub(super) features: usize,
    /// The layers.
    pub(super) layers: Vec<LayerId>,
}

impl<'a> Blockwise<'_, 'a> {
    /// Rounds the layers of a block.
    pub(super) fn round(&self, work: &mut Work<'_, '_, 'a>) -> Result<(), BlockwiseError> {
        let block = work.block;
        for stages in block.stages.chunk_by(|a, b| a.depth == b.depth) {
            let readers: Vec<SharedInputGroup> = stages.iter().flat_map(|stage| self.readers(stage)).collect();
            match self.plan.recipe().algorithms().see_inputs() {
                false => readers.into_iter().try_for_each(|readers| self.round_readers(work, &readers, None))?,
                true => self.round_at(work, stages[0].depth, readers)?,
            }
        }
        Ok(())
    }

    /// Those of a stage: one group, or one for each expert.
    pub(super) fn readers(&self, stage: &PlannedStage) -> Vec<SharedInputGroup> {
        let mut groups: BTreeMap<Option<usize>, SharedInputGroup> = BTreeMap::new();
        for index in &stage.layers {
            let layer = self.plan.layer(*index);
            let readers = groups.entry(layer.source.expert).or_insert_with(|| SharedInputGroup {
                module: layer.module.clone(),
                features: layer.columns,
                layers: Vec::new(),
            });
            readers.layers.push(*index);
        }
        groups.into_values().collect()
    }

    /// Rounds the layers of one subset, as many groups at a time as there is memory for their Hessians.
    fn round_at(
        &self,
        work: &mut Work<'_, '_, 'a>,
        depth: StopAt,
        readers: Vec<SharedInputGroup>,
    ) -> Result<(), BlockwiseError> {
        let needs = self.rounding().needs();
        let mismatch = needs >= Needs::InputMismatch;
        let readers = self.routers_last(readers);
        let bytes = |readers: &SharedInputGroup| {
            let hessian = if needs == Needs::Nothing { 0 } else { Hessian::bytes(readers.features, mismatch) };
            hessian + self.held_out_bytes(readers.features)
        };
        for batch in batches(readers, self.memory, bytes) {
            let mut hessians = match mismatch {
                true => self.hessians_with_mismatch(work, depth, &batch)?,
                false => self.hessians(work, depth, &batch)?,
            };
            for readers in batch {
                let hessian = hessians.remove(&readers.module).unwrap_or_else(|| Hessian::new(readers.features));
                let inputs = (needs != Needs::Nothing).then(|| SharedInputs::new(hessian));
                self.round_readers(work, &readers, inputs)?;
            }
        }
        Ok(())
    }

    /// Rounded routers would send tokens elsewhere in the passes of later batches, so that memory decided on codes.
    fn routers_last(&self, mut readers: Vec<SharedInputGroup>) -> Vec<SharedInputGroup> {
        readers.sort_by_key(|readers| {
            let is_router = |layer: &LayerId| self.plan.layer(*layer).role == Role::Router.name();
            readers.layers.iter().any(is_router)
        });
        readers
    }

    fn hessians(
        &self,
        work: &mut Work<'_, '_, 'a>,
        depth: StopAt,
        batch: &[SharedInputGroup],
    ) -> Result<HashMap<String, Hessian>, BlockwiseError> {
        let summed = batch.iter().filter(|_| self.rounding().needs() != Needs::Nothing);
        let modules = summed.map(|readers| (readers.module.as_str(), readers.features));
        let tap = HessianTap::new(modules, self.precision());
        let means = self.means_tap(batch, &tap);
        let shown = Self::distributions_tap(work, batch, &means);
        let (until, next) = (Some(depth), self.room(work, depth)?);
        let variation =
            ForwardOptions { overlay: Some(&work.rounded), tap: Some(&shown), until, ..ForwardOptions::default() };
        for chunk in self.calibration() {
            self.runner.give(self.run_partial(work, variation, (0, chunk), next.as_ref())?);
        }
        let held_out = self.held_out_tap(work, batch);
        let variation = ForwardOptions { tap: Some(&held_out), ..variation };
        for chunk in self.held_out() {
            self.runner.give(self.run_partial(work, variation, (0, chunk), next.as_ref())?);
        }
        self.runner.rest();
        work.held_out.extend(held_out.into_inputs());
        work.distributions.extend(shown.into_distributions());
        work.means.extend(means.into_means());
        work.reach(next);
        Ok(tap.into_hessians())
    }

    /// Hessians and the mismatch with the inputs of the float model. Experts see the same rows in both.
    fn hessians_with_mismatch(
        &self,
        work: &mut Work<'_, '_, 'a>,
        depth: StopAt,
        batch: &[SharedInputGroup],
    ) -> Result<HashMap<String, Hessian>, BlockwiseError> {
        let modules = || batch.iter().map(|readers| readers.module.as_str());
        let (tap, float_tap) = (RowsTap::new(modules()), RowsTap::new(modules()));
        let means = self.means_tap(batch, &tap);
        let shown = Self::distributions_tap(work, batch, &means);
        let empty = |readers: &SharedInputGroup| Hessian::with_mismatch_in(readers.features, self.precision());
        let mut hessians: HashMap<String, Hessian> =
            batch.iter().map(|readers| (readers.module.clone(), empty(readers))).collect();
        let (until, next) = (Some(depth), self.room(work, depth)?);
        let held_out = self.held_out_tap(work, batch);
        for chunk in 0..self.chunks.len() {
            let (routing, overlay) = (Routing::record(), Some(&work.rounded));
            let is_seen = self.calibration().contains(&chunk);
            let looks: &dyn ActivationHook = if is_seen { &shown } else { &held_out };
            let variation = ForwardOptions {
                overlay,
                tap: Some(looks),
                until,
                routing: Some(&routing),
                ..ForwardOptions::default()
            };
            self.runner.give(self.run_partial(work, variation, (0, chunk), next.as_ref())?);
            let (routing, overlay) = (routing.replay(), Some(&work.float));
            let looks = is_seen.then_some(&float_tap as &dyn ActivationHook);
            let variation =
                ForwardOptions { overlay, tap: looks, until, routing: Some(&routing), ..ForwardOptions::default() };
            self.runner.give(self.run_partial(work, variation, (1, chunk), next.as_ref())?);
            for (module, hessian) in &mut hessians {
                hessian.add_with_float(&tap.take(module), &mut float_tap.take(module));
            }
        }
        self.runner.rest();
        work.held_out.extend(held_out.into_inputs());
        work.distributions.extend(shown.into_distributions());
        work.means.extend(means.into_means());
        work.reach(next);
        Ok(hessians)
    }

    /// Lets a tap see what the layers of a batch read, and finds the mean of it where biases are corrected by that.
    fn means_tap<'t>(&self, batch: &[SharedInputGroup], beside: &'t dyn ActivationHook) -> MeansTap<'t> {
        let corrected = batch.iter().filter(|_| self.plan.recipe().algorithms().correction.is_some());
        MeansTap::new(corrected.map(|readers| (readers.module.as_str(), readers.features)), beside)
    }

    /// Lets a tap see what the layers of a batch read, and gathers the distributions that a report shows.
    fn distributions_tap<'t>(
        work: &Work<'_, '_, 'a>,
        batch: &[SharedInputGroup],
        beside: &'t dyn ActivationHook,
    ) -> DistributionsTap<'t> {
        let modules = batch.iter().map(|readers| &readers.module);
        DistributionsTap::new(modules.filter(|module| work.distributions.contains_key(*module)).cloned(), beside)
    }

    /// Looks at what the layers of a batch read of the sequences that are held out.
    fn held_out_tap(&self, work: &Work<'_, '_, 'a>, batch: &[SharedInputGroup]) -> InputsTap {
        let inputs = |readers: &SharedInputGroup| {
            let keep = self.held_out_rows(work.block, &readers.module);
            (readers.module.clone(), Inputs::new(readers.features, keep))
        };
        InputsTap::new(batch.iter().map(inputs))
    }

    /// Rounds layers that read the same.
    fn round_readers(
        &self,
        work: &mut Work<'_, '_, 'a>,
        readers: &SharedInputGroup,
        inputs: Option<SharedInputs>,
    ) -> Result<(), BlockwiseError> {
        let rounding = self.rounding();
        let mut roundings: Vec<AnyRounding> = vec![rounding.clone()];
        let Some(inputs) = inputs else {
            let known = Known { inputs: None, roundings: &roundings, is_scarce: false };
            return readers.layers.iter().try_for_each(|layer| match rounding.is_nearest() {
                true => self.to_nearest(work, readers, *layer, None),
                false => self.round_layer(work, readers, *layer, &known),
            });
        };
        let hessian = &inputs.hessian;
        match rounding.prepare(&inputs) {
            Ok(()) => {}
            Err(HessianError::NotFinite) => return Err(self.not_finite(work.block.index, &readers.module)),
            // Inputs that are all zero: any codes do.
            Err(HessianError::NoData) if scarce(hessian.tokens(), hessian.features()).is_none() => {
                return readers.layers.iter().try_for_each(|layer| self.to_nearest(work, readers, *layer, None));
            }
            Err(problem) => return self.starved(work, readers, hessian, problem.to_string()),
        }
        // Where there are fewer tokens than inputs, the damping decides as much as the data.
        let scarce = scarce(hessian.tokens(), hessian.features());
        if let Some(scarce) = &scarce {
            if !Self::is_measurable(work, &readers.module) {
                return self.starved(work, readers, hessian, format!("{scarce}, and {UNMEASURABLE}"));
            }
            let safer = rounding.for_few_tokens(hessian.tokens(), hessian.features());
            roundings.extend(safer.filter(|safer| safer.prepare(&inputs).is_ok()));
        }
        let known = Known { inputs: Some(&inputs), roundings: &roundings, is_scarce: scarce.is_some() };
        readers.layers.iter().try_for_each(|layer| self.round_layer(work, readers, *layer, &known))
    }

    /// Rounds layers with too little input data to nearest.
    fn starved(
        &self,
        work: &mut Work<'_, '_, 'a>,
        readers: &SharedInputGroup,
        hessian: &Hessian,
        problem: String,
    ) -> Result<(), BlockwiseError> {
        let starved = (hessian.tokens(), problem);
        readers.layers.iter().try_for_each(|layer| self.to_nearest(work, readers, *layer, Some(&starved)))
    }

    fn round_layer(
        &self,
        work: &mut Work<'_, '_, 'a>,
        readers: &SharedInputGroup,
        index: LayerId,
        known: &Known<'_>,
    ) -> Result<(), BlockwiseError> {
        self.engine.check_cancelled()?;
        let layer = self.plan.layer(index);
        let chosen = self.choose_codes(work, readers, index, known)?;
        let hessian = known.inputs.map(|inputs| &inputs.hessian);
        let losses = match (self.losses(work, &readers.module, index, &chosen.layer.tensor)?, hessian) {
            (Some(losses), _) if losses.held_out.is_some() => Some(losses),
            (losses, None) => losses,
            (_, Some(hessian)) => Some(Losses {
                nearest: self.loss_of_nearest(work, index, hessian)?,
                chosen: match chosen.layer.loss {
                    Some(loss) => loss,
                    None => self.loss_of_codes(work, index, hessian, &chosen.layer.tensor)?,
                },
                held_out: None,
            }),
        };
        let seen = work.inputs.get(&readers.module).map(|inputs| inputs.statistic.tokens());
        let tokens = hessian.map(Hessian::tokens).or(seen).unwrap_or(self.tokens);
        if known.is_scarce {
            work.starve(layer, tokens, chosen.treatment);
        }
        let report = LayerReport {
            layer: layer.name.clone(),
            algorithm: chosen.algorithm,
            tokens,
            held_out: losses.and_then(|losses| losses.held_out),
            loss_rtn: losses.map(|losses| losses.nearest),
            loss: losses.map(|losses| losses.chosen),
            damping: chosen.layer.damping,
            dead_columns: chosen.layer.dead_columns,
            note: work.report.scarcity(&layer.name),
        };
        self.finish(work, readers, index, chosen.layer.tensor, report)
    }

    /// The weight from which a rounding computes scales, and facts about the tensor.
    pub(super) fn to_round(
        &self,
        work: &Work<'_, '_, 'a>,
        index: LayerId,
    ) -> Result<(WeightMatrix<'a>, TensorContext), BlockwiseError> {
        let block = work.block.index;
        let matrix = self.matrix(&work.clipped, block, self.plan.layer(index))?;
        Ok((matrix, self.context(&work.clipped, block, index)?))
    }

    /// The weight as transforms have left it.
    pub(super) fn matrix(
        &self,
        float: &WeightOverrides<'a>,
        block: usize,
        layer: &PlannedLayer,
    ) -> Result<WeightMatrix<'a>, BlockwiseError> {
        if let Some(matrix) = float.weight(&layer.module) {
            return Ok(matrix.clone());
        }
        let projection = self.decoder.layer(block, &layer.module);
        let vanished = || EngineError::TensorVanished(layer.source.tensor.clone());
        Ok(projection.map(|projection| self.decoder.weight(projection)).ok_or_else(vanished)?)
    }

    /// All elements of a weight.
    pub(super) fn values(&self, matrix: &WeightMatrix<'_>) -> Vec<f32> {
        matrix.all_values(self.engine.isa)
    }

    /// Facts about the tensor, and about those that share its scale, for a rounding.
    pub(super) fn context(
        &self,
        float: &WeightOverrides<'a>,
        block: usize,
        index: LayerId,
    ) -> Result<TensorContext, BlockwiseError> {
        let layer = self.plan.layer(index);
        let arithmetic = layer.source.dtype.arithmetic();
        if !layer.scheme.weight.needs_tensor_range() {
            return Ok(TensorContext { arithmetic, range: None });
        }
        let mut range = Range::EMPTY;
        for other in self.jobs.together(index) {
            let other = self.plan.layer(*other);
            range = range.join(self.engine.tensor_range(other, &self.matrix(float, block, other)?)?);
        }
        Ok(TensorContext { arithmetic, range: Some(range) })
    }
}

/// Elements that one thread reads at a time.
pub(super) const STRIP: usize = 256 << 10;

/// Groups in order, as many at a time as fit in `memory` bytes; at least one.
fn batches(
    groups: Vec<SharedInputGroup>,
    memory: u64,
    bytes: impl Fn(&SharedInputGroup) -> u64,
) -> Vec<Vec<SharedInputGroup>> {
    let mut batches: Vec<(u64, Vec<SharedInputGroup>)> = Vec::new();
    for readers in groups {
        let bytes = bytes(&readers);
        match batches.last_mut() {
            Some((held, batch)) if *held + bytes <= memory => {
                *held += bytes;
                batch.push(readers);
            }
            _ => batches.push((bytes, vec![readers])),
        }
    }
    batches.into_iter().map(|(_, batch)| batch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hessian_batches_fit_the_memory_budget() {
        let readers = |features| SharedInputGroup { module: String::new(), features, layers: vec![] };
        let sizes = |memory| {
            let groups = [64, 64, 128, 64].map(readers).to_vec();
            batches(groups, memory, |readers| Hessian::bytes(readers.features, false))
                .iter()
                .map(Vec::len)
                .collect::<Vec<_>>()
        };
        assert_eq!(sizes(u64::MAX), [4]);
        assert_eq!(sizes(2 * Hessian::bytes(64, false)), [2, 1, 1]);
        assert_eq!(sizes(0), [1, 1, 1, 1]);
    }
}
