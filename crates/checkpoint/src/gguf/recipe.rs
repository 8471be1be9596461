//! The user's request for a GGUF file: an ftype, and tensor types by name.

use super::imatrix::Importance;
use crate::recipe::{BlockTypes, NamedScheme, OverrideText, Recipe, Settings, glob};
use kvant_container::gguf::TensorType;
use kvant_formats::algorithm::{Algorithm, Algorithms};
use kvant_formats::format::OutputFormat;
use kvant_gguf::ftype::IMATRIX;
use kvant_gguf::ftype::{FTYPES, Ftype};
use kvant_gguf::model::codec;
use kvant_numeric::ggml::GroupedType;
use kvant_quant::glob::Glob;
use kvant_quant::observer::ObserverRef;
use kvant_quant::scheme::TensorScheme;
use kvant_weights::recipe_error::{RecipeError, quoted};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A rule for tensors by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) tensors: Glob,
    /// The type, or `None` to keep that of the source.
    pub(super) kind: Option<TensorType>,
    /// Whether it may match nothing: another tool has listed what it keeps of many models.
    pub(super) may_be_idle: bool,
}

/// The importance of inputs.
#[derive(Clone, Debug, Default)]
enum ImatrixUse {
    /// All weigh the same.
    #[default]
    Uniform,
    /// It will be measured.
    Asked,
    /// It is known.
    Known(Arc<Importance>),
}

/// The complete request of the user.
#[derive(Clone, Debug)]
pub struct GgufRecipe {
    ftype: Ftype,
    rules: Vec<Rule>,
    imatrix: ImatrixUse,
    /// What chooses the codes of layers, and what changes weights before.
    algorithms: Algorithms,
    /// Whether scales are searched for where llama.cpp has a formula.
    searches_scales: bool,
    /// Whether values of a source that is quantized already may be quantized again.
    requantizes: bool,
    seed: u64,
    /// The most bytes of tensors in a file, if the model is written as a directory of files.
    max_size: Option<u64>,
    notes: Vec<String>,
}

/// The type that a recipe gives a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeChoice {
    /// Nothing: the mix decides.
    Nothing,
    /// It keeps the type of the source.
    Keep,
    /// It gets this type.
    Type(TensorType),
}

/// A recipe as reports show it.
#[derive(Serialize)]
struct Shown {
    scheme: &'static str,
    format: &'static str,
    #[serde(rename = "override")]
    overrides: Vec<ShownRule>,
    importance: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    algorithm: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scales: Option<&'static str>,
}

/// A rule of an override, as other recipes have it.
#[derive(Serialize)]
struct ShownRule {
    layers: String,
    scheme: &'static str,
}

impl GgufRecipe {
    /// The recipe from the command line and the file; `None` if they request another format. The name of an ftype
    /// requests GGUF unless a format is given.
    ///
    /// # Errors
    /// *Invalid* for unknown ftypes and types, *unsupported* for settings without meaning here.
    pub fn of(line: &Settings, file: &Settings) -> Result<Option<GgufRecipe>, RecipeError> {
        let scheme = line.scheme.as_ref().or(file.scheme.as_ref());
        let ftype = scheme.map(|text| text.parse::<Ftype>());
        let is_asked = match line.format.or(file.format) {
            Some(format) => format == OutputFormat::Gguf,
            None => {
                matches!((&ftype, scheme), (Some(Ok(_)), Some(text)) if NamedScheme::find("‹scheme›", text).is_err())
            }
        };
        if !is_asked {
            return Ok(None);
        }
        let ftype = match ftype {
            Some(Ok(ftype)) => ftype,
            // Codes of a scheme are made in a checkpoint, which becomes a file.
            Some(Err(_)) if scheme.is_some_and(|text| NamedScheme::find("‹scheme›", text).is_ok()) => {
                return Ok(None);
            }
            Some(Err(error)) if error.0.contains([':', '+', '/']) => {
                return Err(NamedScheme::find("‹scheme›", &error.0).err().unwrap_or_else(|| unknown(&error.0)));
            }
            Some(Err(error)) => return Err(unknown(&error.0)),
            None => return Err(RecipeError::invalid("‹scheme›", "no scheme is given", hint())),
        };
        refuse_others(line)?;
        refuse_others(file)?;
        let mut rules = rules(file, "override")?;
        rules.extend(self::rules(line, "‹override›")?);
        let (asks_for_imatrix, algorithms) = algorithms(line, file)?;
        let imatrix = if asks_for_imatrix { ImatrixUse::Asked } else { ImatrixUse::Uniform };
        let requantizes = line.requantize.or(file.requantize).unwrap_or(false);
        let seed = line.seed.or(file.seed).unwrap_or(0);
        let notes = line.notes.iter().chain(&file.notes).cloned().collect();
        let searches_scales = line.scales.or(file.scales).is_some();
        let max_size = line.max_shard_size.or(file.max_shard_size).map(|size| size.0);
        Ok(Some(GgufRecipe { ftype, rules, imatrix, algorithms, searches_scales, requantizes, seed, max_size, notes }))
    }

