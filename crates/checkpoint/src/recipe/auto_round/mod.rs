//! Recipes of AutoRound: the `quantization_config` that it saves with a checkpoint, the arguments of its class as a JSON object, and a
//! `layer_config` of its own. What Kvant cannot express is refused by name.

mod scheme;
#[cfg(test)]
mod tests;

use kvant_formats::algorithm::Algorithms;
use kvant_formats::format::compressed_tensors::{is_empty, object};
use kvant_quant::glob::Glob;
use kvant_quant::recipe::{OverrideEntry, RecipeFile};
use kvant_weights::recipe_error::{RecipeError, quoted};
use scheme::{KEEP, LAYER_KEYS, LayerFields, SCHEME_KEYS};
use serde_json::{Map, Value};

const REMOVE: &str = "remove it, or write a recipe in Kvant's TOML";

/// Keys that say how a checkpoint is stored or made, and ask for nothing that others do not.
const OF_STORAGE: &[&str] = &[
    "activation_scheme",
    "autoround_version",
    "block_name_to_quantize",
    "fmt",
    "model_free",
    "output_dir",
    "quant_method",
    "to_quant_block_names",
    "weight_block_size",
];
/// Keys that change how the result is computed, and hardly the result.
const OF_COMPUTATION: &[&str] = &[
    "amp",
    "batch_size",
    "device",
    "device_map",
    "enable_deterministic_algorithms",
    "enable_torch_compile",
    "gradient_accumulate_steps",
    "low_cpu_mem_usage",
    "low_gpu_mem_usage",
];
/// Keys of calibration data.
const OF_DATA: &[&str] = &["dataset", "nsamples", "seqlen"];
/// Keys of learned rounding.
const OF_ROUNDING: &[&str] = &["enable_minmax_tuning", "iters", "lr", "minmax_lr", "seed"];
/// Keys that are read by name.
const READ: &[&str] = &[
    "enable_quanted_input",
    "extra_config",
    "format",
    "ignore_layers",
    "layer_config",
    "packing_format",
    "quant_lm_head",
    "rotation_config",
    "scale_dtype",
    "scheme",
    "static_attention_granularity",
    "static_kv_dtype",
    "static_kv_granularity",
    "super_bits",
    "super_group_size",
];

/// Steps on a block where nothing else is said.
const ITERATIONS: u64 = 200;

/// How far codes may move at most, the limit of `autoround:reach`.
const MOST_REACH: f32 = 10.0;

/// Returns whether a document is one of these.
pub(super) fn recognizes(value: &Value) -> bool {
    let config = value.get("quantization_config").unwrap_or(value);
    let is_of_method =
        config.get("quant_method").and_then(Value::as_str).is_some_and(|name| name.ends_with("auto-round"));
    is_of_method || value.get("layer_config").is_some() || is_layer_config(value)
}

/// Returns whether a document is a `layer_config` alone: names of layers with schemes, or with some of their fields.
fn is_layer_config(value: &Value) -> bool {
    let Some(layers) = value.as_object() else { return false };
    let is_scheme = |value: &Value| match value {
        Value::Object(fields) => !fields.is_empty() && fields.keys().all(|key| LAYER_KEYS.contains(&key.as_str())),
        Value::String(_) => true,
        _ => false,
    };
    layers.values().any(Value::is_object) && layers.values().all(is_scheme)
}

/// Reads such a document.
///
/// # Errors
/// *Invalid* where it is not of AutoRound's form, *unsupported* for what Kvant cannot express.
pub(super) fn read_recipe(value: &Value) -> Result<RecipeFile, RecipeError> {
    if is_layer_config(value) {
        return read_layer_config(value);
    }
    let fields = object("quantization_config", value.get("quantization_config").unwrap_or(value))?;
    for (key, value) in fields {
        let lists = [OF_STORAGE, OF_COMPUTATION, OF_DATA, OF_ROUNDING, READ, SCHEME_KEYS];
        let is_known = lists.iter().any(|list| list.contains(&key.as_str()));
        if !is_known && !is_empty(value) {
            return Err(unknown(key));
        }
    }
    let default = LayerFields::of_scheme("scheme", fields.get("scheme"))?.with("", fields)?;
    let scheme = default.spelling("quantization_config")?;
    let mut rules = Rules::default();
    if fields.get("quant_lm_head") == Some(&Value::Bool(true)) {
        rules.names.push(("lm_head".to_owned(), scheme.clone()));
    }
    for key in ["layer_config", "extra_config"] {
        if let Some(layers) = fields.get(key).filter(|value| !is_empty(value)) {
            rules.add(key, object(key, layers)?, &default)?;
        }
    }
    let (algorithm, mut notes) = (algorithm(fields)?, Vec::new());
    if let Some(key) = OF_DATA.iter().find(|key| fields.get(**key).is_some_and(|value| !is_empty(value))) {
        notes.push(format!("{key} is not used: ‹calib›, ‹num-samples› and ‹seq-len› say what the data are"));
    }
    if !algorithm.is_empty() && !fields.contains_key("iters") {
        notes.push(format!("iters is not given, which stands for {ITERATIONS}: ‹algorithm› rtn for none"));
    }
    Ok(RecipeFile {
        format: format(fields, &default)?,
        algorithm,
        exclude: ignored(fields)?,
        kv_cache: cache(fields)?,
        overrides: rules.overrides(),
        scheme: Some(scheme),
        notes,
        ..RecipeFile::default()
    })
}

