//! Running data through a model to gather statistics.

pub mod data;
mod report;
mod resolve;
mod statistics;

pub use report::{Filled, Report};
pub use resolve::{Parameters, ResolveError, Resolved, resolve};
pub use statistics::{Statistics, StatisticsError};
