//! ONNX graphs at the command line.

use crate::kvant::{Place, names};
use kvant_container::onnx::{self, DataType, ExternalData, ValueInfoProto};
use kvant_onnx::graph::{add_opset, node};
use kvant_onnx::shape::{Dim, ValueType};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

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

#[test]
fn patterns_without_effect_are_reported() {
    for (options, told) in [
        (["--exclude-op-types", "Conw"], "--exclude-op-types Conw names no operator of the model"),
        (["--more-op-types", "Cnov"], "--more-op-types Cnov names no operator of the model"),
        (["--op-types", "Gemm,Cnov"], "--op-types Cnov names no operator of the model"),
        (["--op-types", "Cnov"], "hint: did you mean Conv?"),
        (["--nodes", "nothing*"], "--nodes nothing* matches no node"),
        (["-x", "nothing*"], "--exclude nothing* matches no node"),
        (["--override", "nil=keep"], "--override nil matches no tensor"),
        (["--override", "nil=int16"], "--override nil matches no tensor"),
    ] {
        let refused = place().run(&quantize(&options));
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains(told) && refused.stderr.contains("hint: "), "{refused:?}");
    }
    for (options, told) in [
        (["-x", "conw*"], "--exclude conw* matches no node"),
        (["--override", "nil=int16"], "--override nil matches no tensor"),
    ] {
        let refused = place().run(&[&SENSITIVITY[..], &options].concat());
        assert!(refused.code == Some(1) && refused.stderr.contains(told), "{refused:?}");
        assert!(refused.stderr.contains("hint: "), "{refused:?}");
    }
}

#[test]
fn options_without_effect_are_refused() {
    let place = place();
    for (options, told) in [
        (
            &["--percentile", "99", "--calibration-method", "minmax"][..],
            ["--percentile", "--calibration-method minmax"],
        ),
        (&["--preprocess", "size=8"], ["--preprocess", "--data"]),
        (&["--runtime-library", "lib.so"], ["--runtime-library", "--runtime rten"]),
    ] {
        let run = place.run(&quantize(options));
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(told.iter().all(|told| run.stderr.contains(told)) && run.stderr.contains("hint: "), "{run:?}");
        assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx"]);
    }
    place.succeed(&quantize(&["--percentile", "99", "--calibration-method", "auto"]));
    let eval = ["eval", "out.onnx", "--reference", "float.onnx", "--data", "calib.npz", "--runtime", "rten"];
    let run = place.run(&[&eval[..], &["--runtime-library", "lib.so"]].concat());
    assert!(run.code == Some(2) && run.stderr.contains("--runtime rten"), "{run:?}");
    let run = place.run(&[&eval[..], &["--preprocess", "size=8"]].concat());
    assert!(run.code == Some(2) && run.stderr.contains("--preprocess"), "{run:?}");
}

#[test]
fn missing_runtime_library_is_a_usage_error() {
    let place = place();
    let mut line = quantize(&["--runtime-library", "none/libonnxruntime.so"]);
    let engine = line.iter().position(|word| *word == "rten").unwrap();
    line[engine] = "ort";
    let run = place.run(&line);
    assert!(run.code == Some(2) && run.stderr.contains("there is no such file"), "{run:?}");
}

#[test]
fn infinite_weights_are_refused_first() {
    let place = place();
    let mut model = onnx::read(&place.path("float.onnx")).unwrap();
    let graph = model.graph.as_mut().unwrap();
    let name = graph.node.iter().find(|node| node.op_type() == "Conv").unwrap().input[1].clone();
    let weight = graph.initializer.iter_mut().find(|tensor| tensor.name() == name).unwrap();
    let mut bytes = onnx::tensor_bytes(weight).unwrap().to_vec();
    bytes[4..8].copy_from_slice(&f32::INFINITY.to_le_bytes());
    onnx::set_contents(weight, bytes);
    onnx::write(model, &place.path("float.onnx"), ExternalData::Auto).unwrap();
    for preset in ["A8W8", "WEIGHTS_INT8"] {
        let run = place.run(&["quantize", "float.onnx", "--preset", preset, "--data", "calib.npz", "-o", "out.onnx"]);
        assert!(run.code == Some(1) && run.stderr.contains("has an infinite value at element 1"), "{run:?}");
    }
}

#[test]
fn int4_types_raise_the_ir_version() {
    let place = place();
    let mut model = onnx::read(&place.path("float.onnx")).unwrap();
    model.ir_version = Some(8);
    onnx::write(model, &place.path("float.onnx"), ExternalData::Auto).unwrap();
    place.succeed(&quantize(&["--weight", "int4", "--form", "microsoft"]));
    assert_eq!(onnx::read(&place.path("out.onnx")).unwrap().ir_version, Some(10));
}

