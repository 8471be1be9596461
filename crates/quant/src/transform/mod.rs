//! Transforms: scales per channel that move difficulty between a weight's columns and what feeds it, and limits of weights.
//! They change no function of the float model (limits aside) and are found before weights are rounded. Formulas and searches
//! on slices: not which layers are paired, not how scales are folded into a model, and not the runs that give losses.

mod algorithm;
mod auto_smooth_quant;
mod awq;
mod candidates;
mod clip;
mod clip_search;
mod error;
mod gram;
mod loss;
mod problem;
mod smooth_quant;
mod statistic;

pub(crate) use algorithm::built_in;
pub use algorithm::{AnyTransform, Needs, Transform, TransformRow};
pub use auto_smooth_quant::AutoSmoothQuant;
pub use awq::Awq;
pub use candidates::{Candidate, Candidates, best};
pub use clip::{Clip, Clipping};
pub use clip_search::GroupClipping;
pub use error::TransformError;
pub use loss::Loss;
pub use problem::{Measure, PairError, PairProblem, PairScales, search};
pub use smooth_quant::SmoothQuant;
pub use statistic::{ChannelStatistic, WeightStatistic};
