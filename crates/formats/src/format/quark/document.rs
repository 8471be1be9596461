//! A whole `quantization_config` of Quark, read as a request.

use super::algorithms::read_algorithms;
use super::attention::read_attention;
use super::read::{bias_scheme, is_empty, layer_scheme};
use super::write::WeightFormat;
use crate::algorithm::Algorithms;
use kvant_model::network::LayerKind;
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::glob::Glob;
use kvant_quant::scheme::{AttentionScheme, LayerScheme, TensorScheme};
use kvant_weights::recipe_error::{RecipeError, quoted};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The linear layers described by a `quantization_config` of Quark.
///
/// A module is looked up in this order: `exclude`, the entries of `layers` (full names before patterns, as Quark does),
/// `default`.
#[derive(Clone, Debug, PartialEq)]
pub struct QuarkConfig {
    /// The default scheme of linear layers; `None` leaves them unquantized.
    pub default: Option<LayerScheme>,
    /// The schemes of other kinds of layers than linear ones; `None` for those that stay as they are.
    pub layer_types: BTreeMap<LayerKind, Option<LayerScheme>>,
    /// The scheme of biases of linear layers; `None` for floats.
    pub bias: Option<TensorScheme>,
    /// Patterns on full module names of quantized layers whose biases have another scheme than those of all, `None` for floats.
    pub layer_biases: Vec<(String, Option<TensorScheme>)>,
    /// The schemes of biases of the other kinds of layers.
    pub layer_type_biases: BTreeMap<LayerKind, Option<TensorScheme>>,
    /// Patterns on full module names and their schemes, `None` for modules that stay as they are.
    pub layers: Vec<(String, Option<LayerScheme>)>,
    /// Patterns on full module names of modules that stay as they are.
    pub exclude: Vec<String>,
    /// The quantization of queries, keys, values and the softmax.
    pub attention: AttentionScheme,
    /// The order of 4-bit codes in words.
    pub order: NibbleOrder,
    /// The storage of the weights.
    pub weight_format: WeightFormat,
    /// The transforms of weights, and their rounding.
    pub algorithms: Algorithms,
    /// Notes for the user about how it was read.
    pub notes: Vec<String>,
}

pub(super) const SPELL_IT: &str = "write a recipe in TOML, or give ‹scheme›, ‹override› and ‹exclude›";

/// The fields that mean something here.
const KNOWN: &[&str] = &[
    "algo_config",
    "exclude",
    "export",
    "global_quant_config",
    "kv_cache_post_rope",
    "kv_cache_quant_config",
    "layer_quant_config",
    "layer_type_quant_config",
    "log_severity_level",
    "quant_method",
    "quant_mode",
    "softmax_quant_spec",
    "version",
];

impl QuarkConfig {
    /// Whether a JSON document looks like Quark's, so that reading it makes sense: the `quantization_config` itself or a
    /// config.json around it.
    pub fn recognizes(value: &Value) -> bool {
        value.get("quantization_config").is_some() || value.get("global_quant_config").is_some()
    }

