//! Texts of the library as Python programmers read them: settings are keyword arguments. Command lines in backticks stay command lines.

use crate::parameters::keyword;
use kvant_cli::{Parameter, ParameterKind, parameters};

/// The spelling of settings in texts about a command.
pub struct Spelling {
    parameters: Vec<Parameter>,
}

impl Spelling {
    /// The spelling for a command.
    pub fn of_command(command: &str) -> Spelling {
        Spelling { parameters: parameters(command) }
    }

    /// A text of the library, which has its settings in angle quotes.
    pub fn settings(&self, text: &str) -> String {
        outside_commands(
            text,
            |part| self.replaced(part, '‹'),
            |command| kvant::spelled(command, |setting| format!("--{setting}")),
        )
    }

    /// A text in which settings are options already.
    pub fn options(&self, text: &str) -> String {
        outside_commands(text, |part| self.replaced(part, '-'), str::to_owned)
    }

    /// Replaces settings that begin with angle quotes or dashes.
    fn replaced(&self, text: &str, mark: char) -> String {
        let mut made = String::with_capacity(text.len());
        let mut rest = text;
        let opening = if mark == '-' { "--" } else { "‹" };
        while let Some((before, after)) = rest.split_once(opening) {
            made.push_str(before);
            let end = after.find(|c: char| !(c.is_ascii_lowercase() || c == '-')).unwrap_or(after.len());
            let (name, behind) = after.split_at(end);
            let behind = if mark == '-' { Some(behind) } else { behind.strip_prefix('›') };
            let starts_word = mark != '-' || before.is_empty() || before.ends_with([' ', '(', '\'', '"', '`', ',']);
            match (behind, name.is_empty() || !starts_word) {
                (Some(behind), false) if mark != '-' || self.find(name).is_some() => {
                    let (spelled, behind) = self.spelled(name, behind);
                    made.push_str(&spelled);
                    rest = behind;
                }
                _ => {
                    made.push_str(opening);
                    rest = after;
                }
            }
        }
        made.push_str(rest);
        made
    }

    fn find(&self, name: &str) -> Option<&Parameter> {
        let is_name = |parameter: &&Parameter| {
            parameter.option.as_deref() == Some(name) || parameter.aliases.iter().any(|alias| alias == name)
        };
        self.parameters.iter().find(is_name)
    }

    /// A setting, and the text behind it: `name=value` where a value follows, `name=True` for a flag, otherwise the name.
    fn spelled<'t>(&self, name: &str, behind: &'t str) -> (String, &'t str) {
        let parameter = self.find(name);
        let keyword = parameter.map_or_else(|| name.replace('-', "_"), keyword);
        if parameter.is_some_and(|parameter| parameter.kind == ParameterKind::Flag) {
            return (format!("{keyword}=True"), behind);
        }
        let word = behind.strip_prefix(' ').and_then(|behind| behind.split([' ', ',', ';', '`']).next());
        let is_value = |word: &str| {
            let is_placeholder = word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
            let is_listed = || parameter.is_some_and(|parameter| parameter.values.iter().any(|value| value == word));
            is_placeholder || word.starts_with('<') || word.ends_with(':') || is_listed()
        };
        match word.is_some_and(is_value) {
            true => (format!("{keyword}="), &behind[1..]),
            false => (keyword, behind),
        }
    }
}

/// A text whose parts outside and inside of command lines of Kvant in backticks are replaced.
fn outside_commands(text: &str, outside: impl Fn(&str) -> String, inside: impl Fn(&str) -> String) -> String {
    let mut made = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(begin) = rest.find("`kvant ") {
        let end = rest[begin + 1..].find('`').map_or(rest.len(), |end| begin + end + 2);
        made.push_str(&outside(&rest[..begin]));
        made.push_str(&inside(&rest[begin..end]));
        rest = &rest[end..];
    }
    made.push_str(&outside(rest));
    made
}
