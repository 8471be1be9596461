//! The request to verify a model.

use super::GraphEngine;
use std::path::PathBuf;

/// A check of a finished model, without a GPU and without its loader.
#[derive(Clone, Debug)]
pub struct Verification {
    /// A Hugging Face directory, a `.safetensors` or `.gguf` file, or an ONNX graph.
    pub model: PathBuf,
    /// The loader whose rules alone decide.
    pub loader: Option<String>,
    /// The number of GPUs that the model must be split across.
    pub tensor_parallel: Option<u16>,
    /// Whether headers and configurations alone are read.
    pub quick: bool,
    /// Whether the nodes of a graph are listed that quantize and dequantize still when ONNX Runtime has optimized it.
    pub fusions: bool,
    /// The engine that opens graphs.
    pub engine: GraphEngine,
}

impl Verification {
    /// A check of everything, by all loaders.
    pub fn new(model: impl Into<PathBuf>) -> Verification {
        let engine = GraphEngine::default();
        Verification { model: model.into(), loader: None, tensor_parallel: None, quick: false, fusions: false, engine }
    }
}
