//! Files made to take all memory, or never to end.

use super::{Files, gzip, load, samples};
use kvant_container::Diagnostic;
use kvant_data::calibration::{CalibrationDataError, Options, Skip, Warning};

#[test]
fn oversized_rows_are_skipped_or_refused() {
    let huge = format!("\"{}\"", "x".repeat(17 << 20));
    let data = samples("a.jsonl.gz", gzip(format!("{huge}\n\"ok\"").as_bytes())).unwrap();
    assert_eq!((data.sequences.len(), data.provenance.files[0].skipped[&Skip::TooLarge]), (1, 1));
    for list in [format!("[\"ok\", {huge}]"), format!("{{\"data\": [{huge}]}}"), format!("{{\"text\": {huge}}}")] {
        let error = samples("a.json.gz", gzip(list.as_bytes())).unwrap_err();
        assert!(matches!(error, CalibrationDataError::Damaged { .. }), "{error}");
    }
}

#[test]
fn json_nesting_is_bounded() {
    let (open, close) = ("[".repeat(100_000), "]".repeat(100_000));
    let data = samples("a.jsonl", format!("{open}{close}\n\"ok\"")).unwrap();
    assert_eq!(data.provenance.files[0].skipped[&Skip::NotJson], 1);
    assert!(samples("a.json", format!("{open}{close}")).is_err());
    assert!(samples("a.json", format!("{{\"a\": {open}{close}, \"b\": 1}}")).is_err());
}

#[test]
fn data_over_the_size_limit_is_refused_when_needed() {
    let files = Files::new();
    let rows = gzip("\"row\"\n".repeat(1_000_000).as_bytes());
    let options =
        |samples| Options { max_bytes: 1 << 20, ..Options::new([files.add("a.jsonl.gz", &rows)], samples, 4) };
    assert_eq!(load(&options(10)).unwrap().sequences.len(), 10);
    let error = load(&options(1_000_000)).unwrap_err();
    assert!(matches!(error, CalibrationDataError::TooLarge { .. }) && error.hint().is_some(), "{error}");
}

#[test]
fn only_the_beginning_of_a_long_text_is_read() {
    let files = Files::new();
    let text = "A line of a text that goes on for long.\n".repeat((5 << 20) / 40);
    let options = Options::new([files.add("a.txt.gz", gzip(text.as_bytes()))], 4, 16);
    let data = load(&options).unwrap();
    // The samples are the first ones however much is read.
    assert!(!data.provenance.files[0].cut);
    assert_eq!(data.provenance.warnings(), [Warning::Scarce { tokens: 64, are_all: false }]);
    let short = load(&Options::new([files.add("a.txt", &text[..4000])], 4, 16)).unwrap();
    assert_eq!(data.sequences, short.sequences);
    let drawn = load(&Options { shuffle: true, ..options }).unwrap();
    assert!(drawn.provenance.files[0].cut && drawn.provenance.warnings()[0].to_string().contains("very long"));
}

#[test]
fn more_text_is_read_when_the_beginning_gives_too_few_samples() {
    let files = Files::new();
    let text = format!("A line.\n{}\n", "and so on ".repeat(40_000));
    let both = [files.add("a.txt", &text), files.add("b.txt", "Another text.\n".repeat(100))];
    let data = load(&Options::new(both, 4, 16)).unwrap();
    // The second file is not needed.
    assert_eq!((data.sequences.len(), data.provenance.files.len()), (4, 1));
    assert!(data.provenance.files[0].rows_read == 1 && !data.provenance.files[0].cut);
}
