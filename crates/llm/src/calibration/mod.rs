//! Running data through a model to gather statistics.

pub mod data;
