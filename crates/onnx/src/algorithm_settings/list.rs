//! The algorithms of a recipe: no two of a kind, in the order in which they run.

use std::fmt;
use std::str::FromStr;

use kvant_quant::transform::AnyTransform;

use super::spelling::SpellingError;
use super::{Algorithm, Stage, algorithms};

/// Algorithms that go together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Algorithms(Vec<Algorithm>);

impl Algorithms {
    /// One algorithm, or none.
    pub(crate) fn of_one(algorithm: Option<Algorithm>) -> Self {
        Self(Vec::from_iter(algorithm))
    }

    /// The algorithms, in the order in which they run.
    pub fn iter(&self) -> std::slice::Iter<'_, Algorithm> {
        self.0.iter()
    }

    /// The transforms whose scales are found in data, in the order in which they run.
    pub fn transforms(&self) -> impl Iterator<Item = &AnyTransform> {
        self.0.iter().filter_map(|algorithm| match algorithm {
            Algorithm::Transform(transform) => Some(transform),
            _ => None,
        })
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether one of them runs the model over data.
    pub fn need_data(&self) -> bool {
        self.0.iter().any(|algorithm| algorithm.needs_data())
    }

    /// Returns whether one of them chooses codes that are not the nearest ones.
    pub fn choose_codes(&self) -> bool {
        self.0.iter().any(|algorithm| algorithm.stage() == Stage::Rounding)
    }

    /// Those that do not run the model over data.
    pub fn without_data(&self) -> Self {
        Self(self.0.iter().filter(|algorithm| !algorithm.needs_data()).cloned().collect())
    }

    /// The algorithms of a list, each item of which may be a list with commas.
    ///
    /// # Errors
    /// Unknown or repeated algorithms, or two that choose codes.
    pub fn of_list<S: AsRef<str>>(list: &[S]) -> Result<Self, SpellingError> {
        let mut made = Self::default();
        for text in list.iter().flat_map(|item| item.as_ref().split(',')) {
            made.add_new(text.parse()?)?;
        }
        Ok(made)
    }

    /// Adds one. Where there is one of its kind, its settings are replaced.
    ///
    /// # Errors
    /// Both this and another one choose codes.
    pub fn add(&mut self, next: Algorithm) -> Result<(), SpellingError> {
        if let Some(position) = self.of_kind(&next) {
            self.0[position] = next;
            return Ok(());
        }
        let rounds = |algorithm: &&Algorithm| algorithm.stage() == Stage::Rounding;
        if let Some(other) = self.0.iter().find(rounds).filter(|_| rounds(&&next)) {
            return Err(SpellingError::TwoRoundings(other.name().to_owned(), next.name().to_owned()));
        }
        self.0.push(next);
        let rows = algorithms();
        self.0.sort_by_key(|algorithm| rows.iter().position(|row| row.name == algorithm.name()));
        Ok(())
    }

    /// Adds one of a kind that is not there yet.
    ///
    /// # Errors
    /// One of its kind is there; or those of [`Self::add`].
    pub(crate) fn add_new(&mut self, next: Algorithm) -> Result<(), SpellingError> {
        match self.of_kind(&next) {
            Some(_) => Err(SpellingError::Twice(next.name().to_owned())),
            None => self.add(next),
        }
    }

    /// Adds all of another list, whose settings win.
    ///
    /// # Errors
    /// Two of them choose codes.
    pub fn extend(&mut self, others: &Self) -> Result<(), SpellingError> {
        others.0.iter().try_for_each(|next| self.add(next.clone()))
    }

    fn of_kind(&self, algorithm: &Algorithm) -> Option<usize> {
        self.0.iter().position(|other| other.name() == algorithm.name())
    }
}

impl fmt::Display for Algorithms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(Algorithm::to_string).collect();
        f.write_str(&all.join(","))
    }
}

impl FromStr for Algorithms {
    type Err = SpellingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::of_list(&[text])
    }
}

/// An algorithm's name as it stands behind a preset's: `_BIAS_CORRECTION`.
pub(crate) fn suffix(name: &str) -> String {
    format!("_{}", name.to_ascii_uppercase().replace('-', "_"))
}

/// Takes one algorithm off the end of a preset's name: `A8W8_CLE` is `A8W8` and cle.
pub fn split_name(name: &str) -> Option<(&str, Algorithm)> {
    let rows = algorithms();
    let spelled =
        rows.iter().flat_map(|row| row.aliases.iter().copied().chain([&*row.name]).map(move |name| (name, row)));
    let ends = spelled.filter_map(|(spelling, row)| Some((name.strip_suffix(&suffix(spelling))?, row)));
    ends.min_by_key(|(rest, _)| rest.len()).map(|(rest, row)| (rest, row.default.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithms_are_ordered_by_the_table() {
        let list: Algorithms = "bias-correction, cle:steps=2".parse().unwrap();
        assert_eq!(list.to_string(), "cle:steps=2,bias-correction");
        assert!(list.need_data() && !Algorithms::default().need_data());
        assert_eq!("cle,cle".parse::<Algorithms>().unwrap_err(), SpellingError::Twice("cle".to_owned()));
    }

    #[test]
    fn later_settings_win() {
        let mut list: Algorithms = "cle".parse().unwrap();
        list.extend(&"cle:steps=7".parse().unwrap()).unwrap();
        assert_eq!(list.to_string(), "cle:steps=7");
    }

    #[test]
    fn preset_suffixes_become_algorithms() {
        let (rest, algorithm) = split_name("A8W8_BIAS_CORRECTION").unwrap();
        assert_eq!((rest, algorithm.name()), ("A8W8", "bias-correction"));
        assert_eq!(split_name("A8W8_CLE_BC").unwrap().0, "A8W8_CLE");
        assert!(split_name("A8W8").is_none());
    }
}
