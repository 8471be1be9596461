//! `kvant quantize --calib` and `kvant eval` of what it makes.

use crate::kvant::{Place, contents, names};

const TEXT: &str = "The tower stood where the river turns. Nobody had seen who built it, and nobody asked any more. ";
const DATA: [&str; 6] = ["--calib", "text.txt", "--num-samples", "4", "--seq-len", "64"];

fn place() -> Place {
    let place = Place::new();
    place.write("text.txt", &TEXT.repeat(40));
    place
}

fn quantize<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["quantize", "nano_llama"], more, &DATA].concat()
}

#[test]
fn every_static_scheme_completes_and_evaluates() {
    let place = place();
    for (name, options) in [
        ("int8", &["-s", "int8"][..]),
        ("fp8", &["-s", "fp8"]),
        ("nvfp4", &["-s", "nvfp4"]),
        ("mxfp4_fp8", &["-s", "mxfp4_fp8"]),
        ("FP8", &["-s", "FP8"]),
        ("NVFP4", &["-s", "NVFP4"]),
        ("outputs", &["-s", "int8:tensor+int8:tensor!static+int8:tensor!static"]),
        ("cache", &["-s", "fp8", "--kv-cache", "fp8"]),
        ("post_rope", &["-s", "int4_wo_128", "--kv-cache", "fp8", "--kv-cache-post-rope"]),
        ("attention", &["-s", "fp8", "--kv-cache", "fp8", "--attention", "fp8"]),
    ] {
        place.succeed(&quantize(&[options, &["-o", name]].concat()));
        let record: serde_json::Value =
            serde_json::from_slice(&std::fs::read(place.path(name).join("calibration.json")).unwrap()).unwrap();
        assert_eq!((&record["data"]["samples"], &record["data"]["tokens"]), (&4.into(), &256.into()), "{name}");
        let eval = ["eval", name, "--reference", "nano_llama", "--data", "text.txt", "--seq-len", "64", "--json"];
        let found = place.succeed(&eval).json();
        let divergence = found["kl_mean"].as_f64().unwrap();
        assert!(divergence > 1e-6 && divergence < 0.2, "{name}: {found}");
    }
    assert!(!names(&place.path("")).iter().any(|name| name.contains(".partial")));
}

