//! The recipe of a run: types, scales, methods, nodes, and the form of the result. Does not access a graph.

use std::sync::Arc;

use kvant_quant::glob::Glob;

use crate::UnknownWord;
use crate::algorithm_settings::Algorithms;
use crate::element::Element;
use crate::pass;
use crate::quantization::ScaleKind;
use crate::ranges::RangesFile;
use kvant_quant::observer::ObserverRef;

/// The quantization of a kind of tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TensorScheme {
    /// The element type.
    pub element: Element,
    /// Whether the codes are symmetric about zero.
    pub symmetric: bool,
    /// The allowed scales.
    pub scale: ScaleKind,
    /// The observer of the range.
    pub method: ObserverRef,
    /// Whether each channel has its own scale.
    pub per_channel: bool,
    /// Whether only half of the codes are used.
    pub reduce_range: bool,
    /// Whether asymmetric codes of a signed type include the lowest one, which symmetric ones never do.
    pub full_range: bool,
}

/// The quantization of biases of convolutions, matrix products and normalizations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BiasKind {
    /// int32 with the scale of the product, `s_input * s_weight`: what integer kernels add.
    Int32,
    /// As `Int32`, and biases of LayerNormalization and InstanceNormalization too, which are quantized like weights otherwise.
    Int32OfAll,
    /// int16 with the scale of the product; opset 21.
    Int16,
    /// Quantized like a weight, with its own scale.
    LikeWeight,
    /// Left as it is.
    Float,
}

/// Which operators are quantized and by which rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RuleSet {
    /// The operators ONNX Runtime has quantized kernels for.
    Standard,
    /// Those, and the arithmetic and shape operators that NPUs run in integers: Div, Erf, Sub, Slice and more.
    Extended,
    /// MatMul and Gemm only, the products with a constant.
    Products,
}

/// In which operators the result is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Form {
    /// Standard operators where they exist, raising the opset if a type needs it: every loader supports them.
    #[default]
    Standard,
    /// `com.microsoft` Q/DQ: 16-bit types below opset 21.
    Microsoft,
    /// `com.amd.quark` operators for all types that need them, as Quark writes them.
    Quark,
}

/// How quantization is expressed in the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// QuantizeLinear and DequantizeLinear around float operators.
    Qdq,
    /// Integer operators: QLinearConv, QLinearMatMul and similar ones.
    QOperator,
    /// Integer products of weights with activations that are quantized as they come.
    Dynamic,
    /// MatMulNBits: weights in blocks of four or eight bits, activations in float.
    MatMulNBits {
        /// Bits of a weight: 4 or 8.
        bits: u8,
        /// Weights that share a scale, along the reduced axis.
        block: usize,
        /// The accuracy level of the kernel: 0 unset, 1 f32, 2 f16, 3 bf16, 4 int8.
        accuracy: u8,
    },
    /// All floats of the model become another float type; inputs and outputs stay f32 in either [`Boundary`] of floats.
    Float(FloatType),
}

/// A 16-bit float that a model can be converted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are those of the types")]
pub enum FloatType {
    Float16,
    BFloat16,
}

impl FloatType {
    /// The name of the type.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float16 => "float16",
            Self::BFloat16 => "bfloat16",
        }
    }
}

/// The dtype of the graph's inputs and outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Boundary {
    /// Floats, quantized inside.
    #[default]
    Pairs,
    /// Floats, not quantized at all.
    Float,
    /// Integers: the caller quantizes and dequantizes.
    Integer,
}

/// Which tensors at a joint get the same scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "each field names its operator")]
pub struct Align {
    pub concat: bool,
    pub pool: bool,
    pub pad: bool,
    pub slice: bool,
    /// Constants that are added, multiplied, compared: of the activations' type, not the weights'.
    pub elementwise: bool,
}

