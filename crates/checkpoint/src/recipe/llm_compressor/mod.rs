//! Recipes of llm-compressor: stages with modifiers, as YAML or JSON. Not the configuration that it writes into checkpoints: see
//! [`kvant_formats::format::compressed_tensors`]. What Kvant cannot express is refused by name.

#[cfg(test)]
mod tests;

use kvant_formats::algorithm::Algorithms;
use kvant_formats::format::compressed_tensors::{SchemeRules, check_order, is_empty, object, texts};
use kvant_quant::recipe::RecipeFile;
use kvant_quant::scheme::{Dialect, Preset};
use kvant_weights::recipe_error::{RecipeError, quoted};
use serde_json::{Map, Value};

const REMOVE: &str = "remove it, or write a recipe in Kvant's TOML";

/// Keys of every modifier that place it among others.
const OF_PLACE: &[&str] = &["group", "index"];
/// Keys of every modifier that say when it acts in a training.
const OF_TRAINING: &[&str] = &["end", "start", "update"];
/// Keys that change how the result is computed, and not the result.
const OF_COMPUTATION: &[&str] = &["max_chunk_memory", "offload_device", "offload_hessians", "sequential_targets"];
/// Keys of modifiers that quantize.
const OF_QUANTIZATION: &[&str] = &["config_groups", "ignore", "kv_cache_scheme", "scheme", "targets"];

/// Returns whether a document looks like such a recipe.
pub(super) fn recognizes(value: &Value) -> bool {
    let is_part = |key: &String| key.ends_with("_stage") || key.ends_with("Modifier");
    value.as_object().is_some_and(|fields| fields.keys().any(is_part))
}

/// Reads a recipe.
///
/// # Errors
/// *Invalid* where it is not of llm-compressor's form, *unsupported* for what Kvant cannot express.
pub(super) fn read_recipe(value: &Value) -> Result<RecipeFile, RecipeError> {
    let mut reader = ModifierReader::default();
    for (key, stage) in object("the recipe", value)? {
        if key.ends_with("_stage") {
            reader.stage(key, stage)?;
        } else if key.ends_with("Modifier") {
            let hint = format!("write it inside of a stage: quant_stage: {{quant_modifiers: {{{key}: ...}}}}");
            return Err(RecipeError::invalid(key.as_str(), "is outside a stage", hint));
        } else if !is_empty(stage) {
            return Err(RecipeError::unsupported(key.as_str(), "is neither a stage nor a modifier", REMOVE));
        }
    }
    reader.finish()
}

#[derive(Default)]
struct ModifierReader {
    rules: SchemeRules,
    /// Spellings of algorithms in order.
    algorithms: Vec<String>,
    /// The modifier that says which layers get which scheme.
    quantizer: Option<String>,
}

impl ModifierReader {
    fn stage(&mut self, stage: &str, value: &Value) -> Result<(), RecipeError> {
        for (key, modifiers) in object(stage, value)? {
            let place = format!("{stage}.{key}");
            if key.ends_with("_modifiers") {
                for (name, settings) in object(&place, modifiers)? {
                    let place = format!("{place}.{name}");
                    let none = Map::new();
                    let settings = if settings.is_null() { &none } else { object(&place, settings)? };
                    self.modifier(name, ModifierSettings { place: &place, fields: settings })?;
                }
            } else if !is_empty(modifiers) && modifiers.as_str() != Some("oneshot") {
                return Err(RecipeError::unsupported(place, "is not a list of modifiers", REMOVE));
            }
        }
        Ok(())
    }

    fn modifier(&mut self, name: &str, settings: ModifierSettings<'_>) -> Result<(), RecipeError> {
        match name {
            "QuantizationModifier" | "vLLMQuantizationModifier" => {
                settings.check(&[OF_QUANTIZATION])?;
                self.quantization(settings)
            }
            "GPTQModifier" => self.gptq(settings),
            "AWQModifier" => self.awq(settings),
            "SmoothQuantModifier" => self.smooth_quant(settings),
            _ => {
                let does = match name {
                    "AutoRoundModifier" => "trains roundings, which Kvant does not do for checkpoints",
                    "QuIPModifier" | "SpinQuantModifier" => "rotates weights, which Kvant does not do for checkpoints",
                    name if ["Prun", "Sparse", "REAP"].iter().any(|part| name.contains(part)) => {
                        "prunes weights, which Kvant does not do"
                    }
                    _ => "is a modifier that Kvant does not have",
                };
                Err(RecipeError::unsupported(
                    settings.place,
                    does,
                    "remove the modifier; `kvant list algorithms` shows what Kvant has",
                ))
            }
        }
    }

