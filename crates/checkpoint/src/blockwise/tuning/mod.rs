//! Tuning of a block: once all its layers are rounded, what was chosen follows the gradient of the difference between the quantized block's
//! output and the float model's. The steps on a weight are in [`kvant_quant::rounding`], the gradients in
//! [`kvant_forward::forward::gradient`].

mod distillation;
mod layer_steps;
mod learned_rounding;

use super::error::BlockwiseError;
use super::report::{LayerReport, TuningReport};
use super::rounding::SharedInputGroup;
use super::run::Blockwise;
use super::scarcity::scarce;
use super::streams::StreamFile;
use super::work::Work;
use crate::calibration::{ObserverHook, Statistics, resolve_points};
use crate::plan::LayerId;
use kvant_forward::forward::cpu::Cpu;
use kvant_forward::forward::gradient::{BlockGradient, Recorded, Weights};
use kvant_forward::forward::{
    ActivationHook, ActivationPoint as Site, ForwardOptions, Rows, Runner, Vector, WeightOverrides,
};
use kvant_numeric::linalg::LearningPrecision;
use kvant_quant::QuantTensor;
use kvant_quant::activation::ActivationQuantizer;
use kvant_quant::random::SplitMix64;
use kvant_quant::rounding::{RoundingError, TensorContext};
use kvant_quant::scheme::Granularity;
use kvant_quant::tuning::Tuning;
use kvant_weights::activation_point::{ActivationPoint, Parameters};
use kvant_weights::weight::WeightMatrix;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// A layer that is rounded and not written yet.
pub(super) struct RoundedLayer {
    pub(super) readers: SharedInputGroup,
    pub(super) index: LayerId,
    pub(super) tensor: QuantTensor,
    pub(super) report: LayerReport,
}

/// A block being tuned.
struct TunedBlock<'t, 'w, 'n, 'a> {
    work: &'t Work<'w, 'n, 'a>,
    gradient: BlockGradient<'t, 'a>,
    /// The block but for its weights.
    overlay: WeightOverrides<'a>,
    weights: Weights,
    layers: Vec<RoundedLayer>,
    /// What it should give.
    targets: StreamFile,
    /// How far it is from that.
    loss: Loss,
    /// Norms that have learned.
    norms: Vec<(Vector, Vec<f32>)>,
}

/// Counts the rows that each module reads: of experts, those of the tokens that are routed to them.
#[derive(Default)]
struct TokenCounter(Mutex<BTreeMap<String, u64>>);

impl ActivationHook for TokenCounter {
    fn wants(&self, site: Site<'_>) -> bool {
        matches!(site, Site::Input(_))
    }

    fn see(&self, site: Site<'_>, rows: Rows<'_>) {
        if let Site::Input(module) = site {
            let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *counts.entry(module.to_owned()).or_default() += (rows.data.len() / rows.columns.max(1)) as u64;
        }
    }
}

/// The distance of a block's outputs from those of the float model, as a share of each token's square.
#[derive(Clone, Copy, Default)]
struct Loss {
    sum: f64,
    tokens: u64,
}

impl Loss {
    fn mean(self) -> f64 {
        self.sum / self.tokens.max(1) as f64
    }
}

