//! The choice of the keys that a token attends to, by an indexer: scores of keys (DeepSeek V3.2) or of blocks of them (MiniMax M3), and the
//! largest of them.

use super::ops::{Attention, IndexRule, KeyIndex};
use rayon::prelude::*;
use std::ops::Range;

/// What an indexer makes of some rows: queries, keys and weights, a row per token each.
pub(super) struct IndexRows {
    /// Heads of queries, side by side.
    pub queries: Vec<f32>,
    /// Keys.
    pub keys: Vec<f32>,
    /// A weight for each head of queries; none where heads choose for themselves.
    pub weights: Vec<f32>,
}

/// For every query row, and each of its choices, whether it attends to each key of its sequence, of all keys that `attention` has; those that
/// it does not see count as chosen.
pub(super) fn chosen(attention: &Attention<'_>, index: &KeyIndex<'_>) -> Vec<bool> {
    let (length, all) = (attention.length, attention.past + attention.length);
    let (rows, choices) = (index.queries.data.len() / index.queries.row_width.max(1), index.choices());
    let mut chosen = vec![true; rows * choices * all];
    chosen.par_chunks_mut(all.max(1)).enumerate().for_each(|(at, chosen)| {
        let (row, choice) = (at / choices, at % choices);
        let query = IndexQuery { index, row, first_key: row / length * all, seen: attention.past + row % length };
        let seen = attention.seen(query.seen);
        match index.rule {
            IndexRule::Keys { weights, most } => query.choose_keys(seen, weights, most, chosen),
            IndexRule::Blocks { size, most, local } => query.choose_blocks(seen, choice, [size, most, local], chosen),
        }
    });
    chosen
}

/// One query of an indexer.
struct IndexQuery<'a> {
    index: &'a KeyIndex<'a>,
    /// Its row.
    row: usize,
    /// The row of the first key of its sequence.
    first_key: usize,
    /// Its position in its sequence.
    seen: usize,
}

impl IndexQuery<'_> {
    /// Leaves the keys with the largest scores.
    fn choose_keys(&self, seen: Range<usize>, weights: &[f32], most: usize, chosen: &mut [bool]) {
        if seen.len() <= most {
            return;
        }
        let mut scores: Vec<(usize, f32)> = seen.map(|key| (key, self.score(weights, key))).collect();
        scores.sort_by(|a, b| b.1.total_cmp(&a.1));
        scores[most..].iter().for_each(|(key, _)| chosen[*key] = false);
    }

    /// Leaves the blocks with the largest scores.
    fn choose_blocks(&self, seen: Range<usize>, head: usize, [size, most, local]: [usize; 3], chosen: &mut [bool]) {
        let own = self.seen / size;
        let score = |block: usize| {
            let keys = (block * size).max(seen.start)..((block + 1) * size).min(seen.end);
            match block + local > own {
                true => f32::INFINITY,
                false => keys.map(|key| self.product(head, key)).fold(f32::NEG_INFINITY, f32::max),
            }
        };
        let mut scores: Vec<(usize, f32)> = (0..=own).map(|block| (block, score(block))).collect();
        scores.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (block, _) in scores.iter().skip(most) {
            chosen[block * size..((block + 1) * size).min(seen.end)].fill(false);
        }
    }

    /// `q_h k`.
    fn product(&self, head: usize, key: usize) -> f32 {
        let width = self.index.queries.layout.width;
        let key = &self.index.keys.from(self.first_key + key, 0)[..width];
        self.index.queries.from(self.row, head)[..width].iter().zip(key).map(|(q, k)| q * k).sum()
    }

    /// `sum_h w_h relu(q_h k)`. Factors that all keys have in common do not matter.
    fn score(&self, weights: &[f32], key: usize) -> f32 {
        let heads = self.index.queries.layout.count;
        let weights = &weights[self.row * heads..(self.row + 1) * heads];
        weights.iter().enumerate().map(|(head, weight)| weight * self.product(head, key).max(0.0)).sum()
    }
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
        let index = KeyIndex {
            queries: heads(&queries, 1, 2),
            keys: heads(&keys, 1, 1),
            rule: IndexRule::Keys { weights: &weights, most: 2 },
        };
        let attention = Attention {
            queries: heads(&queries, 1, 2),
            keys: heads(&keys, 1, 1),
            values: heads(&keys, 1, 1),
            length: 3,
            past: 0,
            foreign: None,
            scale: 1.0,
            cap: None,
            window: None,
            ahead: 0,
            ends: &[],
            chunk: None,
            sinks: &[],
            bias: ScoreBias::NONE,
            index: None,
            further: None,
        };
        let found = chosen(&attention, &index);
        // Scores of the last tokens: 2, 0.5 and 1; 3, 1 and 2.
        assert_eq!(found[6..9], [true, false, true]);
        assert_eq!(found[15..18], [true, false, true]);
        assert!(found[..6].iter().chain(&found[9..15]).all(|chosen| *chosen));
    }

    #[test]
    fn each_head_chooses_blocks_beside_that_of_its_token() {
        let heads =
            |data, width, count| Heads { data, row_width: width * count, layout: HeadLayout::packed(count, width) };
        // One sequence of five tokens in blocks of two; two heads of one component, whose products have opposite signs.
        let queries = [1.0, -1.0].repeat(5);
        let keys = [1.0, 3.0, 2.0, -5.0, 0.0];
        let rule = IndexRule::Blocks { size: 2, most: 2, local: 1 };
        let index = KeyIndex { queries: heads(&queries, 1, 2), keys: heads(&keys, 1, 1), rule };
        let attention = Attention {
            queries: heads(&queries, 1, 2),
            keys: heads(&keys, 1, 1),
            values: heads(&keys, 1, 1),
            length: 5,
            past: 0,
            foreign: None,
            scale: 1.0,
            cap: None,
            window: None,
            ahead: 0,
            ends: &[],
            chunk: None,
            sinks: &[],
            bias: ScoreBias::NONE,
            index: None,
            further: None,
        };
        let found = chosen(&attention, &index);
        // The last token: of the first two blocks the first head takes that with 3, the second that with -5.
        assert_eq!(found[40..45], [true, true, false, false, true]);
        assert_eq!(found[45..50], [false, false, true, true, true]);
        assert!(found[..40].iter().all(|chosen| *chosen), "earlier tokens see no more than two blocks");
    }
}
