//! Learned rounding of a block: codes and scales of its layers follow the gradient of the difference between what the quantized block and
//! the float model's give. The steps on a weight are in [`kvant_quant::rounding::LatentWeight`], the gradients in
//! [`gradient`](super::gradient).

use std::collections::HashMap;
use std::sync::Arc;

use kvant_numeric::ComputeDType;
use kvant_quant::random::SplitMix64;
use kvant_quant::rounding::{LatentWeight, TensorContext};
use kvant_quant::tuning::AutoRound;
use rayon::prelude::*;
use serde::Serialize;

use super::data::Data;
use super::gradient::{NoGradient, Program, Tensor};
use super::incremental_executor::{IncrementalExecutor, Recording};
use super::layer::Layer;
use super::rounding::RowMatrix;
use crate::data::Array;
use crate::error::AlgorithmError;
use crate::quantization::Affine;

/// Samples in a step.
const BATCH: usize = 8;
/// The share of earlier gradients in their running means.
const KEPT: f32 = 0.9;
/// The mean gradient of a weight that moves, as a share of the root of its mean square: gradients of noise alone have about a quarter.
const STEADY: f32 = 0.5;
/// How often the loss of all samples is taken while a block is learned.
const CHECKS: u32 = 10;
/// The share of what a block gives by which the tape may differ from the engine, squared: a code here and there, for sums in another order.
const TOLERANCE: f64 = 1e-3;

/// What was learned for a block of layers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LearnedBlock {
    /// The nodes of its layers.
    pub layers: Vec<String>,
    /// The squared error of what it gives as a share of the float model's squares, before: mean over samples and outputs.
    pub loss_before: f64,
    /// The same as it has become. Not above that before.
    pub loss_after: f64,
}

/// A block whose layers could not be learned together, or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftBlock {
    /// The nodes of its layers.
    pub layers: Vec<String>,
    /// The reason.
    pub reason: String,
}

/// A layer whose codes are learned.
pub(super) struct LearnedLayer<'a> {
    pub layer: &'a Layer,
    pub matrix: RowMatrix,
    /// The codes that it begins with.
    pub codes: &'a [i32],
    /// Whether its scales may move.
    pub moves_scales: bool,
}

/// Codes and scales that were learned for a layer.
pub(super) struct LearnedCodes {
    pub codes: Vec<i32>,
    pub parameters: Vec<Affine>,
}

/// A block as it is learned.
pub(super) struct Learner<'a> {
    pub program: &'a Program,
    pub settings: AutoRound,
    /// Decides the order of samples, with the seed.
    pub number: usize,
    /// The quantized model before the block, and what else the block reads of it.
    pub quantized: &'a IncrementalExecutor,
    pub inputs: &'a Recording,
    /// What the float model gives.
    pub targets: &'a Recording,
    /// The names of the outputs in the float model.
    pub outputs: &'a [String],
}

/// Why a block is not learned.
pub(super) enum NotLearned {
    NoGradient(NoGradient),
    /// What the tape gives is not what the engine does.
    Differs,
    Failed(AlgorithmError),
}

impl From<AlgorithmError> for NotLearned {
    fn from(error: AlgorithmError) -> NotLearned {
        NotLearned::Failed(error)
    }
}

impl From<NoGradient> for NotLearned {
    fn from(problem: NoGradient) -> NotLearned {
        NotLearned::NoGradient(problem)
    }
}

/// A sample: what the program reads, and what the block should give.
struct BlockSample {
    inputs: HashMap<String, Arc<Array<'static>>>,
    targets: Vec<Arc<Array<'static>>>,
}

/// What a pass over a sample finds.
struct Pass {
    distance: f64,
    gradients: Vec<Vec<f32>>,
}

