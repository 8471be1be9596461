//! Recurrent layers, one head at a time: threads share the heads of all sequences, and every head keeps its own state.

use crate::forward::HeadLayout;
use crate::forward::recurrent_state::RecurrentState;
use rayon::prelude::*;

/// One head of a sequence.
pub(super) struct HeadTask<'s> {
    /// The index of the sequence's first row.
    pub first: usize,
    /// The head.
    pub head: usize,
    /// What it remembers of earlier rows.
    pub state: &'s mut [f32],
    /// Its output, one after the other for all rows of the sequence.
    pub out: &'s mut [f32],
}

/// Writes `out` `[rows, heads * width]`, of which `run` computes one head of a sequence at a time. `lengths` are the rows of each sequence,
/// and the memory of a head has `size` numbers for each of its channels.
pub(super) fn by_head(
    heads: HeadLayout,
    size: usize,
    lengths: &[usize],
    states: &mut [RecurrentState],
    out: &mut Vec<f32>,
    run: impl Fn(HeadTask<'_>) + Sync,
) {
    let (row_width, memory) = (heads.count * heads.width, size * heads.width);
    out.resize(lengths.iter().sum::<usize>() * row_width, 0.0);
    let mut first = 0;
    let mut tasks = Vec::new();
    for (&rows, state) in lengths.iter().zip(states) {
        state.memory.resize(heads.count * memory, 0.0);
        let memories = state.memory.chunks_mut(memory).enumerate();
        tasks.extend(memories.map(|(head, state)| (first, rows, head, state)));
        first += rows;
    }
    let computed = tasks.into_par_iter().map(|(first, rows, head, state)| {
        let mut out = vec![0.0; rows * heads.width];
        run(HeadTask { first, head, state, out: &mut out });
        (first, head, out)
    });
    let computed: Vec<(usize, usize, Vec<f32>)> = computed.collect();
    for (first, head, part) in computed {
        for (row, values) in part.chunks_exact(heads.width).enumerate() {
            let start = (first + row) * row_width + head * values.len();
            out[start..start + values.len()].copy_from_slice(values);
        }
    }
}

/// What the tests of all recurrences share.
#[cfg(test)]
pub(super) mod testing {
    use crate::forward::cpu::Cpu;
    use crate::forward::recurrent_state::RecurrentState;
    use kvant_numeric::simd::Isa;
    use std::ops::Range;

    /// Rows of two sequences, of 4 and 3 tokens.
    pub(in crate::forward::cpu) const ROWS: usize = 7;

    pub(in crate::forward::cpu) fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 37 + seed * 11) % 23) as f32 * 0.1 - 1.1).collect()
    }

    /// Sequences that are continued have the bits of whole ones, in outputs and states, on every instruction set. `run` computes some
    /// rows of sequences of these lengths.
    pub(in crate::forward::cpu) fn assert_sequences_continue(
        run: impl Fn(Cpu, Range<usize>, &[usize], &mut [RecurrentState]) -> Vec<f32>,
    ) {
        let mut expected: Option<(Vec<f32>, Vec<RecurrentState>)> = None;
        for isa in Isa::available() {
            let mut whole = vec![RecurrentState::default(); 2];
            let out = run(Cpu::new(isa), 0..ROWS, &[4, 3], &mut whole);
            let mut parts = vec![RecurrentState::default(); 2];
            let mut first = run(Cpu::new(isa), 0..2, &[2], &mut parts[..1]);
            first.extend(run(Cpu::new(isa), 2..4, &[2], &mut parts[..1]));
            first.extend(run(Cpu::new(isa), 4..7, &[3], &mut parts[1..]));
            assert!(first == out && parts == whole);
            let (expected, states) = expected.get_or_insert_with(|| (out.clone(), whole.clone()));
            assert!(*expected == out && *states == whole);
        }
    }
}
