//! The tape: values, the steps that made them, and their gradients in the opposite order. What a block consists of is in `block.rs`.

use super::super::blueprint::NormLayer;
use super::super::heads::HeadLayout;
use super::super::ops::{Gate, NormWeights};
use super::super::recurrent::softplus;
use super::super::rope::Angles;
use super::super::run::Run;
use super::super::tensors::Projection;
use super::Weights;
use super::activation::{Form, activation_gradient};
use super::attention::AttentionStep;
use super::delta_rule::{DeltaGradients, DeltaStep};
use super::mixers::convolution_gradient;
use super::norm::{norm_gradient, norm_weight_gradient};
use super::state_space::{ScanGradients, ScanStep, StateSpaceGradients, StateSpaceStep};
use kvant_model::family::{Activation, Pairing};
use kvant_numeric::linalg::{LearningPrecision, Matrix, MatrixMut, Threads};
use kvant_quant::rotation::Rotation;
use std::borrow::Cow;
use std::collections::HashMap;

/// Sees steps on the way back.
pub(super) trait StepGradients {
    /// A linear layer.
    fn linear(&mut self, rows: &LinearRows<'_>);

    /// A norm.
    fn norm(&mut self, _rows: &NormedRows<'_>) {}

    /// Whether the gradient of what a norm gives is wanted though nothing before it is.
    fn wants_norm(&mut self, _layer: &NormLayer) -> bool {
        false
    }
}

impl<F: FnMut(&LinearRows<'_>)> StepGradients for F {
    fn linear(&mut self, rows: &LinearRows<'_>) {
        self(rows);
    }
}

/// What a linear layer has read, and the gradient of what it gave, a row for each token.
pub(super) struct LinearRows<'s> {
    pub(super) layer: &'s Projection,
    pub(super) gradient: &'s [f32],
    pub(super) read: &'s [f32],
    /// Whether no step that is still to come on the way back has the same weight.
    pub(super) is_last: bool,
    precision: LearningPrecision,
}

impl LinearRows<'_> {
    /// Adds the gradient of the layer's weight to one like it.
    pub(super) fn add_weight_gradient(&self, sums: &mut [f32]) {
        let Projection { rows: outputs, columns: inputs, .. } = *self.layer;
        let tokens = self.gradient.len() / outputs;
        let gradient = Matrix::new(self.gradient, tokens, outputs, outputs);
        let read = Matrix::new(self.read, tokens, inputs, inputs);
        let sums = MatrixMut::new(sums, outputs, inputs, inputs);
        self.precision.add_weight_gradient(sums, gradient, read, Threads::Pool);
    }
}

/// What a norm has read, and the gradient of what it gave.
pub(super) struct NormedRows<'s> {
    pub(super) layer: &'s NormLayer,
    pub(super) gradient: &'s [f32],
    norm: &'s NormWeights,
    x: &'s [f32],
    width: usize,
    layout: HeadLayout,
}

impl NormedRows<'_> {
    /// The gradient of the norm's weight.
    pub(super) fn weight_gradient(&self) -> Vec<f32> {
        norm_weight_gradient(self.norm, self.x, self.gradient, self.width, self.layout)
    }
}

/// A value on a tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Var(usize);

#[cfg(test)]
impl Var {
    /// The first values of a tape.
    pub(super) fn first<const N: usize>() -> [Var; N] {
        std::array::from_fn(Var)
    }
}

