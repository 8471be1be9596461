//! Running data ([`kvant_data::calibration`]) through a model to gather statistics: [`observe`] runs them, [`resolve`] makes
//! parameters of what was seen.

mod error;
mod observe;
mod report;
mod resolve;
mod statistics;
mod store;

pub use error::CalibrationError;
pub(crate) use observe::ObserverHook;
pub use observe::observe;
pub use report::{Filled, Report};
pub(crate) use resolve::resolve_points;
pub use resolve::{Resolved, resolve};
pub use statistics::Statistics;
pub use store::StatisticsFile;