    /// The schemes of layers.
    fn quantization(&mut self, settings: ModifierSettings<'_>) -> Result<(), RecipeError> {
        let field = |key: &str| settings.fields.get(key).filter(|value| !is_empty(value));
        let at = |key: &str| format!("{}.{key}", settings.place);
        if let Some(value) = field("ignore") {
            self.rules.ignore(&at("ignore"), value)?;
        }
        if let Some(value) = field("kv_cache_scheme") {
            self.rules.cache(&at("kv_cache_scheme"), value)?;
        }
        let (groups, scheme) = (field("config_groups"), field("scheme"));
        if groups.is_none() && scheme.is_none() {
            return Ok(());
        }
        if let Some(first) = self.quantizer.replace(settings.place.to_owned()) {
            let reason = format!("quantizes further layers besides those of {first}, each with its own algorithm");
            let hint = "use one of the modifiers for all layers: Kvant makes all of them with the same algorithms";
            return Err(RecipeError::unsupported(settings.place, reason, hint));
        }
        let targets = match field("targets") {
            None => vec!["Linear"],
            Some(value) => texts(&at("targets"), value)?,
        };
        match (groups, scheme) {
            (Some(_), Some(_)) => {
                Err(RecipeError::invalid(at("scheme"), "is given together with config_groups", "keep one of them"))
            }
            (Some(_), None) if targets != ["Linear"] => {
                let reason = "is given together with config_groups, which have their own targets";
                Err(RecipeError::unsupported(at("targets"), reason, "remove it"))
            }
            (Some(groups), None) => self.rules.add_groups(&at("config_groups"), groups),
            (None, Some(Value::String(name))) => {
                let scheme = preset(&at("scheme"), name)?;
                self.rules.add(&at("targets"), &targets, scheme)
            }
            (None, Some(value)) => self.schemes(&at("scheme"), object(&at("scheme"), value)?, &targets),
            (None, None) => Ok(()),
        }
    }

    /// Names of schemes with their targets, or one scheme in parts.
    fn schemes(&mut self, place: &str, fields: &Map<String, Value>, targets: &[&str]) -> Result<(), RecipeError> {
        if fields.contains_key("weights") {
            let scheme = self.rules.scheme(place, fields)?;
            return self.rules.add(place, targets, scheme);
        }
        for (name, targets) in fields {
            let place = format!("{place}.{name}");
            let scheme = preset(&place, name)?;
            self.rules.add(&place, &texts(&place, targets)?, scheme)?;
        }
        Ok(())
    }

    fn gptq(&mut self, settings: ModifierSettings<'_>) -> Result<(), RecipeError> {
        settings.check(&[OF_QUANTIZATION, &["actorder", "block_size", "dampening_frac", "sequential_update"]])?;
        if settings.fields.get("sequential_update") == Some(&Value::Bool(false)) {
            let place = format!("{}.sequential_update", settings.place);
            let reason = "`false` calibrates all layers on inputs of the float model";
            return Err(RecipeError::unsupported(place, reason, "remove it, and give ‹propagate› float for the same"));
        }
        self.quantization(settings)?;
        let mut spelling = "gptq".to_owned();
        settings.option(&mut spelling, "dampening_frac", "damping")?;
        settings.option(&mut spelling, "block_size", "block")?;
        let place = format!("{}.actorder", settings.place);
        match settings.fields.get("actorder") {
            // The default of llm-compressor is `static`, as is Kvant's.
            None => {}
            Some(Value::Null | Value::Bool(false)) if self.rules.is_ordered => {
                let reason = "is null, and config_groups ask for an order";
                return Err(RecipeError::invalid(place, reason, "remove one of them"));
            }
            Some(Value::Null | Value::Bool(false)) => spelling.push_str(":order=stored"),
            Some(value) => check_order(&place, value)?,
        }
        self.push(settings.place, spelling)
    }

