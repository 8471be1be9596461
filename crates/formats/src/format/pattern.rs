//! Patterns on module names in the configurations of other tools: names, wildcards of a shell, and regular expressions
//! behind `re:`. Not the patterns of users: see [`kvant_quant::glob`].

use fancy_regex::Regex;
use kvant_quant::glob::Glob;
use kvant_weights::recipe_error::{RecipeError, quoted};

/// The most steps that matching one name may take; expressions come with the file.
const MAX_STEPS: usize = 100_000;

/// Names a module, or several.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// Python's `fnmatch`; a name without wildcards is itself.
    Glob(Glob),
    /// Python's `re.match`: from the start of the name, not necessarily to its end.
    Regex(Box<Regex>),
}

impl Pattern {
    /// A glob, or `re:` and a regular expression.
    ///
    /// # Errors
    /// *Unsupported* for expressions that are not understood.
    pub fn new(place: &str, text: &str) -> Result<Pattern, RecipeError> {
        let Some(expression) = text.strip_prefix("re:") else {
            return Ok(Pattern::Glob(Glob::new(text)));
        };
        let built = fancy_regex::RegexBuilder::new(&format!("^(?:{expression})")).backtrack_limit(MAX_STEPS).build();
        let refused = |_| {
            let reason = format!("the expression {} is not understood", quoted(text));
            RecipeError::unsupported(place, reason, "name the modules one by one")
        };
        built.map(|regex| Pattern::Regex(Box::new(regex))).map_err(refused)
    }

    /// Returns whether it names this module; an expression that takes too long does not.
    pub fn matches(&self, module: &str) -> bool {
        match self {
            Pattern::Glob(glob) => glob.matches(module),
            Pattern::Regex(regex) => regex.is_match(module).unwrap_or(false),
        }
    }

    /// Returns whether it can name more than one module.
    pub fn has_wildcard(&self) -> bool {
        match self {
            Pattern::Glob(glob) => glob.has_wildcard(),
            Pattern::Regex(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_match_from_the_start() {
        let matches = |pattern: &str, name: &str| Pattern::new("ignore", pattern).unwrap().matches(name);
        assert!(matches("re:.*q_proj", "model.layers.0.q_proj.more"));
        assert!(!matches("re:q_proj", "model.q_proj") && matches("lm_head", "lm_head") && matches("*.k", "a.k"));
        assert!(matches("re:(?!.*vision).*proj$", "text.proj") && !matches("re:(?!.*vision).*proj$", "vision.proj"));
        assert!(Pattern::new("ignore", "re:(").is_err());
    }

    #[test]
    fn exponential_expression_matches_nothing() {
        let pattern = Pattern::new("ignore", r"re:(?=(a+)+$)b?(a+)+\1b").unwrap();
        assert!(!pattern.matches(&"a".repeat(64)));
    }
}
