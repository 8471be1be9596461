//! Ranges of tensors from data: a model runs over samples, observed. How a range is found from values is
//! `calibration_method`.

mod kept;
mod observation;
mod run;

pub use crate::calibration_method::{Settings, WeightMethod, weight_parameters};
pub use crate::error::CalibrationError;
pub use kvant_quant::observer::ObserverRef;
pub use observation::{Observation, Observed, Watched};
pub use run::{Watch, observe, sessions, watch};
