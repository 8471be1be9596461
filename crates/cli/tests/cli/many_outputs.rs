//! Outputs beside a checkpoint, or instead of one: planning, replacement, records and reports.

use crate::kvant::{Place, names};
use kvant_container::onnx;
use std::fs;
use std::process::Stdio;

const CODES: [&str; 3] = ["nano_llama", "--scheme", "int4:g32"];

#[test]
fn plan_of_gguf_codes_matches_the_file() {
    let place = Place::new();
    for scheme in ["int4:g32", "nvfp4"] {
        let options = ["nano_llama", "--scheme", scheme, "--weights-only", "--format", "gguf", "--json"];
        let plan = place.succeed(&[&["plan"], &options[..]].concat()).json();
        assert_eq!((plan["format"].as_str(), plan["recipe"]["format"].as_str()), (Some("gguf"), Some("quark")));
        place.succeed(&[&["quantize"], &options[..], &["-o", "out.gguf", "--overwrite"]].concat());
        let made = place.succeed(&["inspect", "out.gguf", "--json"]).json();
        let types = |value: &serde_json::Value| -> Vec<(String, String)> {
            let tensors = value["tensors"].as_array().unwrap().iter();
            let text = |tensor: &serde_json::Value, key: &str| tensor[key].as_str().unwrap().to_owned();
            let mut all: Vec<_> = tensors.map(|tensor| (text(tensor, "name"), text(tensor, "dtype"))).collect();
            all.sort();
            all
        };
        assert_eq!(types(&plan), types(&made), "{scheme}");
        assert_eq!(plan["output_bytes"], made["bytes"], "{scheme}");
    }
    let shown = place.succeed(&[&["plan"], &CODES[..], &["--format", "gguf"]].concat());
    assert!(shown.stdout.contains("int4:g32, format gguf") && shown.stdout.contains("Q4_0"), "{}", shown.stdout);
}

/// `fake` next to a format with codes is converted from it; `quantize` has no option for the type of its floats.
#[test]
fn floats_beside_codes_are_described_as_what_they_are() {
    let place = Place::new();
    let run = place.succeed(&[&["quantize"], &CODES[..], &["-f", "quark", "-f", "fake", "-o", "out"]].concat());
    assert!(!run.stderr.contains("--dtype"), "{}", run.stderr);
    let report =
        place.succeed(&[&["quantize"], &CODES[..], &["-f", "quark", "-f", "fake", "-o", "again", "--json"]].concat());
    assert_eq!(report.json()["outputs"][1]["bits_per_weight"], 16.0, "{}", report.stdout);
}

/// A text to calibrate on, and one to measure on: pages of the documentation.
fn texts(place: &Place) {
    let page = |name: &str| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/").to_owned() + name;
        fs::read_to_string(path).unwrap().chars().take(24_000).collect::<String>()
    };
    place.write("text.txt", &page("algorithms.md"));
    place.write("other.txt", &page("verification.md"));
}

const DATA: [&str; 6] = ["--calib", "text.txt", "--num-samples", "32", "--seq-len", "128"];

#[test]
fn algorithms_choose_the_codes_of_gguf_types() {
    let place = Place::new();
    texts(&place);
    let divergence = |file: &str| {
        let compare = ["eval", file, "--reference", "nano_llama", "--data", "other.txt", "--seq-len", "64", "--json"];
        place.succeed(&compare).json()["kl_mean"].as_f64().unwrap()
    };
    for scheme in ["Q4_0", "IQ4_NL"] {
        let make = |algorithm: &str, more: &[&str], output: &str| {
            let line =
                ["quantize", "nano_llama", "--scheme", scheme, "--algorithm", algorithm, "-o", output, "--overwrite"];
            place.succeed(&[&line[..], &DATA, more].concat());
            fs::read(place.path(output)).unwrap()
        };
        let weighed = make("imatrix", &[], "imatrix.gguf");
        let chosen = make("qronos:rounds=2", &["--threads", "1"], "qronos.gguf");
        assert_eq!(chosen.len() / 1000, weighed.len() / 1000, "{scheme}: the same types");
        assert!(make("imatrix,qronos:rounds=2", &["--threads", "2"], "again.gguf") == chosen, "{scheme}");
        let (chosen, weighed) = (divergence("qronos.gguf"), divergence("imatrix.gguf"));
        assert!(chosen < 0.7 * weighed, "{scheme}: {chosen} {weighed}");
    }
    let left: Vec<String> = names(&place.path(""));
    let unwanted = left.iter().filter(|name| name.contains("partial") || name.contains("checkpoint"));
    assert_eq!(unwanted.count(), 0, "{left:?}");
}

