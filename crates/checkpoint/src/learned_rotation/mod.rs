//! Learning a rotation (SpinQuant, arXiv 2405.16406): steps along orthogonal matrices that lower the divergence of the rotated and rounded
//! model from the float model, on calibration data. All blocks share the rotation of the residual stream, so that every step runs the whole
//! model: forwards block by block, with what each block reads kept, and back through all of them.
//!
//! The model is opened with its fixed rotation; what is learned follows that ([`kvant_formats::rotation::LearnedRotations`]). One block's
//! weights are in memory at a time, as floats: rotated, and rounded to nearest where the plan quantizes them; so are the inputs of their
//! layers. The head and other layers outside of the blocks count as floats. The head reads the stream turned back, so that its weight stays
//! as it is.
//!
//! The steps are in [`kvant_quant::rotation::RotationDescent`], the gradients of blocks in [`kvant_forward::forward::gradient`].

mod block;
mod error;
mod matrices;
mod state;

pub use error::LearnedRotationError;

use crate::calibration::{ObserverHook, Statistics, resolve};
use crate::plan::Plan;
use block::{BlockSums, RotatedBlock, RoundedModel, to_nearest};
use kvant_formats::rotation::LearnedRotations;
use kvant_forward::forward::cpu::Cpu;
use kvant_forward::forward::gradient::{BlockGradient, divergence_gradient};
use kvant_forward::forward::{
    ActivationHook, Chunk, Decoder, ForwardError, ForwardOptions, LONG, Pass, Runner, Streams, chunks,
};
use kvant_quant::random::{SplitMix64, mix};
use kvant_quant::rotation::{BlockDiagonal, Rotate, RotationDescent, RotationPlace};
use matrices::{GradientRows, GradientSums, StepMatrix};
use serde::{Deserialize, Serialize};
use state::{LearnedState, StateFile};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// States are kept so many times while learning.
const KEPT: u32 = 10;

/// What a rotation is learned from.
#[derive(Clone, Copy)]
pub struct RotationSources<'r, 'a> {
    /// The plan, which says how layers are rounded, and how the rotation is learned.
    pub plan: &'r Plan,
    /// The model with its fixed rotation.
    pub decoder: &'r Decoder<'a>,
    /// The calibration data.
    pub sequences: &'r [Vec<u32>],
    /// Further sequences, on which the loss is measured; if there are none, it is measured on the calibration data.
    pub held_out: &'r [Vec<u32>],
}

/// How it is learned.
#[derive(Clone, Copy)]
pub struct RotationSettings<'s> {
    /// The output, beside which the state is kept.
    pub target: &'s Path,
    /// Names the plan and the data: what was learned of others is not taken over.
    pub key: &'s str,
    /// Bytes of activations that are kept in memory; more are in a temporary file.
    pub memory: u64,
}

/// The result of learning a rotation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RotationReport {
    /// Steps.
    pub steps: u32,
    /// Matrices that were learned: that of the residual stream, and one for the values of each block with attention.
    pub matrices: usize,
    /// The mean divergence from the float model before the first step, in nats for each token.
    pub loss_before: f64,
    /// The same after the last one.
    pub loss_after: f64,
    /// Whether that was measured on data that the steps have not seen.
    pub held_out: bool,
    /// Whether the learned matrices are used: those whose loss is not lower are not.
    pub used: bool,
}

/// A learned rotation.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnedRotation {
    /// What follows the fixed rotation at each place.
    pub rotations: LearnedRotations,
    /// The result.
    pub report: RotationReport,
}

/// Returns whether a run with another key has kept what it learned for the output `target`.
pub fn is_of_another(target: &Path, key: &str) -> bool {
    StateFile::beside(target, key).is_of_another()
}

