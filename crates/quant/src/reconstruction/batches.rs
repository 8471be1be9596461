//! Which samples an iteration sees: all of them in a random order, then all of them in another. A seed decides.

use crate::random::SplitMix64;

/// An endless run of samples.
#[derive(Debug, Clone)]
pub(super) struct Batches {
    order: Vec<usize>,
    next: usize,
    random: SplitMix64,
}

impl Batches {
    /// Samples `0..samples`.
    pub fn new(samples: usize, seed: u64) -> Self {
        Self { order: (0..samples).collect(), next: samples, random: SplitMix64::new(seed) }
    }

    /// The next sample.
    pub fn draw(&mut self) -> usize {
        if self.next >= self.order.len() {
            self.random.shuffle(&mut self.order);
            self.next = 0;
        }
        self.next += 1;
        self.order.get(self.next - 1).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_drawn_equally_and_seeds_differ() {
        let draw = |seed| {
            let mut batches = Batches::new(7, seed);
            (0..21).map(|_| batches.draw()).collect::<Vec<_>>()
        };
        let drawn = draw(1);
        for pass in drawn.chunks(7) {
            let mut sorted = pass.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..7).collect::<Vec<_>>());
        }
        assert_eq!(drawn, draw(1));
        assert_ne!(drawn, draw(2));
        assert_ne!(drawn[..7], drawn[7..14]);
    }
}
