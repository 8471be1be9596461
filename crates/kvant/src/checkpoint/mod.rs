//! Quantizing and converting checkpoints.

pub mod convert;
pub mod fate;
pub mod outputs;
pub mod plan;
pub mod planning;
pub mod quantize;
mod warnings;
pub mod worker;

pub use convert::CheckpointConversion;
pub use plan::CheckpointPlan;
