//! Ranges of tensors from data: a model runs over samples, observed. How a range is found from values is
//! `calibration_method`.

mod observation;
mod run;

pub use crate::calibration_method::{
    DEFAULT_PERCENTILE, Histogram, METHODS, Method, MethodRow, Seen, Settings, Statistic, UnknownMethod,
};
pub use crate::error::CalibrationError;
pub use observation::{Observation, Observed, Watched};
pub use run::{Watch, observe, sessions, watch};
