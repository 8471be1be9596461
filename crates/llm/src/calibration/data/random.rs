//! The numbers that shuffling and random windows draw: SplitMix64, spelled out here so that a seed means the same data for
//! ever. Not for secrets.

/// The golden ratio in 64 bits, the step of the sequence.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014), with the constants of its reference code.
#[derive(Clone, Debug)]
pub(super) struct SplitMix64(u64);

impl SplitMix64 {
    pub(super) fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0, each as likely as the others: draws beyond the largest multiple of the bound
    /// are thrown away.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        let excess = u64::MAX.wrapping_rem(bound).wrapping_add(1) % bound;
        loop {
            let drawn = self.next();
            if drawn <= u64::MAX - excess {
                return drawn % bound;
            }
        }
    }
}

/// A number that looks random but depends on its inputs alone: where something stands in the order of a seed.
pub(super) fn mix(seed: u64, parts: [u64; 3]) -> u64 {
    parts.into_iter().fold(seed, |state, part| SplitMix64::new(state ^ part.wrapping_mul(STEP)).next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        let mut random = SplitMix64::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn bounded_numbers_reach_every_value_evenly() {
        let (mut random, mut seen) = (SplitMix64::new(7), [0; 6]);
        (0..6000).for_each(|_| seen[random.below(6) as usize] += 1);
        assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
        assert_eq!((random.below(1), SplitMix64::new(0).below(u64::MAX) < u64::MAX), (0, true));
    }

    #[test]
    fn places_in_an_order_depend_on_everything() {
        let all = [mix(0, [0, 0, 0]), mix(1, [0, 0, 0]), mix(0, [1, 0, 0]), mix(0, [0, 1, 0]), mix(0, [0, 0, 1])];
        assert!((0..5).all(|i| (0..i).all(|j| all[i] != all[j])), "{all:?}");
    }
}
