//! Learned rounding: codes and scales follow the signs of the gradient of the block's output (AutoRound).

use super::layer_steps::{GradientBuffers, LayerSteps};
use super::{Batches, TunedBlock};
use crate::blockwise::error::BlockwiseError;
use crate::blockwise::run::Blockwise;
use kvant_quant::rounding::LatentWeight;
use kvant_quant::tuning::{AutoRound, Tuning};

/// A layer whose codes are learned.
struct LearnedLayer {
    module: String,
    latent: LatentWeight,
    /// Whether its scales are too.
    has_own_scales: bool,
}

impl<'a> Blockwise<'_, 'a> {
    /// Replaces the tensors of layers by learned ones, if the block's outputs are nearer to the float model's then.
    pub(super) fn learn_rounding(
        &self,
        block: &mut TunedBlock<'_, '_, '_, 'a>,
        settings: AutoRound,
    ) -> Result<(), BlockwiseError> {
        let mut layers = Vec::new();
        for layer in &block.layers {
            let (weight, context) = self.float_values(block.work, layer)?;
            let latent = LatentWeight::new(&weight, layer.tensor.clone(), context);
            layers.push(LearnedLayer {
                module: self.plan.layer(layer.index).module.clone(),
                latent: latent.map_err(|problem| self.tuning_error(layer, problem))?,
                has_own_scales: !self.shares_scale(layer),
            });
        }
        self.follow(block, settings, &mut layers)?;
        let loss = self.loss(block)?;
        let learned = if loss.sum < block.loss.sum {
            let tensors = layers
                .iter()
                .zip(&block.layers)
                .map(|(learned, layer)| learned.latent.rounded().map_err(|problem| self.tuning_error(layer, problem)));
            Some((loss, tensors.collect::<Result<Vec<_>, _>>()?))
        } else {
            None
        };
        self.settle(block, learned, Tuning::AutoRound(settings).name());
        Ok(())
    }

    /// Takes the steps, each on one chunk of the calibration data.
    fn follow(
        &self,
        block: &mut TunedBlock<'_, '_, '_, 'a>,
        settings: AutoRound,
        layers: &mut [LearnedLayer],
    ) -> Result<(), BlockwiseError> {
        let batches = Batches::new(self.calibration(), settings.seed, block.work.block.index);
        let lengths = layers.iter().map(|layer| (layer.module.as_str(), block.weights[&layer.module].len()));
        let mut buffers = GradientBuffers::new(lengths);
        for (index, chunk) in (0..settings.iterations).zip(batches) {
            let recorded = self.learn_from(block, chunk)?;
            let slopes = self.slopes(block, &recorded, chunk)?;
            let share = settings.share(index);
            let step = |layer: usize, gradient: &mut [f32]| {
                let LearnedLayer { latent, has_own_scales, .. } = &mut layers[layer];
                let scales = if *has_own_scales { settings.scales } else { 0.0 };
                latent.step(gradient, settings.reach * share, scales * share);
            };
            let mut steps = LayerSteps { buffers: &mut buffers, norms: None, step };
            recorded.backward_of_weights(slopes, &mut steps);
            steps.finish();
            for layer in layers.iter() {
                if let Some(values) = block.weights.get_mut(&layer.module) {
                    layer.latent.write_values(values);
                }
            }
            self.meter.advance(3 * self.chunks[chunk].tokens.len() as u64);
        }
        Ok(())
    }
}
