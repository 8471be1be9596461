//! Weights of graphs in files of their own: when they are written, replaced and refused.

use crate::kvant::names;
use crate::onnx::{QUANTIZE, place, quantize};
use std::path::Path;

#[test]
fn overwriting_removes_old_external_data() {
    let place = place();
    place.succeed(&quantize(&["--external-data", "always"]));
    assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx", "out.onnx", "out.onnx.data"]);
    place.succeed(&quantize(&[]));
    assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx", "out.onnx"]);
}

#[cfg(target_os = "linux")]
#[test]
fn graph_names_that_are_not_utf8_are_written_and_refused_for_external_data() {
    use std::os::unix::ffi::OsStrExt;
    let place = place();
    let odd = std::ffi::OsStr::from_bytes(b"odd\xff.onnx");
    let run = |more: &[&str]| place.command(&[&QUANTIZE[..], more, &["-o"]].concat()).arg(odd).output().unwrap();
    let refused = run(&["--external-data", "always"]);
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && told.contains("--external-data never"), "{told}");
    assert!(run(&[]).status.success());
    assert!(place.path("").join(odd).is_file());
}

#[test]
fn external_data_of_the_source_is_never_replaced() {
    let place = place();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data/tinytransformer.float.onnx");
    let float16 = ["--preset", "FP16_MODEL", "--external-data", "always", "-o", "out.onnx"];
    place.succeed(&[&["quantize", source.to_str().unwrap()][..], &float16].concat());
    std::fs::rename(place.path("out.onnx"), place.path("b.onnx")).unwrap();
    let run = place.run(&["quantize", "b.onnx", "--preset", "BF16_MODEL", "-o", "out.onnx", "--overwrite"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("out.onnx.data, reserved for -o out.onnx, is weights of the source"), "{run:?}");
    assert!(place.path("out.onnx.data").exists());
}
