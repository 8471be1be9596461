//! Paths as text: in messages, as a word for a shell, and in records from which they are read again. A name need not be UTF-8, and no
//! two names may look alike.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::supply::shown_name;

/// A path for a message. One that is not UTF-8 or has control characters is spelled as bash spells it: `$'caf\xe9'`. One that stands for
/// something else is spelled as that.
pub fn shown(path: &Path) -> String {
    if let Some(name) = shown_name(path) {
        return name;
    }
    match path.to_str() {
        Some(text) if !text.contains(char::is_control) && !text.starts_with("$'") => text.to_owned(),
        _ => escaped(path.as_os_str()),
    }
}

/// A path as one word for a shell: as it is where it needs no quotes.
pub fn shell_word(path: &Path) -> String {
    let name = shown_name(path).map(PathBuf::from);
    let path = name.as_deref().unwrap_or(path);
    let is_plain = |c: char| c.is_alphanumeric() || "_-./:@%+=".contains(c);
    match path.to_str() {
        Some(text) if !text.is_empty() && text.chars().all(is_plain) => text.to_owned(),
        Some(text) if !text.contains(char::is_control) => format!("'{}'", text.replace('\'', "'\\''")),
        _ => escaped(path.as_os_str()),
    }
}

/// `$'...'`, which bash, zsh and ksh read: what is not UTF-8 as `\xe9`.
fn escaped(text: &OsStr) -> String {
    let mut word = "$'".to_owned();
    for chunk in text.as_encoded_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\'' | '\\' => word.extend(['\\', c]),
                '\n' => word.push_str("\\n"),
                '\t' => word.push_str("\\t"),
                c if c.is_control() => c.to_string().bytes().for_each(|byte| push_byte(&mut word, byte)),
                c => word.push(c),
            }
        }
        chunk.invalid().iter().for_each(|byte| push_byte(&mut word, *byte));
    }
    word.push('\'');
    word
}

fn push_byte(text: &mut String, byte: u8) {
    // Writing to a string cannot fail.
    let _ = write!(text, "\\x{byte:02x}");
}

/// What begins a recorded name that is not UTF-8: no name of a file holds it.
const ENCODED: char = '\0';

/// A path for a record that is JSON: its text, or where it is not UTF-8 its bytes in hexadecimal digits.
pub fn recorded(path: &Path) -> String {
    match path.to_str() {
        Some(text) => text.to_owned(),
        None => path.as_os_str().as_encoded_bytes().iter().fold(ENCODED.to_string(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }),
    }
}

/// The same of a path below a directory, with `/` between folders.
pub fn recorded_name(path: &Path) -> String {
    match path.to_str() {
        Some(_) => path.iter().map(OsStr::to_string_lossy).collect::<Vec<_>>().join("/"),
        None => recorded(path),
    }
}

/// The path that a record names.
pub fn of_record(text: &str) -> PathBuf {
    let digits = text.strip_prefix(ENCODED);
    digits.and_then(bytes_of).map_or_else(|| PathBuf::from(text), path_of_bytes)
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(unix)]
fn path_of_bytes(bytes: Vec<u8>) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(not(unix))]
fn path_of_bytes(bytes: Vec<u8>) -> PathBuf {
    String::from_utf8_lossy(&bytes).into_owned().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_are_shown_as_they_are() {
        for name in ["out", "a b/é.gguf", "it's", "back\\slash"] {
            assert_eq!(shown(Path::new(name)), name);
            assert_eq!(of_record(&recorded(Path::new(name))), Path::new(name));
        }
        assert_eq!(
            (shell_word(Path::new("é/o-1.5")), shell_word(Path::new("a b"))),
            ("é/o-1.5".to_owned(), "'a b'".to_owned())
        );
        assert_eq!(shell_word(Path::new("it's")), "'it'\\''s'");
    }

    #[cfg(unix)]
    #[test]
    fn names_that_are_not_utf8_are_escaped_for_a_shell_and_read_back_from_records() {
        use std::os::unix::ffi::OsStrExt;
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        let (one, other) = (path(b"caf\xe9"), path(b"caf\xe8"));
        assert_eq!((shown(&one), shell_word(&one)), ("$'caf\\xe9'".to_owned(), "$'caf\\xe9'".to_owned()));
        assert_ne!(shown(&one), shown(&other));
        assert_ne!(shown(&one), shown(&path(b"$'caf\\xe9'")), "a name that looks like an escaped one");
        assert_eq!(shown(Path::new("a\u{1b}[2J\nb'")), "$'a\\x1b[2J\\nb\\''");
        for bytes in [&b"caf\xe9/x"[..], b"\xff\xfe", b"a\nb"] {
            assert_eq!(of_record(&recorded(&path(bytes))), path(bytes));
        }
    }
}
