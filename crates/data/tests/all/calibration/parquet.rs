//! Tables of every compression and kind of page, made by `tests/parquet/generate.py`.

use super::{Files, encoded, load, samples, tokenizer};
use kvant_data::calibration::{CalibrationDataError, Options, Packing, Skip};
use std::path::{Path, PathBuf};

fn table(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parquet").join(name)
}

#[test]
fn parquet_texts_are_read_with_every_compression() {
    let rows = (0..40).filter(|row| ![3, 5].contains(row));
    let texts: Vec<String> = rows.map(|row| format!("Row {row} tells of the number {}.", row * row)).collect();
    let expected = encoded(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    for name in ["text_none", "text_snappy", "text_gzip", "text_zstd", "text_v2"] {
        let data = load(&Options::new([table(&format!("{name}.parquet"))], 100, 64)).unwrap();
        assert_eq!(data.sequences, expected, "{name}");
        let file = &data.provenance.files[0];
        assert_eq!((file.rows_read, file.skipped[&Skip::Empty], file.skipped[&Skip::NoText]), (40, 1, 1), "{name}");
    }
}

#[test]
fn parquet_conversations_are_read() {
    let data = load(&Options::new([table("messages.parquet")], 2, 64)).unwrap();
    assert_eq!(data.sequences, encoded(&["What is 0?\n\nA number: 0.", "What is 1?\n\nA number: 1."]));
    assert_eq!(data.provenance.files[0].rows_read, 2);
    let prompts = Options { column: Some("prompt".into()), ..Options::new([table("messages.parquet")], 1, 64) };
    assert_eq!(load(&prompts).unwrap().sequences, encoded(&["Row 0 tells of the number 0."]));
}

#[test]
fn parquet_tokens_are_read() {
    let options = Options { packing: Some(Packing::Concatenate), ..Options::new([table("tokens.parquet")], 2, 4) };
    assert_eq!(load(&options).unwrap().sequences, [[0, 1, 2, 1], [2, 3, 2, 3]]);
}

#[test]
fn unsupported_parquet_features_are_named() {
    let unread = |name: &str| load(&Options::new([table(name)], 9, 64)).unwrap_err();
    let (brotli, delta) = (unread("text_brotli.parquet"), unread("text_delta.parquet"));
    assert!(brotli.to_string().contains("column text is compressed with BROTLI"), "{brotli}");
    assert!(delta.to_string().contains("column text is encoded as DELTA_BYTE_ARRAY"), "{delta}");
    let missing = Options { column: Some("no".into()), ..Options::new([table("text_none.parquet")], 9, 64) };
    let missing = load(&missing).unwrap_err();
    assert!(missing.to_string().ends_with("its columns: id, text, score"), "{missing}");
}

#[test]
fn parquet_over_the_size_limit_is_refused() {
    let options = Options { max_bytes: 500, ..Options::new([table("text_zstd.parquet")], 100, 64) };
    assert!(matches!(load(&options), Err(CalibrationDataError::TooLarge { limit: 500, .. })));
    // Little is read for few rows.
    assert_eq!(load(&Options { samples: 1, ..options }).unwrap().sequences.len(), 1);
}

#[test]
fn damaged_parquet_is_an_error_and_never_panics() {
    let files = Files::new();
    for name in ["messages.parquet", "text_v2.parquet"] {
        let whole = std::fs::read(table(name)).unwrap();
        for length in (0..whole.len()).step_by(97) {
            assert!(samples(name, &whole[..length]).is_err(), "{name} cut to {length}");
        }
        for at in (0..whole.len()).step_by(13) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x55;
            // Text may be damaged without anyone knowing; what counts is that reading ends in order.
            let _ = load(&Options::new([files.add(name, &damaged)], 100, 64));
        }
    }
    assert!(tokenizer().encode("still here").is_ok());
}
