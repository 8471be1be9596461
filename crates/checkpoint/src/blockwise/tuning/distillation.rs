//! Distillation of the float block into the quantized one: scales and norms follow the gradient of the block's output at fixed codes, or
//! weights do with them.

use super::layer_steps::{GradientBuffers, LayerSteps};
use super::{Batches, Loss, TunedBlock};
use crate::blockwise::error::BlockwiseError;
use crate::blockwise::run::Blockwise;
use kvant_forward::forward::Vector;
use kvant_quant::QuantTensor;
use kvant_quant::rounding::{TunedParts, TunedWeight, TuningRates};
use kvant_quant::tuning::{Tune, TunedVector, Tuning};
use std::collections::HashSet;

/// A layer whose scales, or weights and scales, are tuned.
struct TunedLayer {
    module: String,
    weight: TunedWeight,
    has_own_scales: bool,
}

/// The weight of a norm that is tuned.
struct TunedNorm {
    vector: Vector,
    values: TunedVector,
}

/// The parameters with the least loss.
struct Best {
    loss: Loss,
    tensors: Vec<QuantTensor>,
    norms: Vec<Vec<f32>>,
}

impl<'a> Blockwise<'_, 'a> {
    /// Replaces the tensors of layers and the norms of the block by tuned ones: those at which the block's outputs are nearest to the float
    /// model's, if any are nearer than they were.
    pub(super) fn distill(&self, block: &mut TunedBlock<'_, '_, '_, 'a>, settings: Tune) -> Result<(), BlockwiseError> {
        let parts = if settings.weights { TunedParts::Weights } else { TunedParts::Scales };
        let mut layers = Vec::new();
        for layer in &block.layers {
            let (weight, context) = self.float_values(block.work, layer)?;
            let weight = TunedWeight::new(&weight, layer.tensor.clone(), context, parts);
            layers.push(TunedLayer {
                module: self.plan.layer(layer.index).module.clone(),
                weight: weight.map_err(|problem| self.tuning_error(layer, problem))?,
                has_own_scales: !self.shares_scale(layer),
            });
        }
        let mut norms = if settings.norms > 0.0 { self.tuned_norms(block) } else { Vec::new() };
        let start: Vec<Vec<f32>> = norms.iter().map(|norm| norm.values.values()).collect();
        let best = self.descend(block, settings, &mut layers, &mut norms)?;
        let (tuned, values) = match best {
            Some(Best { loss, tensors, norms }) => (Some((loss, tensors)), norms),
            None => (None, start),
        };
        let is_better = tuned.is_some();
        for (norm, values) in norms.into_iter().zip(values) {
            block.overlay.set_vector(&norm.vector, values.clone());
            if is_better {
                block.norms.push((norm.vector, values));
            }
        }
        self.settle(block, tuned, Tuning::Tune(settings).name());
        Ok(())
    }

    /// The norms of the block whose weight is a tensor of its own, which the output has as floats.
    fn tuned_norms(&self, block: &TunedBlock<'_, '_, '_, 'a>) -> Vec<TunedNorm> {
        let (work, blocks) = (block.work, &self.decoder.blueprint().blocks);
        let others = blocks.iter().enumerate().filter(|(index, _)| *index != work.block.index);
        let of_others: HashSet<&Vector> =
            others.flat_map(|(_, block)| block.norms()).flat_map(|norm| &norm.weight).collect();
        let mut seen = HashSet::new();
        let norms = block.gradient.norms().into_iter().filter_map(|norm| {
            let vector = norm.weight.first()?;
            let name = &self.decoder.tensors().meta()[vector.tensor()].name;
            let is_own = work.foldings.holds(vector) && !of_others.contains(vector) && seen.insert(vector);
            if !is_own || self.jobs.of_kept(name).is_empty() {
                return None;
            }
            let values = match block.overlay.vector(vector) {
                Some(values) => values.to_vec(),
                None => work.foldings.values(vector),
            };
            let values = TunedVector::new(values, norm.kind.offset(), vector.source().arithmetic());
            Some(TunedNorm { vector: vector.clone(), values })
        });
        norms.collect()
    }

    /// Takes the steps, each on one chunk of the calibration data; returns the best parameters, if any are better than those at the start.
    fn descend(
        &self,
        block: &mut TunedBlock<'_, '_, '_, 'a>,
        settings: Tune,
        layers: &mut [TunedLayer],
        norms: &mut [TunedNorm],
    ) -> Result<Option<Best>, BlockwiseError> {
        let batches = Batches::new(self.calibration(), settings.seed, block.work.block.index);
        let (mut least, mut best) = (block.loss, None);
        let lengths = layers.iter().map(|layer| (layer.module.as_str(), block.weights[&layer.module].len()));
        let mut buffers = GradientBuffers::new(lengths);
        for (index, chunk) in (0..settings.iterations).zip(batches) {
            let recorded = self.learn_from(block, chunk)?;
            let slopes = self.slopes(block, &recorded, chunk)?;
            let mut of_norms = norms.iter().map(|norm| (norm.vector.clone(), vec![0.0; norm.vector.length])).collect();
            let rates = settings.rates(index);
            let step = |layer: usize, gradient: &mut [f32]| {
                let TunedLayer { weight, has_own_scales, .. } = &mut layers[layer];
                let scales = if *has_own_scales { rates.scales } else { 0.0 };
                weight.step(gradient, TuningRates { scales, ..rates });
            };
            let mut steps = LayerSteps { buffers: &mut buffers, norms: Some(&mut of_norms), step };
            recorded.backward_of_weights(slopes, &mut steps);
            steps.finish();
            for layer in layers.iter() {
                block.weights.insert(layer.module.clone(), layer.weight.values());
            }
            for norm in norms.iter_mut() {
                norm.values.step(&of_norms[&norm.vector], settings.norms * settings.share(index));
                block.overlay.set_vector(&norm.vector, norm.values.values());
            }
            self.meter.advance(3 * self.chunks[chunk].tokens.len() as u64);
            let is_last = index + 1 == settings.iterations;
            if is_last || (index + 1).is_multiple_of(settings.period()) {
                let loss = self.loss(block)?;
                if loss.sum < least.sum {
                    least = loss;
                    let tensors = layers.iter().zip(&block.layers).map(|(tuned, layer)| {
                        tuned.weight.rounded().map_err(|problem| self.tuning_error(layer, problem))
                    });
                    let norms = norms.iter().map(|norm| norm.values.values()).collect();
                    best = Some(Best { loss, tensors: tensors.collect::<Result<_, _>>()?, norms });
                }
            }
        }
        Ok(best)
    }
}