#[test]
fn nothing_quantized_is_an_error_with_reasons() {
    let place = place();
    let ops = ["--op-types", "Relu", "--exclude-op-types", "Relu"];
    let run = place.run(&quantize(&ops));
    assert!(
        run.code == Some(1) && run.stderr.contains("no node of the model is quantized by this recipe\n"),
        "{run:?}"
    );
    let mut model = onnx::read(&place.path("float.onnx")).unwrap();
    let graph = model.graph.as_mut().unwrap();
    let input = graph.input[0].name().to_owned();
    let huge = onnx::tensor("huge", DataType::FLOAT, &[], 1e30f32.to_le_bytes().to_vec());
    let first = graph.node.iter_mut().find(|node| node.input.first() == Some(&input)).unwrap();
    first.input[0] = "scaled".to_owned();
    let conv = first.name().to_owned();
    graph.node.insert(0, node("Mul", "scale", &[&input, "huge"], &["scaled"]));
    graph.initializer.push(huge);
    onnx::write(model, &place.path("huge.onnx"), ExternalData::Auto).unwrap();
    let options = ["huge.onnx", "--preset", "A8W8", "--nodes", conv.as_str(), "--nodes", "scale"];
    let run = place.run(&[&["plan"], &options[..]].concat());
    assert!(run.code == Some(1) && run.stderr.contains("values beyond 1e30"), "{run:?}");
    // Data stay in float there, whatever they are.
    let plan = place.succeed(&["plan", "huge.onnx", "--preset", "WEIGHTS_INT8", "--nodes", conv.as_str(), "--json"]);
    assert_eq!(plan.json()["quantized_nodes"], 1);
}

#[test]
fn recipe_named_like_a_graph_is_refused() {
    let place = place();
    let run = place.run(&[&SENSITIVITY[..], &["--target-sqnr", "20", "-o", "mixed.onnx"]].concat());
    assert!(run.code == Some(2) && run.stderr.contains("mixed.onnx") && run.stderr.contains(".toml"), "{run:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn unwritable_report_leaves_no_graph() {
    let place = place();
    let run = place.run(&quantize(&["--report", "/dev/full"]));
    assert!(run.code == Some(1) && run.stderr.contains("/dev/full"), "{run:?}");
    // Results are kept for a run with another report.
    let left = ["calib.npz", "float.onnx", "out.onnx.partial.blocks", "out.onnx.partial.journal"];
    assert_eq!(names(&place.path("")), left);
    let run = place.succeed(&quantize(&["--report", "r.json"]));
    assert!(run.stderr.contains("resuming with the statistics"), "{run:?}");
    assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx", "out.onnx", "r.json"]);
}

#[test]
fn invalid_graphs_and_data_are_refused_with_hints() {
    let place = place();
    let cut = |name: &str, to: &str| {
        let bytes = std::fs::read(place.path(name)).unwrap();
        std::fs::write(place.path(to), &bytes[..bytes.len() / 2]).unwrap();
    };
    cut("float.onnx", "cut.onnx");
    cut("calib.npz", "cut.npz");
    std::fs::create_dir(place.path("dir.onnx")).unwrap();
    let refused = |args: &[&str], told: &[&str]| {
        let run = place.run(args);
        assert_eq!(run.code, Some(if told[0] == "--data" { 2 } else { 1 }), "{run:?}");
        assert!(told.iter().all(|told| run.stderr.contains(told)) && run.stderr.contains("hint: "), "{run:?}");
    };
    refused(&["plan", "cut.onnx", "--preset", "A8W8"], &["cut short", "cut.onnx"]);
    refused(&["plan", "dir.onnx", "--preset", "A8W8"], &["is not a regular file", "name a file that ends with .onnx"]);
    let with = |data: &'static str| [&QUANTIZE[..5], &[data, "-o", "out.onnx"]].concat();
    refused(&with("cut.npz"), &["cut short", "numpy.savez"]);
    refused(&with("nothing.npz"), &["--data", "nothing.npz"]);
}

#[test]
fn missing_arrays_are_named_with_their_purpose() {
    let place = place();
    place.succeed(&quantize(&[]));
    let eval = ["eval", "out.onnx", "--reference", "float.onnx", "--data", "calib.npz", "--labels", "nope"];
    let run = place.run(&eval);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stderr.contains("no array `nope` of labels") && run.stderr.contains("--labels"), "{run:?}");
}

#[test]
fn method_chosen_by_auto_is_reported() {
    let run = place().succeed(&quantize(&["--calibration-method", "auto", "--json"]));
    let tensors = run.json()["report"]["tensors"].as_array().unwrap().clone();
    let own = tensors.iter().filter(|t| t["role"] == "activation" && t["shares"].is_null());
    let taken: Vec<&str> = own.map(|tensor| tensor["method"].as_str().unwrap()).collect();
    assert!(taken.len() > 3 && taken.contains(&"mse"), "{taken:?}");
    assert!(run.stderr.is_empty() || run.stderr.contains("by mse"), "{run:?}");
    let run = place().succeed(&quantize(&[]));
    assert!(!run.stderr.contains("ranges found by"), "{run:?}");
}

#[test]
fn integer_io_is_evaluated_with_its_scales() {
    let place = place();
    place.succeed(&quantize(&[]));
    let sqnr = |name: &str| {
        let args = ["eval", name, "--reference", "float.onnx", "--data", "calib.npz", "--runtime", "rten", "--json"];
        place.succeed(&args).json()["outputs"][0]["sqnr_db"].as_f64().unwrap()
    };
    let pairs = sqnr("out.onnx");
    place.succeed(&quantize(&["--boundary", "integer"]));
    assert!((sqnr("out.onnx") - pairs).abs() < 1e-6, "{pairs}");
}

