//! Sequences of every packing.

use super::{Files, encoded, load, samples, tokenizer};
use kvant_data::calibration::{Options, Packing, Skip};

fn text() -> String {
    (0..200).map(|n| format!("Line {n} of a text that is long enough.\n")).collect()
}

#[test]
fn text_is_cut_into_windows_from_its_start() {
    let files = Files::new();
    let options = Options::new([files.add("a.txt", text())], 5, 32);
    let data = load(&options).unwrap();
    let tokens = tokenizer().encode(&text()).unwrap();
    assert_eq!(data.sequences, tokens.chunks_exact(32).take(5).map(<[u32]>::to_vec).collect::<Vec<_>>());
    let all = load(&Options { samples: 100_000, ..options }).unwrap();
    assert_eq!(all.sequences.len(), tokens.len() / 32);
    assert_eq!(
        (all.provenance.tokens, all.provenance.files[0].packing),
        (tokens.len() / 32 * 32, Some(Packing::Document))
    );
}

#[test]
fn samples_are_truncated_but_not_padded() {
    let files = Files::new();
    let path = files.add("a.jsonl", format!("\"short\"\n{}", serde_json::json!(text())));
    let data = load(&Options::new([path], 5, 16)).unwrap();
    let [short, long] = &encoded(&["short", &text()])[..] else { panic!() };
    assert_eq!(data.sequences, [short.clone(), long[..16].to_vec()]);
}

#[test]
fn concatenate_packing_joins_rows() {
    let files = Files::new();
    let path = files.add("a.jsonl", "\"one two\"\n\"three four\"\n\"five six\"");
    let data = load(&Options { packing: Some(Packing::Concatenate), ..Options::new([path], 100, 3) }).unwrap();
    let joined = encoded(&["one two", "three four", "five six"]).concat();
    assert_eq!(data.sequences, joined.chunks_exact(3).map(<[u32]>::to_vec).collect::<Vec<_>>());
}

#[test]
fn document_and_sample_packing_can_be_requested() {
    let files = Files::new();
    let rows = files.add("a.jsonl", format!("\"short\"\n{}", serde_json::json!(text())));
    let data = load(&Options { packing: Some(Packing::Document), ..Options::new([rows], 3, 16) }).unwrap();
    let tokens = tokenizer().encode(&text()).unwrap();
    assert_eq!(data.sequences.concat(), tokens[..48]);
    assert_eq!(data.provenance.files[0].skipped[&Skip::TooShort], 1);
    let whole = files.add("a.txt", text());
    let data = load(&Options { packing: Some(Packing::Sample), ..Options::new([whole], 3, 16) }).unwrap();
    assert_eq!(data.sequences, [tokens[..16].to_vec()]);
}

#[test]
fn short_documents_are_used_whole_when_no_window_fits() {
    let files = Files::new();
    let (first, second) = (files.add("a.txt", "Hello, how are you?"), files.add("b.txt", "Fine."));
    for packing in [None, Some(Packing::Concatenate), Some(Packing::Random)] {
        let options = Options { packing, held_out: 1, ..Options::new([&first, &second], 4, 512) };
        let data = load(&options).unwrap();
        let expected = encoded(&["Hello, how are you?", "Fine."]);
        let expected = if packing.is_none() { expected } else { vec![expected.concat()] };
        assert_eq!(data.sequences, expected, "{packing:?}");
        let (tokens, count) = (expected.iter().map(Vec::len).sum::<usize>(), expected.len());
        let said = data.provenance.warnings().iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains(&format!("{tokens} tokens in {count} document")), "{said:?}");
        assert!(data.held_out.is_empty() && data.provenance.files[0].skipped.is_empty());
    }
    let long = files.add("c.txt", text());
    let data = load(&Options::new([&first, &long], 2, 16)).unwrap();
    assert!(data.sequences.iter().all(|sequence| sequence.len() == 16), "short ones are left out beside others");
    assert_eq!(data.provenance.files[0].skipped[&Skip::TooShort], 1);
}

#[test]
fn random_windows_and_shuffling_depend_only_on_the_seed() {
    let files = Files::new();
    let text_file = files.add("a.txt", text());
    let rows = files.add("a.jsonl", (0..100).map(|n| format!("\"row {n}\"\n")).collect::<String>());
    let random = |seed| {
        let options = Options::new([&text_file], 4, 16);
        load(&Options { packing: Some(Packing::Random), seed, ..options }).unwrap().sequences
    };
    let shuffled = |seed| load(&Options { shuffle: true, seed, ..Options::new([&rows], 4, 16) }).unwrap().sequences;
    assert_eq!((random(1), shuffled(1)), (random(1), shuffled(1)));
    assert!(random(1) != random(2) && shuffled(1) != shuffled(2));
    // What a seed means never changes.
    assert_eq!(shuffled(0), encoded(&["row 85", "row 77", "row 47", "row 50"]));
}

#[test]
fn reading_stops_after_enough_samples() {
    let files = Files::new();
    // What follows the second row would be an error.
    let path = files.add("a.json", "[\"one\", \"two\", oops");
    assert_eq!(load(&Options::new([&path], 2, 16)).unwrap().sequences, encoded(&["one", "two"]));
    assert!(load(&Options::new([&path], 3, 16)).is_err());
}

#[test]
fn loading_reports_progress() {
    let files = Files::new();
    let path = files.add("a.jsonl", "\"one\"\n\"two\"\n\"three\"");
    let mut told = Vec::new();
    let (model, options) = (super::model(), Options::new([path], 2, 16));
    let watch = |filled, asked| told.push((filled, asked));
    kvant_data::calibration::CalibrationData::load(&options, &model, 2048, watch).unwrap();
    assert_eq!(told, [(1, 2), (2, 2)]);
}

#[test]
fn non_utf8_text_is_refused() {
    let error = samples("a.txt", b"abc\xFFdef").unwrap_err();
    assert!(error.to_string().ends_with("is not UTF-8 text: byte 3"), "{error}");
}
