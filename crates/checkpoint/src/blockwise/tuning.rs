//! Learned rounding of a block: once all its layers are rounded, their codes and scales follow the gradient of the difference between the
//! quantized block's output and the float model's. The steps on a weight are in [`kvant_quant::rounding::LatentWeight`], the gradients in
//! [`kvant_forward::forward::gradient`].

use super::error::BlockwiseError;
use super::report::LayerReport;
use super::rounding::SharedInputGroup;
use super::run::Blockwise;
use super::streams::StreamFile;
use super::work::Work;
use crate::plan::LayerId;
use kvant_forward::forward::cpu::Cpu;
use kvant_forward::forward::gradient::{BlockGradient, Weights};
use kvant_forward::forward::{ForwardOptions, Runner, WeightOverrides};
use kvant_quant::QuantTensor;
use kvant_quant::activation::ActivationQuantizer;
use kvant_quant::random::SplitMix64;
use kvant_quant::rounding::LatentWeight;
use kvant_quant::tuning::AutoRound;
use kvant_weights::weight::WeightMatrix;
use std::sync::Arc;

/// A layer that is rounded and not written yet.
pub(super) struct RoundedLayer {
    pub(super) readers: SharedInputGroup,
    pub(super) index: LayerId,
    pub(super) tensor: QuantTensor,
    pub(super) report: LayerReport,
}

/// A layer whose codes are learned.
struct LearnedLayer {
    module: String,
    latent: LatentWeight,
}

