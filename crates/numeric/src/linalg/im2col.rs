//! Patches of a signal: what each output of a convolution reads, as the columns of a matrix ("im2col"). With them a
//! convolution, plain or transposed, is a product with its weights. Not that product.

use rayon::prelude::*;

/// Positions that one tap of a kernel connects: `count` pairs of an output and an input, each a step behind the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    output: usize,
    output_step: usize,
    input: usize,
    input_step: usize,
    count: usize,
}

/// How a convolution moves along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Taps of the kernel.
    pub taps: usize,
    /// Inputs from one output to the next; outputs from one input to the next where the convolution is transposed.
    pub stride: usize,
    /// From one tap to the next.
    pub dilation: usize,
    /// Positions of padding before the first; below zero, positions that are left out.
    pub before: i64,
}

/// One axis of the patches: which positions of inputs and outputs each tap of the kernel connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatchAxis {
    runs: Vec<Run>,
    inputs: usize,
    outputs: usize,
}

impl PatchAxis {
    /// An axis of length 1 under a kernel of one tap.
    pub fn point() -> PatchAxis {
        PatchAxis::convolution(Steps { taps: 1, stride: 1, dilation: 1, before: 0 }, 1, 1)
    }

    /// At tap `t`, output `q` reads input `q * stride + t * dilation - before`, or zero where there is none.
    pub fn convolution(steps: Steps, inputs: usize, outputs: usize) -> PatchAxis {
        let run = |tap| {
            let (first, shift, count) = steps.connected(tap, outputs, inputs);
            let input = (first * steps.stride).saturating_add_signed(shift);
            Run { output: first, output_step: 1, input, input_step: steps.stride, count }
        };
        PatchAxis { runs: (0..steps.taps).map(run).collect(), inputs, outputs }
    }

    /// At tap `t`, input `p` goes to output `p * stride + t * dilation - before`, if there is one.
    pub fn transposed(steps: Steps, inputs: usize, outputs: usize) -> PatchAxis {
        let run = |tap| {
            let (first, shift, count) = steps.connected(tap, inputs, outputs);
            let output = (first * steps.stride).saturating_add_signed(shift);
            Run { output, output_step: steps.stride, input: first, input_step: 1, count }
        };
        PatchAxis { runs: (0..steps.taps).map(run).collect(), inputs, outputs }
    }
}

impl Steps {
    /// The `p` below `sources` for which `0 <= p * stride + shift < targets`: the first, the shift, their number.
    fn connected(self, tap: usize, sources: usize, targets: usize) -> (usize, isize, usize) {
        let stride = self.stride.max(1);
        let shift = (tap * self.dilation) as i64 - self.before;
        let first = usize::try_from(-shift).unwrap_or(0).div_ceil(stride);
        let room = usize::try_from(targets as i64 - shift).unwrap_or(0);
        let end = room.div_ceil(stride).min(sources);
        (first, shift as isize, end.saturating_sub(first))
    }
}

/// The patches of a signal with up to three spatial axes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patches {
    axes: [PatchAxis; 3],
}

impl Patches {
    /// The axes of a signal, outermost first. Further outer ones are points. `None` for more than three.
    pub fn new(axes: Vec<PatchAxis>) -> Option<Patches> {
        let missing = 3usize.checked_sub(axes.len())?;
        let all: Vec<PatchAxis> = (0..missing).map(|_| PatchAxis::point()).chain(axes).collect();
        Some(Patches { axes: all.try_into().ok()? })
    }

    /// Taps of the kernel over all axes.
    pub fn taps(&self) -> usize {
        self.axes.iter().map(|axis| axis.runs.len()).product()
    }

    /// Elements of one channel of the signal.
    pub fn inputs(&self) -> usize {
        self.axes.iter().map(|axis| axis.inputs).product()
    }

    /// Columns of the matrix: outputs of one channel.
    pub fn positions(&self) -> usize {
        self.axes.iter().map(|axis| axis.outputs).product()
    }

    /// Returns whether the matrix is the signal itself.
    pub fn is_identity(&self) -> bool {
        let alone = |axis: &PatchAxis| match axis.runs[..] {
            [Run { output: 0, input: 0, output_step, input_step, count }] => {
                let dense = count < 2 || (output_step == 1 && input_step == 1);
                dense && count == axis.inputs && count == axis.outputs
            }
            _ => false,
        };
        self.axes.iter().all(alone)
    }

    /// Writes the matrix of a signal `[channels, inputs]`: a row for each channel and tap, taps innermost, a column for each
    /// output. All threads of the current rayon pool take part.
    ///
    /// # Panics
    ///
    /// If the signal or the matrix is not of that size.
    pub fn im2col(&self, channels: usize, signal: &[f32], matrix: &mut [f32]) {
        let (inputs, rows) = (self.inputs(), self.taps() * self.positions());
        assert_eq!((signal.len(), matrix.len()), (channels * inputs, channels * rows), "sizes do not match");
        if signal.is_empty() || matrix.is_empty() {
            return matrix.fill(0.0);
        }
        let channels = matrix.par_chunks_mut(rows).zip(signal.par_chunks(inputs));
        channels.for_each(|(matrix, signal)| self.unfold_channel(signal, matrix));
    }

