//! Ranges in files of other tools, written and read.

use super::place;
use crate::json::check;
use crate::kvant::{Place, names};
use serde_json::{Value, json};
use std::path::Path;

const DATA: [&str; 2] = ["--data", "calib.npz"];

fn line<'a>(preset: &'a str, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["quantize", "float.onnx", "--preset", preset, "--runtime", "rten", "-o", out], more].concat()
}

fn bytes(place: &Place, name: &str) -> Vec<u8> {
    std::fs::read(place.path(name)).unwrap()
}

fn of_model(model: &str) -> Place {
    let place = Place::empty();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data");
    for (from, to) in [("float.onnx", "float.onnx"), ("calib.npz", "calib.npz")] {
        std::fs::copy(data.join(format!("{model}.{from}")), place.path(to)).unwrap();
    }
    place
}

#[test]
fn saved_ranges_make_the_same_graph_without_data() {
    // Formats whose numbers are exact, with the presets that they are exact for.
    let cases: [(&str, &[&str]); 5] = [
        ("aimet", &["A8W8", "A16W8", "XINT8", "S8S8_AAWS", "U8S8_AAWS"]),
        ("aimet-1.0.0", &["A8W8", "U8S8_AAWS"]),
        ("aimet-2.0.0", &["A8W8", "U8S8_AAWS"]),
        ("onnxruntime", &["A8W8", "A16W8", "XINT8", "U8S8_AAWS", "FP8"]),
        ("tensorrt", &["A8W8"]),
    ];
    for model in ["tinycnn", "tinytransformer"] {
        let place = of_model(model);
        for (format, presets) in cases {
            for preset in presets {
                let save = ["--save-ranges", "ranges", "--ranges-format", format, "--overwrite"];
                place.succeed(&line(preset, "first.onnx", &[&DATA[..], &save].concat()));
                let saved = bytes(&place, "ranges");
                let again = ["--ranges", "ranges", "--save-ranges", "again", "--ranges-format", format, "--overwrite"];
                let run = check(&place, "quantize", &line(preset, "second.onnx", &again));
                assert!(bytes(&place, "first.onnx") == bytes(&place, "second.onnx"), "{model} {preset} {format}");
                assert!(saved == bytes(&place, "again"), "{model} {preset} {format}");
                assert_eq!((&run["ranges"]["format"], &run["engine"]), (&json!(format), &Value::Null));
                assert_eq!(run["saved_ranges"], json!({"path": place.path("again"), "format": format}));
            }
        }
    }
}

#[test]
fn scales_of_channels_and_options_are_kept() {
    let place = place();
    for options in [&["--per-channel"][..], &["--per-channel-activations", "--activation", "int16"]] {
        for file in ["r.encodings", "r.json"] {
            let first = line("A8W8", "first.onnx", &[options, &DATA, &["--save-ranges", file, "--overwrite"]].concat());
            place.succeed(&first);
            place.succeed(&line("A8W8", "second.onnx", &[options, &["--ranges", file, "--overwrite"]].concat()));
            assert!(bytes(&place, "first.onnx") == bytes(&place, "second.onnx"), "{options:?} {file}");
        }
    }
}

#[test]
fn plan_shows_the_file_and_what_it_lacks() {
    let place = place();
    place.succeed(&line("A8W8", "first.onnx", &[&DATA[..], &["--save-ranges", "r.json"]].concat()));
    let plan = ["plan", "float.onnx", "--preset", "A8W8", "--ranges", "r.json"];
    let run = place.succeed(&plan);
    assert!(run.stdout.contains(", 0 to observe on data\nranges of "), "{run:?}");
    assert!(run.stdout.contains(" from r.json\n") && !run.stdout.contains("needs:"), "{run:?}");
    let planned = check(&place, "plan", &plan);
    let hash = planned["ranges"]["xxh3_128"].as_str().unwrap();
    let mut given = planned["tensors"].as_array().unwrap().iter().filter(|tensor| tensor["scale"] == "given");
    assert!(hash.len() == 32 && planned["ranges"]["used"] == given.clone().count(), "{planned}");
    let first = given.next().unwrap()["name"].as_str().unwrap();
    // One is left out, and another name is added.
    let mut table: Value = serde_json::from_slice(&bytes(&place, "r.json")).unwrap();
    let tensors = table["data"].as_object_mut().unwrap();
    let entry = tensors.remove(first).unwrap();
    tensors.insert("nowhere".to_owned(), entry);
    std::fs::write(place.path("part.json"), table.to_string()).unwrap();
    let run = place.succeed(&["plan", "float.onnx", "--preset", "A8W8", "--ranges", "part.json"]);
    assert!(run.stdout.contains(", 1 to observe on data") && run.stdout.contains("needs: samples"), "{run:?}");
    assert!(run.stderr.contains("1 of its ") && run.stderr.contains("`nowhere` for one"), "{run:?}");
    assert!(run.stderr.contains(&format!("1 activation, `{first}` for one, without a range")), "{run:?}");
    let run = place.run(&line("A8W8", "second.onnx", &["--ranges", "part.json"]));
    assert!(run.code == Some(1) && run.stderr.contains(&format!("part.json has no range of `{first}`")), "{run:?}");
    assert!(run.stderr.contains("--data") && run.stderr.contains(&format!("--override '{first}=keep'")), "{run:?}");
    assert!(!place.path("second.onnx").exists());
    // With data, it is calibrated.
    place.succeed(&line("A8W8", "second.onnx", &[&DATA[..], &["--ranges", "part.json"]].concat()));
    assert!(bytes(&place, "first.onnx") == bytes(&place, "second.onnx"));
}

