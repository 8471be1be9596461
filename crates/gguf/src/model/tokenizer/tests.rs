//! Vocabularies of every kind, ways to split text, special tokens.

use super::*;
use kvant_container::gguf::{Array, Value as GgufValue};
use serde_json::{Value, json};

fn byte_level(pre_tokenizer: Value) -> Value {
    json!({
        "added_tokens": [{"id": 3, "content": "<|end|>", "special": true}, {"id": 4, "content": "▁sp", "special": false}],
        "pre_tokenizer": pre_tokenizer,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"], ["a b", "c"]]},
    })
}

fn gpt2() -> Value {
    byte_level(json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}))
}

fn habits(rows: usize) -> Habits {
    Habits { family: "llama", rows }
}

fn described(tokenizer: Value, config: Value, rows: usize) -> Metadata {
    let files = Files { tokenizer: Some(tokenizer), config: Some(config), ..Files::default() };
    let mut vocabulary = read_json(files.tokenizer.as_ref().unwrap(), &files, habits(rows)).unwrap();
    pad(&mut vocabulary.tokens, rows).unwrap();
    let mut metadata = Metadata::new();
    write(vocabulary, &mut metadata);
    special::describe(&files, habits(rows), &mut metadata);
    metadata
}

fn strings(metadata: &Metadata, key: &str) -> Vec<String> {
    let array = metadata.get(key).and_then(GgufValue::as_array).unwrap();
    array.strings().unwrap().iter().map(ToString::to_string).collect()
}

#[test]
fn byte_level_vocabulary_is_padded_to_the_embedding() {
    let metadata = described(gpt2(), json!({"eos_token": {"content": "<|end|>"}, "add_bos_token": false}), 7);
    assert_eq!(metadata.get("tokenizer.ggml.model").unwrap().as_str(), Some("gpt2"));
    assert_eq!(metadata.get("tokenizer.ggml.pre").unwrap().as_str(), Some("gpt-2"));
    assert_eq!(strings(&metadata, "tokenizer.ggml.tokens"), ["a", "b", "ab", "<|end|>", " sp", "[PAD5]", "[PAD6]"]);
    assert_eq!(strings(&metadata, "tokenizer.ggml.merges"), ["a b", "aĠb c"]);
    let kinds = metadata.get("tokenizer.ggml.token_type").unwrap().as_array().unwrap();
    assert_eq!(kinds, &Array::I32(vec![1, 1, 1, 3, 4, 5, 5]));
    assert_eq!(metadata.get("tokenizer.ggml.eos_token_id").unwrap().as_u64(), Some(3));
    assert_eq!(metadata.get("tokenizer.ggml.add_bos_token"), Some(&GgufValue::Bool(false)));
    assert_eq!(metadata.get("tokenizer.ggml.add_eos_token"), Some(&GgufValue::Bool(false)));
}

#[test]
fn more_tokens_than_embedding_rows_are_refused() {
    let mut tokens = vec![Token::padding(0); 3];
    assert!(matches!(pad(&mut tokens, 2), Err(TokenizerProblem::TooMany { tokens: 3, rows: 2 })));
    assert!(matches!(pad(&mut tokens, 1 << 40), Err(TokenizerProblem::Rows(_))));
}

#[test]
fn pre_tokenizers_are_recognised_by_structure() {
    let split = |text: &str| json!({"type": "Split", "pattern": {"Regex": text}, "behavior": "Isolated"});
    let bytes = json!({"type": "ByteLevel", "use_regex": false});
    let sequence = |steps: &[Value]| json!({"type": "Sequence", "pretokenizers": steps});
    let digits = json!({"type": "Digits", "individual_digits": true});
    let plain = json!({"type": "ByteLevel"});
    let name = |pre: &Value, family: &str| pre_tokenizer::name(&byte_level(pre.clone()), family).unwrap();
    let llama3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let qwen = llama3.replace("{1,3}", "");
    let written_out =
        qwen.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])");
    assert_eq!(name(&plain, "llama"), "gpt-2");
    assert_eq!(name(&plain, "olmo"), "olmo");
    assert_eq!(name(&sequence(&[digits.clone(), plain.clone()]), "starcoder2"), "starcoder");
    assert_eq!(name(&sequence(&[digits, plain]), "cohere"), "command-r");
    assert_eq!(name(&sequence(&[split(&qwen), bytes.clone()]), "qwen3"), "qwen2");
    assert_eq!(name(&sequence(&[split(&written_out), bytes.clone()]), "qwen3"), "qwen2");
    assert_eq!(name(&sequence(&[split(llama3), bytes.clone()]), "olmo2"), "dbrx");
    let mut whole_words = byte_level(sequence(&[split(llama3), bytes.clone()]));
    whole_words["model"]["ignore_merges"] = json!(true);
    assert_eq!(pre_tokenizer::name(&whole_words, "llama").unwrap(), "llama-bpe");
    let other = byte_level(sequence(&[split("[a-z]+"), bytes]));
    let error = pre_tokenizer::name(&other, "llama").unwrap_err();
    assert!(error.to_string().contains("`[a-z]+`"), "{error}");
    assert!(matches!(
        pre_tokenizer::name(&byte_level(json!({"type": "Whitespace"})), "llama"),
        Err(TokenizerProblem::Split(_))
    ));
}

