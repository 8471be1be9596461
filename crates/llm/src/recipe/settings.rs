//! A recipe as it is written: on the command line or in a file, every part optional, schemes still text. Not checked:
//! that is [`Recipe::resolve`](super::Recipe::resolve).

use super::Algorithms;
use crate::byte_size::ByteSize;
use crate::format::OutputFormat;
use crate::format::quark::{QuarkConfig, WeightFormat, read_algorithms};
use crate::recipe_error::RecipeError;
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::scheme::{LayerScheme, Rotary};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::io::{self, Read};
use std::path::Path;

/// The version of the recipe's fields.
pub const VERSION: u32 = 1;

/// More than this is no recipe.
const MAX_BYTES: u64 = 64 << 20;

const FIELDS: &str = "a recipe has the fields version, scheme, format, also, pack_method, exclude, keep_defaults, weights_only, algorithm, \
                      kv_cache, kv_cache_post_rope, min_kv_scale, queries, probabilities, max_shard_size, seed, requantize, and any number of [[override]] with layers and scheme";

/// The order of 4-bit codes in the words of Quark's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
        match text.split_once('=') {
            Some((layers, scheme)) if !layers.is_empty() && !scheme.is_empty() => {
                Ok(OverrideText { layers: layers.to_owned(), scheme: scheme.to_owned() })
            }
            _ => {
                let reason = format!("{} is not of the form GLOB=SCHEME", super::quoted(text));
                Err(RecipeError::invalid("‹override›", reason, "write it as in ‹override› '*.down_proj=int8:channel'"))
            }
        }
    }
}

/// A recipe as it is written. The fields are those of a TOML recipe:
///
/// ```
/// use kvant_llm::recipe::{Recipe, Settings};
///
/// let file = Settings::from_toml("recipe.toml", r#"
///     version = 1
///     scheme = "int4_wo_128"         # a name or a spelling; "keep" quantizes only what overrides say
///     format = "compressed-tensors"  # quark, compressed-tensors or fake
///     pack_method = "reorder"        # or "order": of 4-bit codes in Quark's layout
///     exclude = ["*.shared_expert.*"]
///     keep_defaults = true           # the family's defaults: heads and routers stay as they are
///     weights_only = false
///     algorithm = ["awq", "gptq:damping=0.05"]  # `kvant list algorithms`; in this order
///     kv_cache = "fp8"               # or "int8", or a spelling such as "e4m3:tensor:percentile99.9!static"
///     kv_cache_post_rope = false     # whether keys are quantized after the rotary embedding
///     min_kv_scale = 0.0
///     queries = "fp8"
///     probabilities = "fp8"          # the output of the softmax
///     max_shard_size = "5GB"
///     seed = 0
///
///     [[override]]                   # the last that matches wins
///     layers = "*.down_proj"
///     scheme = "int8:channel"
/// "#)?;
/// let recipe = Recipe::resolve(&Settings::default(), &file)?;
/// assert_eq!(recipe.rules().len(), 2);
/// # Ok::<(), kvant_llm::recipe::RecipeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Of the fields; in files only, where it must be [`VERSION`].
    pub version: Option<u32>,
    /// The scheme of layers that nothing else is said of.
    pub scheme: Option<String>,
    /// What is written.
    pub format: Option<OutputFormat>,
    /// Further formats, to which the result is converted: their scales decide too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<OutputFormat>,
    /// The order of 4-bit codes in Quark's layout.
    pub pack_method: Option<PackMethod>,
    /// Globs on full module names of layers that stay as they are.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Whether another tool has written it, whose lists of layers to keep name those of many models.
    #[serde(skip)]
    pub foreign: bool,
    /// Schemes of layers by glob; the last that matches wins.
    #[serde(default, rename = "override")]
    pub overrides: Vec<OverrideText>,
    /// Whether the layers that the family keeps by default are kept.
    pub keep_defaults: Option<bool>,
    /// Whether inputs stay as they are, whatever schemes say of them.
    pub weights_only: Option<bool>,
    /// The algorithms in order, each with its options: `awq`, `gptq:damping=0.05`; in a file, one may stand without a list.
    #[serde(default, deserialize_with = "one_or_many")]
    pub algorithm: Option<Vec<String>>,
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requantize: Option<bool>,
    /// What the user should know of how this was read; not part of files.
    #[serde(skip)]
    pub notes: Vec<String>,
}

impl Settings {
    /// Reads a recipe from a file: TOML, or JSON as [`Settings::from_json`] takes it where the name ends in `.json`.
    ///
    /// # Errors
    /// Where the file cannot be read, and those of [`Settings::from_toml`] and [`Settings::from_json`].
    pub fn read(file: &Path) -> Result<Settings, RecipeError> {
        let text = read_text(file).map_err(|cause| RecipeError::Read { file: file.to_owned(), cause })?;
        let name = file.display().to_string();
        if is_json(file) { Settings::from_json(&name, &text) } else { Settings::from_toml(&name, &text) }
    }

