//! Range statistics of weights: which part of the range of the data the codes shall cover. Not the scale that follows,
//! which is in [`crate::parameters`]. One file an observer, and a line in [`OBSERVERS`].

mod mse;
mod percentile;

pub use percentile::Percentile;

use crate::scheme::SchemeError;
use kvant_numeric::kernel::Range;
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
}

/// The observers with their spellings, for `kvant list observers`.
pub const OBSERVERS: &[(&str, &str)] = &[
    ("minmax", "the least and the greatest element (the default)"),
    ("percentile99.99", "the range without the largest magnitudes: 99.99 % of the elements stay inside; any number"),
    ("mse", "the shrunken range with the least squared error; with scales of powers of two the best of five exponents"),
];

impl Observer {
    /// The range to cover, of the elements that share a scale.
    ///
    /// `error` gives the squared error that quantizing the elements to a range leaves; only the search asks for it.
    pub fn range(self, values: &[f32], symmetric: bool, error: impl Fn(Range) -> f64) -> Range {
        let full = full_range(values);
        match self {
            Observer::MinMax => full,
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
            _ => {
                let percent = text.strip_prefix("percentile").ok_or_else(unknown)?;
                percent.parse().map(Observer::Percentile).map_err(|()| unknown())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_parses() {
        for (name, _) in OBSERVERS {
            assert_eq!(name.parse::<Observer>().unwrap().to_string(), *name);
        }
        for text in ["percentile", "percentile0", "percentile101", "percentile-1", "percentileNaN", "max"] {
            assert!(text.parse::<Observer>().is_err(), "{text}");
        }
    }
}
