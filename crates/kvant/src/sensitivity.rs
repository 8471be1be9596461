//! Ranking the layers of a graph by sensitivity, and searching for a mixed-precision recipe.

use crate::cancel::CancelToken;
use crate::ending::{Stopped, concluded};
use crate::error::{Error, ErrorKind};
use crate::events::{Events, Reporter};
use crate::job::{Sensitivity, SourceKind};
use crate::onnx;
use crate::page;
use crate::paths::{self, FileKind, Paths};
use kvant_onnx::sensitivity::Outcome;

/// The result of an analysis.
pub struct SensitivityReport {
    /// The layers, and the mix.
    pub outcome: Outcome,
    /// The reason that the recipe was not written, if that failed.
    pub unwritten: Option<Error>,
}

impl Sensitivity {
    /// Measures the layers, and searches for a mix if there is a target.
    ///
    /// # Errors
    /// A model that is not a graph; errors of the graph, the recipe or the data; a target that no mix reaches.
    pub fn run(&self, events: &mut dyn Events, cancel: &CancelToken) -> Result<SensitivityReport, Error> {
        concluded(|| Stopped::StartsOver, || self.carry_out(&Reporter::new(events, cancel)))
    }

    fn carry_out(&self, reporter: &Reporter<'_>) -> Result<SensitivityReport, Error> {
        check_paths(self)?;
        if self.job.source.kind() != SourceKind::Graph {
            let error = Error::new(ErrorKind::Usage, "only the layers of ONNX graphs can be measured");
            return Err(error.with_hint(Some("`kvant eval ‹reference›` measures the damage block by block".to_owned())));
        }
        let (outcome, written) = onnx::sensitivity::run(self, reporter)?;
        let report = SensitivityReport { outcome, unwritten: written.err() };
        let page = self.job.sinks.page.as_deref();
        page::write(page, &self.job.source.model, "sensitivity", &[], || &report.outcome)?;
        Ok(report)
    }
}

fn check_paths(analysis: &Sensitivity) -> Result<(), Error> {
    let mut paths = Paths::new(analysis.overwrite, true);
    paths.reads_job(&analysis.job);
    paths.reads("the test data", analysis.test.as_deref());
    paths.writes_file("‹output›", analysis.output.as_deref(), FileKind::Recipe);
    paths.writes_page("‹report›", analysis.job.sinks.page.as_deref())?;
    let test = analysis.test.as_deref().and_then(|path| paths::data_file(SourceKind::Graph, path));
    let test = test.map(|path| ("‹eval›", path));
    paths::refuse_missing(paths::named(&analysis.job).chain(test))?;
    paths.check()
}
