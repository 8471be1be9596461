//! A recipe as it is written: on the command line or in a TOML file, every part optional. What it means together with its preset is
//! [`Settings::resolve`]; what a file looks like is in [`file`].

mod as_text;
mod contradiction;
mod error;
mod file;
mod override_text;
mod resolve;

pub use error::SettingsError;
pub use override_text::OverrideText;
pub use resolve::Resolved;

use serde::{Deserialize, Serialize};

use crate::element::Element;
use crate::recipe::{BiasKind, Boundary, Form};
use kvant_quant::observer::ObserverRef;

/// The version of the fields.
pub const VERSION: u32 = 1;

/// How quantization is expressed in a graph, where a preset leaves the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PairLayout {
    /// QuantizeLinear and DequantizeLinear around float operators.
    Qdq,
    /// Integer operators.
    Qoperator,
}

/// A recipe as it is written. The fields are those of a TOML recipe:
///
/// ```
/// use kvant_onnx::settings::Settings;
///
/// let file = Settings::from_toml("recipe.toml", r#"
///     version = 1
///     preset = "A8W8"                     # `kvant list presets`
///     per_channel = true
///     calibration_method = "entropy"
///     exclude = ["/head/*"]               # nodes that stay in float
///
///     [[override]]                        # the last that matches wins
///     tensors = "/stem/conv/Conv_output_0"
///     scheme = "int16"                    # a type, `channel` or `tensor`, `symmetric` or `asymmetric`, a method; or `keep`
/// "#)?;
/// let recipe = file.resolve()?.recipe;
/// assert!(recipe.weight.per_channel && recipe.overrides.len() == 1);
/// # Ok::<(), kvant_onnx::settings::SettingsError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Of the fields; in files only, where it must be [`VERSION`].
    pub version: Option<u32>,
    /// The preset that all else changes.
    pub preset: Option<String>,
    /// Whether activations stay in float.
    pub weights_only: Option<bool>,
    /// The element type of activations.
    #[serde(with = "as_text")]
    pub activation: Option<Element>,
    /// The element type of weights.
    #[serde(with = "as_text")]
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
    /// How ranges of activations are found.
    #[serde(with = "as_text")]
    pub calibration_method: Option<ObserverRef>,
    /// How ranges of weights are found.
    #[serde(with = "as_text")]
    pub weight_method: Option<ObserverRef>,
    /// Percent of the values inside the range.
    pub percentile: Option<f64>,
    /// What becomes of biases.
    #[serde(with = "as_text")]
    pub bias: Option<BiasKind>,
    /// The operators of the result.
    #[serde(with = "as_text")]
    pub form: Option<Form>,
    /// How quantization is expressed.
    pub layout: Option<PairLayout>,
    /// What the graph takes and gives.
    #[serde(with = "as_text")]
    pub boundary: Option<Boundary>,
    /// Only these operators.
    pub op_types: Vec<String>,
    /// These operators as well.
    pub more_op_types: Vec<String>,
    /// Not these operators.
    pub exclude_op_types: Vec<String>,
    /// Only nodes whose names match.
    pub nodes: Vec<String>,
    /// Not the nodes whose names match.
    pub exclude: Vec<String>,
    /// Not the nodes on paths `FROM..TO`.
    pub exclude_subgraph: Vec<String>,
    /// Passes that are off otherwise.
    pub enable_pass: Vec<String>,
    /// Passes that do not run.
    pub disable_pass: Vec<String>,
    /// Other types and scales for tensors; the last that matches wins.
    #[serde(rename = "override")]
    pub overrides: Vec<OverrideText>,
}

impl Settings {
    /// These settings, with those of a file where they say nothing; lists are the file's, then these.
    pub fn over(self, file: Settings) -> Settings {
        let joined = |mut first: Vec<String>, second: Vec<String>| {
            first.extend(second);
            first
        };
        Settings {
            version: file.version,
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
        }
    }
}
