//! Which rows went to which expert: recorded in one run, replayed in another. Not the choice, which is
//! [`super::routing_rule`]'s.

use super::routing_rule::Choice;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The rows that each expert of a block gets, with their weights.
pub(super) type Shares = Vec<Vec<Choice>>;

/// Which rows went to which expert with which weight, by block: recorded in one run, replayed in others, so that at the
/// experts the rows of both are pairs, though their routers would choose differently. For runs over the same sequences.
#[derive(Debug)]
pub struct Routing {
    replays: bool,
    blocks: Mutex<BTreeMap<usize, Recorded>>,
}

#[derive(Clone, Debug)]
struct Recorded {
    rows: usize,
    shares: Arc<Shares>,
}

impl Routing {
    /// Records what routers choose; the last run of a block counts.
    pub fn record() -> Routing {
        Routing { replays: false, blocks: Mutex::default() }
    }

    /// Replays the recorded routing. Blocks that were not run, or with another number of rows, use their routers.
    pub fn replay(self) -> Routing {
        Routing { replays: true, ..self }
    }

    /// The shares of a block's experts: replayed, or chosen and recorded.
    pub(super) fn shares(&self, block: usize, rows: usize, choose: impl FnOnce() -> Shares) -> Arc<Shares> {
        let lock = || self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if self.replays {
            let recorded = lock().get(&block).filter(|recorded| recorded.rows == rows).cloned();
            return recorded.map_or_else(|| Arc::new(choose()), |recorded| recorded.shares);
        }
        let shares = Arc::new(choose());
        lock().insert(block, Recorded { rows, shares: Arc::clone(&shares) });
        shares
    }
}

/// The rows of every expert, from the choice for every row.
pub(super) fn shares_of(choices: impl IntoIterator<Item = Vec<Choice>>, experts: usize) -> Shares {
    let mut shares = vec![Vec::new(); experts];
    for (row, chosen) in choices.into_iter().enumerate() {
        chosen.into_iter().for_each(|(expert, weight)| shares[expert].push((row, weight)));
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_routing_is_replayed_where_it_fits() {
        let chosen = |weight| shares_of([vec![(1, weight)], vec![(0, weight), (1, weight)]], 3);
        assert_eq!(chosen(0.5), [vec![(1, 0.5)], vec![(0, 0.5), (1, 0.5)], vec![]]);
        let routing = Routing::record();
        assert_eq!(*routing.shares(4, 2, || chosen(0.5)), chosen(0.5));
        let routing = routing.replay();
        assert_eq!(*routing.shares(4, 2, || chosen(0.25)), chosen(0.5));
        assert_eq!(*routing.shares(4, 3, || chosen(0.25)), chosen(0.25));
        assert_eq!(*routing.shares(5, 2, || chosen(0.25)), chosen(0.25));
    }
}
