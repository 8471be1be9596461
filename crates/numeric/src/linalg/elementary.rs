//! Elementary functions in a shape that compilers turn into vectors. Not the last bit of accuracy: relative errors are
//! a few units of the last place, stated per function.

/// `1.5 * 2^23`: added to a number below `2^22` it leaves the nearest integer in the low bits.
const ROUNDER: f32 = 12_582_912.0;

/// `e^x`, with a relative error below 4e-7. Arguments are clamped to [-87.3, 88.3], so that the result is a normal
/// number; NaN stays NaN.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let x = x.clamp(-87.3, 88.3);
    let shifted = x * std::f32::consts::LOG2_E + ROUNDER;
    let n = shifted - ROUNDER;
    // ln 2 in two parts, the first with trailing zeros, so that the product is exact (Cody and Waite).
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let tail = 1.0 / 120.0 + r * (1.0 / 720.0 + r * (1.0 / 5040.0));
    let series = 1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * tail))));
    series * f32::from_bits(shifted.to_bits().wrapping_add(127) << 23)
}

/// `2^x`, with a relative error below 3e-7. Arguments are clamped to [-126, 127], so that the result is a normal number;
/// NaN stays NaN.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    let x = x.clamp(-126.0, 127.0);
    let shifted = x + ROUNDER;
    let r = x - (shifted - ROUNDER);
    // A polynomial of degree 5 whose largest relative error on [-1/2, 1/2] is 2e-7, found numerically.
    let tail = 0.055_507_336 + r * (0.009_671_513 + r * 0.001_326_472_6);
    let series = 1.0 + r * (std::f32::consts::LN_2 + r * (0.240_222_42 + r * tail));
    series * f32::from_bits(shifted.to_bits().wrapping_add(127) << 23)
}

/// The natural logarithm of a positive normal number, with an absolute error below 3e-7 on [1/2, 2] and a relative one
/// elsewhere. What is smaller than the smallest normal number counts as that; infinities and NaN give nothing of meaning.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    let bits = x.max(f32::MIN_POSITIVE).to_bits();
    // The mantissa in [sqrt(1/2), sqrt(2)), so that numbers near 1 have an exponent of 0.
    let exponent = (bits.wrapping_sub(0x3f35_04f3) as i32) >> 23;
    let mantissa = f32::from_bits(bits.wrapping_sub((exponent as u32) << 23));
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let z = s * s;
    let series = 2.0 + z * (2.0 / 3.0 + z * (0.4 + z * (2.0 / 7.0 + z * (2.0 / 9.0))));
    exponent as f32 * std::f32::consts::LN_2 + s * series
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The hyperbolic tangent, with an absolute error below 3e-7.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

/// The error function, with an absolute error below 5e-7 (Abramowitz and Stegun, 7.1.26).
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let z = x.abs();
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let series = 0.254_829_6 + t * (-0.284_496_72 + t * (1.421_413_8 + t * (-1.453_152 + t * 1.061_405_4)));
    (1.0 - t * series * exp(-z * z)).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments() -> impl Iterator<Item = f32> {
        (-8700..8800).map(|i| i as f32 * 0.01)
    }

    #[test]
    fn exp_is_accurate() {
        for x in arguments() {
            let exact = f64::from(x).exp();
            assert!(((f64::from(exp(x)) - exact) / exact).abs() < 4e-7, "{x}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan() && exp(f32::NEG_INFINITY) < 1.3e-38 && exp(f32::INFINITY) > 1e38);
    }

    #[test]
    fn exp2_is_accurate() {
        for x in (-125_999..127_000).map(|i| i as f32 * 0.001) {
            let exact = f64::from(x).exp2();
            assert!(((f64::from(exp2(x)) - exact) / exact).abs() < 3e-7, "{x}");
        }
        assert_eq!((exp2(0.0), exp2(-3.0)), (1.0, 0.125));
        assert!(exp2(f32::NAN).is_nan() && exp2(f32::NEG_INFINITY) < 1.2e-38 && exp2(f32::INFINITY) > 1e38);
    }

    #[test]
    fn ln_is_accurate() {
        for x in (-8000..8000).map(|i| (i as f32 * 0.0108).exp()).chain((5000..20000).map(|i| i as f32 * 1e-4)) {
            let exact = f64::from(x).ln();
            assert!((f64::from(ln(x)) - exact).abs() < 3e-7 * exact.abs().max(1.0), "{x}");
        }
        assert_eq!(ln(1.0), 0.0);
        assert!(ln(0.0) < -87.0 && ln(-1.0) < -87.0);
    }

    #[test]
    fn tanh_sigmoid_and_erf_are_accurate() {
        for x in arguments() {
            let exact = f64::from(x);
            assert!((f64::from(tanh(x)) - exact.tanh()).abs() < 3e-7, "tanh {x}");
            assert!((f64::from(sigmoid(x)) - 1.0 / (1.0 + (-exact).exp())).abs() < 3e-7, "sigmoid {x}");
        }
        // The error function by its Taylor series.
        for x in (-300..300).map(|i| i as f32 * 0.01) {
            let z = f64::from(x);
            let mut term = z;
            let mut sum = z;
            for n in 1..80 {
                term *= -z * z / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            assert!((f64::from(erf(x)) - sum * std::f64::consts::FRAC_2_SQRT_PI).abs() < 5e-7, "erf {x}");
        }
    }
}
