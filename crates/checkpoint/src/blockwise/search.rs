//! Searches the scales of a block's smoothing pairs, and the clipping thresholds of its weights. The formulas are in
//! [`kvant_quant::transform`], the moving of scales in [`crate::folding`], the comparison in `trial.rs`.

use super::error::BlockwiseError;
use super::inputs::{Inputs, InputsTap, Keep};
use super::report::LinkReport;
use super::run::Blockwise;
use super::scarcity::{Comparison, is_shown, scarce, statistic};
use super::target::ResolvedPair;
use super::trial::{Outputs, PairTrial};
use super::work::Work;
use crate::folding::{ScaleFusion, ScaleFusionError};
use crate::plan::{HELD_OUT_ROWS, LayerId, PlannedBlock, PlannedLayer, SEARCH_ROWS, SEARCH_TOKENS};
use kvant_forward::forward::{ForwardOptions, StopAt};
use kvant_model::family::Role;
use kvant_model::network::ScaleSource;
use kvant_numeric::kernel::group_abs_max;
use kvant_quant::rounding::RoundingError;
use kvant_quant::scheme::{Axis, Granularity};
use kvant_quant::transform::{
    ChannelStatistic, Clip, Measure, PairError, PairProblem, PairScales, Transform, TransformError, WeightStatistic,
};
use kvant_weights::weight::ClippingThresholds;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Rows of inputs, about, on which losses are taken, and limits searched unless more are asked for.
const SAMPLED_TOKENS: usize = 512;

/// Inputs of smoothing pairs: of calibration data, and of held-out data where those are few.
#[derive(Clone, Copy)]
struct MagnitudeStatistics<'s> {
    inputs: &'s AllInputs,
    held_out: &'s AllInputs,
}

/// The inputs of a block by the module that reads them.
type AllInputs = HashMap<String, Inputs>;

