//! The request to analyse the sensitivity of a graph.

use super::Job;
use kvant_onnx::sensitivity::{Candidate, Target};
use std::path::PathBuf;

/// A sensitivity analysis of an ONNX graph.
#[derive(Clone, Debug)]
pub struct Sensitivity {
    /// The graph, the recipe, and the calibration data. Its sinks are ignored.
    pub job: Job,
    /// Samples to measure models on; `None` is the calibration data.
    pub test: Option<PathBuf>,
    /// Their number.
    pub test_samples: usize,
    /// The array of the test data with the class of each sample.
    pub labels: Option<String>,
    /// Types to choose from; empty is what suits the recipe.
    pub candidates: Vec<Candidate>,
    /// The target of the search; without one there is no search.
    pub target: Option<Target>,
    /// Whether all layers but one are measured too.
    pub leave_one_out: bool,
    /// The recipe to write.
    pub output: Option<PathBuf>,
    /// Whether a recipe that exists is replaced.
    pub overwrite: bool,
}
