//! Values of config.json that transformers looks up in tables, and raises on where they are not in them: activation functions, kinds
//! of rotary embeddings, types. Models that bring code of their own may know others.

use crate::verify::subject::CheckpointView;
use kvant_quant::finding::Findings;
use serde_json::{Map, Value};

const HINT: &str = "take config.json from the original model";

/// `ACT2FN` of transformers 5.16.
#[rustfmt::skip]
const ACTIVATIONS: [&str; 24] = [
    "gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python", "gelu_python_tanh", "gelu_pytorch_tanh",
    "hardswish", "laplace", "leaky_relu", "linear", "mish", "prelu", "quick_gelu", "relu", "relu2", "relu6", "sigmoid", "silu",
    "sqrtsoftplus", "swish", "tanh", "xielu",
];

/// `ROPE_INIT_FUNCTIONS`, and what configurations of before are read as.
const ROTARY: [&str; 9] = ["default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "su", "mrope"];

/// Keys without which transformers raises, of each kind of rotary embedding.
const ROTARY_KEYS: [(&str, &[&str]); 6] = [
    ("linear", &["factor"]),
    ("dynamic", &["factor"]),
    ("yarn", &["factor"]),
    ("llama3", &["factor", "low_freq_factor", "high_freq_factor"]),
    ("longrope", &["short_factor", "long_factor"]),
    ("su", &["short_factor", "long_factor"]),
];

/// Types of torch that weights have.
#[rustfmt::skip]
const TYPES: [&str; 10] = [
    "auto", "bfloat16", "double", "float", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "half",
];

/// A table, and the keys whose values are looked up in it.
const TABLES: [(&[&str], &[&str]); 2] =
    [(&["hidden_act", "hidden_activation", "activation_function"], &ACTIVATIONS), (&["dtype", "torch_dtype"], &TYPES)];

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    let Some(config) = subject.json.as_ref().and_then(Value::as_object) else { return };
    if subject.network.family().is_none() || config.contains_key("auto_map") {
        return;
    }
    for part in [Some(config), config.get("text_config").and_then(Value::as_object)].into_iter().flatten() {
        for (keys, table) in TABLES {
            keys.iter().for_each(|key| look_up(part, key, table, findings));
        }
        for rotary in ["rope_parameters", "rope_scaling"].iter().filter_map(|key| part.get(*key)?.as_object()) {
            // Models with layers of several kinds have parameters for each.
            let kinds = rotary.values().filter_map(Value::as_object);
            for of_kind in std::iter::once(rotary).chain(kinds) {
                ["rope_type", "type"].iter().for_each(|key| look_up(of_kind, key, &ROTARY, findings));
                rotary_keys(of_kind, findings);
            }
        }
    }
    frequencies(subject, findings);
}

/// The keys that a kind of rotary embedding needs.
fn rotary_keys(rotary: &Map<String, Value>, findings: &mut Findings) {
    let Some(kind) = ["rope_type", "type"].iter().find_map(|key| rotary.get(*key)?.as_str()) else { return };
    let needed = ROTARY_KEYS.iter().find(|(name, _)| *name == kind).map_or(&[][..], |(_, keys)| keys);
    for key in needed.iter().filter(|key| !rotary.contains_key(**key)) {
        let reason = format!("is missing, which rotary embeddings of the type `{kind}` need");
        findings.error(format!("config.json: {key}"), reason, HINT);
    }
}

/// LongRoPE has a factor for each frequency: half as many as components of a head that turn.
fn frequencies(subject: &CheckpointView<'_>, findings: &mut Findings) {
    let rope = &subject.config.rope.main;
    let turning = |head_dim: usize| (head_dim as f64 * rope.partial.unwrap_or(1.0)) as usize;
    let Some(turning) = rope.dim.or_else(|| subject.config.head_dim().map(turning)) else { return };
    for (key, factors) in [("short_factor", &rope.short_factor), ("long_factor", &rope.long_factor)] {
        if !factors.is_empty() && factors.len() != turning / 2 {
            let reason = format!("has {} numbers; heads of this size need {}", factors.len(), turning / 2);
            findings.error(format!("config.json: {key}"), reason, HINT);
        }
    }
}

fn look_up(object: &Map<String, Value>, key: &str, table: &[&str], findings: &mut Findings) {
    let Some(value) = object.get(key).and_then(Value::as_str) else { return };
    let plain = value.strip_prefix("torch.").unwrap_or(value);
    if !table.contains(&plain) {
        let shown: String = value.chars().take(60).flat_map(char::escape_debug).collect();
        findings.error(format!("config.json: {key}"), format!("is `{shown}`, which transformers does not know"), HINT);
    }
}
