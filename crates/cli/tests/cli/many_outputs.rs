//! Outputs beside a checkpoint, or in place of one: what is planned, replaced, kept and told of them.

use crate::kvant::{Place, names};
use std::fs;

const CODES: [&str; 3] = ["nano_llama", "--scheme", "int4:g32"];

#[test]
fn the_plan_of_a_file_of_codes_is_that_of_the_file() {
    let place = Place::new();
    for scheme in ["int4:g32", "nvfp4"] {
        let options = ["nano_llama", "--scheme", scheme, "--weights-only", "--format", "gguf", "--json"];
        let plan = place.succeed(&[&["plan"], &options[..]].concat()).json();
        assert_eq!((plan["export"].as_str(), plan["recipe"]["format"].as_str()), (Some("gguf"), Some("quark")));
        place.succeed(&[&["quantize"], &options[..], &["-o", "out.gguf", "--overwrite"]].concat());
        let made = place.succeed(&["inspect", "out.gguf", "--json"]).json();
        let types = |value: &serde_json::Value| -> Vec<(String, String)> {
            let tensors = value["tensors"].as_array().unwrap().iter();
            let text = |tensor: &serde_json::Value, key: &str| tensor[key].as_str().unwrap().to_owned();
            let mut all: Vec<_> = tensors.map(|tensor| (text(tensor, "name"), text(tensor, "type"))).collect();
            all.sort();
            all
        };
        assert_eq!(types(&plan), types(&made), "{scheme}");
        let len = fs::metadata(place.path("out.gguf")).unwrap().len();
        assert_eq!(plan["output_bytes"].as_u64(), Some(len), "{scheme}");
    }
    let shown = place.succeed(&[&["plan"], &CODES[..], &["--format", "gguf"]].concat());
    assert!(shown.stdout.contains("int4:g32, export gguf") && shown.stdout.contains("Q4_0"), "{}", shown.stdout);
}

#[test]
fn a_recipe_file_asks_for_gguf_by_itself() {
    let place = Place::new();
    place.write("recipe.toml", "version = 1\nscheme = \"int4:g32\"\nformat = \"gguf\"\n");
    place.succeed(&["quantize", "nano_llama", "--recipe", "recipe.toml", "-o", "by_file.gguf"]);
    place.succeed(&[&["quantize"], &CODES[..], &["--format", "gguf", "-o", "by_options.gguf"]].concat());
    let bytes = |name: &str| fs::read(place.path(name)).unwrap();
    assert!(bytes("by_file.gguf") == bytes("by_options.gguf"));
    let plan = place.succeed(&["plan", "nano_llama", "--recipe", "recipe.toml", "--json"]).json();
    assert_eq!(plan["export"], "gguf");
}

#[test]
fn a_graph_of_somebody_else_in_the_directory_is_not_replaced() {
    let place = Place::new();
    let quantize = [&["quantize"], &CODES[..], &["--format", "awq", "--format", "onnx", "-o", "out"]].concat();
    let overwrite = [&quantize[..], &["--overwrite"]].concat();
    fs::create_dir_all(place.path("out/onnx")).unwrap();
    place.write("out/onnx/model.onnx", "mine");
    for line in [&quantize, &overwrite] {
        let refused = place.run(line);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains("model.onnx") && refused.stderr.contains("hint"), "{}", refused.stderr);
    }
    assert_eq!(fs::read_to_string(place.path("out/onnx/model.onnx")).unwrap(), "mine");
    fs::remove_file(place.path("out/onnx/model.onnx")).unwrap();
    place.succeed(&quantize);
    place.succeed(&overwrite);
}

#[test]
fn what_calibration_found_stands_beside_a_file_and_a_graph() {
    let place = Place::new();
    place.write("text.txt", &"The iterator yields every element of the slice, in order. ".repeat(200));
    let data = ["--algorithm", "gptq", "--calib", "text.txt", "--num-samples", "4", "--seq-len", "32"];
    for (format, file) in [("gguf", "a.gguf"), ("onnx", "b.onnx")] {
        place.succeed(&[&["quantize"], &CODES[..], &data, &["--format", format, "-o", file]].concat());
    }
    let expected = ["a.calibration.json", "a.gguf", "b.calibration.json", "b.onnx", "nano_llama", "text.txt"];
    assert_eq!(names(&place.path("")), expected);
    let record: serde_json::Value =
        serde_json::from_slice(&fs::read(place.path("a.calibration.json")).unwrap()).unwrap();
    assert_eq!((record["algorithms"].as_str(), record["layers"].as_array().map(Vec::len)), (Some("gptq"), Some(28)));
    place.write("c.calibration.json", "notes");
    let refused = place.run(&[&["quantize"], &CODES[..], &data, &["--format", "gguf", "-o", "c.gguf"]].concat());
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("c.calibration.json") && !place.path("c.gguf").exists(), "{}", refused.stderr);
}

#[test]
fn a_checkpoint_that_is_left_behind_is_named() {
    let place = Place::new();
    let quantize = [&["quantize"], &CODES[..], &["--format", "gguf", "-o", "out.gguf"]].concat();
    // Somebody else writes the file: that is found when the codes have been made.
    let journal = fs::File::create(place.path("out.gguf.partial.journal")).unwrap();
    journal.lock().unwrap();
    let run = place.run(&quantize);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(names(&place.path("")).contains(&".out.gguf.kvant-checkpoint".to_owned()), "{run:?}");
    assert!(run.stderr.contains("the same command goes on from"), "{}", run.stderr);
    assert!(run.stderr.contains(".out.gguf.kvant-checkpoint"), "{}", run.stderr);
    drop(journal);
    place.succeed(&quantize);
    assert_eq!(names(&place.path("")), ["nano_llama", "out.gguf"]);
}

#[test]
fn an_output_of_another_recipe_that_is_given_up_is_told() {
    let place = Place::new();
    let journal = "{\"kvant_journal\":1,\"plan\":\"another\"}\n{\"job\":0,\"pieces\":[]}\n";
    for (name, args) in [("out", &[][..]), ("out.gguf", &["--format", "gguf"][..])] {
        let hidden = if args.is_empty() { name.to_owned() } else { format!(".{name}.kvant-checkpoint") };
        fs::create_dir(place.path(&format!("{hidden}.partial"))).unwrap();
        fs::create_dir(place.path(&format!("{hidden}.partial.blocks"))).unwrap();
        place.write(&format!("{hidden}.partial.journal"), journal);
        let run = place.succeed(&[&["quantize"], &CODES[..], args, &["-o", name]].concat());
        let told = run.stderr.lines().filter(|line| line.contains("is discarded")).collect::<Vec<_>>();
        assert_eq!(told.len(), 1, "{}", run.stderr);
        assert!(told[0].contains(&format!("{hidden}.partial.blocks and {hidden}.partial")), "{told:?}");
    }
    assert_eq!(names(&place.path("")), ["nano_llama", "out", "out.gguf"]);
    let again = place.succeed(&[&["quantize"], &CODES[..], &["-o", "out", "--overwrite"]].concat());
    assert!(!again.stderr.contains("discarded"), "{}", again.stderr);
}
