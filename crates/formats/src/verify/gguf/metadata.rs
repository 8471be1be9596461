//! Metadata: what llama.cpp needs of every decoder (`llama_model_base::load_hparams`).

use super::GgufView;
use kvant_container::gguf::{Array, Value};
use kvant_quant::finding::Findings;

const HINT: &str = "convert the model again";

/// Keys under the architecture's name, of which one of each row must be a number above 0, or a list of them.
const NEEDED: [&[&str]; 5] = [
    &["block_count"],
    &["context_length"],
    &["embedding_length"],
    &["feed_forward_length", "expert_feed_forward_length"],
    &["attention.head_count"],
];

/// Architectures without attention and feed-forward networks, and the keys whose sizes are 0 in them.
const NONE: [&str; 2] = ["mamba", "mamba2"];
const ABSENT: [&str; 2] = ["feed_forward_length", "attention.head_count"];

/// Keys of which one must be there.
const EPSILONS: [&str; 3] =
    ["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "attention.group_norm_epsilon"];

pub(super) fn run(subject: &GgufView<'_>, findings: &mut Findings) {
    if subject.architecture.is_empty() {
        return findings.error("general.architecture", "is missing, or no text", HINT);
    }
    let key = |key: &str| format!("{}.{key}", subject.architecture);
    for keys in NEEDED {
        let values: Vec<&Value> = keys.iter().filter_map(|name| subject.value(&key(name))).collect();
        match values.first() {
            None => findings.error(key(keys[0]), "is missing", HINT),
            // There is nothing but state-space layers.
            Some(_) if NONE.contains(&subject.architecture) && ABSENT.contains(&keys[0]) => {}
            Some(value) if !is_size(value) => findings.error(key(keys[0]), "is not a size", HINT),
            Some(_) => {}
        }
    }
    if !EPSILONS.iter().any(|name| subject.value(&key(name)).is_some()) {
        findings.error(key(EPSILONS[0]), "is missing, and so is every other epsilon of norms", HINT);
    }
    if subject.value("general.quantization_version").is_none() && is_quantized(subject) {
        findings.warning("general.quantization_version", "is missing, and there are quantized tensors", HINT);
    }
    heads(subject, findings);
    xielu(subject, findings);
}

/// Numbers that Apertus has for every block, whatever the architecture's name: the parameters of its activation function.
const XIELU: [&str; 4] = ["xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps"];

fn xielu(subject: &GgufView<'_>, findings: &mut Findings) {
    let blocks = subject.number("block_count");
    for key in XIELU.iter().filter(|_| subject.architecture == "apertus") {
        let count = subject.value(key).map(|value| value.as_array().map(Array::len));
        match count {
            None => findings.error(*key, "is missing", HINT),
            // One number is that of all blocks.
            Some(Some(count)) if blocks.is_some_and(|blocks| blocks != count) => {
                findings.error(*key, format!("has {count} numbers, and not one for every block"), HINT);
            }
            Some(_) => {}
        }
    }
}

fn is_size(value: &Value) -> bool {
    value.as_array().map_or_else(|| value.as_u64().is_some_and(|size| size > 0), |list| !list.is_empty())
}

fn is_quantized(subject: &GgufView<'_>) -> bool {
    subject.tensors.iter().any(|tensor| tensor.kind.block_elements() > 1)
}

/// Heads share the heads of keys and values evenly.
fn heads(subject: &GgufView<'_>, findings: &mut Findings) {
    let (heads, shared) = (subject.number("attention.head_count"), subject.number("attention.head_count_kv"));
    if let (Some(heads), Some(shared)) = (heads, shared.filter(|shared| *shared > 0))
        && !heads.is_multiple_of(shared)
    {
        let reason = format!("{heads} heads cannot share {shared} heads of keys and values");
        findings.error(format!("{}.attention.head_count_kv", subject.architecture), reason, HINT);
    }
}
