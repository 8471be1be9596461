//! Counts in messages.

use std::fmt::Display;

/// `1 sample`, `2 samples`.
pub fn number(count: impl Display, noun: &str) -> String {
    let count = count.to_string();
    let plural = if count == "1" { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn one_is_not_plural() {
        assert_eq!([0, 1, 2].map(|count| number(count, "layer")), ["0 layers", "1 layer", "2 layers"]);
    }
}
