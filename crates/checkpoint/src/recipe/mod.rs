//! What the user asked for: schemes, which layers get which, and how the result is written. Not what becomes of each
//! tensor of a given model: that is the plan.

mod attention;
mod auto_round;
mod biases;
mod choice;
mod file;
mod format;
mod llm_compressor;
mod quality_level;
mod settings;
#[cfg(test)]
mod tests;
mod yaml;

pub use attention::attention_words;
pub use biases::BiasSchemes;
pub use choice::{NamedScheme, SchemeChoice};
pub use file::{read_file, read_text};
use kvant_formats::algorithm::{Algorithm, Algorithms};
pub use kvant_quant::recipe::VERSION;
use kvant_weights::recipe_error::RecipeError;
use kvant_weights::recipe_error::quoted;
pub use quality_level::{QUALITY_LEVELS, QualityChoice, QualityLevel};
pub use settings::{LayerTypeText, OverrideText, PackMethod, Settings, layer_kinds};
pub use yaml::read as read_yaml;

use crate::byte_size::ByteSize;
use crate::input_statistics::InputStatistics;
use kvant_formats::format::OutputFormat;
use kvant_model::network::LayerKind;
use kvant_numeric::ggml::GroupedType;
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::glob::Glob;
use kvant_quant::rounding::Needs;
use kvant_quant::scheme::{AttentionScheme, LayerScheme, Rotary, TensorScheme};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The default of [`Recipe::max_shard_size`].
pub const MAX_SHARD_SIZE: ByteSize = ByteSize(5_000_000_000);

/// Layers by name, and their scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Matches full module names.
    pub layers: Glob,
    /// Their scheme.
    pub choice: SchemeChoice,
    /// Whether it may match nothing: another tool has listed what it keeps of many models.
    pub may_be_idle: bool,
    /// Whether it is in a recipe file.
    pub of_file: bool,
}

/// The complete request of the user, checked as far as possible without a model.
///
/// A module's scheme is that of the last rule that matches it. Rules come in this order:
///
/// 1. the scheme,
/// 2. the layers that the family keeps by default (heads, routers), unless `keep_defaults` is off,
/// 3. `exclude` and then `override` of the recipe file; in files of version 1 and in configurations of other tools `exclude` comes
///    after `override`,
/// 4. `override` and then `exclude` of the command line.
///
/// It serializes as [`Settings`] with names resolved to spellings: see [`Recipe::canonical`].
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    default: SchemeChoice,
    rules: Vec<Rule>,
    asked_format: Option<OutputFormat>,
    also: Vec<OutputFormat>,
    pack_method: PackMethod,
    layer_types: BTreeMap<LayerKind, SchemeChoice>,
    biases: BiasSchemes,
    keep_defaults: bool,
    weights_only: bool,
    algorithms: Algorithms,
    attention: AttentionScheme,
    max_shard_size: ByteSize,
    seed: u64,
    calibrated: bool,
    statistics: Option<Arc<InputStatistics>>,
    requantize: bool,
    notes: Vec<String>,
    blocks: Option<BlockTypes>,
}

/// The types of layers that become blocks of a GGUF file, and what they follow from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockTypes {
    /// The name of the mix.
    pub scheme: String,
    /// The overrides of types, which the types have taken into account.
    pub overrides: Vec<OverrideText>,
    /// By module; others are kept.
    pub types: BTreeMap<String, GroupedType>,
}

/// The decision of a recipe on a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleMatch {
    /// It stays as it is, whatever its family says.
    Excluded,
    /// It is quantized so, whatever its family says.
    Override(LayerScheme),
    /// It is quantized so, unless its family keeps it by default and [`Recipe::keep_defaults`] is on.
    Default(LayerScheme),
}

