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
