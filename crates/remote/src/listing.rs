//! Which files of a model elsewhere are needed: those that describe it, and the files of its weights.

use crate::error::RemoteError;
use serde_json::Value;
use std::collections::BTreeSet;

/// The model's description.
pub const CONFIG: &str = "config.json";
/// The index of several files of weights.
pub const INDEX: &str = "model.safetensors.index.json";
/// The usual name where one file has all weights.
pub const SINGLE: &str = "model.safetensors";
/// What shows that a folder is a pipeline of several models.
pub const PIPELINE: &str = "model_index.json";

/// Files beside the weights, for servers that do not list theirs.
pub const USUAL: &[&str] = &[
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "README.md",
    "LICENSE",
];

/// Endings of small files that describe a model.
const DESCRIBING: &[&str] = &["json", "jinja", "md", "model", "py", "spm", "tiktoken", "txt"];

/// Of the files of a model, those to download whole: what describes it, at the top, and the code and configurations of its folders.
pub fn describing(names: &[String]) -> impl Iterator<Item = &str> {
    let is_wanted = |name: &&str| {
        let (folder, file) = name.rsplit_once('/').unwrap_or(("", name));
        let describes = match file.rsplit_once('.') {
            Some((_, ending)) => DESCRIBING.iter().any(|known| ending.eq_ignore_ascii_case(known)),
            None => folder.is_empty(),
        };
        let is_index = file.ends_with(".index.json");
        describes && is_plain(name) && !is_index && name.matches('/').count() <= 1 && file != CONFIG_OF_ORIGINAL
    };
    names.iter().map(String::as_str).filter(is_wanted)
}

/// Parameters of Meta's own files, in a folder that no loader reads.
const CONFIG_OF_ORIGINAL: &str = "params.json";

/// The files of code that a configuration names in its own folder.
pub fn code(config: &Value) -> BTreeSet<String> {
    let named = config["auto_map"].as_object().into_iter().flat_map(|map| map.values());
    let texts = named.flat_map(|value| match value {
        Value::Array(values) => values.iter().filter_map(Value::as_str).collect(),
        value => value.as_str().into_iter().collect::<Vec<_>>(),
    });
    let module =
        |text: &str| (!text.contains("--")).then(|| text.rsplit_once('.').map(|(module, _)| module.to_owned()));
    texts.filter_map(module).flatten().map(|module| format!("{module}.py")).filter(|name| is_plain(name)).collect()
}

/// The files of weights that an index names.
///
/// # Errors
/// [`RemoteError::Invalid`] for an index that names none, or paths out of the folder.
pub fn shards(index: &[u8], object: &str) -> Result<BTreeSet<String>, RemoteError> {
    let invalid = |problem: String| RemoteError::Invalid { object: object.to_owned(), problem };
    let index: Value = serde_json::from_slice(index).map_err(|error| invalid(error.to_string()))?;
    let names = index["weight_map"].as_object().into_iter().flat_map(|map| map.values());
    let names: BTreeSet<String> = names.filter_map(|name| name.as_str().map(str::to_owned)).collect();
    if let Some(name) = names.iter().find(|name| !is_plain(name)) {
        return Err(invalid(format!("`{}` is no file of the folder", name.escape_debug())));
    }
    match names.is_empty() {
        true => Err(invalid("it names no files of weights".to_owned())),
        false => Ok(names),
    }
}

/// Of the files of a model without an index, those of its weights.
pub fn weights(names: &[String]) -> BTreeSet<String> {
    let is_weights = |name: &&String| !name.contains('/') && is_plain(name) && name.ends_with(".safetensors");
    match names.iter().any(|name| name == SINGLE) {
        true => [SINGLE.to_owned()].into(),
        false => names.iter().filter(is_weights).cloned().collect(),
    }
}

/// Returns whether a name stays inside its folder on every system.
fn is_plain(name: &str) -> bool {
    let forbidden = |c: char| matches!(c, '\\' | ':') || c.is_control();
    !name.contains(forbidden) && name.split('/').all(|part| !part.is_empty() && !part.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_model_are_told_apart() {
        let names = [
            "config.json",
            "LICENSE",
            ".gitattributes",
            "modeling_x.py",
            "1_Pooling/config.json",
            "model.safetensors",
            "model.safetensors.index.json",
            "original/params.json",
            "onnx/model.onnx",
            "picture.png",
            "a/b/c.json",
            "../x.json",
            "consolidated.safetensors",
            "tokenizer.model",
        ];
        let names: Vec<String> = names.map(str::to_owned).into();
        let found: Vec<&str> = describing(&names).collect();
        assert_eq!(found, ["config.json", "LICENSE", "modeling_x.py", "1_Pooling/config.json", "tokenizer.model"]);
        assert_eq!(weights(&names), [SINGLE.to_owned()].into());
        assert_eq!(weights(&names[12..]), ["consolidated.safetensors".to_owned()].into());
    }

    #[test]
    fn index_names_files_of_its_folder_only() {
        let shards = |map: &str| shards(format!(r#"{{"weight_map": {map}}}"#).as_bytes(), "index");
        assert_eq!(shards(r#"{"a": "x", "b": "x", "c": "d/y"}"#).unwrap().len(), 2);
        for wrong in ["{}", r#"{"a": "../x"}"#, r#"{"a": "/x"}"#, r#"{"a": "c:x"}"#, "[]"] {
            assert!(matches!(shards(wrong), Err(RemoteError::Invalid { .. })), "{wrong}");
        }
    }

    #[test]
    fn code_is_what_configurations_name() {
        let config = serde_json::json!({"auto_map": {
            "AutoConfig": "configuration_x.XConfig",
            "AutoModel": "org/other--modeling_y.Y",
            "AutoTokenizer": ["tokenization_x.X", null],
        }});
        assert_eq!(code(&config), ["configuration_x.py".to_owned(), "tokenization_x.py".to_owned()].into());
    }
}
