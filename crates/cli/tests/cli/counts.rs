//! Plans and summaries report the same counts, which match the written files.

use crate::kvant::{Place, Run};
use std::path::Path;

/// A file of the graphs that tests of `kvant-onnx` use.
pub(crate) fn graph_data(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data").join(name)
}

/// The line of a summary with this title.
fn line<'a>(text: &'a str, title: &str) -> &'a str {
    text.lines().find(|line| line.starts_with(title)).unwrap_or_else(|| panic!("{title}: {text}"))
}

#[test]
fn every_format_has_its_size_and_loaders() {
    let place = Place::new();
    let formats = ["--format", "awq", "--format", "compressed-tensors", "--format", "gguf", "--format", "onnx"];
    let options = ["quantize", "nano_llama", "--scheme", "int4:g32", "-o", "out"];
    let run = place.succeed(&[&options[..], &formats, &["--overwrite"]].concat());
    for told in
        ["vllm serve", "out/awq", "out/compressed-tensors", "llama-cli -m", "out/gguf/model.gguf", "onnxruntime"]
    {
        assert!(run.stderr.contains(told), "{told}: {}", run.stderr);
    }
    assert_eq!(run.stderr.lines().filter(|line| line.starts_with("size ")).count(), 4, "{}", run.stderr);
    let json = place.succeed(&[&options[..], &formats, &["--overwrite", "--json"]].concat()).json();
    let outputs = json["outputs"].as_array().unwrap();
    let inspected = |path: &str| place.succeed(&["inspect", path, "--json"]).json()["bytes"].clone();
    assert_eq!(outputs[2]["output_bytes"], inspected("out/gguf/model.gguf"));
    assert!(outputs.iter().all(|output| !output["loading"].as_array().unwrap().is_empty()), "{json}");
    let plan = ["plan", "nano_llama", "--scheme", "int4:g32"];
    let json = place.succeed(&[&plan[..], &formats, &["--json"]].concat()).json();
    let planned = json["outputs"].as_array().unwrap();
    assert_eq!(planned.len(), outputs.len());
    for (planned, made) in planned.iter().zip(outputs) {
        assert_eq!(planned["format"], made["format"]);
        let is_exact = made["format"] != "onnx";
        assert!(!is_exact || planned["output_bytes"] == made["output_bytes"], "{planned} {made}");
        assert!(!is_exact || planned["bits_per_weight"] == made["bits_per_weight"], "{planned} {made}");
        assert!(!planned["loaders"].as_array().unwrap().is_empty(), "{planned}");
    }
    // The intermediate checkpoint is not an output.
    let passing = place.succeed(&[&plan[..], &formats[4..], &["--json"]].concat()).json();
    let formats = passing["outputs"].as_array().unwrap().iter().map(|output| output["format"].as_str().unwrap());
    assert_eq!(formats.collect::<Vec<_>>(), ["gguf", "onnx"]);
}

/// The tokenizer is in the file of a GGUF model and beside the tensors of others: sizes are those of tensors.
#[test]
fn sizes_before_and_after_are_counted_alike_for_gguf_files_and_checkpoints() {
    let place = Place::new();
    let size = |model: &str| place.succeed(&["inspect", model, "--json"]).json()["bytes"].clone();
    let of = |args: &[&str]| {
        let object = place.succeed(&[args, &["--json"]].concat()).json();
        (object["source_bytes"].clone(), object["output_bytes"].clone())
    };
    let first = ["nano_llama", "--scheme", "F16"];
    let planned = of(&[&["plan"], &first[..]].concat());
    assert_eq!(of(&[&["quantize"], &first[..], &["-o", "f16.gguf"]].concat()), planned);
    assert_eq!(planned, (size("nano_llama"), size("f16.gguf")));
    let second = ["f16.gguf", "--scheme", "Q8_0"];
    let planned = of(&[&["plan"], &second[..]].concat());
    assert_eq!(of(&[&["quantize"], &second[..], &["-o", "q8.gguf"]].concat()), planned);
    assert_eq!(planned, (size("f16.gguf"), size("q8.gguf")));
    assert_eq!(of(&["convert", "q8.gguf", "--to", "gguf", "-o", "again.gguf"]), (size("q8.gguf"), size("again.gguf")));
}

#[test]
fn only_tensor_types_in_use_are_named() {
    let place = Place::new();
    let options = ["nano_llama", "--scheme", "Q4_K_M"];
    let plan = place.succeed(&[&["plan"], &options[..]].concat());
    let run = place.succeed(&[&["quantize"], &options[..], &["-o", "out.gguf"]].concat());
    // No weight of this model has a multiple of 256 columns.
    let told = line(&run.stderr, "tensors");
    assert!(!told.contains("to Q4_K") && told.contains("to Q5_0") && told.contains("the ftype is Q4_K_M"), "{told}");
    let counted = told.split(", ").next().unwrap().to_owned();
    assert!(plan.stdout.contains(&counted), "{counted}: {}", plan.stdout);
    let mixed = ["nano_llama", "--scheme", "int4:g32", "--override", "*.down_proj=int8:channel"];
    let run = place.succeed(&[&["quantize"], &mixed[..], &["-o", "out"]].concat());
    assert!(line(&run.stderr, "layers").contains("28 quantized: 24 to int4:g32, 4 to int8:channel"), "{}", run.stderr);
}

