//! Any bytes as tokenizer.json and tokenizer_config.json, with a zero byte between them: conversations are rendered and tokenized, or the
//! files are refused with a reason, in bounded time and memory.

use kvant_data::calibration::{CalibrationData, Options};

const ROWS: &str = r#"{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4"}]}
{"messages": [{"role": "user", "content": "na\u00efve \ud83d\ude00"}]}
"#;

/// See above.
pub fn run(input: &[u8]) {
    let mut parts = input.splitn(2, |byte| *byte == 0);
    let [tokenizer, config] = [parts.next(), parts.next()].map(Option::unwrap_or_default);
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data.jsonl");
    std::fs::write(&data, ROWS).unwrap();
    std::fs::write(place.path().join("tokenizer.json"), tokenizer).unwrap();
    std::fs::write(place.path().join("tokenizer_config.json"), config).unwrap();
    match CalibrationData::load(&Options::new([data], 4, 16), place.path(), 2048, |_, _| {}) {
        Ok(data) => assert!(data.sequences.iter().all(|tokens| (1..=16).contains(&tokens.len()))),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
