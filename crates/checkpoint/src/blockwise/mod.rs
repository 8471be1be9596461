//! Quantizing with calibration data, one decoder block after the other: scales are moved through the block's links
//! (`search`), its layers are rounded stage by stage (`rounding`), and what the quantized block puts out is what the next
//! one reads. One block's weights are in use at a time; the activations between two blocks lie on disk, where a run that
//! was killed finds them ([`State`]).
//!
//! Weights are not copied to be changed: what a transform does is folded in when they are read. Not the formulas, which are
//! in `kvant_quant`, nor the choice of what is quantized, which is the plan's.

mod capture;
mod codes;
mod correction;
mod error;
mod inputs;
mod loss;
mod meter;
mod nearest;
mod reached;
mod report;
mod rounding;
mod run;
mod scarcity;
mod search;
mod state;
mod streams;
mod target;
mod trial;
mod work;

pub use error::BlockwiseError;
pub use meter::{BlockProgress, BlockStage};
pub use report::{BlockwiseReport, InsufficientCalibration, LayerReport, LinkReport};
pub use run::{Propagate, Settings, Sources, run};
pub use state::{Found, State};
pub(crate) use streams::StreamShape;