/// A `layer_config` without the arguments that it is given beside: fields that are not given are those of AutoRound's usual scheme.
fn read_layer_config(value: &Value) -> Result<RecipeFile, RecipeError> {
    let default = LayerFields::default();
    let mut rules = Rules::default();
    rules.add("layer_config", object("layer_config", value)?, &default)?;
    let note = "the file names layers, and no scheme for the others: ‹scheme› gives it. What it leaves out of a layer's scheme is as in W4A16";
    Ok(RecipeFile {
        scheme: Some(KEEP.to_owned()),
        overrides: rules.overrides(),
        notes: vec![note.to_owned()],
        ..RecipeFile::default()
    })
}

fn unknown(place: &str) -> RecipeError {
    RecipeError::unsupported(place, "is not a key of AutoRound that Kvant knows", REMOVE)
}

/// Which layers get which scheme. A name is any part of a layer's: `mlp.gate` stands for all that contain it. Names win over expressions, and longer
/// names over shorter ones.
#[derive(Default)]
struct Rules {
    expressions: Vec<(String, String)>,
    names: Vec<(String, String)>,
}

impl Rules {
    fn add(&mut self, place: &str, layers: &Map<String, Value>, default: &LayerFields) -> Result<(), RecipeError> {
        for (name, value) in layers {
            let place = format!("{place}.{name}");
            let fields = match value {
                Value::String(_) => LayerFields::of_scheme(&place, Some(value))?,
                _ => {
                    let own = object(&place, value)?;
                    let unknown_key = own.keys().find(|key| !LAYER_KEYS.contains(&key.as_str()));
                    if let Some(key) = unknown_key.filter(|key| !is_empty(&own[key.as_str()])) {
                        return Err(unknown(&format!("{place}.{key}")));
                    }
                    let base = match own.get("scheme") {
                        Some(scheme) => LayerFields::of_scheme(&format!("{place}.scheme"), Some(scheme))?,
                        None => default.clone(),
                    };
                    base.with(&place, own)?
                }
            };
            let scheme = fields.spelling(&place)?;
            if is_expression(name) {
                self.expressions.push((expression(&place, name)?, scheme));
            } else {
                self.names.push((name.clone(), scheme));
            }
        }
        Ok(())
    }

    fn overrides(mut self) -> Vec<OverrideEntry> {
        self.names.sort_by_key(|(name, _)| name.len());
        let names = self.names.into_iter().map(|(name, scheme)| (format!("*{}*", Glob::escape(&name)), scheme));
        self.expressions
            .into_iter()
            .chain(names)
            .map(|(layers, scheme)| OverrideEntry::of_layers(layers, scheme))
            .collect()
    }
}

/// What AutoRound takes for a regular expression.
fn is_expression(name: &str) -> bool {
    name.contains(".*") || name.contains(['^', '$', '|', '(', ')', '[', ']', '?', '+', '\\'])
}

/// An expression that is looked for anywhere in a name.
fn expression(place: &str, name: &str) -> Result<String, RecipeError> {
    let text = format!("re:.*(?:{name})");
    match Glob::new(&text).problem() {
        None => Ok(text),
        Some(problem) => Err(RecipeError::invalid(place, format!("is not a regular expression: {problem}"), REMOVE)),
    }
}

/// The layers that stay as they are: texts that their names contain, with commas between them.
fn ignored(fields: &Map<String, Value>) -> Result<Vec<String>, RecipeError> {
    let Some(value) = fields.get("ignore_layers").filter(|value| !is_empty(value)) else { return Ok(Vec::new()) };
    let invalid = || RecipeError::invalid("ignore_layers", "is not a text", "write names with commas between them");
    let names = value.as_str().ok_or_else(invalid)?.split(',').map(str::trim).filter(|name| !name.is_empty());
    // A number at the end is that of a whole block.
    let whole = |name: &str| if name.ends_with(|c: char| c.is_ascii_digit()) { "." } else { "" };
    Ok(names.map(|name| format!("*{}{}*", Glob::escape(name), whole(name))).collect())
}

