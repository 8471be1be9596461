//! What can go wrong with an engine: it is not there, does not take the model, or fails while it runs.

use std::path::PathBuf;

use kvant_container::{Diagnostic, ErrorKind};

/// A problem of an engine, or of a model with it.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// ONNX Runtime was asked for and is not on this machine.
    #[error("the library of ONNX Runtime was not found; looked at {}", .0.join(", "))]
    NoLibrary(Vec<String>),
    /// A library that cannot be used.
    #[error("{} cannot be used as ONNX Runtime: {problem}", path.display())]
    Library {
        /// The file.
        path: PathBuf,
        /// The reasons against.
        problem: String,
    },
    /// The embedded engine does not compute these nodes, or not reliably.
    #[error("the embedded engine cannot run this model: {}", reasons.join("; "))]
    NotEmbedded {
        /// A line for each of some nodes.
        reasons: Vec<String>,
        /// Whether no release of ONNX Runtime that Kvant knows has one of the operators either.
        everywhere: bool,
    },
    /// The engine refused the model.
    #[error("{engine} cannot load the model: {problem}")]
    Load {
        /// The engine.
        engine: String,
        /// The engine's message.
        problem: String,
    },
    /// The engine failed while it ran the model.
    #[error("{engine} failed while running the model: {problem}")]
    Run {
        /// The engine.
        engine: String,
        /// The engine's message.
        problem: String,
    },
    /// A tensor was asked for that the graph does not have.
    #[error("the model has no tensor `{0}`")]
    UnknownTensor(String),
    /// Operators that no engine has.
    #[error("no engine runs operators of the domain {domain}: {}", nodes.join(", "))]
    Domain {
        /// The domain.
        domain: String,
        /// Some of the nodes.
        nodes: Vec<String>,
    },
    /// An input whose values the engine cannot hold.
    #[error("input `{input}`: {problem}")]
    Input {
        /// The input.
        input: String,
        /// The problem.
        problem: String,
    },
    /// A quantizing node that cannot be computed.
    #[error("{op} `{node}`: {error}")]
    Kernel {
        /// The node.
        node: String,
        /// Its operator.
        op: String,
        /// The unsupported feature.
        error: crate::kernel::KernelError,
    },
    /// The model could not be written for the engine.
    #[error(transparent)]
    File(#[from] kvant_container::Error),
}

impl Diagnostic for RuntimeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoLibrary(_)
            | Self::Library { .. }
            | Self::NotEmbedded { .. }
            | Self::Domain { .. }
            | Self::Kernel { .. } => ErrorKind::Unsupported,
            Self::File(error) => error.kind(),
            _ => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NotEmbedded { everywhere: true, .. } => {
                Some("export the model again, without the operators that no engine has")
            }
            Self::NotEmbedded { .. } => Some(
                "run it with ONNX Runtime: `pip install onnxruntime`, then `‹runtime› ort` (or name its library with ‹runtime-library›)",
            ),
            Self::NoLibrary(_) => Some(
                "`pip install onnxruntime` for the python3 on PATH, or name the library with ‹runtime-library› or ORT_DYLIB_PATH",
            ),
            Self::Library { .. } => Some("ONNX Runtime 1.18 or later is needed, built for this machine"),
            Self::Load { engine, .. } | Self::Run { engine, .. } => Some(match engine.starts_with("onnxruntime") {
                true => "the embedded engine may run it: `‹runtime› rten`",
                false => {
                    "ONNX Runtime may run it: `pip install onnxruntime`, then `‹runtime› ort` (or name its library with ‹runtime-library›)"
                }
            }),
            Self::Domain { .. } => {
                Some("export the model without them; ‹weights-only› quantizes its weights without running it")
            }
            _ => None,
        };
        hint.map(str::to_owned)
    }
}
