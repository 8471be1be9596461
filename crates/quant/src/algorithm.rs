//! Every algorithm that a list can name: rotations, transforms, roundings, tuning and the correction of biases, with names that none shares with another.
//! Users of the library [`register`] theirs. Not how algorithms work.

use crate::bias_correction::{self, BiasCorrection};
use crate::options::{self, Settings};
use crate::registry::{AlgorithmRow, RegisterError, Registry, Row};
use crate::rotation::{self, Rotate};
use crate::rounding::{self, AnyRounding, RoundingRow};
use crate::transform::{self, AnyTransform, TransformRow};
use crate::tuning::{self, Tuning};
use std::fmt;
use std::sync::{Arc, LazyLock};

/// An algorithm that can be asked for by name, of any kind.
#[derive(Clone, Debug)]
pub enum AnyRow {
    /// It rotates a model before anything else is done to it.
    Rotation(Arc<AlgorithmRow<Rotate>>),
    /// It changes weights before they are rounded.
    Transform(Arc<TransformRow>),
    /// It chooses codes.
    Rounding(Arc<RoundingRow>),
    /// It changes what was chosen for a whole block.
    Tuning(Arc<AlgorithmRow<Tuning>>),
    /// It changes biases once codes are chosen.
    Correction(Arc<AlgorithmRow<BiasCorrection>>),
}

impl From<TransformRow> for AnyRow {
    fn from(row: TransformRow) -> AnyRow {
        AnyRow::Transform(Arc::new(row))
    }
}

impl From<RoundingRow> for AnyRow {
    fn from(row: RoundingRow) -> AnyRow {
        AnyRow::Rounding(Arc::new(row))
    }
}

impl Row for AnyRow {
    const KIND: &'static str = "algorithm";

    fn names(&self) -> Vec<&str> {
        match self {
            AnyRow::Rotation(row) => row.names().collect(),
            AnyRow::Transform(row) => row.names().collect(),
            AnyRow::Rounding(row) => row.names().collect(),
            AnyRow::Tuning(row) => row.names().collect(),
            AnyRow::Correction(row) => row.names().collect(),
        }
    }
}

/// The names of algorithms that only graphs have: no other gets one of them.
pub const NAMES_OF_GRAPHS: &[&str] = &["cle", "equalization", "cross-layer-equalization"];

/// In the order in which they run.
static ALGORITHMS: LazyLock<Registry<AnyRow>> = LazyLock::new(|| {
    let transforms = transform::built_in().into_iter().map(AnyRow::from);
    let roundings = rounding::built_in().into_iter().map(AnyRow::from);
    let correction = AnyRow::Correction(Arc::new(bias_correction::row()));
    let tuning = tuning::rows().into_iter().map(|row| AnyRow::Tuning(Arc::new(row)));
    let rotation = AnyRow::Rotation(Arc::new(rotation::row()));
    let rows = std::iter::once(rotation).chain(transforms).chain(roundings).chain(tuning).chain([correction]);
    Registry::new(rows.collect()).with_reserved(NAMES_OF_GRAPHS)
});

/// Every algorithm: those that come with Kvant in a fixed order, then those that were registered.
pub fn rows() -> Vec<AnyRow> {
    ALGORITHMS.rows()
}

/// Every transform.
pub fn transforms() -> Vec<Arc<TransformRow>> {
    let transform = |row| if let AnyRow::Transform(row) = row { Some(row) } else { None };
    rows().into_iter().filter_map(transform).collect()
}

/// Every rounding.
pub fn roundings() -> Vec<Arc<RoundingRow>> {
    let rounding = |row| if let AnyRow::Rounding(row) = row { Some(row) } else { None };
    rows().into_iter().filter_map(rounding).collect()
}

/// Every tuning.
pub fn tunings() -> Vec<Arc<AlgorithmRow<Tuning>>> {
    let tuning = |row| if let AnyRow::Tuning(row) = row { Some(row) } else { None };
    rows().into_iter().filter_map(tuning).collect()
}

/// The algorithm of a name, in any case of letters, with `-` or `_`.
pub fn named(name: &str) -> Option<AnyRow> {
    ALGORITHMS.named(name)
}

/// Adds a transform or a rounding, for the whole process and for as long as it runs: from then on it is named in recipes, listed, and
/// part of a run's identity by its name and settings, like those that come with Kvant. A program that resumes runs registers it
/// before it does.
///
/// # Errors
/// [`RegisterError`] where a name cannot be spelled or is another algorithm's.
pub fn register(row: impl Into<AnyRow>) -> Result<(), RegisterError> {
    ALGORITHMS.register(row.into())
}

/// The name, and the settings that are not the default ones: `gptq:damping=0.05`.
fn spell(f: &mut fmt::Formatter<'_>, name: &str, settings: &Settings) -> fmt::Result {
    let defaults = named(name).map(|row| match row {
        AnyRow::Rotation(row) => options::shown(&row.default),
        AnyRow::Transform(row) => row.default.settings(),
        AnyRow::Rounding(row) => row.default.settings(),
        AnyRow::Tuning(row) => row.default.settings(),
        AnyRow::Correction(row) => options::shown(&row.default),
    });
    spell_beside(f, name, settings, &defaults.unwrap_or_default())
}

