//! Observers: from the values of a tensor to the range that its codes cover. Not the scale that follows, which is in
//! [`crate::parameters`].
//!
//! An observer states the statistics it needs ([`Needs`]): their range, an average of the ranges of batches,
//! a histogram, moments, or a sample of the values. All of these are updated batch by batch in bounded memory and merge:
//! parts of the data give the same result as the whole. From these statistics ([`ObservedValues`]) and the rounding under a range
//! ([`Grid`]), the observer finds the range.
//!
//! The set is open. An observer of Kvant is one file here and a row in [`OBSERVERS`]; a user of the library
//! [registers](register) its own row, whose name schemes and recipes then accept:
//!
//! ```
//! use kvant_numeric::kernel::Range;
//! use kvant_numeric::simd::Isa;
//! use kvant_quant::activation::ActivationStatistic;
//! use kvant_quant::observer::{self, Grid, Needs, Observer, ObserverRow, ObservedValues};
//! use kvant_quant::scheme::ActivationScheme;
//!
//! /// So many standard deviations about the mean, within the range of the values.
//! #[derive(Debug)]
//! struct Deviations(f64);
//!
//! impl Observer for Deviations {
//!     fn spelling(&self) -> String {
//!         format!("deviations{}", self.0)
//!     }
//!
//!     fn needs(&self, _: &dyn Grid) -> Needs {
//!         Needs::MOMENTS
//!     }
//!
//!     fn range(&self, seen: &ObservedValues<'_>, _: &dyn Grid) -> Range {
//!         let (moments, full) = (seen.moments(), seen.range());
//!         let reach = self.0 * moments.deviation();
//!         Range {
//!             min: full.min.max((moments.mean() - reach) as f32),
//!             max: full.max.min((moments.mean() + reach) as f32),
//!         }
//!     }
//! }
//!
//! observer::register(ObserverRow {
//!     name: "deviations",
//!     aliases: &[],
//!     example: "deviations4",
//!     about: "so many standard deviations about the mean",
//!     make: |settings| Some(Box::new(Deviations(settings.parse().ok().filter(|n| *n > 0.0)?))),
//! })?;
//!
//! let scheme: ActivationScheme = "int8:tensor:deviations2!static".parse()?;
//! let mut statistic = ActivationStatistic::new(scheme)?;
//! let mut values = vec![1.0, -1.0].repeat(1000);
//! values.push(50.0);
//! statistic.update(Isa::best(), &values, 1);
//! let range = statistic.range().map(|range| range.max);
//! let covered = statistic.ranges(scheme.scheme, kvant_numeric::ComputeDType::F32).map(|ranges| ranges[0].max);
//! assert_eq!(range, Some(50.0));
//! assert!(covered < Some(4.0), "{covered:?}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod automatic;
mod distribution;
mod entropy;
mod graph_statistic;
mod grid;
mod growing;
mod histogram;
mod kept;
mod layerwise_percentile;
mod min_max;
mod moments;
mod moving_average;
mod mse;
mod non_overflow;
mod percentile;
mod registry;
mod sample;
mod sample_view;
mod search;
mod seen;

pub use graph_statistic::GraphStatistic;
pub use grid::Grid;
pub use histogram::{Bin, Histogram};
pub(crate) use kept::Kept;
pub use kept::Needs;
pub use moments::Moments;
pub(crate) use moving_average::MovingRange;
pub use moving_average::{Averaging, Decay};
pub use mse::scale_candidates;
pub use percentile::Percentile;
pub use registry::{OBSERVERS, ObserverRef, ObserverRow, UnknownObserver, observers, register};
pub use sample::Sample;
pub use sample_view::SampleView;
pub use seen::ObservedValues;

use kvant_numeric::DType;
use kvant_numeric::kernel::Range;
use std::fmt;

/// A way from the values of a tensor to the range that its codes cover.
///
/// The same values give the same range for any number of threads and any split into parts.
pub trait Observer: fmt::Debug + Send + Sync {
    /// The spelling, settings included, from which the registry makes the same observer: `percentile99.9`.
    fn spelling(&self) -> String;

    /// The statistics needed besides the range.
    fn needs(&self, grid: &dyn Grid) -> Needs {
        let _ = grid;
        Needs::RANGE
    }

    /// The reason that the observer does not support such a tensor; `None` if it does.
    fn refusal(&self, tensor: &ObservedTensor) -> Option<&'static str> {
        let _ = tensor;
        None
    }

    /// The range to cover.
    fn range(&self, seen: &ObservedValues<'_>, grid: &dyn Grid) -> Range;

    /// The range, and by which observer it was found where this one tries several.
    fn find(&self, seen: &ObservedValues<'_>, grid: &dyn Grid) -> Found {
        Found { range: self.range(seen, grid), chosen: None }
    }
}

/// The result of an observer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// The range to cover.
    pub range: Range,
    /// The name of the observer that lost least, where several were tried.
    pub chosen: Option<&'static str>,
}

/// A tensor whose range will be observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedTensor {
    /// Whether it is a weight, whose values are all there at once. Activations come batch by batch.
    pub is_weight: bool,
    /// The dtype of its codes.
    pub dtype: DType,
    /// Whether its scales are powers of two.
    pub has_power_of_two_scales: bool,
    /// The values that share a scale.
    pub shared_by: SharedBy,
}

/// The values that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedBy {
    /// All of a tensor.
    Tensor,
    /// All values of a channel, a token or a feature.
    Channel,
    /// All values of a group or a block.
    Group,
}

/// The observers of schemes without one.
impl Default for ObserverRef {
    fn default() -> ObserverRef {
        ObserverRef::MIN_MAX
    }
}
