//! Locates a checkpoint's chat template and the names of its special tokens. Nothing is rendered.

use super::super::CalibrationDataError;
use kvant_container::gguf::{self, GgufFile};
use kvant_container::model_directory;
use kvant_gguf::model::restore::tokenizer_config;
use kvant_weights::import_error::ImportError;
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The longest file that is read; tokenizers of many added tokens have configurations of a megabyte.
const MAX_FILE: u64 = 64 << 20;

/// A template and its special tokens.
pub(super) struct Found {
    /// The file that holds it.
    pub file: PathBuf,
    /// Its text.
    pub source: String,
    /// The special tokens by the names that templates use, such as `bos_token`.
    pub special_tokens: Vec<(String, String)>,
}

/// Looks in chat_template.jinja, tokenizer_config.json and chat_template.json, in this order, as transformers does; of a GGUF
/// file in its metadata.
pub(super) fn find(model: &Path) -> Result<Option<Found>, CalibrationDataError> {
    if gguf::is_gguf(model) {
        return of_gguf(model);
    }
    let model = model_directory(model);
    let config = object(&model.join("tokenizer_config.json"))?;
    let special = object(&model.join("special_tokens_map.json"))?;
    let alone = model.join("chat_template.jinja");
    if let Some(source) = text(&alone)? {
        return Ok(Some(Found { file: alone, source, special_tokens: special_tokens(&config, &special) }));
    }
    for name in ["tokenizer_config.json", "chat_template.json"] {
        let file = model.join(name);
        let source = object(&file)?.get("chat_template").and_then(template);
        if let Some(source) = source {
            return Ok(Some(Found { file, source, special_tokens: special_tokens(&config, &special) }));
        }
    }
    Ok(None)
}

fn of_gguf(file: &Path) -> Result<Option<Found>, CalibrationDataError> {
    let config = GgufFile::open(file).map_err(ImportError::from).and_then(|open| tokenizer_config(&open));
    let unreadable =
        |error: ImportError| CalibrationDataError::Template { file: file.to_path_buf(), message: error.to_string() };
    let config = config.map_err(unreadable)?.as_object().cloned().unwrap_or_default();
    let found =
        |source| Found { file: file.to_path_buf(), source, special_tokens: special_tokens(&config, &Map::new()) };
    Ok(config.get("chat_template").and_then(template).map(found))
}

/// The template in an entry: a text, or of a list of named ones the one named `default`.
fn template(entry: &Json) -> Option<String> {
    match entry {
        Json::String(text) => Some(text.clone()),
        Json::Array(list) => {
            let default = list.iter().find(|named| named["name"] == "default");
            Some(default?.get("template")?.as_str()?.to_owned())
        }
        _ => None,
    }
}

/// Tokens are texts or objects with a `content`; tokenizer_config.json counts before special_tokens_map.json.
fn special_tokens(config: &Map<String, Json>, special: &Map<String, Json>) -> Vec<(String, String)> {
    let named = special.iter().chain(config).filter(|(name, _)| name.ends_with("_token"));
    let texts =
        named.filter_map(|(name, value)| Some((name, value.as_str().or_else(|| value.get("content")?.as_str())?)));
    texts.map(|(name, token)| (name.clone(), token.to_owned())).collect::<BTreeMap<_, _>>().into_iter().collect()
}

fn object(file: &Path) -> Result<Map<String, Json>, CalibrationDataError> {
    let Some(text) = text(file)? else { return Ok(Map::new()) };
    let broken = |message: String| CalibrationDataError::Template { file: file.to_path_buf(), message };
    match kvant_container::python_json::parse(text.as_bytes()).map_err(|error| broken(error.to_string()))? {
        Json::Object(object) => Ok(object),
        _ => Err(broken("it is not an object".to_owned())),
    }
}

/// A file's text; `None` where there is no such file.
fn text(file: &Path) -> Result<Option<String>, CalibrationDataError> {
    if !file.is_file() {
        return Ok(None);
    }
    let (mut text, unreadable) =
        (String::new(), |cause| CalibrationDataError::Read { file: file.to_path_buf(), cause });
    let length =
        File::open(file).and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text)).map_err(unreadable)?;
    if length as u64 > MAX_FILE {
        let message = format!("more than {MAX_FILE} bytes");
        return Err(CalibrationDataError::Template { file: file.to_path_buf(), message });
    }
    Ok(Some(text))
}