/// Learns the rotation of a plan, or resumes an earlier run with the same key, to the same matrices. They do not depend on
/// the number of threads. `resumes` receives the steps that an earlier run has taken, if there was one, and `watch` the tokens that have
/// passed the model, and how many will.
///
/// # Errors
/// See [`LearnedRotationError`].
pub fn learn_rotation(
    sources: RotationSources<'_, '_>,
    rotate: Rotate,
    settings: RotationSettings<'_>,
    cancelled: &AtomicBool,
    resumes: impl FnOnce(u32),
    mut watch: impl FnMut(u64, u64),
) -> Result<LearnedRotation, LearnedRotationError> {
    let file = StateFile::beside(settings.target, settings.key);
    let kept = file.read();
    if let Some(state) = &kept {
        resumes(state.steps);
    }
    if let Some((state, report)) = kept.as_ref().and_then(|state| Some((state, state.report.clone()?))) {
        return Ok(LearnedRotation { rotations: state.rotations(&report), report });
    }
    let RotationSources { plan, decoder, sequences, held_out } = sources;
    let [mut all, behind] = [sequences, held_out].map(|data| chunks(decoder, data.iter().map(Vec::as_slice)));
    let calibration = all.len();
    if calibration == 0 {
        return Err(LearnedRotationError::NoSequences);
    }
    all.extend(behind);
    let cpu = Cpu::default();
    let (runner, blocks) = (Runner::new(decoder, &cpu), decoder.blueprint().blocks.len().max(1));
    let mut watch = |done: u64, all: u64| watch(done / blocks as u64, all / blocks as u64);
    let mut learner = Learner {
        model: RoundedModel::new(decoder, plan, &to_nearest),
        runner: &runner,
        chunks: &all,
        calibration,
        targets: Streams::new(&[], 0)?,
        matrices: learned_places(decoder, &rotate),
        memory: settings.memory / 3,
        cancelled,
        meter: Meter { watch: &mut watch, done: 0, total: work(&all, calibration, rotate.steps, blocks) },
    };
    learner.run_float_model(plan)?;
    let mut state = match kept {
        Some(state) => learner.resume(state, rotate.steps),
        None => {
            let before = learner.loss()?;
            learner.state(0, before)
        }
    };
    let between = (rotate.steps / KEPT).max(1);
    for index in state.steps..rotate.steps {
        learner.step(&rotate, index)?;
        if (index + 1) % between == 0 {
            state = learner.state(index + 1, state.before);
            file.write(&state).map_err(LearnedRotationError::Kept)?;
        }
    }
    let after = learner.loss()?;
    let report = RotationReport {
        steps: rotate.steps,
        matrices: learner.matrices.len(),
        loss_before: state.before,
        loss_after: after,
        held_out: calibration < all.len(),
        used: after < state.before,
    };
    let state = LearnedState { report: Some(report.clone()), ..learner.state(rotate.steps, state.before) };
    file.write(&state).map_err(LearnedRotationError::Kept)?;
    Ok(LearnedRotation { rotations: state.rotations(&report), report })
}

impl LearnedState {
    /// The matrices; identities where those that were learned are not used.
    fn rotations(&self, report: &RotationReport) -> LearnedRotations {
        let used = |matrix: &BlockDiagonal| match report.used {
            true => Some(matrix.clone()),
            false => BlockDiagonal::identity(matrix.channels(), matrix.size()),
        };
        LearnedRotations::new(self.places.iter().filter_map(|(place, state)| Some((*place, used(&state.matrix)?))))
    }
}

/// Tokens that pass blocks: the float model, the loss twice, and three times those of a batch for each step.
fn work(all: &[Chunk], calibration: usize, steps: u32, blocks: usize) -> u64 {
    let tokens = |chunks: &[Chunk]| chunks.iter().map(|chunk| chunk.tokens.len() as u64).sum::<u64>();
    let measured = if calibration < all.len() { &all[calibration..] } else { all };
    let order: Vec<usize> = (0..calibration).collect();
    let batch = tokens(&all[..calibration]) / batches(all, &order).len().max(1) as u64;
    (tokens(all) + 2 * tokens(measured) + 3 * u64::from(steps) * batch) * blocks as u64
}

/// The places of a model's rotations, each with nothing learned yet.
fn learned_places(decoder: &Decoder<'_>, rotate: &Rotate) -> BTreeMap<RotationPlace, RotationDescent> {
    let mut places = BTreeMap::new();
    let layers = decoder.blueprint().blocks.iter().flat_map(|block| block.layers());
    for layer in layers {
        let weight = decoder.weight(layer);
        let Some(rotation) = weight.rotation() else { continue };
        if let Some(inputs) = rotation.inputs.as_ref().filter(|inputs| inputs.place == RotationPlace::Stream) {
            let learned = || rotate.learned_of_stream(layer.columns);
            let keeps_mean = inputs.rotation.keeps_mean();
            add_place(&mut places, inputs.place, keeps_mean, learned);
        }
        // The rows of a head.
        let of_values = rotation.outputs.as_ref().filter(|outputs| outputs.by.place != RotationPlace::Stream);
        if let Some((outputs, rows)) = of_values.and_then(|outputs| Some((outputs, outputs.rows.first()?))) {
            add_place(&mut places, outputs.by.place, false, || rotate.learned_of_values(rows.len()));
        }
    }
    places
}

