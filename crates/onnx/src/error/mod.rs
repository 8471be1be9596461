//! Reasons that a graph cannot be quantized as requested.

mod algorithm;
mod calibration;

pub use algorithm::AlgorithmError;
pub use calibration::CalibrationError;

use kvant_container::onnx::OnnxError;
use kvant_container::{Diagnostic, ErrorKind, Remedy};

/// A failure of a run, with the tensor or node it is about.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// The file is wrong.
    #[error("{0}")]
    Model(#[from] OnnxError),
    /// A non-finite weight.
    #[error("the weight `{tensor}` has {value} at element {position}")]
    NotFinite {
        /// The weight.
        tensor: String,
        /// `NaN` or `an infinite value`.
        value: &'static str,
        /// Where.
        position: usize,
    },
    /// A weight has a value that its 16-bit type does not hold.
    #[error(
        "the weight `{tensor}` has the value {value:e} at element {position}, which is beyond the range of float16"
    )]
    BeyondFloat16 {
        /// The weight.
        tensor: String,
        /// The value.
        value: f32,
        /// Where.
        position: usize,
    },
    /// No data came by a tensor that needs a range.
    #[error("no calibration sample gave a value of the tensor `{tensor}`")]
    NoRange {
        /// The tensor.
        tensor: String,
    },
    /// A file of ranges does not have all that are needed, and there are no data to find them on.
    #[error("{file} has no range of {}", listed(tensors))]
    MissingRanges {
        /// The file.
        file: String,
        /// The tensors.
        tensors: Vec<String>,
    },
    /// A file of ranges has those of tensors that the graph does not have.
    #[error("{file} has no tensor of the model: it has {}", listed(found))]
    IdleRanges {
        /// The file.
        file: String,
        /// Its tensors.
        found: Vec<String>,
        /// Tensors of the model that are like them, or some.
        model: Vec<String>,
    },
    /// A file has ranges for another number of channels.
    #[error("‹ranges› has {found} ranges of `{}`, which has {wanted} channels", tensor.escape_debug())]
    RangesOfChannels {
        /// The tensor.
        tensor: String,
        /// Ranges in the file.
        found: usize,
        /// Channels of the tensor.
        wanted: usize,
    },
    /// An element type cannot be written in the requested form.
    #[error("{element} activations have no {form} operator")]
    NoOperator {
        /// The element type.
        element: String,
        /// The form.
        form: &'static str,
    },
    /// The layout has no operators for an element type.
    #[error("the {layout} layout has no {element} {role}, only {only}")]
    NotInLayout {
        /// `weights` or `activations`.
        role: &'static str,
        /// The element type.
        element: String,
        /// The layout.
        layout: &'static str,
        /// What it has.
        only: &'static str,
    },
    /// ONNX Runtime makes an integer operator of a product that has no kernel for its types.
    #[error(
        "the {operator} `{node}` would have {types}: ONNX Runtime fuses it into an integer operator that it has no kernel for, and does not open the model"
    )]
    NoKernel {
        /// The operator.
        operator: String,
        /// The node.
        node: String,
        /// The types of its data and weights.
        types: String,
        /// Other types that there are kernels for.
        way_out: &'static str,
    },
    /// Activations cannot have a scale for each channel.
    #[error("activations cannot have a scale for each channel here: {because}")]
    ChannelActivations {
        /// The reason.
        because: &'static str,
    },
    /// The recipe asks for a scale for each channel of activations, and no activation of the graph can have one.
    #[error(
        "‹per-channel-activations› has no effect: each activation of the model keeps one scale, since operators that read or write it \
         support only one, or its channels are unknown"
    )]
    IdleChannels,
    /// A tensor has not the channels that its shape says.
    #[error("a calibration sample gave the tensor `{tensor}` another number of channels than its shape says")]
    ChannelCount {
        /// The tensor.
        tensor: String,
    },
    /// The layout has no integers at the graph's inputs and outputs.
    #[error(
        "inputs and outputs can be integers only where they are followed by DequantizeLinear or preceded by QuantizeLinear"
    )]
    NoIntegerBoundary,
    /// A node must stay in f32, and nothing tells which of its tensors are floats.
    #[error("the node `{node}` must stay in f32, and the type of its tensor `{tensor}` is not known")]
    UnknownType {
        /// The node.
        node: String,
        /// The tensor.
        tensor: String,
        /// Whether its operator is ONNX's own, whose types can be inferred.
        is_standard: bool,
    },
    /// A node must stay in f32 that reads or makes sequences of tensors, which are not cast.
    #[error("the node `{node}` must stay in f32, and its tensor `{tensor}` is a sequence")]
    Sequence {
        /// The node.
        node: String,
        /// The sequence.
        tensor: String,
    },
    /// The model is quantized already.
    #[error("the model is quantized already: it has a node {operator}")]
    AlreadyQuantized {
        /// An operator that quantized models have.
        operator: String,
    },
    /// Nothing in the graph is quantized by the recipe.
    #[error("no node of the model is quantized by this recipe{left}")]
    NothingToDo {
        /// The reason that nodes selected by the recipe stay in float, as the rest of the sentence.
        left: String,
        /// The settings that exclude all that would be quantized.
        exclusions: Vec<&'static str>,
        /// The hint where no setting excludes all.
        way_out: &'static str,
    },
    /// Nothing in the graph can be converted to another float type.
    #[error("no node of the model computes in float32: nothing would be converted to {to}")]
    NothingToConvert {
        /// The type.
        to: &'static str,
    },
    /// A type is requested for tensors that do not exist.
    #[error("{word}")]
    IdleOverride {
        /// What is said, and of what it names nothing.
        word: String,
        /// Names that are like it.
        nearest: Vec<String>,
        /// Some names that there are.
        some: Vec<String>,
        /// The command that shows all.
        command: &'static str,
    },
    /// The nodes do not make a graph.
    #[error("{0}")]
    Graph(#[from] crate::graph::GraphError),
    /// A rewrite of the graph failed.
    #[error("{0}")]
    Pass(#[from] crate::pass::PassError),
    /// An algorithm could not do its work.
    #[error("{0}")]
    Algorithm(#[from] AlgorithmError),
    /// The file system refused.
    #[error("{0}")]
    Container(#[from] kvant_container::Error),
}

/// Names for a message: the first few, quoted.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{}`", name.escape_debug())).collect();
    let more = names.len().saturating_sub(SHOWN);
    shown.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
}

impl Diagnostic for QuantizeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Model(problem) => problem.kind(),
            Self::Graph(problem) => problem.kind(),
            Self::Pass(problem) => problem.kind(),
            Self::Container(problem) => problem.kind(),
            Self::Algorithm(problem) => problem.kind(),
            Self::NoOperator { .. }
            | Self::AlreadyQuantized { .. }
            | Self::NotInLayout { .. }
            | Self::NoKernel { .. }
            | Self::UnknownType { .. }
            | Self::Sequence { .. } => ErrorKind::Unsupported,
            Self::NoIntegerBoundary | Self::ChannelActivations { .. } | Self::ChannelCount { .. } => ErrorKind::Invalid,
            Self::IdleChannels => ErrorKind::Usage,
            Self::NotFinite { .. }
            | Self::BeyondFloat16 { .. }
            | Self::NoRange { .. }
            | Self::MissingRanges { .. }
            | Self::IdleRanges { .. }
            | Self::RangesOfChannels { .. }
            | Self::NothingToDo { .. }
            | Self::NothingToConvert { .. }
            | Self::IdleOverride { .. } => ErrorKind::Invalid,
        }
    }

    fn remedies(&self) -> Vec<Remedy> {
        match self {
            Self::Algorithm(problem) => problem.remedies(),
            Self::IdleOverride { nearest, command, .. } if !nearest.is_empty() => {
                vec![Remedy::ChooseOneOf(nearest.clone()), Remedy::command(format!("{command} MODEL"), "shows all")]
            }
            Self::IdleOverride { some, command, .. } => {
                vec![Remedy::ChooseOneOf(some.clone()), Remedy::command(format!("{command} MODEL"), "shows all")]
            }
            Self::NoRange { .. } => vec![
                Remedy::setting("data", "give calibration data that reach every branch with ‹data›"),
                Remedy::setting("exclude", "exclude the node with ‹exclude›"),
            ],
            Self::MissingRanges { tensors, .. } => {
                let keep = || format!("keep it in float with ‹override› '{}=keep'", tensors[0]);
                let first = (!tensors.is_empty()).then(|| Remedy::setting("override", keep()));
                let data = Remedy::setting("data", "find the others on data with ‹data›");
                std::iter::once(data).chain(first).collect()
            }
            Self::IdleRanges { model, .. } => {
                let names = format!("give ranges by the names that the model has: {}", listed(model));
                vec![Remedy::text(names), Remedy::command("inspect ‹all› MODEL", "shows all")]
            }
            Self::NoOperator { .. } => {
                let text = "choose ‹op-domain› quark, whose operators need Quark's library to run";
                vec![Remedy::setting_to("op-domain", "quark", text)]
            }
            Self::ChannelActivations { .. } => vec![
                Remedy::leave_out("per-channel-activations"),
                Remedy::setting("activation", "choose int8 or int16 activations with ‹activation›, and the layout qdq"),
            ],
            Self::IdleChannels => vec![Remedy::leave_out("per-channel-activations")],
            Self::ChannelCount { .. } => vec![
                Remedy::leave_out("per-channel-activations"),
                Remedy::setting_to(
                    "override",
                    "NAME=TYPE:tensor",
                    "give the tensor one scale with ‹override› 'NAME=TYPE:tensor'",
                ),
            ],
            Self::NotFinite { .. } => vec![Remedy::text("export the model again from sound weights")],
            Self::NothingToDo { exclusions, .. } if !exclusions.is_empty() => {
                exclusions.iter().map(|setting| less(setting)).collect()
            }
            error => Remedy::of_hint(error.hint()),
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Model(problem) => return problem.hint(),
            Self::Graph(problem) => return problem.hint(),
            Self::Pass(problem) => return problem.hint(),
            Self::Container(problem) => return problem.hint(),
            Self::Algorithm(problem) => return problem.hint(),
            Self::IdleOverride { nearest, command, .. } if !nearest.is_empty() => {
                return Some(format!("did you mean {}? `kvant {command} MODEL` shows all", nearest.join(" or ")));
            }
            Self::IdleOverride { some, command, .. } => {
                return Some(format!("there are {}; `kvant {command} MODEL` shows all", some.join(", ")));
            }
            Self::BeyondFloat16 { .. } => "use a bfloat16 preset (BF16), or leave its node in float with ‹exclude›",
            Self::NothingToDo { exclusions, .. } if !exclusions.is_empty() => return Remedy::hint(&self.remedies()),
            Self::NotFinite { .. } | Self::IdleChannels | Self::MissingRanges { .. } | Self::IdleRanges { .. } => {
                return Remedy::hint(&self.remedies());
            }
            Self::RangesOfChannels { .. } => {
                "leave ‹per-channel-activations› out: the tensor then has the range of all channels"
            }
            Self::NothingToConvert { .. } => {
                "the model has this type already, or no floats; `kvant inspect` shows its types"
            }
            Self::NoRange { .. } => "give calibration data that reach every branch, or exclude the node",
            Self::NoOperator { .. } => "choose ‹op-domain› quark, whose operators need Quark's library to run",
            Self::NotInLayout { .. } => "choose one of the types it has, or the layout qdq",
            Self::NoKernel { way_out, .. } => way_out,
            Self::ChannelActivations { .. } => {
                "leave ‹per-channel-activations› out (‹per-channel› is for weights), or choose int8 or int16 activations with the layout qdq"
            }
            Self::ChannelCount { .. } => {
                "leave ‹per-channel-activations› out, or give the tensor one scale with ‹override› 'NAME=TYPE:tensor'"
            }
            Self::NoIntegerBoundary => "leave the boundary at pairs or float, or choose the layout qdq",
            Self::Sequence { .. } => {
                "sequences of tensors are not supported where floats become 16-bit: export the model without them"
            }
            Self::UnknownType { is_standard: true, .. } => {
                "write the tensor's type to the model's value_info, as onnx.shape_inference does"
            }
            Self::UnknownType { is_standard: false, .. } => {
                "add the tensor and its type to the model's value_info (onnx.helper.make_tensor_value_info): shape inference does not \
                 know operators of other domains"
            }
            Self::AlreadyQuantized { .. } => "give the float model it was made from",
            Self::NothingToDo { way_out, .. } => way_out,
        };
        Some(hint.to_owned())
    }
}

/// The way out of excluding everything with a setting.
fn less(setting: &'static str) -> Remedy {
    Remedy::setting(setting, format!("exclude less with ‹{setting}›, or leave it out"))
}
