//! The gradients of state-space layers with a decay for each head (Mamba 2, lightning attention) and for each channel (Mamba).

use super::super::heads::HeadLayout;
use super::super::heads::Heads;
use super::super::ops::{SelectiveScan, StateSpace};
use super::attention::spread;
use super::recurrence::{PartOfSequence, follow_back, parts_of_sequences};
use super::tape::Var;
use kvant_numeric::linalg::exp;
use kvant_numeric::simd::{Isa, Loop, dispatch};
use rayon::prelude::*;

/// A state-space layer on a tape.
pub(super) struct StateSpaceStep {
    /// What is stored, written by and read by, where `heads` are in its rows of `row_width` elements.
    pub(super) x: Var,
    pub(super) row_width: usize,
    pub(super) heads: [HeadLayout; 3],
    pub(super) steps: Var,
    pub(super) decays: Var,
    pub(super) skips: Vec<f32>,
    pub(super) lengths: Vec<usize>,
}

/// The gradients of what a state-space layer reads.
pub(super) struct StateSpaceGradients {
    pub(super) x: Vec<f32>,
    pub(super) steps: Vec<f32>,
    pub(super) decays: Vec<f32>,
}

/// Gradients of one head of a sequence, a row for each token.
struct Part {
    inputs: Vec<f32>,
    writes: Vec<f32>,
    reads: Vec<f32>,
    steps: Vec<f32>,
    decays: Vec<f32>,
}

impl StateSpaceStep {
    /// The layer that operations compute.
    pub(super) fn space<'v>(&'v self, value: impl Fn(Var) -> &'v [f32]) -> StateSpace<'v> {
        let [inputs, writes, reads] =
            self.heads.map(|layout| Heads { data: value(self.x), row_width: self.row_width, layout });
        let (steps, decays) = (value(self.steps), value(self.decays));
        StateSpace { inputs, writes, reads, steps, decays, skips: &self.skips, lengths: &self.lengths }
    }

    /// The gradients, for that of the outputs: heads side by side, a row for each token.
    pub(super) fn backward<'v>(&'v self, value: impl Fn(Var) -> &'v [f32], gradient: &[f32]) -> StateSpaceGradients {
        let space = self.space(value);
        let heads = space.inputs.layout.count;
        let tasks = parts_of_sequences(&self.lengths, heads);
        let isa = Isa::best();
        let parts: Vec<Part> =
            tasks.par_iter().map(|&task| dispatch(isa, StateSpaceHead { space: &space, gradient, task })).collect();
        let mut out = StateSpaceGradients {
            x: vec![0.0; space.inputs.data.len()],
            steps: vec![0.0; space.steps.len()],
            decays: vec![0.0; space.decays.len()],
        };
        let shared = heads / space.writes.layout.count;
        for (&PartOfSequence { first, part: head, .. }, part) in tasks.iter().zip(&parts) {
            spread(&part.inputs, &space.inputs, first, head, &mut out.x);
            spread(&part.writes, &space.writes, first, head / shared, &mut out.x);
            spread(&part.reads, &space.reads, first, head / shared, &mut out.x);
            for (row, (step, decay)) in part.steps.iter().zip(&part.decays).enumerate() {
                let at = (first + row) * heads + head;
                (out.steps[at], out.decays[at]) = (*step, *decay);
            }
        }
        out
    }
}

/// A head of a sequence. Its state is `[size of the state, width of the head]`.
struct StateSpaceHead<'t, 'v> {
    space: &'t StateSpace<'v>,
    gradient: &'t [f32],
    task: PartOfSequence,
}

impl Loop for StateSpaceHead<'_, '_> {
    type Output = Part;

