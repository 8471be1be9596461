//! Running data ([`kvant_data::calibration`]) through a model to gather statistics: [`observe`] runs them, [`resolve`] makes
//! parameters of what was seen.

mod observe;
mod report;
mod resolve;
mod statistics;
mod store;

pub(crate) use observe::ObserverHook;
pub use observe::{ObserveError, observe};
pub use report::{Filled, Report};
pub use resolve::{ResolveError, Resolved, resolve};
pub use statistics::{Statistics, StatisticsError};
pub use store::StatisticsFile;