fn add_place(
    places: &mut BTreeMap<RotationPlace, RotationDescent>,
    place: RotationPlace,
    keeps_mean: bool,
    learned: impl Fn() -> Option<BlockDiagonal>,
) {
    if let Some(matrix) = learned().filter(|_| !places.contains_key(&place)) {
        places.insert(place, RotationDescent::new(matrix, keeps_mean));
    }
}

/// Counts tokens that have passed a block.
struct Meter<'m> {
    watch: &'m mut dyn FnMut(u64, u64),
    done: u64,
    total: u64,
}

impl Meter<'_> {
    fn advance(&mut self, tokens: usize) {
        self.done = (self.done + tokens as u64).min(self.total);
        (self.watch)(self.done, self.total);
    }
}

/// A rotation being learned.
struct Learner<'l, 'a> {
    model: RoundedModel<'l, 'a>,
    runner: &'l Runner<'l, 'a>,
    /// The calibration data, followed by the held-out data.
    chunks: &'l [Chunk],
    calibration: usize,
    /// What the head reads in the float model, chunk by chunk.
    targets: Streams,
    matrices: BTreeMap<RotationPlace, RotationDescent>,
    memory: u64,
    cancelled: &'l AtomicBool,
    meter: Meter<'l>,
}

impl<'l, 'a> Learner<'l, 'a> {
    fn decoder(&self) -> &'l Decoder<'a> {
        self.model.decoder
    }

    fn blocks(&self) -> usize {
        self.decoder().blueprint().blocks.len()
    }

    fn check_cancelled(&self) -> Result<(), LearnedRotationError> {
        if self.cancelled.load(Ordering::Relaxed) { Err(LearnedRotationError::Cancelled) } else { Ok(()) }
    }

    /// Chunks that the loss is measured on.
    fn measured(&self) -> Range<usize> {
        if self.calibration < self.chunks.len() { self.calibration..self.chunks.len() } else { 0..self.chunks.len() }
    }

    /// What the float model gives, and the static scales of what it reads.
    fn run_float_model(&mut self, plan: &Plan) -> Result<(), LearnedRotationError> {
        let decoder = self.model.decoder;
        let (chunks, calibration) = (self.chunks, self.calibration);
        let width = decoder.blueprint().head.columns;
        let sizes: Vec<usize> = chunks.iter().map(|chunk| chunk.tokens.len() * width).collect();
        self.targets = Streams::new(&sizes, self.memory)?;
        let observer = ObserverHook::new(Statistics::new(plan)?);
        let cpu = Cpu::default();
        for (first, part) in [(0, &chunks[..calibration]), (calibration, &chunks[calibration..])] {
            // Scales come from the calibration data alone.
            let hook: Option<&dyn ActivationHook> = if first == 0 { Some(&observer) } else { None };
            let mut pass = Pass::begin(decoder, &cpu, part, self.memory, hook)?;
            for block in 0..self.blocks() {
                decoder.check_block(block)?;
                for (index, chunk) in part.iter().enumerate() {
                    self.check_cancelled()?;
                    pass.block(block, index, |_| {})?;
                    self.meter.advance(chunk.tokens.len());
                }
            }
            for index in 0..part.len() {
                let hidden = pass.hidden(index)?;
                self.targets.put(first + index, hidden)?;
            }
        }
        if !plan.sites().is_empty() {
            self.model.parameters = resolve(plan, &observer.statistics())?.parameters;
        }
        Ok(())
    }

    /// The state after so many steps.
    fn state(&self, steps: u32, before: f64) -> LearnedState {
        let places = self.matrices.iter().map(|(place, learned)| (*place, learned.state())).collect();
        LearnedState { steps, before, places, report: None }
    }