#[test]
fn ranges_for_codes_of_other_types_are_rescaled() {
    let place = place();
    let save = ["--save-ranges", "r.encodings"];
    place.succeed(&line("A8W8", "narrow.onnx", &[&DATA[..], &save].concat()));
    let run = place.succeed(&line("A16W8", "wide.onnx", &["--ranges", "r.encodings"]));
    assert!(run.stderr.contains("with other codes in the file"), "{run:?}");
    let eval = ["eval", "wide.onnx", "--reference", "float.onnx", "--data", "calib.npz", "--runtime", "rten", "--json"];
    let sqnr = |name: &str| {
        let eval: Vec<&str> = eval.iter().map(|word| if *word == "wide.onnx" { name } else { word }).collect();
        place.succeed(&eval).json()["outputs"][0]["sqnr_db"].as_f64().unwrap()
    };
    assert!(sqnr("wide.onnx") > sqnr("narrow.onnx") + 2.0);
    // A symmetric range needs the Relu that codes from zero on replace.
    place.succeed(&line("A8W8", "again.onnx", &[&DATA[..], &["--save-ranges", "r.cache"]].concat()));
    place.succeed(&line("U8S8_AAWS", "unsigned.onnx", &["--ranges", "r.cache"]));
    assert!(sqnr("unsigned.onnx") > 20.0, "{}", sqnr("unsigned.onnx"));
}

#[test]
fn unusable_files_and_settings_are_refused_before_the_work() {
    let place = place();
    place.succeed(&line("A8W8", "first.onnx", &[&DATA[..], &["--save-ranges", "r.json"]].concat()));
    for (name, text) in [
        ("prose.txt", "no ranges here"),
        ("nan.json", r#"{"x": [NaN, 1]}"#),
        ("swapped.json", r#"{"x": [2, 1]}"#),
        ("others.json", r#"{"layers.0.inputs": [0, 1], "b": [0, 1]}"#),
        ("layers.json", r#"{"activation_encodings": {"conv1": {"input": {"0": {"bitwidth": 8}}}}}"#),
    ] {
        std::fs::write(place.path(name), text).unwrap();
    }
    let before = names(&place.path("."));
    let data = |more: &[&'static str]| [&DATA[..], more].concat();
    for (preset, more, code, told) in [
        ("A8W8", vec!["--ranges", "prose.txt"], 1, "prose.txt: it is no file of ranges"),
        ("A8W8", vec!["--ranges", "nan.json"], 1, "nan.json: it is not JSON"),
        ("A8W8", vec!["--ranges", "swapped.json"], 1, "swapped.json: `x`: the range from 2 to 1 is empty"),
        ("A8W8", vec!["--ranges", "others.json"], 1, "others.json has no tensor of the model: it has `b`"),
        ("A8W8", vec!["--ranges", "layers.json"], 1, "NAME_torch.encodings"),
        ("A8W8", vec!["--ranges", "none.json"], 2, "there is no such file"),
        ("A8W8", vec!["--ranges", "."], 2, "is a directory"),
        ("WEIGHTS_INT8", vec!["--ranges", "r.json"], 2, "--ranges and --preset WEIGHTS_INT8"),
        ("UINT8_DYNAMIC_QUANT", vec!["--ranges", "r.json"], 2, "--ranges and --preset"),
        ("BF16", vec!["--ranges", "r.json"], 2, "--ranges and bfloat16 activations"),
        ("WEIGHTS_INT8", vec!["--save-ranges", "new.json"], 2, "--save-ranges has nothing to write"),
        ("FP8", data(&["--save-ranges", "new.encodings"]), 1, "does not express fp8_e4m3 codes"),
        ("A8W8", data(&["--save-ranges", "new"]), 2, "--ranges-format: aimet, "),
        (
            "A8W8",
            data(&["--save-ranges", "prose.txt", "--ranges-format", "aimet", "--overwrite"]),
            1,
            "no file of ranges",
        ),
        ("A8W8", data(&["--save-ranges", "r.json"]), 1, "r.json exists already"),
        ("A8W8", data(&["--ranges", "r.json", "--save-ranges", "r.json", "--overwrite"]), 2, "r.json"),
        ("A8W8", data(&["--ranges-format", "aimet"]), 2, "--save-ranges"),
    ] {
        let run = place.run(&line(preset, "new.onnx", &more));
        assert!(run.code == Some(code) && run.stderr.contains(told), "{preset} {more:?}: {run:?}");
    }
    assert_eq!(names(&place.path(".")), before);
    let checkpoint = Place::new();
    let run = checkpoint.run(&[
        "quantize",
        "nano_llama",
        "--scheme",
        "fp8",
        "--ranges",
        "nano_llama/config.json",
        "-o",
        "out",
    ]);
    assert!(run.code == Some(2) && run.stderr.contains("--ranges"), "{run:?}");
}
