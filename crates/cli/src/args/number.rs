//! Numbers with bounds that clap's own ranges do not have: finite ones, and counts that fit the platform.

use clap::builder::TypedValueParser;
use clap::value_parser;

/// A number of things, at least `least`.
pub(super) fn count_from(least: i64) -> impl TypedValueParser<Value = usize> {
    value_parser!(u32).range(least..).map(|count| count as usize)
}

/// A ratio in decibels: any number that is one.
pub(super) fn decibels(text: &str) -> Result<f64, &'static str> {
    finite(text).ok_or("a finite number is needed")
}

/// Percentage points.
pub(super) fn points(text: &str) -> Result<f64, &'static str> {
    finite(text).filter(|points| (0.0..=100.0).contains(points)).ok_or("a number from 0 to 100 is needed")
}

/// A bound of scales, in single precision.
pub(super) fn least_scale(text: &str) -> Result<f32, &'static str> {
    let scale = text.parse().ok().filter(|scale: &f32| scale.is_finite() && *scale >= 0.0);
    scale.ok_or("a number from 0 on is needed")
}

fn finite(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_refused() {
        assert_eq!((decibels("-3.5"), points("0.5"), least_scale("0")), (Ok(-3.5), Ok(0.5), Ok(0.0)));
        for text in ["nan", "inf", "-inf", "1e999", "", "x"] {
            assert!(decibels(text).is_err() && points(text).is_err() && least_scale(text).is_err(), "{text}");
        }
        assert!(points("-1").is_err() && points("101").is_err() && least_scale("-0.5").is_err());
    }
}