    #[inline(always)]
    fn run(self) -> Part {
        let StateSpaceHead { space, gradient, task: PartOfSequence { first, rows, part: head } } = self;
        let (width, heads) = (space.inputs.layout.width, space.inputs.layout.count);
        let (size, group) = (space.writes.layout.width, head / (heads / space.writes.layout.count));
        let zeros = |count: usize| vec![0.0; rows * count];
        let mut part =
            Part { inputs: zeros(width), writes: zeros(size), reads: zeros(size), steps: zeros(1), decays: zeros(1) };
        let forward = |row: usize, state: &mut [f32]| {
            let at = (first + row) * heads + head;
            let (step, decay) = (space.steps[at], space.decays[at]);
            let (x, writes) = (&space.inputs.from(first + row, head)[..width], space.writes.from(first + row, group));
            for (line, b) in state.chunks_exact_mut(width).zip(writes) {
                line.iter_mut().zip(x).for_each(|(s, x)| *s = decay * *s + b * step * x);
            }
        };
        let mut slopes = vec![0.0; size * width];
        let back = |row: usize, (): (), [before, state]: [&[f32]; 2]| {
            let at = (first + row) * heads + head;
            let (step, decay) = (space.steps[at], space.decays[at]);
            let x = &space.inputs.from(first + row, head)[..width];
            let (writes, reads) = (space.writes.from(first + row, group), space.reads.from(first + row, group));
            let out = &gradient[at * width..(at + 1) * width];
            let inputs = &mut part.inputs[row * width..(row + 1) * width];
            inputs.fill(0.0);
            let lines = slopes.chunks_exact_mut(width).zip(before.chunks_exact(width)).zip(state.chunks_exact(width));
            for (element, ((slopes, before), state)) in lines.enumerate() {
                let (b, c) = (writes[element], reads[element]);
                let (mut of_write, mut of_read, mut of_decay) = (0.0, 0.0, 0.0);
                for index in 0..width {
                    of_read += state[index] * out[index];
                    slopes[index] += c * out[index];
                    inputs[index] += slopes[index] * b;
                    of_write += slopes[index] * x[index];
                    of_decay += slopes[index] * before[index];
                    slopes[index] *= decay;
                }
                part.reads[row * size + element] = of_read;
                part.writes[row * size + element] = step * of_write;
                part.steps[row] += b * of_write;
                part.decays[row] += of_decay;
            }
            inputs.iter_mut().zip(out).for_each(|(input, out)| *input = step * *input + space.skips[head] * out);
        };
        follow_back(rows, size * width, forward, back);
        part
    }
}

/// A selective state-space layer on a tape.
pub(super) struct ScanStep {
    pub(super) x: Var,
    /// What is written by and read by, where `places` are in its rows of `row_width` elements.
    pub(super) chosen: Var,
    pub(super) row_width: usize,
    pub(super) places: [HeadLayout; 2],
    pub(super) steps: Var,
    pub(super) rates: Vec<f32>,
    pub(super) skips: Vec<f32>,
    pub(super) lengths: Vec<usize>,
}

/// The gradients of what a selective state-space layer reads.
pub(super) struct ScanGradients {
    pub(super) x: Vec<f32>,
    pub(super) chosen: Vec<f32>,
    pub(super) steps: Vec<f32>,
}

/// Channels that are computed at a time, at most.
const CHANNELS: usize = 64;

impl ScanStep {
    /// The layer that operations compute.
    pub(super) fn scan<'v>(&'v self, value: impl Fn(Var) -> &'v [f32]) -> SelectiveScan<'v> {
        let channels = self.skips.len();
        let [writes, reads] =
            self.places.map(|layout| Heads { data: value(self.chosen), row_width: self.row_width, layout });
        SelectiveScan {
            inputs: Heads { data: value(self.x), row_width: channels, layout: HeadLayout::row(channels) },
            writes,
            reads,
            steps: value(self.steps),
            rates: &self.rates,
            skips: &self.skips,
            lengths: &self.lengths,
        }
    }