    /// The recipe of a mix alone.
    pub fn plain(ftype: Ftype) -> GgufRecipe {
        GgufRecipe {
            ftype,
            rules: Vec::new(),
            imatrix: ImatrixUse::Uniform,
            algorithms: Algorithms::default(),
            searches_scales: false,
            requantizes: false,
            seed: 0,
            max_size: None,
            notes: Vec::new(),
        }
    }

    /// The mix.
    pub fn ftype(&self) -> Ftype {
        self.ftype
    }

    /// The most bytes of tensors in a file, unless a single one is larger: then the model is a directory of files. `None` for one file.
    pub fn max_size(&self) -> Option<u64> {
        self.max_size
    }

    /// The algorithms that work on blocks of the decoder.
    pub fn algorithms(&self) -> &Algorithms {
        &self.algorithms
    }

    /// Returns whether the scales of all types are searched for, also where llama.cpp has a formula.
    pub fn searches_scales(&self) -> bool {
        self.searches_scales
    }

    /// Returns whether algorithms work on blocks of the decoder, so that a checkpoint of blocks is written before the file.
    pub fn has_algorithms(&self) -> bool {
        !self.algorithms.is_plain()
    }

    /// Returns whether values of a source that is quantized already may be quantized again.
    pub fn requantizes(&self) -> bool {
        self.requantizes
    }

    /// Notes for the user about how it was read.
    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The same with the importance of inputs known.
    pub fn with_importance(self, importance: Arc<Importance>) -> GgufRecipe {
        GgufRecipe { imatrix: ImatrixUse::Known(importance), ..self }
    }

    /// Returns whether the importance of inputs is to be measured, and is not known yet.
    pub fn needs_importance(&self) -> bool {
        matches!(self.imatrix, ImatrixUse::Asked)
    }

    /// Returns whether inputs are weighted by importance, which algorithms that see inputs know too.
    pub fn has_importance(&self) -> bool {
        !matches!(self.imatrix, ImatrixUse::Uniform) || self.algorithms.see_inputs()
    }

    /// The importance of inputs, where it is known.
    pub fn importance(&self) -> Option<&Arc<Importance>> {
        match &self.imatrix {
            ImatrixUse::Known(importance) => Some(importance),
            _ => None,
        }
    }

    /// The type given to a tensor, by its name in the file or those of its modules; the last rule wins.
    pub fn type_choice(&self, name: &str, modules: &[String]) -> TypeChoice {
        let stem = name.strip_suffix(".weight").unwrap_or(name);
        let matches = |rule: &&Rule| {
            [name, stem].iter().any(|name| rule.tensors.matches(name))
                || modules.iter().any(|module| rule.tensors.matches(module))
        };
        match self.rules.iter().rev().find(matches) {
            None => TypeChoice::Nothing,
            Some(rule) => rule.kind.map_or(TypeChoice::Keep, TypeChoice::Type),
        }
    }

