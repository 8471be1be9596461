//! MaxPool and AveragePool: the largest and the mean of a window.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use kvant_container::onnx::NodeProto;
use kvant_numeric::linalg::{PatchAxis, Patches, Steps};

use super::Operator;
use super::tensor::{Input, Tensor};
use crate::graph::{int_attribute, ints_attribute, string_attribute};

/// The numbers of floats that are whole.
const WHOLE: usize = 1 << 24;

/// A pooling node.
pub(super) struct Pool {
    takes_largest: bool,
    /// Whether positions beyond the input count in means.
    counts_padding: bool,
    kernel: Vec<usize>,
    strides: Vec<usize>,
    dilations: Vec<usize>,
    before: Vec<i64>,
    after: Vec<i64>,
    rounds_up: bool,
    windows: Mutex<HashMap<Vec<usize>, Arc<Windows>>>,
}

/// Which inputs of a channel each output reads: for each tap and output the input's number from 1 on, or 0 beyond the input.
struct Windows {
    outputs: Vec<usize>,
    taps: usize,
    positions: usize,
    inputs: usize,
    numbers: Vec<u32>,
}

impl Pool {
    /// That of a node, if it is one whose windows are known.
    pub fn of(node: &NodeProto) -> Option<Pool> {
        let takes_largest = match node.op_type() {
            "MaxPool" => true,
            "AveragePool" => false,
            _ => return None,
        };
        let list = |name: &str| -> Option<Vec<usize>> {
            ints_attribute(node, name)?.iter().map(|&value| usize::try_from(value).ok()).collect()
        };
        let kernel = list("kernel_shape")?;
        let axes = kernel.len();
        let pads = ints_attribute(node, "pads").map_or_else(|| vec![0; 2 * axes], <[i64]>::to_vec);
        let is_explicit = matches!(string_attribute(node, "auto_pad").unwrap_or("NOTSET"), "NOTSET" | "VALID");
        let made = Pool {
            takes_largest,
            counts_padding: int_attribute(node, "count_include_pad").unwrap_or(0) != 0,
            strides: list("strides").unwrap_or_else(|| vec![1; axes]),
            dilations: list("dilations").unwrap_or_else(|| vec![1; axes]),
            before: pads.get(..axes)?.to_vec(),
            after: pads.get(axes..2 * axes)?.to_vec(),
            rounds_up: int_attribute(node, "ceil_mode").unwrap_or(0) != 0,
            kernel,
            windows: Mutex::default(),
        };
        // Engines disagree about how many positions beyond the padding count.
        let is_clear = !(made.counts_padding && made.rounds_up) && made.strides.len() == axes;
        (is_explicit && is_clear && made.dilations.len() == axes).then_some(made)
    }

    /// The windows of an input of these sizes.
    fn windows(&self, inputs: &[usize]) -> Option<Arc<Windows>> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = windows.get(inputs) {
            return Some(known.clone());
        }
        let made = Arc::new(self.find(inputs)?);
        windows.insert(inputs.to_vec(), made.clone());
        Some(made)
    }

    fn find(&self, inputs: &[usize]) -> Option<Windows> {
        if inputs.len() != self.kernel.len() || inputs.iter().product::<usize>() >= WHOLE {
            return None;
        }
        let output = |axis: usize| {
            let (input, stride) = (inputs[axis] as i64, self.strides[axis].max(1) as i64);
            let extent = (self.kernel[axis] as i64 - 1) * self.dilations[axis] as i64 + 1;
            let room = input + self.before[axis] + self.after[axis] - extent;
            let mut count = if self.rounds_up { (room + stride - 1) / stride } else { room / stride } + 1;
            // A window begins within the input or the padding before it.
            if self.rounds_up && (count - 1) * stride >= input + self.before[axis] {
                count -= 1;
            }
            usize::try_from(count).ok().filter(|count| *count > 0)
        };
        let outputs: Vec<usize> = (0..inputs.len()).map(output).collect::<Option<_>>()?;
        let axis = |axis: usize| {
            let steps = Steps {
                taps: self.kernel[axis],
                stride: self.strides[axis],
                dilation: self.dilations[axis],
                before: self.before[axis],
            };
            PatchAxis::convolution(steps, inputs[axis], outputs[axis])
        };
        let patches = Patches::new((0..inputs.len()).map(axis).collect())?;
        let signal: Vec<f32> = (1..=patches.inputs()).map(|number| number as f32).collect();
        let mut numbers = vec![0.0; patches.taps() * patches.positions()];
        patches.im2col(1, &signal, &mut numbers);
        let numbers = numbers.iter().map(|&number| number as u32).collect();
        let (taps, positions) = (patches.taps(), patches.positions());
        Some(Windows { outputs, taps, positions, inputs: signal.len(), numbers })
    }
}

impl Windows {
    /// The inputs of an output.
    fn inputs_of(&self, position: usize) -> impl Iterator<Item = usize> {
        let numbers = (0..self.taps).map(move |tap| self.numbers[tap * self.positions + position]);
        numbers.filter(|&number| number > 0).map(|number| number as usize - 1)
    }

    /// The first of the largest inputs of an output.
    fn largest(&self, channel: &[f32], position: usize) -> Option<usize> {
        self.inputs_of(position).reduce(|best, next| if channel[next] > channel[best] { next } else { best })
    }

    /// What the sum of an output's inputs is divided by.
    fn count(&self, position: usize, counts_padding: bool) -> f32 {
        let count = if counts_padding { self.taps } else { self.inputs_of(position).count() };
        count.max(1) as f32
    }
}

impl Operator for Pool {
    fn forward(&self, inputs: &[Input<'_>]) -> Option<Tensor> {
        let (shape, values) = inputs.first()?.floats()?;
        let windows = self.windows(shape.get(2..)?)?;
        let mut made = Vec::with_capacity(values.len() / windows.inputs.max(1) * windows.positions);
        for channel in values.chunks(windows.inputs.max(1)) {
            for position in 0..windows.positions {
                made.push(match self.takes_largest {
                    true => channel[windows.largest(channel, position)?],
                    false => {
                        let sum: f32 = windows.inputs_of(position).map(|input| channel[input]).sum();
                        sum / windows.count(position, self.counts_padding)
                    }
                });
            }
        }
        let shape = shape[..2].iter().chain(&windows.outputs).copied().collect();
        Some(Tensor { shape, values: made })
    }

    fn backward(&self, inputs: &[Input<'_>], _: &Tensor, slopes: &[f32], _: &[bool]) -> Option<Vec<Vec<f32>>> {
        let (shape, values) = inputs.first()?.floats()?;
        let windows = self.windows(shape.get(2..)?)?;
        let mut made = vec![0.0; values.len()];
        let channels = made.chunks_mut(windows.inputs.max(1)).zip(values.chunks(windows.inputs.max(1)));
        for ((made, channel), slopes) in channels.zip(slopes.chunks(windows.positions.max(1))) {
            for (position, slope) in slopes.iter().enumerate() {
                match self.takes_largest {
                    true => made[windows.largest(channel, position)?] += slope,
                    false => {
                        let share = slope / windows.count(position, self.counts_padding);
                        windows.inputs_of(position).for_each(|input| made[input] += share);
                    }
                }
            }
        }
        Some(vec![made])
    }
}
