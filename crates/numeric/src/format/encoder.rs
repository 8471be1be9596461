//! Rounding to floats of at most eight bits without branches: what [`MiniFloat::encode`] and the kernels compute. Not the
//! specification of it, the search among neighbours that the tests of [`MiniFloat`] compare it with.

use super::MiniFloat;

/// A [`MiniFloat`] as the constants that branch-free encoding needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Encoder {
    /// Mantissa bits of `f32` that are dropped.
    pub(crate) drop: u32,
    /// Bits of the least normal number.
    pub(crate) least_normal: u32,
    /// Bits of the largest number.
    pub(crate) largest: u32,
    /// The exponent of `f32` less that of the format, at the place of the code.
    pub(crate) rebias: u32,
    /// The right shift that moves the sign of `f32` to that of the code.
    pub(crate) sign_shift: u32,
    /// The sign bit, 0 for an unsigned format.
    pub(crate) sign: u32,
    /// Not 0 where a negative zero is kept.
    pub(crate) negative_zero: u32,
}

impl Encoder {
    pub(crate) const fn new(format: MiniFloat) -> Encoder {
        let drop = 23 - format.mantissa_bits();
        let least_exponent = (1 - format.bias() + 127) as u32;
        // The largest number is normal in every format.
        let largest = ((format.max_code() as u32) << drop) + ((least_exponent - 1) << 23);
        Encoder {
            drop,
            least_normal: least_exponent << 23,
            largest,
            rebias: (least_exponent + drop) << format.mantissa_bits(),
            sign_shift: 32 - format.bits(),
            sign: (format.is_signed() as u32) << (format.bits() - 1),
            negative_zero: format.keeps_negative_zero() as u32,
        }
    }

    #[inline(always)]
    pub(crate) fn encode(self, value: f32) -> u8 {
        let magnitude = self.saturated(value);
        let shift = self.shift(magnitude);
        let code = ((magnitude + shift).to_bits() - shift.to_bits()) + (shift.to_bits() >> self.drop) - self.rebias;
        let sign = value.to_bits() >> self.sign_shift & self.sign;
        (if code | self.negative_zero == 0 { 0 } else { code | sign }) as u8
    }

    /// The value that the code of `value` represents.
    #[inline(always)]
    pub(crate) fn round(self, value: f32) -> f32 {
        let magnitude = self.saturated(value);
        let shift = self.shift(magnitude);
        let rounded = (magnitude + shift) - shift;
        let keeps_sign = self.sign != 0 && (rounded != 0.0 || self.negative_zero != 0);
        if keeps_sign { rounded.copysign(value) } else { rounded }
    }

    /// The magnitude, at most the largest; an unsigned format has nothing below zero.
    #[inline(always)]
    fn saturated(self, value: f32) -> f32 {
        let bits = value.to_bits();
        let magnitude = if self.sign == 0 { (bits as i32).max(0) as u32 } else { bits & 0x7FFF_FFFF };
        f32::from_bits(magnitude.min(self.largest))
    }

    /// The power of two whose last bit weighs as that of the magnitude's code does, so that adding it rounds half to even.
    /// The weight follows the exponent down to that of the least normal number.
    #[inline(always)]
    fn shift(self, magnitude: f32) -> f32 {
        let exponent = (magnitude.to_bits() & 0x7F80_0000).max(self.least_normal);
        f32::from_bits(exponent + (self.drop << 23))
    }
}