impl Recipe {
    /// Makes a recipe of what the command line says and what the file says; the former wins.
    ///
    /// # Errors
    /// *Invalid* for schemes and algorithms that do not exist, no scheme at all, or nothing to quantize; *unsupported* for
    /// algorithms that only others have. Messages name the option or field.
    ///
    /// ```
    /// use kvant_checkpoint::recipe::{RuleMatch, Recipe, Settings};
    ///
    /// let line = Settings {
    ///     scheme: Some("int4_wo_128".to_owned()),
    ///     overrides: vec!["*.down_proj=int8:channel".parse()?],
    ///     exclude: vec!["*.0.*".to_owned()],
    ///     ..Settings::default()
    /// };
    /// let recipe = Recipe::resolve(&line, &Settings::default())?;
    /// assert_eq!(recipe.decide("model.layers.1.mlp.up_proj"), RuleMatch::Default("int4:g128".parse()?));
    /// assert_eq!(recipe.decide("model.layers.1.mlp.down_proj"), RuleMatch::Override("int8:channel".parse()?));
    /// assert_eq!(recipe.decide("model.layers.0.mlp.down_proj"), RuleMatch::Excluded);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resolve(line: &Settings, file: &Settings) -> Result<Recipe, RecipeError> {
        let weights_only = line.weights_only.or(file.weights_only).unwrap_or(false);
        let scales = line.scales.or(file.scales);
        let settle = |choice: SchemeChoice| {
            let choice = if weights_only { choice.weights_only() } else { choice };
            scales.map_or(Ok(choice), |observer| choice.with_observer(observer))
        };
        let default = settle(default_choice(line, file)?)?;
        let mut rules = rules(file, "override", true)?;
        rules.extend(self::rules(line, "‹override›", false)?);
        for rule in &mut rules {
            rule.choice = settle(rule.choice)?;
        }
        let mut layer_types = BTreeMap::new();
        for (kind, choice) in self::layer_types(line, file)? {
            layer_types.insert(kind, settle(choice)?);
        }
        let choices = || {
            let named = rules.iter().map(|rule| rule.choice).chain(layer_types.values().copied());
            std::iter::once(default).chain(named)
        };
        if choices().all(|choice| choice == SchemeChoice::Keep) {
            return Err(RecipeError::invalid(
                "‹scheme›",
                "nothing is selected for quantization",
                "give a scheme or an override",
            ));
        }
        let recipe = Recipe {
            default,
            asked_format: line.format.or(file.format),
            also: if line.also.is_empty() { file.also.clone() } else { line.also.clone() },
            pack_method: line.pack_method.or(file.pack_method).unwrap_or_default(),
            keep_defaults: line.keep_defaults.or(file.keep_defaults).unwrap_or(true),
            weights_only,
            algorithms: algorithms(line, file)?,
            attention: attention::resolve(line, file)?,
            max_shard_size: line.max_shard_size.or(file.max_shard_size).unwrap_or(MAX_SHARD_SIZE),
            seed: line.seed.or(file.seed).unwrap_or(0),
            calibrated: false,
            statistics: None,
            requantize: line.requantize.or(file.requantize).unwrap_or(false),
            notes: line.notes.iter().chain(&file.notes).cloned().collect(),
            biases: BiasSchemes::of(line, file)?,
            rules,
            layer_types,
            blocks: None,
        };
        // Files have it whatever the format: what an output says of how it was made is a recipe too.
        if line.pack_method.is_some() && !recipe.has_nibble_orders() {
            let reason = format!("applies only to the layout quark, and {} is written", recipe.format());
            return Err(RecipeError::invalid("‹pack-method›", reason, "leave it out, or add ‹format› quark"));
        }
        Ok(recipe)
    }

    /// Returns whether some of the output has a choice of the order of 4-bit codes in words.
    fn has_nibble_orders(&self) -> bool {
        [self.format()].iter().chain(&self.also).any(|format| format.capabilities().nibble_orders)
    }

    /// A recipe that quantizes nothing: for a source that is quantized already, whose layout changes. Parameters of activations
    /// are the source's.
    pub(crate) fn carrying(format: OutputFormat, attention: AttentionScheme, max_shard_size: u64) -> Recipe {
        Recipe {
            default: SchemeChoice::Keep,
            rules: Vec::new(),
            asked_format: Some(format),
            also: Vec::new(),
            pack_method: PackMethod::default(),
            layer_types: BTreeMap::new(),
            biases: BiasSchemes::default(),
            keep_defaults: true,
            weights_only: false,
            algorithms: Algorithms::default(),
            attention,
            max_shard_size: ByteSize(max_shard_size),
            seed: 0,
            calibrated: true,
            statistics: None,
            requantize: true,
            notes: Vec::new(),
            blocks: None,
        }
    }

    /// A recipe for layers that become blocks of a GGUF file, whose codes algorithms choose. They are written to a checkpoint first.
    pub fn of_blocks(blocks: BlockTypes, algorithms: Algorithms, requantize: bool, seed: u64) -> Recipe {
        let plain = Recipe::carrying(OutputFormat::TENSORS, AttentionScheme::default(), MAX_SHARD_SIZE.0);
        Recipe { algorithms, seed, calibrated: false, requantize, blocks: Some(blocks), ..plain }
    }

    /// Returns whether layers become blocks of a GGUF file.
    pub fn makes_blocks(&self) -> bool {
        self.blocks.is_some()
    }

    /// Returns whether it is that of a conversion, which nobody says anything about layers in.
    pub(crate) fn is_conversion(&self) -> bool {
        self.default == SchemeChoice::Keep && self.rules.is_empty() && self.blocks.is_none()
    }

    /// Returns whether sources are read that are quantized already.
    pub fn requantizes(&self) -> bool {
        self.requantize
    }

    /// The same with calibration data at hand, or without, which is how it begins: static scales of activations can be
    /// found and algorithms that look at inputs run, or cannot.
    pub fn with_calibration(self, calibrated: bool) -> Recipe {
        Recipe { calibrated, ..self }
    }

    /// The same with the statistics of inputs from a file: static scales of activations are those of its ranges, and its mean squares
    /// weigh the errors of searched weights.
    pub fn with_statistics(self, statistics: Option<Arc<InputStatistics>>) -> Recipe {
        Recipe { statistics, ..self }
    }

    /// The statistics of inputs from a file.
    pub fn statistics(&self) -> Option<&InputStatistics> {
        self.statistics.as_deref()
    }

    /// Returns whether the rounding takes what it needs to know of inputs from the statistics of a file, layer by layer.
    pub fn rounds_with_statistics(&self) -> bool {
        let Algorithms { rotation, transforms, rounding, tunings, correction, .. } = &self.algorithms;
        let rounds_alone = rotation.is_none() && transforms.is_empty() && tunings.is_empty() && correction.is_none();
        self.statistics.is_some() && rounds_alone && rounding.needs() == Needs::Hessian
    }

    /// Returns whether there is calibration data.
    pub fn is_calibrated(&self) -> bool {
        self.calibrated
    }

    /// The transforms of weights, and their rounding.
    pub fn algorithms(&self) -> &Algorithms {
        &self.algorithms
    }

    /// Notes for the user about how it was read.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The quantization of queries, keys, values and the softmax.
    pub fn attention(&self) -> AttentionScheme {
        self.attention
    }

    /// In words, what is quantized of attention: `KV cache e4m3:tensor!static before the rotary embedding`.
    pub fn attention_words(&self) -> Vec<String> {
        attention_words(&self.attention)
    }

    /// The action on a linear layer, by its full module name.
    pub fn decide(&self, module: &str) -> RuleMatch {
        if let Some(blocks) = &self.blocks {
            let scheme = blocks.types.get(module).map(|kind| LayerScheme::weight_only(TensorScheme::Gguf(*kind)));
            return scheme.map_or(RuleMatch::Excluded, RuleMatch::Override);
        }
        match self.rules.iter().rev().find(|rule| rule.layers.matches(module)) {
            Some(rule) => rule.choice.scheme().map_or(RuleMatch::Excluded, RuleMatch::Override),
            None => self.default.scheme().map_or(RuleMatch::Excluded, RuleMatch::Default),
        }
    }

    /// The scheme of a convolution or embedding; `None` if it stays as it is. Patterns are meant for linear layers: where nothing is said of
    /// the kind, only rules without wildcards reach it.
    pub fn decide_shaped(&self, kind: LayerKind, module: &str) -> Option<LayerScheme> {
        let of_kind = self.layer_types.get(&kind);
        let is_meant = |rule: &&Rule| of_kind.is_some() || !rule.layers.has_wildcard();
        let rule = self.rules.iter().rev().filter(is_meant).find(|rule| rule.layers.matches(module));
        rule.map(|rule| rule.choice).or(of_kind.copied())?.scheme()
    }

    /// The kinds of layers that get a scheme; linear ones have it as the default.
    pub fn layer_types(&self) -> impl Iterator<Item = LayerKind> {
        self.layer_types.keys().copied()
    }

    /// The schemes of biases.
    pub fn biases(&self) -> &BiasSchemes {
        &self.biases
    }

    /// The default for layers without a rule.
    pub fn default_choice(&self) -> SchemeChoice {
        self.default
    }

    /// The default scheme's name, for people: `int4_wo_128 (int4:g128)`.
    pub fn scheme_name(&self) -> String {
        self.blocks.as_ref().map_or_else(|| self.default.to_string(), |blocks| blocks.scheme.clone())
    }

    /// What is said of layers by name; the last match wins.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The format: the one asked for, or the first that holds all schemes, beginning with that of the tool by whose name
    /// the scheme was asked for.
    pub fn format(&self) -> OutputFormat {
        self.asked_format.unwrap_or_else(|| format::fitting(self.choices()))
    }

    /// A scheme as it is quantized to: its scales have a type that the format, and all to which the result is converted, store.
    pub fn fitted(&self, scheme: LayerScheme) -> LayerScheme {
        self.also.iter().fold(self.format().fitted(scheme), |scheme, format| format.fitted(scheme))
    }

    /// The same with another format.
    pub(crate) fn with_format(self, format: OutputFormat) -> Recipe {
        Recipe { asked_format: Some(format), ..self }
    }

    /// The recipe for a source without config.json: its default is a format that needs none.
    pub(crate) fn without_config(self) -> Recipe {
        let format = self.asked_format.unwrap_or_else(|| format::fitting_without_config(self.choices()));
        Recipe { asked_format: Some(format), ..self }
    }

    /// The order of 4-bit codes in Quark's layout.
    pub fn nibble_order(&self) -> NibbleOrder {
        self.pack_method.nibbles()
    }

    /// Returns whether the layers that the family keeps by default (heads, routers) are kept.
    pub fn keep_defaults(&self) -> bool {
        self.keep_defaults
    }

    /// Returns whether inputs were dropped from all schemes.
    pub fn weights_only(&self) -> bool {
        self.weights_only
    }

    /// The most bytes of a file of the output.
    pub fn max_shard_size(&self) -> u64 {
        self.max_shard_size.0
    }

    /// The seed of all that is random.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    fn choices(&self) -> impl Iterator<Item = SchemeChoice> + Clone {
        let named = self.rules.iter().map(|rule| rule.choice).chain(self.layer_types.values().copied());
        std::iter::once(self.default).chain(named)
    }

    /// The canonical text: recipes that ask for the same have the same, and [`Settings::from_json`] reads it.
    pub fn canonical(&self) -> String {
        // Serializing plain strings, numbers and lists does not fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The rules that match none of the modules: most likely mistakes.
    pub fn idle_rules<'a>(&self, modules: impl Iterator<Item = &'a str> + Clone) -> Vec<&Rule> {
        self.rules.iter().filter(|rule| !modules.clone().any(|module| rule.layers.matches(module))).collect()
    }

    /// Returns whether a rule gives a scheme to this module, and names none of the others: it is meant alone.
    pub fn asks_for<'a>(&self, module: &str, others: impl Iterator<Item = &'a str> + Clone) -> bool {
        let idle = self.idle_rules(others).into_iter();
        idle.filter(|rule| rule.choice.scheme().is_some()).any(|rule| rule.layers.matches(module))
    }

    /// Every scheme that is asked for, the default's first.
    pub fn schemes(&self) -> impl Iterator<Item = LayerScheme> {
        self.choices().filter_map(SchemeChoice::scheme)
    }
}