    /// Reads the `quantization_config`, or a config.json that contains it.
    ///
    /// # Errors
    /// *Invalid* if the document is not in Quark's format, *unsupported* if it requests algorithms that Kvant lacks or
    /// what no scheme expresses.
    ///
    /// ```
    /// use kvant_formats::format::quark::{QuarkConfig, WeightFormat, quantization_config};
    ///
    /// let scheme = "int4:g128".parse()?;
    /// let json = quantization_config(&[("model.fc", scheme)], &["lm_head"], Default::default(), WeightFormat::Real)?;
    /// let read = QuarkConfig::read(&json)?;
    /// assert_eq!((read.default, read.exclude), (Some(scheme), vec!["lm_head".to_owned()]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(value: &Value) -> Result<QuarkConfig, RecipeError> {
        let place = "quantization_config";
        let value = value.get(place).unwrap_or(value);
        let config = value.as_object().ok_or_else(|| RecipeError::invalid(place, "must be an object", SPELL_IT))?;
        check_method(config)?;
        check_fields(config)?;
        let (order, weight_format) = read_export(config.get("export"))?;
        let (default, mut layers) = (read_default(config)?, read_layers(config)?);
        let attention = read_attention(config, default, &mut layers)?;
        let bias = default_config(config)?.map_or(Ok(None), |(place, value)| bias_scheme(&place, value))?;
        let (algorithms, notes) = read_algorithms(config.get("algo_config").unwrap_or(&Value::Null))?;
        Ok(QuarkConfig {
            default,
            layer_types: read_layer_types(config, layer_scheme)?,
            layer_biases: read_layer_biases(config, bias)?,
            layer_type_biases: read_layer_types(config, bias_scheme)?,
            bias,
            layers,
            attention,
            exclude: read_exclude(config.get("exclude"))?,
            order,
            weight_format,
            algorithms,
            notes,
        })
    }

    /// Refuses layers whose biases are quantized otherwise than those of all others, for recipes, which give all layers of a kind one
    /// scheme of biases.
    ///
    /// # Errors
    /// *Unsupported*, with the first such layer.
    pub fn refuse_layer_biases(&self) -> Result<(), RecipeError> {
        let Some((pattern, _)) = self.layer_biases.first() else { return Ok(()) };
        let reason = "gives biases another scheme than those of all layers";
        let place = format!("layer_quant_config.{pattern}");
        Err(RecipeError::unsupported(place, reason, "give all layers one scheme of biases"))
    }
}

fn check_method(config: &Map<String, Value>) -> Result<(), RecipeError> {
    match config.get("quant_method").and_then(Value::as_str) {
        Some("quark") | None if config.contains_key("global_quant_config") => Ok(()),
        Some("quark") | None => {
            Err(RecipeError::invalid("global_quant_config", "is missing from Quark's configuration", SPELL_IT))
        }
        Some(other) => {
            let reason =
                format!("{} cannot be read as a recipe, only `quark` and `compressed-tensors` can", quoted(other));
            Err(RecipeError::unsupported("quant_method", reason, SPELL_IT))
        }
    }
}

fn check_fields(config: &Map<String, Value>) -> Result<(), RecipeError> {
    for (key, value) in config {
        let known = KNOWN.contains(&key.as_str());
        if !known && !is_empty(value) {
            return Err(refuse_field(key));
        }
    }
    match config.get("quant_mode").and_then(Value::as_str) {
        None | Some("eager_mode") => Ok(()),
        Some(other) => Err(RecipeError::unsupported("quant_mode", format!("is {}", quoted(other)), SPELL_IT)),
    }
}

fn refuse_field(key: &str) -> RecipeError {
    RecipeError::unsupported(quoted(key), "is not a known field", "remove the field")
}

/// The configuration of the type `Linear`, else the global one.
fn read_default(config: &Map<String, Value>) -> Result<Option<LayerScheme>, RecipeError> {
    default_config(config)?.map_or(Ok(None), |(place, value)| layer_scheme(&place, value))
}

/// The configuration of linear layers that nothing else is said of, with its place.
fn default_config(config: &Map<String, Value>) -> Result<Option<(String, &Value)>, RecipeError> {
    let of_linear = object(config, LAYER_TYPES)?.find(|(class, _)| *class == "Linear");
    if let Some((_, value)) = of_linear {
        return Ok(Some((format!("{LAYER_TYPES}.Linear"), value)));
    }
    let global = config.get("global_quant_config").filter(|value| !value.is_null());
    Ok(global.map(|value| ("global_quant_config".to_owned(), value)))
}