impl<'a> Blockwise<'_, 'a> {
    fn tunings(&self) -> &[Tuning] {
        &self.plan.recipe().algorithms().tunings
    }

    /// Whether blocks are tuned.
    pub(super) fn is_tuned(&self) -> bool {
        !self.tunings().is_empty()
    }

    /// Tokens through passes that tuning a block costs: forwards and twice as much backwards for each step, and what is measured.
    pub(super) fn tuning_work(&self) -> u64 {
        if !self.is_tuned() {
            return 0;
        }
        let chunks = self.calibration().len().max(1) as u64;
        let measured = if self.held_out_tokens > 0 { self.held_out_tokens } else { self.tokens };
        let of = |tuning: &Tuning| {
            3 * u64::from(tuning.iterations()) * (self.tokens / chunks) + u64::from(tuning.measurements()) * measured
        };
        self.tokens + self.held_out_tokens + measured + self.tunings().iter().map(of).sum::<u64>()
    }

    /// Tunes the layers of a block that are rounded, and writes them.
    pub(super) fn tune(&self, work: &mut Work<'_, '_, 'a>) -> Result<(), BlockwiseError> {
        let layers = std::mem::take(&mut work.rounded_layers);
        if layers.is_empty() {
            return Ok(());
        }
        let cpu = Cpu::default();
        let runner = Runner::new(self.decoder, &cpu);
        let gradient = BlockGradient::new(&runner, work.block.index)?;
        let overlay = self.on_quantized_inputs(work, &layers)?;
        let counter = TokenCounter::default();
        let targets = self.targets(work, &runner, &counter)?;
        let layers = self.count_tokens(work, layers, counter);
        let mut block = TunedBlock {
            weights: gradient.weights(&overlay),
            targets,
            loss: Loss::default(),
            norms: Vec::new(),
            gradient,
            overlay,
            layers,
            work,
        };
        block.loss = self.loss(&block)?;
        let mut reports = Vec::new();
        for tuning in self.tunings() {
            let before = block.loss;
            match tuning {
                Tuning::AutoRound(settings) => self.learn_rounding(&mut block, *settings)?,
                Tuning::Tune(settings) => self.distill(&mut block, *settings)?,
            }
            reports.push(TuningReport {
                block: block.work.block.index,
                tuning: tuning.name().to_owned(),
                tokens: before.tokens,
                loss_before: before.mean(),
                loss_after: block.loss.mean(),
            });
        }
        let TunedBlock { overlay, layers, norms, .. } = block;
        work.report.tunings.extend(reports);
        // Partial runs used the codes from before: their results are stale.
        work.reached = None;
        for (norm, values) in norms {
            work.rounded.set_vector(&norm, values.clone());
            work.foldings.set_values(&norm, values);
        }
        // Roundings that compare with the float model should correct errors of weights only, not of rounded inputs.
        if !self.sees_mismatch() {
            work.rounded = overlay;
        }
        for RoundedLayer { readers, index, tensor, report } in layers {
            self.write(work, &readers, index, tensor, report)?;
        }
        Ok(())
    }

    /// The block with inputs as the deployed model rounds them.
    fn on_quantized_inputs(
        &self,
        work: &Work<'_, '_, 'a>,
        layers: &[RoundedLayer],
    ) -> Result<WeightOverrides<'a>, BlockwiseError> {
        let mut overlay = work.rounded.clone();
        let parameters = self.static_parameters(work, layers)?;
        for layer in layers {
            let planned = self.plan.layer(layer.index);
            let Some(input) = planned.scheme.input else { continue };
            let found = parameters.get(&ActivationPoint::Input(planned.module.clone())).cloned();
            if input.needs_calibration() && found.is_none() {
                continue;
            }
            if let Ok(quantizer) = ActivationQuantizer::new(input, found) {
                overlay.set_input(&planned.module, quantizer);
            }
        }
        Ok(overlay)
    }

    /// The static scales of inputs as the calibration data give them while the block is rounded and not tuned. None where some experts saw no
    /// token: their scales are found when all blocks are done.
    fn static_parameters(
        &self,
        work: &Work<'_, '_, 'a>,
        layers: &[RoundedLayer],
    ) -> Result<Parameters, BlockwiseError> {
        let inputs = layers.iter().map(|layer| self.plan.layer(layer.index));
        let inputs = inputs.filter(|layer| layer.scheme.input.is_some_and(|input| input.needs_calibration()));
        let inputs: BTreeSet<ActivationPoint> =
            inputs.map(|layer| ActivationPoint::Input(layer.module.clone())).collect();
        let points = || self.plan.sites().iter().filter(|planned| inputs.contains(&planned.site));
        let Ok(statistics) = Statistics::of_points(points()) else { return Ok(Parameters::default()) };
        if points().next().is_none() {
            return Ok(Parameters::default());
        }
        let watcher = ObserverHook::new(statistics);
        let options = ForwardOptions { overlay: Some(&work.rounded), tap: Some(&watcher), ..ForwardOptions::default() };
        for chunk in self.calibration() {
            let x = self.run_chunk(work, options, 0, chunk)?;
            self.runner.give(x);
        }
        self.runner.rest();
        let resolved = resolve_points(self.plan, points(), &watcher.statistics());
        Ok(resolved.map(|resolved| resolved.parameters).unwrap_or_default())
    }

    /// Reports the tokens that the counter saw where nothing before has counted any, and the layers that too few reached.
    fn count_tokens(
        &self,
        work: &mut Work<'_, '_, 'a>,
        mut layers: Vec<RoundedLayer>,
        counter: TokenCounter,
    ) -> Vec<RoundedLayer> {
        let counts = counter.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        for RoundedLayer { readers, index, report, .. } in &mut layers {
            let planned = self.plan.layer(*index);
            if report.tokens == self.tokens {
                report.tokens = counts.get(&readers.module).copied().unwrap_or_default();
            }
            if scarce(report.tokens, planned.columns).is_some() && work.report.scarcity(&planned.name).is_none() {
                work.starve(planned, report.tokens, "tuned as asked");
                report.note = work.report.scarcity(&planned.name);
            }
        }
        layers
    }

    /// What the block gives in the float model, chunk by chunk; `counter` sees the calibration data.
    fn targets(
        &self,
        work: &Work<'_, '_, 'a>,
        runner: &Runner<'_, 'a>,
        counter: &TokenCounter,
    ) -> Result<StreamFile, BlockwiseError> {
        let dir = work.input.path().parent().unwrap_or(work.input.path());
        let targets = StreamFile::temporary(dir, self.shape_of(self.decoder.width(), 1));
        let targets = targets.map_err(BlockwiseError::streams("make room for"))?;
        for (index, chunk) in self.chunks.iter().enumerate() {
            self.engine.check_cancelled()?;
            let tap = self.calibration().contains(&index).then_some(counter as &dyn ActivationHook);
            let options = ForwardOptions { overlay: Some(&work.float), tap, ..ForwardOptions::default() };
            let mut x = self.read(work.input, 1, index)?;
            // Without an explicit end, a run continues to that of the block.
            let _ = runner.block(options, work.block.index, chunk, &mut x);
            targets.write(0, index, &x).map_err(BlockwiseError::streams("write"))?;
            self.meter.advance(chunk.tokens.len() as u64);
        }
        runner.rest();
        Ok(targets)
    }

    /// The block on one chunk of what the quantized model gives it.
    fn forward<'f>(
        &'f self,
        block: &'f TunedBlock<'_, '_, '_, 'a>,
        chunk: usize,
        precision: LearningPrecision,
    ) -> Result<Recorded<'f, 'a>, BlockwiseError> {
        self.engine.check_cancelled()?;
        let x = self.read(block.work.input, 0, chunk)?;
        let options = ForwardOptions { overlay: Some(&block.overlay), ..ForwardOptions::default() };
        Ok(block.gradient.with_precision(precision).forward(options, &block.weights, &x, &self.chunks[chunk]))
    }

    /// A step's run of the block on one chunk: only the direction of gradients counts, to which bfloat16 adds less noise than the
    /// choice of the chunk.
    fn learn_from<'f>(
        &'f self,
        block: &'f TunedBlock<'_, '_, '_, 'a>,
        chunk: usize,
    ) -> Result<Recorded<'f, 'a>, BlockwiseError> {
        self.forward(block, chunk, LearningPrecision::Bf16)
    }

    /// The gradient of half of the loss on a chunk by the block's output.
    fn slopes(
        &self,
        block: &TunedBlock<'_, '_, '_, 'a>,
        recorded: &Recorded<'_, 'a>,
        chunk: usize,
    ) -> Result<Vec<f32>, BlockwiseError> {
        let width = self.decoder.width();
        let mut slopes = self.read(&block.targets, 0, chunk)?;
        for (slopes, out) in slopes.chunks_exact_mut(width).zip(recorded.output().chunks_exact(width)) {
            let importance = importance(slopes) as f32;
            slopes.iter_mut().zip(out).for_each(|(slope, out)| *slope = importance * (out - *slope));
        }
        Ok(slopes)
    }

    /// The loss of the block as it is now: on held-out data, where there are any.
    fn loss(&self, block: &TunedBlock<'_, '_, '_, 'a>) -> Result<Loss, BlockwiseError> {
        let chunks = if self.held_out().is_empty() { self.calibration() } else { self.held_out() };
        let mut loss = Loss::default();
        for chunk in chunks {
            let recorded = self.forward(block, chunk, LearningPrecision::F32)?;
            let targets = self.read(&block.targets, 0, chunk)?;
            let width = self.decoder.width();
            for (out, target) in recorded.output().chunks_exact(width).zip(targets.chunks_exact(width)) {
                let squares = out.iter().zip(target).map(|(out, target)| f64::from(out - target).powi(2));
                loss.sum += importance(target) * squares.sum::<f64>();
                loss.tokens += 1;
            }
            self.meter.advance(self.chunks[chunk].tokens.len() as u64);
        }
        Ok(loss)
    }

    /// The values of a layer's weight before it was rounded, and facts about the tensor.
    fn float_values(
        &self,
        work: &Work<'_, '_, 'a>,
        layer: &RoundedLayer,
    ) -> Result<(Vec<f32>, TensorContext), BlockwiseError> {
        let context = self.context(&work.float, work.block.index, layer.index)?;
        let planned = self.plan.layer(layer.index);
        let values = self.values(&self.matrix(&work.float, work.block.index, planned)?);
        // Steps do not read the stored weight.
        if let Some(projection) = self.decoder.layer(work.block.index, &planned.module) {
            self.decoder.tensors().release(projection);
        }
        Ok((values, context))
    }

    /// Whether a layer's scale is that of other layers too, and cannot move alone.
    fn shares_scale(&self, layer: &RoundedLayer) -> bool {
        let is_of_tensor = layer.tensor.scheme().granularity() == Some(Granularity::Tensor);
        is_of_tensor && self.jobs.together(layer.index).len() > 1
    }

    fn tuning_error(&self, layer: &RoundedLayer, problem: RoundingError) -> BlockwiseError {
        let matrix = WeightMatrix::quantized(Arc::new(layer.tensor.clone()));
        self.engine.rounding_error(self.plan.layer(layer.index), &matrix, problem).into()
    }

    /// Keeps what a tuning has made of the layers, or brings back what they were before it.
    fn settle(&self, block: &mut TunedBlock<'_, '_, '_, 'a>, tuned: Option<(Loss, Vec<QuantTensor>)>, name: &str) {
        if let Some((loss, tensors)) = tuned {
            block.loss = loss;
            for (layer, tensor) in block.layers.iter_mut().zip(tensors) {
                layer.tensor = tensor;
                layer.report.algorithm = format!("{},{name}", layer.report.algorithm);
            }
        }
        for layer in &block.layers {
            block.weights.insert(self.plan.layer(layer.index).module.clone(), layer.tensor.dequantize());
        }
    }
}

