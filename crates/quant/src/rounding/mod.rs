//! Choices of codes: what a rounding is asked ([`LayerProblem`]), the trait ([`Rounding`]) and the roundings that can be asked for
//! by name ([`rows`], [`register`]). Every rounding makes a [`QuantTensor`](crate::QuantTensor).

mod algorithm;
pub(crate) mod batch;
mod gptq;
mod hqq;
mod nearest;
mod problem;
mod reconstruction;
mod rtn;
mod tiles;
mod weights;

pub use algorithm::{AnyRounding, Rounding, RoundingRow, named, register, rows};
pub use gptq::{ColumnOrder, Damping, Gptq, GptqFactors, Groups, OrderError, Rounded, Variant};
pub use hqq::Hqq;
pub use nearest::{Nearest, nearest};
pub use problem::{Grid, LayerError, LayerProblem, Needs, RoundedLayer, SampleError, SharedInputs};
pub use reconstruction::{AdaQuant, AdaRound, Span};
pub use rtn::{RoundingError, Rtn, Scratch, TensorContext};
pub use weights::Weights;
