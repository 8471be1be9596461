//! The loop over blocks: input from one file, output to another, results made durable after each.

use super::error::BlockwiseError;
use super::meter::{BlockProgress, BlockStage, Meter};
use super::reached::{PartialForward, Recording};
use super::state::{BlockResults, State};
use super::streams::{StreamFile, StreamShape};
use super::work::{Jobs, Work};
use crate::calibration::{ObserverHook, Statistics};
use crate::engine::{Engine, Output, Silent, refuse_lost};
use crate::folding::ScaleFusion;
use crate::plan::{Plan, PlannedBlock};
use kvant_container::Checkpoint;
use kvant_data::calibration::HeldOut;
use kvant_forward::forward::ops::Ops;
use kvant_forward::forward::{ActivationHook, Chunk, Decoder, ForwardOptions, Runner, StopAt, chunks};
use kvant_numeric::linalg::Precision;
use kvant_quant::distribution::Distribution;
use kvant_quant::rounding::{AnyRounding, Needs};
use kvant_weights::activation_point::ActivationPoint;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// The activations that the next block receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Propagate {
    /// The output of the quantized block: later blocks compensate for the errors of earlier ones.
    #[default]
    Quantized,
    /// The output of the float block.
    Float,
}

impl Propagate {
    /// Both.
    pub const ALL: [Propagate; 2] = [Propagate::Quantized, Propagate::Float];

    /// The spelling.
    pub fn name(self) -> &'static str {
        match self {
            Propagate::Quantized => "quantized",
            Propagate::Float => "float",
        }
    }
}

/// How to run.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'s> {
    /// The output, beside which the state is kept.
    pub target: &'s Path,
    /// The state's other dependency besides the plan: the data.
    pub key: &'s str,
    /// Bytes that the Hessians of one pass may take; one Hessian is held in any case.
    pub memory: u64,
    /// The input of the next block.
    pub propagate: Propagate,
    /// The points whose distributions are gathered for a report.
    pub shown: &'s [ActivationPoint],
}

/// The inputs of a run.
pub struct Sources<'r, 'a> {
    /// The plan.
    pub plan: &'r Plan,
    /// The source.
    pub checkpoint: &'r Checkpoint,
    /// The model in it.
    pub decoder: &'r Decoder<'a>,
    /// The compute backend.
    pub ops: &'r dyn Ops,
    /// The calibration data.
    pub sequences: &'r [Vec<u32>],
    /// Further sequences, on which losses are measured: no algorithm sees them.
    pub held_out: &'r [Vec<u32>],
    /// The started output.
    pub output: &'r Output,
}

/// Data shared by all blocks.
pub(super) struct Blockwise<'r, 'a> {
    pub(super) plan: &'r Plan,
    pub(super) decoder: &'r Decoder<'a>,
    pub(super) ops: &'r dyn Ops,
    pub(super) runner: Runner<'r, 'a>,
    pub(super) engine: Engine<'r>,
    pub(super) jobs: Jobs,
    /// The calibration data, followed by the held-out data.
    pub(super) chunks: Vec<Chunk>,
    /// How many of the chunks are calibration data.
    calibration_chunks: usize,
    /// Calibration tokens.
    pub(super) tokens: u64,
    /// Tokens that are held out.
    pub(super) held_out_tokens: u64,
    pub(super) memory: u64,
    pub(super) meter: Meter<'r>,
    pub(super) cancelled: &'r AtomicBool,
    propagate: Propagate,
}

