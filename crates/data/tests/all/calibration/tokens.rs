//! Tokens made by others: arrays of NumPy, tensors, and lists in rows.

use super::{Files, VOCABULARY, load, samples};
use kvant_data::calibration::{CalibrationData, CalibrationDataError, Options};

/// A file of NumPy with any header.
fn npy(header: &str, elements: &[u8]) -> Vec<u8> {
    let header = format!("{header}\n");
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), elements].concat()
}

fn array(descr: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    npy(&format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"), elements)
}

fn i64s(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn safetensors(tensors: &[(&str, &str, &str, &[u8])]) -> Vec<u8> {
    let (mut entries, mut bytes) = (Vec::new(), Vec::new());
    for (name, dtype, shape, data) in tensors {
        let (start, end) = (bytes.len(), bytes.len() + data.len());
        entries
            .push(format!(r#""{name}": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": [{start}, {end}]}}"#));
        bytes.extend(*data);
    }
    let header = format!("{{{}}}", entries.join(", "));
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes].concat()
}

#[test]
fn npy_matrix_rows_are_samples_and_a_vector_is_a_document() {
    let rows = samples("a.npy", array("<i8", "(2, 3)", &i64s(&[1, 2, 3, 4, 5, 6]))).unwrap();
    assert_eq!(rows.sequences, [[1, 2, 3], [4, 5, 6]]);
    let files = Files::new();
    let path = files.add("a.npy", array(">u2", "(5,)", &[0, 1, 0, 2, 0, 3, 1, 0, 0, 5]));
    assert_eq!(load(&Options::new([path], 9, 2)).unwrap().sequences, [[1, 2], [3, 256]]);
}

#[test]
fn safetensors_tokens_are_read_without_padding() {
    let ids = i64s(&[0, 0, 7, 8, 9, 0]);
    let mask = [0, 0, 1, 1, 1, 0];
    let both = safetensors(&[("attention_mask", "U8", "[2, 3]", &mask), ("input_ids", "I64", "[2, 3]", &ids)]);
    assert_eq!(samples("a.safetensors", both).unwrap().sequences, [vec![7], vec![8, 9]]);
    let only =
        safetensors(&[("weight", "F32", "[1]", &[0; 4]), ("tokens", "I32", "[1, 2]", &[1, 0, 0, 0, 2, 0, 0, 0])]);
    assert_eq!(samples("a.safetensors", only).unwrap().sequences, [[1, 2]]);
    let none = safetensors(&[("weight", "F32", "[1]", &[0; 4])]);
    let two = safetensors(&[("a", "U8", "[1]", &[0]), ("b", "U8", "[1]", &[0])]);
    let misfit = safetensors(&[("attention_mask", "U8", "[3]", &[1; 3]), ("input_ids", "U8", "[2]", &[1; 2])]);
    for broken in [none, two, misfit] {
        assert!(matches!(samples("a.safetensors", broken), Err(CalibrationDataError::Damaged { .. })));
    }
}

#[test]
fn token_data_needs_no_tokenizer_but_text_does() {
    let files = Files::new();
    let load = |path| CalibrationData::load(&Options::new([path], 1, 2), files.0.path(), VOCABULARY, |_, _| {});
    assert_eq!(load(files.add("a.npy", array("|u1", "(1, 2)", &[1, 2]))).unwrap().sequences, [[1, 2]]);
    assert_eq!(load(files.add("a.jsonl", "[1, 2]")).unwrap().sequences, [[1, 2]]);
    let error = load(files.add("b.jsonl", r#"{"text": "some words"}"#)).unwrap_err();
    assert!(matches!(error, CalibrationDataError::Tokenizer(_)), "{error}");
}

#[test]
fn tokens_outside_the_vocabulary_are_named() {
    for (name, bytes, token) in [
        ("a.npy", array("<i8", "(2, 1)", &i64s(&[1, -100])), -100),
        ("a.npy", array("<i8", "(2, 1)", &i64s(&[1, 2048])), 2048),
        ("a.jsonl", b"[2047]\n{\"input_ids\": [2048]}".to_vec(), 2048),
    ] {
        let error = samples(name, bytes).unwrap_err();
        let named =
            matches!(error, CalibrationDataError::OutOfVocabulary { row: 2, token: found, .. } if found == token);
        assert!(named, "{error}");
    }
}

#[test]
fn fortran_order_arrays_are_read_by_rows() {
    let rows = samples("a.npy", array("|u1", "(2, 3)", &[1, 2, 3, 4, 5, 6])).unwrap();
    let order = |shape: &str| format!("{{'descr': '|u1', 'fortran_order': True, 'shape': {shape}, }}");
    let turned = samples("a.npy", npy(&order("(2, 3)"), &[1, 4, 2, 5, 3, 6])).unwrap();
    assert_eq!(turned.sequences, rows.sequences);
    assert!(samples("a.npy", npy(&order("(9223372036854775807, 0)"), &[])).is_err());
}

#[test]
fn arrays_with_inconsistent_headers_are_refused() {
    let header = |text: &str| npy(text, &[0; 8]);
    for lie in [
        array("<i8", "(2,)", &[0; 8]),
        array("<i8", "(9223372036854775807, 4)", &[0; 8]),
        array("<i8", "(-1,)", &[0; 8]),
        array("<f4", "(2,)", &[0; 8]),
        array("<i8", "(1, 1, 1)", &[0; 8]),
        header("{'descr': [('a', '<i4'), ('b', '<i4')], 'fortran_order': False, 'shape': (1,), }"),
        header("{'descr': '<i4', 'fortran_order': True, 'shape': (2, 2), }"),
        header(""),
        b"\x93NUMPY".to_vec(),
        b"\x93NUMPY\x02\x00\xFF\xFF\xFF\xFF".to_vec(),
        b"no array".to_vec(),
    ] {
        assert!(samples("a.npy", &lie).is_err(), "{}", String::from_utf8_lossy(&lie));
    }
    let pickle = samples("a.npy", array("|O", "(1,)", &[0; 8])).unwrap_err();
    assert!(pickle.to_string().contains("Python objects are never read"), "{pickle}");
    // Rows of nothing have no bytes that would bound their number.
    assert!(samples("a.npy", array("<i8", "(9223372036854775807, 0)", &[])).is_err());
}
