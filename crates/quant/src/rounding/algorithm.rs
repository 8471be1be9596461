//! The trait of what chooses codes, and the roundings that can be asked for by name.

use super::gptq::rows as gptq_rows;
use super::nearest::Nearest;
use super::problem::{LayerError, LayerProblem, Needs, RoundedLayer, SharedInputs};
use super::{hqq, reconstruction};
use crate::hessian::HessianError;
use crate::options::{self, OptionRow, Settings};
use crate::registry::{AlgorithmRow, RegisterError, Registry, TRANSFORM_NAMES};
use crate::scheme::TensorScheme;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

/// A way to choose the codes of a layer, with its settings.
///
/// Implementations are deterministic at any number of threads, ask [`LayerProblem::check_cancelled`] now and then, and may use
/// rayon's current pool. They know no packing and no files. To be asked for by name, they are [registered](register).
pub trait Rounding: Any + fmt::Debug + Send + Sync {
    /// The name under which it is registered.
    fn name(&self) -> &str;

    /// All of its settings: with the name they decide the result, and whether a run can be resumed. Of a struct with `serde`:
    /// [`options::shown`].
    fn settings(&self) -> Settings {
        Settings::new()
    }

    /// What it must know of a layer's inputs.
    fn needs(&self) -> Needs;

    /// Does what all layers that read the same have in common, and finds out whether their sums are of use.
    ///
    /// # Errors
    /// Where they tell too little: the layers are rounded to nearest then. Sums that are no numbers end the run.
    fn prepare(&self, inputs: &SharedInputs) -> Result<(), HessianError> {
        inputs.hessian.check()
    }

    /// Chooses.
    ///
    /// # Errors
    /// What keeps this layer, and so the run, from being finished. A layer that cannot be improved is no error: its nearest codes are.
    fn round(&self, problem: &mut LayerProblem<'_>) -> Result<RoundedLayer, LayerError>;

    /// Why it is not for weights of a scheme, if that is so.
    fn refuses(&self, scheme: &TensorScheme) -> Option<&'static str> {
        let _ = scheme;
        None
    }

    /// The same for layers that fewer tokens have reached than they have inputs, where it has a safer way then.
    fn for_few_tokens(&self, tokens: u64, inputs: usize) -> Option<AnyRounding> {
        let _ = (tokens, inputs);
        None
    }

    /// About how many bytes it takes at most for a weight of `rows` and `features` columns, beside the Hessian and the weight.
    fn peak_bytes(&self, features: usize, rows: usize) -> u64 {
        8 * features as u64 * rows as u64
    }

    /// About how many floating-point operations it takes for weights of `rows` rows in all that share `features` inputs.
    fn operations(&self, features: usize, rows: usize) -> f64 {
        features as f64 * rows as f64
    }

    /// Graphs: whether the gains of normalizations, one weight for each channel, are weights to it.
    fn takes_normalizations(&self) -> bool {
        false
    }

    /// Graphs: whether samples are mixed of inputs in the quantized model and in the float one.
    fn mixes_inputs(&self) -> bool {
        false
    }

    /// Graphs: whether its codes are kept only where they bring the outputs of the whole model nearer to the float model's.
    fn is_selective(&self) -> bool {
        false
    }

    /// A setting that can be had for graphs alone, if one is asked for.
    fn needs_graph(&self) -> Option<&'static str> {
        None
    }

    /// Graphs: whether it trains biases.
    fn trains_biases(&self) -> bool {
        false
    }
}

/// A rounding of any kind, as recipes hold it. Equal are roundings of the same name and settings.
#[derive(Clone)]
pub struct AnyRounding(Arc<dyn Rounding>);

impl AnyRounding {
    /// Round to nearest.
    pub fn nearest() -> AnyRounding {
        Nearest.into()
    }

    /// Whether it is round to nearest.
    pub fn is_nearest(&self) -> bool {
        self.downcast::<Nearest>().is_some()
    }

    /// The rounding itself, where it is of that type.
    pub fn downcast<R: Rounding>(&self) -> Option<&R> {
        let any: &dyn Any = self.0.as_ref();
        any.downcast_ref()
    }
}

impl<R: Rounding> From<R> for AnyRounding {
    fn from(rounding: R) -> AnyRounding {
        AnyRounding(Arc::new(rounding))
    }
}

impl Deref for AnyRounding {
    type Target = dyn Rounding;

    fn deref(&self) -> &(dyn Rounding + 'static) {
        self.0.as_ref()
    }
}

impl PartialEq for AnyRounding {
    fn eq(&self, other: &AnyRounding) -> bool {
        self.name() == other.name() && self.settings() == other.settings()
    }
}

