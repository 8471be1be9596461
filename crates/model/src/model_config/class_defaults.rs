//! What transformers' configuration classes take for keys that config.json does not state, where that differs from what most classes take.
//! `tests/interop/test_absent_keys.py` compares all of them.

use serde_json::{Map, Value};

/// Keys, each with its value in JSON and the values of `model_type` whose class has this default.
const DEFAULTS: &[(&str, &str, &[&str])] = &[
    ("norm_topk_prob", "true", &["qwen3_next", "qwen3_omni_moe_text"]),
    ("routed_scaling_factor", "2.5", &["deepseek_v3", "exaone_moe"]),
    ("routed_scaling_factor", "1.8", &["glm4_moe_lite"]),
    ("n_group", "8", &["deepseek_v3"]),
    ("topk_group", "4", &["deepseek_v3"]),
];

/// The keys of a language model with the defaults of the class of `model_type` for those that neither it nor the `whole` model states.
pub(super) fn completed(
    stated: &Map<String, Value>,
    whole: &Map<String, Value>,
    model_type: &str,
) -> Map<String, Value> {
    let mut all = stated.clone();
    let of_class = DEFAULTS.iter().filter(|(key, _, types)| types.contains(&model_type) && !whole.contains_key(*key));
    for (key, value, _) in of_class {
        if let Ok(value) = serde_json::from_str(value) {
            all.entry((*key).to_owned()).or_insert(value);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_config::ModelConfig;
    use serde_json::json;

    #[test]
    fn defaults_are_json_and_each_class_has_one_for_a_key() {
        for (at, (key, value, types)) in DEFAULTS.iter().enumerate() {
            assert!(serde_json::from_str::<Value>(value).is_ok(), "{key}: {value}");
            let others = DEFAULTS[at + 1..].iter().filter(|(other, ..)| other == key);
            assert!(others.into_iter().all(|(_, _, others)| types.iter().all(|name| !others.contains(name))), "{key}");
        }
    }

    #[test]
    fn absent_keys_have_the_default_of_their_class() {
        let normalise = |config: Value| ModelConfig::from_json(&config).unwrap().experts.unwrap().normalise;
        assert_eq!(normalise(json!({"model_type": "qwen3_next", "num_experts": 4})), Some(true));
        assert_eq!(
            normalise(json!({"model_type": "qwen3_next", "num_experts": 4, "norm_topk_prob": false})),
            Some(false)
        );
        assert_eq!(normalise(json!({"model_type": "qwen3_moe", "num_experts": 4})), None);
        let nested = json!({"model_type": "qwen3_omni_moe", "text_config": {"model_type": "qwen3_omni_moe_text", "num_experts": 4}});
        assert_eq!(normalise(nested), Some(true));
    }
}
