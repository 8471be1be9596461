//! Module names after loading: transformers renames the tensors of many checkpoints while it reads them, and matches the
//! `targets` and `ignore` of a `quantization_config` with the names that its own modules have. The renaming is data,
//! `conversion_mapping.json`, which `tests/interop/transformers_names.py` writes from transformers' conversion mapping.

use fancy_regex::Regex;
use kvant_model::model_config::ModelConfig;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::LazyLock;

const MAPPING: &str = include_str!("conversion_mapping.json");

/// For each `model_type` or class of transformers a list of `[pattern, replacement]`.
static RENAMINGS: LazyLock<Value> = LazyLock::new(|| serde_json::from_str(MAPPING).unwrap_or_default());

/// Paths of the language model inside a multimodal one, to whose names the renaming of the inner `model_type` applies.
const INNER: [&str; 3] = ["model.language_model.", "language_model.", "model."];

/// The names that modules of one model may have once transformers has loaded it.
#[derive(Debug, Default)]
pub struct LoaderNames {
    /// Of the model as a whole.
    whole: Vec<Renaming>,
    /// Of models inside it: its base model, its language model.
    inner: Vec<Vec<Renaming>>,
}

/// The first match of an expression is replaced.
#[derive(Debug)]
struct Renaming {
    pattern: Regex,
    replacement: String,
}

impl LoaderNames {
    /// The renaming for a config.json: by class first, then by `model_type`, as transformers looks it up.
    pub fn of(config: &ModelConfig) -> LoaderNames {
        let class = config.architectures.first().map(String::as_str);
        let own = class.into_iter().chain(config.model_types.first().map(String::as_str));
        let base = class.and_then(base_class);
        let inner = base.iter().map(String::as_str).chain(config.model_types.iter().skip(1).map(String::as_str));
        LoaderNames {
            whole: own.map(renamings).find(|rules| !rules.is_empty()).unwrap_or_default(),
            inner: inner.map(renamings).filter(|rules| !rules.is_empty()).collect(),
        }
    }

    /// The names that a module may have after loading where they differ from `module`. Several, since where inner models
    /// stand is not known from config.json.
    pub fn of_module(&self, module: &str) -> BTreeSet<String> {
        // Expressions may look at the end of a tensor's name.
        let whole = apply(&self.whole, &format!("{module}.weight"));
        let mut names = BTreeSet::from([whole.clone()]);
        let mut current = whole;
        for rules in &self.inner {
            let prefixes = INNER.iter().copied().chain([""]).filter(|prefix| current.starts_with(prefix));
            let renamed: Vec<String> =
                prefixes.map(|prefix| format!("{prefix}{}", apply(rules, &current[prefix.len()..]))).collect();
            current = renamed.iter().find(|name| **name != current).cloned().unwrap_or(current);
            names.extend(renamed);
        }
        let modules = names.iter().filter_map(|name| name.strip_suffix(".weight"));
        modules.filter(|name| *name != module).map(str::to_owned).collect()
    }
}

/// The class without a head: `MllamaForConditionalGeneration` is built around `MllamaModel`.
fn base_class(class: &str) -> Option<String> {
    class.find("For").map(|at| format!("{}Model", &class[..at]))
}

fn renamings(name: &str) -> Vec<Renaming> {
    let rules = RENAMINGS.get(name).and_then(Value::as_array).into_iter().flatten();
    rules.filter_map(|rule| Renaming::new(rule.get(0)?.as_str()?, rule.get(1)?.as_str()?)).collect()
}

fn apply(rules: &[Renaming], name: &str) -> String {
    rules.iter().fold(name.to_owned(), |name, rule| rule.apply(&name).unwrap_or(name))
}

impl Renaming {
    fn new(pattern: &str, replacement: &str) -> Option<Renaming> {
        Some(Renaming { pattern: Regex::new(pattern).ok()?, replacement: replacement.to_owned() })
    }

    /// The name with the first match replaced; `None` without one.
    fn apply(&self, name: &str) -> Option<String> {
        let found = self.pattern.captures(name).ok()??;
        let all = found.get(0)?;
        let group = found.get(1).map_or("", |group| group.as_str());
        // The data are Python's: a backslash before a dot is one that escapes it.
        let replacement = self.replacement.replace(r"\1", group).replace(r"\.", ".");
        Some(format!("{}{replacement}{}", &name[..all.start()], &name[all.end()..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn names(config: &Value, module: &str) -> Vec<String> {
        let config = ModelConfig::from_json(config).unwrap();
        LoaderNames::of(&config).of_module(module).into_iter().collect()
    }

    #[test]
    fn every_renaming_expression_is_supported() {
        let all = RENAMINGS.as_object().unwrap();
        assert!(all.len() > 200);
        for (name, rules) in all {
            assert_eq!(renamings(name).len(), rules.as_array().unwrap().len(), "{name}");
        }
    }

    #[test]
    fn modules_have_the_names_transformers_gives_them() {
        let nemotron = json!({"model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"]});
        assert_eq!(names(&nemotron, "backbone.layers.0.mixer.in_proj"), ["model.layers.0.mixer.in_proj"]);
        assert!(names(&nemotron, "lm_head").is_empty());
        let mllama = json!({"model_type": "mllama", "architectures": ["MllamaForConditionalGeneration"]});
        assert_eq!(names(&mllama, "language_model.lm_head"), ["lm_head"]);
        let found = names(&mllama, "language_model.model.layers.0.self_attn.q_proj");
        assert!(found.contains(&"model.language_model.layers.0.self_attn.q_proj".to_owned()), "{found:?}");
        let detr = json!({"model_type": "detr", "architectures": ["DetrForObjectDetection"]});
        let found = names(&detr, "model.decoder.layers.0.fc1");
        assert!(found.contains(&"model.decoder.layers.0.mlp.fc1".to_owned()), "{found:?}");
        let swin = json!({"model_type": "swin", "architectures": ["SwinForImageClassification"]});
        assert_eq!(names(&swin, "swin.layers.0.attention.self.query"), ["swin.layers.0.attention.q_proj"]);
        let llama = json!({"model_type": "llama", "architectures": ["LlamaForCausalLM"]});
        assert!(names(&llama, "model.layers.0.self_attn.q_proj").is_empty());
    }
}
