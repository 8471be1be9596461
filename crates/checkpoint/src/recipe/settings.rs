//! A recipe as it is written: on the command line or in a file, every part optional, schemes still text. Not checked:
//! that is [`Recipe::resolve`](super::Recipe::resolve).

use super::file::{read_bounded, read_file, read_text};
use super::{Algorithms, glob, quoted};
use crate::byte_size::ByteSize;
use kvant_container::{directory_of, shown};
use kvant_formats::format::OutputFormat;
use kvant_formats::format::quark::read_algorithms;
use kvant_model::network::LayerKind;
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::observer::{ObserverRef, UnknownObserver};
use kvant_quant::recipe::{ModelKind, OverrideEntry, RecipeFile};
use kvant_weights::recipe_error::RecipeError;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The order of 4-bit codes in the words of Quark's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PackMethod {
    /// AWQ's order, Quark's default.
    #[default]
    Reorder,
    /// Natural order.
    Order,
}

impl PackMethod {
    /// The order of codes.
    pub fn nibbles(self) -> NibbleOrder {
        match self {
            PackMethod::Reorder => NibbleOrder::Awq,
            PackMethod::Order => NibbleOrder::Natural,
        }
    }
}

impl std::str::FromStr for PackMethod {
    type Err = RecipeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "reorder" => Ok(PackMethod::Reorder),
            "order" => Ok(PackMethod::Order),
            _ => Err(RecipeError::invalid("pack method", "unknown", "use `reorder` or `order`")),
        }
    }
}

/// One override as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OverrideText {
    /// A glob on full module names.
    pub layers: String,
    /// A preset's name, a spelling, or `keep`.
    pub scheme: String,
}

impl std::str::FromStr for OverrideText {
    type Err = RecipeError;

    /// Reads the `GLOB=SCHEME` of the command line.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (layers, scheme) = named_scheme(text).ok_or_else(|| {
            let reason = format!("{} is not of the form GLOB=SCHEME", quoted(text));
            RecipeError::invalid("‹override›", reason, "write it as in ‹override› '*.down_proj=int8:channel'")
        })?;
        Ok(OverrideText { layers: layers.to_owned(), scheme: scheme.to_owned() })
    }
}

/// The two sides of `NAME=SCHEME`; `None` where one of them is missing.
fn named_scheme(text: &str) -> Option<(&str, &str)> {
    text.split_once('=').filter(|(name, scheme)| !name.is_empty() && !scheme.is_empty())
}

/// The scheme of a kind of layers, as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerTypeText {
    /// The kind.
    pub kind: LayerKind,
    /// A preset's name, a spelling, or `keep`.
    pub scheme: String,
}

impl std::str::FromStr for LayerTypeText {
    type Err = RecipeError;

    /// Reads the `KIND=SCHEME` of the command line.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |reason: String| RecipeError::invalid("‹layer-type›", reason, layer_kinds());
        let not_named = || wrong(format!("{} is not of the form KIND=SCHEME", quoted(text)));
        let (kind, scheme) = named_scheme(text).ok_or_else(not_named)?;
        let kind = kind.parse().map_err(|_| wrong(format!("unknown kind of layer {}", quoted(kind))))?;
        Ok(LayerTypeText { kind, scheme: scheme.to_owned() })
    }
}

/// A recipe as it is written: the settings of a job, or what a [`RecipeFile`] says of checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Settings {
    /// Of the recipe language; in files only.
    pub version: Option<u32>,
    /// The scheme of layers that nothing else is said of.
    pub scheme: Option<String>,
    /// The written file.
    pub format: Option<OutputFormat>,
    /// Further formats, to which the result is converted: their scales decide too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<OutputFormat>,
    /// The order of 4-bit codes in Quark's layout.
    pub pack_method: Option<PackMethod>,
    /// Patterns on full module names of layers that stay as they are. They are the last rules, and win over all overrides.
    pub exclude: Vec<String>,
    /// Whether another tool has written it, whose lists of layers to keep name those of many models.
    #[serde(skip)]
    pub foreign: bool,
    /// Schemes of layers by pattern; the last that matches wins.
    #[serde(rename = "override")]
    pub overrides: Vec<OverrideText>,
    /// Schemes of kinds of layers. That of linear layers takes the place of `scheme`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub layer_types: BTreeMap<LayerKind, String>,
    /// The scheme of biases, or `float`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bias: Option<String>,
    /// The schemes of biases of kinds of layers.
    #[serde(skip)]
    pub layer_type_biases: BTreeMap<LayerKind, String>,
    /// Whether the layers that the family keeps by default are kept.
    pub keep_defaults: Option<bool>,
    /// Whether inputs stay as they are, whatever schemes say of them.
    pub weights_only: Option<bool>,
    /// The observer that finds the scales of weights, where schemes name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scales: Option<ObserverRef>,
    /// The algorithms in order, each with its options: `awq`, `gptq:damping=0.05`.
    pub algorithm: Option<Vec<String>>,
    /// A file with the statistics of inputs; in files only, and not part of what an output says of its recipe.
    #[serde(skip)]
    pub statistics: Option<PathBuf>,
    /// The scheme of keys and values in the cache: `fp8`, `int8` or a spelling.
    pub kv_cache: Option<String>,
    /// Whether keys, and queries with them, are quantized after the rotary embedding.
    pub kv_cache_post_rope: Option<bool>,
    /// The least scale of keys and values.
    pub min_kv_scale: Option<f32>,
    /// The scheme of queries.
    pub queries: Option<String>,
    /// The scheme of the softmax's output.
    pub probabilities: Option<String>,
    /// The most bytes of a file of the output.
    pub max_shard_size: Option<ByteSize>,
    /// The seed of all that is random.
    pub seed: Option<u64>,
    /// Whether sources are read that are quantized already, and lose a second time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requantize: Option<bool>,
    /// Notices about reading this recipe; not part of files.
    #[serde(skip)]
    pub notes: Vec<String>,
}

