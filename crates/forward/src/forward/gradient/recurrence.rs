//! Recurrences followed back: of a head's states every [`SPAN`]th is kept, and those between are computed again.

/// Tokens whose states are in memory at once.
pub(super) const SPAN: usize = 32;

/// Runs `forward` on `rows` tokens from a state of `size` zeros, which it moves by a token; then calls `back` for each token from the last to
/// the first, with what `forward` gave for it and the states before and behind it.
#[inline(always)]
pub(super) fn follow_back<T>(
    rows: usize,
    size: usize,
    forward: impl Fn(usize, &mut [f32]) -> T,
    mut back: impl FnMut(usize, T, [&[f32]; 2]),
) {
    let mut state = vec![0.0; size];
    let mut kept = Vec::new();
    for row in 0..rows {
        if row % SPAN == 0 {
            kept.push(state.clone());
        }
        forward(row, &mut state);
    }
    for (span, start) in kept.into_iter().enumerate().rev() {
        let first = span * SPAN;
        let (mut states, mut tokens) = (vec![start], Vec::new());
        for row in first..rows.min(first + SPAN) {
            let mut state = states[row - first].clone();
            tokens.push(forward(row, &mut state));
            states.push(state);
        }
        for (index, token) in tokens.into_iter().enumerate().rev() {
            back(first + index, token, [&states[index], &states[index + 1]]);
        }
    }
}

/// The first row and the rows of each sequence, with each of so many parts.
pub(super) fn parts_of_sequences(lengths: &[usize], parts: usize) -> Vec<PartOfSequence> {
    let mut first = 0;
    let mut all = Vec::new();
    for &rows in lengths {
        all.extend((0..parts).map(|part| PartOfSequence { first, rows, part }));
        first += rows;
    }
    all
}

/// A head of a sequence, or some channels.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartOfSequence {
    /// The sequence's first row.
    pub(super) first: usize,
    pub(super) rows: usize,
    pub(super) part: usize,
}