const SENSITIVITY: [&str; 8] =
    ["sensitivity", "float.onnx", "--preset", "A8W4", "--data", "calib.npz", "--runtime", "rten"];

#[test]
fn mixed_precision_recipe_is_found_and_reproduced() {
    let place = place();
    let plain = place.succeed(&[&SENSITIVITY[..], &["--json"]].concat()).json();
    assert!(plain["mix"].is_null() && plain["layers"].as_array().unwrap().len() > 4, "{plain}");
    let target = format!("{}", plain["recipe"]["sqnr_db"].as_f64().unwrap() + 5.0);
    let search = [&SENSITIVITY[..], &["--target-sqnr", &target, "-o", "mixed.toml"]].concat();
    let run = place.succeed(&search);
    assert!(run.stdout.contains("chosen") && run.stderr.contains("layers raised"), "{run:?}");
    let recipe = ["quantize", "float.onnx", "--recipe", "mixed.toml", "--data", "calib.npz", "--runtime", "rten"];
    let bytes = |name: &str| {
        place.succeed(&[&recipe[..], &["-o", name]].concat());
        std::fs::read(place.path(name)).unwrap()
    };
    assert_eq!(bytes("a.onnx"), bytes("b.onnx"));
    let args = ["eval", "a.onnx", "--reference", "float.onnx", "--data", "calib.npz", "--runtime", "rten", "--json"];
    let sqnr = place.succeed(&args).json()["outputs"][0]["sqnr_db"].as_f64().unwrap();
    assert!(sqnr >= target.parse::<f64>().unwrap() - 0.01, "{sqnr} {target}");
    assert_eq!(place.run(&search).code, Some(1));
}

#[test]
fn impossible_searches_are_refused() {
    let place = place();
    for (options, told) in [
        (&["-o", "mixed.toml"][..], "a recipe can be written only for a target"),
        (&["--max-drop", "1"], "--max-drop needs the classes"),
        (&["--target-size", "12"], "is not a size"),
        (&["--candidates", "A9W9"], "is not a candidate"),
        (&["--target-sqnr", "20", "--max-drop", "1"], "cannot be used with"),
    ] {
        let run = place.run(&[&SENSITIVITY[..], options].concat());
        assert!(run.code == Some(2) && run.stderr.contains(told), "{run:?}");
    }
    std::fs::create_dir(place.path("directory")).unwrap();
    let run = place.run(&["sensitivity", "directory", "--preset", "int8", "--data", "calib.npz"]);
    assert!(run.stderr.contains("only the layers of ONNX graphs can be measured"), "{run:?}");
}

#[test]
fn graph_recipe_equals_options() {
    let place = place();
    std::fs::write(place.path("r.toml"), "version = 1\npreset = \"A8W8\"\nper_channel = true\n").unwrap();
    let rest = ["--data", "calib.npz", "--runtime", "rten", "--overwrite", "-o", "out.onnx"];
    let bytes = |options: &[&str]| {
        place.succeed(&[&["quantize", "float.onnx"], options, &rest].concat());
        std::fs::read(place.path("out.onnx")).unwrap()
    };
    let by_options = bytes(&["--preset", "A8W8", "--per-channel"]);
    assert_eq!(bytes(&["--recipe", "r.toml"]), by_options);
    assert_ne!(bytes(&["--recipe", "r.toml", "--weight", "int4"]), by_options);
    std::fs::write(place.path("r.toml"), "version = 2\nscheme = \"A8W8\"\nper-channel = true\n").unwrap();
    assert_eq!(bytes(&["--recipe", "r.toml"]), by_options);
    for (text, code, named) in [
        ("version = 2\nscheme = \"A8W8\"\nkv_cache = \"fp8\"\n", 1, "r.toml: `kv_cache` does not apply to ONNX graphs"),
        ("version = 2\nscheme = \"A8W8\"\nboundry = \"float\"\n", 2, "did you mean `boundary`?"),
        ("version = 2\nscheme = \"W8A8\"\n", 1, "no graph expresses the scheme `W8A8`"),
    ] {
        place.write("r.toml", text);
        let run = place.run(&["quantize", "float.onnx", "--recipe", "r.toml", "-o", "no.onnx"]);
        assert!(run.code == Some(code) && run.stderr.contains(named) && run.stderr.contains("hint:"), "{run:?}");
    }
}