#[test]
fn plan_of_chosen_gguf_codes_matches_the_file() {
    let place = Place::new();
    texts(&place);
    let options = ["nano_llama", "--scheme", "Q4_K_M", "--override", "*.down_proj=Q8_0", "--algorithm", "awq,gptq"];
    let plan = place.succeed(&[&["plan"], &options[..], &DATA, &["--json"]].concat()).json();
    assert_eq!((plan["format"].as_str(), plan["recipe"]["scheme"].as_str()), (Some("gguf"), Some("Q4_K_M")));
    assert!(plan["calibration"].is_object(), "{plan}");
    place.succeed(&[&["quantize"], &options[..], &DATA, &["-o", "out.gguf"]].concat());
    let made = place.succeed(&["inspect", "out.gguf", "--json"]).json();
    assert_eq!(plan["output_bytes"], made["bytes"]);
    let unneeded =
        ["quantize", "nano_llama", "-s", "Q4_0", "--algorithm", "gptq", "--imatrix", "text.txt", "-o", "x.gguf"];
    let refused = place.run(&[&unneeded[..], &DATA].concat());
    assert!(refused.stderr.contains("--imatrix has no use"), "{}", refused.stderr);
}

#[test]
fn recipe_file_can_request_gguf() {
    let place = Place::new();
    place.write("recipe.toml", "version = 2\nscheme = \"int4:g32\"\nformat = \"gguf\"\n");
    place.succeed(&["quantize", "nano_llama", "--recipe", "recipe.toml", "-o", "by_file.gguf"]);
    place.succeed(&[&["quantize"], &CODES[..], &["--format", "gguf", "-o", "by_options.gguf"]].concat());
    let bytes = |name: &str| fs::read(place.path(name)).unwrap();
    assert!(bytes("by_file.gguf") == bytes("by_options.gguf"));
    let plan = place.succeed(&["plan", "nano_llama", "--recipe", "recipe.toml", "--json"]).json();
    assert_eq!(plan["format"], "gguf");
}

#[test]
fn graphs_quantize_activations_or_are_refused_first() {
    let place = Place::new();
    place.write("text.txt", &"The tower stood where the river turns, and nobody asked who had built it. ".repeat(40));
    let data = ["--calib", "text.txt", "--num-samples", "4", "--seq-len", "64"];
    let quantize = |options: &[&str], output: &str| {
        place.run(&[&["quantize", "nano_llama", "-s"], options, &data, &["-o", output, "--overwrite"]].concat())
    };
    let operators = |name: &str, operator: &str| {
        let graph = onnx::read(&place.path(name)).unwrap().graph;
        graph.node.iter().filter(|node| node.op_type.as_deref() == Some(operator)).count()
    };
    for (options, hint) in [
        (&["ptpc_fp8"][..], "--weights-only"),
        (&["int8:channel+int8:channel!dynamic"], "--weights-only"),
        (&["int8", "--kv-cache", "fp8"], "--kv-cache"),
    ] {
        let run = quantize(&[options, &["-f", "onnx"]].concat(), "no.onnx");
        assert!(run.code == Some(1) && run.stderr.contains(hint), "{options:?}: {run:?}");
        let plan = place.run(&[&["plan", "nano_llama", "-f", "onnx", "-s"], options, &data].concat());
        assert_eq!((plan.code, plan.stderr), (run.code, run.stderr), "{options:?}");
        assert_eq!(names(&place.path("")), ["nano_llama", "text.txt"]);
    }
    // Four blocks, in each of which q, k and v read the same, and gate and up.
    for (scheme, operator) in [
        ("int8", "QuantizeLinear"),
        ("int4:g32+uint8:tensor:zp!dynamic", "DynamicQuantizeLinear"),
        ("fp8", "QuantizeLinear"),
    ] {
        assert_eq!(quantize(&[scheme, "-f", "onnx"], "out.onnx").code, Some(0), "{scheme}");
        assert_eq!(operators("out.onnx", operator), 16, "{scheme}");
    }
    let run = quantize(&["int8", "-f", "onnx", "--weights-only"], "out.onnx");
    assert!(run.code == Some(0) && run.stderr.contains("activations stay in float"), "{run:?}");
    assert_eq!(operators("out.onnx", "QuantizeLinear"), 0);
    assert_eq!(quantize(&["int8", "--kv-cache", "fp8"], "cached").code, Some(0));
    let convert = ["convert", "cached", "--to", "onnx", "-o", "converted.onnx"];
    let run = place.run(&convert);
    assert!(run.code == Some(1) && run.stderr.contains("--weights-only"), "{run:?}");
    place.succeed(&[&convert[..], &["--weights-only"]].concat());
    assert_eq!(operators("converted.onnx", "QuantizeLinear"), 0);
    let other = place.run(&["convert", "cached", "--to", "float", "-o", "floats", "--weights-only"]);
    assert!(other.code == Some(2) && other.stderr.contains("applies only to --to onnx"), "{other:?}");
}

