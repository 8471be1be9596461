//! Floats of at most eight bits, each one constant row, and their operations on one number. Not shared scales: those of
//! OCP MX are in `shared_exponent.rs`.

use super::Encoder;

/// A float format of at most eight bits: sign, exponent and mantissa, with subnormals and without infinities in use.
///
/// Value of a code with exponent field `e` and mantissa field `m`: `2^(e - bias) * (1 + m / 2^M)`, for `e = 0`
/// `2^(1 - bias) * m / 2^M`. Encoding rounds half to even and saturates at the largest finite value, as the OCP 8-bit
/// and MX specifications allow and as quantizers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MiniFloat {
    exponent_bits: u8,
    mantissa_bits: u8,
    bias: i8,
    signed: bool,
    /// The code of the largest value that encoding produces.
    max_code: u8,
    /// Whether a negative number that rounds to zero keeps its sign bit.
    keeps_negative_zero: bool,
    above_max: AboveMax,
}

/// The meaning of the codes above that of the largest value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum AboveMax {
    /// Numbers, or there are no such codes.
    Finite,
    /// NaN.
    Nan,
    /// Infinity, then NaN.
    InfinityAndNan,
}

impl MiniFloat {
    /// fp4 of OCP MX 1.0: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
    pub const E2M1: MiniFloat = MiniFloat::new(2, 1, 1, true, 0x7, false, AboveMax::Finite);
    /// fp6 of OCP MX 1.0, largest 7.5.
    pub const E2M3: MiniFloat = MiniFloat::new(2, 3, 1, true, 0x1F, false, AboveMax::Finite);
    /// fp6 of OCP MX 1.0, largest 28.
    pub const E3M2: MiniFloat = MiniFloat::new(3, 2, 3, true, 0x1F, false, AboveMax::Finite);
    /// fp8 of OCP OFP8 (`e4m3fn`), largest 448; code 0x7F is NaN.
    pub const E4M3: MiniFloat = MiniFloat::new(4, 3, 7, true, 0x7E, true, AboveMax::Nan);
    /// fp8 of OCP OFP8, largest 57344; codes from 0x7C are infinity and NaN.
    pub const E5M2: MiniFloat = MiniFloat::new(5, 2, 15, true, 0x7B, true, AboveMax::InfinityAndNan);
    /// Unsigned scale format of AMDFP4, largest 114688 in use; all 256 codes are finite.
    pub const E5M3: MiniFloat = MiniFloat::new(5, 3, 15, false, 0xFE, false, AboveMax::Finite);

    const fn new(
        exponent_bits: u8,
        mantissa_bits: u8,
        bias: i8,
        signed: bool,
        max_code: u8,
        keeps_negative_zero: bool,
        above_max: AboveMax,
    ) -> Self {
        MiniFloat { exponent_bits, mantissa_bits, bias, signed, max_code, keeps_negative_zero, above_max }
    }

    /// Bits of one code.
    pub const fn bits(self) -> u32 {
        (self.exponent_bits + self.mantissa_bits + self.signed as u8) as u32
    }

    /// Mantissa bits, without the implicit one.
    pub const fn mantissa_bits(self) -> u32 {
        self.mantissa_bits as u32
    }

    /// Returns whether there is a sign bit.
    pub const fn is_signed(self) -> bool {
        self.signed
    }

    /// The bias of the exponent field.
    pub const fn bias(self) -> i32 {
        self.bias as i32
    }

    /// The code of the largest value.
    pub const fn max_code(self) -> u8 {
        self.max_code
    }

    /// The lowest code, without its sign bit, that is NaN or infinite; `None` where all codes are numbers.
    pub const fn special_from(self) -> Option<u8> {
        match self.above_max {
            AboveMax::Finite => None,
            AboveMax::Nan | AboveMax::InfinityAndNan => Some(self.max_code + 1),
        }
    }

    /// Whether that code is infinity.
    pub(crate) const fn has_infinity(self) -> bool {
        matches!(self.above_max, AboveMax::InfinityAndNan)
    }

    /// Whether `-0.0`, and negative numbers that round to it, keep the sign bit (as casts to fp8 do and casts to fp4 and
    /// fp6 in other tools do not).
    pub const fn keeps_negative_zero(self) -> bool {
        self.keeps_negative_zero
    }

    /// The largest value.
    #[inline(always)]
    pub const fn max(self) -> f32 {
        f32::from_bits(Encoder::new(self).largest)
    }

    /// The exponent of the largest value, `emax` in the OCP MX specification.
    #[inline(always)]
    pub const fn max_exponent(self) -> i32 {
        (self.max_code >> self.mantissa_bits) as i32 - self.bias as i32
    }

    /// Rounds to the nearest value, ties to the even code, saturating. NaN gives the largest value: callers refuse NaN.
    /// Negative numbers give zero in an unsigned format.
    #[inline(always)]
    pub fn encode(self, value: f32) -> u8 {
        Encoder::new(self).encode(value)
    }

    /// `decode(encode(value))`, in fewer steps.
    #[inline(always)]
    pub fn round(self, value: f32) -> f32 {
        Encoder::new(self).round(value)
    }

    /// The value of a code; bits beyond the format's width are ignored. NaN and infinity codes of fp8 decode to such.
    pub fn decode(self, code: u8) -> f32 {
        let sign_bit = 1u32 << (self.bits() - 1);
        let negative = self.signed && u32::from(code) & sign_bit != 0;
        let field_bits = self.exponent_bits + self.mantissa_bits;
        let fields = code & (((1u16 << field_bits) - 1) as u8);
        let magnitude = self.special(fields).unwrap_or_else(|| self.magnitude(fields));
        if negative { -magnitude } else { magnitude }
    }

