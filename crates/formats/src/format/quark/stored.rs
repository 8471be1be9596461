//! Quark's `quantization_config` of a checkpoint that is quantized already: what its tensors are. More lenient than a
//! recipe where only the quantizing matters, and read further where the running does.

use super::read::{Place, tensor_scheme};
use super::rotation::StoredRotation;
use super::write::WeightFormat;
use crate::format::{ModuleScheme, Pattern};
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::scheme::{ActivationScheme, Timing};
use kvant_weights::recipe_error::RecipeError;
use serde_json::{Map, Value};
use std::collections::HashMap;

/// The modules of a checkpoint as described by a `quantization_config` of Quark.
#[derive(Clone, Debug)]
pub struct StoredQuark {
    default: ModuleScheme,
    layers: Vec<(Pattern, ModuleScheme)>,
    /// The schemes of types of layers, by the names of the types.
    types: HashMap<String, ModuleScheme>,
    exclude: Vec<Pattern>,
    /// Outputs of modules that are otherwise excluded: keys and values.
    cache: Vec<(Pattern, Option<ActivationScheme>)>,
    /// The order of 4-bit codes in words.
    pub order: NibbleOrder,
    /// The storage of the weights.
    pub weight_format: WeightFormat,
    /// Whether keys and values are quantized after the rotary embedding instead of where they are computed.
    pub cache_behind_rotary: bool,
    /// The names of modules that make keys and values.
    pub cache_modules: Vec<Pattern>,
    /// How the probabilities of attention are quantized.
    pub softmax: Option<ActivationScheme>,
    /// Which inputs are rotated while the model runs. All other algorithms have been applied.
    pub(super) rotation: Option<StoredRotation>,
}

const HINT: &str = "dequantize the checkpoint with the tool that made it";

impl StoredQuark {
    /// Reads the `quantization_config`.
    ///
    /// # Errors
    /// *Invalid* where the document is not of Quark's form, *unsupported* for what no scheme expresses and for online
    /// rotations of queries and keys.
    pub fn read(config: &Value) -> Result<StoredQuark, RecipeError> {
        let export = config.get("export").unwrap_or(&Value::Null);
        let word = |key: &str| export.get(key).and_then(Value::as_str);
        let mut layers = configs(config, "layer_quant_config")?;
        // A stable sort: full names come first, the rest stays in order.
        layers.sort_by_key(|(pattern, _)| pattern.has_wildcard());
        let cache = configs(config, "kv_cache_quant_config")?;
        Ok(StoredQuark {
            default: default(config)?,
            types: types(config)?,
            layers,
            exclude: patterns("exclude", config.get("exclude"))?,
            cache: cache.into_iter().map(|(pattern, scheme)| (pattern, scheme.output)).collect(),
            order: if word("pack_method") == Some("order") { NibbleOrder::Natural } else { NibbleOrder::Awq },
            weight_format: match word("weight_format") {
                Some("fake_quantized") => WeightFormat::Fake,
                _ => WeightFormat::Real,
            },
            cache_behind_rotary: config.get("kv_cache_post_rope").and_then(Value::as_bool).unwrap_or(false),
            cache_modules: patterns("export.kv_cache_group", export.get("kv_cache_group"))?,
            softmax: activation("softmax_quant_spec", config.get("softmax_quant_spec"))?,
            rotation: StoredRotation::read(config.get("algo_config"))?,
        })
    }

    /// The description of a module.
    pub fn scheme(&self, module: &str) -> ModuleScheme {
        if self.exclude.iter().any(|pattern| pattern.matches(module)) {
            let output = self.cache.iter().find(|(pattern, _)| pattern.matches(module)).and_then(|(_, output)| *output);
            return ModuleScheme { output, ..ModuleScheme::default() };
        }
        self.entry(module).unwrap_or(self.default)
    }

    /// The description of a module of one of these types of layers.
    pub fn scheme_of_type(&self, module: &str, types: &[&str]) -> ModuleScheme {
        let is_excluded = self.exclude.iter().any(|pattern| pattern.matches(module));
        let of_type = types.iter().find_map(|name| self.types.get(*name)).copied();
        match of_type.filter(|_| !is_excluded && self.entry(module).is_none()) {
            Some(scheme) => scheme,
            None => self.scheme(module),
        }
    }

