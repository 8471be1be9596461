//! The `quantization_config` of compressed-tensors as a recipe: which modules get which scheme. Recipes of llm-compressor describe
//! schemes in the same words. What Kvant cannot express is refused by name.

use super::packing_format::Format;
use super::read::{StoredArgs, is_class};
use crate::format::Pattern;
use kvant_quant::glob::Glob;
use kvant_quant::recipe::{OverrideEntry, RecipeFile};
use kvant_quant::scheme::{ActivationScheme, LayerScheme, TensorScheme, Timing};
use kvant_weights::recipe_error::{Problem, RecipeError, quoted};
use serde::Deserialize;
use serde_json::{Map, Value};

const HINT: &str = "remove it, or write a recipe in Kvant's TOML (`kvant list schemes`)";

/// Keys that say how a checkpoint is stored, and ask for nothing.
const OF_STORAGE: &[&str] = &["global_compression_ratio", "quant_method", "quantization_status", "version"];

/// Returns whether a JSON object is such a configuration.
pub fn recognizes(config: &Value) -> bool {
    config.get("config_groups").is_some()
        || config.get("quant_method").and_then(Value::as_str) == Some("compressed-tensors")
}

/// Reads a `quantization_config` as a recipe.
///
/// # Errors
/// *Invalid* where the document is not of the library's form, *unsupported* for what Kvant cannot express.
pub fn read_recipe(config: &Value) -> Result<RecipeFile, RecipeError> {
    let fields = object("quantization_config", config)?;
    let mut rules = SchemeRules::default();
    for (key, value) in fields {
        match key.as_str() {
            "config_groups" if !is_empty(value) => rules.add_groups(key, value)?,
            "ignore" => rules.ignore(key, value)?,
            "kv_cache_scheme" => rules.cache(key, value)?,
            "format" => check_format(key, value)?,
            "sparsity_config" if value.get("format").and_then(Value::as_str) == Some("dense") => {}
            "sparsity_config" if !is_empty(value) => {
                return Err(RecipeError::unsupported(key, "Kvant does not prune weights", HINT));
            }
            "transform_config" if value.get("config_groups").is_some_and(|groups| !is_empty(groups)) => {
                return Err(RecipeError::unsupported(key, "transforms of activations are not computed", HINT));
            }
            "transform_config" => {}
            key if OF_STORAGE.contains(&key) || is_empty(value) => {}
            _ => return Err(unknown(key)),
        }
    }
    rules.recipe(Vec::new())
}

fn unknown(place: &str) -> RecipeError {
    RecipeError::unsupported(place, "is not a key that Kvant knows", "remove it")
}

/// Returns whether a value requests nothing.
pub fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// The fields of an object.
pub fn object<'v>(place: &str, value: &'v Value) -> Result<&'v Map<String, Value>, RecipeError> {
    value.as_object().ok_or_else(|| RecipeError::invalid(place, "must be a mapping of keys to values", HINT))
}

/// A text, or a list of texts.
pub fn texts<'v>(place: &str, value: &'v Value) -> Result<Vec<&'v str>, RecipeError> {
    let invalid = || RecipeError::invalid(place, "must be a text or a list of texts", HINT);
    match value {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => Ok(vec![text]),
        Value::Array(items) => items.iter().map(|item| item.as_str().ok_or_else(invalid)).collect(),
        _ => Err(invalid()),
    }
}

/// Which modules get which scheme. In compressed-tensors exact names come before expressions, and these before classes; of several of a
/// kind the first counts.
#[derive(Default)]
pub struct SchemeRules {
    /// Of the class `Linear`.
    of_class: Option<String>,
    names: Vec<(String, String)>,
    expressions: Vec<(String, String)>,
    ignored: Vec<String>,
    kv_cache: Option<String>,
    /// Whether a group has an `actorder`.
    pub is_ordered: bool,
    /// Notices for the user.
    pub notes: Vec<String>,
}

impl SchemeRules {
    /// Adds the groups of an object.
    pub fn add_groups(&mut self, place: &str, groups: &Value) -> Result<(), RecipeError> {
        for (name, group) in object(place, groups)? {
            let place = format!("{place}.{name}");
            let fields = object(&place, group)?;
            let targets = texts(&format!("{place}.targets"), fields.get("targets").unwrap_or(&Value::Null))?;
            let scheme = self.scheme(&place, fields)?;
            self.add(&format!("{place}.targets"), &targets, scheme)?;
        }
        Ok(())
    }

