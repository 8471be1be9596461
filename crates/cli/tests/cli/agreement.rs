//! What a run refuses before its work, its plan refuses too, with the same exit code and the same words.

use crate::kvant::{Place, copy_dir, nano_llama};
use crate::onnx;
use serde_json::json;
use std::fs;

/// Runs `kvant plan` and `kvant quantize`, with and without `--dry-run`, on the same options. All of them are refused.
fn refused(place: &Place, options: &[&str], code: i32, told: &str) {
    let commands: [&[&str]; 3] = [&["plan"], &["quantize"], &["quantize", "--dry-run"]];
    let runs = commands.map(|command| place.run(&[command, options].concat()));
    for run in &runs {
        assert!(run.code == Some(code) && run.stderr.contains(told), "{options:?}: {run:?}");
        assert!(run.stderr.contains("hint: "), "{options:?}: {run:?}");
    }
    let error = |at: usize| runs[at].stderr.lines().filter(|line| !line.starts_with("note: ")).collect::<Vec<_>>();
    assert_eq!(error(0), error(1), "{options:?}");
    assert_eq!(error(0), error(2), "{options:?}");
}

fn graph<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [&["float.onnx", "--preset", "A8W8", "--runtime", "rten"], options].concat()
}

#[test]
fn plans_refuse_graphs_that_exist() {
    let place = onnx::place();
    place.succeed(&onnx::quantize(&[]));
    place.write("stray.onnx.data", "mine");
    place.write("notes.onnx", "mine");
    fs::create_dir(place.path("both")).unwrap();
    fs::copy(place.path("float.onnx"), place.path("both/qdq.onnx")).unwrap();
    let both = ["--graph-format", "qdq", "--graph-format", "qoperator", "-o", "both"];
    let cases: [(&[&str], &str); 5] = [
        (&["-o", "out.onnx"], "out.onnx exists already"),
        (&["-o", "notes.onnx", "--overwrite"], "it is not an ONNX graph"),
        (&["-o", "stray.onnx"], "stray.onnx.data exists, and the graph next to it does not use it"),
        (&both, "both/qdq.onnx exists already"),
        (&[&both[..], &["--overwrite"]].concat(), "both/qdq.onnx exists already, and Kvant has not made it"),
    ];
    for (options, told) in cases {
        refused(&place, &graph(&[&["--data", "calib.npz"], options].concat()), 1, told);
    }
    place.succeed(&[&["plan"], &graph(&["-o", "out.onnx", "--overwrite"])[..]].concat());
}

