//! The observers by their names: those of Kvant, and those that a user of the library registers.

use super::{
    Observer, automatic, distribution, entropy, layerwise_percentile, min_max, moving_average, mse, non_overflow,
    percentile, search,
};
use crate::registry::{RegisterError, Registry, Row, canonical};
use serde::{Deserialize, Serialize};
use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::str::FromStr;
use std::sync::{LazyLock, PoisonError, RwLock};

/// An observer as users choose it.
#[derive(Clone, Copy, Debug)]
pub struct ObserverRow {
    /// Its name, which a spelling begins with. Lower-case letters, digits, `-` and `_`.
    pub name: &'static str,
    /// Other names.
    pub aliases: &'static [&'static str],
    /// A spelling, with settings if it has some.
    pub example: &'static str,
    /// Its description for `kvant list observers`.
    pub about: &'static str,
    /// The observer with the settings that follow its name in a spelling; `None` for invalid settings.
    pub make: fn(&str) -> Option<Box<dyn Observer>>,
}

/// The observers of Kvant.
pub const OBSERVERS: &[ObserverRow] = &[
    min_max::ROW,
    percentile::ROW,
    percentile::OF_MAGNITUDES,
    layerwise_percentile::ROW,
    mse::ROW,
    search::ROW,
    entropy::ROW,
    automatic::ROW,
    moving_average::ROW,
    moving_average::MEAN,
    distribution::ROW,
    non_overflow::ROW,
];

static REGISTRY: LazyLock<Registry<ObserverRow>> = LazyLock::new(|| Registry::new(OBSERVERS.to_vec()));

/// Every observer that was asked for, by its spelling.
static MADE: RwLock<BTreeMap<String, ObserverRef>> = RwLock::new(BTreeMap::new());

impl Row for ObserverRow {
    const KIND: &'static str = "observer";

    fn names(&self) -> Vec<&str> {
        names(self).collect()
    }
}

/// Every observer: those of Kvant, then those that are registered.
pub fn observers() -> Vec<ObserverRow> {
    REGISTRY.rows()
}

/// Registers an observer, whose name schemes and recipes accept from then on.
///
/// # Errors
/// If the name or an alias is taken, or cannot be part of a scheme's spelling.
pub fn register(row: ObserverRow) -> Result<(), RegisterError> {
    REGISTRY.register(row)
}

/// The name and the aliases.
fn names(row: &ObserverRow) -> impl Iterator<Item = &'static str> + use<> {
    std::iter::once(row.name).chain(row.aliases.iter().copied())
}

/// An observer without settings.
pub(super) fn plain<O: Observer + 'static>(settings: &str, observer: O) -> Option<Box<dyn Observer>> {
    settings.is_empty().then(|| Box::new(observer) as Box<dyn Observer>)
}

/// An observer that was made from its spelling: what schemes and recipes hold. Two of the same spelling are equal.
#[derive(Clone, Copy)]
pub struct ObserverRef(&'static RegistryEntry);

/// An observer with its cached properties.
struct RegistryEntry {
    name: &'static str,
    spelling: &'static str,
    observer: &'static dyn Observer,
}

impl ObserverRef {
    /// The least and the greatest value.
    pub const MIN_MAX: ObserverRef = ObserverRef(&RegistryEntry {
        name: min_max::ROW.name,
        spelling: min_max::ROW.name,
        observer: &min_max::MinMax,
    });
    /// The moving average of the ranges of batches, a new one weighing 0.01.
    pub const MOVING_AVERAGE: ObserverRef = ObserverRef(&RegistryEntry {
        name: moving_average::ROW.name,
        spelling: moving_average::ROW.example,
        observer: &moving_average::MovingAverage::DEFAULT,
    });
    /// The range that holds 99.999 % of the values, or as many as a recipe for graphs says beside it.
    pub const PERCENTILE: ObserverRef = ObserverRef(&RegistryEntry {
        name: percentile::ROW.name,
        spelling: percentile::ROW.name,
        observer: &percentile::PercentileObserver::DEFAULT,
    });
    /// The range with the least squared error.
    pub const MSE: ObserverRef =
        ObserverRef(&RegistryEntry { name: mse::ROW.name, spelling: mse::ROW.name, observer: &mse::Mse });
    /// The scale with the least squared error, for weights.
    pub const SEARCH: ObserverRef =
        ObserverRef(&RegistryEntry { name: search::ROW.name, spelling: search::ROW.name, observer: &search::Search });
    /// The least and the greatest value under a power of two.
    pub const NON_OVERFLOW: ObserverRef = ObserverRef(&RegistryEntry {
        name: non_overflow::ROW.name,
        spelling: non_overflow::ROW.name,
        observer: &non_overflow::NonOverflow,
    });

    /// This observer with a share of the values, if it has one and it was not given: `percentile` and `auto`.
    pub fn or_percentile(self, percent: f64) -> ObserverRef {
        match self.reads_percentile() {
            true => format!("{}{percent}", self.name()).parse().unwrap_or(self),
            false => self,
        }
    }

    /// Returns whether it is `percentile` or `auto` without its own share.
    pub fn reads_percentile(self) -> bool {
        [percentile::ROW.name, automatic::ROW.name].contains(&self.spelling())
    }

    /// The name of its row.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Its spelling, settings included.
    pub fn spelling(self) -> &'static str {
        self.0.spelling
    }
}

impl Deref for ObserverRef {
    type Target = dyn Observer;

    fn deref(&self) -> &Self::Target {
        self.0.observer
    }
}

impl PartialEq for ObserverRef {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0) || self.spelling() == other.spelling()
    }
}

