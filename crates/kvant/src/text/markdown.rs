//! Text in Markdown files.

/// Text of which nothing is markup, or ends a cell of a table or a line.
pub(crate) fn markdown_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '|' | '<' | '>' | '`' | '*' | '_' | '[' | ']' | '\\' | '#' => out.extend(['\\', letter]),
            '\n' | '\r' => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}

/// A block of code of a language, which may be empty; its fence is longer than any run of backticks in it.
pub(crate) fn markdown_code(language: &str, text: &str) -> String {
    let longest = text.split(|letter| letter != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{language}\n{text}\n{fence}")
}
