//! A recipe as it is written: on the command line or in a file, every part optional. What it means together with its preset is
//! [`Settings::resolve`]; how the keys of a recipe file become settings is in [`file`].

mod contradiction;
mod error;
mod file;
mod override_text;
mod resolve;
mod scheme;

pub use error::SettingsError;
pub use resolve::Resolved;

use std::sync::Arc;

use kvant_quant::observer::ObserverRef;
use kvant_quant::recipe::OverrideEntry;

use crate::element::Element;
use crate::ranges::RangesFile;
use crate::recipe::{BiasKind, Boundary, Form};

/// How quantization is expressed in a graph, where a preset leaves the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairLayout {
    /// QuantizeLinear and DequantizeLinear around float operators.
    Qdq,
    /// Integer operators.
    Qoperator,
}

/// A recipe as it is written. The keys of a file are those of [`RecipeFile`](kvant_quant::recipe::RecipeFile):
///
/// ```
/// use kvant_onnx::settings::Settings;
///
/// let file = Settings::from_toml("recipe.toml", r#"
///     version = 2
///     scheme = "A8W8"                     # `kvant list presets`, or a spelling that graphs can express: int8:channel
///     per_channel = true
///     calibration_method = "entropy"
///     exclude = ["/head/*"]               # nodes that stay in float
///
///     [[override]]                        # the last rule that matches wins
///     tensors = "/stem/conv/Conv_output_0"
///     scheme = "int16"                    # a type, `channel` or `tensor`, `symmetric` or `asymmetric`, a method; or `keep`
/// "#)?;
/// let recipe = file.resolve()?.recipe;
/// assert!(recipe.weight.per_channel && recipe.overrides.len() == 1);
/// # Ok::<(), kvant_onnx::settings::SettingsError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    /// The preset, or the scheme, that all other settings change.
    pub preset: Option<String>,
    /// Whether activations stay in float.
    pub weights_only: Option<bool>,
    /// The element type of activations.
    pub activation: Option<Element>,
    /// The element type of weights.
    pub weight: Option<Element>,
    /// Whether the codes of activations are symmetric about zero.
    pub symmetric: Option<bool>,
    /// Whether each output channel of a weight has a scale.
    pub per_channel: Option<bool>,
    /// Whether each channel of an activation has a scale.
    pub per_channel_activations: Option<bool>,
    /// Algorithms beside those of the preset, as in `--algorithm`.
    pub algorithm: Vec<String>,
    /// Whether weights use half of their codes only.
    pub reduce_range: Option<bool>,
    /// The observer of activations.
    pub calibration_method: Option<ObserverRef>,
    /// The observer of weights.
    pub weight_method: Option<ObserverRef>,
    /// Percent of the values inside the range.
    pub percentile: Option<f64>,
    /// The quantization of biases.
    pub bias: Option<BiasKind>,
    /// The operators of the result.
    pub form: Option<Form>,
    /// How quantization is expressed.
    pub layout: Option<PairLayout>,
    /// The inputs and outputs of the graph.
    pub boundary: Option<Boundary>,
    /// Only these operators.
    pub op_types: Vec<String>,
    /// These operators as well.
    pub more_op_types: Vec<String>,
    /// Not these operators.
    pub exclude_op_types: Vec<String>,
    /// Only nodes whose names match.
    pub nodes: Vec<String>,
    /// Not the nodes whose names match. They are the last rules, and win over overrides of layers.
    pub exclude: Vec<String>,
    /// Not the nodes on paths `FROM..TO`.
    pub exclude_subgraph: Vec<String>,
    /// Passes that are off otherwise.
    pub enable_pass: Vec<String>,
    /// Passes that do not run.
    pub disable_pass: Vec<String>,
    /// Other types and scales for tensors, or for the constants of nodes; the last that matches wins.
    pub overrides: Vec<OverrideEntry>,
    /// Ranges in a file of another tool, in place of calibration. Not a key of recipes.
    pub ranges: Option<Arc<RangesFile>>,
    /// Notes for the user about how a file was read.
    pub notes: Vec<String>,
}

impl Settings {
    /// These settings, with those of a file where they say nothing; lists are the file's, then these.
    pub fn over(self, file: Settings) -> Settings {
        let joined = |mut first: Vec<String>, second: Vec<String>| {
            first.extend(second);
            first
        };
        Settings {
            preset: self.preset.or(file.preset),
            weights_only: self.weights_only.or(file.weights_only),
            activation: self.activation.or(file.activation),
            weight: self.weight.or(file.weight),
            symmetric: self.symmetric.or(file.symmetric),
            per_channel: self.per_channel.or(file.per_channel),
            per_channel_activations: self.per_channel_activations.or(file.per_channel_activations),
            algorithm: joined(file.algorithm, self.algorithm),
            reduce_range: self.reduce_range.or(file.reduce_range),
            calibration_method: self.calibration_method.or(file.calibration_method),
            weight_method: self.weight_method.or(file.weight_method),
            percentile: self.percentile.or(file.percentile),
            bias: self.bias.or(file.bias),
            form: self.form.or(file.form),
            layout: self.layout.or(file.layout),
            boundary: self.boundary.or(file.boundary),
            op_types: joined(file.op_types, self.op_types),
            more_op_types: joined(file.more_op_types, self.more_op_types),
            exclude_op_types: joined(file.exclude_op_types, self.exclude_op_types),
            nodes: joined(file.nodes, self.nodes),
            exclude: joined(file.exclude, self.exclude),
            exclude_subgraph: joined(file.exclude_subgraph, self.exclude_subgraph),
            enable_pass: joined(file.enable_pass, self.enable_pass),
            disable_pass: joined(file.disable_pass, self.disable_pass),
            overrides: file.overrides.into_iter().chain(self.overrides).collect(),
            ranges: self.ranges.or(file.ranges),
            notes: joined(file.notes, self.notes),
        }
    }
}