/// Rounds all blocks of a plan, and returns the results. Layers and tensors outside the blocks are left to
/// [`engine::run`](crate::engine::run) with the same output; so is the rest of a run that was killed after the last block.
///
/// After an error, a cancellation or a kill the same call resumes at the block in which it stopped, with identical
/// bytes: `resumes` receives the number of finished blocks then. `watch` receives the progress.
///
/// # Errors
/// See [`BlockwiseError`].
pub fn run(
    sources: &Sources<'_, '_>,
    settings: Settings<'_>,
    cancelled: &AtomicBool,
    watch: &(dyn Fn(BlockProgress) + Sync),
    resumes: &(dyn Fn(usize) + Sync),
) -> Result<BlockResults, BlockwiseError> {
    let Sources { plan, checkpoint, decoder, ops, sequences, held_out, output } = *sources;
    let [mut all, behind] = [sequences, held_out].map(|data| chunks(decoder, data.iter().map(Vec::as_slice)));
    let [tokens, held_out_tokens] = [&all, &behind].map(|chunks| chunks.iter().map(|c| c.tokens.len() as u64).sum());
    let calibration_chunks = all.len();
    all.extend(behind);
    let blockwise = Blockwise {
        plan,
        decoder,
        ops,
        runner: Runner::new(decoder, ops),
        engine: Engine::new(plan, checkpoint, output, cancelled, &Silent)?,
        jobs: Jobs::new(plan),
        chunks: all,
        calibration_chunks,
        tokens,
        held_out_tokens,
        memory: settings.memory,
        cancelled,
        meter: Meter::new(watch, plan.blocks().len(), tokens),
        propagate: settings.propagate,
    };
    let mut found = blockwise.run(settings, resumes)?;
    found.report.held_out = HeldOut::of(held_out);
    Ok(found)
}

impl<'r, 'a> Blockwise<'r, 'a> {
    fn run(&self, settings: Settings<'_>, resumes: &dyn Fn(usize)) -> Result<BlockResults, BlockwiseError> {
        let mut state = self.state(settings)?;
        if state.found.blocks > 0 {
            resumes(state.found.blocks);
        }
        let work = self.work_by_blocks();
        self.meter.begin(work[state.found.blocks], work[self.plan.blocks().len()]);
        for index in state.found.blocks..self.plan.blocks().len() {
            let (next, found) = self.block(index, &state)?;
            refuse_lost(self.engine.checkpoint)?;
            state.commit(next, found).map_err(BlockwiseError::streams("write"))?;
            self.meter.settle(work[index + 1]);
        }
        self.observe_rest(&mut state)?;
        Ok(state.found)
    }

    /// The state of an earlier run, if complete; otherwise a new one.
    fn state(&self, settings: Settings<'_>) -> Result<State, BlockwiseError> {
        let key = format!("{} {} {}", self.plan.fingerprint(), settings.key, settings.propagate.name());
        let shape = self.shape(self.decoder.width());
        if let Some(state) = State::resume(settings.target, &key, &shape).filter(|state| self.agrees(state)) {
            return Ok(state);
        }
        let state = State::begin(settings.target, &key, &shape, BlockResults::default());
        let mut state = state.map_err(BlockwiseError::streams("make room for"))?;
        // Some layers stand before the blocks.
        let statistics = Statistics::new(self.plan).unwrap_or_default();
        let watcher = ObserverHook::new(statistics.with_distributions(settings.shown));
        for (index, chunk) in self.chunks.iter().enumerate() {
            let options = ForwardOptions { tap: self.tap(&watcher, index), ..ForwardOptions::default() };
            let x = self.runner.embed(options, &chunk.tokens, chunk)?;
            for lane in 0..self.streams() {
                state.current.write(lane, index, &x).map_err(BlockwiseError::streams("write"))?;
            }
        }
        // Blocks do not read the embeddings.
        self.decoder.tensors().release(&self.decoder.blueprint().embedding);
        state.found.statistics = watcher.statistics();
        Ok(state)
    }

    /// Returns whether the journal has all jobs of the blocks recorded as done.
    fn agrees(&self, state: &State) -> bool {
        let done = self.plan.blocks().iter().take(state.found.blocks);
        let mut layers = done.flat_map(PlannedBlock::layers);
        state.found.blocks <= self.plan.blocks().len()
            && layers.all(|layer| self.engine.is_finished(self.jobs.of_layer(layer)))
            && state.found.changed.iter().all(|job| self.engine.is_finished(*job))
    }

    /// The data of algorithms.
    pub(super) fn calibration(&self) -> Range<usize> {
        0..self.calibration_chunks
    }

