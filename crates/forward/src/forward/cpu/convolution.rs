//! Causal depthwise convolution of sequences, which may continue earlier rows.

use super::Cpu;
use crate::forward::ops::Convolution;
use crate::forward::recurrent_state::RecurrentState;
use kvant_numeric::linalg::Precision;
use kvant_numeric::simd::{Loop, dispatch};
use rayon::prelude::*;

/// Rows that one thread computes at a time.
const ROWS: usize = 32;

/// See [`crate::forward::ops::Ops::convolve`].
pub(super) fn convolve(cpu: Cpu, task: &Convolution<'_>, states: &mut [RecurrentState], out: &mut Vec<f32>) {
    let Convolution { data, weight, bias, kernel, lengths } = *task;
    let channels = weight.len() / kernel.max(1);
    out.resize(data.len(), 0.0);
    // By position, so that neighbouring channels are computed together.
    let weight: Vec<f32> =
        (0..kernel).flat_map(|at| weight.iter().skip(at).step_by(kernel)).map(|w| cpu.precision.round(*w)).collect();
    let bias: Vec<f32> = bias.iter().map(|bias| cpu.precision.round(*bias)).collect();
    let (mut data, mut out) = (data, out.as_mut_slice());
    for (rows, state) in lengths.iter().zip(states) {
        let (sequence, rest) = data.split_at(rows * channels);
        let (results, others) = std::mem::take(&mut out).split_at_mut(rows * channels);
        (data, out) = (rest, others);
        if state.tail.is_empty() {
            state.tail = vec![0.0; (kernel - 1) * channels];
        }
        let before = kernel - 1;
        let row = |index: usize| match index.checked_sub(before) {
            Some(row) => &sequence[row * channels..(row + 1) * channels],
            None => &state.tail[index * channels..(index + 1) * channels],
        };
        results.par_chunks_mut((ROWS * channels).max(1)).enumerate().for_each(|(chunk, results)| {
            for (index, out) in results.chunks_mut(channels).enumerate() {
                let first = chunk * ROWS + index;
                let rows = (0..kernel).map(|at| row(first + at));
                let taps: Vec<(&[f32], &[f32])> = rows.zip(weight.chunks_exact(channels)).collect();
                dispatch(cpu.isa, Taps { precision: cpu.precision, taps: &taps, bias: &bias, out });
            }
        });
        state.tail = (*rows..rows + before).flat_map(row).copied().collect();
    }
}

struct Taps<'a> {
    precision: Precision,
    /// Rows with the weights of their position.
    taps: &'a [(&'a [f32], &'a [f32])],
    /// What the sums begin with, unless it is empty.
    bias: &'a [f32],
    out: &'a mut [f32],
}

impl Loop for Taps<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Taps { precision, taps, bias, out } = self;
        match bias.is_empty() {
            true => out.fill(0.0),
            false => out.copy_from_slice(bias),
        }
        for (row, weight) in taps {
            for ((out, x), w) in out.iter_mut().zip(*row).zip(*weight) {
                *out += x * w;
            }
        }
        out.iter_mut().for_each(|out| *out = precision.round(*out));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::ops::Ops;

    #[test]
    fn convolution_sees_earlier_rows_of_its_sequence_only() {
        let cpu = Cpu::default();
        // Channels 0 and 1: the sum of three rows, and the row before the last.
        let weight = [1.0, 1.0, 1.0, 0.0, 1.0, 0.0];
        let data: Vec<f32> = (1..=10).map(|i| i as f32).collect();
        let run = |data: &[f32], lengths: &[usize], states: &mut [RecurrentState]| {
            let mut out = Vec::new();
            cpu.convolve(&Convolution { data, weight: &weight, bias: &[], kernel: 3, lengths }, states, &mut out);
            out
        };
        let mut states = vec![RecurrentState::default(); 2];
        let whole = run(&data, &[3, 2], &mut states);
        assert_eq!(whole, [1.0, 0.0, 4.0, 2.0, 9.0, 4.0, 7.0, 0.0, 16.0, 8.0]);
        assert_eq!([&states[0].tail[..], &states[1].tail[..]], [&[3.0, 4.0, 5.0, 6.0], &[7.0, 8.0, 9.0, 10.0]]);
        let mut state = [RecurrentState::default()];
        let parts: Vec<f32> = data[..6].chunks(2).flat_map(|row| run(row, &[1], &mut state)).collect();
        assert_eq!(parts, whole[..6]);
    }
}
