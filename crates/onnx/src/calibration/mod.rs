//! Ranges of tensors from data: statistics that see one sample at a time and keep memory for none of them.
//!
//! Adding a method: one file with its [`Statistic`], one row in [`METHODS`], one arm in [`Settings::start`].

mod automatic;
mod distribution;
mod entropy;
mod histogram;
mod layerwise_percentile;
mod method;
mod min_max;
mod min_mse;
mod observation;
mod percentile;
mod run;

pub use histogram::Histogram;
pub use method::{DEFAULT_PERCENTILE, METHODS, Method, MethodRow, Seen, Settings, Statistic, UnknownMethod};
pub(crate) use min_mse::candidates;
pub use observation::{Observation, Observed, Watched};
pub use run::{CalibrationError, Watch, observe, sessions, watch};
