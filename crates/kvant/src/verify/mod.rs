//! Checking that a quantized model from any tool is valid and loadable.

mod pipeline;

pub use pipeline::PipelineVerdict;

use crate::ending::concluded_reading;
use crate::error::{Error, ErrorKind};
use crate::findings::failing;
use crate::job::{SourceKind, Verification};
use crate::json::path as path_json;
use crate::onnx::{self, verify::GraphVerdict};
use crate::paths::{MODEL, refuse_missing};
use crate::text::shown;
use kvant_formats::verify::{LoaderSupport, Options, Reads, Reason, Report, loaders, verify};
use serde_json::{Value, json};

/// The findings of a model.
pub enum VerificationReport {
    /// A checkpoint or a GGUF file.
    Checkpoint(Box<CheckpointVerdict>),
    /// An ONNX graph.
    Graph(Box<GraphVerdict>),
    /// A diffusers pipeline.
    Pipeline(Box<PipelineVerdict>),
}

/// The findings of a checkpoint or a GGUF file.
pub struct CheckpointVerdict {
    /// Findings, and what each loader says.
    pub report: Report,
    loader: Option<String>,
    tensor_parallel: Option<u16>,
}

impl Verification {
    /// Checks the model.
    ///
    /// # Errors
    /// Errors of reading it. A model that does not pass is not an error: see [`VerificationReport::passes`].
    pub fn run(&self) -> Result<VerificationReport, Error> {
        concluded_reading(|| self.carry_out())
    }

    fn carry_out(&self) -> Result<VerificationReport, Error> {
        refuse_missing([(MODEL, self.model.as_path())])?;
        if SourceKind::of(&self.model) == SourceKind::Graph {
            return Ok(VerificationReport::Graph(Box::new(onnx::verify::run(self)?)));
        }
        if self.fusions {
            let failure = Error::new(ErrorKind::Usage, "‹fusions› applies to ONNX graphs only");
            return Err(failure.with_hint(Some("leave it out".to_owned())));
        }
        let loader = self.loader.as_deref().and_then(|id| loaders().iter().find(|loader| loader.id == id));
        let options = Options {
            needs_loader: true,
            reads: if self.quick { Reads::Headers } else { Reads::Weights },
            loader: loader.map(|loader| loader.id.as_str()),
            tensor_parallel: self.tensor_parallel.map(usize::from),
        };
        if SourceKind::of(&self.model) == SourceKind::Pipeline {
            let verdict = pipeline::run(&self.model, &options)?;
            return Ok(VerificationReport::Pipeline(Box::new(verdict)));
        }
        let report = verify(&self.model, &options)?;
        let (loader, tensor_parallel) = (self.loader.clone(), self.tensor_parallel);
        Ok(VerificationReport::Checkpoint(Box::new(CheckpointVerdict { report, loader, tensor_parallel })))
    }
}

impl VerificationReport {
    /// Returns whether the model passes: all checks, or the requested loader alone.
    pub fn passes(&self) -> bool {
        match self {
            VerificationReport::Checkpoint(verdict) => verdict.report.passes(),
            VerificationReport::Graph(verdict) => verdict.passes(),
            VerificationReport::Pipeline(verdict) => verdict.passes(),
        }
    }

    /// The reason that the model does not pass.
    pub fn problem(&self) -> String {
        match self {
            VerificationReport::Checkpoint(verdict) => verdict.problem(),
            VerificationReport::Graph(verdict) => verdict.problem(),
            VerificationReport::Pipeline(verdict) => verdict.problem(),
        }
    }

    /// The report as an object of `docs/schemas/verify.schema.json`, without its `schema` key.
    pub fn to_json(&self) -> Value {
        match self {
            VerificationReport::Checkpoint(verdict) => verdict.to_json(),
            VerificationReport::Graph(verdict) => verdict.to_json(),
            VerificationReport::Pipeline(verdict) => verdict.to_json(),
        }
    }
}

impl CheckpointVerdict {
    pub(crate) fn of(report: Report, loader: Option<&str>, tensor_parallel: Option<usize>) -> CheckpointVerdict {
        let tensor_parallel = tensor_parallel.and_then(|ways| u16::try_from(ways).ok());
        CheckpointVerdict { report, loader: loader.map(str::to_owned), tensor_parallel }
    }

    /// The requested loader, by its id.
    pub fn loader(&self) -> Option<&str> {
        self.loader.as_deref()
    }

    pub(crate) fn problem(&self) -> String {
        let path = shown(&self.report.path);
        let asked = self.loader.as_deref().and_then(|id| self.report.verdicts.iter().find(|verdict| verdict.id == id));
        match asked.filter(|_| !self.report.is_nonsense()) {
            Some(verdict) => format!("{path} does not load in {}: {}", verdict.loader, self.why_not(verdict)),
            None => failing(&path.to_string(), &self.report.findings),
        }
    }

    fn why_not(&self, verdict: &LoaderSupport) -> String {
        match (verdict.reasons.first(), self.tensor_parallel) {
            (Some(reason), _) => in_words(reason),
            (None, Some(ways)) => format!("it cannot be split across {ways} devices"),
            (None, None) => "its rules do not say why".to_owned(),
        }
    }

    fn to_json(&self) -> Value {
        let report = &self.report;
        json!({
            "model": path_json(&report.path),
            "passes": report.passes(),
            "family": report.family,
            "method": report.method,
            "tensors": report.tensors,
            "quantized_layers": report.quantized_layers,
            "findings": report.findings,
            "loaders": report.verdicts,
        })
    }
}

/// A reason of a loader in words.
pub(crate) fn in_words(reason: &Reason) -> String {
    match reason.more {
        0 => format!("{}: {}", reason.place, reason.reason),
        more => format!("{} and {more} more: {}", reason.place, reason.reason),
    }
}