    /// Continues from a state; from the beginning where it is not of this model's places.
    fn resume(&mut self, state: LearnedState, steps: u32) -> LearnedState {
        for (place, learned) in &mut self.matrices {
            let keeps_mean = learned.keeps_mean();
            let resumed = state.places.get(place).and_then(|state| RotationDescent::resume(state.clone(), keeps_mean));
            if let Some(resumed) = resumed {
                *learned = resumed;
            }
        }
        let share = |total: u64| total * u64::from(state.steps) / u64::from(steps.max(1));
        self.meter.done += share(self.meter.total.saturating_sub(self.meter.done));
        state
    }

    /// The matrices as they are.
    fn step_matrices(&self) -> BTreeMap<RotationPlace, StepMatrix> {
        self.matrices.iter().map(|(place, learned)| (*place, StepMatrix::of(learned.matrix()))).collect()
    }

    /// What the first block reads.
    fn embedded(
        &self,
        chunk: &Chunk,
        matrices: &BTreeMap<RotationPlace, StepMatrix>,
    ) -> Result<Vec<f32>, ForwardError> {
        let x = self.runner.embed(ForwardOptions::default(), &chunk.tokens, chunk)?;
        Ok(match matrices.get(&RotationPlace::Stream) {
            Some(stream) => stream.forward(&x),
            None => x,
        })
    }

    /// The mean divergence of the model with the matrices as they are.
    fn loss(&mut self) -> Result<f64, LearnedRotationError> {
        let (matrices, measured) = (self.step_matrices(), self.measured());
        let all: &'l [Chunk] = self.chunks;
        let chunks = &all[measured.clone()];
        let sizes: Vec<usize> = chunks.iter().map(|chunk| chunk.tokens.len() * self.decoder().width()).collect();
        let mut streams = Streams::new(&sizes, self.memory)?;
        for (index, chunk) in chunks.iter().enumerate() {
            streams.put(index, self.embedded(chunk, &matrices)?)?;
        }
        for block in 0..self.blocks() {
            let rotated = self.model.block(block, &matrices)?;
            for (index, chunk) in chunks.iter().enumerate() {
                self.check_cancelled()?;
                let x = streams.take(index)?;
                streams.put(index, self.run_block(block, &rotated, &x, chunk)?)?;
                self.meter.advance(chunk.tokens.len());
            }
        }
        let (mut sum, mut rows) = (0.0, 0);
        for (index, chunk) in chunks.iter().enumerate() {
            sum += self.divergence(measured.start + index, &streams.take(index)?, &matrices)?.0;
            rows += chunk.tokens.len();
        }
        let loss = sum / rows.max(1) as f64;
        if loss.is_finite() { Ok(loss) } else { Err(LearnedRotationError::NotFinite(loss)) }
    }

    fn run_block(
        &self,
        block: usize,
        rotated: &RotatedBlock<'a>,
        x: &[f32],
        chunk: &Chunk,
    ) -> Result<Vec<f32>, LearnedRotationError> {
        let gradient = BlockGradient::new(self.runner, block)?;
        let options = ForwardOptions { overlay: Some(&rotated.overlay), ..ForwardOptions::default() };
        Ok(gradient.forward(options, &rotated.weights, x, chunk).output().to_vec())
    }

    /// The sum of divergences for the stream behind the last block, and its gradient by that.
    fn divergence(
        &self,
        chunk: usize,
        x: &[f32],
        matrices: &BTreeMap<RotationPlace, StepMatrix>,
    ) -> Result<(f64, Vec<f32>), LearnedRotationError> {
        let (target, length) = (self.targets.copy(chunk)?, self.chunks[chunk].length);
        let Some(stream) = matrices.get(&RotationPlace::Stream) else {
            let found = divergence_gradient(self.runner, length, x, &target);
            return Ok((found.sum, found.gradient));
        };
        let found = divergence_gradient(self.runner, length, &stream.back(x), &target);
        Ok((found.sum, stream.forward(&found.gradient)))
    }

    /// The chunks of a step. In each round over the data, they follow each other in an order of its own.
    fn batch(&self, rotate: &Rotate, index: u32) -> Vec<usize> {
        let mut before = index as usize;
        for round in 0.. {
            let mut order: Vec<usize> = (0..self.calibration).collect();
            SplitMix64::new(mix(u64::from(rotate.seed), [round, 0, 0])).shuffle(&mut order);
            let mut batches = batches(self.chunks, &order);
            if before < batches.len() {
                return batches.swap_remove(before);
            }
            before -= batches.len();
        }
        Vec::new()
    }