/// Values and the steps that made them.
pub(super) struct Tape<'r, 'a> {
    pub(super) run: Run<'r, 'a>,
    weights: &'r Weights,
    precision: LearningPrecision,
    values: Vec<Vec<f32>>,
    steps: Vec<(Step<'r>, Var)>,
    /// What an encoder gives, and rows of a sequence of it.
    memory: Option<(Var, usize)>,
}

/// What gave a value.
pub(super) enum Step<'r> {
    /// `x W^T + b`.
    Linear { layer: &'r Projection, x: Var },
    /// Rows of `x`, rotated as a layer reads them.
    Rotate { layer: &'r Projection, x: Var },
    /// `x` on the grid that a layer reads its inputs on, as if it was `x`.
    Quantize { x: Var },
    /// Normed heads.
    Norm { layer: &'r NormLayer, norm: NormWeights, width: usize, layout: HeadLayout, x: Var },
    /// Turned heads.
    Turn { rotary: usize, pairing: Pairing, width: usize, layout: HeadLayout, x: Var },
    /// Attention.
    Attend(Box<AttentionStep>),
    /// The hidden activation.
    Activate { activation: Activation, form: Form },
    /// `x + scale * branch`.
    Join { x: Var, branch: Var, scale: f32 },
    /// Each element times its factor, which no weight decides.
    Multiply { x: Var, factors: Vec<f32> },
    /// `x * function(gate)`, heads of `gate` by elements of `x`.
    Gate { function: Gate, x: Var, gate: Var, width: usize, layout: HeadLayout },
    /// Some rows.
    Gather { x: Var, rows: Vec<usize>, width: usize },
    /// `x` with weighed rows added.
    Scatter { x: Var, part: Var, rows: Vec<(usize, f32)>, width: usize },
    /// Columns of `x`, whose rows have `width` elements: column `i` of the result is column `from[i]`.
    GatherColumns { x: Var, from: Vec<usize>, width: usize },
    /// Rows of values side by side, each with as many elements.
    SideBySide { parts: Vec<(Var, usize)> },
    /// The causal convolution of each channel of sequences, with a weight `[channels, kernel]`.
    Convolve { x: Var, weight: Vec<f32>, kernel: usize, lengths: Vec<usize> },
    /// The gated delta rule.
    Delta(Box<DeltaStep>),
    /// A state-space layer.
    StateSpace(Box<StateSpaceStep>),
    /// A selective state-space layer.
    Scan(Box<ScanStep>),
}

impl Step<'_> {
    /// The values that the step reads when gradients pass it; of some only the length.
    fn reads_back(&self) -> Vec<Var> {
        match self {
            Step::Linear { x, .. } | Step::Norm { x, .. } | Step::Gather { x, .. } | Step::GatherColumns { x, .. } => {
                vec![*x]
            }
            Step::Attend(step) => step.heads.map(|(var, ..)| var).to_vec(),
            Step::Activate { form, .. } => match *form {
                Form::Plain(x) | Form::Halves(x, _) | Form::Alternating(x) => vec![x],
                Form::Pair(gate, up) => vec![gate, up],
            },
            Step::Gate { x, gate, .. } => vec![*x, *gate],
            Step::Delta(step) => vec![step.x, step.decays, step.strengths],
            Step::StateSpace(step) => vec![step.x, step.steps, step.decays],
            Step::Scan(step) => vec![step.x, step.chosen, step.steps],
            Step::Rotate { .. }
            | Step::Quantize { .. }
            | Step::Turn { .. }
            | Step::Join { .. }
            | Step::Multiply { .. }
            | Step::Scatter { .. }
            | Step::SideBySide { .. }
            | Step::Convolve { .. } => Vec::new(),
        }
    }
}

impl<'r, 'a> Tape<'r, 'a> {
    pub(super) fn new(run: Run<'r, 'a>, weights: &'r Weights, precision: LearningPrecision) -> Tape<'r, 'a> {
        Tape { run, weights, precision, values: Vec::new(), steps: Vec::new(), memory: None }
    }

    /// What an encoder gives, for blocks that attend to it.
    pub(super) fn set_memory(&mut self, memory: Var, length: usize) {
        self.memory = Some((memory, length));
    }

    /// The same, or the block's own rows where there is none.
    pub(super) fn memory_or(&self, x: Var) -> (Var, usize) {
        self.memory.unwrap_or((x, self.run.length))
    }

    /// A value that no step gave.
    pub(super) fn put(&mut self, value: Vec<f32>) -> Var {
        self.values.push(value);
        Var(self.values.len() - 1)
    }

    pub(super) fn value(&self, var: Var) -> &[f32] {
        &self.values[var.0]
    }

    /// Records what a step gave.
    pub(super) fn record(&mut self, step: Step<'r>, value: Vec<f32>) -> Var {
        let var = self.put(value);
        self.steps.push((step, var));
        var
    }

    /// The weight of a layer; empty for layers that the caller forgot.
    fn weight(&self, layer: &Projection) -> Matrix<'r> {
        let weight = self.weights.get(&layer.module).map_or(&[][..], Vec::as_slice);
        Matrix::new(weight, layer.rows, layer.columns, layer.columns)
    }

    pub(super) fn linear(&mut self, layer: &'r Projection, x: Var) -> Var {
        let x = self.rotated(layer, x);
        let x = self.quantized(layer, x);
        let rows = self.value(x).len() / layer.columns;
        let mut out = self.run.buffers.of_size(rows * layer.rows);
        let input = Matrix::new(self.value(x), rows, layer.columns, layer.columns);
        let place = MatrixMut::new(&mut out, rows, layer.rows, layer.rows);
        self.precision.outputs(place, input, self.weight(layer), Threads::Pool);
        if let Some(bias) = self.run.bias(layer) {
            out.chunks_exact_mut(layer.rows)
                .for_each(|row| row.iter_mut().zip(bias.iter()).for_each(|(out, bias)| *out += bias));
        }
        self.record(Step::Linear { layer, x }, out)
    }

    /// A copy of a value, to be changed.
    pub(super) fn copy(&self, x: Var) -> Vec<f32> {
        self.run.buffers.copy(self.value(x))
    }

    /// The rows that a layer reads, rotated where its inputs are.
    fn rotated(&mut self, layer: &'r Projection, x: Var) -> Var {
        let rotated = match self.run.rotated(layer, self.value(x)) {
            Cow::Borrowed(_) => None,
            Cow::Owned(rows) => Some(rows),
        };
        rotated.map_or(x, |rows| self.record(Step::Rotate { layer, x }, rows))
    }

    /// What a layer reads.
    fn quantized(&mut self, layer: &Projection, x: Var) -> Var {
        let Some(quantizer) = self.run.input_quantizer(layer) else { return x };
        let out = self.run.quantized(quantizer, self.copy(x), layer.columns, self.run.spans());
        self.record(Step::Quantize { x }, out)
    }

    /// The gradient of the input, if that is given. `seen` sees the steps.
    pub(super) fn backward(
        mut self,
        output: Var,
        gradient: Vec<f32>,
        input: Option<Var>,
        seen: &mut dyn StepGradients,
    ) -> Vec<f32> {
        let is_idle = if input.is_some() { vec![false; self.values.len()] } else { self.idle(seen) };
        let mut gradients = Gradients { values: vec![None; self.values.len()], is_idle, uses: HashMap::new() };
        for (step, _) in &self.steps {
            if let Step::Linear { layer, .. } = step {
                *gradients.uses.entry(&layer.module).or_default() += 1;
            }
        }
        gradients.values[output.0] = Some(gradient);
        self.release_unread(input);
        while let Some((step, var)) = self.steps.pop() {
            if let Some(gradient) = gradients.values[var.0].take() {
                self.step_back(step, gradient, &mut gradients, seen);
            }
            // No earlier step has read what this one gave.
            self.run.buffers.give(std::mem::take(&mut self.values[var.0]));
        }
        let Some(input) = input else { return Vec::new() };
        let length = self.value(input).len();
        gradients.values[input.0].take().unwrap_or_else(|| vec![0.0; length])
    }

    /// Makes room: what no step reads on the way back is not kept any longer.
    fn release_unread(&mut self, input: Option<Var>) {
        let mut is_read = vec![false; self.values.len()];
        let read_back = self.steps.iter().flat_map(|(step, _)| step.reads_back());
        read_back.chain(input).for_each(|var| is_read[var.0] = true);
        for (value, _) in self.values.iter_mut().zip(is_read).filter(|(_, is_read)| !is_read) {
            self.run.buffers.give(std::mem::take(value));
        }
    }

    /// Which values have gradients that nobody wants: those that no step gave, and what steps without weights of interest make of one.
    fn idle(&self, seen: &mut dyn StepGradients) -> Vec<bool> {
        let mut is_idle = vec![true; self.values.len()];
        for (step, var) in &self.steps {
            is_idle[var.0] = match step {
                Step::Norm { layer, x, .. } => is_idle[x.0] && !seen.wants_norm(layer),
                Step::Rotate { x, .. } | Step::Quantize { x } => is_idle[x.0],
                _ => false,
            };
        }
        is_idle
    }

    fn step_back(
        &self,
        step: Step<'r>,
        mut out: Vec<f32>,
        gradients: &mut Gradients<'r>,
        seen: &mut dyn StepGradients,
    ) {
        match step {
            Step::Linear { layer, x } => {
                let is_last = gradients.is_last_use(&layer.module);
                let (gradient, read, precision) = (&out, self.value(x), self.precision);
                seen.linear(&LinearRows { layer, gradient, read, is_last, precision });
                if gradients.is_idle[x.0] {
                    return self.run.buffers.give(out);
                }
                let rows = out.len() / layer.rows;
                let gradient = Matrix::new(&out, rows, layer.rows, layer.rows);
                let mut input = self.run.buffers.of_size(rows * layer.columns);
                let place = MatrixMut::new(&mut input, rows, layer.columns, layer.columns);
                self.precision.input_gradient(place, gradient, self.weight(layer), Threads::Pool);
                self.run.buffers.give(out);
                gradients.add(x, input);
            }
            Step::Rotate { layer, x } => {
                if let Some(rotation) = self.run.decoder.rotations.get(&layer.module) {
                    self.run.rotate_rows(rotation, &mut out, layer.columns, Rotation::apply_transposed);
                }
                gradients.add(x, out);
            }
            Step::Quantize { x } => gradients.add(x, out),
            Step::Norm { layer, norm, width, layout, x } => {
                let x_rows = self.value(x);
                seen.norm(&NormedRows { layer, gradient: &out, norm: &norm, x: x_rows, width, layout });
                norm_gradient(&norm, x_rows, &mut out, width, layout);
                gradients.add(x, out);
            }
            Step::Turn { rotary, pairing, width, layout, x } => {
                let angles = &self.run.angles[rotary];
                let back = Angles { sin: angles.sin.iter().map(|sin| -sin).collect(), ..angles.clone() };
                self.run.ops.rotate(&back, pairing, &mut out, width, layout);
                gradients.add(x, out);
            }
            Step::Attend(step) => {
                let [queries, keys, values] = step.backward(|var| self.value(var), &out, self.precision);
                gradients.add(step.heads[0].0, queries);
                gradients.add(step.heads[1].0, keys);
                gradients.add(step.heads[2].0, values);
            }
            Step::Activate { activation, form } => {
                let found = activation_gradient(activation, &form, |var| self.value(var), out, self.run.buffers);
                for (var, gradient) in found {
                    gradients.add(var, gradient);
                }
            }
            Step::Join { x, branch, scale } => {
                gradients.add(branch, out.iter().map(|value| value * scale).collect());
                gradients.add(x, out);
            }
            Step::Multiply { x, factors } => {
                out.iter_mut().zip(factors).for_each(|(value, factor)| *value *= factor);
                gradients.add(x, out);
            }
            Step::Gate { function, x, gate, width, layout } => {
                let mut of_gate = vec![0.0; self.value(gate).len()];
                let elements = layout.width * layout.count;
                let rows = of_gate.chunks_exact_mut(width).zip(self.value(gate).chunks_exact(width));
                for (index, (of_gate, gate)) in rows.enumerate() {
                    for head in 0..layout.count {
                        for element in 0..layout.width {
                            let at = index * elements + head * layout.width + element;
                            let from = layout.start + head * layout.step + element;
                            let (open, slope) = gate_with_slope(function, gate[from]);
                            of_gate[from] = out[at] * self.value(x)[at] * slope;
                            out[at] *= open;
                        }
                    }
                }
                gradients.add(gate, of_gate);
                gradients.add(x, out);
            }
            Step::Gather { x, rows, width } => {
                let mut all = vec![0.0; self.value(x).len()];
                for (row, gradient) in rows.into_iter().zip(out.chunks_exact(width)) {
                    let place = &mut all[row * width..(row + 1) * width];
                    place.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
                }
                gradients.add(x, all);
            }
            Step::Scatter { x, part, rows, width } => {
                let weighed = rows.into_iter().flat_map(|(row, weight)| {
                    out[row * width..(row + 1) * width].iter().map(move |value| value * weight)
                });
                gradients.add(part, weighed.collect());
                gradients.add(x, out);
            }
            Step::GatherColumns { x, from, width } => {
                let mut back = vec![0.0; self.value(x).len()];
                for (back, out) in back.chunks_exact_mut(width).zip(out.chunks_exact(from.len())) {
                    from.iter().zip(out).for_each(|(from, value)| back[*from] += *value);
                }
                gradients.add(x, back);
            }
            Step::SideBySide { parts } => {
                let (width, mut start) = (parts.iter().map(|(_, width)| width).sum(), 0);
                for (x, own) in parts {
                    let rows = out.chunks_exact(width);
                    gradients.add(x, rows.flat_map(|row| &row[start..start + own]).copied().collect());
                    start += own;
                }
            }
            Step::Convolve { x, weight, kernel, lengths } => {
                gradients.add(x, convolution_gradient(&out, &weight, kernel, &lengths));
            }
            Step::Delta(step) => {
                let DeltaGradients { x, decays, strengths } = step.backward(|var| self.value(var), &out);
                gradients.add(step.x, x);
                gradients.add(step.decays, decays);
                gradients.add(step.strengths, strengths);
            }
            Step::StateSpace(step) => {
                let StateSpaceGradients { x, steps, decays } = step.backward(|var| self.value(var), &out);
                gradients.add(step.x, x);
                gradients.add(step.steps, steps);
                gradients.add(step.decays, decays);
            }
            Step::Scan(step) => {
                let ScanGradients { x, chosen, steps } = step.backward(|var| self.value(var), &out);
                gradients.add(step.x, x);
                gradients.add(step.chosen, chosen);
                gradients.add(step.steps, steps);
            }
        }
    }
}

/// What a gate multiplies by, and the slope of that.
fn gate_with_slope(function: Gate, gate: f32) -> (f32, f32) {
    let open = 1.0 / (1.0 + (-gate).exp());
    match function {
        Gate::Sigmoid => (open, open * (1.0 - open)),
        Gate::Softplus => (softplus(gate), open),
        Gate::Silu => (gate * open, open * (1.0 + gate * (1.0 - open))),
        Gate::Plain => (gate, 1.0),
    }
}

/// The gradients of values.
struct Gradients<'r> {
    values: Vec<Option<Vec<f32>>>,
    /// Which of them nobody wants.
    is_idle: Vec<bool>,
    /// Steps with the weight of a layer, less those that have been followed.
    uses: HashMap<&'r str, usize>,
}

impl Gradients<'_> {
    /// Counts a use of a layer's weight.
    fn is_last_use(&mut self, module: &str) -> bool {
        let left = self.uses.get_mut(module).map_or(0, |uses| {
            *uses -= 1;
            *uses
        });
        left == 0
    }

    fn add(&mut self, var: Var, gradient: Vec<f32>) {
        match &mut self.values[var.0] {
            _ if self.is_idle[var.0] => {}
            Some(sum) => sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value),
            empty => *empty = Some(gradient),
        }
    }
}