#[test]
fn one_recipe_means_the_same_for_checkpoint_and_graph() {
    let place = Place::new();
    let graph = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data/tinytransformer.float.onnx");
    std::fs::copy(graph, place.path("float.onnx")).unwrap();
    let (excluded, narrow) = ("re:(mm_fc.|.*(down_proj|up_proj|gate_proj))$", "re:(mm_fc2|.*down_proj)$");
    let rules = format!(
        "scheme = \"int8:channel\"\nexclude = [\"{excluded}\"]\n\n[[override]]\nlayers = \"{narrow}\"\nscheme = \"int4:channel\"\n"
    );
    place.write("old.toml", &format!("version = 1\n{rules}"));
    place.write("new.toml", &format!("version = 2\n{rules}"));
    let plan = |model: &str, options: &[&str]| {
        place.succeed(&[&["plan", model, "--json"], options].concat()).json()["tensors"].clone()
    };

    let weights = |options: &[&str]| -> Vec<String> {
        let tensors = plan("float.onnx", options);
        let weights = tensors.as_array().unwrap().iter().filter(|tensor| tensor["role"] == "weight");
        weights.map(|tensor| tensor["dtype"].as_str().unwrap().to_owned()).collect()
    };
    let of_type = |list: &[String], dtype: &str| list.iter().filter(|found| *found == dtype).count();
    let all = weights(&["--scheme", "int8:channel"]);
    let (old, new) = (weights(&["--recipe", "old.toml"]), weights(&["--recipe", "new.toml"]));
    assert_eq!((of_type(&old, "int8"), of_type(&old, "int4")), (all.len() - 2, 0), "{old:?}");
    assert_eq!((of_type(&new, "int8"), of_type(&new, "int4")), (all.len() - 2, 1), "{new:?}");

    let (keep, wide) = (format!("{excluded}=keep"), format!("{narrow}=int4:channel"));
    let scheme = ["-s", "int8:channel", "--override"];
    let checkpoint = |options: &[&str]| plan("nano_llama", options);
    assert_eq!(
        checkpoint(&["--recipe", "new.toml"]),
        checkpoint(&[&scheme[..], &[&keep, "--override", &wide]].concat())
    );
    assert_eq!(checkpoint(&["--recipe", "old.toml"]), checkpoint(&[&scheme[..], &[&wide, "-x", excluded]].concat()));
    assert_ne!(checkpoint(&["--recipe", "new.toml"]), checkpoint(&["--recipe", "old.toml"]));
}

/// Whether this process was started, as by `nohup`, with one of these signals ignored, which its children inherit: all of them
/// stay as they are then.
#[cfg(unix)]
fn ignores_signals() -> bool {
    const HANG_UP_INTERRUPT_TERMINATE: u64 = 1 | 1 << 1 | 1 << 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    ignored & HANG_UP_INTERRUPT_TERMINATE != 0
}

#[cfg(unix)]
#[test]
fn signals_leave_no_files() {
    use std::process::{Command, Stdio};
    if ignores_signals() {
        return;
    }
    for (signal, code) in [("-TERM", 143), ("-HUP", 129), ("-INT", 130)] {
        let place = place();
        let mut args = quantize(&["--num-samples", "100000000"]);
        args[5] = "random";
        let mut child = place.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Long enough to have come to the samples, of which there are too many to end, on a busy machine too.
        std::thread::sleep(std::time::Duration::from_millis(6000));
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx"]);
    }
}

/// The model at `from` with constants of these names, each of which makes an output of its own.
fn with_taken_names(from: &Path, taken: &BTreeSet<String>, to: &Path) {
    let mut model = onnx::read(from).unwrap();
    let graph = model.graph.as_mut().unwrap();
    for (i, name) in taken.iter().enumerate() {
        let output = format!("taken{i}");
        let one = onnx::tensor(name, DataType::FLOAT, &[1], 1.5f32.to_le_bytes().to_vec());
        graph.initializer.push(one);
        graph.node.push(node("Abs", &output, &[name], &[&output]));
        graph.output.push(ValueInfoProto { name: Some(output), ..graph.output[0].clone() });
    }
    onnx::write(model, to, ExternalData::Auto).unwrap();
}

fn names_of_tensors(path: &Path) -> BTreeSet<String> {
    let graph = onnx::read(path).unwrap().graph;
    let constants = graph.initializer.iter().map(|tensor| tensor.name().to_owned());
    constants.chain(graph.node.iter().flat_map(|node| node.output.clone())).collect()
}

#[test]
fn existing_tensor_names_are_not_reused() {
    let layouts: [&[&str]; 4] = [
        &["--preset", "A8W8", "--data", "calib.npz"],
        &["--preset", "U8S8_AAWS", "--layout", "qoperator", "--data", "calib.npz"],
        &["--preset", "UINT8_DYNAMIC_QUANT"],
        &["--preset", "MATMUL_NBITS"],
    ];
    for model in ["tinycnn", "tinytransformer"] {
        let place = Place::empty();
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data");
        for (from, to) in [("float.onnx", "float.onnx"), ("calib.npz", "calib.npz")] {
            std::fs::copy(data.join(format!("{model}.{from}")), place.path(to)).unwrap();
        }
        let sqnr = |float: &str, out: &str| {
            let eval = ["eval", out, "--reference", float, "--data", "calib.npz", "--runtime", "rten", "--json"];
            let run = place.run(&eval);
            // The embedded engine has no operators of integers; that the graph is sound was verified when it was written.
            (run.code == Some(0)).then(|| run.json()["outputs"][0]["sqnr_db"].as_f64())
        };
        for layout in layouts {
            let quantize = |float: &str, out: &str, without: &[&str]| {
                let to = ["--runtime", "rten", "-o", out, "--overwrite"];
                place.succeed(&[&["quantize", float][..], layout, without, &to].concat());
            };
            quantize("float.onnx", "out.onnx", &[]);
            let before = names_of_tensors(&place.path("float.onnx"));
            let new = names_of_tensors(&place.path("out.onnx")).difference(&before).cloned().collect();
            with_taken_names(&place.path("float.onnx"), &new, &place.path("taken.onnx"));
            quantize("taken.onnx", "taken_out.onnx", &["--exclude-op-types", "Abs"]);
            let (free, taken) = (sqnr("float.onnx", "out.onnx"), sqnr("taken.onnx", "taken_out.onnx"));
            assert_eq!(free, taken, "{model} {layout:?}, {} names", new.len());
            assert!(free.is_some() || layout[1] != "A8W8", "{model} is evaluated");
        }
    }
}

