//! Statistics of inputs in a file that cannot be used: refused before the work, with the tensor and a way out.

use crate::kvant::Place;
use kvant_container::{Dtype, Durability, Layout, TensorDeclaration, Writer};
use std::fs;

/// The layers of the model of the tests, `0` and `1`.
const LAYERS: [&str; 2] = ["body.0.up", "body.1.up"];
const CHANNELS: usize = 32;

/// Writes tensors of f32 to a file.
fn write_tensors(place: &Place, file: &str, tensors: &[(String, Vec<usize>, Vec<f32>)]) {
    let declared = tensors.iter().map(|(name, shape, _)| TensorDeclaration::new(name, Dtype::F32, shape.clone()));
    let layout = Layout::new(declared.collect(), u64::MAX, Default::default()).unwrap();
    let folder = place.path("tensors");
    let writer = Writer::create(&folder, layout).unwrap();
    for (index, (_, _, values)) in tensors.iter().enumerate() {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        writer.write_at(index, 0, &bytes).unwrap();
    }
    writer.finish(Durability::Process).unwrap();
    fs::rename(folder.join("model.safetensors"), place.path(file)).unwrap();
    fs::remove_dir_all(folder).unwrap();
}

/// A model of an architecture that nobody has described.
fn net() -> Place {
    let place = Place::new();
    fs::create_dir(place.path("net")).unwrap();
    let weight = |layer: &str| {
        let values = (0..CHANNELS * CHANNELS).map(|at| (at * 7 % 31) as f32 * 0.01 - 0.15).collect();
        (format!("{layer}.weight"), vec![CHANNELS, CHANNELS], values)
    };
    write_tensors(&place, "net/model.safetensors", &LAYERS.map(weight));
    place.write("net/config.json", r#"{"model_type": "net", "architectures": ["Net"]}"#);
    place
}

fn vector(layer: &str, end: &str, value: f32) -> (String, Vec<usize>, Vec<f32>) {
    (format!("{layer}.{end}"), vec![CHANNELS], vec![value; CHANNELS])
}

fn ranges(layer: &str, most: f32) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    vec![vector(layer, "input_min", -most), vector(layer, "input_max", most)]
}

fn hessian(layer: &str, of: impl Fn(usize, usize) -> f32) -> (String, Vec<usize>, Vec<f32>) {
    let values = (0..CHANNELS * CHANNELS).map(|at| of(at / CHANNELS, at % CHANNELS)).collect();
    (format!("{layer}.hessian"), vec![CHANNELS, CHANNELS], values)
}

const STATIC: [&str; 4] = ["-s", "int8:channel+int8:tensor!static", "--format", "fake"];

fn refused(place: &Place, file: &str, line: &[&str], words: &[&str]) {
    for command in ["plan", "quantize"] {
        let run = place.run(&[&[command, "net", "--statistics", file, "-o", "out"], line].concat());
        assert!(matches!(run.code, Some(1 | 2)), "{command} {file}: {run:?}");
        for word in words {
            assert!(run.stderr.contains(word), "{command} {file}, {word}: {}", run.stderr);
        }
        assert!(!place.path("out").exists() && !place.path("out.partial").exists(), "{command} {file}");
    }
}

#[test]
fn names_that_differ_at_their_beginning_are_explained() {
    let place = net();
    for (file, rename, advice) in [
        ("shorter", ["0.up", "1.up"], "put `body.` before the names of its tensors"),
        ("longer", ["net.body.0.up", "net.body.1.up"], "leave `net.` out of the names of its tensors"),
    ] {
        write_tensors(&place, file, &rename.map(|layer| ranges(layer, 1.0)).concat());
        refused(&place, file, &STATIC, &["lacks `body.0.up.input_min`", advice]);
    }
    write_tensors(&place, "one", &ranges("body.0.up", 1.0));
    refused(&place, "one", &STATIC, &["lacks `body.1.up.input_min`", "capture the statistics of these layers too"]);
}

#[test]
fn zeros_are_refused_where_they_decide_something() {
    let place = net();
    write_tensors(&place, "ranges", &[ranges("body.0.up", 1.0), ranges("body.1.up", 0.0)].concat());
    let words = ["`body.1.up.input_min` in ranges", "0 in every channel", "--exclude 'body.1.up'"];
    refused(&place, "ranges", &STATIC, &words);
    place.succeed(&[&["plan", "net", "--statistics", "ranges", "--exclude", "body.1.up"], &STATIC[..]].concat());
    let squares = [vector("body.0.up", "input_mean_square", 0.0), vector("body.1.up", "input_mean_square", 1.0)];
    write_tensors(&place, "squares", &squares);
    let search = ["-s", "int4:g32", "--scales", "search", "--format", "fake"];
    refused(&place, "squares", &search, &["`body.0.up.input_mean_square` in squares", "0 in every channel"]);
}

#[test]
fn hessians_are_checked_before_the_work_and_blamed_themselves() {
    let place = net();
    let identity = |row: usize, column: usize| if row == column { 1.0 } else { 0.0 };
    let gptq = ["-s", "int4:g32", "--algorithm", "gptq", "--format", "fake"];
    for (file, second, words) in [
        ("zero", hessian("body.1.up", |_, _| 0.0), "0 in every channel"),
        ("nan", hessian("body.1.up", |row, _| if row == 31 { f32::NAN } else { 1.0 }), "not a finite number"),
        ("infinite", hessian("body.1.up", |_, _| f32::INFINITY), "not a finite number"),
        ("asymmetric", hessian("body.1.up", |row, column| if row > column { 0.9 } else { 1.0 }), "not symmetric"),
        (
            "impossible",
            hessian("body.1.up", |row, column| if row == column { 1.0 } else { 7.0 }),
            "allow no more than 1",
        ),
    ] {
        write_tensors(&place, file, &[hessian("body.0.up", identity), second]);
        refused(&place, file, &gptq, &[&format!("`body.1.up.hessian` in {file}"), words]);
        // Nothing reads it.
        let nearest = ["plan", "net", "--statistics", file, "-s", "int4:g32", "--format", "fake"];
        place.succeed(&nearest);
    }
    write_tensors(&place, "good", &LAYERS.map(|layer| hessian(layer, identity)));
    place.succeed(&[&["quantize", "net", "--statistics", "good", "-o", "good-out"], &gptq[..]].concat());
}

#[test]
fn files_of_other_kinds_are_named() {
    let place = net();
    place.write("text.txt", "The tower stood where the river turns.\n");
    fs::write(place.path("m.gguf"), b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0").unwrap();
    refused(&place, "text.txt", &STATIC, &["text.txt is not a file of statistics", "it is text", "--calib"]);
    refused(&place, "m.gguf", &STATIC, &["it is a GGUF file", "--imatrix"]);
}
