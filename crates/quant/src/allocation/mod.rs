//! Sharing out bytes: one choice for each of several groups, so that the sum of losses is least for a number of bytes, or the sum of
//! bytes for a loss. Knows no models: a choice is its size and its loss.
//!
//! [`Front::new`] merges group after group and keeps what no other selection beats in both sums: for groups `g` with choices `c`, all
//! pairs `(sum bytes(g, c(g)), sum loss(g, c(g)))` that are smallest. That is exact as long as no more than [`MOST`] remain after a
//! merge, which groups of equal sizes, as the blocks of a decoder have, rarely exceed. Beyond it the least loss of each of [`MOST`]
//! ranges of bytes is kept, and a selection is repaired at the end: what is left of the bytes goes to the changes that take off most.
//!
//! ```
//! use kvant_quant::allocation::{Choice, Front};
//!
//! let choices = |small: f64| vec![Choice { bytes: 10, loss: small }, Choice { bytes: 20, loss: 0.1 }];
//! let front = Front::new(&[choices(3.0), choices(1.0)]);
//! let best = front.within_bytes(30).unwrap();
//! assert_eq!((best.choices, best.bytes, best.loss), (vec![1, 0], 30, 1.1));
//! ```

use std::cmp::Ordering;

/// Selections that are kept of the groups so far.
pub const MOST: usize = 1 << 14;

/// What a group may become.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Its size.
    pub bytes: u64,
    /// What it adds to the loss; finite.
    pub loss: f64,
}

/// One choice for each group.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// The index of the choice of each group.
    pub choices: Vec<usize>,
    /// The sum of their bytes.
    pub bytes: u64,
    /// The sum of their losses.
    pub loss: f64,
}

/// The choices of some groups and those that none beats.
#[derive(Clone, Debug)]
pub struct Front {
    groups: Vec<Vec<Choice>>,
    /// The kept selections after each group, by rising bytes and falling loss.
    merged: Vec<Vec<Merged>>,
    is_exact: bool,
}

/// A selection from the groups so far: one from those before, and a choice of the last.
#[derive(Clone, Copy, Debug)]
struct Merged {
    bytes: u64,
    loss: f64,
    before: u32,
    choice: u32,
}

impl Front {
    /// The front of groups. Without choices, or with losses that are all NaN or infinite, there is no selection.
    pub fn new(groups: &[Vec<Choice>]) -> Front {
        Front::with_most(groups, MOST)
    }

    fn with_most(groups: &[Vec<Choice>], most: usize) -> Front {
        let mut front = Front { groups: groups.to_vec(), merged: Vec::with_capacity(groups.len()), is_exact: true };
        let none = [Merged { bytes: 0, loss: 0.0, before: 0, choice: 0 }];
        for choices in groups {
            let before = front.merged.last().map_or(&none[..], Vec::as_slice);
            let mut kept = unbeaten(merge(before, choices));
            if kept.len() > most {
                kept = thinned(kept, most);
                front.is_exact = false;
            }
            front.merged.push(kept);
        }
        front
    }

    /// Whether nothing was left out that might be better.
    pub fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// Bytes and loss of every kept selection of all groups, by rising bytes.
    pub fn points(&self) -> impl ExactSizeIterator<Item = (u64, f64)> {
        self.last().iter().map(|merged| (merged.bytes, merged.loss))
    }

    /// The least loss within so many bytes; `None` where the smallest selection is larger.
    pub fn within_bytes(&self, bytes: u64) -> Option<Selection> {
        let at = self.last().partition_point(|merged| merged.bytes <= bytes).checked_sub(1)?;
        Some(self.repaired(self.selection(at), bytes))
    }

    /// The fewest bytes with at most this loss; `None` where the best selection loses more.
    pub fn within_loss(&self, loss: f64) -> Option<Selection> {
        let at = self.last().partition_point(|merged| merged.loss > loss);
        (at < self.last().len()).then(|| self.selection(at))
    }

    /// The smallest selection; `None` without any.
    pub fn smallest(&self) -> Option<Selection> {
        (!self.last().is_empty()).then(|| self.selection(0))
    }