/// A file of `.npy` with a header and so many bytes of values.
fn npy(path: &std::path::Path, descr: &str, shape: &str, bytes: usize) {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let header = format!("{header:<117}\n");
    let start = [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat();
    fs::write(path, [start, vec![0; bytes]].concat()).unwrap();
}

#[test]
fn plans_look_at_the_samples_of_graphs() {
    let place = onnx::place();
    let whole = fs::read(place.path("calib.npz")).unwrap();
    fs::write(place.path("cut.npz"), &whole[..whole.len() / 2]).unwrap();
    npy(&place.path("none.npy"), "<f4", "(0, 3, 16, 16)", 0);
    npy(&place.path("shape.npy"), "<f4", "(2, 5)", 40);
    npy(&place.path("object.npy"), "|O", "(2,)", 16);
    place.write("text.txt", "Some text.");
    for (data, told) in [
        ("cut.npz", "cut.npz"),
        ("none.npy", "sample"),
        ("shape.npy", "shape.npy"),
        ("object.npy", "object.npy"),
        ("text.txt", "hint: "),
    ] {
        let options = graph(&["--data", data, "-o", "new.onnx"]);
        let runs = [&["plan"][..], &["quantize"], &["quantize", "--dry-run"]];
        let runs = runs.map(|command| place.run(&[command, &options[..]].concat()));
        for run in &runs {
            assert!(run.code == Some(1) && run.stderr.contains(told), "{data}: {run:?}");
        }
        let error = |at: usize| runs[at].stderr.lines().find(|line| line.starts_with("error: ")).unwrap().to_owned();
        assert_eq!(error(0), error(1), "{data}");
        assert_eq!(error(0), error(2), "{data}");
    }
    // A recipe without ranges from data is measured on them at most.
    place.succeed(&["plan", "float.onnx", "--preset", "WEIGHTS_INT8", "--data", "cut.npz"]);
}

#[test]
fn plans_refuse_limits_and_libraries_that_runs_cannot_use() {
    let place = onnx::place();
    place.write("no_library.so", "mine");
    let float16 = ["float.onnx", "--preset", "FP16_MODEL", "--min-sqnr", "100", "-o", "new.onnx"];
    refused(&place, &float16, 2, "--min-sqnr needs samples to measure the result on");
    let library = ["float.onnx", "--preset", "A8W8", "--data", "calib.npz", "-o", "new.onnx", "--runtime-library"];
    refused(&place, &[&library[..], &["./no_library.so"]].concat(), 1, "cannot be used as ONNX Runtime");
}

#[test]
fn plans_refuse_folders_in_the_place_of_a_pipeline() {
    let place = crate::pipelines::place();
    fs::create_dir(place.path("mine")).unwrap();
    place.write("mine/notes.txt", "mine");
    let line = ["pipe", "--scheme", "int8:channel", "-o"];
    place.succeed(&[&["quantize"], &line[..], &["out"]].concat());
    refused(&place, &[&line[..], &["out"]].concat(), 1, "out exists already");
    refused(&place, &[&line[..], &["mine", "--overwrite"]].concat(), 1, "mine exists already and cannot be replaced");
    refused(&place, &[&line[..], &["new.gguf"]].concat(), 2, "is the name of a file");
    place.succeed(&[&["plan"], &line[..], &["out", "--overwrite"]].concat());
}

#[test]
fn plans_look_for_the_tokenizer_that_text_needs() {
    let place = Place::new();
    place.write("text.txt", &"The iterator yields every element of the slice, in order. ".repeat(40));
    place.write("tokens.jsonl", "{\"input_ids\": [1, 2, 3]}\n");
    copy_dir(&nano_llama(), &place.path("bare"));
    fs::remove_file(place.path("bare/tokenizer.json")).unwrap();
    let line = ["bare", "-s", "int4:g32", "--no-verify", "-o", "out"];
    let missing = "bare/tokenizer.json is missing";
    refused(&place, &[&line[..], &["--algorithm", "gptq", "--calib", "text.txt"]].concat(), 1, missing);
    let eval =
        ["quantize", "bare", "-s", "int4:g32", "--no-verify", "--max-kl", "1", "--eval", "text.txt", "-o", "out"];
    let dry = place.run(&[&eval[..], &["--dry-run"]].concat());
    assert!(dry.code == Some(1) && dry.stderr.contains(missing), "{dry:?}");
    place.succeed(&["plan", "bare", "-s", "int4:g32", "--no-verify", "--algorithm", "gptq", "--calib", "tokens.jsonl"]);
    // The files of a model are no rows of data.
    let model = ["nano_llama", "-s", "int4:g32", "--algorithm", "gptq", "--calib", "bare", "-o", "out"];
    refused(&place, &model, 1, "generation_config.json");
}

#[test]
fn plans_skip_the_checks_of_verification_when_asked() {
    let place = Place::new();
    place.write("nano_llama/tokenizer.json", "{");
    let line = ["nano_llama", "-s", "int4:g32", "-o", "out"];
    refused(&place, &line, 1, "use --no-verify to continue anyway");
    place.succeed(&[&["plan"], &line[..], &["--no-verify"]].concat());
    place.succeed(&[&["quantize"], &line[..], &["--no-verify"]].concat());
}

#[test]
fn plans_warn_as_runs_do() {
    let place = Place::new();
    fs::remove_file(place.path("nano_llama/tokenizer.json")).unwrap();
    let line = ["nano_llama", "-s", "int4:g32", "-o", "out", "-q"];
    let plan = place.succeed(&[&["plan"], &line[..]].concat());
    let dry = place.succeed(&[&["quantize", "--dry-run"], &line[..]].concat());
    let run = place.succeed(&[&["quantize"], &line[..]].concat());
    assert!(run.stderr.starts_with("warning: tokenizer.json: there is no tokenizer"), "{run:?}");
    assert_eq!((&plan.stderr, &dry.stderr), (&run.stderr, &run.stderr));
}

#[test]
fn sizes_of_planned_graphs_are_marked_as_estimates() {
    let place = Place::new();
    let plan = |format| place.succeed(&["plan", "nano_llama", "-s", "int4:g32", "-f", format, "--json"]).json();
    for (format, is_estimate) in [("onnx", true), ("quark", false)] {
        let plan = plan(format);
        let both = (&plan["is_estimate"], &plan["outputs"][0]["is_estimate"]);
        assert_eq!(both, (&json!(is_estimate), &json!(is_estimate)), "{format}");
    }
}