    /// The spelling of a group's scheme; `keep` where it quantizes nothing.
    pub fn scheme(&mut self, place: &str, group: &Map<String, Value>) -> Result<String, RecipeError> {
        for (key, value) in group {
            match key.as_str() {
                "targets" | "weights" | "input_activations" | "output_activations" => {}
                "format" => check_format(&format!("{place}.{key}"), value)?,
                _ if is_empty(value) => {}
                _ => return Err(unknown(&format!("{place}.{key}"))),
            }
        }
        let weight = self.weight(&format!("{place}.weights"), group.get("weights"))?;
        let activation = |key: &str| activation(&format!("{place}.{key}"), group.get(key));
        match (weight, activation("input_activations")?, activation("output_activations")?) {
            (Some(weight), input, output) => Ok(LayerScheme { weight, input, output }.to_string()),
            (None, None, None) => Ok("keep".to_owned()),
            (None, ..) => Err(RecipeError::unsupported(
                place,
                "quantizes activations of layers whose weights stay in float",
                HINT,
            )),
        }
    }

    /// Gives modules a scheme.
    pub fn add(&mut self, place: &str, targets: &[&str], scheme: String) -> Result<(), RecipeError> {
        for target in targets {
            if *target == "Linear" {
                self.of_class.get_or_insert_with(|| scheme.clone());
            } else if is_class(target) {
                let reason =
                    format!("{} is not a class of linear layers, and Kvant quantizes no others", quoted(target));
                let hint = "remove the target; keys, values and queries have ‹kv-cache› and ‹attention›";
                return Err(RecipeError::unsupported(place, reason, hint));
            } else if target.starts_with("re:") {
                Pattern::new(place, target)?;
                self.expressions.push(((*target).to_owned(), scheme.clone()));
            } else {
                self.names.push((Glob::escape(target), scheme.clone()));
            }
        }
        Ok(())
    }

    /// Leaves modules in float. Classes other than `Linear` are in float anyway.
    pub fn ignore(&mut self, place: &str, value: &Value) -> Result<(), RecipeError> {
        for text in texts(place, value)? {
            if text == "Linear" {
                return Err(RecipeError::invalid(place, "excluding `Linear` leaves nothing to quantize", "remove it"));
            }
            if text.starts_with("re:") {
                Pattern::new(place, text)?;
                self.ignored.push(text.to_owned());
            } else if !is_class(text) {
                self.ignored.push(Glob::escape(text));
            }
        }
        Ok(())
    }

    /// Quantizes keys and values.
    pub fn cache(&mut self, place: &str, value: &Value) -> Result<(), RecipeError> {
        if let Some(scheme) = activation(place, Some(value))? {
            self.kv_cache = Some(scheme.to_string());
        }
        Ok(())
    }

    /// Returns whether any module gets a scheme.
    pub fn is_empty(&self) -> bool {
        self.of_class.is_none() && self.names.is_empty() && self.expressions.is_empty()
    }

    /// The recipe with these algorithms.
    pub fn recipe(mut self, algorithm: Vec<String>) -> Result<RecipeFile, RecipeError> {
        if self.is_empty() {
            let reason = match &self.kv_cache {
                Some(_) => "quantizes keys and values, and no weights",
                None => "quantizes nothing",
            };
            let hint = "add a scheme for weights; Kvant quantizes the cache together with them";
            return Err(RecipeError::unsupported("the recipe", reason, hint));
        }
        let ignores_head = self.ignored.iter().any(|pattern| Glob::new(pattern).matches("lm_head"));
        if self.of_class.is_some() && !ignores_head {
            let note = "output heads and routers stay in float, though `ignore` does not name them: ‹no-keep-defaults› quantizes them";
            self.notes.push(note.to_owned());
        }
        if self.is_ordered && !algorithm.iter().any(|spelling| spelling.starts_with("gptq")) {
            let note =
                "actorder is not used: it orders the columns for GPTQ, which is not requested (‹algorithm› gptq)";
            self.notes.push(note.to_owned());
        }
        // The last match wins, and exclusions of other tools come last.
        let rules = self.expressions.into_iter().rev().chain(self.names.into_iter().rev());
        Ok(RecipeFile {
            scheme: Some(self.of_class.unwrap_or_else(|| "keep".to_owned())),
            format: Some("compressed-tensors".to_owned()),
            algorithm,
            exclude: self.ignored,
            kv_cache: self.kv_cache,
            overrides: rules.map(|(layers, scheme)| OverrideEntry::of_layers(layers, scheme)).collect(),
            notes: self.notes,
            ..RecipeFile::default()
        })
    }

