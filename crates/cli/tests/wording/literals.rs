//! The string literals of Rust source code.

/// A text in a source file.
pub struct Literal {
    /// The line on which it begins.
    pub line: usize,
    /// The text, with its escapes as they are written.
    pub text: String,
}

/// The string literals of a source file, without those of its tests at the end.
pub fn literals(source: &str) -> Vec<Literal> {
    let end = source.find("#[cfg(test)]\nmod tests").unwrap_or(source.len());
    let bytes = &source.as_bytes()[..end];
    let (mut found, mut at, mut line) = (Vec::new(), 0, 1);
    while at < bytes.len() {
        let rest = &bytes[at..];
        let length = match rest {
            [b'/', b'/', ..] => rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
            [b'\'', b'\\', _, ..] => 3,
            [b'\'', _, b'\'', ..] => 3,
            [b'r', b'"' | b'#', ..] if !is_word(at.checked_sub(1).map(|before| bytes[before])) => raw(rest),
            [b'"', ..] => plain(rest),
            _ => 1,
        };
        let token = &rest[..length.min(rest.len())];
        if matches!(token, [b'"', .., b'"'] | [b'r', _, .., b'"' | b'#']) {
            found.push(Literal { line, text: String::from_utf8_lossy(token).into_owned() });
        }
        line += token.iter().filter(|byte| **byte == b'\n').count();
        at += token.len().max(1);
    }
    found
}

fn is_word(byte: Option<u8>) -> bool {
    byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The length of a literal in quotes.
fn plain(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// The length of a raw literal; 1 if it is none.
fn raw(bytes: &[u8]) -> usize {
    let hashes = bytes[1..].iter().take_while(|byte| **byte == b'#').count();
    if bytes.get(1 + hashes) != Some(&b'"') {
        return 1;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    let body = 2 + hashes;
    let found = bytes[body..].windows(close.len()).position(|window| window == close.as_bytes());
    found.map_or(1, |found| body + found + close.len())
}

#[test]
fn comments_characters_and_tests_are_not_literals() {
    let source = "// \"a\"\nlet quote = '\"'; let b = \"b\\\"\";\nr#\"c\"d\"#\n#[cfg(test)]\nmod tests { \"e\" }";
    let found: Vec<(usize, String)> = literals(source).into_iter().map(|found| (found.line, found.text)).collect();
    assert_eq!(found, [(2, "\"b\\\"\"".to_owned()), (3, "r#\"c\"d\"#".to_owned())]);
}