    fn unfold_channel(&self, signal: &[f32], matrix: &mut [f32]) {
        let [depth, height, width] = &self.axes;
        let taps = depth
            .runs
            .iter()
            .flat_map(|d| height.runs.iter().flat_map(move |h| width.runs.iter().map(move |w| (d, h, w))));
        for (row, (d, h, w)) in matrix.chunks_mut(self.positions()).zip(taps) {
            if d.count * h.count * w.count < row.len() {
                row.fill(0.0);
            }
            for (to_d, from_d) in d.pairs() {
                for (to_h, from_h) in h.pairs() {
                    let to = (to_d * height.outputs + to_h) * width.outputs;
                    let from = (from_d * height.inputs + from_h) * width.inputs;
                    w.copy(&signal[from..from + width.inputs], &mut row[to..to + width.outputs]);
                }
            }
        }
    }
}

impl Run {
    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let run = *self;
        (0..run.count).map(move |i| (run.output + i * run.output_step, run.input + i * run.input_step))
    }

    fn copy(&self, from: &[f32], to: &mut [f32]) {
        if self.count == 0 {
            return;
        }
        if (self.output_step, self.input_step) == (1, 1) {
            to[self.output..][..self.count].copy_from_slice(&from[self.input..][..self.count]);
            return;
        }
        let to = to[self.output..].iter_mut().step_by(self.output_step.max(1));
        let from = from[self.input..].iter().step_by(self.input_step.max(1));
        to.zip(from).take(self.count).for_each(|(to, from)| *to = *from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Element by element, by the definition.
    fn naive(steps: [Steps; 2], transposed: bool, inputs: [usize; 2], outputs: [usize; 2], signal: &[f32]) -> Vec<f32> {
        let source = |axis: usize, tap: usize, q: usize| -> Option<usize> {
            let Steps { stride, dilation, before, .. } = steps[axis];
            let (tap, q, stride) = ((tap * dilation) as i64, q as i64, stride as i64);
            let at = match transposed {
                false => q * stride + tap - before,
                true if (q + before - tap).rem_euclid(stride) != 0 => return None,
                true => (q + before - tap).div_euclid(stride),
            };
            usize::try_from(at).ok().filter(|&p| p < inputs[axis])
        };
        let mut matrix = Vec::new();
        for channel in signal.chunks(inputs[0] * inputs[1]) {
            for (a, b) in (0..steps[0].taps).flat_map(|a| (0..steps[1].taps).map(move |b| (a, b))) {
                for (y, x) in (0..outputs[0]).flat_map(|y| (0..outputs[1]).map(move |x| (y, x))) {
                    let place = source(0, a, y).zip(source(1, b, x));
                    matrix.push(place.map_or(0.0, |(y, x)| channel[y * inputs[1] + x]));
                }
            }
        }
        matrix
    }

    #[test]
    fn im2col_matches_the_definition() {
        let inputs = [5, 7];
        let signal: Vec<f32> = (0..2 * 35).map(|i| i as f32 + 1.0).collect();
        for (taps, stride, dilation, before) in
            [(1, 1, 1, 0), (3, 1, 1, 1), (3, 2, 1, 0), (2, 3, 2, 1), (3, 1, 2, -1), (4, 2, 1, 5)]
        {
            let steps =
                [Steps { taps, stride, dilation, before }, Steps { taps: taps.min(2), stride: 1, dilation, before: 0 }];
            for (transposed, outputs) in [(false, [3, 6]), (false, [9, 1]), (true, [9, 8]), (true, [4, 12])] {
                let axis = if transposed { PatchAxis::transposed } else { PatchAxis::convolution };
                let axes = (0..2).map(|i| axis(steps[i], inputs[i], outputs[i])).collect();
                let patches = Patches::new(axes).unwrap();
                let mut matrix = vec![f32::NAN; 2 * patches.taps() * patches.positions()];
                patches.im2col(2, &signal, &mut matrix);
                assert_eq!(
                    matrix,
                    naive(steps, transposed, inputs, outputs, &signal),
                    "{steps:?} {transposed} {outputs:?}"
                );
            }
        }
    }

    #[test]
    fn one_tap_kernel_is_the_identity() {
        let axis =
            |stride, outputs| PatchAxis::convolution(Steps { taps: 1, stride, dilation: 1, before: 0 }, 6, outputs);
        assert!(Patches::new(vec![axis(1, 6), axis(1, 6)]).unwrap().is_identity());
        assert!(!Patches::new(vec![axis(1, 6), axis(2, 3)]).unwrap().is_identity());
        assert!(Patches::new(Vec::new()).unwrap().is_identity());
        assert!(Patches::new(vec![PatchAxis::point(); 4]).is_none());
    }
}