#[test]
fn results_are_measured_before_they_are_placed() {
    let place = place();
    let run = place.succeed(&quantize(&["--num-samples", "3", "--report", "r.json"]));
    assert!(run.stderr.contains("measured on 1 held-out sample,"), "{run:?}");
    assert!(run.stderr.contains("SQNR") && run.stderr.contains("cosine") && !run.stderr.contains("warning"), "{run:?}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(place.path("r.json")).unwrap()).unwrap();
    let quality = &report["quality"];
    assert_eq!((quality["samples_from"].as_str(), quality["samples"].as_u64()), (Some("held-out"), Some(1)));
    assert!(quality["outputs"][0]["sqnr_db"].as_f64().unwrap() > 20.0, "{quality}");
    let all = place.succeed(&quantize(&["--json"])).json();
    assert_eq!(all["quality"]["samples_from"], "calibration");
    assert_eq!(all["quality"]["samples"], 4);
    assert!(all["quality"]["warnings"].as_array().unwrap().is_empty(), "{all}");
    let blind = ["quantize", "float.onnx", "--preset", "WEIGHTS_INT8", "-o", "w.onnx", "--runtime", "rten"];
    assert!(place.succeed(&blind).stderr.contains("was not measured: there are no data"));
    let given =
        place.succeed(&[&blind[..6], &["--overwrite", "--data", "calib.npz", "--runtime", "rten", "--json"]].concat());
    assert_eq!(given.json()["quality"]["samples_from"], "given");
}

#[test]
fn poor_results_give_a_warning_with_remedies() {
    let place = place();
    // Half of all values are cut.
    let run = place.succeed(&quantize(&["--weight", "int4", "--percentile", "50", "--quiet"]));
    assert!(run.stderr.contains("warning: output `"), "{run:?}");
    assert!(run.stderr.contains("below 15 dB") && run.stderr.contains("the most damaged tensors"), "{run:?}");
    // No two layers of it can be equalized, and adaround is dearer than the first three.
    assert!(run.stderr.contains("  --per-channel: a scale") && run.stderr.contains("bias-correction"), "{run:?}");
    assert!(!run.stderr.contains("--cle") && !run.stderr.contains("adaround"), "{run:?}");
}

#[test]
fn result_below_min_sqnr_is_not_written() {
    let place = place();
    let line = quantize(&["--min-sqnr", "90", "--report", "r.json"]);
    let run = place.run(&line.into_iter().filter(|option| *option != "--overwrite").collect::<Vec<_>>());
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stderr.contains("--min-sqnr asks for 90") && run.stdout.is_empty(), "{run:?}");
    assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx", "r.json"]);
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(place.path("r.json")).unwrap()).unwrap();
    assert!(report["output"].is_null() && report["quality"]["outputs"][0]["sqnr_db"].is_number(), "{report}");
    assert!(run.stderr.contains("report r.json is, and another run replaces it with --overwrite"), "{run:?}");
    place.succeed(&quantize(&["--min-sqnr", "10", "--report", "r.json"]));
    let run = place.run(&["quantize", "float.onnx", "--preset", "WEIGHTS_INT8", "-o", "w.onnx", "--min-sqnr", "9"]);
    assert!(run.code == Some(2) && run.stderr.contains("--min-sqnr needs samples"), "{run:?}");
}

#[test]
fn result_that_is_not_measured_does_not_reach_min_sqnr() {
    let place = Place::empty();
    let mut model = uneven();
    // The embedded engine does not have it.
    let mut norm = node("LRN", "l", &["h"], &["p"]);
    kvant_onnx::graph::set_attribute(&mut norm, "size", 1i64);
    model.graph.as_mut().unwrap().node[1] = norm;
    onnx::write(model, &place.path("float.onnx"), ExternalData::Never).unwrap();
    let line = ["quantize", "float.onnx", "--preset", "WEIGHTS_INT8", "--data", "random", "--runtime", "rten"];
    let run = place.run(&[&line[..], &["--min-sqnr", "10", "-o", "out.onnx"]].concat());
    assert!(
        run.code == Some(1) && run.stderr.contains("--min-sqnr 10: the SQNR of the outputs is not known"),
        "{run:?}"
    );
    assert!(run.stderr.contains("hint: measure it with --runtime ort, or leave --min-sqnr out"), "{run:?}");
    assert_eq!(names(&place.path("")), ["float.onnx"]);
}

