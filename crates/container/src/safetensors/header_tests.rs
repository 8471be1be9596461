//! Headers of every hostile kind, and mutations of valid ones.

use crate::Diagnostic;
use proptest::prelude::*;

use super::*;
use crate::ErrorKind;
use crate::dtype::SizeError;
use crate::safetensors::{Layout, TensorDeclaration};

/// A file with the given header and so many bytes of data.
fn file_with(json: &str, data_len: usize) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    bytes.resize(bytes.len() + data_len, 0);
    bytes
}

fn parse(json: &str, data_len: usize) -> Result<Header, HeaderError> {
    let bytes = file_with(json, data_len);
    Header::parse(&bytes, bytes.len() as u64)
}

fn refused(json: &str, data_len: usize) -> HeaderError {
    parse(json, data_len).expect_err(json)
}

fn tensor(name: &str, dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

#[test]
fn tensors_are_in_file_order_with_absolute_ranges() {
    let json = format!(
        r#"{{"__metadata__":{{"format":"pt"}},{},{}}}   "#,
        tensor("b", "F16", "[2,2]", 4, 12),
        tensor("a", "F8_E4M3", "[4]", 0, 4)
    );
    let header = parse(&json, 12).unwrap();
    let start = 8 + json.len() as u64;
    assert_eq!(header.data_start(), start);
    assert_eq!(header.metadata()["format"], "pt");
    let found: Vec<_> = header.tensors().iter().map(|t| (t.name(), t.dtype(), t.shape(), t.range())).collect();
    assert_eq!(
        found,
        [("a", Dtype::F8_E4M3, &[4][..], start..start + 4), ("b", Dtype::F16, &[2, 2][..], start + 4..start + 12),]
    );
}

#[test]
fn gaps_trailing_bytes_scalars_and_empty_tensors_are_accepted() {
    let scalar = tensor("s", "F32", "[]", 8, 12);
    let empty = tensor("e", "F32", "[0,3]", 10, 10);
    let header = parse(&format!("{{{scalar},{empty}}}"), 20).unwrap();
    assert_eq!(header.tensors().len(), 2);
    assert!(parse("{}", 0).unwrap().tensors().is_empty());
}

#[test]
fn header_parses_from_the_first_bytes_of_a_file() {
    let json = format!("{{{}}}", tensor("a", "U8", "[1000000]", 0, 1_000_000));
    let bytes = file_with(&json, 0);
    let file_len = bytes.len() as u64 + 1_000_000;
    assert!(Header::parse(&bytes, file_len).is_ok());
    let error = Header::parse(&bytes, file_len - 7).unwrap_err();
    assert_eq!(error, HeaderError::Truncated { tensor: "a".into(), file_len: file_len - 7, missing: 7 });
}

#[test]
fn file_too_short_for_a_header_is_refused() {
    assert_eq!(Header::parse(&[1; 7], 7), Err(HeaderError::TooShort { len: 7 }));
    let bytes = file_with("{}", 0);
    assert_eq!(Header::parse(&bytes[..9], 9), Err(HeaderError::HeaderTruncated { len: 2, missing: 1 }));
    assert_eq!(refused("", 0), HeaderError::NotAnObject);
}

#[test]
fn absurd_header_length_is_refused() {
    for len in [MAX_HEADER_LEN + 1, u64::MAX] {
        assert_eq!(Header::parse(&len.to_le_bytes(), 8), Err(HeaderError::TooLong { len }));
    }
    let at_limit = Header::parse(&MAX_HEADER_LEN.to_le_bytes(), 8);
    assert_eq!(at_limit, Err(HeaderError::HeaderTruncated { len: MAX_HEADER_LEN, missing: MAX_HEADER_LEN }));
}

#[test]
fn git_lfs_pointer_is_recognised() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    let error = Header::parse(pointer, pointer.len() as u64).unwrap_err();
    assert_eq!(error, HeaderError::LfsPointer);
    assert!(error.hint().unwrap().contains("git lfs pull"));
}

