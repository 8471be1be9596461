use std::path::Path;

use kvant_container::{Diagnostic, ErrorKind};

use super::*;

fn read(text: &[u8]) -> Result<RangesFile, RangesError> {
    RangesFile::parse(Path::new("ranges"), text, String::new())
}

fn codes(bits: u32, is_symmetric: bool, affines: &[(f32, i64)]) -> TensorRanges {
    let affines = affines.iter().map(|&(scale, zero_point)| Affine { scale, zero_point }).collect();
    let codes = Codes { bits, is_symmetric, axis: (bits == 4).then_some(0), affines };
    TensorRanges { is_constant: false, is_float: false, ranges: codes.ranges(), codes: Some(codes) }
}

/// Tensors of all kinds.
fn table() -> RangeTable {
    let tensors = [
        ("x: y", codes(8, true, &[(0.1, 128)])),
        ("tensor/ä", codes(16, false, &[(0.3, 7)])),
        ("w", TensorRanges { is_constant: true, ..codes(4, true, &[(0.1, 8), (0.7, 8)]) }),
        ("mask", TensorRanges::float(Some(Range { min: f32::MIN, max: 0.0 }))),
    ];
    tensors.map(|(name, tensor)| (name.to_owned(), tensor)).into()
}

#[test]
fn what_is_written_is_read_back_exactly() {
    for format in FORMATS {
        let file = read(&format.write(&table()).unwrap()).unwrap();
        assert_eq!(file.format, format.name);
        let kept = |name: &str| file.table.get(name);
        let (symmetric, asymmetric) = (kept("x: y").unwrap(), kept("tensor/ä").unwrap());
        assert_eq!(kept("w").is_some(), format.has_constants, "{}", format.name);
        if format.has_constants {
            let expected = |name: &str| table()[name].codes.clone();
            assert_eq!(symmetric.codes, expected("x: y"), "{}", format.name);
            assert_eq!(asymmetric.codes, expected("tensor/ä"), "{}", format.name);
            let weight = kept("w").unwrap().codes.clone().unwrap();
            assert_eq!(weight.affines, table()["w"].codes.clone().unwrap().affines);
            assert_eq!(weight.axis, (format.name == "aimet-2.0.0").then_some(0));
            assert_eq!(kept("mask").map(|mask| mask.is_float), (format.name != "aimet-2.0.0").then_some(true));
        }
        if format.name == "onnxruntime" {
            assert_eq!(asymmetric.ranges, table()["tensor/ä"].ranges);
            assert_eq!(kept("mask").unwrap().ranges, table()["mask"].ranges);
        }
        if format.name == "tensorrt" {
            assert_eq!(symmetric.codes, table()["x: y"].codes);
        }
        // 65528 codes above zero, 7 below.
        let highest = asymmetric.whole().unwrap().max;
        assert!((highest / (0.3 * 65528.0) - 1.0).abs() < 1e-6, "{}: {highest}", format.name);
    }
}

