//! Calibration data read from files of every format, packed in every way, with the tokenizer of the small trained model.
#![allow(clippy::unwrap_used)] // Helpers of tests stand outside of tests.

mod hostile;
mod images;
mod packing;
#[cfg(feature = "parquet")]
mod parquet;
mod tokens;

use kvant_container::Diagnostic;
use kvant_data::calibration::{CalibrationData, CalibrationDataError, Options, Skip, Warning};
use kvant_data::tokenizer::ModelTokenizer;
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The vocabulary of the small trained model.
const VOCABULARY: usize = 2048;

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/nano_llama")
}

fn tokenizer() -> ModelTokenizer {
    ModelTokenizer::open(&model()).unwrap()
}

/// A directory of files that are removed in the end.
struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn add(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

fn load(options: &Options) -> Result<CalibrationData, CalibrationDataError> {
    CalibrationData::load(options, &model(), VOCABULARY, |_, _| {})
}

/// One file, all of whose rows are samples.
fn samples(name: &str, bytes: impl AsRef<[u8]>) -> Result<CalibrationData, CalibrationDataError> {
    let files = Files::new();
    load(&Options::new([files.add(name, bytes)], 100, 64))
}

fn encoded(texts: &[&str]) -> Vec<Vec<u32>> {
    texts.iter().map(|text| tokenizer().encode(text).unwrap()).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

const ONE: &str = "The first text.";
const TWO: &str = "And another one, \u{e9}l\u{e8}ve.";

#[test]
fn json_rows_are_read_in_every_form() {
    let lines = format!("\u{feff}{{\"text\": \"{ONE}\"}}\r\n\n{{\"content\": \"{TWO}\", \"score\": NaN}}");
    let list = format!("[{{\"text\": \"{ONE}\"}},\n \"{TWO}\"]");
    let object = format!("{{\"version\": {{\"x\": [1]}}, \"data\": {list}, \"n\": 2.5, \"s\": \"x\", \"null\": null}}");
    let forms = [
        ("a.jsonl", lines.clone()),
        ("a.ndjson", lines.clone()),
        ("a.json", lines.clone()),
        ("a.json", list.clone()),
        ("a.json", object),
    ];
    for (name, form) in forms {
        for (name, bytes) in
            [(name.to_owned(), form.clone().into_bytes()), (format!("{name}.gz"), gzip(form.as_bytes()))]
        {
            let data = samples(&name, bytes).unwrap_or_else(|error| panic!("{name}, {form}: {error}"));
            assert_eq!(data.sequences, encoded(&[ONE, TWO]), "{name}: {form}");
            assert_eq!((data.provenance.files[0].rows_read, data.provenance.files[0].rows_used), (2, 2));
        }
    }
}

#[test]
fn single_json_object_is_a_row() {
    let row = format!("{{\n\"text\": \"{ONE}\",\n\"tags\": [\"a\"]\n}}\n");
    assert_eq!(samples("a.json", &row).unwrap().sequences, encoded(&[ONE]));
    assert_eq!(samples("a.jsonl", row.replace('\n', "")).unwrap().sequences, encoded(&[ONE]));
    let error = samples("a.json", "{\"a\": [1], \"b\": [2]}").unwrap_err();
    assert!(error.to_string().contains("2 lists"), "{error}");
}

#[test]
fn unusable_rows_are_counted_with_reasons() {
    let lines = [b"{\"text\": \"ok\"}\nnot json\n\"\xFF\"\n".as_slice(), b"{\"x\": 1}\n{\"text\": \"\"}\n[]"].concat();
    let data = samples("a.jsonl", lines).unwrap();
    assert_eq!(data.sequences, encoded(&["ok"]));
    let file = &data.provenance.files[0];
    assert_eq!((file.rows_read, file.rows_used), (6, 1));
    let skipped: Vec<(Skip, u64)> = file.skipped.iter().map(|(&skip, &count)| (skip, count)).collect();
    assert_eq!(skipped, [(Skip::NotUtf8, 1), (Skip::NotJson, 1), (Skip::NoText, 1), (Skip::Empty, 2)]);
    let json = serde_json::json!({"not_utf8": 1, "not_json": 1, "no_text": 1, "empty": 2});
    assert_eq!(serde_json::to_value(&file.skipped).unwrap(), json);
    let warnings: Vec<String> = data.provenance.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(warnings[0], "1 calibration sample, but 100 were requested");
    assert_eq!(warnings[4], "a.jsonl: 2 rows are empty");
}

#[test]
fn few_tokens_give_a_warning() {
    let warned = |rows: usize| {
        let files = Files::new();
        let data = load(&Options::new([files.add("a.jsonl", "\"one\"\n".repeat(rows))], rows, 64)).unwrap();
        data.provenance.warnings().iter().any(|warning| warning.to_string().contains("tokens in all"))
    };
    assert!(warned(10) && !warned(512));
    let one = Warning::Scarce { tokens: 1, are_all: true }.to_string();
    assert!(one.contains("only 1 token in all"), "{one}");
}

#[test]
fn text_of_hardly_any_different_tokens_gives_a_warning() {
    let warned = |text: &str| {
        let files = Files::new();
        let data = load(&Options::new([files.add("a.txt", text.repeat(200))], 4, 64)).unwrap();
        data.provenance.warnings().iter().any(|warning| matches!(warning, Warning::Monotonous { .. }))
    };
    assert!(warned("   \n") && warned("\0\0\0\0"));
    assert!(!warned("A line of a text that says something.\n"));
}

#[test]
fn preflight_refuses_what_loading_would_refuse() {
    let files = Files::new();
    let options = |name: &str, bytes: &[u8]| Options::new([files.add(name, bytes)], 4, 16);
    for (name, bytes) in [
        ("a.jsonl", &b""[..]),
        ("a.json", b"[]"),
        ("a.txt", b""),
        ("a.jsonl", b"{}"),
        ("a.jsonl", b"{}\n{}\nx"),
        ("a.txt", b"text \xff\xfe and more"),
        ("a.txt.gz", b"no gzip"),
        ("a.npy", b"no array"),
    ] {
        let options = options(name, bytes);
        let (seen, loaded) = (options.check(&model()).unwrap_err(), load(&options).unwrap_err());
        assert_eq!(seen.to_string(), loaded.to_string(), "{name}");
    }
    for (name, bytes) in [("b.txt", &b"A text."[..]), ("b.jsonl", b"{}\n{\"text\": \"a\"}\n"), ("b.json", b"[\"a\"]")] {
        options(name, bytes).check(&model()).unwrap();
    }
    // A folder whose first file has too few rows is looked at further, as it is loaded.
    let folder = Files::new();
    folder.add("a.json", "[\"a\"]");
    folder.add("b.json", "{}");
    let of_folder = |samples| Options::new([folder.0.path()], samples, 16);
    let (seen, loaded) = (of_folder(4).check(&model()).unwrap_err(), load(&of_folder(4)).unwrap_err());
    assert_eq!(seen.to_string(), loaded.to_string());
    of_folder(1).check(&model()).unwrap();
    load(&of_folder(1)).unwrap();
    // Text needs a tokenizer, and tokens do not.
    let bare = files.0.path();
    for (name, bytes) in [("b.txt", &b"A text."[..]), ("b.jsonl", b"{}\n{\"text\": \"a\"}\n"), ("b.json", b"[\"a\"]")] {
        let refused = options(name, bytes).check(bare);
        assert!(matches!(refused, Err(CalibrationDataError::Tokenizer(_))), "{name}: {refused:?}");
    }
    options("b.jsonl", b"{\"input_ids\": [1, 2]}\n").check(bare).unwrap();
    // A character that the look at the beginning cuts in two is no fault.
    options("c.txt", "\u{e4}".repeat(100_000).as_bytes()).check(&model()).unwrap();
    options("d.txt", format!("x{}", "\u{e4}".repeat(100_000)).as_bytes()).check(&model()).unwrap();
    let named = Options { column: Some("nope".to_owned()), ..options("b.txt", b"A text.") };
    assert!(matches!(named.check(&model()), Err(CalibrationDataError::NoFields { .. })));
    assert!(matches!(load(&named), Err(CalibrationDataError::NoFields { .. })));
}

#[test]
fn data_without_any_sample_is_refused_with_reasons() {
    for (name, bytes) in [("a.jsonl", ""), ("a.json", "[]"), ("a.txt", ""), ("a.jsonl", "{}\n{}\nx")] {
        let error = samples(name, bytes).unwrap_err();
        assert!(matches!(error, CalibrationDataError::NoSample { .. }) && error.hint().is_some(), "{name}: {error}");
    }
    let error = samples("a.jsonl", "{}\n{}\nx").unwrap_err().to_string();
    assert!(
        error.contains("3 rows read from ") && error.ends_with(", 1 not JSON, 2 without a known field of text"),
        "{error}"
    );
}

#[test]
fn hints_for_unusable_rows_say_what_rows_hold() {
    let files = Files::new();
    let hint = |bytes: &str, column: Option<&str>| {
        let options = Options {
            column: column.map(str::to_owned),
            ..Options::new([files.add("a.jsonl", bytes.as_bytes())], 4, 16)
        };
        load(&options).unwrap_err().hint().unwrap()
    };
    assert_eq!(hint("", None), "give files that hold text");
    for column in [None, Some("text")] {
        let number = hint("{\"text\": 5}", column);
        assert!(number.contains("‹column›") && number.contains("string") && !number.contains("out"), "{number}");
        let bare = hint("5", column);
        assert!(bare.starts_with("every row must be a string") && !bare.contains("‹column›"), "{bare}");
    }
}

#[test]
fn one_conversation_is_told_in_the_singular() {
    let told = |conversations: u64| Warning::NoTemplate { conversations }.to_string();
    assert!(told(1).starts_with("1 conversation was joined"), "{}", told(1));
    assert!(told(2).starts_with("2 conversations were joined"), "{}", told(2));
}

#[test]
fn empty_requests_are_refused() {
    let files = Files::new();
    let path = files.add("a.txt", "text");
    for options in [Options::new([&path], 0, 4), Options::new([&path], 4, 0), Options::new(Vec::<PathBuf>::new(), 4, 4)]
    {
        assert!(matches!(load(&options), Err(CalibrationDataError::Options { .. })));
    }
}

#[test]
fn named_column_is_read() {
    let files = Files::new();
    let path = files.add("a.jsonl", "{\"text\": \"no\", \"body\": \"yes\"}\n{\"text\": \"no\"}");
    let data = load(&Options { column: Some("body".into()), ..Options::new([path], 4, 64) }).unwrap();
    assert_eq!(data.sequences, encoded(&["yes"]));
    assert_eq!(data.provenance.files[0].skipped[&Skip::NoText], 1);
}

#[test]
fn conversations_without_a_template_are_joined_and_counted() {
    let row = r#"{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}"#;
    let data = samples("a.jsonl", row).unwrap();
    assert_eq!(data.sequences, encoded(&["Hi\n\nHello"]));
    assert_eq!(data.provenance.chat_template, None);
    assert!(data.provenance.warnings().contains(&Warning::NoTemplate { conversations: 1 }));
}

#[test]
fn conversations_are_rendered_with_the_template() {
    let files = Files::new();
    std::fs::copy(model().join("tokenizer.json"), files.0.path().join("tokenizer.json")).unwrap();
    let template = "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}\
                    {% for m in messages %}<|endoftext|>{{ m.role }}: {{ m.content }}{% endfor %}";
    files.add("chat_template.jinja", template);
    let rows = [r#"[{"role": "user", "content": "Hi"}]"#, r#"[{"role": "assistant", "content": "Hi"}]"#].join("\n");
    let options = Options::new([files.add("a.jsonl", rows)], 4, 64);
    let data = CalibrationData::load(&options, files.0.path(), VOCABULARY, |_, _| {}).unwrap();
    assert_eq!(data.sequences, [tokenizer().encode_rendered("<|endoftext|>user: Hi").unwrap()]);
    // The special token is one token, not text.
    assert_eq!(data.sequences[0][0], 0);
    assert!(data.provenance.chat_template.is_some());
    assert_eq!(data.provenance.files[0].skipped[&Skip::Refused], 1);
}

#[test]
fn plain_text_does_not_need_the_template() {
    let files = Files::new();
    std::fs::copy(model().join("tokenizer.json"), files.0.path().join("tokenizer.json")).unwrap();
    files.add("chat_template.jinja", "{% for");
    let load = |name: &str, text: &str| {
        let options = Options::new([files.add(name, text)], 4, 64);
        CalibrationData::load(&options, files.0.path(), VOCABULARY, |_, _| {})
    };
    assert_eq!(load("a.jsonl", r#"{"text": "Hi there"}"#).unwrap().sequences, encoded(&["Hi there"]));
    let conversation = r#"[{"role": "user", "content": "Hi"}]"#;
    assert!(matches!(load("b.jsonl", conversation), Err(CalibrationDataError::Template { .. })));
}

#[test]
fn provenance_lists_files_rows_and_hashes() {
    let files = Files::new();
    let (a, b, c) = (
        files.add("a.jsonl", "\"one\"\n\"two\""),
        files.add("b.jsonl", "\"three\"\n\"four\""),
        files.add("c.jsonl", "\"x\""),
    );
    let data = load(&Options::new([a, b, c], 3, 64)).unwrap();
    assert_eq!(data.sequences, encoded(&["one", "two", "three"]));
    let hash = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(b"\"one\"\n\"two\""));
    let json = serde_json::to_value(&data.provenance).unwrap();
    let first = serde_json::json!({
        "name": "a.jsonl", "bytes": 11, "xxh3_128": hash, "format": "jsonl", "packing": "sample",
        "rows_read": 2, "rows_used": 2, "skipped": {}, "cut": false,
    });
    assert_eq!((&json["files"][0], json["files"].as_array().unwrap().len()), (&first, 2));
    assert_eq!((json["samples"].as_u64(), json["files"][1]["rows_read"].as_u64()), (Some(3), Some(1)));
    let tokens = data.sequences.iter().map(Vec::len).sum();
    assert_eq!(data.provenance.warnings(), [Warning::Scarce { tokens, are_all: false }]);
}
