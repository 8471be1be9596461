//! Which positions a query sees.

use super::{BAND, QUERIES};
use crate::simd::SIDE;
use std::ops::Range;

/// The keys visible to up to 32 queries, the first of which has position `first`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'a> {
    pub(super) first: usize,
    /// How many keys there are: what follows them in a band is none.
    pub(super) keys: usize,
    pub(super) window: Option<usize>,
    pub(super) ahead: usize,
    /// Where what the query at each position sees ends, if not by `ahead`: see [`AttentionRule::ends`](super::AttentionRule::ends).
    pub(super) ends: &'a [usize],
    pub(super) chunk: Option<usize>,
}

impl Seen<'_> {
    /// The bands with keys that one of `queries` queries sees.
    pub(super) fn bands(self, queries: usize) -> Range<usize> {
        self.start(self.first) / BAND..self.end((self.first + queries).saturating_sub(1)).div_ceil(BAND)
    }

    /// The first position that the query at `position` sees.
    fn start(self, position: usize) -> usize {
        let window = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        self.chunk.map_or(window, |chunk| window.max(position - position % chunk.max(1)))
    }

    /// The position behind the last one that the query at `position` sees.
    fn end(self, position: usize) -> usize {
        let end = self.ends.get(position).copied().unwrap_or((position + 1).saturating_add(self.ahead));
        end.min(self.keys)
    }

    /// Returns whether all 32 queries see all of a band.
    pub(super) fn is_whole(self, band: usize) -> bool {
        (band + 1) * BAND <= self.end(self.first) && self.start(self.first + QUERIES - 1) <= band * BAND
    }

    /// Which of sixteen queries from the `from`-th on see the key at `position`: 1 and 0.
    #[inline(always)]
    pub(super) fn lanes(self, from: usize, position: usize) -> [bool; SIDE] {
        let query = (self.first + from) as i64;
        let window = self.window.map_or(i64::MAX, |window| (position + window) as i64);
        let chunk = self.chunk.map_or(i64::MAX, |chunk| (position - position % chunk.max(1) + chunk) as i64);
        // Farther ahead than any position.
        let ahead = self.ahead.min(u32::MAX as usize) as i64;
        let latest = if position < self.keys { window.min(chunk) } else { i64::MIN };
        let earliest = position as i64 - ahead;
        if !self.ends.is_empty() {
            return std::array::from_fn(|lane| {
                let place = self.first + from + lane;
                let is_before_end = self.ends.get(place).map_or(earliest <= place as i64, |end| position < *end);
                is_before_end && (place as i64) < latest
            });
        }
        std::array::from_fn(|lane| {
            let query = query + lane as i64;
            earliest <= query && query < latest
        })
    }
}