/// The quantized nodes.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Only these operators, if any are named.
    pub op_types: Vec<String>,
    /// These operators as well.
    pub more_op_types: Vec<String>,
    /// Every operator of the model.
    pub all_op_types: bool,
    /// Only nodes whose name matches, if any are named.
    pub nodes: Vec<Glob>,
    /// Not these operators.
    pub excluded_op_types: Vec<String>,
    /// Whether nodes are left out by name: the last rule that matches decides.
    pub node_rules: Vec<NodeRule>,
    /// Not the nodes on any path between these, both included.
    pub excluded_subgraphs: Vec<Subgraph>,
}

impl Selection {
    /// The settings that exclude nodes.
    pub fn exclusions(&self) -> Vec<&'static str> {
        let given = [
            (self.node_rules.iter().any(|rule| rule.excluded), "exclude"),
            (!self.excluded_op_types.is_empty(), "exclude-op-types"),
            (!self.excluded_subgraphs.is_empty(), "exclude-subgraph"),
        ];
        given.into_iter().filter(|(is_given, _)| *is_given).map(|(_, setting)| setting).collect()
    }

    /// The same selection without them.
    #[must_use]
    pub fn without_exclusions(self) -> Selection {
        Selection { excluded_op_types: Vec::new(), node_rules: Vec::new(), excluded_subgraphs: Vec::new(), ..self }
    }
}

/// Leaves nodes out by name, or includes them again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRule {
    /// Their names.
    pub nodes: Glob,
    /// Whether they are left out.
    pub excluded: bool,
}

/// All nodes from some to others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subgraph {
    /// Names of the nodes it begins with.
    pub from: Vec<String>,
    /// Names of the nodes it ends with.
    pub to: Vec<String>,
}

impl std::fmt::Display for Subgraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}..{}", self.from.join(","), self.to.join(","))
    }
}

impl std::str::FromStr for Subgraph {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let names = |part: &str| part.split(',').map(|name| name.trim().to_owned()).collect();
        let wrong = || UnknownWord::new(text, "one of FROM..TO, the names of nodes");
        let (from, to) = text.split_once("..").ok_or_else(wrong)?;
        Ok(Self { from: names(from), to: names(to) })
    }
}

/// An override for the tensors whose name matches.
#[derive(Debug, Clone)]
pub struct Override {
    /// The tensors, or the nodes that read them.
    pub tensors: Glob,
    /// Whether the pattern matches nodes and applies to their constants.
    pub of_layers: bool,
    /// Another element type.
    pub element: Option<Element>,
    /// Symmetric or not.
    pub symmetric: Option<bool>,
    /// A range that is given, not observed.
    pub range: Option<crate::quantization::Range>,
    /// Another way to the range.
    pub method: Option<ObserverRef>,
    /// A scale for each channel, or one for all.
    pub per_channel: Option<bool>,
    /// With the lowest code of a signed type.
    pub full_range: bool,
    /// Not quantized at all.
    pub float: bool,
}

impl Override {
    /// One that changes nothing yet.
    pub fn of(tensors: Glob) -> Self {
        Self {
            tensors,
            of_layers: false,
            element: None,
            symmetric: None,
            range: None,
            method: None,
            per_channel: None,
            full_range: false,
            float: false,
        }
    }
}

/// Other types for what convolutions and matrix products read: a mix of two precisions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Products {
    /// Their data.
    pub activation: TensorScheme,
    /// Their weights.
    pub weight: TensorScheme,
}

