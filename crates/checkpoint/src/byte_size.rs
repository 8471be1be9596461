//! Numbers of bytes as people write them: `5GB`, `500MB`, `2GiB`. Not their display in tables.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A number of bytes.
///
/// ```
/// use kvant_checkpoint::byte_size::ByteSize;
///
/// assert_eq!("5GB".parse::<ByteSize>(), Ok(ByteSize(5_000_000_000)));
/// assert_eq!("1.5 GiB".parse::<ByteSize>(), Ok(ByteSize(1_610_612_736)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// Units, each after those that display prefers to it.
const UNITS: &[(&str, u64)] = &[
    ("TB", 1_000_000_000_000),
    ("TiB", 1 << 40),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("KB", 1_000),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// The text is not a number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a size in bytes above zero, such as 5GB, 500MB or 2GiB", .0.escape_debug())]
pub struct InvalidByteSize(pub String);

impl FromStr for ByteSize {
    type Err = InvalidByteSize;

    /// Reads digits, perhaps with a fraction, and a unit in any case (`K` for `KB`; none for bytes).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text.trim()).map(ByteSize).ok_or_else(|| InvalidByteSize(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim());
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let (_, unit) = UNITS.iter().find(|(name, _)| is_unit(name, unit))?;
    // Twelve decimals are exact for every unit.
    let decimals: u64 = format!("{:0<12}", fraction.get(..fraction.len().min(12))?).parse().ok()?;
    let fraction = u128::from(decimals) * u128::from(*unit) / 1_000_000_000_000;
    let bytes = whole.parse::<u64>().ok()?.checked_mul(*unit)?.checked_add(u64::try_from(fraction).ok()?)?;
    (bytes > 0).then_some(bytes)
}

fn is_unit(name: &str, text: &str) -> bool {
    let short = name.len() == 2 && name.strip_suffix('B').is_some_and(|prefix| prefix.eq_ignore_ascii_case(text));
    short || name.eq_ignore_ascii_case(text) || (name == "B" && text.is_empty())
}

impl fmt::Display for ByteSize {
    /// The exact number in the greatest unit that divides it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fitting = UNITS.iter().find(|(_, unit)| self.0 > 0 && self.0.is_multiple_of(*unit));
        let (name, unit) = fitting.copied().unwrap_or(("B", 1));
        f.pad(&format!("{}{name}", self.0 / unit))
    }
}

impl Serialize for ByteSize {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_sizes_are_read() {
        let bytes = |text: &str| text.parse::<ByteSize>().map(|size| size.0).ok();
        assert_eq!(bytes("5GB"), Some(5_000_000_000));
        assert_eq!(bytes("500MB"), Some(500_000_000));
        assert_eq!(bytes("2GiB"), Some(2 << 30));
        assert_eq!(bytes(" 2 gib "), Some(2 << 30));
        assert_eq!(bytes("5G"), Some(5_000_000_000));
        assert_eq!(bytes("0.5KiB"), Some(512));
        assert_eq!(bytes("1.1GB"), Some(1_100_000_000));
        assert_eq!(bytes("1234"), Some(1234));
        assert_eq!(bytes("18446744073709551615B"), Some(u64::MAX));
    }

    #[test]
    fn invalid_byte_sizes_are_refused() {
        for text in [
            "",
            "GB",
            "-1GB",
            "5 apples",
            "1e9",
            "0",
            "0.0GB",
            "1.2.3MB",
            "18446744073709551616",
            "1é",
            "99999999TB",
            ".",
        ] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn byte_size_display_is_exact_and_reads_back() {
        for (bytes, text) in
            [(5_000_000_000, "5GB"), (1 << 30, "1GiB"), (1_500_000, "1500KB"), (1001, "1001B"), (1, "1B")]
        {
            assert_eq!(ByteSize(bytes).to_string(), text);
            assert_eq!(text.parse(), Ok(ByteSize(bytes)));
        }
    }
}