impl<'a> Blockwise<'_, 'a> {
    /// Finds and folds what the recipe's transforms ask for, one transform after the other; then limits, where any asks.
    pub(super) fn transform(&self, work: &mut Work<'_, '_, 'a>) -> Result<(), BlockwiseError> {
        let transforms = &self.plan.recipe().algorithms().transforms;
        let clip = transforms.iter().find_map(|transform| transform.clip());
        let rows = clip.map_or(SAMPLED_TOKENS, |clip| clip.tokens.max(SAMPLED_TOKENS));
        for (index, transform) in transforms.iter().enumerate() {
            work.fold();
            let before = work.foldings.clone();
            let links = &work.block.links;
            let targets: Vec<ResolvedPair<'_>> =
                links.iter().map(|link| ResolvedPair::new(self.decoder.network(), link)).collect();
            let is_last = index + 1 == transforms.len();
            let read = if is_last { self.read_by_layers(work.block, rows) } else { BTreeMap::new() };
            let held_out = read.keys().map(|module| (module.clone(), self.held_out_rows(work.block, module)));
            let mut held_out: BTreeMap<String, Keep> = held_out.collect();
            let [inputs, read] = self.look(work, [self.sites(work.block, &targets), read], self.calibration())?;
            held_out.extend(self.scarce_sites(work.block, &targets, &inputs));
            let [held_out, _] = self.look(work, [held_out, BTreeMap::new()], self.held_out())?;
            let seen = MagnitudeStatistics { inputs: &inputs, held_out: &held_out };
            let found = targets.iter().map(|target| self.choose(work, target, &**transform, seen));
            let found = found.collect::<Result<Vec<_>, BlockwiseError>>()?;
            for (target, found) in targets.iter().zip(found) {
                self.apply(work, target, &**transform, &inputs, found);
            }
            work.inputs = rescaled(read, &before, &work.foldings);
            work.held_out = rescaled(held_out, &before, &work.foldings);
        }
        self.runner.rest();
        work.fold();
        clip.map_or(Ok(()), |clip| self.clip(work, clip))
    }

    /// The modules observed to judge smoothing pairs, and the kept inputs.
    fn sites(&self, block: &PlannedBlock, targets: &[ResolvedPair<'_>]) -> BTreeMap<String, Keep> {
        let keep = |target: &ResolvedPair<'_>, site: &str| match target.inspects_attention() {
            true => Keep::Sequences((self.tokens as usize).div_ceil(SEARCH_TOKENS)),
            false => self.rows(block, site, SEARCH_ROWS),
        };
        let sites = targets.iter().flat_map(|target| target.sites().iter().map(move |site| (target, site)));
        sites.map(|(target, site)| (site.clone(), keep(target, site))).collect()
    }

    /// A sample of the inputs of planned layers.
    fn read_by_layers(&self, block: &PlannedBlock, rows: usize) -> BTreeMap<String, Keep> {
        let readers = block.stages.iter().flat_map(|stage| self.readers(stage));
        readers.map(|readers| (readers.module.clone(), self.rows(block, &readers.module, rows))).collect()
    }

    /// About so many rows: no fewer, and less than twice as many.
    fn rows(&self, block: &PlannedBlock, module: &str, tokens: usize) -> Keep {
        Keep::Rows((self.expected(block, module, self.tokens) / tokens).max(1))
    }

    /// The same of held-out data.
    pub(super) fn held_out_rows(&self, block: &PlannedBlock, module: &str) -> Keep {
        Keep::Rows((self.expected(block, module, self.held_out_tokens) / HELD_OUT_ROWS as usize).max(1))
    }

    /// Bytes of what is kept of the sequences that are held out, of a module that reads so many features: at most.
    pub(super) fn held_out_bytes(&self, features: usize) -> u64 {
        self.held_out_tokens.min(2 * HELD_OUT_ROWS) * features as u64 * 4
    }

    /// The rows on which a link's scales are tried, about.
    fn tried_rows(&self, block: &PlannedBlock, target: &ResolvedPair<'_>) -> u64 {
        if target.inspects_attention() {
            return self.tokens.min(SEARCH_TOKENS as u64);
        }
        let of_site = |site: &String| self.expected(block, site, self.tokens).min(SEARCH_ROWS) as u64;
        target.sites().iter().map(of_site).sum()
    }

    /// One pass of some chunks through the block in floats, with two who look.
    fn look(
        &self,
        work: &Work<'_, '_, 'a>,
        wanted: [BTreeMap<String, Keep>; 2],
        chunks: Range<usize>,
    ) -> Result<[AllInputs; 2], BlockwiseError> {
        if wanted.iter().all(BTreeMap::is_empty) {
            return Ok(Default::default());
        }
        let features = self.features(work.block.index);
        let taps = wanted.map(|wanted| {
            let known = wanted.into_iter().filter_map(|(module, keep)| {
                let columns = *features.get(module.as_str())?;
                Some((module, Inputs::new(columns, keep)))
            });
            InputsTap::new(known)
        });
        for chunk in chunks {
            // All inputs of layers are known there; what the last layers put out is not looked at.
            let reads_own = self.decoder.blueprint().blocks[work.block.index].layer_input.is_some();
            let until = Some(if reads_own { StopAt::LayerInputHidden } else { StopAt::Hidden });
            let variation =
                ForwardOptions { overlay: Some(&work.float), tap: Some(&taps), until, ..ForwardOptions::default() };
            self.runner.give(self.run_chunk(work, variation, 0, chunk)?);
        }
        Ok(taps.map(InputsTap::into_inputs))
    }

    /// Input features of all layers of a block, by module.
    pub(super) fn features(&self, block: usize) -> HashMap<&str, usize> {
        let layers = self.decoder.blueprint().blocks[block].layers();
        layers.into_iter().map(|layer| (layer.module.as_str(), layer.columns)).collect()
    }

    /// How many rows of so many tokens will pass a module, about: experts get their share.
    fn expected(&self, block: &PlannedBlock, module: &str, tokens: u64) -> usize {
        let tokens = tokens as usize;
        let Some(mixture) = self.decoder.blueprint().blocks[block.index].mixture() else { return tokens };
        let of_expert = mixture.experts.iter().flat_map(|expert| expert.layers()).any(|layer| layer.module == module);
        if of_expert { tokens * mixture.per_token / mixture.experts.len().max(1) } else { tokens }
    }

    /// The scales of a smoothing pair, or the reason that there are none. For scales from few tokens, held-out data
    /// must show that they lose less than no scaling.
    fn choose(
        &self,
        work: &Work<'_, '_, 'a>,
        target: &ResolvedPair<'_>,
        transform: &dyn Transform,
        seen: MagnitudeStatistics<'_>,
    ) -> Result<Result<PairScales, String>, BlockwiseError> {
        let MagnitudeStatistics { inputs, held_out } = seen;
        let planned = self.planned(work, target);
        if planned.is_empty() {
            return Ok(Err("none of the layers that read it is quantized".to_owned()));
        }
        let Some(statistic) = statistic(target, inputs).filter(|statistic| statistic.tokens() > 0) else {
            return Ok(Err("no token reached it".to_owned()));
        };
        let scarce = scarce(statistic.tokens(), statistic.channels());
        if let Some(scarce) = &scarce
            && let Some(reason) = self.incomparable(target, &planned, held_out)
        {
            return Ok(Err(format!("{scarce}, and {reason}")));
        }
        let trial = PairTrial { blockwise: self, work, target, planned: &planned, inputs };
        let found = self.find(&trial, transform, &statistic)?;
        match (scarce, found) {
            (Some(scarce), Ok(chosen)) => {
                self.confirm(&PairTrial { inputs: held_out, ..trial }, transform, chosen, &scarce)
            }
            (_, found) => Ok(found),
        }
    }

    /// The scales that a transform finds in calibration data.
    fn find(
        &self,
        trial: &PairTrial<'_, '_, 'a>,
        transform: &dyn Transform,
        statistic: &ChannelStatistic,
    ) -> Result<Result<PairScales, String>, BlockwiseError> {
        let mut pair = Pair { trial, statistic, reference: None, rows: None, failure: None };
        let found = transform.find(&mut pair);
        match pair.failure {
            Some(failure) => Err(failure),
            None => Ok(found.map_err(|problem| problem.to_string())),
        }
    }

    /// The same scales, if the inputs of a trial show that they lose less than none.
    fn confirm(
        &self,
        trial: &PairTrial<'_, '_, 'a>,
        transform: &dyn Transform,
        chosen: PairScales,
        scarce: &str,
    ) -> Result<Result<PairScales, String>, BlockwiseError> {
        let losses = self.compare(trial, transform, &chosen.scales)?;
        Ok(losses.and_then(|Comparison { unscaled, scaled }| match is_shown(scaled, unscaled, trial.tokens()) {
            true => Ok(PairScales { loss_before: Some(unscaled), loss_after: Some(scaled), ..chosen }),
            false => Err(format!("{scarce}, and held-out data do not show that scales lose less")),
        }))
    }

    /// Applies the scales found, or reports why there are none; in any case reports layers that few tokens reached.
    fn apply(
        &self,
        work: &mut Work<'_, '_, 'a>,
        target: &ResolvedPair<'_>,
        transform: &dyn Transform,
        inputs: &AllInputs,
        found: Result<PairScales, String>,
    ) {
        let mut report = LinkReport {
            block: work.block.index,
            from: target.from.clone(),
            into: target.modules.clone(),
            transform: transform.name().to_owned(),
            ratio: None,
            loss_before: None,
            loss_after: None,
            largest_scale: None,
            note: None,
        };
        let applied = found.and_then(|chosen| {
            let applied = work.foldings.apply(target.link, &chosen.scales).map_err(|problem| problem.to_string())?;
            Ok((chosen, applied))
        });
        let tokens = statistic(target, inputs).map_or(0, |statistic| statistic.tokens());
        let done = format!("{} by {}", if applied.is_ok() { "scaled" } else { "not scaled" }, transform.name());
        for layer in self.planned(work, target).into_iter().map(|index| self.plan.layer(index)) {
            let scarce = scarce(tokens, layer.columns);
            if let Some(scarce) = scarce {
                work.starve(layer, tokens, &done);
                report.note = Some(format!("{scarce}: {done}"));
            }
        }
        match applied {
            Ok((chosen, applied)) => {
                report.ratio = chosen.ratio;
                (report.loss_before, report.loss_after) = (chosen.loss_before, chosen.loss_after);
                report.largest_scale = applied.into_iter().reduce(f32::max);
            }
            Err(problem) => report.note = Some(problem),
        }
        work.report.links.push(report);
    }

    /// The layers of a link that are quantized.
    fn planned(&self, work: &Work<'_, '_, 'a>, target: &ResolvedPair<'_>) -> Vec<LayerId> {
        work.block.layers().filter(|layer| target.modules.contains(&self.plan.layer(*layer).module)).collect()
    }

    /// The largest magnitude of each row that a link divides, as a share of the largest of all, where the rows of a layer have one
    /// scale for their codes together and each is read by one column; else none.
    fn shared_rows(&self, work: &Work<'_, '_, 'a>, target: &ResolvedPair<'_>) -> Result<Vec<f32>, BlockwiseError> {
        let ScaleSource::Linear { rows, .. } = &target.link.from else { return Ok(Vec::new()) };
        let mut planned = work.block.layers().map(|layer| self.plan.layer(layer));
        let is_shared = |layer: &&PlannedLayer| {
            layer.module == target.from && layer.scheme.weight.granularity() == Some(Granularity::Tensor)
        };
        let Some(layer) = planned.find(is_shared) else { return Ok(Vec::new()) };
        let values = self.values(&self.matrix(&work.float, work.block.index, layer)?);
        let mut of_rows = vec![0.0; layer.rows];
        group_abs_max(self.engine.isa, &values, layer.columns.max(1), &mut of_rows);
        let most = of_rows.iter().copied().fold(0.0, f32::max);
        if most == 0.0 {
            return Ok(Vec::new());
        }
        Ok(rows.iter().flat_map(|rows| &of_rows[rows.clone()]).map(|row| row / most).collect())
    }

    /// Of all planned layers of a link together.
    fn weight_statistic(
        &self,
        work: &Work<'_, '_, 'a>,
        planned: &[LayerId],
    ) -> Result<WeightStatistic, BlockwiseError> {
        let first = self.plan.layer(planned[0]);
        let group = match first.scheme.weight.granularity() {
            Some(granularity @ Granularity::Group { axis: Axis::Columns, .. }) => granularity.tile(1, first.columns).1,
            _ => first.columns,
        };
        let mut statistic = WeightStatistic::new(first.columns, group);
        for layer in planned {
            let matrix = self.matrix(&work.float, work.block.index, self.plan.layer(*layer))?;
            statistic.update(&self.values(&matrix));
        }
        Ok(statistic)
    }

    /// Finds limits for the weights of a block, those of queries and keys left out: their errors meet in products.
    fn clip(&self, work: &mut Work<'_, '_, 'a>, clip: Clip) -> Result<(), BlockwiseError> {
        for readers in work.block.stages.iter().flat_map(|stage| self.readers(stage)) {
            let Some(inputs) = work.inputs.get(&readers.module) else { continue };
            let (tokens, rows) = (inputs.statistic.tokens(), sampled(inputs, clip.tokens));
            let is_scarce = scarce(tokens, readers.features).is_some();
            for index in readers.layers.iter().copied().filter(|index| is_clipped(self.plan.layer(*index).role)) {
                let layer = self.plan.layer(index);
                let limits = match is_scarce {
                    true => self.confirmed_limits(work, &readers.module, index, &rows, clip)?,
                    false => Some(self.limits(work, index, &rows, clip)?),
                };
                if is_scarce {
                    work.starve(layer, tokens, if limits.is_some() { "clipped" } else { "not clipped" });
                }
                if let Some(limits) = limits {
                    let weight_error = |problem: ScaleFusionError| self.engine.weight_error(layer, problem.to_string());
                    work.foldings.clip(&layer.module, limits).map_err(weight_error)?;
                }
            }
        }
        work.clip();
        Ok(())
    }

    /// Thresholds from few tokens, if held-out data show that the layer loses less with them.
    fn confirmed_limits(
        &self,
        work: &Work<'_, '_, 'a>,
        module: &str,
        index: LayerId,
        rows: &[f32],
        clip: Clip,
    ) -> Result<Option<ClippingThresholds>, BlockwiseError> {
        if rows.is_empty() || !Self::is_measurable(work, module) {
            return Ok(None);
        }
        let limits = self.limits(work, index, rows, clip)?;
        Ok(self.gains_by(work, module, index, &limits)?.then_some(limits))
    }

    fn limits(
        &self,
        work: &Work<'_, '_, 'a>,
        index: LayerId,
        rows: &[f32],
        clip: Clip,
    ) -> Result<ClippingThresholds, BlockwiseError> {
        self.engine.check_cancelled()?;
        let (layer, block) = (self.plan.layer(index), work.block.index);
        let context = self.context(&work.float, block, index)?;
        let values = self.values(&self.matrix(&work.float, block, layer)?);
        let failed = |problem: TransformError| -> BlockwiseError {
            match problem {
                TransformError::NotFinite { .. } => self.not_finite(block, &layer.module),
                TransformError::Rounding(RoundingError::ScaleTooLarge { scale, largest }) => {
                    self.engine.scale_error(layer, scale, largest).into()
                }
                problem => self.engine.weight_error(layer, problem.to_string()).into(),
            }
        };
        let clipping = clip.prepare(rows, layer.columns, layer.scheme.weight).map_err(failed)?;
        let limits = clipping.limits(&values, context).map_err(failed)?;
        Ok(ClippingThresholds { group: clipping.group(), values: limits })
    }

    /// Tokens through one pass that the searches of a block cost, about.
    pub(super) fn search_work(&self, block: &PlannedBlock) -> u64 {
        let targets = block.links.iter().map(|link| ResolvedPair::new(self.decoder.network(), link));
        let rows: u64 = targets.map(|target| self.tried_rows(block, &target)).sum();
        let transforms = &self.plan.recipe().algorithms().transforms;
        let trials: u64 = transforms.iter().map(|transform| self.tokens + u64::from(transform.trials()) * rows).sum();
        trials + if transforms.is_empty() { 0 } else { self.held_out_tokens }
    }
}