#[test]
fn bpe_pieces_are_scored_by_merge_rank() {
    let tokenizer = json!({
        "added_tokens": [{"id": 1, "content": "<s>", "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}]},
        "pre_tokenizer": null,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true,
                  "vocab": {"<unk>": 0, "<s>": 1, "<0x0A>": 2, "▁": 3, "a": 4, "▁a": 5, "aa": 6},
                  "merges": ["▁ a", "a a"]},
    });
    let metadata = described(tokenizer, json!({"bos_token": "<s>"}), 7);
    assert_eq!(metadata.get("tokenizer.ggml.model").unwrap().as_str(), Some("llama"));
    let kinds = metadata.get("tokenizer.ggml.token_type").unwrap().as_array().unwrap();
    assert_eq!(kinds, &Array::I32(vec![2, 3, 6, 1, 1, 1, 1]));
    let Some(GgufValue::Array(Array::F32(scores))) = metadata.get("tokenizer.ggml.scores") else { panic!() };
    assert_eq!(scores[5..], [-0.0, -1.0]);
    assert!(scores[3] < -1.0 && scores[4] < -1.0);
    assert_eq!(metadata.get("tokenizer.ggml.add_bos_token"), Some(&GgufValue::Bool(true)));
    assert_eq!(metadata.get("tokenizer.ggml.add_space_prefix"), Some(&GgufValue::Bool(true)));
}

#[test]
fn unigram_and_wordpiece_have_their_own_models() {
    let unigram = json!({
        "added_tokens": [{"id": 2, "content": "<pad>", "special": true}],
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁a", -1.5]]},
    });
    let metadata = described(unigram, json!({}), 3);
    assert_eq!(metadata.get("tokenizer.ggml.model").unwrap().as_str(), Some("t5"));
    let kinds = metadata.get("tokenizer.ggml.token_type").unwrap().as_array().unwrap();
    assert_eq!(kinds, &Array::I32(vec![2, 1, 3]));
    let words =
        json!({"model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "run": 1, "##ning": 2}}});
    assert_eq!(strings(&described(words, json!({}), 3), "tokenizer.ggml.tokens"), ["[UNK]", "▁run", "ning"]);
}

#[test]
fn damaged_tokenizers_are_refused() {
    let read = |tokenizer: Value| read_json(&tokenizer, &Files::default(), habits(10));
    let mut huge = gpt2();
    huge["model"]["vocab"]["x"] = json!(u64::MAX);
    let mut odd = gpt2();
    odd["model"]["merges"] = json!([["a"]]);
    let mut none = gpt2();
    none["model"]["vocab"] = json!([]);
    for tokenizer in [huge, odd, none] {
        assert!(matches!(read(tokenizer), Err(TokenizerProblem::Damaged(_))));
    }
    assert!(matches!(read(json!({"model": {"type": "WordLevel"}})), Err(TokenizerProblem::Model(_))));
    assert!(matches!(read(json!({"model": {"type": "BPE", "vocab": {}}})), Err(TokenizerProblem::Model(_))));
}

#[test]
fn named_chat_templates_keep_their_names() {
    let list = json!({"chat_template": [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]});
    let metadata = described(gpt2(), list, 5);
    assert_eq!(metadata.get("tokenizer.chat_template").unwrap().as_str(), Some("A"));
    assert_eq!(metadata.get("tokenizer.chat_template.tool_use").unwrap().as_str(), Some("B"));
    assert_eq!(strings(&metadata, "tokenizer.chat_templates"), ["tool_use"]);
    let one = described(gpt2(), json!({"chat_template": "C"}), 5);
    assert_eq!(one.get("tokenizer.chat_template").unwrap().as_str(), Some("C"));
}
