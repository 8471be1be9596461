//! What a calibrated run takes, estimated from the plan before anything is read: arithmetic, memory, disk. Counts are of
//! the large terms alone.

mod learned_rotation;

use super::{Plan, PlannedBlock, PlannedStage};
use kvant_forward::float_file;
use kvant_forward::forward::{LONG, StopAt, WIDE};
use kvant_numeric::linalg::Precision;
use kvant_quant::hessian::Hessian;
use kvant_quant::rounding::{AnyRounding, Needs};
use kvant_quant::tuning::Tuning;
use learned_rotation::LearnedRotationCost;
use std::collections::BTreeSet;

/// Tokens, about, on which scales are tried where attention mixes those of a sequence: few whole ones.
pub(crate) const SEARCH_TOKENS: usize = 2048;

/// Tokens, about, on which scales are tried elsewhere: half as many from all sequences tell as much.
pub(crate) const SEARCH_ROWS: usize = 1024;

/// Rows of inputs, about, that are kept of the sequences that are held out.
pub(crate) const HELD_OUT_ROWS: u64 = 512;

/// How much calibration data there is, and how much memory it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalibrationSize {
    /// Sequences.
    pub sequences: u64,
    /// Further sequences, on which losses are measured.
    pub held_out: u64,
    /// Tokens of one.
    pub length: u64,
    /// Bytes of Hessians that are kept at a time. Inputs that a search looks at are those of so many tokens, whatever the budget.
    pub memory: u64,
    /// Bytes that tokenizing the data takes, before all else.
    pub tokenizing: u64,
    /// That of activations.
    pub precision: Precision,
}

impl CalibrationSize {
    /// Tokens of all sequences.
    pub fn tokens(self) -> u64 {
        self.sequences.saturating_mul(self.length)
    }

    /// Tokens of a batch.
    fn batch(self) -> u64 {
        (LONG as u64).min(self.tokens()).max(self.length)
    }

    /// Tokens of all sequences, with those that are held out.
    fn all_tokens(self) -> u64 {
        self.sequences.saturating_add(self.held_out).saturating_mul(self.length)
    }

    /// Activations of a chunk whose widest row has `widest` elements.
    fn chunk(self, widest: u64) -> u64 {
        let most = (WIDE as u64 / widest.max(1)).min(LONG as u64).max(self.length);
        most.min(self.tokens()).saturating_mul(widest)
    }

    /// Bytes of passing the data through a model whose widest layer has `widest` rows or columns, beside its weights.
    pub(crate) fn pass_memory(self, widest: u64) -> u64 {
        (BESIDE + ALIVE * self.chunk(widest) * FLOAT).max(self.tokenizing)
    }
}

/// What a calibrated run takes, about. Floating-point operations count a multiplication and an addition as two.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct CalibrationCost {
    /// Tokens of the data.
    pub tokens: u64,
    /// Operations of running blocks, searches aside.
    pub passes: f64,
    /// Operations of trials of scales.
    pub search: f64,
    /// Operations of Gram matrices: Hessians and input mismatches.
    pub hessians: f64,
    /// Operations of factors, and of choosing codes column by column.
    pub rounding: f64,
    /// Operations of the steps that tune blocks.
    pub tuning: f64,
    /// Operations of the steps that learn a rotation.
    pub rotation: f64,
    /// Bytes of private memory at the peak.
    pub peak_memory: u64,
    /// Bytes of the files with activations between blocks, beside the output.
    pub disk: u64,
}

impl CalibrationCost {
    /// All floating-point operations.
    pub fn operations(&self) -> f64 {
        self.passes + self.search + self.hessians + self.rounding + self.tuning + self.rotation
    }
}

