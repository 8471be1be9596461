//! Why a graph cannot be quantized as asked.

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
    Sort(#[from] crate::graph::SortError),
    /// The file system refused.
    #[error("{0}")]
    Container(#[from] kvant_container::Error),
}

impl QuantizeError {
    /// What to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Model(problem) => problem.hint(),
            Self::NotANumber { .. } => Some("the model is damaged or its training failed: such a weight has no scale"),
            Self::NoRange { .. } => Some("give calibration data that reach every branch, or exclude the node"),
            Self::NoOperator { .. } => Some("choose --form quark, whose operators need Quark's library to run"),
            Self::NothingToDo => {
                Some("see `kvant inspect` for its operators; --op-types names what shall be quantized")
            }
            Self::Sort(_) => Some("the file is damaged: export it again"),
            Self::Container(_) => None,
        }
    }
}
