//! Choices of codes: what a rounding is asked ([`LayerProblem`]), the trait ([`Rounding`]) and the roundings that come with
//! Kvant. Every rounding makes a [`QuantTensor`](crate::QuantTensor).

mod algorithm;
mod bands;
pub(crate) mod batch;
mod gptq;
mod hqq;
mod latent;
mod nearest;
mod parallel;
mod problem;
mod reconstruction;
mod rtn;
mod steps;
mod tiles;
mod tuned;
mod value_grid;
mod weights;

pub(crate) use algorithm::built_in;
pub use algorithm::{AnyRounding, Rounding, RoundingRow};
pub use bands::nearest_in_bands;
pub use gptq::{ColumnOrder, Damping, Gptq, GptqFactors, Groups, Rounded, Variant};
pub use hqq::Hqq;
pub use latent::LatentWeight;
pub use nearest::{Nearest, nearest};
pub use problem::{Grid, LayerError, LayerProblem, Needs, RoundedLayer, SampleError, SharedInputs};
pub use reconstruction::{AdaQuant, AdaRound, Span, Training};
pub use rtn::{RoundingError, Rtn, Scratch, TensorContext};
pub use tuned::{TunedParts, TunedWeight, TuningRates};
pub use weights::Weights;