    fn awq(&mut self, settings: ModifierSettings<'_>) -> Result<(), RecipeError> {
        settings.check(&[OF_QUANTIZATION, &["duo_scaling", "mappings", "n_grid"]])?;
        // Limits of weights are not searched there.
        let mut spelling = "awq:clip=off".to_owned();
        match settings.fields.get("duo_scaling") {
            None | Some(Value::Null | Value::Bool(true)) => spelling.push_str(":duo=on"),
            Some(Value::Bool(false)) => spelling.push_str(":duo=off"),
            Some(_) => {
                let place = format!("{}.duo_scaling", settings.place);
                let reason = "Kvant tries scales with means of weights, or without them, and not both";
                return Err(RecipeError::unsupported(place, reason, "set it to true or false"));
            }
        }
        settings.option(&mut spelling, "n_grid", "ratios")?;
        self.note_mappings(settings);
        self.push(settings.place, spelling)?;
        self.quantization(settings)
    }

    fn smooth_quant(&mut self, settings: ModifierSettings<'_>) -> Result<(), RecipeError> {
        settings.check(&[&["algorithm", "mappings", "smoothing_strength"]])?;
        let kind = settings.fields.get("algorithm").filter(|value| !is_empty(value));
        if kind.is_some_and(|kind| kind.as_str() != Some("smoothquant")) {
            let place = format!("{}.algorithm", settings.place);
            return Err(RecipeError::unsupported(place, "only `smoothquant` is supported", REMOVE));
        }
        let mut spelling = "smoothquant".to_owned();
        settings.option(&mut spelling, "smoothing_strength", "alpha")?;
        self.note_mappings(settings);
        self.push(settings.place, spelling)
    }

    /// Adds an algorithm, which is checked here so that the place of a mistake is named.
    fn push(&mut self, place: &str, spelling: String) -> Result<(), RecipeError> {
        self.algorithms.extend(Algorithms::of_list(place, &[spelling])?.spellings());
        Ok(())
    }

    fn note_mappings(&mut self, settings: ModifierSettings<'_>) {
        if settings.fields.get("mappings").is_some_and(|value| !is_empty(value)) {
            let note = format!(
                "{}.mappings is not used: which layers are smoothed together follows from the model's family",
                settings.place
            );
            self.rules.notes.push(note);
        }
    }

    fn finish(self) -> Result<RecipeFile, RecipeError> {
        let list = &self.algorithms;
        let algorithms =
            if list.is_empty() { Algorithms::default() } else { Algorithms::of_list("the modifiers", list)? };
        let spellings = if algorithms.is_plain() { Vec::new() } else { algorithms.spellings() };
        self.rules.recipe(spellings)
    }
}

/// The settings of a modifier.
#[derive(Clone, Copy)]
struct ModifierSettings<'a> {
    place: &'a str,
    fields: &'a Map<String, Value>,
}

impl ModifierSettings<'_> {
    /// Refuses keys that are not among these, unless they ask for nothing.
    fn check(&self, known: &[&[&str]]) -> Result<(), RecipeError> {
        for (key, value) in self.fields {
            let is_in = |list: &[&str]| list.contains(&key.as_str());
            let means_always = value.as_f64().is_some_and(|step| step == 0.0 || step == -1.0);
            let is_fine = known.iter().any(|list| is_in(list))
                || [OF_PLACE, OF_COMPUTATION].iter().any(|list| is_in(list))
                || (is_in(OF_TRAINING) && means_always)
                || (key == "sequential_update" && value == &Value::Bool(true))
                || is_empty(value);
            if !is_fine {
                let place = format!("{}.{key}", self.place);
                return Err(RecipeError::unsupported(place, "is not a setting that Kvant has", REMOVE));
            }
        }
        Ok(())
    }

    /// Adds a number as an option of an algorithm.
    fn option(&self, spelling: &mut String, key: &str, option: &str) -> Result<(), RecipeError> {
        match self.fields.get(key) {
            None | Some(Value::Null) => Ok(()),
            Some(Value::Number(number)) => {
                spelling.push_str(&format!(":{option}={number}"));
                Ok(())
            }
            Some(_) => Err(RecipeError::invalid(format!("{}.{key}", self.place), "is not a number", "give a number")),
        }
    }
}

/// The spelling of a scheme of llm-compressor's name.
fn preset(place: &str, name: &str) -> Result<String, RecipeError> {
    if name.eq_ignore_ascii_case("unquantized") {
        return Ok("keep".to_owned());
    }
    let named = Preset::find(&name.to_ascii_uppercase()).filter(|preset| preset.dialect == Dialect::CompressedTensors);
    match named {
        Some(preset) => Ok(preset.spelling.to_owned()),
        None => {
            let reason = format!("the scheme {} is not known", quoted(name));
            Err(RecipeError::unsupported(place, reason, "`kvant list schemes` shows all names"))
        }
    }
}