    /// The rules that match none of these tensors, each given by all its names: most likely mistakes.
    pub(super) fn idle_rules(&self, tensors: &[Vec<&str>]) -> Vec<&Rule> {
        let matches = |rule: &Rule| tensors.iter().flatten().any(|name| rule.tensors.matches(name));
        self.rules.iter().filter(|rule| !matches(rule)).collect()
    }

    /// The recipe for the layers whose codes algorithms choose, by the types of their modules.
    pub fn of_layers(&self, types: BTreeMap<String, GroupedType>) -> Recipe {
        let spelling = |rule: &Rule| OverrideText {
            layers: rule.tensors.pattern().to_owned(),
            scheme: rule.kind.map_or("keep", TensorType::name).to_owned(),
        };
        let overrides = self.rules.iter().map(spelling).collect();
        let blocks = BlockTypes { scheme: self.ftype.row().name.to_owned(), overrides, types };
        Recipe::of_blocks(blocks, self.algorithms.clone(), self.requantizes, self.seed)
    }

    /// All of it as text: recipes that ask for the same have the same.
    pub fn canonical(&self) -> String {
        // Serializing plain strings and flags does not fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Serialize for GgufRecipe {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rule = |rule: &Rule| ShownRule {
            layers: rule.tensors.pattern().to_owned(),
            scheme: rule.kind.map_or("keep", TensorType::name),
        };
        let overrides = self.rules.iter().map(rule).collect();
        let importance = self.has_importance();
        let algorithm = if self.algorithms.is_default() { Vec::new() } else { self.algorithms.spellings() };
        let scheme = self.ftype.row().name;
        let scales = self.searches_scales.then_some("search");
        Shown { scheme, format: "gguf", overrides, importance, algorithm, scales }.serialize(serializer)
    }
}

fn unknown(scheme: &str) -> RecipeError {
    RecipeError::invalid("‹scheme›", format!("{} is not a GGUF type", quoted(scheme)), hint())
}

fn hint() -> String {
    let names: Vec<&str> = FTYPES.iter().map(|row| row.name).collect();
    format!("GGUF has these: {}", names.join(", "))
}

/// Settings that ask for what a GGUF file does not hold.
fn refuse_others(settings: &Settings) -> Result<(), RecipeError> {
    let given = [
        (settings.kv_cache.is_some(), "‹kv-cache›", "llama.cpp quantizes the cache when it runs"),
        (
            settings.queries.is_some() || settings.probabilities.is_some(),
            "‹attention›",
            "llama.cpp computes it in float",
        ),
        (settings.pack_method.is_some(), "‹pack-method›", "the layout of blocks is fixed"),
        (has_other_scales(settings), "‹scales›", "its types have scales by llama.cpp's rules, or by ‹scales› search"),
        (settings.weights_only.is_some(), "‹weights-only›", "weights are all that is quantized"),
        (!settings.layer_types.is_empty(), "‹layer-type›", "its mixes say what every tensor becomes"),
        (settings.keep_defaults.is_some(), "‹no-keep-defaults›", "its mixes say what every tensor becomes"),
        (settings.min_kv_scale.is_some(), "‹min-kv-scale›", "llama.cpp quantizes the cache when it runs"),
        (settings.kv_cache_post_rope.is_some(), "‹kv-cache-post-rope›", "llama.cpp quantizes the cache when it runs"),
    ];
    match given.into_iter().find(|(given, ..)| *given) {
        Some((_, option, reason)) => {
            Err(RecipeError::invalid(option, format!("does not apply to GGUF: {reason}"), "leave it out"))
        }
        None => Ok(()),
    }
}