/// Inputs that were seen before scales were moved, as layers read them since.
fn rescaled(mut inputs: AllInputs, before: &ScaleFusion<'_, '_>, after: &ScaleFusion<'_, '_>) -> AllInputs {
    for (module, inputs) in &mut inputs {
        let columns = |foldings: &ScaleFusion<'_, '_>| foldings.folding(module).and_then(|folding| folding.columns);
        let ones = vec![1.0; inputs.columns];
        let (before, after) = (columns(before).unwrap_or_else(|| ones.clone()), columns(after).unwrap_or(ones));
        let moved: Vec<f32> = after.iter().zip(before).map(|(after, before)| after / before).collect();
        inputs.divide(&moved);
    }
    inputs
}

/// A link as transforms see it.
struct Pair<'p, 't, 'r, 'a> {
    trial: &'p PairTrial<'t, 'r, 'a>,
    statistic: &'p ChannelStatistic,
    /// The outputs of the float model, once they were asked for.
    reference: Option<Outputs>,
    /// See [`Blockwise::shared_rows`].
    rows: Option<Vec<f32>>,
    /// What ends the run: transforms are told that they are stopped.
    failure: Option<BlockwiseError>,
}

impl Pair<'_, '_, '_, '_> {
    fn stop(&mut self, failure: BlockwiseError) -> PairError {
        self.failure = Some(failure);
        PairError::Stopped
    }
}

