//! The pre-tokenizer of a byte-level tokenizer: the one in tokenizer.json, looked up in llama.cpp's list by
//! its structure. One row each in `SPLITS`.
//!
//! Source: `llm_tokenizer_bpe` of llama.cpp's `src/llama-vocab.cpp`, which has the original expressions as comments.

use super::TokenizerProblem;
use serde_json::Value;

/// One step of splitting.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SplitStep {
    /// By an expression.
    Expression(String),
    /// Digits, one by one.
    Digits,
    /// By the expression that the byte-level step has itself.
    Gpt2,
}

/// The expression of the byte-level step.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// A pre-tokenizer: `tokenizer.ggml.pre`, and the expressions in order; `None` matches any.
struct Split {
    name: &'static str,
    steps: &'static [Option<&'static str>],
    /// Whether words that are tokens are taken whole; `None` where that makes no difference.
    ignores_merges: Option<bool>,
    /// The families that it is for; empty for all.
    families: &'static [&'static str],
}

const fn split(name: &'static str, steps: &'static [Option<&'static str>]) -> Split {
    Split { name, steps, ignores_merges: None, families: &[] }
}

const DIGITS: &str = r"\p{N}";
const CL100K: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED_CODER: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
const LINES: &str = "[\r\n]";
const HAN: &str = "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";

/// Every way that is known, the more particular first.
const SPLITS: &[Split] = &[
    Split { families: &["cohere", "cohere2"], ..split("command-r", &[Some(DIGITS), Some(GPT2)]) },
    Split { families: &["smollm3"], ..split("smollm", &[Some(DIGITS), Some(GPT2)]) },
    split("starcoder", &[Some(DIGITS), Some(GPT2)]),
    Split { families: &["olmo", "gpt_neox", "olmoe"], ..split("olmo", &[Some(GPT2)]) },
    split("gpt-2", &[Some(GPT2)]),
    Split { families: &["glm4", "glm4_moe"], ..split("glm4", &[Some(CL100K)]) },
    Split { ignores_merges: Some(true), ..split("llama-bpe", &[Some(CL100K)]) },
    split("dbrx", &[Some(CL100K)]),
    Split { families: &["stablelm"], ..split("stablelm2", &[Some(QWEN2)]) },
    split("qwen2", &[Some(QWEN2)]),
    split("qwen35", &[Some(QWEN35)]),
    split("tekken", &[Some(TEKKEN)]),
    Split { families: &["minimax_m2"], ..split("minimax-m2", &[Some(GPT4O)]) },
    split("gpt-4o", &[Some(GPT4O)]),
    split("seed-coder", &[Some(SEED_CODER)]),
    split("deepseek-v3", &[Some(r"\p{N}{1,3}"), Some(HAN), None]),
    split("deepseek-coder", &[Some(LINES), Some(r"\s?\p{L}+"), Some(r"\s?\p{P}+"), None, Some(DIGITS)]),
    split("deepseek-llm", &[Some(LINES), None, None, Some(r"\s+$"), None, Some(r"\p{N}+")]),
];

/// The name of the pre-tokenizer of a family's byte-level tokenizer.
///
/// # Errors
/// [`TokenizerProblem::Split`] where llama.cpp does not have it, or it is not known here.
pub(crate) fn name(tokenizer: &Value, family: &str) -> Result<&'static str, TokenizerProblem> {
    let mut steps = Vec::new();
    collect(tokenizer.get("pre_tokenizer").unwrap_or(&Value::Null), &mut steps)?;
    let expressions: Vec<&str> = steps.iter().map(SplitStep::expression).collect();
    let ignores = tokenizer.pointer("/model/ignore_merges").and_then(Value::as_bool).unwrap_or(false);
    let suits = |split: &&Split| {
        split.steps.len() == expressions.len()
            && split.steps.iter().zip(&expressions).all(|(known, found)| known.is_none_or(|known| known == *found))
            && split.ignores_merges.is_none_or(|wanted| wanted == ignores)
            && (split.families.is_empty() || split.families.contains(&family))
    };
    let found = SPLITS.iter().find(suits);
    found.map(|split| split.name).ok_or_else(|| TokenizerProblem::Split(words(&expressions)))
}