#[test]
fn fake_quantization_keeps_activations_for_evaluation() {
    let place = place();
    place.succeed(&["quantize", "nano_llama", "-s", "mx6", "-o", "mx6"]);
    place.succeed(&quantize(&["-s", "int8", "--format", "fake", "-o", "alone"]));
    place.succeed(&quantize(&["-s", "int8", "--format", "fake", "--format", "quark", "-o", "both"]));
    let eval = |name: &str, more: &[&str]| {
        let args = ["eval", name, "--reference", "nano_llama", "--data", "text.txt", "--seq-len", "64"];
        place.succeed(&[&args, more].concat())
    };
    let divergence = |name: &str, activations: &[&str]| {
        let found = eval(name, &["--json"]).json();
        assert_eq!(found["quantized_activations"], serde_json::json!(activations), "{name}");
        found["kl_mean"].as_f64().unwrap()
    };
    let static_inputs = ["inputs of 28 layers: int8:tensor!static"];
    let codes = divergence("both/quark", &static_inputs);
    for name in ["alone", "both/fake"] {
        let found = divergence(name, &static_inputs);
        assert!((found / codes - 1.0).abs() < 0.1, "{name}: {found}, {codes}");
    }
    let inputs = "inputs of 28 layers: mx6!dynamic";
    let with_inputs = divergence("mx6", &[inputs]);
    assert!(eval("mx6", &[]).stdout.contains(&format!("quantized activations: {inputs}")));
    let refused = place.run(&["quantize", "mx6", "-s", "int4:g32", "-o", "again"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("--requantize"), "{refused:?}");
    // Only the key differs.
    let config = std::fs::read_to_string(place.path("mx6/config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    assert!(config.as_object_mut().unwrap().remove("kvant_fake_quantization").is_some());
    place.write("mx6/config.json", &config.to_string());
    assert!(divergence("mx6", &[]) < 0.9 * with_inputs);
}

#[test]
fn calibrated_output_does_not_depend_on_threads_or_memory() {
    let place = place();
    let run = |out: &str, options: &[&str]| {
        place.succeed(&quantize(&[&["-s", "nvfp4", "--kv-cache", "fp8", "-o", out], options].concat()));
        contents(&place.path(out))
    };
    let one = run("one", &["--threads", "1"]);
    assert_eq!(run("three", &["--threads", "3"]), one);
    assert_eq!(run("spilled", &["--max-memory", "1KB"]), one);
}

#[cfg(unix)]
#[test]
fn stopped_run_resumes_with_its_statistics() {
    let place = place();
    let args = quantize(&["-s", "fp8", "-o", "out"]);
    place.succeed(&args);
    let whole = contents(&place.path("out"));
    std::fs::remove_dir_all(place.path("out")).unwrap();
    // A limit of the size of files ends the run where it makes room for the tensors, after its statistics are kept.
    let kvant = place.command(&args);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "ulimit -f 300; exec \"$0\" \"$@\""]).arg(kvant.get_program()).args(kvant.get_args());
    assert!(!shell.current_dir(place.path("")).output().unwrap().status.success());
    assert!(place.path("out.partial.statistics").exists());
    let text = std::fs::read_to_string(place.path("text.txt")).unwrap();
    place.write("text.txt", &text.replace('e', "a"));
    let refused = place.run(&args);
    assert!(refused.code == Some(1) && refused.stderr.contains("--calib text.txt has changed"), "{refused:?}");
    assert!(place.path("out.partial.statistics").exists());
    place.write("text.txt", &text);
    let again = place.succeed(&args);
    assert!(again.stderr.contains("resuming with the statistics"), "{again:?}");
    assert_eq!(contents(&place.path("out")), whole);
    assert_eq!(names(&place.path("")), ["nano_llama", "out", "text.txt"]);
}

#[test]
fn impossible_calibrations_are_refused_first() {
    let place = place();
    place.write("empty.txt", "");
    place.write("broken.jsonl", "{\"text\": \n[]\n");
    for (options, words) in [
        (&["-s", "fp8"][..], "--calib"),
        (&["-s", "fp8", "--calib", "missing.txt"], "missing.txt"),
        (&["-s", "fp8", "--calib", "empty.txt"], "1 empty"),
        (&["-s", "fp8", "--calib", "broken.jsonl"], "no sample"),
        (&["-s", "fp8", "--calib", "text.txt", "--seq-len", "513"], "513"),
        (&["-s", "int4_wo_128", "--kv-cache", "fp8"], "--calib"),
    ] {
        let run = place.run(&[&["quantize", "nano_llama", "-o", "out"], options].concat());
        assert!(run.code == Some(1) || run.code == Some(2), "{options:?}: {run:?}");
        assert!(run.stderr.contains(words), "{options:?}: {run:?}");
        assert!(!names(&place.path("")).iter().any(|name| name.starts_with("out")), "{options:?}");
    }
}

#[test]
fn unneeded_calibration_data_are_ignored_by_plans_and_runs() {
    let place = place();
    // Such data could not be used: the file has no fields, and the sequences are too long.
    let data = ["--calib", "text.txt", "--column", "text", "--seq-len", "513"];
    for command in [&["plan", "nano_llama"][..], &["quantize", "nano_llama", "-o", "out"]] {
        let unused = place.succeed(&[command, &["-s", "int4_wo_128"], &data].concat());
        assert!(unused.stderr.contains("warning: calibration data ignored"), "{command:?}: {unused:?}");
        // Plans take no limits of quality.
        let limit = (command[0] == "quantize").then_some(&["-s", "int4_wo_128", "--max-kl", "1"][..]);
        let needed = [&["-s", "int8"][..], &["-s", "int4_wo_128", "--algorithm", "gptq"]];
        for options in needed.into_iter().chain(limit) {
            let refused = place.run(&[command, options, &data].concat());
            assert!(
                refused.code != Some(0) && refused.stderr.contains("has no fields"),
                "{command:?} {options:?}: {refused:?}"
            );
        }
    }
}

#[test]
fn impossible_evaluations_are_refused() {
    let place = place();
    for (options, words) in [
        (&["--seq-len", "1"][..], "--seq-len"),
        (&["--seq-len", "64", "--stride", "65"], "--stride"),
        (&["--seq-len", "100000"], "--seq-len"),
        (&["--reference", "missing"], "missing"),
    ] {
        let run = place.run(&[&["eval", "nano_llama", "--data", "text.txt"], options].concat());
        assert!(run.code != Some(0) && run.stderr.contains(words), "{options:?}: {run:?}");
    }
}

#[test]
fn files_give_their_shares_of_the_samples() {
    let place = place();
    place.write("other.txt", &"A different book is about ships, and about what they carried over the sea. ".repeat(40));
    let run = |data: &[&str], out: &str| {
        let line = ["quantize", "nano_llama", "-s", "int8", "--num-samples", "8", "--seq-len", "32", "-o", out];
        place.run(&[&line, data].concat())
    };
    for (data, out) in [
        (&["--calib", "text.txt:0.75,other.txt:0.25"][..], "list"),
        (&["--calib", "text.txt:3", "--calib", "other.txt:1"], "apart"),
    ] {
        assert_eq!(run(data, out).code, Some(0), "{data:?}");
        let files = place.record(out)["data"]["files"].clone();
        let found = [0, 1].map(|file| (files[file]["name"].clone(), files[file]["share"].as_f64()));
        assert_eq!(found, [("text.txt".into(), Some(0.75)), ("other.txt".into(), Some(0.25))]);
        assert_eq!(place.record(out)["data"]["samples"], 8);
    }
    let weights = |out: &str| std::fs::read(place.path(out).join("model.safetensors")).unwrap();
    assert_eq!(weights("list"), weights("apart"));
    // Without shares the second file is not read: the first has enough.
    assert_eq!(run(&["--calib", "text.txt", "--calib", "other.txt"], "plain").code, Some(0));
    assert_eq!(place.record("plain")["data"]["files"].as_array().map(Vec::len), Some(1));
    for (data, problem) in [
        (&["--calib", "text.txt:1", "--calib", "other.txt"][..], "some files of calibration data have shares"),
        (&["--calib", "text.txt:1,other.txt:0"], "is not a number above 0"),
    ] {
        let refused = run(data, "none");
        assert!(refused.code == Some(2) && refused.stderr.contains(problem), "{refused:?}");
    }
    let small = run(&["--calib", "text.txt:1,other.txt:0.01"], "none");
    assert!(small.code == Some(1) && small.stderr.contains("other.txt: its share of 1.0 %"), "{small:?}");
    assert!(run(&["--calib", "text.txt:0.5,missing.txt:0.5"], "none").stderr.contains("missing.txt"));
}

#[cfg(unix)]
#[test]
fn the_model_writes_calibration_data_itself() {
    let place = place();
    let quantize = |data: &str, seed: &str, out: &str| {
        let line = [
            "quantize",
            "nano_llama",
            "-s",
            "int4:g32",
            "--algorithm",
            "gptq",
            "--num-samples",
            "4",
            "--seq-len",
            "32",
        ];
        [&line[..], &["--calib", data, "--seed", seed, "-o", out]]
            .concat()
            .iter()
            .map(|word| (*word).to_owned())
            .collect()
    };
    let run = |data: &str, seed: &str, out: &str| {
        let line: Vec<String> = quantize(data, seed, out);
        place.run(&line.iter().map(String::as_str).collect::<Vec<_>>())
    };
    for (data, seed, out) in [("self", "0", "out"), ("self", "1", "other"), ("self:0.5,text.txt:0.5", "0", "mixed")] {
        let done = run(data, seed, out);
        assert_eq!(done.code, Some(0), "{done:?}");
    }
    let (own, other) = (place.record("out")["data"].clone(), place.record("other")["data"].clone());
    assert_eq!(
        (&own["files"][0]["name"], &own["samples"], &own["tokens"]),
        (&"self.jsonl".into(), &4.into(), &128.into())
    );
    assert_ne!(own["files"][0]["xxh3_128"], other["files"][0]["xxh3_128"]);
    let rows = |file: usize| place.record("mixed")["data"]["files"][file]["rows_used"].as_u64();
    assert_eq!((rows(0), rows(1)), (Some(3), Some(1)), "two samples and the held-out one, and a text");
    for (data, message) in [
        ("self:0.5,text.txt", "some files of calibration data have shares, and others have none"),
        ("self:0.5,self:0.5", "self is named twice"),
        ("self:nan,text.txt:1", "a share of the calibration data is not a number above 0"),
    ] {
        let refused = run(data, "0", "refused");
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains(message), "{refused:?}");
    }
    let refused = place.run(&[
        "plan",
        "nano_llama",
        "-s",
        "int4:g32",
        "--algorithm",
        "gptq",
        "--calib",
        "self",
        "--column",
        "text",
    ]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("self has no fields, but `text` is required"), "{refused:?}");
    // What the model wrote outlives the run that it was written for.
    let whole = contents(&place.path("out"));
    std::fs::remove_dir_all(place.path("out")).unwrap();
    let line: Vec<String> = quantize("self", "0", "out");
    let kvant = place.command(&line.iter().map(String::as_str).collect::<Vec<_>>());
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "ulimit -f 300; exec \"$0\" \"$@\""]).arg(kvant.get_program()).args(kvant.get_args());
    assert!(!shell.current_dir(place.path("")).output().unwrap().status.success());
    let samples = place.path("out.partial.blocks/self.jsonl");
    let text = std::fs::read_to_string(&samples).unwrap();
    assert_eq!(text.lines().count(), 5);
    // As if it had been cut off in a row.
    std::fs::write(&samples, &text[..text.len() - 9]).unwrap();
    let again = run("self", "0", "out");
    assert_eq!(again.code, Some(0), "{again:?}");
    assert_eq!(contents(&place.path("out")), whole);
    assert_eq!(names(&place.path("")), ["mixed", "nano_llama", "other", "out", "text.txt"]);
}