impl fmt::Debug for AnyRounding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for AnyRounding {
    /// The name, and the settings that are not the default ones: `gptq:damping=0.05`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let defaults = named(self.name()).map(|row| row.default.settings()).unwrap_or_default();
        for setting in self.settings().iter().filter(|setting| !defaults.contains(setting)) {
            write!(f, ":{}={}", setting.0, setting.1)?;
        }
        Ok(())
    }
}

/// A rounding that can be asked for by name.
pub type RoundingRow = AlgorithmRow<AnyRounding>;

impl RoundingRow {
    /// A row for a rounding whose settings are its own fields, with `serde`. `default` has the default settings.
    pub fn of<R: Rounding + Serialize + DeserializeOwned>(
        default: R,
        options: impl Into<Cow<'static, [OptionRow]>>,
        about: impl Into<Cow<'static, str>>,
    ) -> RoundingRow {
        let (options, name) = (options.into(), default.name().to_owned());
        let (rows, default) = (options.clone(), Arc::new(default));
        let row_default = AnyRounding(default.clone());
        RoundingRow::new(name.clone(), about, options, row_default, move |given| {
            options::read(&name, &rows, default.as_ref(), given).map(AnyRounding::from)
        })
    }
}

static ROUNDINGS: LazyLock<Registry<AnyRounding>> = LazyLock::new(|| Registry::new(built_in()));

/// One row for each rounding that comes with Kvant.
fn built_in() -> Vec<RoundingRow> {
    let nearest =
        RoundingRow::new("rtn", "round to nearest; needs no data", &[][..], AnyRounding::nearest(), |given| {
            options::read("rtn", &[], &Map::default(), given).map(|_| AnyRounding::nearest())
        });
    std::iter::once(nearest).chain([hqq::row()]).chain(gptq_rows()).chain(reconstruction::rows()).collect()
}

/// Settings of a rounding without any.
type Map = std::collections::BTreeMap<String, String>;

/// Every rounding, in a fixed order.
pub fn rows() -> Vec<Arc<RoundingRow>> {
    ROUNDINGS.rows()
}

/// The rounding of a name, in any case of letters, with `-` or `_`.
pub fn named(name: &str) -> Option<Arc<RoundingRow>> {
    ROUNDINGS.named(name)
}

/// Adds a rounding, for the whole process and for as long as it runs: from then on it is named in recipes, listed, and part
/// of a run's identity by its name and settings, like those that come with Kvant. A program that resumes runs registers it
/// before it does.
///
/// # Errors
/// [`RegisterError`] where the name cannot be spelled or is another algorithm's.
pub fn register(row: RoundingRow) -> Result<(), RegisterError> {
    match TRANSFORM_NAMES.into_iter().find(|name| row.is_named(name)) {
        Some(taken) => Err(RegisterError::Taken(taken.to_owned())),
        None => ROUNDINGS.register(row),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    /// All codes zero.
    #[derive(Debug, Serialize, Deserialize)]
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

    #[test]
    fn every_row_is_found_by_its_name_and_reads_back_all_of_its_settings() {
        for row in rows() {
            assert_eq!(named(&row.name.to_uppercase()).unwrap().name, row.name);
            assert_eq!((row.default.name(), row.default.to_string().as_str()), (&*row.name, &*row.name));
            let settings = row.default.settings();
            let names: Vec<&str> = settings.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, row.options.iter().map(|option| option.name).collect::<Vec<_>>(), "{}", row.name);
            let given: Vec<(&str, &str)> = settings.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
            assert_eq!(row.read(&given).unwrap(), row.default, "{}", row.name);
            for option in row.options.iter() {
                for nonsense in ["", "x", "nan", "inf", "-1", "1e9", "ON"] {
                    assert!(row.read(&[(option.name, nonsense)]).is_err(), "{}:{}={nonsense}", row.name, option.name);
                }
            }
        }
        assert!(named("awq").is_none());
    }

    #[test]
    fn a_registered_rounding_is_found_and_spelled_and_its_name_is_taken() {
        let options = [OptionRow { name: "loudness", values: options::Values::SHARE, about: "how loud" }];
        let row = RoundingRow::of(Silence { loudness: 0.0 }, options.to_vec(), "says nothing");
        register(row.clone()).unwrap();
        let made = named("SILENCE").unwrap().read(&[("loudness", "0.25")]).unwrap();
        assert_eq!(made.to_string(), "silence:loudness=0.25");
        assert_eq!(made.downcast::<Silence>().unwrap().loudness, 0.25);
        assert_ne!(made, row.default);
        assert_eq!(register(row.clone()), Err(RegisterError::Taken("silence".to_owned())));
        for taken in ["gptq", "awq", "smooth"] {
            let mut renamed = row.clone();
            renamed.name = taken.into();
            assert_eq!(register(renamed), Err(RegisterError::Taken(taken.to_owned())));
        }
        let mut renamed = row;
        renamed.name = "a:b".into();
        assert_eq!(register(renamed), Err(RegisterError::Name("a:b".to_owned())));
    }
}
