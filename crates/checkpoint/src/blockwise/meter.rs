//! Progress of a run, for observers.

use std::sync::Mutex;
use std::sync::PoisonError;

/// The stage of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockStage {
    /// Scales of links and limits of weights are searched for.
    #[default]
    Scales,
    /// Inputs are gathered and layers rounded.
    Rounding,
    /// Codes, scales or norms follow the gradient of the block's output.
    Tuning,
    /// The quantized block computes what the next one reads.
    Outputs,
}

impl BlockStage {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            BlockStage::Scales => "searching scales",
            BlockStage::Rounding => "rounding",
            BlockStage::Tuning => "tuning",
            BlockStage::Outputs => "computing the next block's inputs",
        }
    }
}

/// The progress of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockProgress {
    /// The block in work, from 0 on.
    pub block: usize,
    /// Their number.
    pub blocks: usize,
    /// The current stage.
    pub stage: BlockStage,
    /// Calibration tokens that are through, as if each passed the whole run at once.
    pub tokens: u64,
    /// All calibration tokens.
    pub all_tokens: u64,
}

/// Counts work done: tokens through one pass of a block.
pub(super) struct Meter<'m> {
    watch: &'m (dyn Fn(BlockProgress) + Sync),
    count: Mutex<Count>,
}

#[derive(Default)]
struct Count {
    done: u64,
    total: u64,
    at: BlockProgress,
}

impl<'m> Meter<'m> {
    pub(super) fn new(watch: &'m (dyn Fn(BlockProgress) + Sync), blocks: usize, all_tokens: u64) -> Meter<'m> {
        let at = BlockProgress { blocks, all_tokens, ..BlockProgress::default() };
        Meter { watch, count: Mutex::new(Count { at, ..Count::default() }) }
    }

    pub(super) fn begin(&self, done: u64, total: u64) {
        self.change(|count| (count.done, count.total) = (done, total));
    }

    /// Starts a block and stage.
    pub(super) fn enter(&self, block: usize, stage: BlockStage) {
        self.change(|count| (count.at.block, count.at.stage) = (block, stage));
    }

    pub(super) fn advance(&self, work: u64) {
        self.change(|count| count.done += work);
    }

    /// The count is estimated ahead; at the end of a block it is known.
    pub(super) fn settle(&self, done: u64) {
        self.change(|count| count.done = count.done.max(done));
    }

    fn change(&self, change: impl FnOnce(&mut Count)) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut count);
        let (done, total) = (count.done.min(count.total), count.total.max(1));
        count.at.tokens = (u128::from(count.at.all_tokens) * u128::from(done) / u128::from(total)) as u64;
        (self.watch)(count.at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_counts_tokens_once_per_pass() {
        let seen = Mutex::new(Vec::new());
        let watch = |at: BlockProgress| seen.lock().unwrap().push((at.block, at.stage, at.tokens));
        let meter = Meter::new(&watch, 2, 100);
        meter.begin(0, 1000);
        meter.enter(1, BlockStage::Rounding);
        meter.advance(600);
        meter.settle(500);
        meter.advance(900);
        let (scales, rounding) = (BlockStage::Scales, BlockStage::Rounding);
        let expected = [(0, scales, 0), (1, rounding, 0), (1, rounding, 60), (1, rounding, 60), (1, rounding, 100)];
        assert_eq!(*seen.lock().unwrap(), expected);
    }
}