/// The layers whose biases are quantized otherwise than those of all others.
fn read_layer_biases(
    config: &Map<String, Value>,
    bias: Option<TensorScheme>,
) -> Result<Vec<(String, Option<TensorScheme>)>, RecipeError> {
    let mut others = Vec::new();
    for (pattern, value) in object(config, "layer_quant_config")? {
        let own = bias_scheme(&format!("layer_quant_config.{pattern}"), value)?;
        // Not of outputs alone, which attention is described by, nor of layers that stay.
        let has_weight = value.get("weight").is_some_and(|weight| !weight.is_null());
        if has_weight && own != bias {
            others.push((pattern.clone(), own));
        }
    }
    Ok(others)
}

const LAYER_TYPES: &str = "layer_type_quant_config";

/// The configurations of other classes than `Linear`.
fn read_layer_types<S>(
    config: &Map<String, Value>,
    scheme: impl Fn(&str, &Value) -> Result<Option<S>, RecipeError>,
) -> Result<BTreeMap<LayerKind, Option<S>>, RecipeError> {
    let mut read = BTreeMap::new();
    let given = object(config, LAYER_TYPES)?.filter(|(class, value)| *class != "Linear" && !is_empty(value));
    for (class, value) in given {
        let place = format!("{LAYER_TYPES}.{class}");
        match LayerKind::of_class(class) {
            Some(kind) => _ = read.insert(kind, scheme(&place, value)?),
            None => {
                return Err(RecipeError::unsupported(
                    place,
                    "names a type of layers that Kvant does not quantize",
                    "remove the entry",
                ));
            }
        }
    }
    Ok(read)
}

fn read_layers(config: &Map<String, Value>) -> Result<Vec<(String, Option<LayerScheme>)>, RecipeError> {
    let mut layers = Vec::new();
    for (pattern, value) in object(config, "layer_quant_config")? {
        layers.push((pattern.clone(), layer_scheme(&format!("layer_quant_config.{pattern}"), value)?));
    }
    // A stable sort: full names come first, the rest stays in order.
    layers.sort_by_key(|(pattern, _)| Glob::new(pattern).has_wildcard());
    Ok(layers)
}

/// The fields of the object called `key`, none where there is no such object.
pub(super) fn object<'a>(
    config: &'a Map<String, Value>,
    key: &str,
) -> Result<impl Iterator<Item = (&'a String, &'a Value)>, RecipeError> {
    let fields = match config.get(key) {
        None | Some(Value::Null) => None,
        Some(Value::Object(fields)) => Some(fields),
        Some(_) => return Err(RecipeError::invalid(key, "must be an object", SPELL_IT)),
    };
    Ok(fields.into_iter().flatten())
}

fn read_exclude(value: Option<&Value>) -> Result<Vec<String>, RecipeError> {
    let wrong = || RecipeError::invalid("exclude", "must be a list of strings", SPELL_IT);
    match value {
        None | Some(Value::Null) => Ok(vec![]),
        Some(Value::Array(items)) => {
            items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
        }
        Some(_) => Err(wrong()),
    }
}

fn read_export(export: Option<&Value>) -> Result<(NibbleOrder, WeightFormat), RecipeError> {
    let field = |key: &str| export.and_then(|export| export.get(key)).filter(|value| !value.is_null());
    let order = match field("pack_method").map(Value::as_str) {
        None | Some(Some("reorder")) => NibbleOrder::Awq,
        Some(Some("order")) => NibbleOrder::Natural,
        Some(_) => return Err(RecipeError::invalid("export.pack_method", "must be `reorder` or `order`", SPELL_IT)),
    };
    let weight_format = match field("weight_format").map(Value::as_str) {
        None | Some(Some("real_quantized")) => WeightFormat::Real,
        Some(Some("fake_quantized")) => WeightFormat::Fake,
        Some(_) => {
            let reason = "must be `real_quantized` or `fake_quantized`";
            return Err(RecipeError::invalid("export.weight_format", reason, SPELL_IT));
        }
    };
    Ok((order, weight_format))
}
