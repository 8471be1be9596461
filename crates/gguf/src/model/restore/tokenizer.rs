//! The tokenizer in a file as tokenizer.json and tokenizer_config.json: the way back of [`crate::model::tokenizer`]. Byte-level
//! BPE keeps its merges; pieces of SentencePiece get them from their scores.
//!
//! Source: `llm_tokenizer_bpe` and `llm_tokenizer_spm` of llama.cpp's `src/llama-vocab.cpp`; the files of `tokenizers`.

use crate::model::tokenizer::{SPACE, TokenKind, ways};
use kvant_container::gguf::{Array, GgufFile, Metadata, Text, Value as Stored};
use kvant_weights::import_error::ImportError;
use serde_json::{Map, Value, json};
use std::collections::HashSet;

const HINT: &str = "`kvant eval` takes the directory of a tokenizer with ‹tokenizer›; else `kvant convert ‹to› float`, and put the \
                    model's tokenizer files there";

/// Bytes of a piece that merges make, at most.
const LONGEST: usize = 4096;

/// Bytes of all merges, at most: those of real vocabularies have a few millions, of long pieces they grow with the cube of the length.
const MOST_MERGE_BYTES: usize = 1 << 26;

/// Tokens by number, and what metadata say of them.
struct Vocabulary<'a> {
    metadata: &'a Metadata,
    tokens: Vec<&'a str>,
    kinds: Vec<i32>,
    scores: &'a [f32],
}

/// The tokenizer of a file, as tokenizer.json has it.
///
/// # Errors
/// *Unsupported* for kinds of tokenizers that are not read, *invalid* for vocabularies that are damaged.
pub fn tokenizer_json(file: &GgufFile) -> Result<Value, ImportError> {
    let vocabulary = Vocabulary::of(file.metadata())?;
    let model = file.metadata().get("tokenizer.ggml.model").and_then(Stored::as_str).unwrap_or_default();
    match model {
        "gpt2" => vocabulary.byte_level(),
        "llama" => vocabulary.pieces(),
        other => {
            let reason = format!("tokenizers of type {} are not read", kvant_weights::recipe_error::quoted(other));
            Err(ImportError::unsupported("tokenizer.ggml.model", reason, HINT))
        }
    }
}

/// Special tokens and the chat template of a file, as tokenizer_config.json has them.
///
/// # Errors
/// *Invalid* for vocabularies that are damaged.
pub fn tokenizer_config(file: &GgufFile) -> Result<Value, ImportError> {
    Ok(Vocabulary::of(file.metadata())?.config())
}

/// The files of the tokenizer, by name.
pub(crate) fn files(file: &GgufFile) -> Result<Vec<(String, Vec<u8>)>, ImportError> {
    let (tokenizer, config) = (tokenizer_json(file)?, tokenizer_config(file)?);
    let file = |name: &str, json: &Value| (name.to_owned(), json.to_string().into_bytes());
    Ok(vec![file("tokenizer.json", &tokenizer), file("tokenizer_config.json", &config)])
}

