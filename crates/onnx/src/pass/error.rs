//! Errors of rewriting a graph.

use kvant_container::{Diagnostic, ErrorKind};

use super::ALL;
use crate::graph::GraphError;

/// A pass that cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// There is no pass of this name.
    #[error("there is no pass `{}`{}", .name.escape_debug(), Suggestion(*.near))]
    Unknown {
        /// The request.
        name: String,
        /// The name that is nearest to it, if one is near.
        near: Option<&'static str>,
    },
    /// The model's graph is not sound.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// An operator that a newer opset has no words for.
    #[error("node `{}` ({}) cannot be converted to opset {to}: {reason}", .node.escape_debug(), .operator.escape_debug())]
    Opset {
        /// Its operator.
        operator: String,
        /// The node.
        node: String,
        /// The opset asked for.
        to: i64,
        /// What stands against it.
        reason: &'static str,
    },
    /// New weights cannot be kept.
    #[error(transparent)]
    Container(#[from] kvant_container::Error),
}

struct Suggestion(Option<&'static str>);

impl std::fmt::Display for Suggestion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |near| write!(f, "; did you mean `{near}`?"))
    }
}

impl PassError {
    pub(super) fn unknown(name: &str) -> Self {
        // What is as long as this is near to nothing, and not worth the time.
        let wanted: String = name.chars().take(100).collect();
        let best = ALL.iter().map(|pass| (strsim::levenshtein(&wanted, pass.name), pass.name)).min();
        let near = best.filter(|(distance, near)| *distance <= near.len() / 3).map(|(_, near)| near);
        Self::Unknown { name: name.to_owned(), near }
    }
}

impl Diagnostic for PassError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Unknown { .. } => ErrorKind::Invalid,
            Self::Opset { .. } => ErrorKind::Unsupported,
            Self::Graph(error) => error.kind(),
            Self::Container(error) => error.kind(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Unknown { .. } => Some("`kvant list passes` shows all".to_owned()),
            Self::Opset { .. } => Some("export the model with the newer opset".to_owned()),
            Self::Graph(error) => error.hint(),
            Self::Container(error) => error.hint(),
        }
    }
}
