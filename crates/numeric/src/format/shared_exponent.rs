//! Shared power-of-two scales of OCP MX: the rules that choose them and their e8m0 bytes. Not the elements, which are
//! [`MiniFloat`](super::MiniFloat)s.

use super::minifloat::{MiniFloat, pow2};
use serde::{Deserialize, Serialize};

/// The rule by which the shared exponent follows from the block's largest magnitude.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScaleRule {
    /// `floor(log2 of amax rounded to the element's mantissa bits) - emax`: AMD Quark's default.
    #[default]
    Even,
    /// `floor(log2 amax) - emax`: the OCP MX 1.0 specification; large values may saturate.
    Floor,
    /// `ceil(log2 amax) - emax`.
    Ceil,
    /// `ceil(log2(amax / max))`: the least scale with which nothing saturates (NVIDIA's MXFP8 recipe, arXiv 2506.08027).
    Rceil,
}

impl ScaleRule {
    /// Every rule with its spelling.
    pub const ALL: &[(&str, ScaleRule)] = &[
        ("even", ScaleRule::Even),
        ("floor", ScaleRule::Floor),
        ("ceil", ScaleRule::Ceil),
        ("rceil", ScaleRule::Rceil),
    ];

    /// The spelling in schemes.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, rule)| *rule == self).map_or("even", |(name, _)| name)
    }
}

/// 2^-127, the least value of e8m0; a subnormal of `f32`.
const E8M0_MIN: f32 = f32::from_bits(0x0040_0000);
/// The scale of a block of zeros under the floor and ceil rules.
const ZERO_BLOCK_SCALE: f32 = f32::EPSILON;

/// The properties of a block's elements that the rules need.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockElement {
    /// Mantissa bits to which the even rule rounds the largest magnitude.
    pub mantissa_bits: u32,
    /// `emax`, the exponent of the largest value.
    pub max_exponent: i32,
    /// The largest value.
    pub max: f32,
}

impl BlockElement {
    /// The elements of OCP MXINT8: two's complement with six fraction bits.
    pub const MXINT8: BlockElement = BlockElement { mantissa_bits: 8, max_exponent: 0, max: 127.0 / 64.0 };
}

impl From<MiniFloat> for BlockElement {
    #[inline]
    fn from(float: MiniFloat) -> BlockElement {
        BlockElement { mantissa_bits: float.mantissa_bits(), max_exponent: float.max_exponent(), max: float.max() }
    }
}

/// The shared scale of a block whose largest magnitude is `amax` (finite, not negative): a power of two between 2^-127
/// and 2^127.
#[inline(always)]
pub fn shared_scale(rule: ScaleRule, element: impl Into<BlockElement>, amax: f32) -> f32 {
    let element = element.into();
    match rule {
        ScaleRule::Even => even_scale(element, amax),
        ScaleRule::Floor if amax == 0.0 => ZERO_BLOCK_SCALE,
        ScaleRule::Floor => clamped_pow2(floor_log2(amax) - element.max_exponent),
        ScaleRule::Ceil if amax == 0.0 => ZERO_BLOCK_SCALE,
        ScaleRule::Ceil => clamped_pow2(ceil_log2(amax) - element.max_exponent),
        ScaleRule::Rceil if amax == 0.0 => E8M0_MIN,
        ScaleRule::Rceil => rceil_scale(element, amax),
    }
}

#[inline(always)]
fn even_scale(element: BlockElement, amax: f32) -> f32 {
    // Adding half a unit of the element's mantissa and keeping the exponent: a mantissa that would round up to 2 counts
    // as the next power of two. A block of zeros counts as 2^-126.
    let bits = amax.to_bits() + (1 << (22 - element.mantissa_bits));
    let exponent = ((bits >> 23) as i32 - 127).max(-126);
    clamped_pow2(exponent - element.max_exponent)
}

fn rceil_scale(element: BlockElement, amax: f32) -> f32 {
    let max = f64::from(element.max);
    let exponent = ceil_log2(amax) - element.max_exponent;
    // amax <= max * 2^e decides between e and its predecessor, exactly.
    let fits_below = f64::from(amax) <= max * f64::from(exponent - 1).exp2();
    clamped_pow2(if fits_below { exponent - 1 } else { exponent })
}

/// `floor(log2 x)` of a positive finite number, subnormals included, exactly.
pub(crate) fn floor_log2(value: f32) -> i32 {
    let bits = value.to_bits();
    match bits >> 23 {
        0 => -149 + (31 - bits.leading_zeros() as i32),
        exponent => exponent as i32 - 127,
    }
}

/// `ceil(log2 x)` of a positive finite number, exactly.
fn ceil_log2(value: f32) -> i32 {
    let floor = floor_log2(value);
    if f64::from(value) == f64::from(floor).exp2() { floor } else { floor + 1 }
}

#[inline(always)]
fn clamped_pow2(exponent: i32) -> f32 {
    match exponent.clamp(-127, 127) {
        -127 => E8M0_MIN,
        exponent => pow2(exponent),
    }
}

/// The e8m0 byte of a power of two between 2^-127 and 2^127: `log2(scale) + 127`.
#[inline]
pub fn e8m0_encode(scale: f32) -> u8 {
    // The biased exponent of an `f32` is that byte; 2^-127 is a subnormal, whose exponent field is 0, as it should be.
    (scale.to_bits() >> 23).min(254) as u8
}

/// The scale of an e8m0 byte, `2^(byte - 127)`. The byte 255 is NaN.
pub fn e8m0_decode(byte: u8) -> f32 {
    match byte {
        0 => E8M0_MIN,
        255 => f32::NAN,
        byte => f32::from_bits(u32::from(byte) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_rule_rounds_up_from_seven_quarters() {
        let scale = |amax| shared_scale(ScaleRule::Even, MiniFloat::E2M1, amax);
        assert_eq!((scale(1.74), scale(1.75), scale(6.9), scale(7.0)), (0.25, 0.5, 1.0, 2.0));
        assert_eq!(scale(0.0), E8M0_MIN);
    }

    #[test]
    fn floor_and_ceil_follow_the_exponent() {
        assert_eq!(shared_scale(ScaleRule::Floor, MiniFloat::E2M1, 7.9), 1.0);
        assert_eq!(shared_scale(ScaleRule::Ceil, MiniFloat::E2M1, 7.9), 2.0);
        assert_eq!(shared_scale(ScaleRule::Ceil, MiniFloat::E2M1, 8.0), 2.0);
        assert_eq!(shared_scale(ScaleRule::Floor, MiniFloat::E2M1, 0.0), f32::EPSILON);
    }

    #[test]
    fn rceil_is_the_least_scale_without_saturation() {
        for element in [MiniFloat::E2M1, MiniFloat::E2M3, MiniFloat::E3M2, MiniFloat::E4M3, MiniFloat::E5M2] {
            for step in 1..4000 {
                let amax = step as f32 * 0.37;
                let scale = shared_scale(ScaleRule::Rceil, element, amax);
                assert!(amax <= element.max() * scale && amax > element.max() * scale / 2.0, "{element:?} {amax}");
            }
        }
    }

    #[test]
    fn e8m0_bytes_and_scales_round_trip() {
        for byte in 0..=254 {
            assert_eq!(e8m0_encode(e8m0_decode(byte)), byte);
        }
        assert!(e8m0_decode(255).is_nan());
    }

    #[test]
    fn log2_of_subnormals_is_exact() {
        assert_eq!(
            (floor_log2(f32::from_bits(1)), floor_log2(E8M0_MIN), ceil_log2(f32::from_bits(3))),
            (-149, -127, -147)
        );
    }
}
