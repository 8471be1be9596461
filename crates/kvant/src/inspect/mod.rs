//! Inspection of models: their contents, from headers and configurations alone.

mod checkpoint;
pub mod gguf;
pub mod graph;
mod listing;
mod pipeline;
mod quantization;

pub(crate) use checkpoint::headers;
pub use checkpoint::{CheckpointInspection, TypeShare};
pub use listing::GraphListing;
pub use pipeline::PipelineInspection;
pub use quantization::Quantization;

use crate::cancel::CancelToken;
use crate::error::Error;
use crate::job::SourceKind;
use crate::onnx;
use crate::paths::{MODEL, refuse_missing};
use crate::remote;
use kvant_container::gguf::{GgufFile, means_gguf};
use kvant_container::onnx::ModelProto;
use kvant_container::{Diagnostic, Pipeline};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The contents of a model.
pub enum Inspection {
    /// A checkpoint.
    Checkpoint(Box<CheckpointInspection>),
    /// A GGUF file.
    Gguf(Box<GgufFile>),
    /// An ONNX graph.
    Graph(Box<GraphInspection>),
    /// A diffusers pipeline.
    Pipeline(Box<PipelineInspection>),
}

/// Facts about a graph.
pub struct GraphInspection {
    /// Its path.
    pub path: PathBuf,
    /// The graph.
    pub model: ModelProto,
    /// The reason that Kvant would not quantize it.
    pub problem: Option<String>,
}

/// Looks at a model.
///
/// # Errors
/// Whatever is wrong with its files.
pub fn inspect(model: &Path) -> Result<Inspection, Error> {
    let opened = remote::open(model, None, &CancelToken::new())?;
    refuse_missing([(MODEL, opened.path.as_path())])?;
    remote::looked_at(&opened.path, || inspect_here(&opened.path))
}

fn inspect_here(model: &Path) -> Result<Inspection, Error> {
    if SourceKind::of(model) == SourceKind::Graph {
        let graph = onnx::read(model)?;
        let problem = kvant_onnx::graph::check(&graph).err().map(|problem| match problem.hint() {
            Some(hint) => format!("{problem}; {hint}"),
            None => problem.to_string(),
        });
        let inspection = GraphInspection { path: model.to_owned(), model: graph, problem };
        return Ok(Inspection::Graph(Box::new(inspection)));
    }
    if Pipeline::is_at(model) {
        return Ok(Inspection::Pipeline(Box::new(PipelineInspection::read(model)?)));
    }
    match means_gguf(model) {
        true => Ok(Inspection::Gguf(Box::new(GgufFile::open(model)?))),
        false => Ok(Inspection::Checkpoint(Box::new(CheckpointInspection::read(model)?))),
    }
}

impl Inspection {
    /// The inspection as an object of `docs/schemas/inspect.schema.json`, without its `schema` key and without the tensors.
    pub fn to_json(&self) -> Value {
        match self {
            Inspection::Checkpoint(found) => found.to_json(),
            Inspection::Gguf(file) => gguf::to_json(file),
            Inspection::Graph(found) => graph::to_json(&found.path, &found.model),
            Inspection::Pipeline(found) => found.to_json(),
        }
    }

    /// Each tensor as JSON; `None` of graphs and pipelines, whose object has everything.
    pub fn tensors_json(&self) -> Option<Vec<Value>> {
        match self {
            Inspection::Checkpoint(found) => Some(found.tensors_json().collect()),
            Inspection::Gguf(file) => Some(gguf::tensors_json(file).collect()),
            Inspection::Graph(_) | Inspection::Pipeline(_) => None,
        }
    }
}
