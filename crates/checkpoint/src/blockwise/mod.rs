//! Quantizing with calibration data, one decoder block after the other: scales are moved through the block's smoothing pairs
//! (`search`), its layers are rounded subset by subset (`rounding`), what was chosen may be tuned (`tuning`), and the output of the quantized block is the input of the next
//! one. One block's weights are in use at a time; the activations between two blocks are on disk, from which a killed run
//! resumes ([`State`]).
//!
//! Weights are not modified in memory: transforms are applied when they are read. Not the formulas, which are
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
mod tuning;
mod work;

pub use error::BlockwiseError;
pub use meter::{BlockProgress, BlockStage};
pub(crate) use nearest::nearest;
pub use report::{BlockwiseReport, InsufficientCalibration, LayerReport, LinkReport, TuningReport};
pub use run::{Propagate, Settings, Sources, run};
pub use state::{BlockResults, State};
pub(crate) use streams::StreamShape;
