//! Defects of a model's structure.

use kvant_quant::counts::number;
use std::fmt;

use kvant_container::{Diagnostic, ErrorKind};

/// Longest name quoted in an error, in characters.
const LONGEST: usize = 120;

/// A name from a file, safe to print: escaped and shortened.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short: String = self.0.chars().take(LONGEST).flat_map(char::escape_debug).collect();
        let more = if self.0.chars().nth(LONGEST).is_some() { "..." } else { "" };
        write!(f, "`{short}{more}`")
    }
}

/// A malformed model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// Nodes use a domain of operators whose version the model does not say.
    #[error("the model does not say which version of the operators of {} it uses", DomainName(.0))]
    NoOpset(String),
    /// The version of the standard operators is older or newer than what is understood.
    #[error("the model uses opset {0}; this version understands {least} to {most}", least = super::check::LEAST_OPSET, most = super::check::MOST_OPSET)]
    Opset(i64),
    /// A node without an operator.
    #[error("node {} has no operator", Quoted(.0))]
    NoOperator(String),
    /// Nodes wait for each other.
    #[error("the nodes of the graph form a cycle: {} waits for its own result", Quoted(.0))]
    Cycle(String),
    /// A node reads a tensor that nothing makes.
    #[error("node {} ({operator}) reads the tensor {}, which nothing makes", Quoted(.node), Quoted(.tensor))]
    UnknownInput {
        /// The node, by its name or its first output.
        node: String,
        /// Its operator.
        operator: String,
        /// The missing tensor.
        tensor: String,
    },
    /// A node that has not what its operator works on.
    #[error("node {} ({}) needs {} and has {has}", Quoted(.node), Quoted(.operator), number(needs, "input"))]
    TooFewInputs {
        /// The node, by its name or its first output.
        node: String,
        /// Its operator.
        operator: String,
        /// How many its operator needs.
        needs: usize,
        /// How many are given.
        has: usize,
    },
    /// A node without an output, or with more than its operator has.
    #[error("node {} ({}) has {}, or none with a name", Quoted(.node), Quoted(.operator), number(has, "output"))]
    Outputs {
        /// The node, by its name or its first output.
        node: String,
        /// Its operator.
        operator: String,
        /// How many are listed.
        has: usize,
    },
    /// Two nodes, inputs or initializers make the same tensor.
    #[error("the tensor {} is made twice", Quoted(.0))]
    MadeTwice(String),
    /// An input, output or initializer has no name.
    #[error("{0} has no name")]
    Unnamed(&'static str),
    /// A graph gives a tensor that nothing makes.
    #[error("the graph gives the tensor {}, which nothing makes", Quoted(.0))]
    UnknownOutput(String),
    /// A node whose inputs have shapes that do not go together.
    #[error("node {} cannot be computed: {mismatch}", Quoted(.node))]
    Shapes {
        /// The node, by its name or its first output.
        node: String,
        /// The dimensions that contradict each other.
        mismatch: String,
    },
    /// A tensor whose data do not fit its type and shape.
    #[error("tensor {}: {problem}", Quoted(.tensor))]
    Tensor {
        /// The tensor.
        tensor: String,
        /// The problem.
        problem: String,
    },
    /// Graphs are nested too deeply.
    #[error("graphs are nested more than {0} deep")]
    TooDeep(usize),
    /// Functions that call each other without end.
    #[error("the function {} calls itself", Quoted(.0))]
    EndlessFunction(String),
    /// Two functions of one name.
    #[error("the function {} is there twice", Quoted(.0))]
    FunctionTwice(String),
}

struct DomainName<'a>(&'a str);

impl fmt::Display for DomainName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => f.write_str("ai.onnx"),
            other => Quoted(other).fmt(f),
        }
    }
}

impl Diagnostic for GraphError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Opset(_) | Self::TooDeep(_) => ErrorKind::Unsupported,
            _ => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Opset(version) if *version < super::check::LEAST_OPSET => {
                "convert it first, with onnx.version_converter, or export it again with a newer opset"
            }
            Self::Opset(_) => "export it with an older opset",
            Self::NoOpset(_) => "add the domain to opset_import",
            Self::TooDeep(_) => "export the model without control flow",
            _ => "the model is damaged or malformed: onnx.checker.check_model says more; export it again",
        };
        Some(hint.to_owned())
    }
}
