//! Errors of the tools for graphs.

use kvant_container::{Diagnostic, ErrorKind};

use crate::error::QuantizeError;
use crate::graph::GraphError;
use crate::graph::check::{LEAST_OPSET, MOST_OPSET};
use crate::pass::PassError;

/// A request that a graph does not fulfil.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The model's graph is not sound, or would not be afterwards.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A pass cannot be run.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// A conversion to 16-bit floats cannot be done.
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
    /// New constants cannot be kept.
    #[error(transparent)]
    Container(#[from] kvant_container::Error),
    /// An older opset is asked for.
    #[error(
        "the model uses opset {from}, which cannot be lowered to {to}: operators gained meanings that opset {to} does not have"
    )]
    LowerOpset {
        /// The opset of the model.
        from: i64,
        /// The opset asked for.
        to: i64,
    },
    /// An opset is asked for whose changes are not known.
    #[error("opset {0} is not known; this version understands {LEAST_OPSET} to {MOST_OPSET}")]
    UnknownOpset(i64),
    /// A name that no tensor of the main graph has.
    #[error("the graph has no tensor `{}`{}", .name.escape_debug(), Place(.inside.as_deref()))]
    NoTensor {
        /// The name.
        name: String,
        /// The node in whose body there is such a tensor.
        inside: Option<String>,
    },
    /// A tensor that is named twice.
    #[error("the tensor `{}` is named twice", .0.escape_debug())]
    NamedTwice(String),
    /// Outputs that depend on more inputs.
    #[error("the outputs also depend on {}", Names(.0))]
    MissingInputs(Vec<String>),
    /// Inputs that the outputs do not depend on.
    #[error("the outputs do not depend on {}", Names(.0))]
    UnreadInputs(Vec<String>),
    /// An input whose type does not follow from the graph.
    #[error("the element type of `{}` does not follow from the graph, and an input needs one", .0.escape_debug())]
    NoType(String),
    /// A name that no input of the graph has, or an input that is no tensor.
    #[error("the graph takes no tensor `{}`; its inputs are {}", .name.escape_debug(), Names(.inputs))]
    NoInput {
        /// The name.
        name: String,
        /// The inputs that there are.
        inputs: Vec<String>,
    },
    /// A name that no dimension has.
    #[error("no dimension of the graph is called `{}`; {}", .name.escape_debug(), Known(.known))]
    NoDim {
        /// The name.
        name: String,
        /// The names that dimensions have.
        known: Vec<String>,
    },
    /// A dimension with two sizes.
    #[error("the dimension `{}` cannot be both {first} and {second}", .name.escape_debug())]
    TwoSizes {
        /// The name of the dimension.
        name: String,
        /// One size.
        first: usize,
        /// The other.
        second: usize,
    },
    /// A shape that contradicts the one that the model declares, or the one that follows.
    #[error("`{}` cannot have the shape [{asked}]: {declared}", .name.escape_debug())]
    Shape {
        /// The input or output.
        name: String,
        /// The shape asked for, or the one that follows.
        asked: String,
        /// What stands against it.
        declared: String,
    },
    /// A node that computes with codes and has no float operator here.
    #[error("node `{}` ({}) cannot be dequantized: {reason}", .node.escape_debug(), .operator.escape_debug())]
    NotDequantized {
        /// The node, by its name or its first output.
        node: String,
        /// Its operator.
        operator: String,
        /// What stands against it.
        reason: String,
    },
    /// A graph in which no float operator has an integer one.
    #[error("no operator of the graph stands between Q/DQ pairs that an integer operator can replace{}", Still(*.left, "with dequantized inputs"))]
    NothingToJoin {
        /// Nodes that read dequantized values.
        left: usize,
    },
    /// A graph without an integer operator that has a float one.
    #[error("the graph has no integer operator that a float operator can replace{}", Still(*.left, "with codes"))]
    NothingToSeparate {
        /// Nodes that compute with codes.
        left: usize,
    },
    /// A graph whose codes have the types that are asked for, or cannot have them.
    #[error("no codes of the graph get another type{}", Kept(.left))]
    NothingToRetype {
        /// Tensors that keep their type.
        left: Vec<String>,
    },
    /// Codes that cannot have the type that is asked for.
    #[error("`{}` cannot get the type: {reason}", .name.escape_debug())]
    NotRetyped {
        /// The constant, or the node.
        name: String,
        /// What stands against it.
        reason: String,
    },
    /// A limit that is no positive number.
    #[error("the limit {0} is not a positive finite number")]
    Limit(f64),
    /// A domain that the model does not use.
    #[error("the model does not use the domain `{}`; its domains are {}", .name.escape_debug(), Names(.domains))]
    NoDomain {
        /// The domain.
        name: String,
        /// The domains that it uses.
        domains: Vec<String>,
    },
    /// The domain of ONNX itself, or no name.
    #[error("the domain `{}` cannot be renamed to `{}`: {reason}", .from.escape_debug(), .to.escape_debug())]
    Domain {
        /// The domain.
        from: String,
        /// Its new name.
        to: String,
        /// What stands against it.
        reason: String,
    },
}