impl PairProblem for Pair<'_, '_, '_, '_> {
    fn inputs(&self) -> &ChannelStatistic {
        self.statistic
    }

    fn weights(&mut self) -> Result<WeightStatistic, PairError> {
        let PairTrial { blockwise, work, planned, .. } = *self.trial;
        blockwise.weight_statistic(work, planned).map_err(|failure| self.stop(failure))
    }

    fn within_rows(&mut self, scales: Vec<f32>) -> Result<Vec<f32>, PairError> {
        let PairTrial { blockwise, work, target, .. } = *self.trial;
        let rows = match self.rows.take() {
            Some(rows) => rows,
            None => blockwise.shared_rows(work, target).map_err(|failure| self.stop(failure))?,
        };
        let scales = within(scales, &rows);
        self.rows = Some(rows);
        Ok(scales)
    }

    fn loss(&mut self, scales: &[f32], measure: Measure) -> Result<f64, PairError> {
        let PairTrial { blockwise, .. } = *self.trial;
        blockwise.engine.check_cancelled().map_err(|failure| self.stop(failure.into()))?;
        let reference = self.reference.take().unwrap_or_else(|| self.trial.reference());
        let loss = self.trial.loss(scales, &reference, measure);
        self.reference = Some(reference);
        let loss = loss.map_err(|failure| self.stop(failure))?.map_err(PairError::Unscaled)?;
        blockwise.meter.advance(self.trial.tokens() as u64);
        Ok(loss)
    }
}

