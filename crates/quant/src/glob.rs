//! Patterns on names of modules, nodes and tensors with the meaning of Python's `fnmatch.fnmatchcase`: `*` any run of characters, dots
//! included; `?` one character; `[abc]`, `[a-z]`, `[!abc]` one character of a set. The pattern must match the whole
//! name. No brace expansion, no path semantics.
//!
//! A pattern that begins with `re:` is a regular expression, as in llm-compressor: with the meaning of Python's `re.match`, it
//! matches names that begin with what it describes.

use fancy_regex::Regex;
use std::collections::BTreeSet;
use std::fmt;

/// The prefix of a regular expression.
const REGEX: &str = "re:";

/// A compiled pattern.
///
/// ```
/// use kvant_quant::glob::Glob;
///
/// let glob = Glob::new("*self_attn*");
/// assert!(glob.matches("model.layers.0.self_attn.q_proj"));
/// assert!(!Glob::new("lm_head").matches("language_model.lm_head"));
/// assert!(Glob::new("re:.*(q|k|v)_proj$").matches("model.layers.0.self_attn.q_proj"));
/// ```
#[derive(Clone, Debug)]
pub struct Glob {
    pattern: String,
    form: PatternForm,
}

#[derive(Clone, Debug)]
enum PatternForm {
    Tokens(Vec<Token>),
    Regex(Box<Regex>),
    /// A regular expression with a mistake: it matches nothing.
    Broken(String),
}

/// The variant follows from the spelling.
impl PartialEq for Glob {
    fn eq(&self, other: &Glob) -> bool {
        self.pattern == other.pattern
    }
}

impl Eq for Glob {}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Literal(char),
    AnyOne,
    AnyRun,
    Set { negated: bool, ranges: Vec<(char, char)> },
}

impl Glob {
    /// Compiles a pattern. Every string is one; a `[` without its `]` is literal, and an invalid regular expression
    /// matches nothing: see [`problem`](Self::problem).
    pub fn new(pattern: &str) -> Glob {
        let form = match pattern.strip_prefix(REGEX) {
            Some(regex) => at_start(regex).map_or_else(
                |error| PatternForm::Broken(error.to_string()),
                |regex| PatternForm::Regex(Box::new(regex)),
            ),
            None => PatternForm::Tokens(Glob::tokens(pattern)),
        };
        Glob { pattern: pattern.to_owned(), form }
    }

    fn tokens(pattern: &str) -> Vec<Token> {
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
        tokens
    }

    /// The error of a regular expression.
    pub fn problem(&self) -> Option<&str> {
        match &self.form {
            PatternForm::Broken(problem) => Some(problem),
            PatternForm::Tokens(_) | PatternForm::Regex(_) => None,
        }
    }

    /// A pattern that matches exactly one name, with any characters.
    pub fn literal(name: &str) -> Glob {
        Glob::new(&Glob::escape(name))
    }

    /// The pattern that matches only this name: `*`, `?` and `[` become sets.
    pub fn escape(name: &str) -> String {
        let one = |c: char| if matches!(c, '*' | '?' | '[') { format!("[{c}]") } else { c.to_string() };
        let escaped: String = name.chars().map(one).collect();
        match escaped.strip_prefix(REGEX) {
            Some(rest) => format!("[r]e:{rest}"),
            None => escaped,
        }
    }

    /// The pattern as it was written.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// Returns whether the pattern contains a wildcard, so that it can match more than one name.
    pub fn has_wildcard(&self) -> bool {
        match &self.form {
            PatternForm::Tokens(tokens) => tokens.iter().any(|token| !matches!(token, Token::Literal(_))),
            PatternForm::Regex(_) | PatternForm::Broken(_) => true,
        }
    }

    /// Whether the pattern matches: the whole of `name`, in time `O(len(pattern) * len(name))` at worst; a regular expression
    /// a prefix of it, within the allowed number of steps.
    pub fn matches(&self, name: &str) -> bool {
        match &self.form {
            PatternForm::Tokens(tokens) => matches(tokens, name),
            PatternForm::Regex(regex) => regex.is_match(name).unwrap_or(false),
            PatternForm::Broken(_) => false,
        }
    }
}

/// A regular expression that matches at the start alone. Errors count positions in what was written.
fn at_start(regex: &str) -> Result<Regex, fancy_regex::Error> {
    Regex::new(regex)?;
    Regex::new(&format!("^(?:{regex})"))
}