impl Settings {
    /// Reads a recipe from a file, as [`read_file`] does.
    ///
    /// # Errors
    /// Those of [`read_file`], and keys that apply only to ONNX graphs.
    pub fn read(file: &Path) -> Result<Settings, RecipeError> {
        let mut settings = Settings::try_from(read_file(file)?)?;
        // It stands beside the recipe.
        settings.statistics = settings.statistics.map(|path| directory_of(file).join(path));
        let patterns = settings.overrides.iter().map(|entry| &entry.layers).chain(&settings.exclude);
        for pattern in patterns {
            glob("pattern", pattern).map_err(|error| error.within(&shown(file)))?;
        }
        Ok(settings)
    }

    /// Sets the algorithms: each item is a spelling, or the name of a file that ends in `.json` with Quark's `algo_config` or
    /// one of its objects. None leave it to the recipe.
    ///
    /// # Errors
    /// If a file cannot be read, is not JSON, or requests something unsupported.
    pub fn with_algorithms(mut self, list: &[String]) -> Result<Settings, RecipeError> {
        let mut spellings = Vec::new();
        for item in list {
            if is_json(Path::new(item)) {
                let (algorithms, notes) = algorithms_of_file(Path::new(item))?;
                spellings.extend(algorithms.spellings());
                self.notes.extend(notes);
            } else {
                spellings.push(item.clone());
            }
        }
        self.algorithm = (!spellings.is_empty()).then_some(spellings);
        Ok(self)
    }

    /// Reads a TOML recipe; `name` is the file's, for messages.
    ///
    /// ```
    /// use kvant_checkpoint::recipe::{Recipe, Settings};
    ///
    /// let file = Settings::from_toml("recipe.toml", r#"
    ///     version = 2
    ///     scheme = "int4_wo_128"         # a name or a spelling; "keep" quantizes only what overrides say
    ///     format = "compressed-tensors"  # quark, compressed-tensors or fake
    ///     exclude = ["*.shared_expert.*"]
    ///     algorithm = ["awq", { name = "gptq", damping = 0.05 }]
    ///     kv_cache = "fp8"
    ///
    ///     [[override]]                   # the last rule that matches wins
    ///     layers = "*.down_proj"
    ///     scheme = "int8:channel"
    /// "#)?;
    /// let recipe = Recipe::resolve(&Settings::default(), &file)?;
    /// assert_eq!(recipe.rules().len(), 2);
    /// # Ok::<(), kvant_weights::recipe_error::RecipeError>(())
    /// ```
    ///
    /// # Errors
    /// *Invalid* for text that is no TOML, unknown keys and values of the wrong type; *unsupported* for a later version, and for keys
    /// that apply only to ONNX graphs.
    pub fn from_toml(name: &str, text: &str) -> Result<Settings, RecipeError> {
        Settings::try_from(RecipeFile::from_toml(name, text)?)
    }

    /// Reads JSON: a recipe with the keys of the TOML form, as an output's record of its recipe has them, or a configuration of another
    /// tool, as [`read_text`] takes it; `name` is the file's, for messages.
    ///
    /// # Errors
    /// Those of [`read_text`].
    pub fn from_json(name: &str, text: &str) -> Result<Settings, RecipeError> {
        Settings::try_from(read_text(name, text)?)
    }
}

/// The keys of a file for checkpoints and GGUF files.
impl TryFrom<RecipeFile> for Settings {
    type Error = RecipeError;

