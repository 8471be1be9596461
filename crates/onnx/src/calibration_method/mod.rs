//! Ways from the values of a tensor to its range, as observers of [`kvant_quant::observer`]; and the parameters and codes of
//! weights, whose values are known. No graphs, no runs.

mod settings;
mod weight;

pub(crate) use settings::DEFAULT_PERCENTILE;
pub use settings::Settings;
pub(crate) use weight::{Channels, ScaleSearch};
pub use weight::{WeightMethod, weighed_parameters, weight_codes, weight_parameters};