#[test]
fn older_softmax_of_a_quantized_graph_is_measured() {
    let place = Place::empty();
    let floats: Vec<u8> = (0..64 * 128).flat_map(|i| ((i % 13) as f32 / 50.0 - 0.1).to_le_bytes()).collect();
    let shape = [-1i64, 8, 16].iter().flat_map(|size| size.to_le_bytes()).collect::<Vec<u8>>();
    let mut softmax = node("Softmax", "", &["r"], &["y"]);
    kvant_onnx::graph::set_attribute(&mut softmax, "axis", 2i64);
    let batch = |name: &str, shape: &[usize]| {
        let dims = [Dim::Symbol("b".to_owned())].into_iter().chain(shape.iter().map(|&size| Dim::Known(size)));
        ValueType::new(DataType::FLOAT, dims.collect()).to_proto(name).unwrap()
    };
    let graph = onnx::GraphProto {
        name: Some("old".to_owned()),
        node: vec![node("MatMul", "", &["x", "w"], &["m"]), node("Reshape", "", &["m", "shape"], &["r"]), softmax],
        initializer: vec![
            onnx::tensor("w", DataType::FLOAT, &[64, 128], floats),
            onnx::tensor("shape", DataType::INT64, &[3], shape),
        ],
        input: vec![batch("x", &[64])],
        output: vec![batch("y", &[8, 16])],
        ..onnx::GraphProto::default()
    };
    let mut model = onnx::ModelProto { ir_version: Some(6), graph: Some(graph).into(), ..onnx::ModelProto::default() };
    add_opset(&mut model, "", 11);
    onnx::write(model, &place.path("float.onnx"), ExternalData::Never).unwrap();
    let line = ["quantize", "float.onnx", "--preset", "U8S8_AAWS", "--data", "random", "--num-samples", "8"];
    let run = place.succeed(&[&line[..], &["--runtime", "rten", "-o", "out.onnx"]].concat());
    assert!(run.stderr.contains("measured on ") && !run.stderr.contains("not measured"), "{run:?}");
}

#[test]
fn outputs_that_are_no_numbers_do_not_get_their_name() {
    let place = Place::empty();
    // One over values of which some get the code of zero.
    let mut model = uneven();
    let graph = model.graph.as_mut().unwrap();
    graph.node = vec![
        node("Conv", "conv", &["x", "v"], &["h"]),
        node("Abs", "abs", &["h"], &["a"]),
        node("Div", "divide", &["one", "a"], &["y"]),
    ];
    let weights: Vec<u8> = [1f32, -0.5, 0.5, 0.25].iter().flat_map(|weight| weight.to_le_bytes()).collect();
    graph.initializer[0] = onnx::tensor("v", DataType::FLOAT, &[2, 2, 1, 1], weights);
    graph.initializer.push(onnx::tensor("one", DataType::FLOAT, &[1], 1f32.to_le_bytes().to_vec()));
    onnx::write(model, &place.path("float.onnx"), ExternalData::Never).unwrap();
    let line = [
        &["quantize", "float.onnx", "--preset", "A8W8", "--more-op-types", "Div", "--io-dtype", "float"][..],
        &["--data", "random", "--runtime", "rten", "--report", "r.json", "-o", "out.onnx"],
    ]
    .concat();
    let run = place.run(&line);
    assert!(run.code == Some(1) && run.stdout.is_empty(), "{run:?}");
    for told in ["output `y` has NaN or infinite values", "damaged most in `", "out.onnx is not written", "--no-verify"]
    {
        assert!(run.stderr.contains(told), "{told}: {run:?}");
    }
    assert_eq!(names(&place.path("")), ["float.onnx", "r.json"]);
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(place.path("r.json")).unwrap()).unwrap();
    assert!(report["output"].is_null() && report["quality"]["outputs"][0]["non_finite"].as_u64() > Some(0), "{report}");
    assert!(run.stderr.contains("with --override 'h=keep' --override 'a=keep'"), "{run:?}");
    let rest = ["--overwrite", "--override", "h=keep", "--override", "a=keep"];
    place.succeed(&[&line[..], &rest].concat());
    place.succeed(&[&line[..], &["--overwrite", "--no-verify"]].concat());
}

#[test]
fn activations_that_no_disk_has_room_for_are_refused_before_the_work() {
    let place = place();
    let many = ["--num-samples", "4294967295", "--algorithm", "bias-correction", "-o", "out.onnx"];
    let line = ["quantize", "float.onnx", "--preset", "A8W8", "--data", "random", "--runtime", "rten"];
    let run = place.run(&[&line[..], &many].concat());
    assert_eq!(run.code, Some(1), "{run:?}");
    for told in [" bytes of disk space", "temporary files", " are free in ", "--num-samples"] {
        assert!(run.stderr.contains(told), "{told}: {run:?}");
    }
    assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx"]);
}

