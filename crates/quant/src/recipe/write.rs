//! From the keys of a recipe file to its text.

use super::{RecipeFile, VERSION};
use serde_json::Value;

impl RecipeFile {
    /// The file as TOML of [`VERSION`], which reads back as the same. Keys that are not given are left out.
    pub fn to_toml(&self) -> String {
        let mut text = format!("version = {VERSION}\n");
        for (name, value) in self.given() {
            if !["version", "override", "layer_types"].contains(&name.as_str()) {
                text.push_str(&format!("{name} = {}\n", toml(&value)));
            }
        }
        if !self.layer_types.is_empty() {
            text.push_str("\n[layer_types]\n");
        }
        for (kind, scheme) in &self.layer_types {
            text.push_str(&format!("{kind} = {}\n", toml(&scheme.as_str().into())));
        }
        for entry in &self.overrides {
            text.push_str("\n[[override]]\n");
            let patterns = [("layers", &entry.layers), ("tensors", &entry.tensors)];
            for (key, pattern) in patterns {
                text.extend(pattern.iter().map(|pattern| format!("{key} = {}\n", toml(&pattern.as_str().into()))));
            }
            text.push_str(&format!("scheme = {}\n", toml(&entry.scheme.as_str().into())));
        }
        text
    }
}

/// A value in TOML's spelling, which is JSON's but for one character.
fn toml(value: &Value) -> String {
    value.to_string().replace('\u{7f}', "\\u007F")
}
