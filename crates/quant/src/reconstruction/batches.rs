//! Which samples an iteration sees: all of them in a random order, then all of them in another. A seed decides.

/// An endless run of samples.
#[derive(Debug, Clone)]
pub(super) struct Batches {
    order: Vec<usize>,
    next: usize,
    state: u64,
}

impl Batches {
    /// Samples `0..samples`.
    pub fn new(samples: usize, seed: u64) -> Self {
        Self { order: (0..samples).collect(), next: samples, state: seed }
    }

    /// The next sample.
    pub fn draw(&mut self) -> usize {
        if self.next >= self.order.len() {
            self.shuffle();
            self.next = 0;
        }
        self.next += 1;
        self.order.get(self.next - 1).copied().unwrap_or(0)
    }

    /// Fisher and Yates.
    fn shuffle(&mut self) {
        for i in (1..self.order.len()).rev() {
            let other = (self.random() % (i as u64 + 1)) as usize;
            self.order.swap(i, other);
        }
    }

    /// SplitMix64.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_seen_as_often_and_seeds_differ() {
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