#[test]
fn user_files_in_format_folders_are_not_replaced() {
    let place = Place::new();
    place.succeed(&["quantize", "nano_llama", "-s", "F16", "-o", "mine.gguf"]);
    place.succeed(&["convert", "nano_llama", "--to", "onnx", "-o", "mine.onnx"]);
    for format in ["gguf", "onnx"] {
        let (file, mine) = (format!("{format}/{format}/model.{format}"), format!("mine.{format}"));
        let quantize = [&["quantize"], &CODES[..], &["--format", "awq", "--format", format, "-o", format]].concat();
        let overwrite = [&quantize[..], &["--overwrite"]].concat();
        let refuse = |lines: &[&Vec<&str>]| {
            // Kvant made this one too, but not here.
            fs::copy(place.path(&mine), place.path(&file)).unwrap();
            for line in lines {
                let refused = place.run(line);
                assert_eq!(refused.code, Some(1), "{refused:?}");
                assert!(refused.stderr.contains("hint") && refused.stderr.contains(&file), "{}", refused.stderr);
            }
            assert!(fs::read(place.path(&file)).unwrap() == fs::read(place.path(&mine)).unwrap());
            fs::remove_file(place.path(&file)).unwrap();
        };
        fs::create_dir_all(place.path(&file).parent().unwrap()).unwrap();
        refuse(&[&quantize, &overwrite]);
        place.succeed(&quantize);
        place.succeed(&overwrite);
        fs::remove_file(place.path(&file)).unwrap();
        refuse(&[&overwrite]);
    }
}

#[test]
fn calibration_record_is_written_beside_gguf_and_graph() {
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
fn leftover_intermediate_checkpoint_is_named() {
    let place = Place::new();
    place.write("text.txt", &"The iterator yields every element of the slice, in order. ".repeat(200));
    let data = ["--algorithm", "gptq", "--calib", "text.txt", "--num-samples", "16", "--seq-len", "64"];
    let quantize = [&["quantize"], &CODES[..], &data, &["--format", "gguf", "-o", "out.gguf"]].concat();
    let child = place.command(&quantize).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // While codes are made somebody else begins the file: that is found when it is its turn.
    while !place.path(".out.gguf.kvant-checkpoint.partial.journal").exists() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let journal = fs::File::create(place.path("out.gguf.partial.journal")).unwrap();
    journal.lock().unwrap();
    let run = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(1), "{stderr}");
    assert!(names(&place.path("")).contains(&".out.gguf.kvant-checkpoint".to_owned()), "{stderr}");
    assert!(stderr.contains("the same command resumes from"), "{stderr}");
    assert!(stderr.contains(".out.gguf.kvant-checkpoint"), "{stderr}");
    drop(journal);
    place.succeed(&quantize);
    assert_eq!(names(&place.path("")), ["nano_llama", "out.calibration.json", "out.gguf", "text.txt"]);
}

#[test]
fn restart_discards_finished_formats_of_an_interrupted_run() {
    let place = Place::new();
    place.write("text.txt", &"The iterator yields every element of the slice, in order. ".repeat(200));
    let data = ["--algorithm", "gptq", "--calib", "text.txt", "--num-samples", "8", "--seq-len", "32"];
    let quantize = [&["quantize"], &CODES[..], &data, &["--format", "quark", "--format", "awq", "-o", "two"]].concat();
    let child = place.command(&quantize).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // While codes are made another process begins the second format: the run ends with the first one finished.
    while !place.path("two/quark.partial.journal").exists() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let journal = fs::File::create(place.path("two/awq.partial.journal")).unwrap();
    journal.lock().unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(1));
    drop(journal);
    let config = place.path("two/quark/config.json");
    let written = fs::read_to_string(&config).unwrap();

    let restart = [&quantize[..], &["--restart"]].concat();
    fs::write(&config, "mine").unwrap();
    for more in [&[][..], &["--overwrite"]] {
        let refused = place.run(&[&restart[..], more].concat());
        assert!(refused.code == Some(1) && refused.stderr.contains("config.json (changed)"), "{refused:?}");
        assert_eq!(fs::read_to_string(&config).unwrap(), "mine");
        assert!(place.path("two/quark.partial.journal").exists(), "nothing is removed before a refusal");
    }

    fs::write(&config, written).unwrap();
    place.succeed(&restart);
    assert_eq!(names(&place.path("two")), ["awq", "quark"]);
}

