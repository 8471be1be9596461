//! The choice of the keys that a token attends to, by an indexer (DeepSeek V3.2): scores, and the largest of them.

use super::ops::{Attention, KeyIndex};
use rayon::prelude::*;

/// What an indexer makes of some rows: queries, keys and weights, a row per token each.
pub(super) struct IndexRows {
    /// Heads of queries, side by side.
    pub queries: Vec<f32>,
    /// Keys.
    pub keys: Vec<f32>,
    /// A weight for each head of queries.
    pub weights: Vec<f32>,
}

/// For every query row whether it attends to each key of its sequence, of all keys that `attention` has; those that it does not see count as
/// chosen.
pub(super) fn chosen(attention: &Attention<'_>, index: &KeyIndex<'_>) -> Vec<bool> {
    let (length, all) = (attention.length, attention.past + attention.length);
    let rows = index.queries.data.len() / index.queries.row_width.max(1);
    let mut chosen = vec![true; rows * all];
    chosen.par_chunks_mut(all.max(1)).enumerate().for_each(|(row, chosen)| {
        let (sequence, position) = (row / length, attention.past + row % length);
        let seen = attention.seen(position);
        if seen.len() <= index.most {
            return;
        }
        let mut scores: Vec<(usize, f32)> = seen.map(|key| (key, score(index, row, sequence * all + key))).collect();
        scores.sort_by(|a, b| b.1.total_cmp(&a.1));
        scores[index.most..].iter().for_each(|(key, _)| chosen[*key] = false);
    });
    chosen
}

/// `sum_h w_h relu(q_h k)`. Factors that all keys have in common do not matter.
fn score(index: &KeyIndex<'_>, row: usize, key: usize) -> f32 {
    let layout = index.queries.layout;
    let key = &index.keys.from(key, 0)[..layout.width];
    let weights = &index.weights[row * layout.count..(row + 1) * layout.count];
    let product = |head: usize| -> f32 {
        index.queries.from(row, head)[..layout.width].iter().zip(key).map(|(q, k)| q * k).sum()
    };
    weights.iter().enumerate().map(|(head, weight)| weight * product(head).max(0.0)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::{HeadLayout, Heads};
    use kvant_numeric::linalg::ScoreBias;

    #[test]
    fn keys_with_the_largest_scores_are_chosen_of_those_that_are_seen() {
        let heads =
            |data, width, count| Heads { data, row_width: width * count, layout: HeadLayout::packed(count, width) };
        // Two sequences of three tokens, two heads of one component.
        let queries = [1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0];
        let keys = [2.0, -5.0, 1.0, 3.0, 1.0, 2.0];
        let weights = [1.0, 0.1].repeat(6);
        let index = KeyIndex { queries: heads(&queries, 1, 2), keys: heads(&keys, 1, 1), weights: &weights, most: 2 };
        let attention = Attention {
            queries: heads(&queries, 1, 2),
            keys: heads(&keys, 1, 1),
            values: heads(&keys, 1, 1),
            length: 3,
            past: 0,
            scale: 1.0,
            cap: None,
            window: None,
            ahead: 0,
            chunk: None,
            sinks: &[],
            bias: ScoreBias::NONE,
            index: None,
        };
        let found = chosen(&attention, &index);
        // Scores of the last tokens: 2, 0.5 and 1; 3, 1 and 2.
        assert_eq!(found[6..9], [true, false, true]);
        assert_eq!(found[15..18], [true, false, true]);
        assert!(found[..6].iter().chain(&found[9..15]).all(|chosen| *chosen));
    }
}
