//! Whether adapter_config.json and the tensors of an adapter are of one training: ranks, modules that were adapted, modules that were
//! saved whole. Where they are not, one of the two files is of another adapter, and what is merged would be a guess.

use super::wrong;
use crate::format::Pattern;
use kvant_container::TensorView;
use kvant_weights::import_error::ImportError;
use serde_json::{Map, Value};

const FILE: &str = "adapter_config.json";

/// The most patterns that are compiled: more than models have layers.
const MOST_PATTERNS: usize = 10_000;

/// The configuration's statements about the tensors.
#[derive(Debug)]
pub(super) struct Agreement {
    /// `r`, where it is stated.
    rank: Option<Value>,
    /// `rank_pattern`.
    ranks: Vec<(Pattern, Value)>,
    /// `target_modules`, where it names modules.
    targets: Option<Targets>,
    /// `modules_to_save`.
    saved: Vec<String>,
}

#[derive(Debug)]
enum Targets {
    /// Names, or what names end with.
    Names(Vec<String>),
    /// An expression for whole names.
    Expression(String, Pattern),
}

impl Agreement {
    pub(super) fn read(config: &Value) -> Agreement {
        let ranks = config.get("rank_pattern").and_then(Value::as_object);
        let ranks = ranks.into_iter().flat_map(Map::iter).take(MOST_PATTERNS).filter_map(|(pattern, rank)| {
            let pattern = Pattern::new(FILE, &format!("re:(?:.*\\.)?(?:{pattern})$")).ok()?;
            Some((pattern, rank.clone()))
        });
        let rank = config.get("r").filter(|rank| !rank.is_null()).cloned();
        let targets = config.get("target_modules").and_then(targets);
        let saved = config.get("modules_to_save").map(strings).unwrap_or_default();
        Agreement { rank, ranks: ranks.collect(), targets, saved }
    }

    /// Refuses a product of another rank than is stated for its module, and one of a module that is not stated.
    ///
    /// # Errors
    /// Names the tensor, the file and both values.
    pub(super) fn check_product(&self, module: &str, rank: usize, view: TensorView<'_>) -> Result<(), ImportError> {
        if let Some(targets) = self.targets.as_ref().filter(|targets| !targets.name(module)) {
            let reason = format!("adapts `{module}`, and target_modules in {FILE} is {}", targets.in_words());
            return Err(wrong(view, reason));
        }
        let own = self.ranks.iter().find(|(pattern, _)| pattern.matches(module));
        let (field, stated) = match (own, &self.rank) {
            (Some((_, rank)), _) => ("rank_pattern", rank),
            (None, Some(rank)) => ("r", rank),
            (None, None) => return Ok(()),
        };
        if stated.as_f64() == Some(rank as f64) {
            return Ok(());
        }
        Err(wrong(view, format!("has rank {rank}, and {field} in {FILE} says {stated} for `{module}`")))
    }

    /// Refuses an adapter that lacks a module of the model which is stated to be saved whole. `is_saved` and `is_of_model` say
    /// whether adapter and model have a tensor of a module; names of neither are those that PEFT adds on its own.
    ///
    /// # Errors
    /// Names the module and the files.
    pub(super) fn check_saved(
        &self,
        weights: &str,
        is_saved: impl Fn(&str) -> bool,
        is_of_model: impl Fn(&str) -> bool,
    ) -> Result<(), ImportError> {
        match self.saved.iter().find(|module| !is_saved(module) && is_of_model(module)) {
            Some(module) => {
                let reason = format!("modules_to_save names `{module}`, but {weights} has no tensor for it");
                Err(ImportError::adapter(FILE, reason))
            }
            None => Ok(()),
        }
    }
}

impl Targets {
    fn name(&self, module: &str) -> bool {
        match self {
            Targets::Names(names) => names.iter().any(|name| is_named(module, name)),
            Targets::Expression(_, pattern) => pattern.matches(module),
        }
    }

    fn in_words(&self) -> String {
        let shown = match self {
            Targets::Names(names) => names.join(", "),
            Targets::Expression(text, _) => text.clone(),
        };
        match shown.char_indices().nth(200) {
            Some((end, _)) => format!("{} ...", &shown[..end]),
            None if shown.is_empty() => "empty".to_owned(),
            None => shown,
        }
    }
}

/// Returns whether a module has this name, or one that ends with it, as PEFT compares them.
pub(super) fn is_named(module: &str, name: &str) -> bool {
    module.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// Nothing where all linear layers are meant, or what is meant is not known.
fn targets(stated: &Value) -> Option<Targets> {
    match stated {
        Value::String(text) if text.eq_ignore_ascii_case("all-linear") => None,
        Value::String(text) => {
            let pattern = Pattern::new(FILE, &format!("re:(?:{text})$")).ok()?;
            Some(Targets::Expression(text.clone(), pattern))
        }
        Value::Array(_) => Some(Targets::Names(strings(stated))),
        _ => None,
    }
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn target_modules_match_like_peft() {
        let names = |stated: Value, module: &str| targets(&stated).is_none_or(|targets| targets.name(module));
        let q = "model.layers.0.self_attn.q_proj";
        assert!(names(json!(["q_proj"]), q) && names(json!(["self_attn.q_proj"]), q) && names(json!([q]), q));
        assert!(!names(json!(["v_proj", "proj"]), q) && !names(json!([]), q));
        assert!(names(json!(".*\\.(q|v)_proj"), q) && !names(json!(".*\\.(q|v)"), q));
        assert!(names(json!("all-linear"), q) && names(Value::Null, q));
    }
}