#[test]
fn forms_of_other_tools_are_read() {
    let of = |text: &str| read(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"));
    // AIMET's, with the lowest code unused and with ranges alone.
    let strict = r#"{"version": "0.6.1", "activation_encodings": {"x": [{"bitwidth": 8, "dtype": "int", "is_symmetric": "True",
        "max": 12.7, "min": -12.7, "offset": -127, "scale": 0.1}]}, "param_encodings": {}}"#;
    let strict = &of(strict).table["x"];
    assert_eq!(strict.codes.as_ref().unwrap().affines, [Affine { scale: 0.1, zero_point: 128 }]);
    assert_eq!(strict.ranges, [Range { min: -12.7, max: 12.7 }]);
    let ranges = r#"{"activation_encodings": {"x": [{"bitwidth": 8, "min": -1, "max": 2.5}], "y": [{"bitwidth": 16, "dtype": "float"}]}}"#;
    assert_eq!(of(ranges).table["x"], TensorRanges::of_ranges(vec![Range { min: -1.0, max: 2.5 }]));
    assert!(of(ranges).table["y"].is_float);
    let blocks = r#"{"activation_encodings": [], "param_encodings": [{"name": "w", "dtype": "INT", "enc_type": "LPBQ", "bw": 4}]}"#;
    assert!(of(blocks).table["w"].ranges.is_empty());
    // An offset beyond the codes leaves a range.
    let shifted = r#"{"activation_encodings": [{"name": "x", "dtype": "INT", "bw": 8, "scale": [1], "offset": [2]}]}"#;
    assert_eq!(of(shifted).table["x"], TensorRanges::of_ranges(vec![Range { min: 2.0, max: 257.0 }]));
    let of_onnx = r#"{"version": "2.0.0", "encodings": [{"name": "x", "output_dtype": "uint8", "y_scale": 0.5, "y_zero_point": 3}]}"#;
    assert_eq!(of(of_onnx).table["x"], codes(8, false, &[(0.5, 3)]));
    // ONNX Runtime's, of dictionaries and of pairs.
    let named = r#"{"x": {"lowest": {"data": [[-1.5], [0]], "dtype": "float32", "CLS": "numpy.array"}, "highest": [1, 2], "CLS": "TensorData"}}"#;
    assert_eq!(of(named).table["x"].ranges, [Range { min: -1.5, max: 1.0 }, Range { min: 0.0, max: 2.0 }]);
    assert_eq!(of(r#"{"x": [-1, 3]}"#).table["x"].whole(), Some(Range { min: -1.0, max: 3.0 }));
    assert_eq!(of("a name 2.008338\n").table["a name"].whole(), Some(Range { min: -2.008_338, max: 2.008_338 }));
    // TensorRT's, whose digits may lack leading zeros.
    let cache = of("TRT-7103-EntropyCalibration2\nx:0: 3c010a14\nzero: 0\n").table;
    assert_eq!(cache["x:0"].codes.as_ref().unwrap().affines[0].scale, f32::from_bits(0x3c01_0a14));
    assert_eq!(cache["zero"], TensorRanges::of_ranges(vec![Range { min: -0.0, max: 0.0 }]));
}

#[test]
fn wrong_files_are_refused_with_the_tensor() {
    let one = |encoding: &str| format!(r#"{{"activation_encodings": {{"x": [{encoding}]}}}}"#);
    for (text, told) in [
        (String::new(), "no file of ranges"),
        ("prose without numbers".to_owned(), "no file of ranges"),
        ("[1, 2".to_owned(), "not JSON"),
        (r#"{"x": [NaN, 1]}"#.to_owned(), "NaN and Infinity"),
        (r#"{"activation_encodings": {}}"#.to_owned(), "no tensors"),
        (r#"{"x": [2, 1]}"#.to_owned(), "`x`: the range from 2 to 1 is empty"),
        (r#"{"x": [-1e300, 1]}"#.to_owned(), "`x`: lowest is -1e300"),
        (r#"{"x": {"lowest": [1], "highest": [1, 2]}}"#.to_owned(), "`x`: it has 1 lowest and 2 highest"),
        (one(r#"{"bitwidth": 64, "min": 0, "max": 1}"#), "`x`: bitwidth is not a number from 2 to 32"),
        (one(r#"{"bitwidth": 8, "scale": -1, "offset": 0}"#), "`x`: its scale is -1"),
        (one(r#"{"bitwidth": 8, "scale": 1e38, "offset": 0}"#), "`x`: the range from 0 to inf"),
        (one(r#"{"bitwidth": 8, "scale": 1, "offset": 0.5}"#), "`x`: offset is 0.5"),
        (one(r#"{"bitwidth": 8, "scale": 1}"#), "`x`: it has neither"),
        (one(r#"{"bitwidth": 8, "dtype": "text"}"#), "`x`: its dtype"),
        ("TRT-8601-EntropyCalibration2\nx 3c010a14\n".to_owned(), "line 2"),
        ("TRT-8601-EntropyCalibration2\nx: 7fc00000\n".to_owned(), "`x`: its scale is NaN"),
        ("TRT-8601-EntropyCalibration2\nx: bf800000\n".to_owned(), "`x`"),
        ("x -2\n".to_owned(), "`x`: its largest magnitude is -2"),
        ("x nan\n".to_owned(), "`x`: its largest magnitude is NaN"),
    ] {
        let error = read(text.as_bytes()).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(told), "{text}: {error}");
        assert!(error.to_string().starts_with("ranges: "), "{error}");
    }
    let layers = r#"{"activation_encodings": {"conv1": {"input": {"0": {"bitwidth": 8}}}}}"#;
    let distribution = r#"{"x": {"avg": 1.0, "std": 2.0, "CLS": "TensorData"}}"#;
    for text in [layers, distribution] {
        assert_eq!(read(text.as_bytes()).unwrap_err().kind(), ErrorKind::Unsupported, "{text}");
    }
}

#[test]
fn cut_and_changed_tables_of_flatbuffers_are_no_crash() {
    let whole = RangesFormat::find("onnxruntime-flatbuffers").unwrap().write(&table()).unwrap();
    for length in 0..whole.len() {
        let _ = read(&whole[..length]);
    }
    for at in 0..whole.len() {
        for value in [0, 1, 127, 255] {
            let mut changed = whole.clone();
            changed[at] = value;
            let _ = read(&changed);
        }
    }
    // A vector whose entries are all the same long string is longer than its file.
    assert!(read(&[0; 64]).is_err());
}

#[test]
fn types_and_names_without_a_form_are_refused() {
    let aimet = RangesFormat::of_path(Path::new("NET.Encodings")).unwrap();
    assert!(aimet.check("x", Element::UInt16).is_ok());
    let error = aimet.check("x", Element::Float8E4M3).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("`x`"), "{error}");
    assert!(RangesFormat::of_path(Path::new("calibration.json")).is_some_and(|format| format.name == "onnxruntime"));
    assert!(RangesFormat::of_path(Path::new("ranges.txt")).is_none());
    let broken: RangeTable = [("a\nb".to_owned(), codes(8, true, &[(1.0, 128)]))].into();
    for name in ["tensorrt", "onnxruntime-text"] {
        assert!(RangesFormat::find(name).unwrap().write(&broken).is_err(), "{name}");
    }
}
