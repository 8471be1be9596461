//! SplitMix64: numbers that a seed decides, the same on every machine. Not for secrets.
//!
//! Source: Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014.

/// The golden ratio in 64 bits, the step of the run.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// An endless run of numbers.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The run of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, all 64 bits of it.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0, each as likely as the others: draws beyond the largest multiple of the bound
    /// are thrown away.
    pub fn below(&mut self, bound: u64) -> u64 {
        let excess = u64::MAX.wrapping_rem(bound).wrapping_add(1) % bound;
        loop {
            let drawn = self.draw();
            if drawn <= u64::MAX - excess {
                return drawn % bound;
            }
        }
    }

    /// A number in 0..1, a multiple of 2^-53.
    pub fn uniform(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Puts the elements in a random order, after Fisher and Yates.
    pub fn shuffle<T>(&mut self, elements: &mut [T]) {
        for i in (1..elements.len()).rev() {
            let other = (self.draw() % (i as u64 + 1)) as usize;
            elements.swap(i, other);
        }
    }
}

/// A pseudo-random number that depends only on its inputs: the rank of an element in the order of a seed.
pub fn mix(seed: u64, parts: [u64; 3]) -> u64 {
    parts.into_iter().fold(seed, |state, part| SplitMix64::new(state ^ part.wrapping_mul(STEP)).draw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_random_numbers_are_uniform() {
        let (mut random, mut seen) = (SplitMix64::new(7), [0; 6]);
        (0..6000).for_each(|_| seen[random.below(6) as usize] += 1);
        assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
        assert_eq!((random.below(1), SplitMix64::new(0).below(u64::MAX) < u64::MAX), (0, true));
    }

    #[test]
    fn mix_depends_on_every_argument() {
        let all = [mix(0, [0, 0, 0]), mix(1, [0, 0, 0]), mix(0, [1, 0, 0]), mix(0, [0, 1, 0]), mix(0, [0, 0, 1])];
        assert!((0..5).all(|i| (0..i).all(|j| all[i] != all[j])), "{all:?}");
    }

    #[test]
    fn splitmix64_matches_the_reference() {
        // The first numbers of the reference implementation (Vigna, splitmix64.c) with this seed.
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(random.draw(), 6_457_827_717_110_365_317);
        assert_eq!(random.draw(), 3_203_168_211_198_807_973);
        assert!((0.0..1.0).contains(&random.uniform()));
    }

    #[test]
    fn shuffle_keeps_all_elements() {
        let mut elements: Vec<u32> = (0..50).collect();
        SplitMix64::new(3).shuffle(&mut elements);
        assert_ne!(elements, (0..50).collect::<Vec<_>>());
        elements.sort_unstable();
        assert_eq!(elements, (0..50).collect::<Vec<_>>());
    }
}
