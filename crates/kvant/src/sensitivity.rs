//! Ranking the layers of a graph by sensitivity, and searching for a mixed-precision recipe.

use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind};
use crate::events::{Events, Reporter};
use crate::job::{Job, SourceKind};
use crate::onnx;
use crate::outputs;
use kvant_onnx::sensitivity::{Candidate, Outcome, Target};
use std::path::PathBuf;

/// A sensitivity analysis of an ONNX graph.
#[derive(Clone, Debug)]
pub struct Sensitivity {
    /// The graph, the recipe, and the calibration data. Its sinks are ignored.
    pub job: Job,
    /// Samples to measure models on; `None` is the calibration data.
    pub test: Option<PathBuf>,
    /// How many of them.
    pub test_samples: usize,
    /// The array of the test data with the class of each sample.
    pub labels: Option<String>,
    /// Types to choose from; empty is what suits the recipe.
    pub candidates: Vec<Candidate>,
    /// What the mix must reach; without one no mix is looked for.
    pub target: Option<Target>,
    /// Whether all layers but one are measured too.
    pub leave_one_out: bool,
    /// The recipe to write.
    pub output: Option<PathBuf>,
    /// Whether a recipe that exists is replaced.
    pub overwrite: bool,
}

/// What an analysis found.
pub struct SensitivityReport {
    /// The layers, and the mix.
    pub outcome: Outcome,
    /// Why the recipe was not written, where that failed.
    pub unwritten: Option<Error>,
}

impl Sensitivity {
    /// Measures the layers, and searches for a mix if there is a target.
    ///
    /// # Errors
    /// A model that is no graph; whatever is wrong with the graph, the recipe or the data; a target that no mix reaches.
    pub fn run(&self, events: &mut dyn Events, cancel: &CancelToken) -> Result<SensitivityReport, Error> {
        outputs::check_sensitivity(self)?;
        if self.job.source.kind() != SourceKind::Graph {
            let error = Error::new(ErrorKind::Usage, "layers are measured of ONNX graphs only");
            return Err(error.with_hint(Some("`kvant eval ‹reference›` measures the damage block by block".to_owned())));
        }
        let reporter = Reporter::new(events, cancel);
        let (outcome, written) = onnx::sensitivity::run(self, &reporter)?;
        Ok(SensitivityReport { outcome, unwritten: written.err() })
    }
}