/// Scales that leave each row, divided by its scale, within what the largest row is divided by their geometric mean: that of a
/// channel that was next to silent would else make a row so large that nothing of the others is left. `rows` are those of
/// [`Blockwise::shared_rows`].
fn within(mut scales: Vec<f32>, rows: &[f32]) -> Vec<f32> {
    if scales.len() == rows.len() && !scales.is_empty() {
        let logarithms: f64 = scales.iter().map(|scale| f64::from(*scale).ln()).sum();
        let mean = (logarithms / scales.len() as f64).exp() as f32;
        scales.iter_mut().zip(rows).for_each(|(scale, row)| *scale = scale.max(mean * row));
    }
    scales
}

/// Rows at even distances, about so many.
fn sampled(inputs: &Inputs, tokens: usize) -> Vec<f32> {
    let columns = inputs.columns.max(1);
    let step = (inputs.rows.len() / columns / tokens.max(1)).max(1);
    inputs.rows.chunks(columns).step_by(step).flatten().copied().collect()
}

/// Returns whether limits are found for layers of this role.
fn is_clipped(role: &str) -> bool {
    const ROLES: [Role; 13] = [
        Role::Query,
        Role::Key,
        Role::QueryKeyValue,
        Role::QueryDown,
        Role::QueryUp,
        Role::KeyValueDown,
        Role::KeyValueUp,
        Role::IndexQuery,
        Role::IndexKey,
        Role::RecurrentInput,
        Role::RecurrentQuery,
        Role::RecurrentKey,
        Role::RecurrentInputGate,
    ];
    !ROLES.iter().any(|left_out| left_out.name() == role)
}

#[cfg(test)]
mod tests {
    use super::within;

    #[test]
    fn silent_channel_scale_is_bounded_by_the_largest_row() {
        // Of mean 1: the first row would be a thousand times the largest.
        let scales = within(vec![1e-3, 1e3, 1.0, 1.0], &[0.5, 1.0, 0.25, 0.0]);
        assert_eq!(scales, [0.5, 1e3, 1.0, 1.0]);
        assert_eq!(within(vec![1e-3, 2.0], &[]), [1e-3, 2.0]);
    }
}