#[test]
fn names_and_files_that_are_not_there_are_usage_errors() {
    let place = place();
    place.succeed(&quantize(&[]));
    let eval = "eval out.onnx --reference float.onnx --data calib.npz --runtime rten";
    let sensitivity = "sensitivity float.onnx --preset A8W8 --data calib.npz --runtime rten";
    for line in [
        "quantize float.onnx --preset A9W9 --data calib.npz -o a.onnx",
        "plan float.onnx --preset A9W9",
        "quantize float.onnx --preset A8W8 --data no.npz -o a.onnx",
        "quantize float.onnx --preset A8W8 --data calib.npz --calibration-method best -o a.onnx",
        "quantize float.onnx --preset A8W8 --data calib.npz --weight-method best -o a.onnx",
        "quantize float.onnx --preset A8W8 --data calib.npz --algorithm best -o a.onnx",
        "quantize float.onnx --preset A8W8 --data calib.npz --override x=best -o a.onnx",
        "quantize float.onnx --preset A8W8 --data calib.npz --enable-pass best -o a.onnx",
        "quantize float.onnx --preset A8W8 --data calib.npz --disable-pass best -o a.onnx",
        "quantize float.onnx --preset A8W8 --data calib.npz --activation best -o a.onnx",
        "quantize float.onnx --preset A8W8 --data calib.npz --recipe no.toml -o a.onnx",
        "quantize no.onnx --preset A8W8 --data calib.npz -o a.onnx",
        "quantize float.onnx --preset A8W8 -o a.onnx",
        "eval out.onnx --reference no.onnx --data calib.npz",
        "eval out.onnx --reference float.onnx --data no.npz",
        "eval out.onnx --data calib.npz",
        &format!("{eval} --num-samples 0"),
        &format!("{sensitivity} --eval no.npz"),
        &format!("{sensitivity} --candidates best"),
        "verify no.onnx",
        "verify float.onnx --for best",
    ] {
        let run = place.run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(run.code, Some(2), "{line}: {run:?}");
    }
    assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx", "out.onnx"]);
}

