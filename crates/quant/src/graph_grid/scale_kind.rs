//! Which numbers a scale may be.

/// The set a scale is taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ScaleKind {
    /// Any float.
    #[default]
    Float,
    /// `2^-p`, p the nearest integer to `-log2(scale)`: a shift in hardware. The range may be cut by up to the root of two.
    PowerOfTwo,
    /// `m / 2^n` with `|m| <= 32767`, `0 <= n <= 16`: a 16-bit multiplication and a shift.
    Int16,
}

/// Largest exponent of the denominator of [`ScaleKind::Int16`].
const LARGEST_SHIFT: i32 = 16;

impl ScaleKind {
    /// The scale of this kind nearest to `scale`.
    pub fn apply(self, scale: f32) -> f32 {
        match self {
            Self::Float => scale,
            Self::PowerOfTwo => power_of_two(position(f64::from(scale))),
            Self::Int16 => nearest_int16_scale(scale),
        }
    }
}

/// `-log2(scale)`, rounded to the nearest integer (ties to even), the scale limited to what f32 holds.
pub fn position(scale: f64) -> i32 {
    let limited = scale.clamp(2f64.powi(-127), 2f64.powi(127));
    (-limited.log2()).round_ties_even() as i32
}

/// `2^-position`.
pub fn power_of_two(position: i32) -> f32 {
    2f64.powi(-position) as f32
}

/// The nearest `m / 2^n` to a scale; the one with the smallest n among equals. Values below half of `2^-16` become
/// the smallest, `2^-16`.
pub fn nearest_int16_scale(scale: f32) -> f32 {
    let scale = f64::from(scale);
    let candidate = |n: i32| {
        let unit = 2f64.powi(-n);
        (scale / unit).round_ties_even().clamp(0.0, 32767.0) * unit
    };
    let better = |best: f64, next: f64| if (next - scale).abs() < (best - scale).abs() { next } else { best };
    let best = (1..=LARGEST_SHIFT).map(candidate).fold(candidate(0), better);
    best.max(2f64.powi(-LARGEST_SHIFT)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_of_two_is_nearest_in_the_logarithm() {
        assert_eq!(ScaleKind::PowerOfTwo.apply(0.026), 0.03125);
        assert_eq!(ScaleKind::PowerOfTwo.apply(0.0221), 0.015_625_f32.max(0.03125));
        assert_eq!(ScaleKind::PowerOfTwo.apply(0.022), 0.015625);
        assert_eq!(position(0.0), 127);
    }

    #[test]
    fn int16_scales_match_quark() {
        // reference: 0.0263148 becomes 0.0263214
        let scale = ScaleKind::Int16.apply(0.026_314_806);
        assert!((scale - 0.026_321_4).abs() < 1e-6, "{scale}");
        assert_eq!(ScaleKind::Int16.apply(0.0), 2f32.powi(-16));
    }
}
