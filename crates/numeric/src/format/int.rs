//! Integer formats: their ranges, and the scalar specification of affine quantization. Not scales or zero points as
//! they are found from data: those are in `kvant-quant`.

/// An integer format of 2 to 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Int {
    bits: u8,
    signed: bool,
}

impl Int {
    /// -2..1
    pub const INT2: Int = Int::signed(2);
    /// -4..3
    pub const INT3: Int = Int::signed(3);
    /// -8..7
    pub const INT4: Int = Int::signed(4);
    /// -16..15
    pub const INT5: Int = Int::signed(5);
    /// -32..31
    pub const INT6: Int = Int::signed(6);
    /// -64..63
    pub const INT7: Int = Int::signed(7);
    /// -128..127
    pub const INT8: Int = Int::signed(8);
    /// -2^15..2^15-1
    pub const INT16: Int = Int::signed(16);
    /// -2^31..2^31-1
    pub const INT32: Int = Int::signed(32);
    /// 0..3
    pub const UINT2: Int = Int::unsigned(2);
    /// 0..15
    pub const UINT4: Int = Int::unsigned(4);
    /// 0..255
    pub const UINT8: Int = Int::unsigned(8);
    /// 0..2^16-1
    pub const UINT16: Int = Int::unsigned(16);
    /// 0..2^32-1
    pub const UINT32: Int = Int::unsigned(32);

    pub(crate) const fn signed(bits: u8) -> Int {
        Int { bits, signed: true }
    }

    pub(crate) const fn unsigned(bits: u8) -> Int {
        Int { bits, signed: false }
    }

    /// Bits of one code.
    pub const fn bits(self) -> u32 {
        self.bits as u32
    }

    /// Returns whether codes are two's complement.
    pub const fn is_signed(self) -> bool {
        self.signed
    }

    /// The least code.
    pub const fn min(self) -> i64 {
        if self.signed { -(1 << (self.bits - 1)) } else { 0 }
    }

    /// The greatest code.
    pub const fn max(self) -> i64 {
        (1 << (if self.signed { self.bits - 1 } else { self.bits })) - 1
    }

    /// The number of steps between the least and the greatest code, `2^bits - 1`.
    pub const fn steps(self) -> i64 {
        self.max() - self.min()
    }

    /// `clamp(rne(value * inverse_scale) + zero_point, min, max)`: the specification of affine quantization.
    ///
    /// It multiplies by the reciprocal, as PyTorch's kernels do; dividing would differ in the last bit. NaN gives `min`.
    pub fn quantize(self, value: f32, inverse_scale: f32, zero_point: i64) -> i64 {
        let rounded = (value * inverse_scale).round_ties_even();
        if rounded.is_nan() {
            return self.min();
        }
        (rounded as i64).saturating_add(zero_point).clamp(self.min(), self.max())
    }

    /// `(code - zero_point) * scale`.
    pub fn dequantize(self, code: i64, scale: f32, zero_point: i64) -> f32 {
        (code - zero_point) as f32 * scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integer_ranges() {
        assert_eq!((Int::INT8.min(), Int::INT8.max(), Int::INT8.steps()), (-128, 127, 255));
        assert_eq!((Int::UINT4.min(), Int::UINT4.max(), Int::UINT4.steps()), (0, 15, 15));
        assert_eq!((Int::INT32.min(), Int::INT32.max()), (i64::from(i32::MIN), i64::from(i32::MAX)));
        assert_eq!(Int::UINT32.max(), i64::from(u32::MAX));
    }

    #[test]
    fn int_rounds_half_to_even_and_saturates() {
        let codes: Vec<i64> =
            [0.5, 1.5, -0.5, -1.5, 100.0, -100.0].iter().map(|&x| Int::INT4.quantize(x, 1.0, 0)).collect();
        assert_eq!(codes, [0, 2, 0, -2, 7, -8]);
        assert_eq!(Int::UINT4.quantize(-3.0, 1.0, 8), 5);
        assert_eq!(Int::INT4.quantize(f32::NAN, 1.0, 0), -8);
        assert_eq!(Int::INT32.quantize(f32::INFINITY, 1.0, 5), i64::from(i32::MAX));
    }
}