/// Returns whether scales are to be found by another observer than the search.
fn has_other_scales(settings: &Settings) -> bool {
    settings.scales.is_some_and(|observer| observer != ObserverRef::SEARCH)
}

fn rules(settings: &Settings, option: &str) -> Result<Vec<Rule>, RecipeError> {
    let mut rules = Vec::with_capacity(settings.overrides.len() + settings.exclude.len());
    for said in &settings.overrides {
        let place = format!("{option} {}", quoted(&said.layers));
        let (tensors, kind) = (glob(option, &said.layers)?, type_of(&place, &said.scheme)?);
        rules.push(Rule { tensors, kind, may_be_idle: settings.foreign && kind.is_none() });
    }
    for text in &settings.exclude {
        rules.push(Rule { tensors: glob("exclude", text)?, kind: None, may_be_idle: settings.foreign });
    }
    Ok(rules)
}

/// The type of a name, or `None` for `keep`.
fn type_of(place: &str, text: &str) -> Result<Option<TensorType>, RecipeError> {
    if matches!(text, "keep" | "none") {
        return Ok(None);
    }
    let written = || TensorType::ALL.iter().copied().filter(|kind| codec::of(*kind).is_some());
    let found = written().find(|kind| kind.name().eq_ignore_ascii_case(text));
    let names = || written().map(TensorType::name).collect::<Vec<_>>().join(", ");
    match found {
        Some(kind) => Ok(Some(kind)),
        None => {
            let hint = format!("a tensor can be one of {}, or `keep`", names());
            Err(RecipeError::invalid(place, format!("{} is not a tensor type", quoted(text)), hint))
        }
    }
}

/// Returns whether the importance of inputs is to be measured, and the other algorithms. Those that see inputs measure it themselves.
fn algorithms(line: &Settings, file: &Settings) -> Result<(bool, Algorithms), RecipeError> {
    let asked = line.algorithm.as_ref().or(file.algorithm.as_ref()).map_or(&[][..], Vec::as_slice);
    let all = asked.iter().flat_map(|item| item.split(',')).map(str::trim);
    let (imatrix, others): (Vec<&str>, Vec<&str>) = all.partition(|one| *one == IMATRIX);
    let algorithms = Algorithms::of_list("‹algorithm›", &others)?;
    if let Some((item, why)) = algorithms.items().iter().find_map(|item| Some((item, refusal(item)?))) {
        let reason = format!("{} cannot choose codes of the block types of GGUF: {why}", quoted(item.name()));
        let hint = "use gptq, gptaq, qronos or imatrix, or a scheme whose codes become blocks: ‹scheme› int4:g32 \
                    ‹format› gguf";
        return Err(RecipeError::invalid("‹algorithm›", reason, hint));
    }
    Ok((!imatrix.is_empty() && !algorithms.see_inputs(), algorithms))
}

