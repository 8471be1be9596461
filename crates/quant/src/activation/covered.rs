//! The range of values that known parameters cover. Not the range that they were made from, which can be a little smaller.

use super::StaticParameters;
use crate::graph_grid::CodeRange;
use crate::scheme::TensorScheme;
use kvant_numeric::format::MiniFloat;
use kvant_numeric::kernel::Range;

/// The values that parameters cover.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoveredRange {
    /// From the value of the least code to that of the greatest.
    pub range: Range,
    /// The values with an error of at most a step: those beyond are clipped. Scales that are rounded to the model's type cover the range that
    /// they were made from up to less than that.
    pub unclipped: Range,
}

impl CoveredRange {
    /// Of integer codes with values `(code - zero_point) * scale`.
    pub fn of_codes(codes: CodeRange, scale: f32, zero_point: f64) -> CoveredRange {
        let value = |code: i64| ((code as f64 - zero_point) * f64::from(scale)) as f32;
        CoveredRange::new(Range { min: value(codes.min), max: value(codes.max) }, scale)
    }

    /// Of small floats with a scale.
    pub fn of_floats(format: MiniFloat, scale: f32) -> CoveredRange {
        let max = format.max() * scale;
        let below = format.decode(format.max_code().saturating_sub(1)) * scale;
        CoveredRange::new(Range { min: if format.is_signed() { -max } else { 0.0 }, max }, max - below)
    }

    /// `step` is the distance of the outermost codes from the next ones.
    fn new(range: Range, step: f32) -> CoveredRange {
        let finite = |value: f32| value.clamp(f32::MIN, f32::MAX);
        let range = Range { min: finite(range.min), max: finite(range.max) };
        let unclipped = Range { min: finite(range.min - step), max: finite(range.max + step) };
        CoveredRange { range, unclipped }
    }
}

impl StaticParameters {
    /// The range of values that the codes of `scheme` cover; `None` where features have a range each, and for schemes without scales.
    ///
    /// * integers: `(qmin - zero_point) * scale` to `(qmax - zero_point) * scale`,
    /// * floats: `-max * scale` to `max * scale`; where block scales are relative to a global scale, `scale` is the product of that and the
    ///   greatest block scale.
    pub fn covered(&self, scheme: TensorScheme) -> Option<CoveredRange> {
        let [scale] = self.scales[..] else { return None };
        match scheme {
            TensorScheme::Int(int) => {
                let zero_point = self.zero_points.first().map_or(0.0, |zero_point| f64::from(*zero_point));
                Some(CoveredRange::of_codes(CodeRange::full(int.format), scale, zero_point))
            }
            TensorScheme::Float(float) => {
                // The global scale of a range up to the greatest element is one over the greatest block scale.
                let block_scale = float.global_scale(float.format.max()).map_or(1.0, f32::recip);
                Some(CoveredRange::of_floats(float.format, scale * block_scale))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheme::ActivationScheme;
    use kvant_numeric::ComputeDType;

    fn covered(scheme: &str, min: f32, max: f32) -> Option<CoveredRange> {
        let scheme: ActivationScheme = scheme.parse().unwrap();
        let range = Range { min, max };
        StaticParameters::of_ranges(scheme.scheme, &[range], ComputeDType::F32).covered(scheme.scheme)
    }

    #[test]
    fn range_of_the_data_is_covered_without_clipping() {
        for scheme in [
            "int8:tensor!static",
            "int8:tensor:zp!static",
            "uint8:tensor:zp!static",
            "e4m3:tensor!static",
            "e2m1:g16:e4m3:f32!local",
        ] {
            let Ok(parsed) = scheme.parse::<ActivationScheme>() else { panic!("{scheme}") };
            let CoveredRange { range, unclipped } = covered(scheme, -3.0, 5.0).unwrap();
            assert!(unclipped.min <= -3.0 && unclipped.max >= 5.0, "{parsed}: {range:?}");
            assert!((range.max - 5.0).abs() < 0.05, "{parsed}: {range:?}");
        }
    }

    #[test]
    fn ends_are_the_values_of_the_outermost_codes() {
        let CoveredRange { range, unclipped } = covered("int8:tensor!static", -127.5, 100.0).unwrap();
        assert_eq!((range.min, range.max), (-128.0, 127.0));
        assert_eq!((unclipped.min, unclipped.max), (-129.0, 128.0));
        let CoveredRange { range, unclipped } = covered("e4m3:tensor!static", -448.0, 1.0).unwrap();
        assert_eq!((range.max, unclipped.max), (448.0, 480.0));
        let CoveredRange { range, .. } = covered("e2m1:g16:e4m3:f32!local", 0.0, 2688.0).unwrap();
        assert!((range.max - 2688.0).abs() < 0.01, "{range:?}");
    }

    #[test]
    fn features_have_no_common_range() {
        let scheme: ActivationScheme = "int8:channel@1!static".parse().unwrap();
        let ranges = [Range { min: -1.0, max: 1.0 }; 2];
        assert_eq!(StaticParameters::of_ranges(scheme.scheme, &ranges, ComputeDType::F32).covered(scheme.scheme), None);
    }
}
