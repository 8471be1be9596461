//! Range statistics: the part of the range of the data that the codes cover. Of weights, which are there at once, here;
//! of activations, which come batch by batch, in [`crate::activation`]. Not the scale that follows, which is in
//! [`crate::parameters`]. One file an observer, and a line in [`OBSERVERS`].

mod moving_average;
pub(crate) mod mse;
mod percentile;

pub use moving_average::Decay;
pub(crate) use moving_average::MovingRange;
pub use percentile::Percentile;
pub(crate) use percentile::WHOLE;

use crate::scheme_error::SchemeError;
use kvant_numeric::kernel::Range;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A range statistic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Observer {
    /// The least and the greatest element.
    #[default]
    MinMax,
    /// The range without the given share of the largest magnitudes.
    Percentile(Percentile),
    /// The part of the range with the least squared error after quantization.
    Mse,
    /// The moving average of the ranges of batches; of activations only.
    MovingAverage(Decay),
}

/// The observers with their spellings, for `kvant list observers`.
pub const OBSERVERS: &[(&str, &str)] = &[
    ("minmax", "the least and the greatest element (the default)"),
    ("percentile99.99", "the range without the largest magnitudes: 99.99 % of the elements stay inside; any number"),
    ("mse", "the shrunken range with the least squared error; with scales of powers of two the best of five exponents"),
    (
        "ema0.99",
        "of activations: the average of the batches' ranges, every new one weighing 1 - 0.99; any number below 1",
    ),
];

impl Observer {
    /// The range to cover, of the elements that share a scale.
    ///
    /// `error` gives the squared error that quantizing the elements to a range leaves; only the search asks for it.
    pub fn range(self, values: &[f32], symmetric: bool, error: impl Fn(Range) -> f64) -> Range {
        let full = full_range(values);
        match self {
            // One batch is its own average.
            Observer::MinMax | Observer::MovingAverage(_) => full,
            Observer::Percentile(percentile) => percentile.range(values, full, symmetric),
            Observer::Mse => mse::search(full, error),
        }
    }
}

fn full_range(values: &[f32]) -> Range {
    values.iter().fold(Range::EMPTY, |range, v| range.join(Range { min: *v, max: *v }))
}

impl fmt::Display for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Observer::MinMax => f.write_str("minmax"),
            Observer::Percentile(percentile) => write!(f, "percentile{percentile}"),
            Observer::Mse => f.write_str("mse"),
            Observer::MovingAverage(decay) => write!(f, "ema{decay}"),
        }
    }
}

impl FromStr for Observer {
    type Err = SchemeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || SchemeError::Spelling { text: text.to_owned(), part: text.to_owned() };
        match text {
            "minmax" => Ok(Observer::MinMax),
            "mse" => Ok(Observer::Mse),
            _ => numbered(text).ok_or_else(unknown),
        }
    }
}

impl Serialize for Observer {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Observer {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The observers whose spelling ends in a number.
fn numbered(text: &str) -> Option<Observer> {
    if let Some(decay) = text.strip_prefix("ema") {
        return decay.parse().ok().map(Observer::MovingAverage);
    }
    text.strip_prefix("percentile")?.parse().ok().map(Observer::Percentile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_parses() {
        for (name, _) in OBSERVERS {
            assert_eq!(name.parse::<Observer>().unwrap().to_string(), *name);
        }
        for text in [
            "percentile",
            "percentile0",
            "percentile101",
            "percentile-1",
            "percentileNaN",
            "max",
            "ema",
            "ema1",
            "ema0",
            "emaNaN",
        ] {
            assert!(text.parse::<Observer>().is_err(), "{text}");
        }
    }
}
