//! The recipe of a quantization.

use kvant_checkpoint::recipe::{LayerTypeText, OverrideText, PackMethod, QualityLevel};
use kvant_onnx::calibration::ObserverRef;
use kvant_onnx::element::Element;
use kvant_onnx::recipe::{BiasKind, Boundary, Form, Subgraph};
use std::path::PathBuf;

/// The recipe of a quantization. Unset fields follow from the recipe file, and then from the scheme.
#[derive(Clone, Debug, Default)]
pub struct Recipe {
    /// A named scheme, a spelling such as `int4:g128`, or for graphs a preset.
    pub scheme: Option<String>,
    /// A recipe file: Kvant's TOML, a `quantization_config` of AMD Quark, compressed-tensors or AutoRound, or a recipe of llm-compressor.
    pub file: Option<PathBuf>,
    /// How much time the result is worth, in place of scales and algorithms.
    pub quality: Option<QualityLevel>,
    /// Algorithms with their options, e.g. `awq`, `gptq:damping=0.05`.
    pub algorithm: Vec<String>,
    /// The observer that finds the scales of weights, where schemes name none.
    pub scales: Option<ObserverRef>,
    /// Names of layers or nodes that are kept, with wildcards.
    pub exclude: Vec<String>,
    /// Other schemes for the layers or tensors whose names match.
    pub overrides: Vec<OverrideText>,
    /// Schemes for kinds of layers, such as convolutions.
    pub layer_types: Vec<LayerTypeText>,
    /// Other schemes for components of a diffusers pipeline, or `keep`.
    pub components: Vec<OverrideText>,
    /// The scheme of biases of checkpoints, or `float`.
    pub bias: Option<String>,
    /// The order of 4-bit codes in AMD Quark's layout.
    pub pack_method: Option<PackMethod>,
    /// Whether the activations of the scheme are left out.
    pub weights_only: bool,
    /// A scheme for keys and values.
    pub kv_cache: Option<String>,
    /// Whether keys and values are quantized after the rotary embedding.
    pub kv_cache_post_rope: bool,
    /// The least scale of keys and values.
    pub min_kv_scale: Option<f32>,
    /// A scheme for queries and the output of the softmax.
    pub attention: Option<String>,
    /// Whether output heads and routers are quantized too.
    pub no_keep_defaults: bool,
    /// Whether a source that is quantized already is accepted.
    pub requantize: bool,
    /// A file with the importance of inputs, for GGUF files.
    pub imatrix: Option<PathBuf>,
    /// Statistics of the inputs of layers, for checkpoints.
    pub statistics: Option<GivenStatistics>,
    /// Settings of ONNX graphs only.
    pub graph: GraphRecipe,
}

/// Statistics of the inputs of layers, which static scales of activations and searched scales of weights follow from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenStatistics {
    /// The file (`kvant_checkpoint::input_statistics`); for a pipeline also a folder with a file for each component.
    pub path: PathBuf,
    /// The component of a pipeline whose statistics are read, where the file has those of several.
    pub component: Option<String>,
}

impl GivenStatistics {
    /// All statistics of a file.
    pub fn of_file(path: impl Into<PathBuf>) -> GivenStatistics {
        GivenStatistics { path: path.into(), component: None }
    }
}

/// Settings of ONNX graphs only.
#[derive(Clone, Debug, Default)]
pub struct GraphRecipe {
    /// Another element type for activations.
    pub activation: Option<Element>,
    /// Another element type for weights.
    pub weight: Option<Element>,
    /// Whether the codes of activations are symmetric about zero.
    pub symmetric: Option<bool>,
    /// A scale for each output channel of a weight.
    pub per_channel: bool,
    /// A scale for each channel of an activation.
    pub per_channel_activations: bool,
    /// Cross-layer equalization.
    pub equalize: bool,
    /// Seven bits of weights only.
    pub reduce_range: bool,
    /// The observer of activations.
    pub calibration_method: Option<ObserverRef>,
    /// The observer of weights.
    pub weight_method: Option<ObserverRef>,
    /// The percentage of values inside the range, for percentile calibration.
    pub percentile: Option<f64>,
    /// Ranges of tensors in a file of another tool, in place of calibration (`kvant_onnx::ranges`).
    pub ranges: Option<PathBuf>,
    /// The quantization of biases.
    pub bias: Option<BiasKind>,
    /// The domain of the quantization operators.
    pub form: Option<Form>,
    /// The types of the graph's inputs and outputs.
    pub boundary: Option<Boundary>,
    /// The only operators that are quantized.
    pub op_types: Vec<String>,
    /// Whether other recipes are tried, from cheap to expensive, until the result keeps its quality limits.
    pub auto: bool,
    /// Operators that are quantized too.
    pub more_op_types: Vec<String>,
    /// Operators that stay in float.
    pub exclude_op_types: Vec<String>,
    /// The only nodes that are quantized, with wildcards.
    pub nodes: Vec<String>,
    /// Nodes between two sets of nodes, which stay in float.
    pub exclude_subgraph: Vec<Subgraph>,
    /// Passes that run in addition.
    pub enable_pass: Vec<String>,
    /// Passes that do not run.
    pub disable_pass: Vec<String>,
}