impl Eq for ObserverRef {}

impl PartialOrd for ObserverRef {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ObserverRef {
    fn cmp(&self, other: &Self) -> Ordering {
        self.spelling().cmp(other.spelling())
    }
}

impl Hash for ObserverRef {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.spelling().hash(state);
    }
}

impl fmt::Debug for ObserverRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.observer.fmt(f)
    }
}

impl fmt::Display for ObserverRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.spelling())
    }
}

/// A spelling that names no observer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an observer; choose from {list}", list = list())]
pub struct UnknownObserver(pub String);

fn list() -> String {
    observers().iter().map(|row| row.example).collect::<Vec<_>>().join(", ")
}

impl FromStr for ObserverRef {
    type Err = UnknownObserver;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wanted = canonical(text.trim());
        let mut rows: Vec<(&'static str, ObserverRow)> =
            observers().into_iter().flat_map(|row| names(&row).map(move |name| (name, row))).collect();
        // The longest name first: `percentile` before one that it begins with.
        rows.sort_by_key(|(name, _)| Reverse(name.len()));
        let found =
            rows.iter().find_map(|(name, row)| Some((row, (row.make)(wanted.strip_prefix(&canonical(name))?)?)));
        let (row, observer) = found.ok_or_else(|| UnknownObserver(text.to_owned()))?;
        Ok(interned(row.name, observer))
    }
}

/// The observer of a spelling. Observers live as long as the program, so that schemes are small values.
fn interned(name: &'static str, observer: Box<dyn Observer>) -> ObserverRef {
    let mut all = MADE.write().unwrap_or_else(PoisonError::into_inner);
    let spelling = observer.spelling();
    if let Some(known) = all.get(&spelling) {
        return *known;
    }
    let entry = RegistryEntry { name, spelling: spelling.clone().leak(), observer: Box::leak(observer) };
    let made = ObserverRef(Box::leak(Box::new(entry)));
    all.insert(spelling, made);
    made
}

impl Serialize for ObserverRef {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ObserverRef {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph_grid::{GraphGrid, ScaleKind};
    use crate::observer::{Grid, ObservedValues};
    use kvant_numeric::kernel::Range;

    #[test]
    fn observer_names_examples_and_aliases_read_back() {
        for row in OBSERVERS {
            let example: ObserverRef = row.example.parse().unwrap();
            assert_eq!((example.to_string().as_str(), example.name()), (row.example, row.name));
            assert!(
                !example.find(&ObservedValues::values(&[1.0, -2.0, 0.5]), &grid()).range.max.is_nan(),
                "{}",
                row.name
            );
            for name in names(row) {
                let made: ObserverRef = name.to_uppercase().replace('-', "_").parse().unwrap();
                assert_eq!(made.name(), row.name);
                assert_eq!(made.spelling().parse(), Ok(made));
            }
        }
        assert_eq!("minmax".parse(), Ok(ObserverRef::MIN_MAX));
        assert_eq!("minmse".parse(), Ok(ObserverRef::MSE));
        assert_eq!("moving-average".parse(), Ok(ObserverRef::MOVING_AVERAGE));
        assert_eq!("percentile".parse(), Ok(ObserverRef::PERCENTILE));
        assert_eq!("nonoverflow".parse(), Ok(ObserverRef::NON_OVERFLOW));
    }

    fn grid() -> GraphGrid {
        GraphGrid { dtype: Some("e4m3".parse().unwrap()), symmetric: true, scale: ScaleKind::Float }
    }

    #[test]
    fn percentile_completes_observers_that_take_one() {
        let completed = |text: &str| text.parse::<ObserverRef>().unwrap().or_percentile(99.5).to_string();
        assert_eq!(completed("percentile"), "percentile99.5");
        assert_eq!(completed("auto"), "auto99.5");
        assert_eq!(completed("percentile90"), "percentile90");
        assert_eq!(completed("entropy"), "entropy");
    }

    #[test]
    fn out_of_range_observer_settings_are_refused() {
        for text in
            ["", "percentile0", "percentile101", "percentile-1", "percentileNaN", "max", "ema1", "ema0", "emaNaN"]
        {
            assert!(text.parse::<ObserverRef>().is_err(), "{text}");
        }
    }

    #[derive(Debug)]
    struct Half;

    impl Observer for Half {
        fn spelling(&self) -> String {
            "half-of-all".to_owned()
        }

        fn range(&self, seen: &ObservedValues<'_>, _: &dyn Grid) -> Range {
            Range { min: seen.range().min / 2.0, max: seen.range().max / 2.0 }
        }
    }

    #[test]
    fn registered_observer_is_found_and_duplicate_names_are_refused() {
        let row = ObserverRow {
            name: "half-of-all",
            aliases: &["half"],
            example: "half-of-all",
            about: "half of the range",
            make: |settings| plain(settings, Half),
        };
        assert!("half".parse::<ObserverRef>().is_err());
        register(row).unwrap();
        assert_eq!("half".parse::<ObserverRef>().unwrap().to_string(), "half-of-all");
        assert!(observers().iter().any(|row| row.name == "half-of-all"));
        let kind = "observer";
        let taken = |name: &str| Err(RegisterError::Taken { kind, name: name.to_owned() });
        assert_eq!(register(row), taken("half-of-all"));
        let name = "half:2".to_owned();
        assert_eq!(register(ObserverRow { name: "half:2", ..row }), Err(RegisterError::Name { kind, name }));
        assert_eq!(register(ObserverRow { name: "new", aliases: &["minmse"], ..row }), taken("minmse"));
    }
}