#[test]
fn unfinished_work_with_other_options_is_kept_until_restart() {
    let place = Place::new();
    place.write("text.txt", &"The iterator yields every element of the slice, in order. ".repeat(40));
    let journal = "{\"kvant_journal\":1,\"plan\":\"another\",\"options\":{\"--num-samples\":\"64\",\"--scheme\":\"int4:g32\"}}\n\
                   {\"job\":0,\"pieces\":[]}\n";
    let gptq = ["--algorithm", "gptq", "--calib", "text.txt", "--num-samples", "2", "--seq-len", "32"];
    let int4 = ["--scheme", "int4:g32"];
    // Unfinished work in the way: of the output itself, of the intermediate checkpoint, of one format's directory, and of a run with one
    // format whose output has the name of the directory.
    let formats = ["--format", "quark", "--format", "awq"];
    let cases: [(&str, &str, Vec<&str>); 5] = [
        ("out", "out", [&int4[..], &gptq].concat()),
        ("out.gguf", ".out.gguf.kvant-checkpoint", [&int4[..], &gptq, &["--format", "gguf"]].concat()),
        ("two", "two/awq", [&int4[..], &gptq, &formats].concat()),
        ("both", "both", [&int4[..], &gptq, &formats].concat()),
        ("q4.gguf", "q4.gguf", [&["--scheme", "Q4_0", "--algorithm", "imatrix"], &gptq[2..]].concat()),
    ];
    for (out, hidden, options) in cases {
        fs::create_dir_all(place.path(&format!("{hidden}.partial"))).unwrap();
        fs::create_dir(place.path(&format!("{hidden}.partial.blocks"))).unwrap();
        place.write(&format!("{hidden}.partial.journal"), journal);
        let line = [&["quantize", "nano_llama", "-o", out], &options[..]].concat();
        let refused = place.run(&line);
        assert_eq!(refused.code, Some(1), "{line:?}: {refused:?}");
        for told in ["--num-samples 64, now --num-samples 2", "--restart"] {
            assert!(refused.stderr.contains(told), "{line:?}: {}", refused.stderr);
        }
        assert!(place.path(&format!("{hidden}.partial.blocks")).exists() && !place.path(out).is_file());
        place.succeed(&[&line[..], &["--restart"]].concat());
        assert!(!place.path(&format!("{hidden}.partial.blocks")).exists());
    }
    let left = names(&place.path(""));
    let made = ["both", "nano_llama", "out", "out.calibration.json", "out.gguf", "q4.gguf", "text.txt", "two"];
    assert_eq!(left, made);
}

#[test]
fn concurrent_conversions_to_one_graph_are_refused() {
    let place = Place::new();
    place.succeed(&["quantize", "nano_llama", "-s", "int4:g32", "-o", "codes"]);
    let line = ["convert", "codes", "--to", "onnx", "-o", "out.onnx"];
    let journal = fs::File::create(place.path("out.onnx.partial.journal")).unwrap();
    journal.lock().unwrap();
    let refused = place.run(&line);
    assert!(refused.code == Some(1) && refused.stderr.contains("another run is writing"), "{refused:?}");
    drop(journal);
    place.succeed(&line);
    assert_eq!(names(&place.path("")), ["codes", "nano_llama", "out.onnx"]);
}

#[test]
fn gguf_beside_a_checkpoint_has_the_calibration_record() {
    let place = Place::new();
    place.write("text.txt", &"The iterator yields every element of the slice, in order. ".repeat(200));
    let line = [
        "quantize",
        "nano_llama",
        "-s",
        "uint4:g32",
        "--algorithm",
        "gptq",
        "--calib",
        "text.txt",
        "--num-samples",
        "8",
    ];
    let formats = ["--seq-len", "64", "--format", "awq", "--format", "gguf", "-o", "out"];
    place.succeed(&[&line[..], &formats].concat());
    let record = fs::read(place.path("out/gguf/model.calibration.json")).unwrap();
    assert_eq!(record, fs::read(place.path("out/awq/calibration.json")).unwrap());
    // It is Kvant's own, and replaced with the rest.
    place.succeed(&[&line[..], &formats, &["--overwrite"]].concat());
    assert_eq!(fs::read(place.path("out/gguf/model.calibration.json")).unwrap(), record);
}
