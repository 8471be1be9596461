use super::*;
use kvant_container::{Diagnostic, ErrorKind};
use serde_json::json;
use std::path::PathBuf;

/// A file of f32 tensors.
fn file(tensors: &[(&str, &[usize], &[f32])]) -> (tempfile::TempDir, PathBuf) {
    let (mut header, mut bytes) = (serde_json::Map::new(), Vec::new());
    for (name, shape, values) in tensors {
        let start = bytes.len();
        values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, bytes.len()] });
        header.insert((*name).to_owned(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("statistics.safetensors");
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(&path, [&length[..], &header, &bytes].concat()).unwrap();
    (dir, path)
}

fn open(tensors: &[(&str, &[usize], &[f32])]) -> Result<InputStatistics, InputStatisticsError> {
    InputStatistics::open(&file(tensors).1, None)
}

#[test]
fn ranges_and_mean_squares_of_layers_are_read() {
    let statistics = open(&[
        ("a.b.input_min", &[], &[-1.0]),
        ("a.b.input_max", &[1], &[2.0]),
        ("a.b.input_mean_square", &[2], &[4.0, 1.0]),
        ("a.c.output_min", &[2], &[-1.0, -2.0]),
        ("a.c.output_max", &[2], &[0.0, 3.0]),
        ("a.c.weight", &[2], &[0.0, 3.0]),
        ("input_min", &[], &[0.0]),
    ])
    .unwrap();
    assert_eq!(statistics.layers().collect::<Vec<_>>(), ["a.b", "a.c"]);
    assert_eq!(statistics.layer("a.b").unwrap().mean_square.as_deref(), Some([1.0, 0.25].as_slice()));
    let input = statistics.ranges(&ActivationPoint::Input("a.b".to_owned()));
    assert_eq!(input, Some([Range { min: -1.0, max: 2.0 }].as_slice()));
    assert_eq!(statistics.ranges(&ActivationPoint::Output("a.c".to_owned())).unwrap().len(), 2);
    assert_eq!(statistics.ranges(&ActivationPoint::Input("a.c".to_owned())), None);
    assert_eq!(statistics.ranges(&ActivationPoint::Key(0)), None);
}

#[test]
fn statistics_of_a_component_begin_with_its_name() {
    let (_dir, path) = file(&[("unet.a.input_mean_square", &[1], &[4.0]), ("unet2.a.input_mean_square", &[1], &[4.0])]);
    let statistics = InputStatistics::open(&path, Some("unet")).unwrap();
    assert_eq!(statistics.layers().collect::<Vec<_>>(), ["a"]);
    assert_ne!(statistics, InputStatistics::open(&path, Some("unet2")).unwrap());
    let error = InputStatistics::open(&path, Some("vae")).unwrap_err();
    assert!(error.to_string().ends_with("holds no statistics of the component vae"), "{error}");
}

#[test]
fn values_that_no_inputs_have_are_refused() {
    let nan = f32::NAN;
    for (tensors, expected) in [
        (vec![("a.input_min", &[][..], &[nan][..]), ("a.input_max", &[], &[1.0])], "value 0 is NaN"),
        (vec![("a.input_min", &[], &[2.0]), ("a.input_max", &[], &[1.0])], "below the minimum of 2"),
        (vec![("a.input_min", &[], &[2.0])], "`a.input_max` is missing"),
        (vec![("a.input_min", &[2], &[0.0, 0.0]), ("a.input_max", &[], &[1.0])], "has 1, and `a.input_min` has 2"),
        (vec![("a.input_mean_square", &[2], &[1.0, -1.0])], "value 1 is -1"),
        (vec![("a.input_mean_square", &[], &[1.0])], "its shape [] is not"),
        (vec![("a.input_mean_square", &[1], &[f32::INFINITY])], "value 0 is inf"),
        (vec![("a.hessian", &[2], &[1.0, 1.0])], "its shape [2] is not a square matrix"),
        (vec![("a.weight", &[2], &[1.0, 1.0])], "holds no statistics"),
    ] {
        let error = open(&tensors).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(error.kind() == ErrorKind::Invalid && error.hint().is_some());
    }
}

#[test]
fn hessians_are_symmetric_with_squares_on_their_diagonal() {
    let hessian = |values: &[f32]| open(&[("a.hessian", &[2, 2], values)]).unwrap().hessian("a");
    assert_eq!(hessian(&[2.0, 1.0, 1.0, 3.0]).unwrap(), Some(vec![2.0, 1.0, 1.0, 3.0]));
    for (values, expected) in [
        ([2.0, 1.0, -1.0, 3.0], "not symmetric"),
        ([2.0, 3.0, 3.0, 3.0], "allow no more than 2.449"),
        ([0.0, 1.0, 1.0, 3.0], "allow no more than 0"),
        ([-2.0, 0.0, 0.0, 3.0], "no square is negative"),
        ([2.0, f32::NAN, 0.0, 3.0], "not a finite number"),
    ] {
        assert!(hessian(&values).unwrap_err().to_string().contains(expected));
    }
}
