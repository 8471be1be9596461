//! Configuration files of a checkpoint that hold one JSON object.

use serde_json::{Map, Value};
use std::fs;
use std::path::Path;

/// The object in a file, or what is wrong with the file.
pub(crate) fn object(file: &Path) -> Result<Map<String, Value>, String> {
    let text = fs::read_to_string(file).map_err(|cause| format!("cannot be read: {cause}"))?;
    match serde_json::from_str(&text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err("is no JSON object".to_owned()),
        Err(cause) => Err(format!("is no JSON: {cause}")),
    }
}