    fn try_from(file: RecipeFile) -> Result<Settings, RecipeError> {
        file.refuse_keys_of_others(ModelKind::Checkpoint)?;
        let exclusions_win = file.exclusions_win();
        let name = &file.name;
        let keep = |layers: &String| OverrideText { layers: layers.clone(), scheme: "keep".to_owned() };
        // Where exclusions do not win, they are rules like others, before the overrides.
        let first: Vec<OverrideText> =
            if exclusions_win { Vec::new() } else { file.exclude.iter().map(keep).collect() };
        let overrides = file.overrides.iter().map(|entry| override_text(name, entry));
        let format = |text: &String| {
            let wrong = |_| {
                RecipeError::invalid(format!("{name}: format"), format!("unknown format {}", quoted(text)), FORMATS)
            };
            text.parse::<OutputFormat>().map_err(wrong)
        };
        let size = |text: &String| {
            let wrong = |_| {
                let reason = format!("{} is not a size", quoted(text));
                RecipeError::invalid(format!("{name}: max_shard_size"), reason, "write it as in \"5GB\"")
            };
            text.parse::<ByteSize>().map_err(wrong)
        };
        Ok(Settings {
            version: Some(file.version),
            scheme: file.scheme.clone(),
            format: file.format.as_ref().map(format).transpose()?,
            also: file.also.iter().map(format).collect::<Result<_, _>>()?,
            pack_method: file
                .pack_method
                .as_ref()
                .map(|text| text.parse().map_err(|error: RecipeError| error.within(name)))
                .transpose()?,
            overrides: first.into_iter().map(Ok).chain(overrides).collect::<Result<_, _>>()?,
            exclude: if exclusions_win { file.exclude } else { Vec::new() },
            foreign: file.is_foreign,
            layer_types: file.layer_types.iter().map(|entry| layer_type(name, entry)).collect::<Result<_, _>>()?,
            bias: file.bias.clone(),
            layer_type_biases: file
                .layer_type_biases
                .iter()
                .map(|entry| layer_type(name, entry))
                .collect::<Result<_, _>>()?,
            keep_defaults: file.keep_defaults,
            weights_only: file.weights_only,
            scales: file.scales.as_ref().map(|text| scales(name, text)).transpose()?,
            algorithm: (!file.algorithm.is_empty()).then_some(file.algorithm),
            statistics: file.statistics.map(PathBuf::from),
            kv_cache: file.kv_cache,
            kv_cache_post_rope: file.kv_cache_post_rope,
            min_kv_scale: file.min_kv_scale,
            queries: file.queries,
            probabilities: file.probabilities,
            max_shard_size: file.max_shard_size.as_ref().map(size).transpose()?,
            seed: file.seed,
            requantize: file.requantize,
            notes: file.notes,
        })
    }
}

fn layer_type(name: &str, (kind, scheme): (&String, &String)) -> Result<(LayerKind, String), RecipeError> {
    let unknown = |_| {
        let reason = format!("unknown kind of layer {}", quoted(kind));
        RecipeError::invalid(format!("{name}: layer_types"), reason, layer_kinds())
    };
    kind.parse().map(|kind| (kind, scheme.clone())).map_err(unknown)
}

/// The kinds of layers, for messages.
pub fn layer_kinds() -> String {
    let names: Vec<&str> = LayerKind::all().map(LayerKind::name).collect();
    format!("the kinds are {}", names.join(", "))
}

/// The observer of a name, which must support weights.
fn scales(name: &str, text: &str) -> Result<ObserverRef, RecipeError> {
    text.parse().map_err(|error: UnknownObserver| {
        RecipeError::invalid(format!("{name}: scales"), error.to_string(), "`kvant list observers` shows all")
    })
}

const FORMATS: &str = "`kvant list formats` shows all";

fn override_text(name: &str, entry: &OverrideEntry) -> Result<OverrideText, RecipeError> {
    match (&entry.layers, &entry.tensors) {
        (Some(layers), _) => Ok(OverrideText { layers: layers.clone(), scheme: entry.scheme.clone() }),
        (None, tensors) => {
            let place = format!("{name}: override of {}", quoted(tensors.as_deref().unwrap_or_default()));
            let reason = format!("`tensors` does not apply to {}", ModelKind::Checkpoint);
            Err(RecipeError::unsupported(place, reason, "name layers: `layers = \"*.down_proj\"`"))
        }
    }
}

fn is_json(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
}

/// Quark's `algo_config` in a file of its own.
fn algorithms_of_file(file: &Path) -> Result<(Algorithms, Vec<String>), RecipeError> {
    let text = read_bounded(file).map_err(|cause| RecipeError::Read { file: file.to_owned(), cause })?;
    let name = shown(file);
    let invalid = |error: serde_json::Error| RecipeError::invalid(&name, error.to_string(), "give Quark's algo_config");
    let value: Value = serde_json::from_str(&text).map_err(invalid)?;
    read_algorithms(value.get("algo_config").unwrap_or(&value)).map_err(|error| error.within(&name))
}