    /// The selection that loses least; `None` without any.
    pub fn best(&self) -> Option<Selection> {
        self.last().len().checked_sub(1).map(|last| self.selection(last))
    }

    fn last(&self) -> &[Merged] {
        self.merged.last().map_or(&[], Vec::as_slice)
    }

    fn selection(&self, index: usize) -> Selection {
        let merged = self.last()[index];
        let (mut choices, mut at) = (vec![0; self.merged.len()], index);
        for (group, merged) in self.merged.iter().enumerate().rev() {
            choices[group] = merged[at].choice as usize;
            at = merged[at].before as usize;
        }
        Selection { choices, bytes: merged.bytes, loss: merged.loss }
    }

    /// Spends what is left of `bytes` where the front is not exact, one group at a time, on what takes off most.
    fn repaired(&self, mut selection: Selection, bytes: u64) -> Selection {
        if self.is_exact {
            return selection;
        }
        while let Some((group, index, now, choice)) = self.best_change(&selection, bytes) {
            selection.choices[group] = index;
            selection.bytes = selection.bytes - now.bytes + choice.bytes;
            selection.loss += choice.loss - now.loss;
        }
        selection
    }

    /// The change of one group that takes off most and fits into `bytes`: the group, the index of its choice, its choice now and then.
    fn best_change(&self, selection: &Selection, bytes: u64) -> Option<(usize, usize, Choice, Choice)> {
        let changes = self.groups.iter().enumerate().flat_map(|(group, choices)| {
            let now = choices[selection.choices[group]];
            let room = bytes - selection.bytes + now.bytes;
            let fits = move |(_, choice): &(usize, &Choice)| choice.bytes <= room && choice.loss < now.loss;
            choices.iter().enumerate().filter(fits).map(move |(index, choice)| (group, index, now, *choice))
        });
        let gain = |(_, _, now, choice): &(usize, usize, Choice, Choice)| now.loss - choice.loss;
        changes.max_by(|a, b| gain(a).total_cmp(&gain(b)))
    }
}

/// Every selection before with every choice of a group.
fn merge(before: &[Merged], choices: &[Choice]) -> Vec<Merged> {
    let of_choice = |(choice, one): (usize, &Choice)| {
        let one = *one;
        before.iter().enumerate().map(move |(index, merged)| Merged {
            bytes: merged.bytes.saturating_add(one.bytes),
            loss: merged.loss + one.loss,
            before: index as u32,
            choice: choice as u32,
        })
    };
    let finite = choices.iter().enumerate().filter(|(_, choice)| choice.loss.is_finite());
    finite.flat_map(of_choice).collect()
}

/// Those that are smaller than all that lose no more, by rising bytes.
fn unbeaten(mut all: Vec<Merged>) -> Vec<Merged> {
    let order = |a: &Merged, b: &Merged| -> Ordering { a.bytes.cmp(&b.bytes).then(a.loss.total_cmp(&b.loss)) };
    // Of equals the first stays, so that the order of choices decides.
    all.sort_by(order);
    let mut least = f64::INFINITY;
    all.retain(|merged| {
        let is_better = merged.loss < least;
        least = least.min(merged.loss);
        is_better
    });
    all
}

/// The least loss of each of `most` equal ranges of bytes, and the smallest.
fn thinned(all: Vec<Merged>, most: usize) -> Vec<Merged> {
    let (Some(first), Some(last)) = (all.first(), all.last()) else { return all };
    let (low, width) = (first.bytes, (last.bytes - first.bytes) / most.max(1) as u64 + 1);
    let range = |merged: &Merged| (merged.bytes - low) / width;
    let mut kept: Vec<Merged> = vec![*first];
    for merged in &all[1..] {
        match kept.last_mut() {
            // Later ones of a range lose less.
            Some(before) if range(before) == range(merged) && before.bytes > low => *before = *merged,
            _ => kept.push(*merged),
        }
    }
    kept
}

#[cfg(test)]
mod tests;