impl Plan {
    /// The cost of running the recipe's algorithms; `None` if none needs calibration.
    pub fn calibration_cost(&self, size: CalibrationSize, threads: usize) -> Option<CalibrationCost> {
        let learned =
            self.recipe.algorithms().learned_rotation().map(|rotate| LearnedRotationCost::of(self, rotate, size));
        if self.blocks.is_empty() && learned.is_none() {
            return None;
        }
        let learned = learned.unwrap_or_default();
        let rounding = &self.recipe.algorithms().rounding;
        let estimate = Estimate { plan: self, size, rounding, needs: rounding.needs() };
        let total = |of: &dyn Fn(&PlannedBlock) -> f64| self.blocks.iter().map(of).fold(0.0, |sum, cost| sum + cost);
        let in_blocks = self.blocks.iter().map(|block| estimate.memory(block)).max().unwrap_or(0);
        Some(CalibrationCost {
            tokens: size.tokens(),
            passes: total(&|block| estimate.passes(block)),
            search: total(&|block| estimate.search(block)),
            hessians: total(&|block| estimate.hessians(block)),
            rounding: total(&|block| estimate.rounding(block)),
            tuning: total(&|block| estimate.tuning(block)),
            rotation: learned.operations,
            peak_memory: self
                .peak_memory(threads)
                .saturating_add((BESIDE + in_blocks.max(learned.memory)).max(size.tokenizing)),
            disk: estimate.disk().max(learned.disk),
        })
    }
}

impl Plan {
    /// An upper bound of the private memory of a run that observes activations and runs no algorithm, in bytes.
    pub fn observing_memory(&self, size: CalibrationSize, threads: usize) -> u64 {
        let widest = self.layers.iter().map(|layer| layer.rows.max(layer.columns) as u64).max().unwrap_or(0);
        self.peak_memory(threads).saturating_add(size.pass_memory(widest))
    }
}

/// Files with activations: what a block reads, and what it puts out.
const FILES: u64 = 2;

/// Bytes of packed tiles, of gathered rows of experts, and of what was freed and is not given back yet.
const BESIDE: u64 = 160 << 20;

/// Bytes of an activation.
const FLOAT: u64 = 4;

struct Estimate<'a> {
    plan: &'a Plan,
    size: CalibrationSize,
    rounding: &'a AnyRounding,
    needs: Needs,
}

/// Layers that share a Hessian: their inputs, the outputs of all, and the share of the tokens that they see.
struct SharedInputGroup {
    features: f64,
    outputs: f64,
    share: f64,
}

/// Sizes of the layers of a block.
#[derive(Clone, Copy)]
struct BlockSizes {
    /// Weights of all layers.
    weights: u64,
    /// Weights of the largest layer.
    largest: u64,
    /// Inputs or outputs of the widest layer.
    widest: u64,
}

