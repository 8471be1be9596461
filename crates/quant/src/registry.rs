//! Open sets: rows that are chosen by name, to which users of the library add theirs. One registry serves algorithms, observers and
//! checkpoint formats. Not the rows' meaning.

use crate::options::{self, OptionError, OptionRow};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// Something that is chosen by name.
pub trait Row: Clone {
    /// What it is, for messages: "algorithm".
    const KIND: &'static str;

    /// Its name, then its other names. They are compared in lower case, `_` being `-`.
    fn names(&self) -> Vec<&str>;

    /// Other texts that it alone answers to.
    fn claims(&self) -> Vec<&str> {
        Vec::new()
    }
}

/// Rows in a fixed order: those that are built in, then registered ones, in order of registration.
pub struct Registry<R> {
    rows: RwLock<Vec<R>>,
    reserved: &'static [&'static str],
}

impl<R: Row> Registry<R> {
    /// The rows that are built in.
    pub fn new(built_in: Vec<R>) -> Registry<R> {
        Registry { rows: RwLock::new(built_in), reserved: &[] }
    }

    /// The same with names that no row can have.
    pub fn with_reserved(self, reserved: &'static [&'static str]) -> Registry<R> {
        Registry { reserved, ..self }
    }

    /// All rows.
    pub fn rows(&self) -> Vec<R> {
        self.rows.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The row of a name, in any case of letters, with `-` or `_`.
    pub fn named(&self, name: &str) -> Option<R> {
        let wanted = canonical(name);
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        rows.iter().find(|row| row.names().into_iter().any(|name| canonical(name) == wanted)).cloned()
    }

    /// Adds a row.
    ///
    /// # Errors
    /// [`RegisterError`] where a name cannot be spelled, or another row has it.
    pub fn register(&self, row: R) -> Result<(), RegisterError> {
        let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        let kind = R::KIND;
        for name in row.names() {
            if !is_name(name) {
                return Err(RegisterError::Name { kind, name: name.to_owned() });
            }
            let mut taken = rows.iter().flat_map(Row::names).chain(self.reserved.iter().copied());
            if taken.any(|taken| canonical(taken) == canonical(name)) {
                return Err(RegisterError::Taken { kind, name: name.to_owned() });
            }
        }
        for claim in row.claims() {
            if rows.iter().any(|known| known.claims().contains(&claim)) {
                return Err(RegisterError::Claimed { kind, claim: claim.to_owned() });
            }
        }
        rows.push(row);
        Ok(())
    }
}

/// Lists, schemes and recipes give a meaning to all other characters.
fn is_name(name: &str) -> bool {
    let is_legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(is_legal)
}

/// A name as names are compared.
pub(crate) fn canonical(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

/// What keeps a row from being registered; always *invalid*.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum RegisterError {
    /// The name is taken.
    #[error("the name `{name}` is taken: register the {kind} under another one")]
    Taken {
        /// What was registered.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// The name could not be spelled in a recipe.
    #[error(
        "`{name}` is no name for the {kind}: names are lower-case letters, digits, `-` and `_`, the first a letter"
    )]
    Name {
        /// What was registered.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// Another row answers to what this one claims.
    #[error("another {kind} answers to `{claim}`")]
    Claimed {
        /// What was registered.
        kind: &'static str,
        /// The text, of a checkpoint format a `quant_method`.
        claim: String,
    },
}

/// Makes an algorithm of the options that are given for it.
type Read<A> = Arc<dyn Fn(&[(&str, &str)]) -> Result<A, OptionError> + Send + Sync>;

/// An algorithm that can be selected by name.
#[derive(Clone)]
pub struct AlgorithmRow<A> {
    /// The spelling in commands, recipes and reports.
    pub name: Cow<'static, str>,
    /// Other spellings that are understood.
    pub aliases: &'static [&'static str],
    /// Its origin.
    pub paper: Option<Cow<'static, str>>,
    /// One line that explains it.
    pub about: Cow<'static, str>,
    /// Its options.
    pub options: Cow<'static, [OptionRow]>,
    /// The algorithm with its default settings.
    pub default: A,
    read: Read<A>,
}

impl<A> AlgorithmRow<A> {
    /// A row; `read` makes the algorithm of options and their values.
    pub fn new(
        name: impl Into<Cow<'static, str>>,
        about: impl Into<Cow<'static, str>>,
        options: impl Into<Cow<'static, [OptionRow]>>,
        default: A,
        read: impl Fn(&[(&str, &str)]) -> Result<A, OptionError> + Send + Sync + 'static,
    ) -> AlgorithmRow<A> {
        AlgorithmRow {
            name: name.into(),
            aliases: &[],
            paper: None,
            about: about.into(),
            options: options.into(),
            default,
            read: Arc::new(read),
        }
    }