impl Serialize for Recipe {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rule =
            |rule: &Rule| OverrideText { layers: rule.layers.pattern().to_owned(), scheme: rule.choice.spelling() };
        let overrides = match &self.blocks {
            Some(blocks) => blocks.overrides.clone(),
            None => self.rules.iter().map(rule).collect(),
        };
        let scheme = self.blocks.as_ref().map_or_else(|| self.default.spelling(), |blocks| blocks.scheme.clone());
        let format = if self.makes_blocks() { OutputFormat::Gguf } else { self.format() };
        let settings = Settings {
            version: Some(VERSION),
            scheme: Some(scheme),
            format: Some(format),
            also: self.also.clone(),
            pack_method: Some(self.pack_method),
            exclude: vec![],
            foreign: false,
            overrides,
            layer_types: self.layer_types.iter().map(|(kind, choice)| (*kind, choice.spelling())).collect(),
            bias: self.biases.spelling(),
            layer_type_biases: self.biases.kinds().collect(),
            keep_defaults: Some(self.keep_defaults),
            weights_only: Some(self.weights_only),
            // Schemes name it.
            scales: None,
            algorithm: (!self.algorithms.is_default()).then(|| self.algorithms.spellings()),
            statistics: None,
            kv_cache: self.attention.key_value.map(|cache| cache.scheme.to_string()),
            kv_cache_post_rope: Some(self.attention.rotary == Rotary::After),
            min_kv_scale: self.attention.key_value.map(|cache| cache.min_scale.value()),
            queries: self.attention.query.map(|scheme| scheme.to_string()),
            probabilities: self.attention.probabilities.map(|scheme| scheme.to_string()),
            max_shard_size: Some(self.max_shard_size),
            seed: Some(self.seed),
            requantize: self.requantize.then_some(true),
            notes: vec![],
        };
        if self.biases.kinds().next().is_none() {
            return settings.serialize(serializer);
        }
        // Kinds of layers with biases are tables.
        let mut value = serde_json::to_value(&settings).map_err(serde::ser::Error::custom)?;
        for (kind, bias) in self.biases.kinds() {
            let scheme = self.layer_types.get(&kind).map(|choice| choice.spelling());
            let mut table = serde_json::Map::new();
            table.extend(scheme.map(|scheme| ("scheme".to_owned(), scheme.into())));
            table.insert("bias".to_owned(), bias.into());
            value["layer_types"][kind.name()] = table.into();
        }
        value.serialize(serializer)
    }
}

