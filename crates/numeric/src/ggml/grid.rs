//! The unscaled values of the codes of a symmetric type. Not the scales.

use super::lanes::Lanes;

/// A set of levels.
pub(super) trait Grid: Copy {
    /// The level nearest to each number. Must be `#[inline(always)]`, like the other.
    fn nearest<const L: usize>(self, numbers: Lanes<L>) -> Lanes<L>;

    /// The codes of levels.
    fn codes<const L: usize>(self, levels: Lanes<L>) -> Lanes<L>;
}

/// Integers from `-half` to `half - 1`, with the code `half` higher.
#[derive(Clone, Copy)]
pub(super) struct Integers {
    pub half: f32,
}

impl Grid for Integers {
    #[inline(always)]
    fn nearest<const L: usize>(self, numbers: Lanes<L>) -> Lanes<L> {
        numbers.max(Lanes::splat(-self.half)).min(Lanes::splat(self.half - 1.0)).round()
    }

    #[inline(always)]
    fn codes<const L: usize>(self, levels: Lanes<L>) -> Lanes<L> {
        levels + Lanes::splat(self.half)
    }
}

/// The 16 levels of IQ4_NL and IQ4_XS, closer to each other around zero.
pub(super) const IQ4_LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// [`IQ4_LEVELS`], in the order of their codes.
#[derive(Clone, Copy)]
pub(super) struct Iq4;

impl Iq4 {
    /// The sum of `step(level before, level)` over the levels whose midpoints with those before are below `numbers`.
    #[inline(always)]
    fn count<const L: usize>(numbers: Lanes<L>, start: f32, step: impl Fn(f32, f32) -> f32) -> Lanes<L> {
        let mut sum = Lanes::splat(start);
        for pair in IQ4_LEVELS.windows(2) {
            let (low, high) = (f32::from(pair[0]), f32::from(pair[1]));
            let (middle, step) = ((low + high) / 2.0, step(low, high));
            sum = sum + numbers.step_above(middle, step);
        }
        sum
    }
}

impl Grid for Iq4 {
    #[inline(always)]
    fn nearest<const L: usize>(self, numbers: Lanes<L>) -> Lanes<L> {
        Self::count(numbers, f32::from(IQ4_LEVELS[0]), |low, high| high - low)
    }

    #[inline(always)]
    fn codes<const L: usize>(self, levels: Lanes<L>) -> Lanes<L> {
        Self::count(levels, 0.0, |_, _| 1.0)
    }
}

/// Twice the values of e2m1, in the order of its codes.
pub(super) const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The values of e2m1. What rounds to zero has the code of zero without a sign.
#[derive(Clone, Copy)]
pub(super) struct E2m1;

impl E2m1 {
    /// As [`Iq4::count`], of magnitudes.
    #[inline(always)]
    fn count<const L: usize>(magnitudes: Lanes<L>, step: impl Fn(f32, f32) -> f32) -> Lanes<L> {
        let mut sum = Lanes::splat(0.0);
        for pair in E2M1_DOUBLED[..8].windows(2) {
            let (low, high) = (f32::from(pair[0]) / 2.0, f32::from(pair[1]) / 2.0);
            let (middle, step) = ((low + high) / 2.0, step(low, high));
            sum = sum + magnitudes.step_above(middle, step);
        }
        sum
    }
}

impl Grid for E2m1 {
    #[inline(always)]
    fn nearest<const L: usize>(self, numbers: Lanes<L>) -> Lanes<L> {
        let magnitude = Self::count(numbers.map(f32::abs), |low, high| high - low);
        (-magnitude).where_less(numbers, Lanes::splat(0.0), magnitude)
    }

    #[inline(always)]
    fn codes<const L: usize>(self, levels: Lanes<L>) -> Lanes<L> {
        let magnitude = Self::count(levels.map(f32::abs), |_, _| 1.0);
        (magnitude + Lanes::splat(8.0)).where_less(levels, Lanes::splat(0.0), magnitude)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iq4_nearest_level_has_its_code() {
        for step in -1400..1400 {
            let number = step as f32 / 10.0 + 0.03;
            let nearest = Iq4.nearest(Lanes([number])).0[0];
            let distance = |level: &i8| (f32::from(*level) - number).abs();
            let expected = IQ4_LEVELS.iter().min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap();
            assert_eq!(nearest, f32::from(*expected), "{number}");
            let code = Iq4.codes(Lanes([nearest])).0[0];
            assert_eq!(IQ4_LEVELS[code as usize], *expected);
        }
    }

    #[test]
    fn integer_grid_clamps_at_its_ends() {
        let grid = Integers { half: 4.0 };
        let levels = grid.nearest(Lanes([-9.0, -1.6, 2.4, 9.0]));
        assert_eq!(levels.0, [-4.0, -2.0, 2.0, 3.0]);
        assert_eq!(grid.codes(levels).0, [0.0, 2.0, 6.0, 7.0]);
    }

    #[test]
    fn float_grid_matches_e2m1() {
        use crate::format::MiniFloat;
        for step in -80..80 {
            let number = step as f32 / 10.0 + 0.01;
            let nearest = E2m1.nearest(Lanes([number]));
            let code = E2m1.codes(nearest).0[0] as u8;
            assert_eq!(nearest.0[0], MiniFloat::E2M1.decode(MiniFloat::E2M1.encode(number)), "{number}");
            assert_eq!(f32::from(E2M1_DOUBLED[usize::from(code)]), 2.0 * nearest.0[0]);
        }
    }
}