    /// A row of an algorithm whose options are the fields of a struct, with `serde`.
    pub fn of_settings<S>(
        name: impl Into<Cow<'static, str>>,
        about: impl Into<Cow<'static, str>>,
        options: impl Into<Cow<'static, [OptionRow]>>,
        defaults: S,
        into: impl Fn(S) -> A + Send + Sync + 'static,
    ) -> AlgorithmRow<A>
    where
        S: Serialize + DeserializeOwned + Clone + Send + Sync + 'static,
    {
        let (name, options) = (name.into(), options.into());
        let (algorithm, rows) = (name.clone(), options.clone());
        AlgorithmRow::new(name, about, options, into(defaults.clone()), move |given| {
            options::read(&algorithm, &rows, &defaults, given).map(&into)
        })
    }

    /// The same with where it is from.
    pub fn with_paper(self, paper: impl Into<Cow<'static, str>>) -> AlgorithmRow<A> {
        AlgorithmRow { paper: Some(paper.into()), ..self }
    }

    /// The same with other spellings.
    pub fn with_aliases(self, aliases: &'static [&'static str]) -> AlgorithmRow<A> {
        AlgorithmRow { aliases, ..self }
    }

    /// The algorithm with options and their values, as they are spelled.
    ///
    /// # Errors
    /// If an option does not exist, is given twice, or does not accept its value.
    pub fn read(&self, given: &[(&str, &str)]) -> Result<A, OptionError> {
        (self.read)(given)
    }

    /// The same row of another set, which has these algorithms among others.
    pub fn map<B>(&self, into: impl Fn(A) -> B + Send + Sync + 'static) -> AlgorithmRow<B>
    where
        A: Clone + 'static,
    {
        let (default, read) = (into(self.default.clone()), self.read.clone());
        AlgorithmRow {
            name: self.name.clone(),
            aliases: self.aliases,
            paper: self.paper.clone(),
            about: self.about.clone(),
            options: self.options.clone(),
            default,
            read: Arc::new(move |given| read(given).map(&into)),
        }
    }

    /// Its name, then its other names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_ref()).chain(self.aliases.iter().copied())
    }

    /// Returns whether it has that name, ignoring case and the difference between `-` and `_`.
    pub fn is_named(&self, name: &str) -> bool {
        self.names().any(|own| canonical(own) == canonical(name))
    }
}

impl<A: fmt::Debug> fmt::Debug for AlgorithmRow<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlgorithmRow").field("name", &self.name).field("default", &self.default).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Word(&'static [&'static str], &'static [&'static str]);

    impl Row for Word {
        const KIND: &'static str = "odd word";

        fn names(&self) -> Vec<&str> {
            self.0.to_vec()
        }

        fn claims(&self) -> Vec<&str> {
            self.1.to_vec()
        }
    }

    #[test]
    fn rows_keep_their_order_and_are_found_by_every_name() {
        let registry = Registry::new(vec![Word(&["one", "first"], &[])]);
        registry.register(Word(&["two_b"], &[])).unwrap();
        assert_eq!(registry.rows().iter().map(|word| word.0[0]).collect::<Vec<_>>(), ["one", "two_b"]);
        assert_eq!(registry.named("FIRST"), registry.named("one"));
        assert!(registry.named("Two-B").is_some() && registry.named("three").is_none());
    }

    #[test]
    fn names_that_are_taken_reserved_or_illegal_are_refused() {
        let registry = Registry::new(vec![Word(&["one", "first"], &["uno"])]).with_reserved(&["none"]);
        let kind = "odd word";
        let refused = |names, claims| registry.register(Word(names, claims)).unwrap_err();
        for name in ["one", "first", "none"] {
            let taken = RegisterError::Taken { kind, name: name.to_owned() };
            assert_eq!(refused(Box::leak(Box::new([name])), &[]), taken);
        }
        assert_eq!(refused(&["new", "first"], &[]), RegisterError::Taken { kind, name: "first".to_owned() });
        for name in ["", "a:b", "A", "1a", "a,b", "a=b", "é"] {
            assert_eq!(refused(Box::leak(Box::new([name])), &[]), RegisterError::Name { kind, name: name.to_owned() });
        }
        assert_eq!(refused(&["new"], &["uno"]), RegisterError::Claimed { kind, claim: "uno".to_owned() });
        assert_eq!(registry.rows().len(), 1);
    }
}
