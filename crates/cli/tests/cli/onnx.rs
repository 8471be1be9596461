//! ONNX graphs at the command line.

use crate::kvant::{Place, names};
use kvant_container::onnx::{self, DataType, ExternalData, ValueInfoProto};
use kvant_onnx::graph::node;
use std::collections::BTreeSet;
use std::path::Path;

/// A directory with a small CNN, `float.onnx`, and its calibration data, `calib.npz`.
fn place() -> Place {
    let place = Place::empty();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data");
    for (from, to) in [("tinycnn.float.onnx", "float.onnx"), ("tinycnn.calib.npz", "calib.npz")] {
        std::fs::copy(data.join(from), place.path(to)).unwrap();
    }
    place
}

const QUANTIZE: [&str; 9] =
    ["quantize", "float.onnx", "--preset", "A8W8", "--data", "calib.npz", "--runtime", "rten", "--overwrite"];

fn quantize<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [&QUANTIZE[..], &["-o", "out.onnx"], options].concat()
}

#[test]
fn external_data_of_an_output_before_go_with_it() {
    let place = place();
    place.succeed(&quantize(&["--external-data", "always"]));
    assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx", "out.onnx", "out.onnx.data"]);
    place.succeed(&quantize(&[]));
    assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx", "out.onnx"]);
}

#[test]
fn the_weights_of_the_source_are_never_replaced() {
    let place = place();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data/tinytransformer.float.onnx");
    let float16 = ["--preset", "FP16_MODEL", "--external-data", "always", "-o", "out.onnx"];
    place.succeed(&[&["quantize", source.to_str().unwrap()][..], &float16].concat());
    std::fs::rename(place.path("out.onnx"), place.path("b.onnx")).unwrap();
    let run = place.run(&["quantize", "b.onnx", "--preset", "BF16_MODEL", "-o", "out.onnx", "--overwrite"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("out.onnx.data holds weights of the source"), "{run:?}");
    assert!(place.path("out.onnx.data").exists());
}

#[test]
fn patterns_without_effect_are_told() {
    let run = place().succeed(&quantize(&["-x", "nothing*", "--override", "nil=keep", "--exclude-op-types", "Conw"]));
    for told in ["--exclude nothing* matches no node", "--override nil matches no tensor", "--exclude-op-types Conw"] {
        assert!(run.stderr.contains(told), "{run:?}");
    }
    let refused = place().run(&quantize(&["--override", "nil=int16"]));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.stderr.contains("no tensor matches `nil`") && refused.stderr.contains("hint: there are"),
        "{refused:?}"
    );
}

#[test]
fn arrays_that_are_missing_are_called_what_they_are_for() {
    let place = place();
    place.succeed(&quantize(&[]));
    let eval = ["eval", "out.onnx", "--reference", "float.onnx", "--data", "calib.npz", "--labels", "nope"];
    let run = place.run(&eval);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stderr.contains("no array `nope` of labels") && run.stderr.contains("--labels"), "{run:?}");
}

#[test]
fn the_method_that_auto_took_is_told() {
    let run = place().succeed(&quantize(&["--calibration-method", "auto", "--json"]));
    let tensors = run.json()["report"]["tensors"].as_array().unwrap().clone();
    let own = tensors.iter().filter(|t| t["role"] == "activation" && t["shares"].is_null());
    let taken: Vec<&str> = own.map(|tensor| tensor["method"].as_str().unwrap()).collect();
    assert!(taken.len() > 3 && taken.contains(&"minmse"), "{taken:?}");
    assert!(run.stderr.is_empty() || run.stderr.contains("by minmse"), "{run:?}");
    let run = place().succeed(&quantize(&[]));
    assert!(!run.stderr.contains("ranges found by"), "{run:?}");
}

#[test]
fn integers_at_the_ends_are_evaluated_by_their_scales() {
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
fn a_mix_of_types_is_found_and_made_again() {
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
fn searches_that_make_no_sense_are_refused() {
    let place = place();
    for (options, told) in [
        (&["-o", "mixed.toml"][..], "a recipe is written for a target only"),
        (&["--max-drop", "1"], "--max-drop needs the classes"),
        (&["--target-size", "12"], "is no size"),
        (&["--candidates", "A9W9"], "is no candidate"),
        (&["--target-sqnr", "20", "--max-drop", "1"], "cannot be used with"),
    ] {
        let run = place.run(&[&SENSITIVITY[..], options].concat());
        assert!(run.code == Some(2) && run.stderr.contains(told), "{run:?}");
    }
    let run = place.run(&["sensitivity", "directory", "--preset", "int8", "--data", "calib.npz"]);
    assert!(run.stderr.contains("ONNX graphs only"), "{run:?}");
}

#[test]
fn a_recipe_of_a_graph_says_what_options_say() {
    let place = place();
    std::fs::write(
        place.path("r.toml"),
        "version = 1\npreset = \"A8W8\"\nper_channel = true\nexclude = [\"nothing\"]\n",
    )
    .unwrap();
    let rest = ["--data", "calib.npz", "--runtime", "rten", "--overwrite", "-o", "out.onnx"];
    let bytes = |options: &[&str]| {
        place.succeed(&[&["quantize", "float.onnx"], options, &rest].concat());
        std::fs::read(place.path("out.onnx")).unwrap()
    };
    let by_options = bytes(&["--preset", "A8W8", "--per-channel"]);
    assert_eq!(bytes(&["--recipe", "r.toml"]), by_options);
    assert_ne!(bytes(&["--recipe", "r.toml", "--weight", "int4"]), by_options);
    std::fs::write(place.path("r.toml"), "version = 1\nscheme = \"A8W8\"\n").unwrap();
    let run = place.run(&["quantize", "float.onnx", "--recipe", "r.toml", "-o", "no.onnx"]);
    assert!(run.code == Some(1) && run.stderr.contains("r.toml: ") && run.stderr.contains("hint:"), "{run:?}");
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
fn signals_leave_nothing() {
    use std::process::{Command, Stdio};
    if ignores_signals() {
        return;
    }
    for signal in ["-TERM", "-HUP", "-INT"] {
        let place = place();
        let mut args = quantize(&["--num-samples", "100000000"]);
        args[5] = "random";
        let mut child = place.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Long enough to have come to the samples, of which there are too many to end, on a busy machine too.
        std::thread::sleep(std::time::Duration::from_millis(6000));
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(130));
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
fn tensors_that_have_the_names_of_what_is_written_stay() {
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
            let quantize = |float: &str, out: &str| {
                let to = ["--exclude-op-types", "Abs", "--runtime", "rten", "-o", out, "--overwrite"];
                place.succeed(&[&["quantize", float][..], layout, &to].concat());
            };
            quantize("float.onnx", "out.onnx");
            let before = names_of_tensors(&place.path("float.onnx"));
            let new = names_of_tensors(&place.path("out.onnx")).difference(&before).cloned().collect();
            with_taken_names(&place.path("float.onnx"), &new, &place.path("taken.onnx"));
            quantize("taken.onnx", "taken_out.onnx");
            let (free, taken) = (sqnr("float.onnx", "out.onnx"), sqnr("taken.onnx", "taken_out.onnx"));
            assert_eq!(free, taken, "{model} {layout:?}, {} names", new.len());
            assert!(free.is_some() || layout[1] != "A8W8", "{model} is evaluated");
        }
    }
}