/// A way to split text, as files name it.
pub(crate) struct Way {
    /// The expressions, in order.
    pub expressions: Vec<&'static str>,
    /// Whether words that are tokens are taken whole.
    pub ignores_merges: bool,
    /// Whether the first token is prepended to a text by default.
    pub begins: bool,
}

/// Pre-tokenizers that add the first token by default, and take words that are tokens whole.
const WHOLE_WORDS: &[&str] = &["llama-bpe", "tekken"];

/// The way of a name; `None` where it, or an expression of it, is not known here.
pub(crate) fn ways(name: &str) -> Option<Way> {
    let split = SPLITS.iter().find(|split| split.name == name)?;
    let expressions = split.steps.iter().copied().collect::<Option<Vec<_>>>()?;
    let whole = WHOLE_WORDS.contains(&name);
    Some(Way { expressions, ignores_merges: whole, begins: whole })
}

impl SplitStep {
    fn expression(&self) -> &str {
        match self {
            SplitStep::Expression(text) => text,
            SplitStep::Digits => DIGITS,
            SplitStep::Gpt2 => GPT2,
        }
    }
}

/// Expressions for a message, cut short.
fn words(expressions: &[&str]) -> String {
    let cut = |text: &&str| text.escape_debug().take(60).collect::<String>();
    let all: Vec<String> = expressions.iter().map(|text| format!("`{}`", cut(text))).collect();
    if all.is_empty() { "nothing".to_owned() } else { all.join(", ") }
}

/// The steps of a pre-tokenizer, nested ones included.
fn collect(node: &Value, steps: &mut Vec<SplitStep>) -> Result<(), TokenizerProblem> {
    let kind = node.get("type").and_then(Value::as_str);
    match kind {
        None => {}
        Some("Sequence") => {
            let inner = node.get("pretokenizers").and_then(Value::as_array);
            inner.into_iter().flatten().try_for_each(|step| collect(step, steps))?;
        }
        Some("ByteLevel") if flag(node, "use_regex", true) => steps.push(SplitStep::Gpt2),
        Some("ByteLevel") => {}
        Some("Digits") if flag(node, "individual_digits", false) => steps.push(SplitStep::Digits),
        Some("Split") => steps.push(SplitStep::Expression(canonical(&expression(node)?))),
        Some(other) => return Err(TokenizerProblem::Split(format!("a step of type {other}"))),
    }
    Ok(())
}

fn flag(node: &Value, key: &str, default: bool) -> bool {
    node.get(key).and_then(Value::as_bool).unwrap_or(default)
}

fn expression(node: &Value) -> Result<String, TokenizerProblem> {
    let text = node.pointer("/pattern/Regex").or_else(|| node.pointer("/pattern/String")).and_then(Value::as_str);
    text.map(str::to_owned).ok_or_else(|| TokenizerProblem::Damaged("a split without an expression".to_owned()))
}

/// The same expression in one spelling: some files write out what others leave to a flag.
fn canonical(expression: &str) -> String {
    const WRITTEN_OUT: &str = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])";
    const BY_FLAG: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
    const BY_LIST: &str = "'(?i:[sdmt]|ll|ve|re)";
    expression.replace(WRITTEN_OUT, BY_FLAG).replace(BY_LIST, BY_FLAG).replace("?+", "?").replace("++", "+")
}

/// Returns whether a space is put in front of a text.
pub(crate) fn prefixes_a_space(tokenizer: &Value) -> bool {
    fn of_step(node: &Value) -> bool {
        let inner = node.get("pretokenizers").or_else(|| node.get("normalizers")).and_then(Value::as_array);
        let scheme = node.get("prepend_scheme").and_then(Value::as_str);
        match node.get("type").and_then(Value::as_str) {
            Some("Sequence") => inner.into_iter().flatten().any(of_step),
            Some("ByteLevel") => flag(node, "add_prefix_space", false),
            Some("Metaspace") => {
                scheme.map_or_else(|| flag(node, "add_prefix_space", true), |scheme| scheme != "never")
            }
            Some("Prepend") => true,
            _ => false,
        }
    }
    ["pre_tokenizer", "normalizer"].iter().filter_map(|key| tokenizer.get(*key)).any(of_step)
}