    fn weight(&mut self, place: &str, value: Option<&Value>) -> Result<Option<TensorScheme>, RecipeError> {
        let Some(args) = Args::read(place, value)? else { return Ok(None) };
        if args.timing != Timing::Static {
            let hint = "set dynamic to false";
            return Err(RecipeError::unsupported(format!("{place}.dynamic"), "weights have no dynamic scales", hint));
        }
        match args.fields.get("actorder") {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(value) => {
                check_order(&format!("{place}.actorder"), value)?;
                self.is_ordered = true;
            }
        }
        let observer = match args.observer.as_deref() {
            None | Some("minmax" | "memoryless_minmax" | "static_minmax") => "",
            Some("mse" | "memoryless_mse") => ":mse",
            Some(other) => return Err(args.refuse_observer(other)),
        };
        args.scheme(observer).map(Some)
    }
}

/// Refuses an order of columns that has to be stored beside the weights.
pub fn check_order(place: &str, value: &Value) -> Result<(), RecipeError> {
    match value.as_str() {
        Some("weight" | "static") => Ok(()),
        Some("group" | "dynamic") | None => {
            let reason = "groups of reordered columns are not made: loaders are slower with them";
            Err(RecipeError::unsupported(place, reason, "use `static`, which is as accurate"))
        }
        Some(other) => {
            Err(RecipeError::invalid(place, format!("{} is not a column order", quoted(other)), "use `static`"))
        }
    }
}

fn activation(place: &str, value: Option<&Value>) -> Result<Option<ActivationScheme>, RecipeError> {
    let Some(args) = Args::read(place, value)? else { return Ok(None) };
    let observer = match (args.observer.as_deref(), args.timing) {
        (None | Some("static_minmax" | "memoryless_minmax"), _) | (Some("minmax"), Timing::Dynamic | Timing::Local) => {
            ""
        }
        // Each batch has a weight of 0.01 in the average.
        (Some("minmax"), Timing::Static) => ":ema0.99",
        (Some("mse" | "memoryless_mse"), Timing::Static) => ":mse",
        (Some(other), _) => return Err(args.refuse_observer(other)),
    };
    Ok(Some(ActivationScheme { scheme: args.scheme(observer)?, timing: args.timing }))
}

fn check_format(place: &str, value: &Value) -> Result<(), RecipeError> {
    match value.as_str() {
        None | Some("mixed-precision") => Ok(()),
        Some(name) if Format::ALL.iter().any(|format| format.name() == name) => Ok(()),
        Some(name) => Err(RecipeError::unsupported(place, format!("the format {} is not written", quoted(name)), HINT)),
    }
}

/// `QuantizationArgs`, strictly read.
struct Args<'p> {
    place: &'p str,
    fields: Map<String, Value>,
    timing: Timing,
    observer: Option<String>,
}

/// The keys of `QuantizationArgs`.
const ARGS: &[&str] = &[
    "actorder",
    "block_structure",
    "dynamic",
    "group_size",
    "num_bits",
    "observer",
    "observer_kwargs",
    "scale_dtype",
    "strategy",
    "symmetric",
    "type",
    "zp_dtype",
];

