//! adapter_config.json: whether the adapter is a LoRA that is read, and how much of it is added to each module.

use crate::format::Pattern;
use kvant_weights::import_error::ImportError;
use serde_json::{Map, Value};

const FILE: &str = "adapter_config.json";
const HINT: &str = "merge it with PEFT (merge_and_unload), and quantize the result";

/// Fields that mean something else than a plain LoRA where they are set.
const OTHERS: &[(&str, &str)] = &[
    ("use_dora", "DoRA"),
    ("use_qalora", "QALoRA"),
    ("use_bdlora", "BD-LoRA"),
    ("lora_bias", "a bias of the LoRA itself"),
    ("target_parameters", "LoRA on parameters that are not linear layers"),
    ("trainable_token_indices", "trainable tokens"),
    ("layer_replication", "replicated layers"),
    ("alora_invocation_tokens", "activated LoRA"),
    ("arrow_config", "Arrow routing"),
];

/// The most patterns of an adapter, each of which is compiled: more than models have layers.
const MOST_PATTERNS: usize = 10_000;

/// Initializations that change the weights of the model too, unless the adapter was converted when it was saved.
const CHANGED_BASES: &[&str] = &["pissa", "olora", "corda", "loftq", "lora_ga"];

/// The fields that are read.
#[derive(Debug)]
pub(super) struct LoraConfig {
    alpha: f64,
    alphas: Vec<(Pattern, f64)>,
    rank_stabilized: bool,
    /// Whether weights of modules that are not known stand as `[in, out]`.
    pub fan_in_fan_out: bool,
}

impl LoraConfig {
    pub fn read(config: &Value) -> Result<LoraConfig, ImportError> {
        let kind = config.get("peft_type").and_then(Value::as_str).unwrap_or("LORA");
        if kind != "LORA" {
            return Err(unsupported("peft_type", &format!("{kind} is not read; LORA is")));
        }
        if let Some((field, what)) = OTHERS.iter().find(|(field, _)| is_set(config.get(*field))) {
            return Err(unsupported(field, &format!("{what} is not merged")));
        }
        let start = config.get("init_lora_weights").and_then(Value::as_str).unwrap_or_default().to_lowercase();
        if CHANGED_BASES.iter().any(|name| start.starts_with(name)) {
            return Err(unsupported("init_lora_weights", &format!("{start} changes the weights of the model too")));
        }
        let flag = |field: &str| config.get(field).and_then(Value::as_bool).unwrap_or(false);
        let alpha =
            number(config, "lora_alpha").ok_or_else(|| ImportError::adapter(FILE, "lora_alpha is not a number"))?;
        let stated = config.get("alpha_pattern").and_then(Value::as_object);
        if let Some(many) = stated.map(Map::len).filter(|count| *count > MOST_PATTERNS) {
            return Err(unsupported("alpha_pattern", &format!("{many} patterns are more than {MOST_PATTERNS}")));
        }
        let alphas = stated.into_iter().flat_map(Map::iter).map(|(pattern, value)| {
            let wrong = || ImportError::adapter(FILE, format!("alpha_pattern: `{pattern}` is not a number"));
            let expression = format!("re:(?:.*\\.)?(?:{pattern})$");
            let unread = |_| unsupported("alpha_pattern", &format!("the expression `{pattern}` is not understood"));
            Ok((Pattern::new(FILE, &expression).map_err(unread)?, value.as_f64().ok_or_else(wrong)?))
        });
        Ok(LoraConfig {
            alpha,
            alphas: alphas.collect::<Result<_, ImportError>>()?,
            rank_stabilized: flag("use_rslora"),
            fan_in_fan_out: flag("fan_in_fan_out"),
        })
    }

    /// The multiplier of the product of a module's factors.
    pub fn scale(&self, module: &str, rank: usize) -> f32 {
        let own = self.alphas.iter().find(|(pattern, _)| pattern.matches(module)).map(|(_, alpha)| *alpha);
        let divisor = if self.rank_stabilized { (rank as f64).sqrt() } else { rank as f64 };
        (own.unwrap_or(self.alpha) / divisor) as f32
    }
}

fn number(config: &Value, field: &str) -> Option<f64> {
    config.get(field)?.as_f64()
}

fn is_set(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Array(list)) => !list.is_empty(),
        Some(Value::Object(map)) => !map.is_empty(),
        Some(_) => true,
    }
}

fn unsupported(field: &str, reason: &str) -> ImportError {
    ImportError::unsupported(format!("{FILE}: {field}"), reason, HINT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lora_scale_follows_alpha_rank_and_patterns() {
        let scale = |config: Value, module: &str, rank| LoraConfig::read(&config).unwrap().scale(module, rank);
        let plain = json!({"peft_type": "LORA", "lora_alpha": 16, "alpha_pattern": {"layers.1.*q_proj": 4}});
        assert_eq!(scale(plain.clone(), "model.layers.0.self_attn.q_proj", 8), 2.0);
        assert_eq!(scale(plain.clone(), "model.layers.1.self_attn.q_proj", 8), 0.5);
        assert_eq!(scale(plain, "model.layers.1.self_attn.q_proj_too", 8), 2.0);
        assert_eq!(scale(json!({"lora_alpha": 16, "use_rslora": true}), "x", 64), 2.0);
    }

    #[test]
    fn unsupported_adapters_are_refused_by_name() {
        let refused = |config: Value| LoraConfig::read(&config).unwrap_err().to_string();
        assert!(refused(json!({"peft_type": "IA3"})).contains("IA3"));
        assert!(refused(json!({"lora_alpha": 1, "use_dora": true})).contains("DoRA"));
        assert!(refused(json!({"lora_alpha": 1, "init_lora_weights": "PiSSA_niter_4"})).contains("pissa"));
        assert!(refused(json!({"peft_type": "LORA"})).contains("lora_alpha"));
        let many: Map<String, Value> = (0..=MOST_PATTERNS).map(|at| (format!("m{at}"), json!(1))).collect();
        assert!(refused(json!({"lora_alpha": 1, "alpha_pattern": many})).contains("patterns"));
        assert!(LoraConfig::read(&json!({"lora_alpha": 1, "use_dora": false, "target_parameters": null})).is_ok());
    }
}
