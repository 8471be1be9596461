//! The place of a rotation in a model.

use std::fmt;
use std::str::FromStr;

/// The place of a rotation in a model: all that is rotated at one place, by one matrix. Spelled `stream`, `values.3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RotationPlace {
    /// The residual stream (R1).
    Stream,
    /// The values of attention in each of their heads (R2): of the path of values of this number, one for each block with attention.
    Values(usize),
}

impl fmt::Display for RotationPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RotationPlace::Stream => f.write_str("stream"),
            RotationPlace::Values(path) => write!(f, "values.{path}"),
        }
    }
}

/// The text names no place of a rotation.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not a place of a rotation")]
pub struct UnknownRotationPlace(String);

impl FromStr for RotationPlace {
    type Err = UnknownRotationPlace;

    fn from_str(text: &str) -> Result<RotationPlace, UnknownRotationPlace> {
        let path = || text.strip_prefix("values.")?.parse().ok();
        match text {
            "stream" => Ok(RotationPlace::Stream),
            _ => path().map(RotationPlace::Values).ok_or_else(|| UnknownRotationPlace(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_round_trip() {
        for place in [RotationPlace::Stream, RotationPlace::Values(0), RotationPlace::Values(17)] {
            assert_eq!(place.to_string().parse(), Ok(place));
        }
        for text in ["", "values", "values.", "values.-1", "streams"] {
            assert!(text.parse::<RotationPlace>().is_err(), "{text}");
        }
    }
}