impl<'p> Args<'p> {
    fn read(place: &'p str, value: Option<&Value>) -> Result<Option<Args<'p>>, RecipeError> {
        let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
        let mut fields = object(place, value)?.clone();
        let at = |key: &str| format!("{place}.{key}");
        if let Some((key, _)) = fields.iter().find(|(key, value)| !ARGS.contains(&key.as_str()) && !is_empty(value)) {
            return Err(unknown(&at(key)));
        }
        if fields.get("observer_kwargs").is_some_and(|kwargs| !is_empty(kwargs)) {
            let hint = "remove it; `kvant list observers` shows what Kvant has";
            return Err(RecipeError::unsupported(at("observer_kwargs"), "settings of observers are not read", hint));
        }
        fields.entry("num_bits").or_insert_with(|| 8.into());
        let is = |key: &str, wanted: &str| fields.get(key).and_then(Value::as_str) == Some(wanted);
        let is_symmetric = fields.get("symmetric").and_then(Value::as_bool).unwrap_or(true);
        let dtype = |key: &str| fields.get(key).and_then(Value::as_str).map(|name| name.trim_start_matches("torch."));
        match dtype("scale_dtype") {
            None => {}
            Some("uint8") if is("type", "float") && is("strategy", "group") => {
                fields.insert("scale_dtype".to_owned(), "torch.uint8".into());
            }
            Some("float8_e4m3fn") if is("strategy", "tensor_group") => {}
            Some(other) => {
                let reason = format!("scales of type {} do not go with this scheme", quoted(other));
                return Err(RecipeError::unsupported(at("scale_dtype"), reason, HINT));
            }
        }
        let zero_point = fields.get("zp_dtype").and_then(Value::as_str).map(|name| name.trim_start_matches("torch."));
        if let Some(other) = zero_point.filter(|name| !is_symmetric && *name != "int8") {
            let reason = format!("zero points of type {} are not stored", quoted(other));
            return Err(RecipeError::unsupported(at("zp_dtype"), reason, HINT));
        }
        let timing = match fields.get("dynamic") {
            None | Some(Value::Null | Value::Bool(false)) => Timing::Static,
            Some(Value::Bool(true)) => Timing::Dynamic,
            Some(Value::String(word)) if word == "local" => Timing::Local,
            Some(_) => return Err(RecipeError::invalid(at("dynamic"), "must be true, false or `local`", HINT)),
        };
        let observer = fields.get("observer").and_then(Value::as_str).map(str::to_owned);
        Ok(Some(Args { place, fields, timing, observer }))
    }

    /// The scheme, with the suffix of an observer.
    fn scheme(&self, observer: &str) -> Result<TensorScheme, RecipeError> {
        let place = self.place;
        let args = StoredArgs::deserialize(Value::Object(self.fields.clone()));
        let args = args.map_err(|error| RecipeError::invalid(place, error.to_string(), HINT))?;
        let scheme = args.scheme(place).map_err(|error| match error {
            RecipeError::Unsupported(problem) => RecipeError::Unsupported(Problem { hint: HINT.to_owned(), ..problem }),
            other => other,
        })?;
        let text = format!("{scheme}{observer}");
        text.parse().map_err(|error| RecipeError::unsupported(place, format!("{error}"), HINT))
    }

    fn refuse_observer(&self, name: &str) -> RecipeError {
        let reason = format!("the observer {} is not supported here", quoted(name));
        let hint = "remove it, or use mse or static_minmax; `kvant list observers` shows what Kvant has";
        RecipeError::unsupported(format!("{}.observer", self.place), reason, hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_container::Diagnostic;
    use serde_json::json;

    fn read(config: Value) -> Result<RecipeFile, RecipeError> {
        read_recipe(&config)
    }

    fn group(targets: Value, weights: Value, input: Value) -> Value {
        json!({"targets": targets, "weights": weights, "input_activations": input, "output_activations": null})
    }

    #[test]
    fn written_config_gives_the_same_schemes_as_a_recipe() {
        let texts = [
            "int4:g128",
            "e4m3:channel+e4m3:channel!dynamic",
            "e2m1:g16:e4m3:f32+e2m1:g16:e4m3:f32!local",
            "e2m1:g32:e8m0",
        ];
        for text in texts {
            let layers = [("m.0.up", text.parse().unwrap())];
            let config = crate::format::compressed_tensors::quantization_config(&layers, &["lm_head"], &[], false);
            let recipe = read(config.unwrap()).unwrap();
            assert_eq!((recipe.scheme.as_deref(), &recipe.exclude), (Some(text), &vec!["lm_head".to_owned()]));
            assert_eq!((recipe.format.as_deref(), recipe.notes.len()), (Some("compressed-tensors"), 0));
        }
    }

    #[test]
    fn names_win_over_expressions_and_expressions_over_classes() {
        let bits = |bits: u32| json!({"num_bits": bits, "strategy": "channel"});
        let recipe = read(json!({
            "quant_method": "compressed-tensors", "format": "mixed-precision", "quantization_status": "compressed",
            "config_groups": {
                "group_0": group(json!(["m.1.down_proj"]), bits(2), json!(null)),
                "group_1": group(json!(["re:.*down_proj"]), bits(4), json!({"num_bits": 8, "dynamic": true, "strategy": "token"})),
                "group_2": group(json!(["re:.*proj", "Linear"]), bits(8), json!(null)),
            },
            "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false},
            "ignore": ["LlamaRMSNorm"],
        }))
        .unwrap();
        let rules: Vec<(&str, &str)> =
            recipe.overrides.iter().map(|o| (o.layers.as_deref().unwrap(), o.scheme.as_str())).collect();
        let expected = [
            ("re:.*proj", "int8:channel"),
            ("re:.*down_proj", "int4:channel+int8:channel!dynamic"),
            ("m.1.down_proj", "int2:channel"),
        ];
        assert_eq!((recipe.scheme.as_deref(), rules), (Some("int8:channel"), expected.to_vec()));
        assert_eq!((recipe.kv_cache.as_deref(), recipe.exclude.len()), (Some("e4m3:tensor!static"), 0));
        assert!(recipe.notes[0].contains("‹no-keep-defaults›"));
    }

    #[test]
    fn observers_are_part_of_the_scheme() {
        let scheme = |weights: Value, input: Value| {
            read(json!({"config_groups": {"g": group(json!(["Linear"]), weights, input)}, "ignore": ["lm_head"]}))
                .map(|recipe| recipe.scheme.unwrap())
        };
        let int8 = |observer: Value| json!({"num_bits": 8, "strategy": "tensor", "observer": observer});
        assert_eq!(
            scheme(int8(json!("mse")), int8(json!("minmax"))).unwrap(),
            "int8:tensor:mse+int8:tensor:ema0.99!static"
        );
        assert_eq!(scheme(int8(json!("minmax")), int8(json!(null))).unwrap(), "int8:tensor+int8:tensor!static");
        let error = scheme(int8(json!("imatrix_mse")), json!(null)).unwrap_err();
        assert!(
            error.to_string().starts_with("config_groups.g.weights.observer: the observer `imatrix_mse`"),
            "{error}"
        );
    }

    #[test]
    fn inexpressible_recipe_parts_are_named() {
        let int4 = || json!({"num_bits": 4, "group_size": 128, "strategy": "group"});
        let with = |key: &str, value: Value| {
            let mut config = json!({"config_groups": {"g": group(json!(["Linear"]), int4(), json!(null))}});
            config[key] = value;
            config
        };
        let weights = |key: &str, value: Value| {
            let mut args = int4();
            args[key] = value;
            json!({"config_groups": {"g": group(json!(["Linear"]), args, json!(null))}})
        };
        for (config, place) in [
            (with("sparsity_config", json!({"format": "sparse-24-bitmask"})), "sparsity_config: "),
            (with("transform_config", json!({"config_groups": {"R1": {}}})), "transform_config: "),
            (with("format", json!("marlin-24")), "format: "),
            (with("surprise", json!(1)), "surprise: "),
            (with("ignore", json!(["Linear"])), "ignore: "),
            (with("ignore", json!(["re:("])), "ignore: "),
            (
                with("kv_cache_scheme", json!({"num_bits": 8, "type": "float", "strategy": "attn_head"})),
                "kv_cache_scheme.strategy: ",
            ),
            (weights("actorder", json!("group")), "config_groups.g.weights.actorder: "),
            (weights("observer_kwargs", json!({"norm": 2.4})), "config_groups.g.weights.observer_kwargs: "),
            (weights("dynamic", json!(true)), "config_groups.g.weights.dynamic: "),
            (weights("scale_dtype", json!("torch.bfloat16")), "config_groups.g.weights.scale_dtype: "),
            (weights("num_bits", json!(12)), "config_groups.g.weights: "),
            (weights("surprise", json!(1)), "config_groups.g.weights.surprise: "),
            (
                json!({"config_groups": {"g": group(json!(["Embedding"]), int4(), json!(null))}}),
                "config_groups.g.targets: `Embedding`",
            ),
            (json!({"config_groups": {"g": group(json!(["Linear"]), json!(null), int4())}}), "config_groups.g: "),
            (
                json!({"config_groups": {}, "kv_cache_scheme": {"type": "float", "strategy": "tensor"}}),
                "the recipe: quantizes keys",
            ),
        ] {
            let error = read(config.clone()).unwrap_err();
            assert!(
                error.to_string().starts_with(place) && error.hint().is_some_and(|hint| !hint.is_empty()),
                "{config}: {error}"
            );
        }
        let noted = read(weights("actorder", json!("static"))).unwrap();
        assert!(noted.notes.iter().any(|note| note.starts_with("actorder is not used")), "{:?}", noted.notes);
    }
}