/// How much the error of a token counts: norms divide by its size, and tokens that are much larger than others would decide alone. One of zeros,
/// as padding often is, does not count.
fn importance(target: &[f32]) -> f64 {
    let square: f64 = target.iter().map(|value| f64::from(*value).powi(2)).sum();
    if square > LEAST_SQUARE { 1.0 / square } else { 0.0 }
}

/// Tokens of less are nothing but rounding errors. Their importance would overflow gradients.
const LEAST_SQUARE: f64 = 1e-14;

/// The chunks of calibration data, each once in an order of chance before any comes again.
struct Batches {
    chunks: Range<usize>,
    order: Vec<usize>,
    random: SplitMix64,
}

impl Batches {
    fn new(chunks: Range<usize>, seed: u32, block: usize) -> Batches {
        Batches { chunks, order: Vec::new(), random: SplitMix64::new(u64::from(seed) ^ (block as u64) << 32) }
    }
}

impl Iterator for Batches {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.order.is_empty() {
            self.order.extend(self.chunks.clone());
            self.random.shuffle(&mut self.order);
        }
        self.order.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_count_by_the_size_of_tokens_and_not_for_zeros() {
        assert_eq!(importance(&[3.0, 4.0]), 1.0 / 25.0);
        assert_eq!([importance(&[0.0, 0.0]), importance(&[1e-20, 1e-30])], [0.0, 0.0]);
    }

    #[test]
    fn batches_come_once_in_each_round_and_the_same_for_a_seed() {
        let of = |seed| Batches::new(2..6, seed, 1).take(8).collect::<Vec<usize>>();
        let (mut first, mut second) = (of(7)[..4].to_vec(), of(7)[4..].to_vec());
        first.sort_unstable();
        second.sort_unstable();
        assert_eq!((first, second), (vec![2, 3, 4, 5], vec![2, 3, 4, 5]));
        assert_eq!(of(7), of(7));
        assert_eq!(Batches::new(3..3, 7, 1).next(), None);
    }
}
