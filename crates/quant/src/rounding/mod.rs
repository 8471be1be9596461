//! Choices of codes. Round to nearest is the first; every rounding makes a [`QuantTensor`](crate::QuantTensor).

pub(crate) mod batch;
mod choice;
mod gptq;
mod rtn;
mod tiles;
mod weights;

pub use choice::{Needs, Rounding, RoundingRow};
pub use gptq::{ColumnOrder, Damping, Feedback, Gptq, Groups, OrderError, Rounded, Variant};
pub use rtn::{RoundingError, Rtn, Scratch, TensorContext};
pub use weights::Weights;