    /// The gradient of the mean divergence on some chunks by the matrices, `R' df/dR`, and that divergence.
    fn gradient(&mut self, batch: &[usize]) -> Result<(GradientSums, f64), LearnedRotationError> {
        let all: &'l [Chunk] = self.chunks;
        let (matrices, blocks, width) = (self.step_matrices(), self.blocks(), self.decoder().width());
        let chunks: Vec<&Chunk> = batch.iter().map(|at| &all[*at]).collect();
        let (count, tokens) = (chunks.len(), chunks.iter().map(|chunk| chunk.tokens.len()).sum::<usize>());
        // What each block reads, and behind them what the head does.
        let sizes = (0..=blocks).flat_map(|_| &chunks).map(|chunk| chunk.tokens.len() * width);
        let mut read = Streams::new(&sizes.collect::<Vec<_>>(), self.memory)?;
        for (index, chunk) in chunks.iter().enumerate() {
            read.put(index, self.embedded(chunk, &matrices)?)?;
        }
        for block in 0..blocks {
            self.check_cancelled()?;
            let rotated = self.model.block(block, &matrices)?;
            for (index, chunk) in chunks.iter().enumerate() {
                let x = read.copy(block * count + index)?;
                read.put((block + 1) * count + index, self.run_block(block, &rotated, &x, chunk)?)?;
            }
            self.meter.advance(tokens);
        }
        let (mut sums, mut sum) = (GradientSums::of(&matrices), 0.0);
        for (index, at) in batch.iter().enumerate() {
            let x = read.take(blocks * count + index)?;
            let (of_chunk, slope) = self.divergence(*at, &x, &matrices)?;
            sum += of_chunk;
            // Turning the stream back for the head is `x R'`, whose gradient has both rows exchanged.
            let both = [&slope, &x].map(|data| GradientRows { data, width });
            sums.add_rows(RotationPlace::Stream, both);
            // The gradient of what a block gives takes the place of what the next one reads.
            read.put(blocks * count + index, slope)?;
        }
        for block in (0..blocks).rev() {
            self.check_cancelled()?;
            let rotated = self.model.block(block, &matrices)?;
            let gradient = BlockGradient::new(self.runner, block)?;
            let options = ForwardOptions { overlay: Some(&rotated.overlay), ..ForwardOptions::default() };
            for (index, chunk) in chunks.iter().enumerate() {
                let (x, slope) = (read.take(block * count + index)?, read.take((block + 1) * count + index)?);
                let recorded = gradient.forward(options, &rotated.weights, &x, *chunk);
                let slope = recorded.backward_with(slope, &mut BlockSums { block: &rotated, sums: &mut sums });
                if block == 0 {
                    let both = [&x, &slope].map(|data| GradientRows { data, width });
                    sums.add_rows(RotationPlace::Stream, both);
                }
                read.put(block * count + index, slope)?;
            }
            self.meter.advance(2 * tokens);
        }
        Ok((sums, sum / tokens.max(1) as f64))
    }

    /// A step of all matrices, by the gradient of one batch.
    fn step(&mut self, rotate: &Rotate, index: u32) -> Result<(), LearnedRotationError> {
        let batch = self.batch(rotate, index);
        let (sums, _) = self.gradient(&batch)?;
        let tokens: usize = batch.iter().map(|at| self.chunks[*at].tokens.len()).sum();
        for (place, learned) in &mut self.matrices {
            learned.step(&sums.of_place(*place, 1.0 / tokens.max(1) as f64), rotate.angle(index));
        }
        Ok(())
    }
}

/// Chunks in an order, as many together as have no more tokens than a chunk may have.
fn batches(chunks: &[Chunk], order: &[usize]) -> Vec<Vec<usize>> {
    let (mut batches, mut tokens): (Vec<Vec<usize>>, usize) = (Vec::new(), 0);
    for at in order {
        let more = chunks[*at].tokens.len();
        match batches.last_mut().filter(|_| tokens + more <= LONG) {
            Some(batch) => batch.push(*at),
            None => {
                batches.push(vec![*at]);
                tokens = 0;
            }
        }
        tokens += more;
    }
    batches
}

#[cfg(test)]
mod tests;
