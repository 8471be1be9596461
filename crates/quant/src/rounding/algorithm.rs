//! The trait of what chooses codes, and the roundings that come with Kvant.

use super::gptq::rows as gptq_rows;
use super::nearest::Nearest;
use super::problem::{LayerError, LayerProblem, Needs, RoundedLayer, SharedInputs};
use super::{hqq, reconstruction};
use crate::hessian::HessianError;
use crate::options::{self, OptionRow, Settings};
use crate::registry::AlgorithmRow;
use crate::scheme::TensorScheme;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A way to choose the codes of a layer, with its settings.
///
/// Implementations are deterministic at any number of threads, poll [`LayerProblem::check_cancelled`], and may use
/// rayon's current pool. They know no packing and no files. To be asked for by name, they are
/// registered with `algorithm::register`.
pub trait Rounding: Any + fmt::Debug + Send + Sync {
    /// The name under which it is registered.
    fn name(&self) -> &str;

    /// All of its settings: with the name they decide the result, and whether a run can be resumed. Of a struct with `serde`:
    /// [`options::shown`].
    fn settings(&self) -> Settings {
        Settings::new()
    }

    /// The input statistics that it needs.
    fn needs(&self) -> Needs;

    /// Prepares what layers with the same input share, and checks whether their sums are usable.
    ///
    /// # Errors
    /// If they do not suffice: the layers are then rounded to nearest. Non-finite sums end the run.
    fn prepare(&self, inputs: &SharedInputs) -> Result<(), HessianError> {
        inputs.hessian.check()
    }

    /// Chooses the codes.
    ///
    /// # Errors
    /// Failures that end the run. A layer that cannot be improved is not an error: its nearest codes are used.
    fn round(&self, problem: &mut LayerProblem<'_>) -> Result<RoundedLayer, LayerError>;

    /// The reason that it does not support weights of a scheme, if so.
    fn refuses(&self, scheme: &TensorScheme) -> Option<&'static str> {
        let _ = scheme;
        None
    }

    /// The same for layers that fewer tokens have reached than they have inputs, where it has a safer way then.
    fn for_few_tokens(&self, tokens: u64, inputs: usize) -> Option<AnyRounding> {
        let _ = (tokens, inputs);
        None
    }

    /// An upper estimate of its memory for a weight of `rows` and `features` columns, besides the Hessian and the weight.
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

    /// A requested setting that only graphs support, if any.
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

    /// Returns whether it is round to nearest.
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

/// A rounding that can be selected by name.
pub type RoundingRow = AlgorithmRow<AnyRounding>;

impl RoundingRow {
    /// A row for a rounding whose settings are its fields, with `serde`. `default` has the default settings.
    pub fn of<R: Rounding + Serialize + DeserializeOwned + Clone>(
        default: R,
        options: impl Into<Cow<'static, [OptionRow]>>,
        about: impl Into<Cow<'static, str>>,
    ) -> RoundingRow {
        RoundingRow::of_settings(default.name().to_owned(), about, options, default, AnyRounding::from)
    }
}

/// One row for each rounding that comes with Kvant.
pub(crate) fn built_in() -> Vec<RoundingRow> {
    let nearest =
        RoundingRow::new("rtn", "round to nearest; needs no data", &[][..], AnyRounding::nearest(), |given| {
            options::read("rtn", &[], &Map::default(), given).map(|_| AnyRounding::nearest())
        });
    std::iter::once(nearest).chain([hqq::row()]).chain(gptq_rows()).chain(reconstruction::rows()).collect()
}

/// Settings of a rounding without any.
type Map = std::collections::BTreeMap<String, String>;