    /// Sets the algorithms: each item is a spelling, or the name of a file that ends in `.json` with Quark's `algo_config` or
    /// one of its objects. None leave it to the recipe.
    ///
    /// # Errors
    /// Where a file cannot be read, is no JSON, or asks for what is not here.
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
    /// # Errors
    /// *Invalid* for text that is no TOML, unknown fields, values of the wrong type or a missing version; *unsupported* for
    /// another version.
    pub fn from_toml(name: &str, text: &str) -> Result<Settings, RecipeError> {
        let invalid = |error: toml::de::Error| {
            let line = error.span().map_or(1, |span| 1 + text.bytes().take(span.start).filter(|b| *b == b'\n').count());
            let reason = error.message().lines().collect::<Vec<_>>().join(", ");
            RecipeError::invalid(format!("{name}, line {line}"), reason, FIELDS)
        };
        let version = toml::from_str::<VersionOnly>(text).map_err(invalid)?;
        check_version(name, version.version)?;
        toml::from_str(text).map_err(invalid)
    }

    /// Reads JSON: a recipe with the fields of the TOML form, as the output's provenance holds it, or a
    /// `quantization_config` of Quark, or a config.json with one; `name` is the file's, for messages.
    ///
    /// # Errors
    /// As [`Settings::from_toml`], and those of [`QuarkConfig::read`].
    pub fn from_json(name: &str, text: &str) -> Result<Settings, RecipeError> {
        let invalid = |error: serde_json::Error| {
            RecipeError::invalid(name, error.to_string(), "give a TOML recipe or a quantization_config of Quark")
        };
        let value: Value = serde_json::from_str(text).map_err(invalid)?;
        if QuarkConfig::recognizes(&value) {
            return QuarkConfig::read(&value).map(Settings::from).map_err(|error| error.within(name));
        }
        check_version(name, value.get("version").and_then(Value::as_u64))?;
        serde_json::from_value(value).map_err(invalid)
    }
}

/// A list of texts, or one text as a list of one.
fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a text or a list of texts is needed")]
    enum Said {
        One(String),
        Many(Vec<String>),
    }
    let said = Option::<Said>::deserialize(deserializer)?;
    Ok(said.map(|said| match said {
        Said::One(text) => vec![text],
        Said::Many(list) => list,
    }))
}

fn is_json(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
}

/// Quark's `algo_config` in a file of its own.
fn algorithms_of_file(file: &Path) -> Result<(Algorithms, Vec<String>), RecipeError> {
    let text = read_text(file).map_err(|cause| RecipeError::Read { file: file.to_owned(), cause })?;
    let name = file.display().to_string();
    let invalid = |error: serde_json::Error| RecipeError::invalid(&name, error.to_string(), "give Quark's algo_config");
    let value: Value = serde_json::from_str(&text).map_err(invalid)?;
    read_algorithms(value.get("algo_config").unwrap_or(&value)).map_err(|error| error.within(&name))
}

/// Reads a text file of bounded length.
fn read_text(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(file)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "longer than any recipe"));
    }
    Ok(text)
}

/// The part of every version that is known.
#[derive(Deserialize)]
struct VersionOnly {
    version: Option<u64>,
}

fn check_version(name: &str, version: Option<u64>) -> Result<(), RecipeError> {
    match version {
        Some(version) if version == u64::from(VERSION) => Ok(()),
        Some(version) => {
            let reason = format!("the recipe has version {version}, and this Kvant reads version {VERSION}");
            Err(RecipeError::unsupported(name, reason, "use the Kvant that the recipe was written for"))
        }
        None => {
            Err(RecipeError::invalid(name, "the recipe has no version", format!("begin it with `version = {VERSION}`")))
        }
    }
}

/// What the configuration asks for, in the words of a recipe. The family's defaults stay in force: Quark's lists of
/// excluded modules are known to miss routers.
impl From<QuarkConfig> for Settings {
    fn from(config: QuarkConfig) -> Settings {
        let text = |scheme: Option<LayerScheme>| scheme.map_or("keep".to_owned(), |scheme| scheme.to_string());
        let rule = |(layers, scheme)| OverrideText { layers, scheme: text(scheme) };
        Settings {
            scheme: Some(text(config.default)),
            format: Some(if config.weight_format == WeightFormat::Fake {
                OutputFormat::PlainFloats
            } else {
                OutputFormat::QUARK
            }),
            pack_method: Some(match config.order {
                NibbleOrder::Awq => PackMethod::Reorder,
                NibbleOrder::Natural => PackMethod::Order,
            }),
            kv_cache: config.attention.key_value.map(|cache| cache.scheme.to_string()),
            kv_cache_post_rope: (config.attention.rotary == Rotary::After).then_some(true),
            min_kv_scale: config.attention.key_value.map(|cache| cache.min_scale.value()),
            queries: config.attention.query.map(|scheme| scheme.to_string()),
            probabilities: config.attention.probabilities.map(|scheme| scheme.to_string()),
            algorithm: (!config.algorithms.is_plain()).then(|| config.algorithms.spellings()),
            notes: config.notes,
            exclude: config.exclude,
            foreign: true,
            // Quark's first match wins.
            overrides: config.layers.into_iter().rev().map(rule).collect(),
            ..Settings::default()
        }
    }
}
