//! The target of a mixed-precision search.

use std::str::FromStr;

use crate::UnknownWord;
use crate::evaluation::Quality;

/// The target to reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    /// At least so many dB of the worst output.
    Sqnr(f64),
    /// At most so many percentage points of top-1 accuracy lost.
    Drop(f64),
    /// Constants of at most this size: the most accurate mix within it.
    Size(Size),
}

/// A size of constants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Size {
    /// In bytes.
    Bytes(u64),
    /// As a share of the float model's.
    Share(f64),
}

impl Target {
    /// Returns whether a model is good enough. Sizes are none of its business.
    pub fn is_met_by(self, quality: &Quality) -> bool {
        match self {
            Self::Sqnr(least) => quality.sqnr_db >= least,
            Self::Drop(most) => quality.drop().is_some_and(|drop| drop <= most + 1e-9),
            Self::Size(_) => true,
        }
    }
}

impl Size {
    /// In bytes, where the float model has so many.
    pub fn bytes(self, float: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(share) => (float as f64 * share) as u64,
        }
    }
}

const EXPECTED: &str = "a size: write bytes with a unit, as in 12MB, or a share of the float model's, as in 30%";

impl FromStr for Size {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const UNITS: &[(&str, f64)] = &[("kb", 1e3), ("mb", 1e6), ("gb", 1e9), ("b", 1.0)];
        let lower = text.trim().to_ascii_lowercase();
        let number = |digits: &str| digits.trim().parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0);
        let share = lower.strip_suffix('%').and_then(number).map(|percent| Self::Share(percent / 100.0));
        let unit = |(unit, factor): &(&str, f64)| Some((number(lower.strip_suffix(unit)?)? * factor) as u64);
        let size = share.or_else(|| UNITS.iter().find_map(unit).map(Self::Bytes));
        size.or_else(|| number(&lower).filter(|n| *n < 1.0).map(Self::Share))
            .ok_or_else(|| UnknownWord::new(text, EXPECTED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_targets_are_bytes_or_shares() {
        assert_eq!("12.5MB".parse(), Ok(Size::Bytes(12_500_000)));
        assert_eq!("30 %".parse(), Ok(Size::Share(0.3)));
        assert_eq!("0.25".parse(), Ok(Size::Share(0.25)));
        assert_eq!(Size::Share(0.25).bytes(1000), 250);
        for wrong in ["", "12", "-1MB", "inf%", "MB"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn targets_compare_quality() {
        let quality = Quality { sqnr_db: 20.0, top1: Some(0.97), reference_top1: Some(0.98) };
        assert!(Target::Sqnr(20.0).is_met_by(&quality) && !Target::Sqnr(20.1).is_met_by(&quality));
        assert!(Target::Drop(1.0).is_met_by(&quality) && !Target::Drop(0.5).is_met_by(&quality));
        assert!(!Target::Drop(100.0).is_met_by(&Quality { top1: None, ..quality }));
    }
}
