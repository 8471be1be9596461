//! Numbers that are added to the scores of attention, where positions enter so.

/// What is added to scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScoreBias<'a> {
    /// A number for each key, whatever the query; empty if nothing is added.
    OfKeys(&'a [f32]),
    /// A number for each distance of a key from its query, from the farthest key before it to the farthest behind it: of an odd count the
    /// middle one is that of the query's own position.
    OfDistances(&'a [f32]),
    /// A number for each query and key of one sequence.
    OfPairs {
        /// The numbers, query after query.
        biases: &'a [f32],
        /// The keys.
        keys: usize,
    },
}

impl<'a> ScoreBias<'a> {
    /// Nothing.
    pub const NONE: ScoreBias<'static> = ScoreBias::OfKeys(&[]);

    /// What is added for the query at position `query` to the keys from position `key` on; nothing is added to further ones.
    #[inline(always)]
    pub fn of_query(self, query: usize, key: usize) -> &'a [f32] {
        match self {
            ScoreBias::OfKeys(biases) => biases.get(key..).unwrap_or(&[]),
            ScoreBias::OfDistances(biases) => {
                // Queries beyond the last one are as far as the farthest: their scores are not used.
                biases.get((biases.len() / 2 + key).saturating_sub(query)..).unwrap_or(&[])
            }
            ScoreBias::OfPairs { biases, keys } => {
                let start = query.saturating_mul(keys);
                biases.get(start.saturating_add(key)..start.saturating_add(keys)).unwrap_or(&[])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases_of_distances_start_at_that_of_the_first_key() {
        let biases = [-2.0, -1.0, 0.0, 1.0, 2.0];
        let bias = ScoreBias::OfDistances(&biases);
        assert_eq!(bias.of_query(2, 0), [-2.0, -1.0, 0.0, 1.0, 2.0]);
        assert_eq!(bias.of_query(0, 0), [0.0, 1.0, 2.0]);
        assert_eq!(bias.of_query(1, 2), [1.0, 2.0]);
        assert_eq!(ScoreBias::OfKeys(&biases).of_query(1, 3), [1.0, 2.0]);
        assert!(ScoreBias::NONE.of_query(1, 3).is_empty());
        let pairs = ScoreBias::OfPairs { biases: &biases[..4], keys: 2 };
        assert_eq!((pairs.of_query(1, 0), pairs.of_query(0, 1)), (&[0.0, 1.0][..], &[-1.0][..]));
        assert!(pairs.of_query(2, 0).is_empty() && pairs.of_query(0, 3).is_empty());
    }
}
