//! The division of a plan's work among workers that do not talk to each other. It follows from the plan alone, so that every worker finds
//! the same one.

use crate::plan::Plan;
use std::collections::{BTreeMap, BTreeSet};

/// The work of one of several workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Its units of work, as indices among the plan's.
    pub jobs: Vec<usize>,
    /// The tensors that they write, as indices among the declarations. No other share has any of them.
    pub tensors: BTreeSet<usize>,
    /// Bytes of the source that they read.
    pub source_bytes: u64,
    /// Bytes of the output that they write.
    pub output_bytes: u64,
}

impl Share {
    fn join(&mut self, other: Share) {
        self.jobs.extend(other.jobs);
        self.tensors.extend(other.tensors);
        self.source_bytes += other.source_bytes;
        self.output_bytes += other.output_bytes;
    }
}

/// The shares of so many workers. Units that write the same tensor form a group. Groups are assigned in the order of the source, by the middle of
/// each in the sum of all bytes: no share exceeds the average by more than the largest group.
pub fn shares(plan: &Plan, workers: usize) -> Vec<Share> {
    let groups = groups(plan);
    let weight = |group: &Share| u128::from(group.source_bytes) + u128::from(group.output_bytes);
    let total: u128 = groups.iter().map(weight).sum();
    let mut shares = vec![Share::default(); workers];
    let mut before = 0;
    for group in groups {
        let weight = weight(&group);
        let worker = (2 * before + weight) * workers as u128 / (2 * total).max(1);
        shares[(worker as usize).min(workers - 1)].join(group);
        before += weight;
    }
    shares.iter_mut().for_each(|share| share.jobs.sort_unstable());
    shares
}

/// Units of work that write the same tensors, in the order of the first of each group.
fn groups(plan: &Plan) -> Vec<Share> {
    let mut groups: BTreeMap<usize, Share> = BTreeMap::new();
    let mut group_of: BTreeMap<usize, usize> = BTreeMap::new();
    for (index, job) in plan.jobs().iter().enumerate() {
        let tensors: BTreeSet<usize> = plan.tensors_of(job).into_iter().collect();
        let source_bytes = plan.source_bytes_of(job);
        let mut joined = Share { jobs: vec![index], tensors, source_bytes, output_bytes: 0 };
        let earlier: BTreeSet<usize> =
            joined.tensors.iter().filter_map(|tensor| group_of.get(tensor).copied()).collect();
        let key = earlier.first().copied().unwrap_or(index);
        for group in earlier.iter().filter_map(|group| groups.remove(group)) {
            joined.join(group);
        }
        joined.tensors.iter().for_each(|tensor| _ = group_of.insert(*tensor, key));
        groups.insert(key, joined);
    }
    let places = plan.layout().places();
    let mut groups: Vec<Share> = groups.into_values().collect();
    for group in &mut groups {
        group.output_bytes = group.tensors.iter().map(|tensor| places[*tensor].len).sum();
    }
    groups
}