fn matches(tokens: &[Token], name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    let (mut token, mut at) = (0, 0);
    // The position of the last `*` and how far it reaches into the name: the only point worth backtracking to.
    let mut star: Option<(usize, usize)> = None;
    while at < name.len() {
        match tokens.get(token) {
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
    tokens[token..].iter().all(|rest| *rest == Token::AnyRun)
}

/// The names that are most like a pattern which matches none of them, at most three: their ends where it has wildcards.
pub fn nearest_names<'n>(pattern: &Glob, names: impl IntoIterator<Item = &'n str>) -> Vec<String> {
    let whole = !pattern.has_wildcard();
    let end = |name: &str| name.rsplit(['.', '/']).find(|part| !part.is_empty()).unwrap_or_default().to_owned();
    let plain: String = pattern.pattern().trim_start_matches(REGEX).replace(|c: char| "*?[]^$()\\|+!".contains(c), "");
    let wanted = if whole { plain } else { end(&plain) };
    let candidates: BTreeSet<String> =
        names.into_iter().map(|name| if whole { name.to_owned() } else { end(name) }).collect();
    let likeness = |name: &str| strsim::normalized_damerau_levenshtein(&wanted, name);
    let rated = candidates.into_iter().map(|name| (likeness(&name), name));
    let mut rated: Vec<(f64, String)> = rated.filter(|(likeness, _)| *likeness >= ALIKE).collect();
    rated.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    rated.into_iter().take(3).map(|(_, name)| name).collect()
}

/// From here on names are alike.
const ALIKE: f64 = 0.5;

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.pattern)
    }
}

impl Token {
    /// Returns whether this token, being one character wide, accepts `c`.
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

/// The set whose first character is at `start`, and the position after its `]`.
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
    fn escaped_name_matches_only_itself() {
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
    fn regular_expressions_match_from_the_start_like_python() {
        for (pattern, name, expected) in [
            ("re:.*lm_head", "model.lm_head", true),
            ("re:.*lm_head", "lm_heads", true),
            ("re:lm_head$", "lm_heads", false),
            ("re:lm_head", "model.lm_head", false),
            ("re:a|b", "xb", false),
            (r"re:.*\.layers\.[0-3]\.(?!mlp)", "model.layers.2.self_attn", true),
            (r"re:.*\.layers\.[0-3]\.(?!mlp)", "model.layers.2.mlp", false),
        ] {
            assert_eq!(Glob::new(pattern).matches(name), expected, "{pattern:?} on {name:?}");
        }
        let broken = Glob::new("re:(");
        assert!(broken.problem().is_some() && !broken.matches("("));
        assert!(Glob::literal("re:x").matches("re:x") && !Glob::literal("re:x").matches("x"));
    }

    #[test]
    fn names_similar_to_a_misspelt_pattern_are_found() {
        let names = ["model.layers.0.mlp.down_proj", "model.layers.0.mlp.up_proj", "lm_head"];
        let nearest = |pattern: &str| nearest_names(&Glob::new(pattern), names);
        assert_eq!(nearest("*.down_porj")[0], "down_proj");
        assert_eq!(nearest("re:.*down_porj$")[0], "down_proj");
        assert_eq!(nearest("lm_haed"), ["lm_head"]);
        assert_eq!(nearest("model.layers.0.mlp.donw_proj")[0], "model.layers.0.mlp.down_proj");
        assert!(nearest("*xyz").is_empty());
    }

    #[test]
    fn glob_agrees_with_python_fnmatch() {
        for &(pattern, name, expected) in PYTHON {
            assert_eq!(Glob::new(pattern).matches(name), expected, "{pattern:?} on {name:?}");
        }
    }

    #[test]
    fn many_stars_match_in_bounded_time() {
        let glob = Glob::new(&"*a".repeat(60));
        assert!(!glob.matches(&format!("{}b", "a".repeat(4000))));
    }

    #[test]
    fn wildcards_are_recognised() {
        assert!(!Glob::new("model.layers.0").has_wildcard());
        assert!(Glob::new("*.gate").has_wildcard());
        assert!(!Glob::new("a[b").has_wildcard());
    }

    #[test]
    fn errors_of_regular_expressions_are_about_what_was_written() {
        let problem = |pattern: &str| Glob::new(pattern).problem().map(str::to_owned);
        let told = problem("re:(").unwrap();
        assert!(told.contains("position 1:"), "{told}");
        assert!(problem("re:a)|(b").is_some() && problem("re:a|b").is_none());
    }
}