    /// The data of losses.
    pub(super) fn held_out(&self) -> Range<usize> {
        self.calibration_chunks..self.chunks.len()
    }

    /// The hook on a chunk, which is for calibration data only.
    fn tap<'t>(&self, watcher: &'t ObserverHook, chunk: usize) -> Option<&'t dyn ActivationHook> {
        let watcher: &dyn ActivationHook = watcher;
        self.calibration().contains(&chunk).then_some(watcher)
    }

    fn streams(&self) -> usize {
        if self.sees_mismatch() || self.is_tuned() { 2 } else { 1 }
    }

    /// Whether the rounding compares what layers read with the float model.
    pub(super) fn sees_mismatch(&self) -> bool {
        self.needs() >= Needs::InputMismatch
    }

    /// Of files with rows of so many columns.
    fn shape(&self, columns: usize) -> StreamShape {
        self.shape_of(columns, self.streams())
    }

    /// Of files with a number for each row that a block changes.
    fn shape_of_rows(&self, block: usize) -> StreamShape {
        let sizes = self.chunks.iter().map(|chunk| chunk.rows_of(self.decoder.stacks(), block)).collect();
        StreamShape { sizes, streams: self.streams(), precision: self.precision() }
    }

    /// The same for so many streams.
    pub(super) fn shape_of(&self, columns: usize, streams: usize) -> StreamShape {
        let sizes = self.chunks.iter().map(|chunk| chunk.tokens.len() * columns).collect();
        StreamShape { sizes, streams, precision: self.precision() }
    }

    fn needs(&self) -> Needs {
        self.rounding().needs()
    }

    /// The rounding.
    pub(super) fn rounding(&self) -> &'r AnyRounding {
        &self.plan.recipe().algorithms().rounding
    }

    /// Quantizes a block; returns its outputs and the results so far.
    fn block(&self, index: usize, state: &State) -> Result<(StreamFile, BlockResults), BlockwiseError> {
        self.decoder.check_block(index)?;
        let foldings = self.foldings(index);
        let mut work = Work::new(&self.plan.blocks()[index], &state.current, foldings);
        work.distributions = self.unseen_distributions(index, &state.found.statistics);
        self.meter.enter(index, BlockStage::Scales);
        self.transform(&mut work)?;
        work.add_samples_to_distributions();
        self.meter.enter(index, BlockStage::Rounding);
        self.round(&mut work)?;
        if self.is_tuned() {
            self.meter.enter(index, BlockStage::Tuning);
            self.tune(&mut work)?;
        }
        self.check_finished(index)?;
        let changed = self.write_changed(&work)?;
        let watcher = ObserverHook::new(state.found.statistics.clone());
        let next = state.next().map_err(BlockwiseError::streams("make room for"))?;
        if index + 1 < self.plan.blocks().len() || !self.plan.sites().is_empty() {
            self.meter.enter(index, BlockStage::Outputs);
            self.propagate_block(&work, &watcher, &next)?;
        }
        let mut found = state.found.clone();
        found.blocks = index + 1;
        found.statistics = watcher.statistics();
        for (module, distribution) in work.distributions {
            found.statistics.insert_distribution(ActivationPoint::Input(module), distribution);
        }
        found.report.extend(work.report);
        found.changed.extend(changed);
        Ok((next, found))
    }

    /// The distributions that are gathered of what the layers of a block read, without those that are gathered with statistics for static
    /// scales.
    fn unseen_distributions(&self, index: usize, statistics: &Statistics) -> BTreeMap<String, Distribution> {
        let layers = self.plan.blocks()[index].layers().map(|layer| &self.plan.layer(layer).module);
        let unseen = |module: &String| {
            let point = ActivationPoint::Input(module.clone());
            let distribution = statistics.distribution(&point).filter(|_| statistics.get(&point).is_none())?;
            Some((module.clone(), distribution.clone()))
        };
        layers.filter_map(unseen).collect()
    }

    /// Unrounded modules keep their type, even where scales are moved into them.
    fn foldings(&self, index: usize) -> ScaleFusion<'r, 'a> {
        let layers = self.plan.blocks()[index].layers();
        let rounded: HashSet<&str> = layers.flat_map(|layer| self.plan.layer(layer).names()).collect();
        let (network, tensors) = (self.decoder.network(), self.decoder.tensors());
        ScaleFusion::new(network, tensors, self.decoder.network().blocks()[index], |module| !rounded.contains(module))
    }

    /// Checks that all layers of a block are written: missing ones would be quantized from the source again, without their scales.
    fn check_finished(&self, index: usize) -> Result<(), BlockwiseError> {
        let mut layers = self.plan.blocks()[index].layers();
        let open = layers.find(|layer| !self.engine.is_finished(self.jobs.of_layer(*layer)));
        match open {
            None => Ok(()),
            Some(layer) => Err(BlockwiseError::Unfinished { layer: self.plan.layer(layer).name.clone() }),
        }
    }

    /// One more pass of the block, as it is now, gives what the next one reads.
    fn propagate_block(
        &self,
        work: &Work<'_, '_, 'a>,
        watcher: &ObserverHook,
        next: &StreamFile,
    ) -> Result<(), BlockwiseError> {
        let carried = match self.propagate {
            Propagate::Quantized => &work.rounded,
            Propagate::Float => &work.float,
        };
        // The partial forward is that of the quantized model, and past the points that a hook wants to see.
        let from_start = self.propagate == Propagate::Float || !self.plan.sites().is_empty();
        for chunk in 0..self.chunks.len() {
            let tap = self.tap(watcher, chunk);
            let variation = ForwardOptions { overlay: Some(carried), tap, ..ForwardOptions::default() };
            let x = match from_start {
                true => self.run_chunk(work, variation, 0, chunk)?,
                false => self.run_partial(work, variation, (0, chunk), None)?,
            };
            next.write(0, chunk, &x).map_err(BlockwiseError::streams("write"))?;
            self.runner.give(x);
            if self.streams() == 2 {
                let variation = ForwardOptions { overlay: Some(&work.float), ..ForwardOptions::default() };
                let x = match self.sees_mismatch() {
                    true => self.run_partial(work, variation, (1, chunk), None)?,
                    // No earlier run has led the float model into the block.
                    false => self.run_chunk(work, variation, 1, chunk)?,
                };
                next.write(1, chunk, &x).map_err(BlockwiseError::streams("write"))?;
                self.runner.give(x);
            }
        }
        self.runner.rest();
        Ok(())
    }

    /// Runs one chunk of a stream through the block, or as far as the options say.
    pub(super) fn run_chunk(
        &self,
        work: &Work<'_, '_, 'a>,
        variation: ForwardOptions<'_, 'a>,
        lane: usize,
        chunk: usize,
    ) -> Result<Vec<f32>, BlockwiseError> {
        let x = self.read(work.input, lane, chunk)?;
        self.lead(work, variation, chunk, x)
    }

    /// The rows of a chunk, in memory that earlier runs have used.
    pub(super) fn read(&self, stream: &StreamFile, lane: usize, chunk: usize) -> Result<Vec<f32>, BlockwiseError> {
        let buffer = self.runner.buffer(stream.elements(chunk));
        stream.read(lane, chunk, buffer).map_err(BlockwiseError::streams("read"))
    }

    /// The same from where earlier runs have come to; what this one comes to is kept in `next`.
    pub(super) fn run_partial(
        &self,
        work: &Work<'_, '_, 'a>,
        variation: ForwardOptions<'_, 'a>,
        (lane, chunk): (usize, usize),
        next: Option<&PartialForward>,
    ) -> Result<Vec<f32>, BlockwiseError> {
        let reached = work.reached.as_ref();
        let stream = reached.and_then(PartialForward::stream).unwrap_or(work.input);
        let x = self.read(stream, lane, chunk)?;
        let inputs = reached.and_then(PartialForward::inputs).map(|file| self.read(file, lane, chunk));
        let inputs = inputs.transpose()?.unwrap_or_default();
        let variation = ForwardOptions { from: reached.and_then(|reached| reached.resume(&inputs)), ..variation };
        let x = match next {
            Some(next) => {
                let recording = Recording::new(next, lane, chunk, variation.tap);
                let x = self.lead(work, ForwardOptions { tap: Some(&recording), ..variation }, chunk, x)?;
                recording.finish(&x).map_err(BlockwiseError::streams("write"))?;
                x
            }
            None => self.lead(work, variation, chunk, x)?,
        };
        self.runner.give(inputs);
        Ok(x)
    }

    fn lead(
        &self,
        work: &Work<'_, '_, 'a>,
        variation: ForwardOptions<'_, 'a>,
        chunk: usize,
        mut x: Vec<f32>,
    ) -> Result<Vec<f32>, BlockwiseError> {
        self.engine.check_cancelled()?;
        let chunk = &self.chunks[chunk];
        // If the run ends early, the hook has seen its inputs.
        let _ = self.runner.block(variation, work.block.index, chunk, &mut x);
        self.meter.advance(chunk.tokens.len() as u64);
        Ok(x)
    }

    /// Room for what runs of a block up to `depth` will leave.
    pub(super) fn room(
        &self,
        work: &Work<'_, '_, 'a>,
        depth: StopAt,
    ) -> Result<Option<PartialForward>, BlockwiseError> {
        let block = (&self.decoder.blueprint().blocks[work.block.index], self.decoder.width());
        let dir = work.input.path().parent().unwrap_or(work.input.path());
        let rows = self.shape_of_rows(work.block.index);
        PartialForward::begin(dir, block, depth, work.reached.as_ref(), [&self.shape(1), &rows])
    }

    /// Writes norms, biases and layers that are kept, where transforms have changed them. The jobs that did it.
    fn write_changed(&self, work: &Work<'_, '_, 'a>) -> Result<Vec<usize>, BlockwiseError> {
        let mut jobs = Vec::new();
        for changed in work.foldings.changed_tensors() {
            for job in self.jobs.of_kept(&changed.name) {
                jobs.push(*job);
                if !self.engine.is_finished(*job) {
                    let pieces = self.engine.write_changed(self.jobs.get(*job), &changed.values)?;
                    self.engine.record(*job, self.jobs.get(*job), pieces)?;
                }
            }
        }
        Ok(jobs)
    }

    /// The statistics of what layers behind the blocks read: the head, or the readouts of an encoder.
    fn observe_rest(&self, state: &mut State) -> Result<(), BlockwiseError> {
        if self.plan.sites().is_empty() {
            return Ok(());
        }
        let watcher = ObserverHook::new(state.found.statistics.clone());
        let with = ForwardOptions { tap: Some(&watcher), ..ForwardOptions::default() };
        for index in self.calibration() {
            let x = self.read(&state.current, 0, index)?;
            let hidden = self.runner.hidden(with, &self.chunks[index], &x);
            for readout in self.decoder.readouts() {
                self.runner.readout_rows(with, &self.chunks[index], readout, &hidden);
            }
            self.runner.give(x);
        }
        state.found.statistics = watcher.statistics();
        Ok(())
    }

    /// Tokens through one pass that no block, the first, the first two and so on cost.
    fn work_by_blocks(&self) -> Vec<u64> {
        let streams = self.streams() as u64;
        let looks = self.plan.recipe().algorithms().see_inputs();
        let of = |block: &PlannedBlock| {
            let stages = if looks { block.stages.len() as u64 * streams } else { 0 };
            (stages + streams) * (self.tokens + self.held_out_tokens) + self.search_work(block) + self.tuning_work()
        };
        let sums = self.plan.blocks().iter().scan(0, |sum, block| {
            *sum += of(block);
            Some(*sum)
        });
        std::iter::once(0).chain(sums).collect()
    }

    pub(super) fn not_finite(&self, block: usize, module: &str) -> BlockwiseError {
        BlockwiseError::NotFinite { block, layer: module.to_owned(), precision: self.precision() }
    }

    pub(super) fn precision(&self) -> Precision {
        self.ops.precision()
    }
}
