//! Patterns on names of modules, nodes and tensors with the meaning of Python's `fnmatch.fnmatchcase`: `*` any run of characters, dots
//! included; `?` one character; `[abc]`, `[a-z]`, `[!abc]` one character of a set. The pattern must match the whole
//! name. No brace expansion, no path semantics, no regular expressions.

use std::fmt;

/// A compiled pattern.
///
/// ```
/// use kvant_quant::glob::Glob;
///
/// let glob = Glob::new("*self_attn*");
/// assert!(glob.matches("model.layers.0.self_attn.q_proj"));
/// assert!(!Glob::new("lm_head").matches("language_model.lm_head"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    pattern: String,
    tokens: Vec<Token>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Literal(char),
    AnyOne,
    AnyRun,
    Set { negated: bool, ranges: Vec<(char, char)> },
}

impl Glob {
    /// Compiles a pattern. Every string is a pattern; a `[` without its `]` stands for itself.
    pub fn new(pattern: &str) -> Glob {
        let chars: Vec<char> = pattern.chars().collect();
        let mut tokens = Vec::new();
        let mut at = 0;
        while at < chars.len() {
            let (token, next) = parse_token(&chars, at);
            at = next;
            if token != Token::AnyRun || tokens.last() != Some(&Token::AnyRun) {
                tokens.push(token);
            }
        }
        Glob { pattern: pattern.to_owned(), tokens }
    }

    /// A pattern that matches one name and no other, whatever characters it has.
    pub fn literal(name: &str) -> Glob {
        Glob::new(&Glob::escape(name))
    }

    /// The pattern that a name alone matches: `*`, `?` and `[` stand in sets of their own.
    pub fn escape(name: &str) -> String {
        let one = |c: char| if matches!(c, '*' | '?' | '[') { format!("[{c}]") } else { c.to_string() };
        name.chars().map(one).collect()
    }

    /// The pattern as it was written.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// Whether the pattern contains a wildcard, so that it can match more than one name.
    pub fn has_wildcard(&self) -> bool {
        self.tokens.iter().any(|token| !matches!(token, Token::Literal(_)))
    }

    /// Whether the pattern matches the whole of `name`, in time `O(len(pattern) * len(name))` at worst.
    pub fn matches(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        let (mut token, mut at) = (0, 0);
        // Where the last `*` stands, and how far into the name it reaches: the only point worth returning to.
        let mut star: Option<(usize, usize)> = None;
        while at < name.len() {
            match self.tokens.get(token) {
                Some(Token::AnyRun) => {
                    star = Some((token, at));
                    token += 1;
                }
                Some(one) if one.accepts(name[at]) => {
                    token += 1;
                    at += 1;
                }
                _ => {
                    let Some((star_token, reach)) = star else { return false };
                    star = Some((star_token, reach + 1));
                    token = star_token + 1;
                    at = reach + 1;
                }
            }
        }
        self.tokens[token..].iter().all(|rest| *rest == Token::AnyRun)
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.pattern)
    }
}

impl Token {
    /// Whether this token, being one character wide, accepts `c`.
    fn accepts(&self, c: char) -> bool {
        match self {
            Token::Literal(literal) => *literal == c,
            Token::AnyOne => true,
            Token::AnyRun => false,
            Token::Set { negated, ranges } => ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated,
        }
    }
}

/// The token that starts at `at`, and where the next one starts.
fn parse_token(chars: &[char], at: usize) -> (Token, usize) {
    match chars[at] {
        '*' => (Token::AnyRun, at + 1),
        '?' => (Token::AnyOne, at + 1),
        '[' => parse_set(chars, at + 1).unwrap_or((Token::Literal('['), at + 1)),
        c => (Token::Literal(c), at + 1),
    }
}

/// The set whose first character is at `start`, and where the pattern goes on after its `]`.
fn parse_set(chars: &[char], start: usize) -> Option<(Token, usize)> {
    let negated = chars.get(start) == Some(&'!');
    let first = start + usize::from(negated);
    // A `]` in the first place is a member.
    let close = (first + 1..chars.len()).find(|&at| chars[at] == ']')?;
    let ranges = set_ranges(&chars[first..close]);
    Some((Token::Set { negated, ranges }, close + 1))
}

/// The members of a set: `a-z` is a range, a `-` at either end a member.
fn set_ranges(members: &[char]) -> Vec<(char, char)> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < members.len() {
        let is_range = members.get(at + 1) == Some(&'-') && at + 2 < members.len();
        let last = if is_range { at + 2 } else { at };
        ranges.push((members[at], members[last]));
        at = last + 1;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escaped_name_is_matched_by_itself_alone() {
        for name in ["/conv1/Conv_output_0", "a[0]*?", "[x]", "é]"] {
            assert!(Glob::new(&Glob::escape(name)).matches(name), "{name}");
        }
        assert!(!Glob::new(&Glob::escape("a*")).matches("ab") && !Glob::new(&Glob::escape("[x]")).matches("x"));
    }

    /// Answers of Python 3.11's `fnmatch.fnmatchcase(name, pattern)`.
    const PYTHON: &[(&str, &str, bool)] = &[
        ("lm_head", "lm_head", true),
        ("lm_head", "model.lm_head", false),
        ("*lm_head", "model.lm_head", true),
        ("*.gate", "model.layers.0.mlp.gate", true),
        ("*.gate", "gate", false),
        ("*.gate", "model.layers.0.mlp.gate_proj", false),
        ("*self_attn*", "model.layers.0.self_attn.q_proj", true),
        ("model.layers.?.mlp", "model.layers.1.mlp", true),
        ("model.layers.?.mlp", "model.layers.10.mlp", false),
        ("*.layers.[0-3].*", "model.layers.3.mlp.up_proj", true),
        ("*.layers.[0-3].*", "model.layers.4.mlp.up_proj", false),
        ("*.layers.[!0-3].*", "model.layers.4.mlp.up_proj", true),
        ("*.layers.[!0-3].*", "model.layers.0.mlp.up_proj", false),
        ("*_proj", "a.q_proj.b_proj", true),
        ("a*b*c", "aXbYbZc", true),
        ("a*b*c", "aXbYbZ", false),
        ("", "", true),
        ("", "a", false),
        ("*", "", true),
        ("**", "ab", true),
        ("[", "[", true),
        ("a[b", "a[b", true),
        ("[]a]", "]", true),
        ("[]a]", "a", true),
        ("[!]a]", "b", true),
        ("[!]a]", "]", false),
        ("[a-]", "-", true),
        ("[-a]", "-", true),
        ("[z-a]", "z", false),
        ("[]", "[]", true),
        ("[!]", "[!]", true),
        ("model.*", "modelxlayers", false),
        ("*é?", "caféx", true),
    ];

    #[test]
    fn agrees_with_python() {
        for &(pattern, name, expected) in PYTHON {
            assert_eq!(Glob::new(pattern).matches(name), expected, "{pattern:?} on {name:?}");
        }
    }

    #[test]
    fn many_stars_do_not_explode() {
        let glob = Glob::new(&"*a".repeat(60));
        assert!(!glob.matches(&format!("{}b", "a".repeat(4000))));
    }

    #[test]
    fn wildcards_are_told_from_names() {
        assert!(!Glob::new("model.layers.0").has_wildcard());
        assert!(Glob::new("*.gate").has_wildcard());
        assert!(!Glob::new("a[b").has_wildcard());
    }
}
