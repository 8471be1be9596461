//! The result of a run, as values and as JSON.

use crate::checkpoint::quantize::CheckpointReport;
use crate::checkpoint::worker::PartReport;
use crate::error::Error;
use crate::gguf::quantize::GgufReport;
use crate::onnx::quantize::GraphReport;
use crate::pipeline::PipelineReport;
use serde_json::Value;
use std::path::Path;

/// The result of a job.
pub enum Report {
    /// A checkpoint, or outputs derived from one.
    Checkpoint(Box<CheckpointReport>),
    /// A GGUF file.
    Gguf(Box<GgufReport>),
    /// An ONNX graph.
    Graph(Box<GraphReport>),
    /// A diffusers pipeline.
    Pipeline(Box<PipelineReport>),
    /// The part of one of several workers, of an output that is not complete.
    Part(Box<PartReport>),
}

impl Report {
    /// The outputs that have their names now, the first one first.
    pub fn outputs(&self) -> Vec<&Path> {
        match self {
            Report::Checkpoint(report) => report.delivered.all().map(|output| output.path.as_path()).collect(),
            Report::Gguf(report) => vec![&report.output],
            Report::Graph(report) if report.written => {
                report.graphs.iter().map(|graph| graph.output.as_path()).collect()
            }
            Report::Graph(_) | Report::Part(_) => Vec::new(),
            Report::Pipeline(report) => vec![&report.output],
        }
    }

    /// The reason of a rejection: the measured quality is below the requested limit. Nothing is written then.
    pub fn rejection(&self) -> Option<&Error> {
        match self {
            Report::Graph(report) => report.rejection.as_ref(),
            _ => None,
        }
    }

    /// The report as an object of `docs/schemas/quantize.schema.json`, without its `schema` key.
    pub fn to_json(&self) -> Value {
        match self {
            Report::Checkpoint(report) => report.to_json(),
            Report::Gguf(report) => report.to_json(),
            Report::Graph(report) => report.to_json(),
            Report::Pipeline(report) => report.to_json(),
            Report::Part(report) => report.to_json(),
        }
    }
}
