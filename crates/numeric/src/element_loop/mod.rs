//! Loops over elements of any stored type: the safe code, which kernels compile for each instruction set and
//! to which hand-written loops leave the remainder.

mod float_codes;
mod int_codes;

pub(crate) use float_codes::FloatCodes;
pub use float_codes::Scaling;
pub use int_codes::AffineStep;
pub(crate) use int_codes::IntCodes;

use crate::arithmetic::{bf16_to_f32, f16_to_f32};

/// An element type: from how it is stored, through its bit pattern, to `f32`.
pub(crate) trait Element {
    /// One element as it is stored.
    type Stored: Copy;
    /// Its bit pattern: sign and magnitude, as in every IEEE format.
    type Bits: Bits;
    /// What [`Element::Stored`] holds, for loops by hand.
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), expect(dead_code))]
    const FLOAT: StoredFloat;

    fn bits(stored: Self::Stored) -> Self::Bits;

    fn widen(bits: Self::Bits) -> f32;
}

/// The float in the bytes of an element, in little-endian order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoredFloat {
    /// IEEE binary32.
    Single,
    /// IEEE binary16.
    Half,
    /// bfloat16.
    Brain,
}

/// Bit patterns of sign and magnitude.
pub(crate) trait Bits: Copy + Ord + Default {
    const SIGN: Self;
    const ONES: Self;

    /// The pattern without its sign.
    fn magnitude(self) -> Self;

    /// The pattern with the other sign.
    fn negated(self) -> Self;
}

impl Bits for u16 {
    const SIGN: u16 = 1 << 15;
    const ONES: u16 = u16::MAX;

    #[inline(always)]
    fn magnitude(self) -> u16 {
        self & !Self::SIGN
    }

    #[inline(always)]
    fn negated(self) -> u16 {
        self ^ Self::SIGN
    }
}

impl Bits for u32 {
    const SIGN: u32 = 1 << 31;
    const ONES: u32 = u32::MAX;

    #[inline(always)]
    fn magnitude(self) -> u32 {
        self & !Self::SIGN
    }

    #[inline(always)]
    fn negated(self) -> u32 {
        self ^ Self::SIGN
    }
}

/// `f32` in memory.
pub(crate) struct Value;
/// The bytes of an `f32`.
pub(crate) struct Single;
/// The bytes of a binary16.
pub(crate) struct Half;
/// The bytes of a bfloat16.
pub(crate) struct Brain;

impl Element for Value {
    type Stored = f32;
    type Bits = u32;
    const FLOAT: StoredFloat = StoredFloat::Single;

    #[inline(always)]
    fn bits(stored: f32) -> u32 {
        stored.to_bits()
    }

    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        f32::from_bits(bits)
    }
}

impl Element for Single {
    type Stored = [u8; 4];
    type Bits = u32;
    const FLOAT: StoredFloat = StoredFloat::Single;

    #[inline(always)]
    fn bits(stored: [u8; 4]) -> u32 {
        u32::from_le_bytes(stored)
    }

    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        f32::from_bits(bits)
    }
}

impl Element for Half {
    type Stored = [u8; 2];
    type Bits = u16;
    const FLOAT: StoredFloat = StoredFloat::Half;

    #[inline(always)]
    fn bits(stored: [u8; 2]) -> u16 {
        u16::from_le_bytes(stored)
    }

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f16_to_f32(bits)
    }
}

impl Element for Brain {
    type Stored = [u8; 2];
    type Bits = u16;
    const FLOAT: StoredFloat = StoredFloat::Brain;

    #[inline(always)]
    fn bits(stored: [u8; 2]) -> u16 {
        u16::from_le_bytes(stored)
    }

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        bf16_to_f32(bits)
    }
}

/// A loop over elements of any type, like [`Loop`](crate::simd::Loop) over its own data.
pub(crate) trait ElementLoop {
    fn run<E: Element>(self, elements: &[E::Stored]);
}
