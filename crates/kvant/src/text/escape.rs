//! Text from files and messages that quote it, made harmless for a terminal.

/// Control characters, escape sequences among them, become visible; line breaks stay.
pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => safe.push(c),
            _ if c.is_control() => safe.extend(c.escape_default()),
            _ => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_are_shown_not_sent() {
        assert_eq!(printable("a\u{1b}[2Jb\r\nc é"), "a\\u{1b}[2Jb\\r\nc é");
    }
}
