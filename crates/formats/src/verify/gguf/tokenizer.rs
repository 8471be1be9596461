//! The tokenizer: lists of the same length, tokens that have a row of the embedding, special tokens that exist.

use super::GgufView;
use kvant_container::gguf::{Array, Value};
use kvant_gguf::model::tokenizer::special::SPECIAL;
use kvant_gguf::model::tokenizer::wanted_by_name;
use kvant_quant::finding::Findings;

const HINT: &str = "convert the model again";
const TOKENS: &str = "tokenizer.ggml.tokens";
/// Lists with an entry for every token.
const PARALLEL: [&str; 2] = ["tokenizer.ggml.scores", "tokenizer.ggml.token_type"];

pub(super) fn run(subject: &GgufView<'_>, findings: &mut Findings) {
    let Some(model) = subject.value("tokenizer.ggml.model").and_then(Value::as_str) else {
        return findings.warning("tokenizer.ggml.model", "is missing: the file has no tokenizer", HINT);
    };
    let Some(tokens) = subject.value(TOKENS).and_then(Value::as_array).filter(|list| list.strings().is_some()) else {
        return findings.error(TOKENS, "is missing, or no list of texts", HINT);
    };
    lists(subject, tokens.len(), findings);
    tokens_of_the_name(subject, tokens, findings);
    if model == "gpt2" {
        byte_pairs(subject, findings);
    }
    let rows = subject.tensor("token_embd.weight").and_then(|tensor| tensor.shape.first().copied());
    if let Some(rows) = rows.filter(|rows| *rows != tokens.len()) {
        findings.error(TOKENS, format!("has {} tokens; the embedding has {rows} rows", tokens.len()), HINT);
    }
}

/// llama.cpp looks for tokens by the name of the model, and refuses a file that lacks them (`llama_vocab::impl::load`).
fn tokens_of_the_name(subject: &GgufView<'_>, tokens: &Array, findings: &mut Findings) {
    let name = subject.value("general.name").and_then(Value::as_str).unwrap_or_default();
    let has =
        |wanted: &&&str| tokens.strings().is_some_and(|list| list.iter().any(|token| token.to_lossy() == **wanted));
    if let Some(missing) = wanted_by_name(name).iter().find(|wanted| !has(wanted)) {
        let reason = format!("is {name}, for which llama.cpp needs the token `{missing}`, which is missing");
        findings.error("general.name", reason, "give the model's directory another name, and convert again");
    }
}

fn lists(subject: &GgufView<'_>, count: usize, findings: &mut Findings) {
    for key in PARALLEL {
        let length = subject.value(key).and_then(Value::as_array).map(Array::len);
        if let Some(length) = length.filter(|length| *length != count) {
            findings.error(key, format!("has {length} entries for {count} tokens"), HINT);
        }
    }
    for (_, name) in SPECIAL {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let number = subject.value(&key).and_then(Value::as_u64);
        if let Some(number) = number.filter(|number| *number >= count as u64) {
            findings.error(key, format!("is {number}; there are {count} tokens"), HINT);
        }
    }
}

/// Byte pair encoding needs its merges, and the way texts are split before it.
fn byte_pairs(subject: &GgufView<'_>, findings: &mut Findings) {
    let merges = subject.value("tokenizer.ggml.merges").and_then(Value::as_array).and_then(Array::strings);
    match merges {
        None => findings.error("tokenizer.ggml.merges", "is missing, or no list of texts", HINT),
        Some(merges) => {
            let odd = merges.iter().filter(|merge| !merge.to_lossy().contains(' ')).count();
            if odd > 0 {
                findings.error("tokenizer.ggml.merges", format!("{odd} entries are not pairs"), HINT);
            }
        }
    }
    if subject.value("tokenizer.ggml.pre").and_then(Value::as_str).is_none_or(|pre| pre == "default") {
        let reason = "does not say how texts are split: llama.cpp takes its default, which makes most models worse";
        findings.warning("tokenizer.ggml.pre", reason, HINT);
    }
}