/// The scheme of linear layers. Where only other kinds of layers get one, they stay as they are.
fn default_choice(line: &Settings, file: &Settings) -> Result<SchemeChoice, RecipeError> {
    let of_linear = |settings: &'_ Settings| settings.layer_types.get(&LayerKind::Linear).cloned();
    let has_kinds = !line.layer_types.is_empty() || !file.layer_types.is_empty();
    if let Some(text) = of_linear(line) {
        return SchemeChoice::find(LAYER_TYPE, &text);
    }
    match (&line.scheme, of_linear(file).as_ref().or(file.scheme.as_ref())) {
        (Some(text), _) => SchemeChoice::find("‹scheme›", text),
        (None, Some(text)) => SchemeChoice::find("scheme", text),
        (None, None) if has_kinds => Ok(SchemeChoice::Keep),
        (None, None) => Err(RecipeError::invalid(
            "‹scheme›",
            "no scheme is given",
            "give one, e.g. ‹scheme› int4_wo_128; `kvant list schemes` shows all",
        )),
    }
}

const LAYER_TYPE: &str = "‹layer-type›";

/// The schemes of kinds of layers, linear ones left out; the command line wins.
fn layer_types(line: &Settings, file: &Settings) -> Result<BTreeMap<LayerKind, SchemeChoice>, RecipeError> {
    let all = file.layer_types.iter().chain(&line.layer_types).filter(|(kind, _)| **kind != LayerKind::Linear);
    all.map(|(kind, scheme)| Ok((*kind, SchemeChoice::find(LAYER_TYPE, scheme)?))).collect()
}

