//! The trait of what changes weights before they are rounded, and the transforms that come with Kvant.

use super::problem::{Measure, PairError, PairProblem, PairScales};
use super::{Clip, auto_smooth_quant, awq, smooth_quant};
use crate::options::{OptionRow, Settings};
use crate::registry::AlgorithmRow;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A way to change weights before they are rounded, with its settings: scales for each smoothing pair, then clipping thresholds.
///
/// Implementations are deterministic at any number of threads. They know no models: which layers are paired, and how scales are folded
/// into them, is decided by those who ask. To be asked for by name, they are registered with `algorithm::register`.
pub trait Transform: Any + fmt::Debug + Send + Sync {
    /// The name under which it is registered.
    fn name(&self) -> &str;

    /// All of its settings: with the name they decide the result, and whether a run can be resumed. Of a struct with `serde`:
    /// [`options::shown`](crate::options::shown).
    fn settings(&self) -> Settings {
        Settings::new()
    }

    /// The input statistics that it needs.
    fn needs(&self) -> Needs;

    /// About how many scales it [tries](PairProblem::loss) on each smoothing pair.
    fn trials(&self) -> u32 {
        0
    }

    /// How its scales are judged where few tokens speak for them.
    fn measure(&self) -> Measure {
        Measure::DEFAULT
    }

    /// Finds the scales of a pair.
    ///
    /// # Errors
    /// [`PairError::Unscaled`] with the reason why the pair stays as it is. Errors of the problem are passed on.
    fn find(&self, pair: &mut dyn PairProblem) -> Result<PairScales, PairError>;

    /// The search of clipping thresholds that follows once all scales are found, if any.
    fn clip(&self) -> Option<Clip> {
        None
    }

    /// Its name in AMD Quark's `algo_config`, if Quark has it.
    fn quark_name(&self) -> Option<&'static str> {
        None
    }
}

/// The input statistics that a transform needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Their largest magnitudes.
    Maxima,
    /// Their largest magnitudes, and runs of what the layer belongs to.
    MaximaAndRuns,
    /// Their mean magnitudes, runs of what the layer belongs to, and samples of inputs.
    MeansRunsAndSamples,
}

/// A transform of any kind, as recipes hold it. Equal are transforms of the same name and settings.
#[derive(Clone)]
pub struct AnyTransform(Arc<dyn Transform>);

impl<T: Transform> From<T> for AnyTransform {
    fn from(transform: T) -> AnyTransform {
        AnyTransform(Arc::new(transform))
    }
}

impl Deref for AnyTransform {
    type Target = dyn Transform;

    fn deref(&self) -> &(dyn Transform + 'static) {
        self.0.as_ref()
    }
}

impl PartialEq for AnyTransform {
    fn eq(&self, other: &AnyTransform) -> bool {
        self.name() == other.name() && self.settings() == other.settings()
    }
}

impl fmt::Debug for AnyTransform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A transform that can be selected by name.
pub type TransformRow = AlgorithmRow<AnyTransform>;

impl TransformRow {
    /// A row for a transform whose settings are its own fields, with `serde`. `default` has the default settings.
    pub fn of<T: Transform + Serialize + DeserializeOwned + Clone>(
        default: T,
        options: impl Into<Cow<'static, [OptionRow]>>,
        about: impl Into<Cow<'static, str>>,
    ) -> TransformRow {
        TransformRow::of_settings(default.name().to_owned(), about, options, default, AnyTransform::from)
    }
}

/// One row for each transform that comes with Kvant.
pub(crate) fn built_in() -> Vec<TransformRow> {
    vec![smooth_quant::row(), auto_smooth_quant::row(), awq::row()]
}
