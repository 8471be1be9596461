//! Which layers quantization hurts, and the cheapest mix of types that is good enough.
//!
//! [`Bench`] measures assignments of types to layers on held-out samples: the float model runs over the calibration data once for
//! each candidate, so that no assignment needs another pass. [`sensitivities`] quantizes one layer at a time, [`search`] raises layers,
//! those first that win most for what they cost, until a [`Target`] is met by the whole model. The result is a list of overrides:
//! a recipe.

mod bench;
mod candidate;
mod error;
mod layer;
mod order;
mod report;
mod search;
mod target;
#[cfg(test)]
mod tests;

pub use bench::{Bench, Data, Watch, plan};
pub use candidate::{Candidate, candidates};
pub use error::SensitivityError;
pub use layer::Layer;
pub use order::{Widening, widenings};
pub use report::{Outcome, Row};
pub use search::{search, sensitivities};
pub use target::{Size, Target};