impl<'a> Blockwise<'_, 'a> {
    /// The settings of learned rounding, where it was asked for.
    pub(super) fn tuning(&self) -> Option<AutoRound> {
        self.plan.recipe().algorithms().tuning
    }

    /// Tokens through passes that tuning a block costs: forwards and twice as much backwards for each step, and what is measured.
    pub(super) fn tuning_work(&self) -> u64 {
        let Some(settings) = self.tuning() else { return 0 };
        let chunks = self.calibration().len().max(1) as u64;
        3 * u64::from(settings.iterations) * (self.tokens / chunks) + 3 * (self.tokens + self.held_out_tokens)
    }

    /// Tunes the layers of a block that are rounded, and writes them.
    pub(super) fn tune(&self, work: &mut Work<'_, '_, 'a>) -> Result<(), BlockwiseError> {
        let Some(settings) = self.tuning() else { return Ok(()) };
        let mut rounded = std::mem::take(&mut work.rounded_layers);
        if !rounded.is_empty() {
            let overlay = self.on_quantized_inputs(work, &rounded);
            self.learn(work, &overlay, settings, &mut rounded)?;
            // Partial runs used the codes from before learning: their results are stale.
            work.reached = None;
            // Roundings that compare with the float model should correct errors of weights only, not of rounded inputs.
            if !self.sees_mismatch() {
                work.rounded = overlay;
            }
        }
        for RoundedLayer { readers, index, tensor, report } in rounded {
            self.write(work, &readers, index, tensor, report)?;
        }
        Ok(())
    }

    /// The block with inputs as the deployed model rounds them, where that takes no calibrated scale.
    fn on_quantized_inputs(&self, work: &Work<'_, '_, 'a>, layers: &[RoundedLayer]) -> WeightOverrides<'a> {
        let mut overlay = work.rounded.clone();
        for layer in layers {
            let planned = self.plan.layer(layer.index);
            let input = planned.scheme.input.filter(|input| !input.needs_calibration());
            if let Some(quantizer) = input.and_then(|input| ActivationQuantizer::new(input, None).ok()) {
                overlay.set_input(&planned.module, quantizer);
            }
        }
        overlay
    }

    /// Replaces the tensors of layers by learned ones, if the block's outputs are nearer to the float model's then.
    fn learn(
        &self,
        work: &Work<'_, '_, 'a>,
        overlay: &WeightOverrides<'a>,
        settings: AutoRound,
        rounded: &mut [RoundedLayer],
    ) -> Result<(), BlockwiseError> {
        let cpu = Cpu::default();
        let runner = Runner::new(self.decoder, &cpu);
        let gradient = BlockGradient::new(&runner, work.block.index)?;
        let mut weights = gradient.weights(overlay);
        let mut layers = Vec::new();
        for layer in rounded.iter() {
            let planned = self.plan.layer(layer.index);
            let context = self.context(&work.float, work.block.index, layer.index)?;
            let matrix = self.matrix(&work.float, work.block.index, planned)?;
            let latent = LatentWeight::new(&self.values(&matrix), layer.tensor.clone(), context);
            let latent = latent.map_err(|problem| self.engine.rounding_error(planned, &matrix, problem))?;
            layers.push(LearnedLayer { module: planned.module.clone(), latent });
        }
        let block = TunedBlock { gradient, overlay, targets: self.targets(work, &runner)?, work };
        let before = self.distance(&block, &weights)?;
        self.follow(&block, settings, &mut layers, &mut weights)?;
        if self.distance(&block, &weights)? >= before {
            return Ok(());
        }
        for (layer, learned) in rounded.iter_mut().zip(&layers) {
            let planned = self.plan.layer(layer.index);
            let tensor = learned.latent.rounded();
            layer.tensor = tensor.map_err(|problem| {
                let matrix = WeightMatrix::quantized(Arc::new(layer.tensor.clone()));
                self.engine.rounding_error(planned, &matrix, problem)
            })?;
            layer.report.algorithm = format!("{},{}", layer.report.algorithm, kvant_quant::tuning::NAME);
        }
        Ok(())
    }

    /// What the block gives in the float model, chunk by chunk.
    fn targets(&self, work: &Work<'_, '_, 'a>, runner: &Runner<'_, 'a>) -> Result<StreamFile, BlockwiseError> {
        let dir = work.input.path().parent().unwrap_or(work.input.path());
        let targets = StreamFile::temporary(dir, self.shape_of(self.decoder.width(), 1));
        let targets = targets.map_err(BlockwiseError::streams("make room for"))?;
        let options = ForwardOptions { overlay: Some(&work.float), ..ForwardOptions::default() };
        for (index, chunk) in self.chunks.iter().enumerate() {
            self.engine.check_cancelled()?;
            let mut x = self.read(work.input, 1, index)?;
            // Without an explicit end, a run continues to that of the block.
            let _ = runner.block(options, work.block.index, chunk.lengths(), &mut x);
            targets.write(0, index, &x).map_err(BlockwiseError::streams("write"))?;
            self.meter.advance(chunk.tokens.len() as u64);
        }
        runner.rest();
        Ok(targets)
    }

    /// Takes the steps, each on one chunk of the calibration data.
    fn follow(
        &self,
        block: &TunedBlock<'_, '_, '_, 'a>,
        settings: AutoRound,
        layers: &mut [LearnedLayer],
        weights: &mut Weights,
    ) -> Result<(), BlockwiseError> {
        let width = self.decoder.width();
        let mut random = SplitMix64::new(u64::from(settings.seed) ^ (block.work.block.index as u64) << 32);
        let mut order: Vec<usize> = Vec::new();
        for index in 0..settings.iterations {
            if order.is_empty() {
                order.extend(self.calibration());
                random.shuffle(&mut order);
            }
            let Some(chunk) = order.pop() else { return Ok(()) };
            let recorded = self.forward(block, weights, chunk)?;
            let mut slopes = self.read(&block.targets, 0, chunk)?;
            for (slopes, out) in slopes.chunks_exact_mut(width).zip(recorded.output().chunks_exact(width)) {
                let importance = importance(slopes) as f32;
                slopes.iter_mut().zip(out).for_each(|(slope, out)| *slope = importance * (out - *slope));
            }
            let mut gradients: Weights =
                layers.iter().map(|layer| (layer.module.clone(), vec![0.0; weights[&layer.module].len()])).collect();
            recorded.backward(slopes, &mut gradients);
            let share = settings.share(index);
            for layer in layers.iter_mut() {
                layer.latent.step(&gradients[&layer.module], settings.reach * share, settings.scales * share);
                weights.insert(layer.module.clone(), layer.latent.values());
            }
            self.meter.advance(3 * self.chunks[chunk].tokens.len() as u64);
        }
        Ok(())
    }

    /// The block with these weights on one chunk of what the quantized model gives it.
    fn forward<'f>(
        &self,
        block: &'f TunedBlock<'_, '_, '_, 'a>,
        weights: &'f Weights,
        chunk: usize,
    ) -> Result<kvant_forward::forward::gradient::Recorded<'f, 'a>, BlockwiseError> {
        self.engine.check_cancelled()?;
        let x = self.read(block.work.input, 0, chunk)?;
        let options = ForwardOptions { overlay: Some(block.overlay), ..ForwardOptions::default() };
        Ok(block.gradient.forward(options, weights, &x, self.chunks[chunk].lengths()))
    }

    /// The distance of the block's outputs from those of the float model, as a share of each token's square: on held-out data, where there are any.
    fn distance(&self, block: &TunedBlock<'_, '_, '_, 'a>, weights: &Weights) -> Result<f64, BlockwiseError> {
        let chunks = if self.held_out().is_empty() { self.calibration() } else { self.held_out() };
        let mut sum = 0.0;
        for chunk in chunks {
            let recorded = self.forward(block, weights, chunk)?;
            let targets = self.read(&block.targets, 0, chunk)?;
            let width = self.decoder.width();
            for (out, target) in recorded.output().chunks_exact(width).zip(targets.chunks_exact(width)) {
                let squares = out.iter().zip(target).map(|(out, target)| f64::from(out - target).powi(2));
                sum += importance(target) * squares.sum::<f64>();
            }
            self.meter.advance(self.chunks[chunk].tokens.len() as u64);
        }
        Ok(sum)
    }
}

/// How much the error of a token counts: norms divide by its size, and tokens that are much larger than others would decide alone.
fn importance(target: &[f32]) -> f64 {
    let square: f64 = target.iter().map(|value| f64::from(*value).powi(2)).sum();
    1.0 / square.max(f64::MIN_POSITIVE)
}

/// A block being tuned.
struct TunedBlock<'t, 'w, 'n, 'a> {
    gradient: BlockGradient<'t, 'a>,
    overlay: &'t WeightOverrides<'a>,
    /// What it should give.
    targets: StreamFile,
    work: &'t Work<'w, 'n, 'a>,
}