impl Estimate<'_> {
    /// Models that run side by side.
    fn lanes(&self) -> u64 {
        if self.compares() || !self.plan.recipe.algorithms().tunings.is_empty() { 2 } else { 1 }
    }

    /// Returns whether the rounding compares the quantized model's inputs with the float model's.
    fn compares(&self) -> bool {
        self.needs >= Needs::InputMismatch
    }

    /// Steps of tunings: a run forwards and two backwards, each of a chunk. Besides, runs on all data before them and to measure losses.
    fn tuning(&self, block: &PlannedBlock) -> f64 {
        let tokens = self.size.batch() as f64;
        let run = 2.0 * block.work.of_run(None, self.size.length) as f64;
        let of = |tuning: &Tuning| {
            let measured = f64::from(1 + tuning.measurements()) * self.measured_tokens() as f64;
            run * (3.0 * f64::from(tuning.iterations()) * tokens + self.all_tokens() as f64 + measured)
        };
        self.plan.recipe.algorithms().tunings.iter().map(of).sum()
    }

    /// Tokens on which losses of blocks are measured.
    fn measured_tokens(&self) -> u64 {
        let held_out = self.size.held_out.saturating_mul(self.size.length);
        if held_out > 0 { held_out } else { self.size.tokens() }
    }

    /// Bytes of it: what is kept of all weights, the gradient and values of a layer, and all that a chunk's steps have read and give, with
    /// gradients of it. Steps between layers make about as much as layers read and give.
    fn tuning_memory(&self, block: &PlannedBlock, sizes: BlockSizes) -> u64 {
        let floats = self.plan.recipe.algorithms().tunings.iter().map(Tuning::floats_of_weight).max();
        let Some(floats) = floats else { return 0 };
        let BlockSizes { weights, largest, widest } = sizes;
        let tokens = self.size.chunk(widest) / widest.max(1);
        let readers = self.readers(block);
        let of_token: f64 = readers.iter().map(|group| group.share * (group.features + group.outputs)).sum();
        let on_tape = tokens * ((ON_TAPE * of_token) as u64 + 2 * widest);
        FLOAT * (floats * weights + 2 * largest + on_tape)
    }

    /// Returns whether there are runs up to each stage.
    fn sees_inputs(&self) -> bool {
        self.plan.recipe.algorithms().see_inputs()
    }

    fn tokens(&self) -> f64 {
        self.size.tokens() as f64
    }

    /// Tokens that pass, with those that are held out.
    fn all_tokens(&self) -> u64 {
        self.size.all_tokens()
    }

    fn run(&self, block: &PlannedBlock, until: Option<StopAt>) -> f64 {
        2.0 * self.all_tokens() as f64 * block.work.of_run(until, self.size.length) as f64
    }

    /// A look for each transform, and runs up to each stage of a rounding by columns and to the end, whose outputs the next
    /// block reads. Each goes on where one before it has ended, if it can.
    fn passes(&self, block: &PlannedBlock) -> f64 {
        let looks = self.plan.recipe.algorithms().transforms.len() as f64 * self.run(block, None);
        let depths: BTreeSet<_> = block.stages.iter().map(|stage| stage.depth).collect();
        let (mut runs, mut reached) = (0.0, None);
        let known = |reached: Option<StopAt>| reached.map_or(0.0, |depth| self.run(block, Some(depth)));
        for depth in depths.into_iter().filter(|_| self.sees_inputs()) {
            runs += self.run(block, Some(depth)) - known(reached);
            reached = if block.work.resumes.contains(&depth) { Some(depth) } else { reached };
        }
        // Statistics of activations are of the whole block.
        let reached = reached.filter(|_| self.plan.sites.is_empty());
        looks + self.lanes() as f64 * (runs + self.run(block, None) - known(reached))
    }

    /// Bytes of files: what a block reads and puts out, and what its runs go on from.
    fn disk(&self) -> u64 {
        let width = self.plan.blocks.iter().map(|block| block.work.width).max().unwrap_or(0);
        let layers = self.plan.blocks.iter().flat_map(PlannedBlock::layers);
        let widest = layers.map(|layer| self.plan.layer(layer).columns).max().unwrap_or(0);
        let reached = if self.sees_inputs() { width + widest } else { 0 };
        self.lanes()
            * self.all_tokens()
            * (FILES * width as u64 + reached as u64)
            * float_file::size(self.size.precision) as u64
    }

    fn search(&self, block: &PlannedBlock) -> f64 {
        let trials: u32 = self.plan.recipe.algorithms().transforms.iter().map(|transform| transform.trials()).sum();
        let of_links = |tokens: usize, trial: u64| self.size.tokens().min(tokens as u64) as f64 * trial as f64;
        let work = &block.work;
        let trial = of_links(SEARCH_TOKENS, work.trial_of_attention) + of_links(SEARCH_ROWS, work.trial_of_rows);
        2.0 * f64::from(trials) * trial
    }

    /// The lower half of `X^T X`, and all of the input mismatch.
    fn hessians(&self, block: &PlannedBlock) -> f64 {
        let of_token = |readers: &SharedInputGroup| {
            let square = readers.features * readers.features;
            readers.share * if self.compares() { 3.0 * square } else { square }
        };
        if self.needs == Needs::Nothing {
            return 0.0;
        }
        self.readers(block).iter().map(|readers| self.tokens() * of_token(readers)).sum()
    }

    fn rounding(&self, block: &PlannedBlock) -> f64 {
        let of_group =
            |group: &SharedInputGroup| self.rounding.operations(group.features as usize, group.outputs as usize);
        if self.needs == Needs::Nothing { 0.0 } else { self.readers(block).iter().map(of_group).sum() }
    }

    fn readers(&self, block: &PlannedBlock) -> Vec<SharedInputGroup> {
        let (routed, experts) = block.work.routed;
        let share = |stage: &PlannedStage| if stage.is_routed() { routed as f64 / experts.max(1) as f64 } else { 1.0 };
        let of_stage = |stage: &PlannedStage| {
            let layers = stage.layers.iter().map(|index| self.plan.layer(*index));
            let mut readers: Vec<(Option<usize>, SharedInputGroup)> = Vec::new();
            for layer in layers {
                let outputs = layer.rows as f64;
                match readers.iter_mut().find(|(expert, _)| *expert == layer.source.expert) {
                    Some((_, readers)) => readers.outputs += outputs,
                    None => {
                        let new = SharedInputGroup { features: layer.columns as f64, outputs, share: share(stage) };
                        readers.push((layer.source.expert, new));
                    }
                }
            }
            readers.into_iter().map(|(_, readers)| readers).collect::<Vec<_>>()
        };
        block.stages.iter().flat_map(of_stage).collect()
    }

    /// Codes of the block, the Hessians of a pass and the factors of one, the layer in work, the inputs of a search, and the activations
    /// of a chunk.
    fn memory(&self, block: &PlannedBlock) -> u64 {
        let layers = || block.layers().map(|index| self.plan.layer(index));
        let weights = |rows: usize, columns: usize| (rows * columns) as u64;
        let codes: u64 = layers().map(|layer| weights(layer.rows, layer.columns)).sum();
        let largest = layers().map(|layer| weights(layer.rows, layer.columns)).max().unwrap_or(0);
        let widest = layers().map(|layer| layer.rows.max(layer.columns) as u64).max().unwrap_or(0);
        let chunk = self.size.chunk(widest);
        let rounding =
            self.hessian_memory(block) + IN_WORK * largest + ALIVE * chunk * FLOAT + self.search_memory(block);
        let sizes = BlockSizes { weights: codes, largest, widest };
        codes + rounding.max(self.tuning_memory(block, sizes))
    }

    fn hessian_memory(&self, block: &PlannedBlock) -> u64 {
        if self.needs == Needs::Nothing {
            return 0;
        }
        let mismatch = self.compares();
        let readers = self.readers(block);
        let held_out = (self.size.held_out.saturating_mul(self.size.length)).min(2 * HELD_OUT_ROWS);
        let bytes = |readers: &SharedInputGroup| {
            Hessian::bytes(readers.features as usize, mismatch) + held_out * readers.features as u64 * FLOAT
        };
        let bytes: Vec<u64> = readers.iter().map(bytes).collect();
        let largest = bytes.iter().copied().max().unwrap_or(0);
        let layers = block.layers().map(|index| self.plan.layer(index));
        let factors = layers.map(|layer| self.rounding.peak_bytes(layer.columns, layer.rows)).max().unwrap_or(0);
        factors + bytes.iter().sum::<u64>().min(self.size.memory.max(largest))
    }

    fn search_memory(&self, block: &PlannedBlock) -> u64 {
        let tokens = self.size.tokens().min(SEARCH_TOKENS as u64);
        let kept: u64 = self.readers(block).iter().map(|readers| (readers.share * readers.features) as u64).sum();
        let searches = !self.plan.recipe.algorithms().transforms.is_empty();
        if searches { tokens * FLOAT * (kept + 2 * block.work.width as u64) } else { 0 }
    }
}

/// Bytes for each weight of the layer in work: its values, its codes, those that are rounded to nearest and their values.
const IN_WORK: u64 = 14;

/// Widest activations that exist at a time: those of gate, up, their product, and what is kept to be looked at.
const ALIVE: u64 = 6;

/// How much a tape holds at most of a token, with gradients, as a multiple of what layers read and give.
const ON_TAPE: f64 = 2.5;