    fn special(self, fields: u8) -> Option<f32> {
        let from = self.special_from().filter(|from| fields >= *from)?;
        Some(if fields == from && self.has_infinity() { f32::INFINITY } else { f32::NAN })
    }

    fn magnitude(self, code: u8) -> f32 {
        let mantissa = f32::from(code & ((1 << self.mantissa_bits) - 1)) / f32::from(1u16 << self.mantissa_bits);
        let exponent = i32::from(code >> self.mantissa_bits);
        let bias = i32::from(self.bias);
        if exponent == 0 { mantissa * pow2(1 - bias) } else { (1.0 + mantissa) * pow2(exponent - bias) }
    }
}

/// `2^exponent` for exponents of normal numbers, -126..=127.
#[inline(always)]
pub(crate) fn pow2(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

#[cfg(test)]
impl MiniFloat {
    /// Every format of the table of dtypes: kernels are tested with each of them.
    pub(crate) fn all() -> Vec<MiniFloat> {
        let float = |dtype| if let super::DType::MiniFloat(float) = dtype { Some(float) } else { None };
        super::DTYPES.iter().filter_map(|row| float(row.dtype)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The specification of rounding, deliberately plain: the neighbours are found by search, the nearer one wins.
    fn search(format: MiniFloat, magnitude: f32) -> u8 {
        if magnitude.is_nan() || magnitude >= format.max() {
            return format.max_code;
        }
        let above = (0..=format.max_code).find(|&code| format.magnitude(code) > magnitude).unwrap();
        let below = above - 1;
        let (low, high) = (f64::from(format.magnitude(below)), f64::from(format.magnitude(above)));
        let (down, up) = (f64::from(magnitude) - low, high - f64::from(magnitude));
        let tie_goes_up = below & 1 == 1;
        if down < up || (down == up && !tie_goes_up) { below } else { above }
    }

    fn search_signed(format: MiniFloat, value: f32) -> u8 {
        if !format.signed && value < 0.0 {
            return 0;
        }
        let code = search(format, value.abs());
        let negative = format.signed && value.is_sign_negative() && (code != 0 || format.keeps_negative_zero);
        code | (u8::from(negative) << (format.bits() - 1))
    }

    fn assert_as_specified(format: MiniFloat, value: f32) {
        let code = format.encode(value);
        assert_eq!(code, search_signed(format, value), "{format:?} {value:e}");
        assert_eq!(format.round(value).to_bits(), format.decode(code).to_bits(), "{format:?} {value:e}");
    }

    #[test]
    fn encoding_matches_search_at_boundaries() {
        for format in MiniFloat::all() {
            let grid: Vec<f32> = (0..=format.max_code()).map(|code| format.decode(code)).collect();
            let middles = grid.windows(2).map(|w| w[0] + (w[1] - w[0]) / 2.0);
            let outside = [1e-45, 1e-38, 1e-20, 1e20, f32::MAX, f32::INFINITY];
            for point in grid.iter().copied().chain(middles).chain(outside) {
                for value in [point.next_down(), point, point.next_up()] {
                    assert_as_specified(format, value);
                    assert_as_specified(format, -value);
                }
            }
            assert_eq!(format.encode(f32::NAN), format.max_code());
        }
    }

    #[test]
    fn encoding_matches_search_for_sampled_bit_patterns() {
        // A stride that is coprime to 2^32 walks through all exponents, signs and mantissa tails.
        let (all, mut bits) = (MiniFloat::all(), 0u32);
        for i in 0..300_000 {
            bits = bits.wrapping_add(2_654_435_769);
            let value = f32::from_bits(bits);
            if value.is_finite() {
                assert_as_specified(all[i % all.len()], value);
            }
        }
    }

    #[test]
    fn largest_values_and_exponents_match_the_specifications() {
        let expected = [
            ("e2m1", 6.0, 2, 4),
            ("e2m3", 7.5, 2, 6),
            ("e3m2", 28.0, 4, 6),
            ("e4m3", 448.0, 8, 8),
            ("e5m2", 57344.0, 15, 8),
            ("e5m3", 114_688.0, 16, 8),
        ];
        let facts = |format: MiniFloat| (format.max(), format.max_exponent(), format.bits());
        let name = |format| super::super::DType::MiniFloat(format).to_string();
        let found: Vec<_> = MiniFloat::all().into_iter().map(|format| (name(format), facts(format))).collect();
        assert_eq!(found, expected.map(|(name, max, exponent, bits)| (name.to_owned(), (max, exponent, bits))));
    }

    #[test]
    fn every_code_round_trips() {
        for format in MiniFloat::all() {
            for code in 0..=format.max_code() {
                assert_eq!(format.encode(format.decode(code)), code, "{format:?}");
            }
        }
    }

    #[test]
    fn fp4_ties_go_to_even_codes() {
        let ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
        assert_eq!(
            ties.map(|x| MiniFloat::E2M1.decode(MiniFloat::E2M1.encode(x))),
            [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
        );
        assert_eq!(MiniFloat::E2M1.encode(-0.1), 0, "fp4 loses the sign of a zero");
        assert_eq!(MiniFloat::E4M3.encode(-1e-9), 0x80, "fp8 keeps it");
    }

    #[test]
    fn fp8_special_codes_decode_to_nan_and_infinity() {
        assert!(MiniFloat::E4M3.decode(0xFF).is_nan());
        assert_eq!(MiniFloat::E5M2.decode(0xFC), f32::NEG_INFINITY);
        assert_eq!(MiniFloat::E4M3.encode(f32::INFINITY), 0x7E);
    }
}
