//! Why a graph cannot be quantized as asked.

use kvant_container::ErrorKind;
use kvant_container::onnx::OnnxError;

/// A failure of a run, with the tensor or node it is about.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// The file is wrong.
    #[error("{0}")]
    Model(#[from] OnnxError),
    /// A weight is not a number.
    #[error("the weight `{tensor}` has NaN at element {position}")]
    NotANumber {
        /// The weight.
        tensor: String,
        /// Where.
        position: usize,
    },
    /// No data came by a tensor that needs a range.
    #[error("no calibration sample gave a value of the tensor `{tensor}`")]
    NoRange {
        /// The tensor.
        tensor: String,
    },
    /// An element type cannot be written in the form that is asked for.
    #[error("{element} activations have no {form} operator")]
    NoOperator {
        /// The element type.
        element: String,
        /// The form.
        form: &'static str,
    },
    /// Nothing in the graph is quantized by the recipe.
    #[error("no node of the model is quantized by this recipe")]
    NothingToDo,
    /// The nodes do not make a graph.
    #[error("{0}")]
    Graph(#[from] crate::graph::GraphError),
    /// A rewrite of the graph failed.
    #[error("{0}")]
    Pass(#[from] crate::pass::PassError),
    /// The file system refused.
    #[error("{0}")]
    Container(#[from] kvant_container::Error),
}

impl QuantizeError {
    /// Whose fault it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Model(problem) => problem.kind(),
            Self::Graph(problem) => problem.kind(),
            Self::Pass(problem) => problem.kind(),
            Self::Container(problem) => problem.kind(),
            Self::NoOperator { .. } => ErrorKind::Unsupported,
            Self::NotANumber { .. } | Self::NoRange { .. } | Self::NothingToDo => ErrorKind::Invalid,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Model(problem) => return problem.hint().map(str::to_owned),
            Self::Graph(problem) => problem.hint(),
            Self::Pass(problem) => return problem.hint(),
            Self::Container(problem) => return problem.hint(),
            Self::NotANumber { .. } => "the model is damaged or its training failed: such a weight has no scale",
            Self::NoRange { .. } => "give calibration data that reach every branch, or exclude the node",
            Self::NoOperator { .. } => "choose --form quark, whose operators need Quark's library to run",
            Self::NothingToDo => "see `kvant inspect` for its operators; --op-types names what shall be quantized",
        };
        Some(hint.to_owned())
    }
}