/// The complete recipe of a run.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// Activations; `None` leaves them in float.
    pub activation: Option<TensorScheme>,
    /// Weights.
    pub weight: TensorScheme,
    /// The inputs of products, where they differ from the rest.
    pub products: Option<Products>,
    /// Biases.
    pub bias: BiasKind,
    /// Operators and rules.
    pub rules: RuleSet,
    /// Nodes.
    pub selection: Selection,
    /// Tensors that differ.
    pub overrides: Vec<Override>,
    /// Operators of the result.
    pub form: Form,
    /// How quantization is expressed.
    pub layout: Layout,
    /// Inputs and outputs of the graph.
    pub boundary: Boundary,
    /// Groups of tensors with equal scales.
    pub align: Align,
    /// Whether Relu and Clip are dropped if the range of codes replaces them: asymmetric activations only.
    pub drop_activations: bool,
    /// The power-of-two rules of an NPU: shift limits, aligned scales, simulated operators.
    pub npu: bool,
    /// Percent of an activation's values inside its range, for the percentile method.
    pub percentile: f64,
    /// The accuracy algorithms: [`crate::algorithm`].
    pub algorithms: Algorithms,
    /// How blocks of [`crate::element::Block::Bfp16`] round halves: 0 away from zero, 1 up, 2 to even.
    pub block_rounding: u8,
    /// Ranges in a file, for the tensors that it names.
    pub ranges: Option<Arc<RangesFile>>,
    /// Notes for the user about how a file was read.
    pub notes: Vec<String>,
}

impl Recipe {
    /// Returns whether ranges of activations have to be found with data.
    pub fn needs_data(&self) -> bool {
        let ranged = |element: Element| element.is_integer() || element.is_float8();
        self.layout != Layout::Dynamic && self.activation.is_some_and(|a| ranged(a.element))
    }

    /// Whether activations and weights are bytes of two types. Kernels of integers take codes of one type, but for the weights of
    /// products: other constants get the activations' type then.
    pub fn has_two_byte_types(&self) -> bool {
        let byte = |element: Element| element.integer_bits() == Some(8);
        let activation = self.activation.map(|activation| activation.element);
        activation.is_some_and(|element| byte(element) && byte(self.weight.element) && element != self.weight.element)
    }

    /// The passes that suit the recipe: those that always run, and those that its rules expect.
    pub fn passes(&self) -> pass::Selection {
        let integers = self.activation.is_some_and(|a| a.element.is_integer()) && self.layout != Layout::Dynamic;
        // Conversion to another float type keeps the operators as they are.
        let converted = matches!(self.layout, Layout::Float(_));
        let extended = self.rules == RuleSet::Extended && !converted;
        let wanted = [
            // Only float32 is calibrated, quantized and converted.
            ("float-sources", true),
            ("lift-body-weights", !converted),
            ("float-ends", self.boundary == Boundary::Integer),
            // A product with its bias in one node, so that the bias is added to integer sums.
            ("matmul-add-to-gemm", self.activation.is_some() && self.layout != Layout::Dynamic && !converted),
            ("copy-shared-bias", integers),
            ("split-to-slice", extended),
            ("reduce-mean-to-global-average-pool", extended),
            ("batch-norm-to-conv", extended),
            ("split-large-pool", extended),
        ];
        let mut selection = pass::Selection::default();
        for (name, _) in wanted.iter().filter(|(name, on)| *on && pass::ALL.iter().any(|p| p.name == *name)) {
            // The name is in the table: it was just looked up.
            let _ = selection.set(name, true);
        }
        selection
    }
}

/// Reads and writes one of a few words.
macro_rules! words {
    ($type:ty, $choices:literal, $($word:literal => $value:path),+) => {
        impl std::str::FromStr for $type {
            type Err = UnknownWord;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text.to_ascii_lowercase().as_str() {
                    $($word => Ok($value),)+
                    _ => Err(UnknownWord::new(text, concat!("one of ", $choices))),
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    $($value => $word,)+
                })
            }
        }
    };
}

words!(BiasKind, "int32, int32-all, int16, weight, float",
    "int32" => BiasKind::Int32, "int32-all" => BiasKind::Int32OfAll, "int16" => BiasKind::Int16, "weight" => BiasKind::LikeWeight, "float" => BiasKind::Float);
words!(Form, "standard, microsoft, quark",
    "standard" => Form::Standard, "microsoft" => Form::Microsoft, "quark" => Form::Quark);
words!(Boundary, "pairs, float, integer",
    "pairs" => Boundary::Pairs, "float" => Boundary::Float, "integer" => Boundary::Integer);
