//! Counts in messages.

use std::fmt::Display;

/// `1 sample`, `2 samples`.
pub fn number(count: impl Display, noun: &str) -> String {
    let count = count.to_string();
    let plural = if count == "1" { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// `1 value is`, `2 values are`.
pub fn number_are(count: impl Display, noun: &str) -> String {
    let text = number(count, noun);
    let verb = if text.starts_with("1 ") { "is" } else { "are" };
    format!("{text} {verb}")
}

#[cfg(test)]
mod tests {
    use super::{number, number_are};

    #[test]
    fn counts_use_singular_for_one() {
        assert_eq!([0, 1, 2].map(|count| number(count, "layer")), ["0 layers", "1 layer", "2 layers"]);
        assert_eq!([1, 10].map(|count| number_are(count, "value")), ["1 value is", "10 values are"]);
    }
}
