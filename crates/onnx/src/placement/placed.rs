//! What becomes of the tensors of a graph: data. Not how it is decided.

use std::collections::BTreeMap;

use kvant_container::onnx::NodeProto;

use crate::element::Element;
use crate::graph::called;
use crate::quantization::{Affine, Range};
use crate::recipe::TensorScheme;

/// The entries of an axis that each have a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channels {
    /// The axis.
    pub axis: usize,
    /// Its length.
    pub number: usize,
}

/// A tensor that is computed and quantized.
#[derive(Debug, Clone, PartialEq)]
pub struct Activation {
    /// How.
    pub scheme: TensorScheme,
    /// The tensor whose scale and zero point it has; its own if none.
    pub provider: Option<String>,
    /// The channels that each have a scale; one scale for all if none.
    pub channels: Option<Channels>,
    /// A range that is given.
    pub range: Option<Range>,
    /// Scales and zero points that are given: one, or one for each channel. Where there is one, `range` is that of its codes.
    pub given: Vec<Affine>,
    /// The axis along which a block format makes its blocks.
    pub block_axis: i64,
}

/// A constant that is quantized.
#[derive(Debug, Clone, PartialEq)]
pub struct Weight {
    /// How.
    pub scheme: TensorScheme,
    /// The axis whose entries each have a scale.
    pub axis: Option<usize>,
    /// A range that is given.
    pub range: Option<Range>,
    /// Scales and zero points that are given: one, or one for each channel of the axis.
    pub given: Vec<Affine>,
    /// The axis along which a block format makes its blocks.
    pub block_axis: i64,
}

/// The bias of a product of quantized data with a quantized weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bias {
    /// The data that the product reads.
    pub input: String,
    /// The weight.
    pub weight: String,
    /// Position of the node.
    pub node: usize,
    /// The type of its codes: int32 ones have the scale of the product, int16 ones a scale of at least that.
    pub element: Element,
}

/// A node that is left in float although its operator would be quantized, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The node.
    pub node: String,
    /// The reason, for the report.
    pub reason: &'static str,
}

impl Skipped {
    /// A node by its name, or by what it makes.
    pub fn new(node: &NodeProto, reason: &'static str) -> Self {
        Self { node: called(node).to_owned(), reason }
    }

    /// The reason that nodes selected by a recipe stay in float, as the rest of a sentence: the most frequent one.
    pub fn most_frequent(skipped: &[Skipped]) -> String {
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        skipped.iter().for_each(|skipped| reasons.entry(skipped.reason).or_default().push(&skipped.node));
        let Some((reason, nodes)) = reasons.into_iter().max_by_key(|(_, nodes)| nodes.len()) else {
            return String::new();
        };
        let first = nodes.first().copied().unwrap_or_default().escape_debug();
        let count = if nodes.len() == 1 { "1 node stays".to_owned() } else { format!("{} nodes stay", nodes.len()) };
        format!(": {count} in float, `{first}` for one, because {reason}")
    }
}

/// The result for a graph.
#[derive(Debug, Clone, Default)]
pub struct Placement {
    /// Quantized activations by tensor.
    pub activations: BTreeMap<String, Activation>,
    /// Quantized constants by tensor.
    pub weights: BTreeMap<String, Weight>,
    /// Biases with codes of their own, by tensor.
    pub biases: BTreeMap<String, Bias>,
    /// Biases that are to stay in float, by tensor. ONNX Runtime makes int32 codes of them with the scale of the product.
    pub float_biases: BTreeMap<String, Bias>,
    /// Positions of Relu and Clip nodes that the codes' range makes superfluous.
    pub dropped: Vec<usize>,
    /// Nodes that are not quantized though they could be.
    pub skipped: Vec<Skipped>,
    /// What became of the ranges of a file.
    pub given: GivenRanges,
    /// Number of nodes whose tensors are quantized.
    pub nodes: usize,
}

/// What became of the ranges of a file: tensors by name.
#[derive(Debug, Clone, Default)]
pub struct GivenRanges {
    /// The activations and constants that have them.
    pub used: usize,
    /// Activations whose scales are new, because the file's are those of codes of other types.
    pub rescaled: Vec<String>,
    /// Constants whose scales in the file are those of other codes or channels: theirs follow from their values.
    pub unused: Vec<String>,
}
