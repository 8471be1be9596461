//! Numbers of several groups side by side, one lane a group. What a search does to one group it does to all of them at
//! once, every lane in the order of the scalar formula: no sum runs across lanes, so that vectors change no bit.

use crate::simd::{BY_HAND, Difference, FiniteOr, Greater, Lesser, Product, Quotient, Sum, lanewise, where_less};
use std::ops::{Add, Div, Mul, Neg, Sub};

/// `L` numbers, one a lane.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(32))]
pub(super) struct Lanes<const L: usize>(pub [f32; L]);

/// 1.5 * 2^23: adding it to a number of magnitude below 2^22 rounds to an integer, half to even.
const TO_INTEGER: f32 = 12_582_912.0;

impl<const L: usize> Lanes<L> {
    /// The same number in every lane.
    #[inline(always)]
    pub fn splat(value: f32) -> Self {
        Lanes([value; L])
    }

    /// `f` of each lane.
    #[inline(always)]
    pub fn map(mut self, f: impl Fn(f32) -> f32) -> Self {
        for lane in &mut self.0 {
            *lane = f(*lane);
        }
        self
    }

    /// The greater; `other` where one is NaN.
    #[inline(always)]
    pub fn max(self, other: Self) -> Self {
        Lanes(lanewise::<Greater, L>(self.0, other.0))
    }

    /// The lesser; `other` where one is NaN.
    #[inline(always)]
    pub fn min(self, other: Self) -> Self {
        Lanes(lanewise::<Lesser, L>(self.0, other.0))
    }

    /// The nearest integer, half to even, of magnitudes below 2^22.
    #[inline(always)]
    pub fn round(self) -> Self {
        if BY_HAND {
            return self + Self::splat(TO_INTEGER) - Self::splat(TO_INTEGER);
        }
        self.map(|lane| (lane + TO_INTEGER) - TO_INTEGER)
    }

    /// `1 / self`, or 0 where that is not finite.
    #[inline(always)]
    pub fn inverse(self) -> Self {
        if BY_HAND {
            return Lanes(lanewise::<FiniteOr, L>((Self::splat(1.0) / self).0, [0.0; L]));
        }
        self.map(super::scale::inverse)
    }

    /// `self` in lanes where `a < b`, `other` elsewhere.
    #[inline(always)]
    pub fn where_less(self, a: Self, b: Self, other: Self) -> Self {
        Lanes(where_less(a.0, b.0, self.0, other.0))
    }

    /// `step` in lanes above `bound`, 0 elsewhere.
    #[inline(always)]
    pub fn step_above(self, bound: f32, step: f32) -> Self {
        if BY_HAND {
            return Self::splat(step).where_less(Self::splat(bound), self, Self::splat(0.0));
        }
        self.map(|lane| if lane > bound { step } else { 0.0 })
    }

    /// The sum of all lanes, first to last.
    #[inline(always)]
    pub fn sum(self) -> f32 {
        self.0.iter().fold(0.0, |sum, lane| sum + lane)
    }

    /// The largest lane, 0 at least.
    #[inline(always)]
    pub fn largest(self) -> f32 {
        self.0.iter().fold(0.0, |max, lane| if *lane > max { *lane } else { max })
    }
}

impl<const L: usize> Add for Lanes<L> {
    type Output = Self;

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Lanes(lanewise::<Sum, L>(self.0, other.0))
    }
}

impl<const L: usize> Sub for Lanes<L> {
    type Output = Self;

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Lanes(lanewise::<Difference, L>(self.0, other.0))
    }
}

impl<const L: usize> Mul for Lanes<L> {
    type Output = Self;

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Lanes(lanewise::<Product, L>(self.0, other.0))
    }
}

impl<const L: usize> Div for Lanes<L> {
    type Output = Self;

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        Lanes(lanewise::<Quotient, L>(self.0, other.0))
    }
}

impl<const L: usize> Neg for Lanes<L> {
    type Output = Self;

    #[inline(always)]
    fn neg(self) -> Self {
        self.map(|lane| -lane)
    }
}