/// The algorithms of the command line, else those of the file.
fn algorithms(line: &Settings, file: &Settings) -> Result<Algorithms, RecipeError> {
    match (&line.algorithm, &file.algorithm) {
        (Some(list), _) => Algorithms::of_list("‹algorithm›", list),
        (None, Some(list)) => Algorithms::of_list("algorithm", list),
        (None, None) => Ok(Algorithms::default()),
    }
}

/// The overrides and then the exclusions, which win over them.
fn rules(settings: &Settings, option: &str, of_file: bool) -> Result<Vec<Rule>, RecipeError> {
    let mut rules = Vec::with_capacity(settings.overrides.len() + settings.exclude.len());
    let may_be_idle = settings.foreign;
    for OverrideText { layers, scheme } in &settings.overrides {
        let choice = SchemeChoice::find(&format!("{option} {}", quoted(layers)), scheme)?;
        rules.push(Rule {
            layers: glob(option, layers)?,
            choice,
            may_be_idle: may_be_idle && choice == SchemeChoice::Keep,
            of_file,
        });
    }
    for pattern in &settings.exclude {
        rules.push(Rule { layers: glob("exclude", pattern)?, choice: SchemeChoice::Keep, may_be_idle, of_file });
    }
    Ok(rules)
}

/// A pattern; a regular expression with a mistake is refused.
pub(crate) fn glob(option: &str, pattern: &str) -> Result<Glob, RecipeError> {
    let glob = Glob::new(pattern);
    match glob.problem() {
        None => Ok(glob),
        Some(problem) => {
            let reason = format!("{} is not a regular expression: {problem}", quoted(pattern));
            Err(RecipeError::invalid(option, reason, "the text after re: is a Python regular expression"))
        }
    }
}