/// The name, and the settings that are not among those that it stands for.
fn spell_beside(f: &mut fmt::Formatter<'_>, name: &str, settings: &Settings, defaults: &Settings) -> fmt::Result {
    f.write_str(name)?;
    let changed = settings.iter().filter(|setting| !defaults.contains(setting));
    changed.into_iter().try_for_each(|(name, value)| write!(f, ":{name}={value}"))
}

impl fmt::Display for AnyTransform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        spell(f, self.name(), &self.settings())
    }
}

impl fmt::Display for AnyRounding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        spell(f, self.name(), &self.settings())
    }
}

impl fmt::Display for Rotate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        spell(f, rotation::NAME, &options::shown(self))
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        spell_beside(f, self.name(), &self.settings(), &self.defaults())
    }
}

impl fmt::Display for BiasCorrection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        spell(f, bias_correction::NAME, &options::shown(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{OptionRow, Values};
    use crate::rounding::{LayerError, LayerProblem, Needs, RoundedLayer, Rounding};
    use crate::transform::{self, PairError, PairProblem, PairScales, Transform};
    use serde::{Deserialize, Serialize};

    /// What tests ask of a row of any kind.
    fn check_row<A: Clone + PartialEq + fmt::Debug + fmt::Display>(row: &AlgorithmRow<A>, settings: Settings) {
        assert_eq!(row.default.to_string(), row.name);
        let names: Vec<&str> = settings.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, row.options.iter().map(|option| option.name).collect::<Vec<_>>(), "{}", row.name);
        let given: Vec<(&str, &str)> = settings.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(row.read(&given).unwrap(), row.default, "{}", row.name);
        for option in row.options.iter() {
            for nonsense in ["", "x", "nan", "inf", "-1", "1e9", "ON"] {
                assert!(row.read(&[(option.name, nonsense)]).is_err(), "{}:{}={nonsense}", row.name, option.name);
            }
        }
        for name in row.names() {
            assert_eq!(named(&name.to_uppercase()).unwrap().names()[0], row.name);
        }
    }

    #[test]
    fn transform_rows_are_found_by_names_and_read_back_settings() {
        for row in rows() {
            match row {
                AnyRow::Rotation(row) => check_row(&row, options::shown(&row.default)),
                AnyRow::Transform(row) => check_row(&row, row.default.settings()),
                AnyRow::Rounding(row) => check_row(&row, row.default.settings()),
                AnyRow::Tuning(row) => check_row(&row, row.default.settings()),
                AnyRow::Correction(row) => check_row(&row, options::shown(&row.default)),
            }
        }
        assert!(named("no").is_none());
    }

    /// All codes zero, or all scales one.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    struct Silence {
        loudness: f32,
    }

    impl Rounding for Silence {
        fn name(&self) -> &str {
            "silence"
        }

        fn settings(&self) -> Settings {
            options::shown(self)
        }

        fn needs(&self) -> Needs {
            Needs::Nothing
        }

        fn round(&self, _: &mut LayerProblem<'_>) -> Result<RoundedLayer, LayerError> {
            Err(LayerError::Other("not now".to_owned()))
        }
    }

    impl Transform for Silence {
        fn name(&self) -> &str {
            "quiet"
        }

        fn settings(&self) -> Settings {
            options::shown(self)
        }

        fn needs(&self) -> transform::Needs {
            transform::Needs::Maxima
        }

        fn find(&self, _: &mut dyn PairProblem) -> Result<PairScales, PairError> {
            Err(PairError::Unscaled("not now".to_owned()))
        }
    }

    const OPTIONS: &[OptionRow] = &[OptionRow { name: "loudness", values: Values::SHARE, about: "how loud" }];

    fn taken(name: &str) -> Result<(), RegisterError> {
        Err(RegisterError::Taken { kind: "algorithm", name: name.to_owned() })
    }

    #[test]
    fn registered_algorithms_are_found_and_spelled_and_names_are_taken_across_kinds() {
        let rounding = RoundingRow::of(Silence { loudness: 0.0 }, OPTIONS, "says nothing");
        let transform = TransformRow::of(Silence { loudness: 0.0 }, OPTIONS, "moves nothing");
        register(rounding.clone()).unwrap();
        register(transform.clone()).unwrap();
        let given = [("loudness", "0.25")];
        let Some(AnyRow::Rounding(found)) = named("SILENCE") else { panic!("a rounding was registered") };
        let made = found.read(&given).unwrap();
        assert_eq!(made.to_string(), "silence:loudness=0.25");
        assert_eq!(made.downcast::<Silence>().unwrap().loudness, 0.25);
        assert_ne!(made, rounding.default);
        let Some(AnyRow::Transform(found)) = named("Quiet") else { panic!("a transform was registered") };
        assert_eq!(found.read(&given).unwrap().to_string(), "quiet:loudness=0.25");
        assert_eq!(register(rounding.clone()), taken("silence"));
        for name in ["gptq", "awq", "smooth", "quiet", "bias-correction"] {
            let mut renamed = rounding.clone();
            renamed.name = name.into();
            assert_eq!(register(renamed), taken(name));
        }
        for name in ["gptq", "awq", "smooth", "silence", "bc", "cle", "rotation"] {
            let mut renamed = transform.clone();
            renamed.name = name.into();
            assert_eq!(register(renamed), taken(name));
        }
    }
}