#[test]
fn malformed_header_json_is_refused() {
    let nested = format!(r#"{{"a":{}"#, "[".repeat(200_000));
    let ignored = format!(r#"{{"a":{{"x":{}"#, "[".repeat(200_000));
    let objects = r#"{"a":"#.repeat(100_000);
    let invalid = [
        "{",
        "{}x",
        r#"{"a":1}"#,
        r#"{"a":{}}"#,
        r#"{"a":null}"#,
        " {}",
        "[]",
        "\u{feff}{}",
        &nested,
        &ignored,
        &objects,
    ];
    for json in invalid {
        assert_eq!(refused(json, 0).kind(), ErrorKind::Invalid);
    }
    let mut not_utf8 = file_with(r#"{"a":1}"#, 0);
    not_utf8[10] = 0xff;
    assert!(matches!(Header::parse(&not_utf8, not_utf8.len() as u64), Err(HeaderError::Json(_))));
}

#[test]
fn values_of_wrong_type_name_the_tensor() {
    let shapes = ["[-1]", "[1.5]", "[1e3]", r#"["1"]"#, "null", "[18446744073709551616]", "[[[1]]]"];
    let mut cases: Vec<String> = shapes.map(|shape| tensor("w.x", "U8", shape, 0, 1)).into();
    cases.push(r#""w.x":{"dtype":"U8","shape":[1],"data_offsets":[0]}"#.into());
    cases.push(r#""w.x":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}"#.into());
    cases.push(r#""w.x":{"dtype":"U8","shape":[1],"data_offsets":[0,-1]}"#.into());
    cases.push(r#""w.x":{"dtype":"U8","shape":[1]}"#.into());
    cases.push(r#""w.x":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}"#.into());
    for case in cases {
        let error = refused(&format!("{{{case}}}"), 4);
        assert!(matches!(&error, HeaderError::Json(m) if m.contains("tensor `w.x`")), "{case}: {error}");
    }
}

#[test]
fn metadata_must_be_unique_strings() {
    for json in [r#"{"__metadata__":{"a":1}}"#, r#"{"__metadata__":[]}"#, r#"{"__metadata__":{"a":{"b":"c"}}}"#] {
        assert!(matches!(refused(json, 0), HeaderError::Json(m) if m.contains("__metadata__")), "{json}");
    }
    let twice = HeaderError::DuplicateMetadata { key: "a".into() };
    assert_eq!(refused(r#"{"__metadata__":{"a":"1","a":"2"}}"#, 0), twice);
    assert_eq!(refused(r#"{"__metadata__":{"a":"1"},"__metadata__":{"a":"2"}}"#, 0), twice);
}

#[test]
fn duplicate_tensor_names_are_refused() {
    let json = format!("{{{},{}}}", tensor("a", "U8", "[1]", 0, 1), tensor("a", "U8", "[1]", 1, 2));
    assert_eq!(refused(&json, 2), HeaderError::DuplicateTensor { tensor: "a".into() });
    let escaped = format!("{{{},{}}}", tensor("a", "U8", "[1]", 0, 1), tensor("\\u0061", "U8", "[1]", 1, 2));
    assert_eq!(refused(&escaped, 2), HeaderError::DuplicateTensor { tensor: "a".into() });
}

#[test]
fn unknown_dtypes_are_unsupported_not_invalid() {
    let error = refused(&format!("{{{}}}", tensor("a", "F128", "[1]", 0, 16)), 16);
    assert_eq!(error, HeaderError::UnknownDtype { tensor: "a".into(), dtype: "F128".into() });
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn shape_overflow_and_partial_bytes_are_refused() {
    let half = u64::MAX / 2;
    for shape in [format!("[{half},4]"), format!("[{half},4,0]"), format!("[{}]", u64::MAX)] {
        let error = refused(&format!("{{{}}}", tensor("a", "F32", &shape, 0, 8)), 8);
        assert!(matches!(error, HeaderError::Size { problem: SizeError::Overflow, .. }), "{shape}: {error}");
    }
    let error = refused(&format!("{{{}}}", tensor("a", "F4", "[3]", 0, 2)), 2);
    assert!(matches!(error, HeaderError::Size { problem: SizeError::PartialByte, .. }), "{error}");
    let shape = format!("[{}]", ["1"; 65].join(","));
    let error = refused(&format!("{{{}}}", tensor("a", "U8", &shape, 0, 1)), 1);
    assert!(matches!(error, HeaderError::TooManyDimensions { dimensions: 65, .. }), "{error}");
}

#[test]
fn inconsistent_offsets_are_refused() {
    let one = |dtype, shape, begin, end| refused(&format!("{{{}}}", tensor("a", dtype, shape, begin, end)), 8);
    assert!(matches!(one("U8", "[4]", 4, 0), HeaderError::ReversedOffsets { begin: 4, end: 0, .. }));
    assert!(matches!(one("F16", "[4]", 0, 4), HeaderError::SizeMismatch { expected: 8, found: 4, .. }));
    assert!(matches!(one("U8", "[4]", 0, 8), HeaderError::SizeMismatch { expected: 4, found: 8, .. }));
    assert!(matches!(one("U8", "[4]", 6, 10), HeaderError::Truncated { missing: 2, .. }));
    assert!(matches!(one("U8", "[0]", 9, 9), HeaderError::Truncated { missing: 1, .. }));
    assert!(matches!(one("U8", "[2]", u64::MAX - 2, u64::MAX), HeaderError::OffsetOverflow { .. }));
}

#[test]
fn overlapping_tensors_are_refused() {
    let pair = |b, c| {
        let inner = tensor("in", "U8", &format!("[{}]", c - b), b, c);
        refused(&format!("{{{},{inner}}}", tensor("out", "U8", "[8]", 0, 8)), 12)
    };
    for (begin, end) in [(0, 8), (0, 4), (2, 4), (4, 8), (7, 12)] {
        assert!(matches!(pair(begin, end), HeaderError::Overlap { .. }), "{begin}..{end}");
    }
    let names = HeaderError::Overlap { first: "out".into(), second: "in".into() }.to_string();
    assert_eq!(names, "tensors `out` and `in` overlap");
}

#[test]
fn truncation_names_the_first_tensor_and_counts_all_missing_bytes() {
    let json = format!("{{{},{}}}", tensor("a", "U8", "[8]", 0, 8), tensor("b", "U8", "[8]", 8, 16));
    let error = refused(&json, 5);
    assert!(matches!(&error, HeaderError::Truncated { tensor, missing: 11, .. } if tensor == "a"), "{error}");
    assert!(error.to_string().contains("11 bytes are missing"), "{error}");
}

/// A valid file to mutate.
fn sample() -> Vec<u8> {
    let declare = |name: &str, dtype, shape: &[usize]| TensorDeclaration::new(name, dtype, shape);
    let declarations = vec![
        declare("a", Dtype::F32, &[2, 3]),
        declare("b", Dtype::BF16, &[]),
        declare("c", Dtype::F4, &[4, 0]),
        declare("d", Dtype::U8, &[7]),
    ];
    let layout = Layout::new(declarations, u64::MAX, [("format".into(), "pt".into())].into()).unwrap();
    let mut bytes = layout.shards()[0].header().to_vec();
    bytes.resize(layout.shards()[0].file_len() as usize, 0);
    bytes
}

/// Properties that every reader of a header relies on.
fn assert_sound(header: &Header, file_len: u64) {
    let mut end = header.data_start();
    for tensor in header.tensors() {
        let range = tensor.range();
        assert!(range.start <= range.end && range.end <= file_len);
        assert_eq!(Ok(range.end - range.start), byte_len(tensor.dtype(), tensor.shape()));
        assert!(range.is_empty() || range.start >= end, "overlap at {}", tensor.name());
        end = end.max(range.end);
    }
}

fn check_mutant(bytes: &[u8]) {
    match Header::parse(bytes, bytes.len() as u64) {
        Ok(header) => assert_sound(&header, bytes.len() as u64),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

#[test]
fn every_truncated_safetensors_file_is_refused() {
    let bytes = sample();
    assert!(Header::parse(&bytes, bytes.len() as u64).is_ok());
    for len in 0..bytes.len() {
        assert!(Header::parse(&bytes[..len], len as u64).is_err(), "{len} bytes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        check_mutant(&bytes);
    }

    #[test]
    fn mutated_bytes_never_panic(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = sample();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        check_mutant(&bytes);
    }

    #[test]
    fn mutated_numbers_never_panic(
        at in any::<prop::sample::Index>(),
        number in prop_oneof![any::<u64>(), 0..100u64, Just(u64::MAX), Just(1 << 63)],
    ) {
        let bytes = sample();
        let json = std::str::from_utf8(json_part(&bytes, 0).unwrap()).unwrap();
        let digits: Vec<_> = json.match_indices(|c: char| c.is_ascii_digit()).collect();
        let (position, _) = digits[at.index(digits.len())];
        let mutant = format!("{}{number}{}", &json[..position], &json[position + 1..]);
        check_mutant(&file_with(&mutant, bytes.len()));
    }

    #[test]
    fn random_ranges_are_accepted_only_if_disjoint(ranges in proptest::collection::vec((0..40u64, 0..12u64), 0..8)) {
        let tensors: Vec<String> = ranges.iter().enumerate()
            .map(|(i, &(begin, len))| tensor(&format!("t{i}"), "U8", &format!("[{len}]"), begin, begin + len))
            .collect();
        let disjoint = ranges.iter().enumerate().all(|(i, a)| ranges[..i].iter().all(|b| {
            a.1 == 0 || b.1 == 0 || a.0 + a.1 <= b.0 || b.0 + b.1 <= a.0
        }));
        prop_assert_eq!(parse(&format!("{{{}}}", tensors.join(",")), 60).is_ok(), disjoint);
    }
}