#[test]
fn plan_and_run_of_a_graph_give_equal_counts() {
    let place = Place::empty();
    for (preset, model, more) in
        [("MATMUL_NBITS", "tinytransformer.float.onnx", "Gather"), ("FP16_MODEL", "tinycnn.float.onnx", "Conv")]
    {
        std::fs::copy(graph_data(model), place.path("float.onnx")).unwrap();
        let options = ["float.onnx", "--preset", preset, "--more-op-types", more];
        let plan = place.succeed(&[&["plan"], &options[..], &["--json"]].concat()).json();
        let run = [&["quantize"], &options[..], &["-o", "out.onnx", "--overwrite"]].concat();
        let report = place.succeed(&[&run[..], &["--json"]].concat()).json()["report"].clone();
        for key in ["nodes", "quantized_nodes", "quantized_tensors"] {
            assert_eq!(plan[key], report[key], "{preset} {key}");
        }
        assert_eq!(plan["cost"]["constants"]["source_bytes"], report["constants"]["source_bytes"], "{preset}");
        if preset == "MATMUL_NBITS" {
            assert_eq!(plan["cost"]["constants"], report["constants"]);
        }
        let shown = place.succeed(&[&["plan"], &options[..]].concat()).stdout;
        let done: Run = place.succeed(&run);
        let counts =
            done.stderr.lines().find(|line| line.contains("nodes quantized")).unwrap().split(';').next().unwrap();
        assert!(counts.contains("nodes quantized") && shown.contains(counts), "{counts}: {shown}");
    }
}

#[test]
fn planned_graph_size_is_the_written_size() {
    let recipes: [&[&str]; 12] = [
        &["A8W8"],
        &["A8W4"],
        &["U8S8_AAWS", "--per-channel"],
        &["A16W8", "--per-channel-activations"],
        &["A8W8", "--bias", "int16"],
        &["XINT8"],
        &["FP8"],
        &["BF16"],
        &["FP16_MODEL"],
        &["BF16_MODEL"],
        &["INT8_DYNAMIC_QUANT"],
        &["WEIGHTS_INT8"],
    ];
    for model in ["tinycnn", "tinytransformer"] {
        let place = Place::empty();
        for (from, to) in [("float.onnx", "float.onnx"), ("calib.npz", "calib.npz")] {
            std::fs::copy(graph_data(&format!("{model}.{from}")), place.path(to)).unwrap();
        }
        for recipe in recipes {
            let options = [&["float.onnx", "--preset"], recipe, &["--json", "--data", "calib.npz"]].concat();
            let plan = place.succeed(&[&["plan"], &options[..]].concat()).json();
            let written = ["--runtime", "rten", "-o", "out.onnx", "--overwrite", "--no-verify"];
            let run = place.succeed(&[&["quantize"], &options[..], &written].concat()).json();
            assert_eq!(plan["is_estimate"], false, "{model} {recipe:?}");
            assert_eq!(plan["cost"]["constants"], run["report"]["constants"], "{model} {recipe:?}");
            assert_eq!(plan["quantized_tensors"], run["report"]["quantized_tensors"], "{model} {recipe:?}");
        }
    }
}

#[test]
fn sizes_include_external_data_and_counts_use_singular() {
    let place = Place::empty();
    std::fs::copy(graph_data("tinycnn.float.onnx"), place.path("float.onnx")).unwrap();
    std::fs::copy(graph_data("tinycnn.calib.npz"), place.path("calib.npz")).unwrap();
    place.succeed(&[
        "quantize",
        "float.onnx",
        "--preset",
        "FP16_MODEL",
        "--external-data",
        "always",
        "-o",
        "half.onnx",
    ]);
    // Files are found by the names that tensors refer to.
    std::fs::rename(place.path("half.onnx"), place.path("renamed.onnx")).unwrap();
    let run = place.succeed(&[
        "quantize",
        "float.onnx",
        "--preset",
        "A8W8",
        "--data",
        "calib.npz",
        "--num-samples",
        "1",
        "--runtime",
        "rten",
        "-o",
        "q.onnx",
    ]);
    assert!(run.stderr.contains("1 sample on"), "{}", run.stderr);
    let json = place.succeed(&["quantize", "renamed.onnx", "--preset", "BF16_MODEL", "-o", "b.onnx", "--json"]).json();
    let bytes = |name: &str| std::fs::metadata(place.path(name)).unwrap().len();
    assert_eq!(json["source_bytes"].as_u64(), Some(bytes("renamed.onnx") + bytes("half.onnx.data")), "{json}");
    let split = ["quantize", "float.onnx", "--preset", "WEIGHTS_INT8", "--external-data", "always", "-o", "s.onnx"];
    let json = place.succeed(&[&split[..], &["--runtime", "rten", "--json"]].concat()).json();
    assert_eq!(json["output_bytes"].as_u64(), Some(bytes("s.onnx") + bytes("s.onnx.data")), "{json}");
}
