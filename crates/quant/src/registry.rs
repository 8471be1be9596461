//! Open sets of algorithms: rows by name, to which users of the library add theirs. Not the algorithms.

use crate::options::{OptionError, OptionRow};
use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// Names of transforms, which precede a rounding in a list of algorithms, so that no rounding can have them.
pub(crate) const TRANSFORM_NAMES: [&str; 4] = ["smoothquant", "smooth", "autosmoothquant", "awq"];

/// Makes an algorithm of the options that are given for it.
type Read<A> = Arc<dyn Fn(&[(&str, &str)]) -> Result<A, OptionError> + Send + Sync>;

/// An algorithm that can be asked for by name.
#[derive(Clone)]
pub struct AlgorithmRow<A> {
    /// The spelling in commands, recipes and reports.
    pub name: Cow<'static, str>,
    /// Other spellings that are understood.
    pub aliases: &'static [&'static str],
    /// Where it is from.
    pub paper: Option<Cow<'static, str>>,
    /// One line that explains it.
    pub about: Cow<'static, str>,
    /// What can be set.
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
    /// Where an option does not exist, is given twice, or does not take its value.
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

    /// Whether it goes by that name: in any case of letters, with `-` or `_`.
    pub fn is_named(&self, name: &str) -> bool {
        let wanted = canonical(name);
        canonical(&self.name) == wanted || self.aliases.iter().any(|alias| canonical(alias) == wanted)
    }
}

impl<A: fmt::Debug> fmt::Debug for AlgorithmRow<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlgorithmRow").field("name", &self.name).field("default", &self.default).finish_non_exhaustive()
    }
}

/// A name as names are compared.
pub(crate) fn canonical(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

/// What keeps an algorithm from being registered; always *invalid*.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum RegisterError {
    /// Another algorithm has the name.
    #[error("there is an algorithm `{0}` already")]
    Taken(String),
    /// The name could not be spelled in a recipe.
    #[error("`{0}` is no name of an algorithm: lowercase letters, digits, `-` and `_` are")]
    Name(String),
}

/// Rows in a fixed order: those that are built in, then those that were added, in the order in which that was done.
pub(crate) struct Registry<A> {
    rows: RwLock<Vec<Arc<AlgorithmRow<A>>>>,
}

impl<A> Registry<A> {
    pub(crate) fn new(built_in: Vec<AlgorithmRow<A>>) -> Registry<A> {
        Registry { rows: RwLock::new(built_in.into_iter().map(Arc::new).collect()) }
    }

    pub(crate) fn rows(&self) -> Vec<Arc<AlgorithmRow<A>>> {
        self.rows.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn named(&self, name: &str) -> Option<Arc<AlgorithmRow<A>>> {
        self.rows().into_iter().find(|row| row.is_named(name))
    }

    pub(crate) fn register(&self, row: AlgorithmRow<A>) -> Result<(), RegisterError> {
        let spelled = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
        if row.name.is_empty() || !row.name.chars().all(spelled) {
            return Err(RegisterError::Name(row.name.into_owned()));
        }
        let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        let names = row.aliases.iter().copied().chain([row.name.as_ref()]);
        if let Some(taken) = names.into_iter().find(|name| rows.iter().any(|known| known.is_named(name))) {
            return Err(RegisterError::Taken(taken.to_owned()));
        }
        rows.push(Arc::new(row));
        Ok(())
    }
}
