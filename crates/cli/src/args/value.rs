//! Parsers of values: names out of a list, and numbers with bounds that clap's own ranges do not have.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::value_parser;

/// One of these values, by its name.
pub(super) fn one_of<T: Copy + Send + Sync + 'static>(
    all: impl IntoIterator<Item = (&'static str, T)>,
) -> impl TypedValueParser<Value = T> {
    let all: Vec<(&'static str, T)> = all.into_iter().collect();
    PossibleValuesParser::new(all.iter().map(|(name, _)| *name).collect::<Vec<_>>()).try_map(move |name| {
        all.iter().find(|(known, _)| *known == name).map(|(_, value)| *value).ok_or("unknown name")
    })
}

/// A count of at least `least`.
pub(super) fn count_from(least: i64) -> impl TypedValueParser<Value = usize> {
    value_parser!(u32).range(least..).map(|count| count as usize)
}

/// A ratio in decibels: any finite number.
pub(super) fn decibels(text: &str) -> Result<f64, &'static str> {
    finite(text).ok_or("a finite number is needed")
}

/// Percent, or percentage points.
pub(super) fn percent(text: &str) -> Result<f64, &'static str> {
    finite(text).filter(|percent| (0.0..=100.0).contains(percent)).ok_or("a number from 0 to 100 is needed")
}

/// A share of the whole.
pub(super) fn share(text: &str) -> Result<f64, &'static str> {
    finite(text).filter(|share| *share > 0.0 && *share < 1.0).ok_or("a number between 0 and 1 is needed")
}

/// A drop of top-1 as a share. Half of it is no limit that is meant, but percent.
pub(super) fn drop_of_top1(text: &str) -> Result<f64, &'static str> {
    let drop = finite(text).filter(|drop| (0.0..0.5).contains(drop));
    drop.ok_or("a share from 0 to 0.5 is needed: 0.01 is one percentage point")
}

/// A limit on a measured value.
pub(super) fn not_negative(text: &str) -> Result<f64, &'static str> {
    finite(text).filter(|limit| *limit >= 0.0).ok_or("a finite number of at least 0 is needed")
}

/// A lower bound of scales, in single precision.
pub(super) fn least_scale(text: &str) -> Result<f32, &'static str> {
    let scale = text.parse().ok().filter(|scale: &f32| scale.is_finite() && *scale >= 0.0);
    scale.ok_or("a finite number of at least 0 is needed")
}

pub(super) fn yes_or_no(text: &str) -> Result<bool, &'static str> {
    match text {
        "yes" | "true" | "on" => Ok(true),
        "no" | "false" | "off" => Ok(false),
        _ => Err("yes or no is needed"),
    }
}

fn finite(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_range_numbers_are_refused() {
        assert_eq!((decibels("-3.5"), percent("0.5"), least_scale("0")), (Ok(-3.5), Ok(0.5), Ok(0.0)));
        for text in ["nan", "inf", "-inf", "1e999", "", "x"] {
            assert!(decibels(text).is_err() && percent(text).is_err() && least_scale(text).is_err(), "{text}");
            assert!(not_negative(text).is_err(), "{text}");
        }
        assert!(drop_of_top1("0.005") == Ok(0.005) && drop_of_top1("0.5").is_err() && drop_of_top1("-0.01").is_err());
        assert!(percent("-1").is_err() && percent("101").is_err() && least_scale("-0.5").is_err());
        assert!(not_negative("-0.1").is_err() && not_negative("0").is_ok());
    }
}