struct Place<'a>(Option<&'a str>);

impl std::fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |node| write!(f, " outside of the body of node `{}`", node.escape_debug()))
    }
}

/// Nodes that are the reason why nothing is done.
struct Still(usize, &'static str);

impl std::fmt::Display for Still {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => Ok(()),
            1 => write!(f, "; 1 node {} has no other form", self.1),
            nodes => write!(f, "; {nodes} nodes {} have no other form", self.1),
        }
    }
}

/// Tensors that keep their type.
struct Kept<'a>(&'a [String]);

impl std::fmt::Display for Kept<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            [] => Ok(()),
            names => write!(f, ": {} must keep theirs", Names(names)),
        }
    }
}

/// At most so many names are listed.
const MOST_NAMES: usize = 12;

struct Names<'a>(&'a [String]);

impl std::fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let quoted = |name: &String| match name.as_str() {
            "" => "`ai.onnx`".to_owned(),
            name => format!("`{}`", name.escape_debug()),
        };
        let listed: Vec<String> = self.0.iter().take(MOST_NAMES).map(quoted).collect();
        f.write_str(&listed.join(", "))?;
        match self.0.len().saturating_sub(MOST_NAMES) {
            0 if listed.is_empty() => f.write_str("none"),
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

struct Known<'a>(&'a [String]);

impl std::fmt::Display for Known<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            [] => f.write_str("none has a name"),
            names => write!(f, "its names are {}", Names(names)),
        }
    }
}

impl Diagnostic for ToolError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Graph(error) => error.kind(),
            Self::Pass(error) => error.kind(),
            Self::Quantize(error) => error.kind(),
            Self::Container(error) => error.kind(),
            Self::LowerOpset { .. }
            | Self::UnknownOpset(_)
            | Self::NoType(_)
            | Self::NotDequantized { .. }
            | Self::NothingToJoin { .. }
            | Self::NothingToSeparate { .. }
            | Self::NothingToRetype { .. }
            | Self::NotRetyped { .. } => ErrorKind::Unsupported,
            Self::NoTensor { .. }
            | Self::NamedTwice(_)
            | Self::MissingInputs(_)
            | Self::UnreadInputs(_)
            | Self::NoInput { .. }
            | Self::NoDim { .. }
            | Self::TwoSizes { .. }
            | Self::Shape { .. }
            | Self::Limit(_)
            | Self::NoDomain { .. }
            | Self::Domain { .. } => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Graph(error) => return error.hint(),
            Self::Pass(error) => return error.hint(),
            Self::Quantize(error) => return error.hint(),
            Self::Container(error) => return error.hint(),
            Self::LowerOpset { .. } => "export the model again with the older opset",
            Self::UnknownOpset(_) | Self::Limit(_) => "choose another number",
            Self::NoTensor { inside: Some(_), .. } => "name tensors of the main graph: bodies of nodes are not cut",
            Self::NoTensor { .. } => "`kvant graph show MODEL ‹list-nodes›` lists the tensors",
            Self::NamedTwice(_) => "name it once; a tensor cannot be both an input and an output",
            Self::MissingInputs(_) => "add them to ‹inputs›, or name tensors behind them",
            Self::UnreadInputs(_) => "leave them out of ‹inputs›",
            Self::NoType(_) => "name a tensor before or behind it",
            Self::NoInput { .. } | Self::NoDim { .. } | Self::NoDomain { .. } => {
                "`kvant graph show MODEL` lists inputs with their dimensions, and domains"
            }
            Self::TwoSizes { .. } | Self::Shape { .. } => "give sizes that agree with each other and with the model",
            Self::NotDequantized { .. } => {
                "`kvant graph to-qdq` makes Q/DQ pairs of most integer operators; dequantize what it writes"
            }
            Self::NothingToJoin { .. } | Self::NothingToSeparate { .. } | Self::NothingToRetype { .. } => {
                "`kvant graph show MODEL` lists operators and the types of codes"
            }
            Self::NotRetyped { .. } => "ask for another type",
            Self::Domain { .. } => "choose another name",
        };
        Some(hint.to_owned())
    }
}
