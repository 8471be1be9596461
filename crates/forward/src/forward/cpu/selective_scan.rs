//! Selective state-space layers, token by token.

use super::Cpu;
use super::recurrent_heads::{HeadTask, by_head};
use crate::forward::HeadLayout;
use crate::forward::ops::SelectiveScan;
use crate::forward::recurrent_state::RecurrentState;
use kvant_numeric::linalg::exp;
use kvant_numeric::simd::{Loop, dispatch};

/// The most channels that a thread computes at a time.
const CHANNELS: usize = 64;

/// See [`crate::forward::ops::Ops::selective_scan`].
pub(super) fn selective_scan(cpu: Cpu, scan: &SelectiveScan<'_>, states: &mut [RecurrentState], out: &mut Vec<f32>) {
    let channels = scan.inputs.layout.width;
    let width = (1..=CHANNELS).rev().find(|width| channels.is_multiple_of(*width)).unwrap_or(1);
    let size = scan.writes.layout.width;
    by_head(HeadLayout::packed(channels / width, width), size, scan.lengths, states, out, |task| {
        dispatch(cpu.isa, ScanChannels { scan, task, width });
    });
}

/// Some channels. Their state is stored as `[size of the state, channels]`, so that neighbouring channels are computed together.
struct ScanChannels<'a> {
    scan: &'a SelectiveScan<'a>,
    task: HeadTask<'a>,
    width: usize,
}

impl Loop for ScanChannels<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let ScanChannels { scan, task: HeadTask { first, head, state, out }, width } = self;
        let (channels, size, start) = (scan.inputs.layout.width, scan.writes.layout.width, head * width);
        // By element of the state, as the state is.
        let rates: Vec<f32> = (0..size)
            .flat_map(|at| (start..start + width).map(move |channel| scan.rates[channel * size + at]))
            .collect();
        let skips = &scan.skips[start..start + width];
        let mut written = vec![0.0; width];
        for (row, out) in (first..).zip(out.chunks_exact_mut(width)) {
            let x = &scan.inputs.from(row, 0)[start..start + width];
            let steps = &scan.steps[row * channels + start..][..width];
            let (writes, reads) = (&scan.writes.from(row, 0)[..size], &scan.reads.from(row, 0)[..size]);
            written.iter_mut().zip(x).zip(steps).for_each(|((written, x), step)| *written = step * x);
            out.fill(0.0);
            let lines = state.chunks_exact_mut(width).zip(rates.chunks_exact(width));
            for ((line, rates), (b, c)) in lines.zip(writes.iter().zip(reads)) {
                let channels = line.iter_mut().zip(rates).zip(steps).zip(&written).zip(out.iter_mut());
                for ((((s, rate), step), written), out) in channels {
                    *s = exp(-rate * step) * *s + b * written;
                    *out += c * *s;
                }
            }
            out.iter_mut().zip(skips).zip(x).for_each(|((out, skip), x)| *out += skip * x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::Heads;
    use crate::forward::cpu::recurrent_heads::testing::{ROWS, assert_sequences_continue, numbers};
    use crate::forward::ops::Ops;

    const CHANNELS: usize = 70;
    const SIZE: usize = 5;

    fn run(cpu: Cpu, rows: std::ops::Range<usize>, lengths: &[usize], states: &mut [RecurrentState]) -> Vec<f32> {
        let (x, both) = (numbers(ROWS * CHANNELS, 1), numbers(ROWS * 2 * SIZE, 2));
        let steps: Vec<f32> = numbers(ROWS * CHANNELS, 3).iter().map(|x| 1.2 + x).collect();
        let rates: Vec<f32> = numbers(CHANNELS * SIZE, 4).iter().map(|x| 1.2 + x).collect();
        let both = &both[rows.start * 2 * SIZE..rows.end * 2 * SIZE];
        let view =
            |start| Heads { data: both, row_width: 2 * SIZE, layout: HeadLayout { start, ..HeadLayout::row(SIZE) } };
        let of_rows = rows.start * CHANNELS..rows.end * CHANNELS;
        let scan = SelectiveScan {
            inputs: Heads { data: &x[of_rows.clone()], row_width: CHANNELS, layout: HeadLayout::row(CHANNELS) },
            writes: view(0),
            reads: view(SIZE),
            steps: &steps[of_rows],
            rates: &rates,
            skips: &numbers(CHANNELS, 5),
            lengths,
        };
        let mut out = Vec::new();
        cpu.selective_scan(&scan, states, &mut out);
        out
    }

    #[test]
    fn continued_sequences_have_the_bits_of_whole_ones_on_every_instruction_set() {
        assert_sequences_continue(run);
    }

    #[test]
    fn every_element_of_the_state_decays_at_its_own_rate() {
        let heads = |data, width| Heads { data, row_width: width, layout: HeadLayout::row(width) };
        let half = 2f32.ln();
        let scan = SelectiveScan {
            inputs: heads(&[3.0, 5.0], 2),
            writes: heads(&[1.0, -1.0], 2),
            reads: heads(&[10.0, 1.0], 2),
            steps: &[1.0, 2.0],
            rates: &[half, 0.0, 0.0, half],
            skips: &[1.0, 0.0],
            lengths: &[1],
        };
        let mut states = [RecurrentState { tail: Vec::new(), memory: vec![4.0, 8.0, 4.0, 8.0] }];
        let mut out = Vec::new();
        Cpu::default().selective_scan(&scan, &mut states, &mut out);
        let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4);
        // Of the first channel 4 / 2 + 3 and 4 - 3, of the second 8 + 10 and 8 / 4 - 10.
        assert!(close(&states[0].memory, &[5.0, 18.0, 1.0, -8.0]), "{:?}", states[0].memory);
        assert!(close(&out, &[54.0, 172.0]), "{out:?}");
    }
}