/// The reason that an algorithm cannot be used with blocks, if so. Rotations, transforms and the correction of biases do not see codes.
fn refusal(algorithm: &Algorithm) -> Option<&'static str> {
    match algorithm {
        Algorithm::Rounding(rounding) if rounding.is_nearest() => None,
        Algorithm::Rounding(rounding) => rounding.refuses(&TensorScheme::Gguf(GroupedType::ALL[0])),
        Algorithm::Rotation(rotation) if rotation.learns() => {
            Some("its matrices are learned for codes with scales of their own")
        }
        Algorithm::Rotation(_) | Algorithm::Transform(_) | Algorithm::Correction(_) => None,
        Algorithm::Tuning(_) => Some("it moves scales one by one, and those of a block are multiples of one number"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(scheme: &str) -> Settings {
        Settings { scheme: Some(scheme.to_owned()), ..Settings::default() }
    }

    fn recipe(settings: &Settings) -> Result<Option<GgufRecipe>, RecipeError> {
        GgufRecipe::of(settings, &Settings::default())
    }

    #[test]
    fn ftype_name_as_scheme_selects_gguf() {
        assert_eq!(recipe(&line("Q4_K_M")).unwrap().unwrap().ftype(), Ftype::Q4_K_M);
        assert!(recipe(&line("int4_wo_128")).unwrap().is_none());
        assert!(recipe(&Settings { format: Some(OutputFormat::QUARK), ..line("Q8_0") }).unwrap().is_none());
        let asked = Settings { format: Some(OutputFormat::Gguf), ..line("Q9_9") };
        assert_eq!(recipe(&asked).unwrap_err().to_string(), "‹scheme›: `Q9_9` is not a GGUF type");
        let misspelt = Settings { format: Some(OutputFormat::Gguf), ..line("int4:g3x") };
        let error = recipe(&misspelt).unwrap_err();
        assert!(error.to_string().contains("g3x") && !error.to_string().contains("GGUF type"), "{error}");
        let codes = Settings { format: Some(OutputFormat::Gguf), ..line("int4:g32") };
        assert!(recipe(&codes).unwrap().is_none());
        let asked = Settings { format: Some(OutputFormat::Gguf), ..line("bf16") };
        assert_eq!(recipe(&asked).unwrap().unwrap().ftype(), Ftype::BF16);
    }

    #[test]
    fn last_matching_rule_wins_for_gguf_and_module_names() {
        let overrides = vec!["blk.0.*=q8_0".parse().unwrap(), "*down_proj=F16".parse().unwrap()];
        let settings = Settings { exclude: vec!["output".into()], overrides, ..line("Q4_0") };
        let recipe = recipe(&settings).unwrap().unwrap();
        let said = |name: &str, module: &str| recipe.type_choice(name, &[module.to_owned()]);
        assert_eq!(said("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj"), TypeChoice::Type(TensorType::F16));
        assert_eq!(said("blk.0.ffn_up.weight", "model.layers.0.mlp.up_proj"), TypeChoice::Type(TensorType::Q8_0));
        assert_eq!(said("output.weight", "lm_head"), TypeChoice::Keep);
        assert_eq!(said("blk.1.ffn_up.weight", "model.layers.1.mlp.up_proj"), TypeChoice::Nothing);
        let idle = recipe.idle_rules(&[vec!["output"], vec!["blk.0.x"]]);
        assert_eq!(idle.iter().map(|rule| rule.tensors.pattern()).collect::<Vec<_>>(), ["*down_proj"]);
    }

    #[test]
    fn settings_without_effect_in_gguf_are_refused() {
        let with = |change: fn(&mut Settings)| {
            let mut settings = line("Q4_0");
            change(&mut settings);
            recipe(&settings).unwrap_err().to_string()
        };
        assert!(with(|s| s.kv_cache = Some("fp8".into())).starts_with("‹kv-cache›: does not apply"));
        assert!(with(|s| s.algorithm = Some(vec!["hqq".into()])).contains("cannot choose codes of the block types"));
        assert!(with(|s| s.scales = Some(ObserverRef::MIN_MAX)).starts_with("‹scales›: does not apply"));
        assert!(with(|s| s.overrides = vec!["*=int4".parse().unwrap()]).contains("not a tensor type"));
        let settings = Settings { algorithm: Some(vec![IMATRIX.to_owned()]), ..line("Q4_0") };
        assert!(recipe(&settings).unwrap().unwrap().needs_importance());
    }

    #[test]
    fn algorithms_that_see_inputs_need_no_imatrix() {
        for list in [&["imatrix", "awq,qronos"][..], &["awq", "qronos"]] {
            let list = list.iter().map(|item| (*item).to_owned()).collect();
            let recipe = recipe(&Settings { algorithm: Some(list), ..line("Q4_K_M") }).unwrap().unwrap();
            assert!(recipe.has_algorithms() && recipe.has_importance() && !recipe.needs_importance());
            assert_eq!(recipe.algorithms().to_string(), "awq,qronos");
        }
    }
}
