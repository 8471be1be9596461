//! Ways from the values of a tensor to its range: statistics that see one sample at a time and keep memory for none of them; and
//! the parameters and codes of weights, whose values are known. No graphs, no runs.
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
mod percentile;
mod weight;

pub use histogram::Histogram;
pub use method::{DEFAULT_PERCENTILE, METHODS, Method, MethodRow, Seen, Settings, Statistic, UnknownMethod};
pub(crate) use weight::Channels;
pub use weight::{WeightMethod, weight_codes, weight_parameters};
