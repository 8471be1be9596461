//! The recipe language: the keys of recipe files, the same for checkpoints, GGUF files and ONNX graphs. Values are text, numbers
//! and lists here. The meaning of a key is resolved where that kind of model is quantized.

mod error;
mod keys;
mod overrides;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use error::RecipeFileError;
pub use keys::{KEYS, Key, ModelKind};
pub use overrides::OverrideEntry;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the recipe language that Kvant writes.
///
/// * In version 1, the exclusions of a file win over its overrides.
/// * In version 2, the last match wins throughout. `exclude` comes before the overrides of a file, so that an override can quantize a
///   layer that a broader exclusion names.
///
/// In both, the rules of the command line come after those of the file.
pub const VERSION: u32 = 2;

/// A recipe file, as it is written. A key that is not given is `None`, or an empty list.
///
/// ```
/// use kvant_quant::recipe::RecipeFile;
///
/// let file = RecipeFile::from_toml("recipe.toml", r#"
///     version = 2
///     scheme = "int8:channel"
///     exclude = ["*.0.*"]
///
///     [[override]]                   # the last rule that matches wins
///     layers = "*.down_proj"
///     scheme = "int4:channel"
/// "#)?;
/// assert_eq!((file.scheme.as_deref(), file.overrides.len()), (Some("int8:channel"), 1));
/// # Ok::<(), kvant_quant::recipe::RecipeFileError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecipeFile {
    /// The version of the language: 1 or 2.
    pub version: u32,
    /// The scheme of everything that no other rule matches: a name or a spelling.
    pub scheme: Option<String>,
    /// Whether activations stay in float.
    pub weights_only: Option<bool>,
    /// The observer that finds the scales of weights.
    pub scales: Option<String>,
    /// The algorithms in order, each spelled with its options: `awq`, `gptq:damping=0.05`.
    #[serde(deserialize_with = "read::algorithms")]
    pub algorithm: Vec<String>,
    /// Patterns of layers that stay in float.
    pub exclude: Vec<String>,
    /// The quantization of biases: for checkpoints a scheme.
    pub bias: Option<String>,
    /// The checkpoint format to write.
    pub format: Option<String>,
    /// Further formats that the result is converted to.
    pub also: Vec<String>,
    /// The order of 4-bit codes in AMD Quark's format.
    pub pack_method: Option<String>,
    /// Whether output heads and routers stay in float.
    pub keep_defaults: Option<bool>,
    /// Schemes of kinds of layers, such as `conv2d`.
    #[serde(deserialize_with = "read::layer_types")]
    pub layer_types: BTreeMap<String, String>,
    /// A file with statistics of the inputs of layers, relative to the recipe.
    pub statistics: Option<String>,
    /// Schemes of the biases of kinds of layers, of the tables in `layer_types`.
    #[serde(skip)]
    pub layer_type_biases: BTreeMap<String, String>,
    /// The scheme of keys and values in the cache.
    pub kv_cache: Option<String>,
    /// Whether keys are quantized after the rotary embedding.
    pub kv_cache_post_rope: Option<bool>,
    /// The smallest scale of keys and values.
    pub min_kv_scale: Option<f32>,
    /// The scheme of queries.
    pub queries: Option<String>,
    /// The scheme of the softmax output.
    pub probabilities: Option<String>,
    /// The maximum size of an output file.
    pub max_shard_size: Option<String>,
    /// The seed of random numbers.
    pub seed: Option<u64>,
    /// Whether a source that is already quantized is accepted.
    pub requantize: Option<bool>,
    /// The element type of activations.
    pub activation: Option<String>,
    /// The element type of weights.
    pub weight: Option<String>,
    /// Whether the codes of activations are symmetric around zero.
    pub symmetric: Option<bool>,
    /// Whether each output channel of a weight has a scale.
    pub per_channel: Option<bool>,
    /// Whether each channel of an activation has a scale.
    pub per_channel_activations: Option<bool>,
    /// Whether weights use only half of their codes.
    pub reduce_range: Option<bool>,
    /// The observer of activations.
    pub calibration_method: Option<String>,
    /// The observer of weights.
    pub weight_method: Option<String>,
    /// The percentage of values inside the range.
    pub percentile: Option<f64>,
    /// The operators of the result.
    pub op_domain: Option<String>,
    /// Q/DQ pairs or integer operators.
    pub graph_format: Option<String>,
    /// The type of the graph's inputs and outputs.
    pub io_dtype: Option<String>,
    /// The only operators that are quantized.
    pub op_types: Vec<String>,
    /// Operators that are quantized as well.
    pub more_op_types: Vec<String>,
    /// Operators that stay in float.
    pub exclude_op_types: Vec<String>,
    /// Patterns of the only nodes that are quantized.
    pub nodes: Vec<String>,
    /// Nodes on paths `FROM..TO`, which stay in float.
    pub exclude_subgraph: Vec<String>,
    /// Passes that run in addition.
    pub enable_pass: Vec<String>,
    /// Passes that do not run.
    pub disable_pass: Vec<String>,
    /// Other schemes for some layers or tensors.
    #[serde(skip_deserializing, rename = "override")]
    pub overrides: Vec<OverrideEntry>,
    /// The file's name, for messages.
    #[serde(skip)]
    pub name: String,
    /// Whether it was read from the configuration or recipe of another tool. Such lists of exclusions name the layers of many models,
    /// and win over everything else.
    #[serde(skip)]
    pub is_foreign: bool,
    /// Notes for the user about how it was read.
    #[serde(skip)]
    pub notes: Vec<String>,
}

impl RecipeFile {
    /// Returns whether exclusions are the last rules of the file, so that they win over overrides.
    pub fn exclusions_win(&self) -> bool {
        self.version < VERSION || self.is_foreign
    }

    /// Refuses keys that have no meaning for this kind of model.
    ///
    /// # Errors
    /// *Unsupported*, naming the first such key.
    pub fn refuse_keys_of_others(&self, kind: ModelKind) -> Result<(), RecipeFileError> {
        let given = self.given();
        let foreign = KEYS.iter().find(|key| given.contains_key(key.name) && !key.applies_to(kind));
        match foreign {
            None => Ok(()),
            Some(key) => Err(RecipeFileError::unsupported(
                &self.name,
                format!("`{}` does not apply to {kind}", key.name),
                format!("remove it: it is a key of recipes for {}", key.models()),
            )),
        }
    }

    /// The keys that are given, with their values.
    fn given(&self) -> serde_json::Map<String, serde_json::Value> {
        // Serializing plain text, numbers and lists does not fail.
        let all = serde_json::to_value(self).unwrap_or_default();
        let is_empty = |value: &serde_json::Value| match value {
            serde_json::Value::Array(list) => list.is_empty(),
            serde_json::Value::Object(table) => table.is_empty(),
            value => value.is_null(),
        };
        let fields = match all {
            serde_json::Value::Object(fields) => fields,
            _ => serde_json::Map::new(),
        };
        fields.into_iter().filter(|(_, value)| !is_empty(value)).collect()
    }
}
