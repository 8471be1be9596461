//! Calibration data of arbitrary bytes: the first byte chooses the format, the rest is the file. Whatever is in it, reading
//! ends in order, and sequences are as was asked.

use kvant_data::calibration::{CalibrationData, Options};
use std::path::Path;

const NAMES: [&str; 10] = [
    "a.txt",
    "a.jsonl",
    "a.json",
    "a.parquet",
    "a.npy",
    "a.safetensors",
    "a.txt.gz",
    "a.jsonl.zst",
    "a.json.gz",
    "a.txt.zst",
];

/// See above.
pub fn run(input: &[u8]) {
    let Some((&choice, bytes)) = input.split_first() else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(NAMES[choice as usize % NAMES.len()]);
    std::fs::write(&path, bytes).unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/nano_llama");
    match CalibrationData::load(&Options::new([path], 20, 16), &model, 2048, |_, _| {}) {
        Ok(data) => assert!(data.sequences.iter().all(|tokens| (1..=16).contains(&tokens.len()))),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