    /// The gradients, for that of the outputs: a row for each token.
    pub(super) fn backward<'v>(&'v self, value: impl Fn(Var) -> &'v [f32], gradient: &[f32]) -> ScanGradients {
        let scan = self.scan(value);
        let channels = self.skips.len();
        let tasks = parts_of_sequences(&self.lengths, channels.div_ceil(CHANNELS));
        let isa = Isa::best();
        let parts: Vec<Part> =
            tasks.par_iter().map(|&task| dispatch(isa, ScanChannels { scan: &scan, gradient, task })).collect();
        let mut out = ScanGradients {
            x: vec![0.0; scan.inputs.data.len()],
            chosen: vec![0.0; scan.writes.data.len()],
            steps: vec![0.0; scan.steps.len()],
        };
        for (&PartOfSequence { first, rows, part: chunk }, part) in tasks.iter().zip(&parts) {
            spread(&part.writes, &scan.writes, first, 0, &mut out.chosen);
            spread(&part.reads, &scan.reads, first, 0, &mut out.chosen);
            let width = part.steps.len() / rows.max(1);
            for row in 0..rows {
                let to = (first + row) * channels + chunk * CHANNELS;
                out.x[to..to + width].copy_from_slice(&part.inputs[row * width..(row + 1) * width]);
                out.steps[to..to + width].copy_from_slice(&part.steps[row * width..(row + 1) * width]);
            }
        }
        out
    }
}

/// Some channels of a sequence. Their state is `[size of the state, channels]`.
struct ScanChannels<'t, 'v> {
    scan: &'t SelectiveScan<'v>,
    gradient: &'t [f32],
    task: PartOfSequence,
}

impl Loop for ScanChannels<'_, '_> {
    type Output = Part;

    #[inline(always)]
    fn run(self) -> Part {
        let ScanChannels { scan, gradient, task: PartOfSequence { first, rows, part: chunk } } = self;
        let (channels, size, start) = (scan.inputs.layout.width, scan.writes.layout.width, chunk * CHANNELS);
        let width = CHANNELS.min(channels - start);
        let rates: Vec<f32> = (0..size)
            .flat_map(|at| (start..start + width).map(move |channel| scan.rates[channel * size + at]))
            .collect();
        let zeros = |count: usize| vec![0.0; rows * count];
        let mut part = Part {
            inputs: zeros(width),
            writes: zeros(size),
            reads: zeros(size),
            steps: zeros(width),
            decays: Vec::new(),
        };
        let row_of = |data: &'_ [f32], row: usize| (first + row) * channels + start..data.len();
        let forward = |row: usize, state: &mut [f32]| {
            let x = &scan.inputs.data[row_of(scan.inputs.data, row)][..width];
            let steps = &scan.steps[row_of(scan.steps, row)][..width];
            let lines = state.chunks_exact_mut(width).zip(rates.chunks_exact(width));
            for ((line, rates), b) in lines.zip(scan.writes.from(first + row, 0)) {
                for index in 0..width {
                    line[index] = exp(-rates[index] * steps[index]) * line[index] + b * steps[index] * x[index];
                }
            }
        };
        let mut slopes = vec![0.0; size * width];
        let back = |row: usize, (): (), [before, state]: [&[f32]; 2]| {
            let x = &scan.inputs.data[row_of(scan.inputs.data, row)][..width];
            let steps = &scan.steps[row_of(scan.steps, row)][..width];
            let out = &gradient[row_of(gradient, row)][..width];
            let (writes, reads) = (scan.writes.from(first + row, 0), scan.reads.from(first + row, 0));
            let inputs = &mut part.inputs[row * width..(row + 1) * width];
            let of_steps = &mut part.steps[row * width..(row + 1) * width];
            for element in 0..size {
                let at = element * width..(element + 1) * width;
                let (slopes, before) = (&mut slopes[at.clone()], &before[at.clone()]);
                let (state, rates) = (&state[at.clone()], &rates[at]);
                let (b, c) = (writes[element], reads[element]);
                let (mut of_write, mut of_read) = (0.0, 0.0);
                for index in 0..width {
                    let decay = exp(-rates[index] * steps[index]);
                    of_read += state[index] * out[index];
                    slopes[index] += c * out[index];
                    inputs[index] += slopes[index] * b * steps[index];
                    of_write += slopes[index] * steps[index] * x[index];
                    of_steps[index] += slopes[index] * (x[index] * b - rates[index] * decay * before[index]);
                    slopes[index] *= decay;
                }
                part.reads[row * size + element] = of_read;
                part.writes[row * size + element] = of_write;
            }
            let skips = &scan.skips[start..start + width];
            inputs.iter_mut().zip(skips).zip(out).for_each(|((input, skip), out)| *input += skip * out);
        };
        follow_back(rows, size * width, forward, back);
        part
    }
}
