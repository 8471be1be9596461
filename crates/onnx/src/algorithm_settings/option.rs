//! A setting of an algorithm, as it is spelled behind its name: `:NAME=VALUE`. Not what it does.

use std::ops::RangeInclusive;

use super::Algorithm;

/// A setting of one algorithm.
#[derive(Debug, Clone, Copy)]
pub struct AlgorithmOption {
    /// Its spelling.
    pub name: &'static str,
    /// What it may be.
    pub values: &'static str,
    /// One line that explains it.
    pub about: &'static str,
    /// Its value; `None` for other algorithms.
    pub get: fn(&Algorithm) -> Option<String>,
    /// Gives it a value; `None` where that is none of its values, and for other algorithms.
    pub set: fn(&mut Algorithm, &str) -> Option<()>,
}

/// An option of the settings in a variant: how its field is shown and read.
macro_rules! option {
    ($variant:ident . $field:ident, $name:literal, $values:expr, $about:literal, $read:expr) => {
        $crate::algorithm_settings::AlgorithmOption {
            name: $name,
            values: $values,
            about: $about,
            get: |algorithm| match algorithm {
                $crate::algorithm_settings::Algorithm::$variant(settings) => {
                    Some($crate::algorithm_settings::option::Shown::shown(&settings.$field))
                }
                _ => None,
            },
            set: |algorithm, text| match algorithm {
                $crate::algorithm_settings::Algorithm::$variant(settings) => {
                    settings.$field = $read(text)?;
                    Some(())
                }
                _ => None,
            },
        }
    };
}
pub(super) use option;

/// What the values of numbers from 0 to 1 are called.
pub(super) const SHARE: &str = "a number from 0 to 1";
/// What those of counts are called.
pub(super) const COUNT: &str = "a whole number from 1 to 1000000";
/// What those of switches are called.
pub(super) const SWITCH: &str = "on or off";

/// A value as it is spelled.
pub(super) trait Shown {
    fn shown(&self) -> String;
}

impl Shown for bool {
    fn shown(&self) -> String {
        if *self { "on" } else { "off" }.to_owned()
    }
}

impl Shown for f32 {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Shown for f64 {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Shown for u32 {
    fn shown(&self) -> String {
        self.to_string()
    }
}

/// Reads a number in a range.
pub(super) fn number(text: &str, range: RangeInclusive<f64>) -> Option<f64> {
    text.parse().ok().filter(|number| range.contains(number))
}

/// Reads a number from 0 to 1.
pub(super) fn share(text: &str) -> Option<f32> {
    number(text, 0.0..=1.0).map(|share| share as f32)
}

/// Reads a count.
pub(super) fn count(text: &str) -> Option<u32> {
    text.parse().ok().filter(|count| (1..=1_000_000).contains(count))
}

/// Reads a switch.
pub(super) fn switch(text: &str) -> Option<bool> {
    match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::algorithm_settings::{ALGORITHMS, Algorithm};

    #[test]
    fn options_belong_to_their_algorithm_read_back_and_refuse_nonsense() {
        for row in ALGORITHMS {
            for option in row.options {
                let mut algorithm = row.usual;
                let value = (option.get)(&algorithm).unwrap_or_else(|| panic!("{}:{}", row.name, option.name));
                assert_eq!((option.set)(&mut algorithm, &value), Some(()), "{}:{}={value}", row.name, option.name);
                assert_eq!(algorithm, row.usual);
                for nonsense in ["", "x", "nan", "inf", "-1e9", "ON"] {
                    assert_eq!((option.set)(&mut algorithm, nonsense), None, "{}:{} {nonsense}", row.name, option.name);
                }
                let others = ALGORITHMS.iter().filter(|other| other.name != row.name);
                others.for_each(|other| assert_eq!((option.get)(&other.usual), None, "{} {}", row.name, other.name));
            }
        }
        assert_eq!(Algorithm::named("no"), None);
    }
}
