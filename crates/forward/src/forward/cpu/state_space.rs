//! State-space layers, token by token.

use super::Cpu;
use super::recurrent_heads::{HeadTask, by_head};
use crate::forward::ops::StateSpace;
use crate::forward::recurrent_state::RecurrentState;
use kvant_numeric::simd::{Loop, dispatch};

/// See [`crate::forward::ops::Ops::state_space`].
pub(super) fn state_space(cpu: Cpu, space: &StateSpace<'_>, states: &mut [RecurrentState], out: &mut Vec<f32>) {
    by_head(space.inputs.layout, space.writes.layout.width, space.lengths, states, out, |task| {
        dispatch(cpu.isa, StateSpaceHead { space, task });
    });
}

/// The state is stored as `[size of the state, width of the head]`, so that neighbouring channels are computed together.
struct StateSpaceHead<'a> {
    space: &'a StateSpace<'a>,
    task: HeadTask<'a>,
}

impl Loop for StateSpaceHead<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let StateSpaceHead { space, task: HeadTask { first, head, state, out } } = self;
        let (width, heads) = (space.inputs.layout.width, space.inputs.layout.count);
        let (size, group) = (space.writes.layout.width, head / (heads / space.writes.layout.count));
        let mut written = vec![0.0; width];
        for (row, out) in (first..).zip(out.chunks_exact_mut(width)) {
            let x = &space.inputs.from(row, head)[..width];
            let (step, decay) = (space.steps[row * heads + head], space.decays[row * heads + head]);
            written.iter_mut().zip(x).for_each(|(written, x)| *written = step * x);
            let (writes, reads) = (&space.writes.from(row, group)[..size], &space.reads.from(row, group)[..size]);
            out.fill(0.0);
            for ((line, b), c) in state.chunks_exact_mut(width).zip(writes).zip(reads) {
                for ((s, written), out) in line.iter_mut().zip(&written).zip(out.iter_mut()) {
                    *s = decay * *s + b * written;
                    *out += c * *s;
                }
            }
            out.iter_mut().zip(x).for_each(|(out, x)| *out += space.skips[head] * x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::cpu::recurrent_heads::testing::{ROWS, assert_sequences_continue, numbers};
    use crate::forward::ops::Ops;
    use crate::forward::{HeadLayout, Heads};

    /// Four heads of 3 in two groups, states of 5.
    fn run(cpu: Cpu, rows: std::ops::Range<usize>, lengths: &[usize], states: &mut [RecurrentState]) -> Vec<f32> {
        let (x, shared) = (numbers(ROWS * 12, 1), numbers(ROWS * 20, 2));
        let rates: Vec<f32> = numbers(ROWS * 4, 3).iter().map(|x| 0.5 + x / 4.0).collect();
        let view = |data: &'static [f32], row_width: usize, layout| Heads {
            data: &data[rows.start * row_width..rows.end * row_width],
            row_width,
            layout,
        };
        let (x, shared): (&'static [f32], &'static [f32]) = (x.leak(), shared.leak());
        let rates = &rates[rows.start * 4..rows.end * 4];
        let task = StateSpace {
            inputs: view(x, 12, HeadLayout::packed(4, 3)),
            writes: view(shared, 20, HeadLayout::packed(2, 5)),
            reads: view(shared, 20, HeadLayout { start: 10, ..HeadLayout::packed(2, 5) }),
            steps: &rates.iter().map(|x| 1.0 - x).collect::<Vec<f32>>(),
            decays: rates,
            skips: &[0.5, -1.0, 2.0, 0.0],
            lengths,
        };
        let mut out = Vec::new();
        cpu.state_space(&task, states, &mut out);
        out
    }

    #[test]
    fn continued_sequences_have_the_bits_of_whole_ones_on_every_instruction_set() {
        assert_sequences_continue(run);
    }

    #[test]
    fn state_decays_and_is_read_along_its_channels() {
        let heads = |data, width| Heads { data, row_width: width, layout: HeadLayout::row(width) };
        let task = StateSpace {
            inputs: heads(&[2.0, 1.0], 2),
            writes: heads(&[1.0, 0.0, 3.0], 3),
            reads: heads(&[1.0, 1.0, 1.0], 3),
            steps: &[0.5],
            decays: &[0.1],
            skips: &[10.0],
            lengths: &[1],
        };
        let mut states = [RecurrentState { tail: Vec::new(), memory: vec![10.0, 0.0, 0.0, 20.0, 0.0, 0.0] }];
        let mut out = Vec::new();
        Cpu::default().state_space(&task, &mut states, &mut out);
        assert_eq!(states[0].memory, [2.0, 0.5, 0.0, 2.0, 3.0, 1.5]);
        assert_eq!(out, [25.0, 14.0]);
    }
}
