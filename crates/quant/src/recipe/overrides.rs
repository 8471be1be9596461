//! One `[[override]]` of a recipe file.

use super::RecipeFileError;
use super::keys::nearest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Another scheme for some layers or tensors. Exactly one of the two patterns is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideEntry {
    /// A pattern on the names of layers: modules of a checkpoint, nodes of a graph.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<String>,
    /// A pattern on the names of tensors of a graph.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensors: Option<String>,
    /// The scheme, or `keep`.
    pub scheme: String,
}

const HINT: &str = "an [[override]] has `layers` (or `tensors` of an ONNX graph) and `scheme`";

impl OverrideEntry {
    /// An override of layers.
    pub fn of_layers(layers: impl Into<String>, scheme: impl Into<String>) -> OverrideEntry {
        OverrideEntry { layers: Some(layers.into()), tensors: None, scheme: scheme.into() }
    }

    /// An override of tensors.
    pub fn of_tensors(tensors: impl Into<String>, scheme: impl Into<String>) -> OverrideEntry {
        OverrideEntry { layers: None, tensors: Some(tensors.into()), scheme: scheme.into() }
    }

    /// Reads an entry of the list.
    pub(super) fn read(place: &str, value: &Value) -> Result<OverrideEntry, RecipeFileError> {
        let invalid = |reason: String| RecipeFileError::invalid(place, reason, HINT);
        let fields = value.as_object().ok_or_else(|| invalid("is not a table".to_owned()))?;
        if let Some(unknown) = fields.keys().find(|key| !["layers", "tensors", "scheme"].contains(&key.as_str())) {
            let shown: String = unknown.chars().take(64).flat_map(char::escape_debug).collect();
            let near = nearest(unknown, ["layers", "tensors", "scheme"].into_iter());
            let guess = near.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
            return Err(invalid(format!("unknown key `{shown}`{guess}")));
        }
        let entry = OverrideEntry {
            layers: text(place, fields, "layers")?,
            tensors: text(place, fields, "tensors")?,
            scheme: text(place, fields, "scheme")?.ok_or_else(|| invalid("`scheme` is missing".to_owned()))?,
        };
        match (&entry.layers, &entry.tensors) {
            (None, None) => Err(invalid("`layers` is missing".to_owned())),
            (Some(_), Some(_)) => Err(invalid("names both `layers` and `tensors`".to_owned())),
            _ => Ok(entry),
        }
    }
}

fn text(place: &str, fields: &Map<String, Value>, key: &str) -> Result<Option<String>, RecipeFileError> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(RecipeFileError::invalid(place, format!("`{key}` is not a text"), HINT)),
    }
}