impl Learner<'_> {
    /// Learns the codes of layers; the losses before and after, and what was learned, unless that is no better.
    pub fn learn(
        &self,
        layers: &[LearnedLayer<'_>],
        data: &Data<'_>,
    ) -> Result<(f64, f64, Option<Vec<LearnedCodes>>), NotLearned> {
        let mut latents = Vec::new();
        for learned in layers {
            let codes = (learned.layer.grid.codes.min, learned.layer.grid.codes.max);
            let (weight, tensor) = (learned.matrix.rows(&learned.layer.weight), learned.matrix.tensor(learned.codes));
            let latent = LatentWeight::within(codes, &weight, tensor, TensorContext::new(ComputeDType::F32));
            latents.push(latent.map_err(|problem| self.failed(learned, &problem.to_string()))?);
        }
        let start = weights(layers, &latents);
        let abreast = self.abreast(&start, data)?;
        let before = self.distance(&start, abreast, data)?;
        let mut best = Best { distance: before, latents: None };
        self.follow(layers, latents, abreast, &mut best, data)?;
        let Some(latents) = best.latents else { return Ok((before, before, None)) };
        let found = layers.iter().zip(&latents).map(|(learned, latent)| {
            let tensor = latent.rounded().map_err(|problem| self.failed(learned, &problem.to_string()))?;
            let (codes, parameters) = learned.matrix.stored(&tensor, learned.layer);
            Ok(LearnedCodes { codes, parameters })
        });
        Ok((before, best.distance, Some(found.collect::<Result<_, NotLearned>>()?)))
    }

    fn failed(&self, learned: &LearnedLayer<'_>, problem: &str) -> NotLearned {
        let (layer, problem) = (learned.layer.name().to_owned(), problem.to_owned());
        NotLearned::Failed(AlgorithmError::Layer { layer, problem })
    }

    /// Checks the tape against the engine on the first sample; how many samples fit in memory at a time.
    fn abreast(&self, weights: &[Tensor], data: &Data<'_>) -> Result<usize, NotLearned> {
        let sample = self.sample(0)?;
        let tape = self.program.forward(weights, &sample.inputs)?;
        for (index, name) in self.program.outputs().iter().enumerate() {
            let engine = self.inputs.array(name, 0)?;
            let wanted = engine.as_ref().and_then(|array| array.f32s()).unwrap_or_default();
            let made = tape.output(index);
            let same = engine.as_ref().is_some_and(|array| array.shape() == made.shape);
            let (error, signal) = errors(&made.values, wanted);
            if !same || error > TOLERANCE * signal.max(f64::MIN_POSITIVE) {
                return Err(NotLearned::Differs);
            }
        }
        // Gradients are as large as what they are of, and patches of convolutions larger.
        let bytes = 4 * tape.bytes().max(1);
        Ok(usize::try_from(data.runtime.budget / bytes).unwrap_or(BATCH).clamp(1, BATCH))
    }

    fn sample(&self, index: usize) -> Result<BlockSample, AlgorithmError> {
        let mut inputs = HashMap::new();
        for name in self.program.reads() {
            let array = match self.inputs.array(&name, index)? {
                Some(array) => array,
                None => self.quantized.tensor(&name, index)?,
            };
            inputs.insert(name, array);
        }
        let targets = self.outputs.iter().map(|name| self.targets.array(name, index));
        let targets = targets.collect::<Result<Vec<_>, AlgorithmError>>()?;
        Ok(BlockSample { inputs, targets: targets.into_iter().flatten().collect() })
    }

    /// Runs a sample; with gradients where they are `wanted`.
    fn pass(&self, weights: &[Tensor], index: usize, wanted: bool) -> Result<Pass, NotLearned> {
        let sample = self.sample(index)?;
        let tape = self.program.forward(weights, &sample.inputs)?;
        let count = sample.targets.len().max(1) as f64;
        let (mut distance, mut slopes) = (0.0, Vec::new());
        for (output, target) in sample.targets.iter().enumerate() {
            let (made, target) = (&tape.output(output).values, target.f32s().unwrap_or_default());
            let (error, signal) = errors(made, target);
            // Of an output that should be nothing there is no share.
            let importance = if signal > 0.0 { 1.0 / (signal * count) } else { 0.0 };
            distance += importance * error;
            let slope = |(made, target): (&f32, &f32)| (2.0 * importance) as f32 * (made - target);
            slopes.push(made.iter().zip(target).map(slope).collect());
        }
        let gradients = if wanted { tape.backward(slopes)? } else { Vec::new() };
        Ok(Pass { distance, gradients })
    }

    /// Runs some samples, so many at a time.
    fn passes(
        &self,
        weights: &[Tensor],
        samples: &[usize],
        wanted: bool,
        abreast: usize,
    ) -> Result<Vec<Pass>, NotLearned> {
        let mut made = Vec::with_capacity(samples.len());
        for samples in samples.chunks(abreast.max(1)) {
            let passes = samples.par_iter().map(|&index| self.pass(weights, index, wanted));
            made.extend(passes.collect::<Vec<_>>());
        }
        made.into_iter().collect()
    }

    /// The mean loss of all samples.
    fn distance(&self, weights: &[Tensor], abreast: usize, data: &Data<'_>) -> Result<f64, NotLearned> {
        let all: Vec<usize> = (0..self.quantized.samples()).collect();
        let mut sum = 0.0;
        for samples in all.chunks(BATCH) {
            data.check_cancelled()?;
            let passes = self.passes(weights, samples, false, abreast)?;
            sum += passes.iter().map(|pass| pass.distance).sum::<f64>();
        }
        Ok(sum / all.len().max(1) as f64)
    }

    /// Takes the steps, and keeps the best that is seen on the way.
    fn follow(
        &self,
        layers: &[LearnedLayer<'_>],
        mut latents: Vec<LatentWeight>,
        abreast: usize,
        best: &mut Best,
        data: &Data<'_>,
    ) -> Result<(), NotLearned> {
        let mut random = SplitMix64::new(u64::from(self.settings.seed) ^ (self.number as u64) << 32);
        let mut order: Vec<usize> = Vec::new();
        let batch = BATCH.min(self.quantized.samples());
        let every = self.settings.iterations.div_ceil(CHECKS).max(1);
        let mut now = weights(layers, &latents);
        let mut means: Vec<SteadyGradient> = now.iter().map(|w| SteadyGradient::new(w.values.len())).collect();
        for index in 0..self.settings.iterations {
            data.check_cancelled()?;
            if order.len() < batch {
                order = (0..self.quantized.samples()).collect();
                random.shuffle(&mut order);
            }
            let samples = order.split_off(order.len() - batch);
            let passes = self.passes(&now, &samples, true, abreast)?;
            let share = self.settings.share(index);
            for (at, (latent, learned)) in latents.iter_mut().zip(layers).enumerate() {
                let mut gradient = means[at].next(passes.iter().map(|pass| &pass.gradients[at][..]));
                let scales = if learned.moves_scales { self.settings.scales * share } else { 0.0 };
                latent.step(&mut gradient, self.settings.reach * share, scales);
            }
            now = weights(layers, &latents);
            if (index + 1) % every == 0 || index + 1 == self.settings.iterations {
                let distance = self.distance(&now, abreast, data)?;
                if distance < best.distance {
                    *best = Best { distance, latents: Some(latents.clone()) };
                }
            }
        }
        Ok(())
    }
}

/// The best that was seen; without latent weights the start.
struct Best {
    distance: f64,
    latents: Option<Vec<LatentWeight>>,
}

/// Running means of the gradients of a weight, and of their squares. Steps are all of one length: those of weights whose gradients change
/// their sign would only be noise.
struct SteadyGradient {
    means: Vec<f32>,
    squares: Vec<f32>,
}

impl SteadyGradient {
    fn new(elements: usize) -> SteadyGradient {
        SteadyGradient { means: vec![0.0; elements], squares: vec![0.0; elements] }
    }

    /// The gradient of a step, the sum of those of samples: the mean where it is steady, and zero elsewhere.
    fn next<'g>(&mut self, of_samples: impl Iterator<Item = &'g [f32]>) -> Vec<f32> {
        let mut gradient = vec![0.0; self.means.len()];
        for sample in of_samples {
            gradient.iter_mut().zip(sample).for_each(|(sum, more)| *sum += more);
        }
        for ((gradient, mean), square) in gradient.iter_mut().zip(&mut self.means).zip(&mut self.squares) {
            *mean = KEPT * *mean + (1.0 - KEPT) * *gradient;
            *square = KEPT * *square + (1.0 - KEPT) * *gradient * *gradient;
            *gradient = if mean.abs() > STEADY * square.sqrt() { *mean } else { 0.0 };
        }
        gradient
    }
}

/// The weights as they are rounded now.
fn weights(layers: &[LearnedLayer<'_>], latents: &[LatentWeight]) -> Vec<Tensor> {
    let tensor = |(learned, latent): (&LearnedLayer<'_>, &LatentWeight)| {
        let (rows, columns) = learned.matrix.shape();
        Tensor { shape: vec![rows, columns], values: latent.values() }
    };
    layers.iter().zip(latents).map(tensor).collect()
}

/// The sum of squares of differences, and that of what should be.
fn errors(made: &[f32], wanted: &[f32]) -> (f64, f64) {
    let error = made.iter().zip(wanted).map(|(made, wanted)| f64::from(made - wanted).powi(2)).sum();
    (error, wanted.iter().map(|&wanted| f64::from(wanted).powi(2)).sum())
}
