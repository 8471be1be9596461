//! How far a run has come, for whoever watches.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts work done.
pub(super) struct Meter<'m> {
    watch: &'m (dyn Fn(u64, u64) + Sync),
    done: AtomicU64,
    total: AtomicU64,
}

impl<'m> Meter<'m> {
    pub(super) fn new(watch: &'m (dyn Fn(u64, u64) + Sync)) -> Meter<'m> {
        Meter { watch, done: AtomicU64::new(0), total: AtomicU64::new(0) }
    }

    pub(super) fn begin(&self, done: u64, total: u64) {
        self.total.store(total, Ordering::Relaxed);
        self.settle(done);
    }

    pub(super) fn advance(&self, work: u64) {
        let done = self.done.fetch_add(work, Ordering::Relaxed) + work;
        self.tell(done);
    }

    /// The count is estimated ahead; at the end of a block it is known.
    pub(super) fn settle(&self, done: u64) {
        let before = self.done.fetch_max(done, Ordering::Relaxed);
        self.tell(done.max(before));
    }

    fn tell(&self, done: u64) {
        let total = self.total.load(Ordering::Relaxed);
        (self.watch)(done.min(total), total);
    }
}
