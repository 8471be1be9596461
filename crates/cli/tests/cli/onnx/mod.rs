//! ONNX graphs at the command line.

mod accuracy;
mod options;
mod quality;
mod ranges;
mod recipes;
mod refusals;
mod sensitivity;
mod signals;
pub mod timing;
mod unusual;
mod writing;

use crate::kvant::Place;
use std::path::Path;

/// A directory with a small CNN, `float.onnx`, and its calibration data, `calib.npz`.
pub fn place() -> Place {
    let place = Place::empty();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data");
    for (from, to) in [("tinycnn.float.onnx", "float.onnx"), ("tinycnn.calib.npz", "calib.npz")] {
        std::fs::copy(data.join(from), place.path(to)).unwrap();
    }
    place
}

pub const QUANTIZE: [&str; 9] =
    ["quantize", "float.onnx", "--preset", "A8W8", "--data", "calib.npz", "--runtime", "rten", "--overwrite"];

pub fn quantize<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [&QUANTIZE[..], &["-o", "out.onnx"], options].concat()
}