#[test]
fn graph_onnxruntime_cannot_open_fails_verification() {
    let place = place();
    let run = place.run(&["verify", "float.onnx", "--for", "onnxruntime"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let brain = ["quantize", "float.onnx", "--preset", "BF16_MODEL", "-o", "brain.onnx"];
    let run = place.succeed(&brain);
    assert!(run.stderr.contains("bfloat16"), "{run:?}");
    let run = place.run(&["verify", "brain.onnx", "--json"]);
    assert_eq!(run.code, Some(0), "other runtimes take it: {run:?}");
    let verdict = run.json()["loaders"].as_array().unwrap().iter().find(|l| l["id"] == "onnxruntime").cloned();
    assert_eq!(verdict.unwrap()["loads"], "no", "{run:?}");
    assert_eq!(place.run(&["verify", "brain.onnx", "--for", "onnxruntime"]).code, Some(1));
}

/// Two convolutions with a Relu between them, the channels of the first of very different size.
fn uneven() -> onnx::ModelProto {
    let floats = |name: &str, shape: &[usize], values: &[f32]| {
        onnx::tensor(name, DataType::FLOAT, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
    };
    let graph = onnx::GraphProto {
        name: Some("uneven".to_owned()),
        node: vec![
            node("Conv", "a", &["x", "v"], &["h"]),
            node("Relu", "r", &["h"], &["p"]),
            node("Conv", "b", &["p", "w"], &["y"]),
        ],
        initializer: vec![
            floats("v", &[2, 2, 1, 1], &[40.0, -30.0, 0.02, 0.03]),
            floats("w", &[2, 2, 1, 1], &[0.02, 25.0, -0.01, 30.0]),
        ],
        input: vec![typed("x", &[1, 2, 4, 4])],
        output: vec![typed("y", &[1, 2, 4, 4])],
        ..onnx::GraphProto::default()
    };
    let mut model = onnx::ModelProto { ir_version: Some(8), graph: Some(graph).into(), ..onnx::ModelProto::default() };
    add_opset(&mut model, "", 17);
    model
}

fn typed(name: &str, shape: &[usize]) -> ValueInfoProto {
    let dims = shape.iter().map(|&size| Dim::Known(size)).collect();
    ValueType::new(DataType::FLOAT, dims).to_proto(name).unwrap()
}

#[test]
fn scaled_channels_are_not_reported_as_damaged() {
    let place = Place::empty();
    onnx::write(uneven(), &place.path("float.onnx"), ExternalData::Never).unwrap();
    let damaged = |options: &[&str]| {
        let random = ["--preset", "A16W8", "--data", "random", "--runtime", "rten", "--overwrite", "-o", "out.onnx"];
        place.succeed(&[&["quantize", "float.onnx"], &random[..], options].concat());
        let eval = ["eval", "out.onnx", "--reference", "float.onnx", "--data", "random", "--runtime", "rten", "--json"];
        let report = place.succeed(&eval).json();
        let tensors = report["tensors"].as_array().unwrap().iter().map(|t| t["sqnr_db"].as_f64().unwrap_or(99.0));
        (report["scaled_tensors"].as_u64().unwrap(), tensors.fold(f64::INFINITY, f64::min))
    };
    let (none, plain) = damaged(&[]);
    let (scaled, equalized) = damaged(&["--cle"]);
    assert_eq!((none, scaled), (0, 2), "h and p");
    assert!(equalized > plain - 6.0, "{equalized} dB, {plain} without equalization");
}

#[test]
fn inapplicable_graph_options_are_refused_by_name() {
    let place = place();
    place.write("text.txt", "a text");
    let quantize = "quantize float.onnx --preset A8W8 --data random -o out.onnx";
    let sensitivity = "sensitivity float.onnx --preset A8W8 --data random";
    let eval = "eval float.onnx --reference float.onnx --data random";
    for (line, option) in [
        (quantize, "--propagate float"),
        (quantize, "--precision bf16"),
        (quantize, "--max-memory 2GB"),
        ("plan float.onnx --preset A8W8 --data random", "--precision bf16"),
        (sensitivity, "--propagate float"),
        (sensitivity, "--precision bf16"),
        (sensitivity, "--max-memory 2GB"),
        (eval, "--seq-len 64"),
        (eval, "--stride 64"),
        (eval, "--precision bf16"),
        (eval, "--max-memory 2GB"),
        (eval, "--tokenizer float.onnx"),
        (eval, "--lora float.onnx"),
        (quantize, "--seq-len 64"),
        (quantize, "--packing document"),
        (quantize, "--column text"),
        (quantize, "--shuffle"),
        (quantize, "--format quark"),
        (quantize, "--pack-method order"),
        (quantize, "--no-keep-defaults"),
        (quantize, "--requantize"),
        (quantize, "--lora float.onnx"),
        (quantize, "--max-shard-size 1GB"),
        (quantize, "--kv-cache fp8"),
        (quantize, "--kv-cache-post-rope"),
        (quantize, "--min-kv-scale 0.1"),
        (quantize, "--attention fp8"),
        (quantize, "--imatrix float.onnx"),
        (quantize, "--save-imatrix i.gguf"),
        (quantize, "--max-kl 1"),
        (quantize, "--max-perplexity-increase 1"),
        (quantize, "--eval text.txt"),
        ("quantize float.onnx --preset A8W8 --data calib.npz -o out.onnx", "--seed 3"),
        ("plan float.onnx --preset A8W8 --data calib.npz", "--seed 3"),
        ("sensitivity float.onnx --preset A8W8 --data calib.npz", "--seed 3"),
        (sensitivity, "--report r.json"),
        (sensitivity, "--min-sqnr 9"),
        (sensitivity, "--external-data always"),
        (sensitivity, "--graph-format qdq --graph-format qoperator"),
        ("verify float.onnx", "--tensor-parallel 2"),
        ("verify float.onnx", "--quick"),
    ] {
        let run = place.run(&line.split(' ').chain(option.split(' ')).collect::<Vec<_>>());
        let name = option.split(' ').next().unwrap();
        assert!(run.code == Some(2) && run.stderr.contains(name), "{line} {option}: {run:?}");
    }
    assert!(!place.path("out.onnx").exists());
}

#[cfg(unix)]
#[test]
fn graph_evaluation_can_be_interrupted() {
    if ignores_signals() {
        return;
    }
    let place = place();
    let line =
        "eval float.onnx --reference float.onnx --data random --num-samples 5000000 --runtime rten --progress always";
    let line: Vec<&str> = line.split(' ').collect();
    let mut child = place.command(&line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut text = String::new();
    // The first line of progress.
    std::io::BufRead::read_line(&mut stderr, &mut text).unwrap();
    assert!(text.contains("samples"), "{text}");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    std::io::Read::read_to_string(&mut stderr, &mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{text}");
    assert!(text.ends_with("Interrupted. Nothing was written: the same command starts over.\n"), "{text}");
}

/// As in recipes of checkpoints: of the file from top to bottom, then of the command line.
#[test]
fn last_override_of_a_tensor_decides() {
    let place = place();
    let file = |first: &str, second: &str| {
        let rule =
            |(tensors, scheme): (&str, &str)| format!("[[override]]\ntensors = \"{tensors}\"\nscheme = \"{scheme}\"\n");
        let rules: Vec<String> = [("r0", first), ("r*", second)].map(rule).into();
        place.write("recipe.toml", &format!("version = 2\npreset = \"A8W8\"\n{}", rules.concat()));
    };
    let dtype = |options: &[&str]| {
        let plan = place.succeed(&[&["plan", "float.onnx", "--json"], options].concat()).json();
        let tensors = plan["tensors"].as_array().unwrap();
        let found = tensors.iter().find(|tensor| tensor["name"] == "r0").unwrap();
        found["dtype"].as_str().unwrap().to_owned()
    };
    for (first, second) in [("int16", "int8"), ("int8", "int16")] {
        let options = [format!("r0={first}"), format!("r*={second}")];
        assert_eq!(dtype(&["--preset", "A8W8", "--override", &options[0], "--override", &options[1]]), second);
        file(first, second);
        assert_eq!(dtype(&["--recipe", "recipe.toml"]), second, "{first}, then {second}");
        assert_eq!(dtype(&["--recipe", "recipe.toml", "--override", &options[0]]), first, "options follow the file");
    }
}
