//! From the keys of a recipe file to its text.

use super::{RecipeFile, VERSION};
use serde_json::Value;
use std::collections::BTreeSet;

impl RecipeFile {
    /// The file as TOML of [`VERSION`], which reads back as the same. Keys that are not given are left out.
    pub fn to_toml(&self) -> String {
        let mut text = format!("version = {VERSION}\n");
        for (name, value) in self.given() {
            if !["version", "override", "layer_types"].contains(&name.as_str()) {
                text.push_str(&format!("{name} = {}\n", toml(&value)));
            }
        }
        let kinds: BTreeSet<&String> = self.layer_types.keys().chain(self.layer_type_biases.keys()).collect();
        if !kinds.is_empty() {
            text.push_str("\n[layer_types]\n");
        }
        for kind in kinds {
            let quoted = |text: &String| toml(&text.as_str().into());
            let (scheme, bias) = (self.layer_types.get(kind).map(quoted), self.layer_type_biases.get(kind).map(quoted));
            text.push_str(&match (scheme, bias) {
                (Some(scheme), None) => format!("{kind} = {scheme}\n"),
                (Some(scheme), Some(bias)) => format!("{kind} = {{ scheme = {scheme}, bias = {bias} }}\n"),
                (None, bias) => format!("{kind} = {{ bias = {} }}\n", bias.unwrap_or_default()),
            });
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