    /// Whether it quantizes the output of a module whose weight stays in float, by naming the module: the entries for keys,
    /// values and queries do. The default configuration also matches embeddings and norms, which have no output scales.
    pub fn names_output_alone(&self, module: &str) -> bool {
        let is_excluded = self.exclude.iter().any(|pattern| pattern.matches(module));
        let of_entry = || self.entry(module).is_some_and(|scheme| scheme.weight.is_none());
        self.scheme(module).output.is_some() && (is_excluded || of_entry())
    }

    /// Returns whether it quantizes keys and values for the cache.
    pub fn quantizes_cache(&self) -> bool {
        !self.cache_modules.is_empty() || self.cache.iter().any(|(_, output)| output.is_some())
    }

    /// The entry of `layer_quant_config` for a module.
    fn entry(&self, module: &str) -> Option<ModuleScheme> {
        self.layers.iter().find(|(pattern, _)| pattern.matches(module)).map(|(_, scheme)| *scheme)
    }
}

/// The configuration of the type `Linear`, else the global one.
fn default(config: &Value) -> Result<ModuleScheme, RecipeError> {
    let of_type = config.get("layer_type_quant_config").and_then(|types| types.get("Linear"));
    match of_type.or(config.get("global_quant_config")) {
        Some(value) => module_scheme("global_quant_config", value),
        None => Ok(ModuleScheme::default()),
    }
}

fn types(config: &Value) -> Result<HashMap<String, ModuleScheme>, RecipeError> {
    let fields = config.get("layer_type_quant_config").and_then(Value::as_object).into_iter().flatten();
    let read = |(name, value): (&String, &Value)| {
        Ok((name.clone(), module_scheme(&format!("layer_type_quant_config.{name}"), value)?))
    };
    fields.map(read).collect()
}

fn configs(config: &Value, key: &str) -> Result<Vec<(Pattern, ModuleScheme)>, RecipeError> {
    let empty = Map::new();
    let fields = match config.get(key) {
        None | Some(Value::Null) => &empty,
        Some(Value::Object(fields)) => fields,
        Some(_) => return Err(RecipeError::invalid(key, "must be an object", HINT)),
    };
    let read = |(pattern, value): (&String, &Value)| {
        Ok((Pattern::new(key, pattern)?, module_scheme(&format!("{key}.{pattern}"), value)?))
    };
    fields.iter().map(read).collect()
}

fn patterns(place: &str, value: Option<&Value>) -> Result<Vec<Pattern>, RecipeError> {
    let items = value.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).map(|text| Pattern::new(place, text)).collect()
}

fn module_scheme(place: &str, value: &Value) -> Result<ModuleScheme, RecipeError> {
    let tensor = |key: &str| (format!("{place}.{key}"), value.get(key).filter(|value| !value.is_null()));
    let (weight_place, weight) = tensor("weight");
    let (input_place, input) = tensor("input_tensors");
    let (output_place, output) = tensor("output_tensors");
    let (bias_place, bias) = tensor("bias");
    let bias = bias.map(|value| tensor_scheme(&bias_place, value, Place::StoredWeight)).transpose()?;
    let weight = weight.map(|value| tensor_scheme(&weight_place, value, Place::StoredWeight)).transpose()?;
    Ok(ModuleScheme {
        weight: weight.map(|(scheme, _)| scheme),
        bias: bias.map(|(scheme, _)| scheme),
        input: activation(&input_place, input)?,
        output: activation(&output_place, output)?,
    })
}

fn activation(place: &str, value: Option<&Value>) -> Result<Option<ActivationScheme>, RecipeError> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
    let (scheme, timing) = tensor_scheme(place, value, Place::Input)?;
    // Formats that carry their scales have nothing that could be stored.
    Ok(Some(ActivationScheme { scheme, timing: timing.unwrap_or(Timing::Dynamic) }))
}
