//! Reads a recipe file in any of the languages that are understood. The content decides which one it is, not the name of the file:
//! Kvant's own keys as TOML or JSON, AMD Quark's JSON, a `quantization_config` of compressed-tensors or AutoRound, a `layer_config` of AutoRound, or a
//! recipe of llm-compressor.

use super::{auto_round, llm_compressor, yaml};
use kvant_container::shown;
use kvant_formats::format::quark::{QuarkConfig, WeightFormat};
use kvant_formats::format::{OutputFormat, compressed_tensors};
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::recipe::{OverrideEntry, RecipeFile, RecipeFileError, VERSION};
use kvant_quant::scheme::{LayerScheme, Rotary};
use kvant_weights::recipe_error::RecipeError;
use serde_json::Value;
use std::io::{self, Read};
use std::path::Path;

/// More than this is no recipe.
const MAX_BYTES: u64 = 64 << 20;

const LANGUAGES: &str = "give Kvant's TOML, a quantization_config of AMD Quark, compressed-tensors or AutoRound, or a recipe of llm-compressor";

/// Reads a recipe file.
///
/// # Errors
/// If the file cannot be read, and those of [`read_text`].
pub fn read_file(file: &Path) -> Result<RecipeFile, RecipeError> {
    let text = read_bounded(file).map_err(|cause| RecipeError::Read { file: file.to_owned(), cause })?;
    read_text(&shown(file), &text)
}

/// Reads the text of a recipe file; `name` is the file's, for messages.
///
/// # Errors
/// *Invalid* for text in none of the languages, unknown keys and values of the wrong type; *unsupported* for what Kvant cannot express,
/// by name.
pub fn read_text(name: &str, text: &str) -> Result<RecipeFile, RecipeError> {
    let json = || {
        let invalid = |error| RecipeError::invalid(name, format!("it is not valid JSON: {error}"), LANGUAGES);
        serde_json::from_str(text).map_err(invalid)
    };
    if text.trim_start().starts_with('{') {
        return of_value(name, json()?, RecipeFile::from_json);
    }
    match RecipeFile::from_toml(name, text) {
        Err(_) if looks_like_yaml(text) => {
            let value = yaml::read(text).map_err(|problem| {
                RecipeError::invalid(format!("{name}, {problem}"), "this is not valid YAML", LANGUAGES)
            })?;
            of_value(name, value, RecipeFile::from_yaml)
        }
        // What is neither is a mistake in the language that the name promises.
        Err(_) if name.to_ascii_lowercase().ends_with(".json") => of_value(name, json()?, RecipeFile::from_json),
        read => Ok(read?),
    }
}

/// Returns whether the first line with a key separates it from its value by a colon.
fn looks_like_yaml(text: &str) -> bool {
    let lines = text.lines().map(str::trim);
    let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#') && !line.starts_with("---"));
    lines.next().is_some_and(|line| match (line.find(':'), line.find('=')) {
        (Some(colon), Some(equals)) => colon < equals,
        (colon, _) => colon.is_some(),
    })
}

/// The reader of Kvant's own keys in a language.
type OwnKeys = fn(&str, Value) -> Result<RecipeFile, RecipeFileError>;

fn of_value(name: &str, value: Value, own_keys: OwnKeys) -> Result<RecipeFile, RecipeError> {
    let config = value.get("quantization_config").unwrap_or(&value);
    let within = |error: RecipeError| error.within(name);
    let foreign = if llm_compressor::recognizes(&value) {
        llm_compressor::read_recipe(&value).map_err(within)?
    } else if auto_round::recognizes(&value) {
        auto_round::read_recipe(&value).map_err(within)?
    } else if compressed_tensors::recognizes(config) {
        compressed_tensors::read_recipe(config).map_err(within)?
    } else if QuarkConfig::recognizes(&value) {
        let config = QuarkConfig::read(&value).map_err(within)?;
        config.refuse_layer_biases().map_err(within)?;
        of_quark(config)
    } else {
        return Ok(own_keys(name, value)?);
    };
    Ok(RecipeFile { version: VERSION, name: name.to_owned(), is_foreign: true, ..foreign })
}

/// The word for biases that are not quantized.
pub(super) const FLOAT: &str = "float";

/// What a configuration of Quark asks for, in the keys of a recipe. The family's defaults stay in force: Quark's lists of excluded
/// modules are known to miss routers.
fn of_quark(config: QuarkConfig) -> RecipeFile {
    let text = |scheme: Option<LayerScheme>| scheme.map_or("keep".to_owned(), |scheme| scheme.to_string());
    let format = match config.weight_format {
        WeightFormat::Fake => OutputFormat::PlainFloats,
        WeightFormat::Real => OutputFormat::QUARK,
    };
    let order = match config.order {
        NibbleOrder::Awq => "reorder",
        NibbleOrder::Natural => "order",
    };
    // Quark's first match wins.
    let overrides = config.layers.into_iter().rev();
    RecipeFile {
        scheme: Some(text(config.default)),
        format: Some(format.name().to_owned()),
        pack_method: Some(order.to_owned()),
        kv_cache: config.attention.key_value.map(|cache| cache.scheme.to_string()),
        kv_cache_post_rope: (config.attention.rotary == Rotary::After).then_some(true),
        min_kv_scale: config.attention.key_value.map(|cache| cache.min_scale.value()),
        queries: config.attention.query.map(|scheme| scheme.to_string()),
        probabilities: config.attention.probabilities.map(|scheme| scheme.to_string()),
        algorithm: if config.algorithms.is_default() { Vec::new() } else { config.algorithms.spellings() },
        notes: config.notes,
        layer_types: config
            .layer_types
            .into_iter()
            .map(|(kind, scheme)| (kind.name().to_owned(), text(scheme)))
            .collect(),
        bias: config.bias.map(|scheme| scheme.to_string()),
        layer_type_biases: config
            .layer_type_biases
            .into_iter()
            .map(|(kind, scheme)| {
                (kind.name().to_owned(), scheme.map_or(FLOAT.to_owned(), |scheme| scheme.to_string()))
            })
            .collect(),
        exclude: config.exclude,
        overrides: overrides.map(|(layers, scheme)| OverrideEntry::of_layers(layers, text(scheme))).collect(),
        ..RecipeFile::default()
    }
}

/// Reads a text file of bounded length.
pub(super) fn read_bounded(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(file)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "longer than any recipe"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipe_language_is_detected_from_content() {
        for text in ["a: 1", "# x = 1\n---\n\nquant_stage:\n  a: b=c", "a: [x = 1]"] {
            assert!(looks_like_yaml(text), "{text}");
        }
        for text in ["", "version = 1", "# a: b\nscheme = \"a:b\"", "[[override]]", "a = 1\nb: 2"] {
            assert!(!looks_like_yaml(text), "{text}");
        }
        let error = read_text("r.txt", "version = 2\nscheme: int4").unwrap_err();
        assert!(error.to_string().starts_with("r.txt, line 2: "), "{error}");
        let error = read_text("r.txt", "scheme: int4\n  x: [").unwrap_err();
        assert!(error.to_string().starts_with("r.txt, line 2"), "{error}");
        // Kvant's keys may be written as YAML too.
        let file = read_text("r.txt", "version: 2\nscheme: int4:g128").unwrap();
        assert_eq!((file.scheme.as_deref(), file.is_foreign), (Some("int4:g128"), false));
        let error = read_text("config.json", r#"{"quantization_config": {"quant_method": "gptq"}}"#).unwrap_err();
        assert!(error.to_string().contains("`gptq` cannot be read as a recipe"), "{error}");
    }
}