/// The scheme of keys and values.
fn cache(fields: &Map<String, Value>) -> Result<Option<String>, RecipeError> {
    let Some(value) = fields.get("static_kv_dtype").filter(|value| !is_empty(value)) else { return Ok(None) };
    for key in ["static_kv_granularity", "static_attention_granularity"] {
        if fields.get(key).is_some_and(|value| !is_empty(value) && value != "tensor") {
            return Err(RecipeError::unsupported(
                key,
                "only one scale for the tensor is supported",
                "set it to `tensor`",
            ));
        }
    }
    match value.as_str() {
        Some("fp8" | "float8_e4m3fn" | "torch.float8_e4m3fn") => Ok(Some("fp8".to_owned())),
        other => {
            let reason = format!("{} is not a type for keys and values", quoted(other.unwrap_or("it")));
            Err(RecipeError::unsupported("static_kv_dtype", reason, "use fp8, or ‹kv-cache›"))
        }
    }
}

/// The checkpoint format, if the document names one that Kvant writes.
fn format(fields: &Map<String, Value>, default: &LayerFields) -> Result<Option<String>, RecipeError> {
    let key = if fields.contains_key("packing_format") { "packing_format" } else { "format" };
    let Some(value) = fields.get(key).filter(|value| !is_empty(value)) else { return Ok(None) };
    let text = value.as_str().ok_or_else(|| RecipeError::invalid(key, "is not a text", REMOVE))?;
    let name = match text {
        "auto_round:auto_gptq" | "auto_gptq" | "gptq" | "auto_gptq:exllamav2" => Some("gptq"),
        "auto_round:auto_awq" | "auto_awq" | "awq" => Some("awq"),
        "llm_compressor" | "auto_round:llm_compressor" => Some("compressed-tensors"),
        // Its own layout of integers with zero points is GPTQ's second one.
        "auto_round" | "auto_round:exllamav2" | "auto_round:tritonv2" if default.is_weights_only_integers() => {
            Some("gptq_v2")
        }
        _ if text.starts_with("auto_round") => Some("compressed-tensors"),
        "fake" => Some("fake"),
        _ => {
            let reason = format!("the format {} is not written", quoted(text));
            return Err(RecipeError::unsupported(key, reason, "remove it; `kvant list formats` shows what there is"));
        }
    };
    Ok(name.map(str::to_owned))
}

/// Learned rounding with the steps of the document. AutoRound gives the length of the first step, and Kvant how far all reach.
fn algorithm(fields: &Map<String, Value>) -> Result<Vec<String>, RecipeError> {
    let number = |key: &str| match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let invalid = || RecipeError::invalid(key, "is not a number of at least 0", "give a number");
            value.as_f64().filter(|number| *number >= 0.0).map(Some).ok_or_else(invalid)
        }
    };
    // Rounding to nearest is saved without steps, and as seeing inputs in float.
    let sees_floats = fields.get("enable_quanted_input") == Some(&Value::Bool(false));
    let iterations = match number("iters")? {
        Some(iterations) => iterations,
        None if sees_floats => 0.0,
        None => ITERATIONS as f64,
    };
    if iterations == 0.0 {
        return Ok(Vec::new());
    }
    if sees_floats {
        let reason = "`false` tunes blocks on inputs of the float model";
        let hint = "remove it, and give ‹propagate› float for the same";
        return Err(RecipeError::unsupported("enable_quanted_input", reason, hint));
    }
    // Scales move by a fifth of what codes do, in their own units.
    let usual = 1.0 / iterations;
    let rate = number("lr")?.filter(|rate| *rate > 0.0);
    let of_scales = number("minmax_lr")?.filter(|rate| *rate > 0.0).or(rate);
    let reach = |rate: Option<f64>| (rate.unwrap_or(usual) * iterations / 2.0) as f32;
    let is_fixed = fields.get("enable_minmax_tuning") == Some(&Value::Bool(false));
    let scales = if is_fixed { 0.0 } else { (0.2 * reach(of_scales)).min(1.0) };
    if let Some(rate) = rate.filter(|rate| reach(Some(*rate)) > MOST_REACH) {
        let reason = format!("{rate} in {iterations} steps moves codes by more than {MOST_REACH} on the whole");
        return Err(RecipeError::invalid("lr", reason, "give a smaller rate, or remove it"));
    }
    let mut spelling = format!("autoround:iterations={iterations}:reach={}:scales={scales}", reach(rate));
    if let Some(seed) = fields.get("seed").and_then(Value::as_u64) {
        spelling.push_str(&format!(":seed={seed}"));
    }
    Ok(Algorithms::of_list("iters", &[spelling])?.spellings())
}