impl<'a> Vocabulary<'a> {
    fn of(metadata: &'a Metadata) -> Result<Vocabulary<'a>, ImportError> {
        let damaged = |key: &str| ImportError::invalid(format!("tokenizer.ggml.{key}"), "is missing, or no list");
        let array = |key: &str| metadata.get(&format!("tokenizer.ggml.{key}")).and_then(Stored::as_array);
        let texts = array("tokens").and_then(Array::strings).ok_or_else(|| damaged("tokens"))?;
        let tokens = texts.iter().map(Text::as_str).collect::<Option<Vec<_>>>().ok_or_else(|| damaged("tokens"))?;
        let kinds = match array("token_type") {
            Some(Array::I32(kinds)) => kinds.clone(),
            Some(Array::U32(kinds)) => kinds.iter().map(|kind| *kind as i32).collect(),
            _ => vec![TokenKind::Normal as i32; tokens.len()],
        };
        let scores = match array("scores") {
            Some(Array::F32(scores)) => scores.as_slice(),
            _ => &[],
        };
        match kinds.len() == tokens.len() && (scores.is_empty() || scores.len() == tokens.len()) {
            true => Ok(Vocabulary { metadata, tokens, kinds, scores }),
            false => Err(ImportError::invalid("tokenizer.ggml", "its lists are not equally long")),
        }
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        self.metadata.get(&format!("tokenizer.ggml.{key}")).and_then(Stored::as_str)
    }

    fn flag(&self, key: &str, usual: bool) -> bool {
        self.metadata.get(&format!("tokenizer.ggml.{key}")).and_then(Stored::as_bool).unwrap_or(usual)
    }

    /// A special token: its number and text.
    fn special(&self, name: &str) -> Option<(usize, &'a str)> {
        let id = self.metadata.get(&format!("tokenizer.ggml.{name}_token_id"))?.as_u64()?;
        let id = usize::try_from(id).ok()?;
        Some((id, *self.tokens.get(id)?))
    }

    /// All that are tokens: not what fills the rows of the embedding up.
    fn used(&self) -> impl Iterator<Item = (usize, &'a str, i32)> + '_ {
        let all = self.tokens.iter().zip(&self.kinds).enumerate();
        all.map(|(id, (text, kind))| (id, *text, *kind)).filter(|(_, _, kind)| *kind != TokenKind::Unused as i32)
    }

    fn vocab(&self) -> Map<String, Value> {
        let mut vocab = Map::new();
        for (id, text, _) in self.used() {
            vocab.entry(text).or_insert(json!(id));
        }
        vocab
    }

    /// Tokens that are found in text before anything else is.
    fn added(&self) -> Vec<Value> {
        let is_control = |kind: i32| kind == TokenKind::Control as i32 || kind == TokenKind::Unknown as i32;
        let added = self.used().filter(|(_, _, kind)| is_control(*kind) || *kind == TokenKind::UserDefined as i32);
        let entry = |(id, text, kind): (usize, &str, i32)| {
            json!({
                "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                "special": is_control(kind),
            })
        };
        added.map(entry).collect()
    }

    /// The special tokens around a text.
    fn post_processor(&self, begins: bool) -> Value {
        let begin = self.special("bos").filter(|_| self.flag("add_bos_token", begins));
        let end = self.special("eos").filter(|_| self.flag("add_eos_token", false));
        let token = |(_, text): &(usize, &str)| json!({"SpecialToken": {"id": text, "type_id": 0}});
        let sequence = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
        let around = |inner: Vec<Value>| -> Vec<Value> {
            begin.iter().map(token).chain(inner).chain(end.iter().map(token)).collect()
        };
        let special: Map<String, Value> = begin
            .iter()
            .chain(&end)
            .map(|(id, text)| ((*text).to_owned(), json!({"id": text, "ids": [id], "tokens": [text]})))
            .collect();
        json!({
            "type": "TemplateProcessing", "single": around(vec![sequence("A")]),
            "pair": around(vec![sequence("A"), sequence("B")]), "special_tokens": special,
        })
    }

    fn byte_level(&self) -> Result<Value, ImportError> {
        let name = self.text("pre").unwrap_or("default");
        let way = ways(name).ok_or_else(|| {
            let reason = format!("the way {} to split text is not read", kvant_weights::recipe_error::quoted(name));
            ImportError::unsupported("tokenizer.ggml.pre", reason, HINT)
        })?;
        let merges = self.metadata.get("tokenizer.ggml.merges").and_then(Stored::as_array).and_then(Array::strings);
        let pair = |merge: &Text| {
            let text = merge.as_str()?;
            // The first part is never empty: a space in front of it is a letter.
            let at = text.char_indices().skip(1).find(|(_, letter)| *letter == ' ')?.0;
            Some(json!([&text[..at], &text[at + 1..]]))
        };
        let merges: Option<Vec<Value>> = merges.unwrap_or_default().iter().map(pair).collect();
        let merges = merges.ok_or_else(|| ImportError::invalid("tokenizer.ggml.merges", "a merge is not a pair"))?;
        let split = |expression: &&str| json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false});
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let steps: Vec<Value> = way.expressions.iter().map(split).chain([bytes.clone()]).collect();
        Ok(json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": self.added(), "normalizer": null,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
            "post_processor": self.post_processor(way.begins), "decoder": bytes,
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": way.ignores_merges, "vocab": self.vocab(), "merges": merges,
            },
        }))
    }

    fn pieces(&self) -> Result<Value, ImportError> {
        if self.scores.is_empty() {
            return Err(ImportError::invalid("tokenizer.ggml.scores", "is missing, or no list"));
        }
        let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        let (space, prefix) = (SPACE.to_string(), self.flag("add_space_prefix", true));
        let normalizers: Vec<Value> = prefix
            .then(|| json!({"type": "Prepend", "prepend": space}))
            .into_iter()
            .chain([replace(" ", &space)])
            .collect();
        let strip = prefix.then(|| json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        let decoders = [replace(&space, " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
        let decoders: Vec<Value> = decoders.into_iter().chain(strip).collect();
        let unknown = self.used().find(|(_, _, kind)| *kind == TokenKind::Unknown as i32).map(|(_, text, _)| text);
        Ok(json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": self.added(),
            "normalizer": {"type": "Sequence", "normalizers": normalizers}, "pre_tokenizer": null,
            "post_processor": self.post_processor(true), "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {
                "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
                "vocab": self.vocab(), "merges": self.merges_of_scores()?,
            },
        }))
    }

    /// Every pair of pieces that makes a piece, that of the best score first: what merging the best pair does.
    fn merges_of_scores(&self) -> Result<Vec<Value>, ImportError> {
        let is_piece = |kind: i32| kind == TokenKind::Normal as i32 || kind == TokenKind::UserDefined as i32;
        let known: HashSet<&str> = self.used().filter(|(.., kind)| is_piece(*kind)).map(|(_, text, _)| text).collect();
        let (mut merges, mut bytes): (Vec<(f32, &str, &str)>, usize) = (Vec::new(), 0);
        // Longer ones are not pieces, and have too many splits.
        for (id, text, _) in self.used().filter(|(_, text, kind)| is_piece(*kind) && text.len() <= LONGEST) {
            let cuts = text.char_indices().skip(1).map(|(at, _)| text.split_at(at));
            let pairs = cuts.filter(|(left, right)| known.contains(left) && known.contains(right));
            let before = merges.len();
            merges.extend(pairs.map(|(left, right)| (self.scores[id], left, right)));
            bytes += (merges.len() - before) * text.len();
            if bytes > MOST_MERGE_BYTES {
                let reason = format!("its pieces make more than {MOST_MERGE_BYTES} bytes of merges");
                return Err(ImportError::invalid("tokenizer.ggml.tokens", reason));
            }
        }
        merges.sort_by(|a, b| b.0.total_cmp(&a.0));
        Ok(merges.into_iter().map(|(_, left, right)| json!([left, right])).collect())
    }

    /// tokenizer_config.json.
    fn config(&self) -> Value {
        const NAMES: [(&str, &str); 5] = [
            ("bos", "bos_token"),
            ("eos", "eos_token"),
            ("unknown", "unk_token"),
            ("padding", "pad_token"),
            ("mask", "mask_token"),
        ];
        let mut config = Map::new();
        config.insert("tokenizer_class".to_owned(), json!("PreTrainedTokenizerFast"));
        config.insert("clean_up_tokenization_spaces".to_owned(), json!(false));
        for (stored, name) in NAMES {
            if let Some((_, text)) = self.special(stored) {
                config.insert(name.to_owned(), json!(text));
            }
        }
        for name in ["add_bos_token", "add_eos_token"] {
            if let Some(flag) = self.metadata.get(&format!("tokenizer.ggml.{name}")).and_then(Stored::as_bool) {
                config.insert(name.to_owned(), json!(flag));
            }
        }
        if let Some(template) = self.metadata.get("tokenizer.chat_template").and_then(Stored::as_str) {
            config.insert("chat_template".to_owned(), json!(template));
        }
        Value::Object(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_container::Diagnostic;

    fn metadata(entries: &[(&str, Stored)]) -> Metadata {
        let mut metadata = Metadata::new();
        entries.iter().for_each(|(key, value)| metadata.set(format!("tokenizer.ggml.{key}"), value.clone()));
        metadata
    }

    fn texts(all: &[&str]) -> Stored {
        all.iter().map(|text| Text::from(*text)).collect::<Vec<_>>().into()
    }

    #[test]
    fn vocabularies_with_too_many_merges_are_refused() {
        let with = |longest: usize| {
            let pieces: Vec<String> = (1..=longest).map(|length| "a".repeat(length)).collect();
            let (kinds, scores) = (vec![1; longest], vec![0.0f32; longest]);
            let tokens = texts(&pieces.iter().map(String::as_str).collect::<Vec<_>>());
            let metadata = metadata(&[("tokens", tokens), ("token_type", kinds.into()), ("scores", scores.into())]);
            Vocabulary::of(&metadata).unwrap().pieces().map(|made| made["model"]["merges"].as_array().unwrap().len())
        };
        assert_eq!(with(40).unwrap(), 40 * 39 / 2);
        assert!(with(700).unwrap_err().to_string().contains("bytes of merges"));
    }

    #[test]
    fn byte_level_vocabularies_keep_tokens_and_merges() {
        let metadata = metadata(&[
            ("tokens", texts(&["<s>", "a", "b", "ab", "[PAD4]"])),
            ("token_type", vec![3, 1, 1, 1, 5].into()),
            ("merges", texts(&["a b"])),
            ("pre", "qwen2".into()),
            ("bos_token_id", 0u32.into()),
            ("add_bos_token", true.into()),
        ]);
        let tokenizer = Vocabulary::of(&metadata).unwrap().byte_level().unwrap();
        assert_eq!(tokenizer["model"]["vocab"], json!({"<s>": 0, "a": 1, "b": 2, "ab": 3}));
        assert_eq!(tokenizer["model"]["merges"], json!([["a", "b"]]));
        assert_eq!(tokenizer["post_processor"]["single"][0]["SpecialToken"]["id"], "<s>");
        assert_eq!(
            (&tokenizer["added_tokens"][0]["content"], tokenizer["added_tokens"].as_array().unwrap().len()),
            (&json!("<s>"), 1)
        );
        let loaded: tokenizers::Tokenizer = tokenizer.to_string().parse().unwrap();
        assert_eq!(loaded.encode("ab ba", true).unwrap().get_ids()[..2], [0, 3]);
    }

    #[test]
    fn merges_follow_piece_scores() {
        let metadata = metadata(&[
            ("tokens", texts(&["<unk>", "▁", "a", "b", "ab", "▁a", "▁ab"])),
            ("token_type", vec![2, 1, 1, 1, 1, 1, 1].into()),
            ("scores", vec![0.0f32, -9.0, -9.0, -9.0, -1.0, -2.0, -3.0].into()),
        ]);
        let vocabulary = Vocabulary::of(&metadata).unwrap();
        let merges = vocabulary.merges_of_scores().unwrap();
        assert_eq!(merges, [json!(["a", "b"]), json!(["▁", "a"]), json!(["▁", "ab"]), json!(["▁a", "b"])]);
        let loaded: tokenizers::Tokenizer = vocabulary.pieces().unwrap().to_string().parse().unwrap();
        assert_eq!(loaded.encode("ab", true).unwrap().get_ids(), [6]);
    }

    #[test]
    fn unsupported_tokenizers_are_named() {
        let unknown = metadata(&[("tokens", texts(&["a"])), ("pre", "unheard-of".into())]);
        let error = Vocabulary::of(&unknown).unwrap().byte_level().unwrap_err();
        assert!(error.to_string().contains("`unheard-of`") && error.hint().unwrap().contains("‹tokenizer›"), "{error}");
        let damaged = metadata(&[("tokens", texts(&["a"])), ("token_type", vec![1, 1].into())]);
        assert!(Vocabulary::of(&damaged).is_err());
    }
}
