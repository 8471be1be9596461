//! Contradictory command lines, invalid numbers, and messages about colours, names and paths.

use crate::kvant::{Place, names};
use std::path::Path;

#[test]
fn output_name_of_another_kind_is_refused() {
    let place = Place::new();
    let lines: [(&[&str], &str); 7] = [
        (&["quantize", "nano_llama", "-s", "int8:channel", "-o", "l2.gguf"], "is a directory"),
        (&["plan", "nano_llama", "-s", "int8:channel", "-o", "l2.gguf"], "is a directory"),
        (&["quantize", "nano_llama", "-s", "int4:g32", "-o", "x.onnx"], "is a directory"),
        (&["quantize", "nano_llama", "-s", "int4:g32", "-o", "x.safetensors"], "is a directory"),
        (&["quantize", "nano_llama", "-s", "Q8_0", "-o", "x.onnx"], "is a GGUF file"),
        (&["quantize", "nano_llama", "-s", "int4:g32", "-f", "gguf", "-o", "x.safetensors"], "is a GGUF file"),
        (&["convert", "nano_llama", "--to", "float", "-o", "x.gguf"], "is a directory"),
    ];
    for (line, told) in lines {
        let run = place.run(line);
        assert_eq!(run.code, Some(2), "{line:?}: {run:?}");
        assert!(run.stderr.contains(told) && run.stderr.contains("choose a name without"), "{}", run.stderr);
    }
    assert_eq!(names(&place.path("")), ["nano_llama"]);
    let run = place.succeed(&["quantize", "nano_llama", "-s", "Q8_0", "-o", "q8"]);
    assert!(run.stderr.contains("without .gguf behind its name"), "{}", run.stderr);
}

#[test]
fn non_finite_numbers_are_usage_errors() {
    let place = Place::empty();
    let search = ["sensitivity", "a.onnx", "--preset", "A8W8", "--data", "c.npz"];
    let eval = ["eval", "model", "--data", "text.txt"];
    let plan = ["plan", "model", "-s", "fp8", "--kv-cache", "fp8"];
    let lines: [(&[&str], &[&str]); 14] = [
        (&plan, &["--num-samples", "-3"]),
        (&plan, &["--threads", "-3"]),
        (&plan, &["--percentile", "-3"]),
        (&["quantize", "model", "-s", "fp8", "-o", "out"], &["--max-kl", "-1"]),
        (&eval, &["--stride", "-3"]),
        (&search, &["--target-sqnr", "nan"]),
        (&search, &["--target-sqnr", "inf"]),
        (&search, &["--labels", "l", "--max-drop", "-1"]),
        (&search, &["--target-size", "0MB"]),
        (&eval, &["--seq-len", "1"]),
        (&eval, &["--stride", "0"]),
        (&eval, &["--num-samples", "0"]),
        (&plan, &["--min-kv-scale", "nan"]),
        (&plan, &["--min-kv-scale", "-0.5"]),
    ];
    for (line, options) in lines {
        let run = place.run(&[line, options].concat());
        assert_eq!(run.code, Some(2), "{options:?}: {run:?}");
        assert!(run.stderr.contains(options[options.len() - 2]), "{}", run.stderr);
        assert!(!run.stderr.contains("unexpected argument"), "{}", run.stderr);
    }
}

#[test]
fn colours_of_usage_errors_follow_the_option() {
    let place = Place::empty();
    let painted = |args: &[&str]| place.run(args).stderr.contains('\u{1b}');
    assert!(painted(&["quantize", "--color", "always"]) && painted(&["quantize", "--color=always"]));
    assert!(!painted(&["quantize", "--color", "never"]) && !painted(&["quantize"]));
}

#[test]
fn sensitivity_help_has_only_graph_options() {
    let help = Place::empty().succeed(&["sensitivity", "--help"]).stdout;
    for foreign in ["Hugging Face", "--format", "--kv-cache", "--seq-len", "--imatrix", "--carry"] {
        assert!(!help.contains(foreign), "{foreign}");
    }
    for own in ["ONNX graph", "--target-sqnr", "--op-types", "--calibration-method", "--seed"] {
        assert!(help.contains(own), "{own}");
    }
    let place = Place::empty();
    place.write("a.onnx", "");
    for report in ["r.json", "mix.toml"] {
        let run = place.run(&["sensitivity", "a.onnx", "--preset", "A8W8", "--data", "random", "--report", report]);
        let names_pages = run.stderr.contains("name a file that ends in .html or .md");
        assert!(run.code == Some(2) && names_pages, "{run:?}");
    }
}

#[test]
fn unknown_names_are_usage_errors() {
    let place = Place::new();
    let quantize = |more: &[&'static str]| [&["quantize", "nano_llama", "-o", "out"], more].concat();
    for line in [
        quantize(&["-s", "int5x"]),
        quantize(&["-s", "int4:g32", "--algorithm", "gptp"]),
        quantize(&["-s", "int4:g32", "--format", "quarks"]),
        quantize(&["-s", "int4:g32", "--algorithm", "gptq", "--calib", "nowhere.txt"]),
        quantize(&["-s", "int4:g32", "--algorithm", "gptq", "--calib", "random"]),
        quantize(&["-s", "int4:g32", "--lora", "random"]),
        quantize(&["-s", "Q4_0", "--imatrix", "nowhere.gguf"]),
        quantize(&["--recipe", "nowhere.toml"]),
        vec!["plan", "nano_llama", "-s", "Q4_K_X"],
        vec!["eval", "nano_llama", "--data", "nowhere.txt"],
        vec!["eval", "nano_llama", "--data", "random"],
        vec!["quantize", "a.onnx", "--preset", "A7W9", "-o", "out.onnx"],
        vec!["quantize", "a.onnx", "--preset", "A8W8", "--data", "nowhere.npz", "-o", "out.onnx"],
        vec!["sensitivity", "a.onnx", "--preset", "A8W8", "--data", "random", "--eval", "nowhere.npz"],
    ] {
        let run = place.run(&line);
        assert_eq!(run.code, Some(2), "{line:?}: {run:?}");
    }
    assert_eq!(names(&place.path("")), ["nano_llama"]);
}

#[test]
fn lossy_float_conversion_is_reported() {
    let place = Place::new();
    place.succeed(&["quantize", "nano_llama", "-s", "int4:g32", "-o", "codes"]);
    let run = place.succeed(&["convert", "codes", "--to", "float", "-o", "floats"]);
    assert!(run.stderr.contains("rounded to bfloat16") && run.stderr.contains("--dtype f32"), "{}", run.stderr);
    let run = place.succeed(&["convert", "codes", "--to", "float", "--dtype", "f32", "-o", "wide"]);
    assert!(!run.stderr.contains("rounded to"), "{}", run.stderr);
}

#[test]
fn graph_output_prints_its_path_and_cannot_be_its_source() {
    let place = Place::empty();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data");
    std::fs::copy(data.join("tinycnn.float.onnx"), place.path("float.onnx")).unwrap();
    let run = place.succeed(&["quantize", "float.onnx", "--preset", "FP16_MODEL", "-o", "half.onnx"]);
    assert!(Path::new(run.stdout.trim()).is_absolute() && run.stdout.trim().ends_with("half.onnx"), "{run:?}");
    let run = place.run(&["quantize", "float.onnx", "--preset", "FP16_MODEL", "-o", "float.onnx", "--overwrite"]);
    assert!(run.code == Some(2) && run.stderr.contains("is the source"), "{run:?}");
    for options in
        [&["--layout", "qoperator", "--activation", "uint16"][..], &["--layout", "qoperator", "--form", "quark"]]
    {
        let line = ["quantize", "float.onnx", "--preset", "A8W8", "--data", "random", "-o", "out.onnx"];
        let run = place.run(&[&line[..], options].concat());
        assert!(run.code == Some(2) && run.stderr.contains("--graph-format qoperator and"), "{run:?}");
    }
}

#[test]
fn index_outside_a_table_is_reported_with_its_sample() {
    let place = Place::empty();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data");
    std::fs::copy(data.join("tinytransformer.float.onnx"), place.path("float.onnx")).unwrap();
    let header = format!("{:<117}\n", "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 8), }");
    let mut ids = [1i64; 16];
    ids[11] = 885;
    let start = [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes()].concat();
    let values: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    std::fs::write(place.path("ids.npy"), [start, values].concat()).unwrap();
    let line =
        ["quantize", "float.onnx", "--preset", "A8W8", "--data", "ids.npy", "--runtime", "rten", "-o", "out.onnx"];
    let run = place.run(&line);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stderr.contains("sample 1 of the data") && run.stderr.contains("`ids` up to 885"), "{}", run.stderr);
}

/// A path that is named and leads to nothing is wrong usage, whichever option or command names it.
#[test]
fn missing_paths_are_usage_errors() {
    let place = Place::new();
    place.write("text.txt", "a text");
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data");
    std::fs::copy(data.join("tinycnn.float.onnx"), place.path("float.onnx")).unwrap();
    let lines: &[(&str, &str)] = &[
        ("quantize none -s int4:g32 -o out", "Hub"),
        ("quantize none.gguf -s Q4_0 -o out.gguf", "Hub"),
        ("quantize none.onnx --preset A8W8 --data random -o out.onnx", "Hub"),
        ("quantize nano_llama -s int4:g32 --lora none -o out", "--lora"),
        ("quantize nano_llama --recipe none.toml -o out", "--recipe"),
        ("quantize nano_llama -s int8 --calib none.txt -o out", "--calib"),
        ("quantize nano_llama -s Q4_0 --imatrix none -o out.gguf", "--imatrix"),
        ("quantize nano_llama -s int4:g32 --eval none.txt --max-kl 1 -o out", "--eval"),
        ("quantize float.onnx --preset A8W8 --data none.npz -o out.onnx", "--data"),
        ("plan none -s int4:g32", "Hub"),
        ("plan float.onnx --preset A8W8 --data none.npz", "--data"),
        ("convert none --to float -o out", "Hub"),
        ("convert nano_llama --to float --lora none -o out", "--lora"),
        ("inspect none", "Hub"),
        ("inspect none.onnx", "Hub"),
        ("verify none", "Hub"),
        ("verify none.gguf", "Hub"),
        ("verify none.onnx", "Hub"),
        ("eval none --data text.txt", "Hub"),
        ("eval nano_llama --data none.txt", "--data"),
        ("eval nano_llama --data text.txt --reference none", "--reference"),
        ("eval nano_llama --data text.txt --tokenizer none", "--tokenizer"),
        ("eval nano_llama --data text.txt --lora none", "--lora"),
        ("eval float.onnx --data none.npz --reference float.onnx", "--data"),
        ("eval float.onnx --data random --reference none.onnx", "--reference"),
        ("sensitivity none.onnx --preset A8W8 --data random", "Hub"),
        ("sensitivity float.onnx --preset A8W8 --data random --eval none.npz", "--eval"),
    ];
    for (line, told) in lines {
        let run = place.run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(run.code, Some(2), "{line}: {run:?}");
        assert!(run.stderr.contains("none") && run.stderr.contains(told), "{line}: {}", run.stderr);
    }
    assert_eq!(names(&place.path("")), ["float.onnx", "nano_llama", "text.txt"]);
}

#[test]
fn file_outputs_named_like_directories_are_refused_first() {
    let place = Place::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data");
    std::fs::copy(data.join("tinycnn.float.onnx"), place.path("float.onnx")).unwrap();
    for line in [
        "quantize nano_llama -s Q8_0 -o x.gguf/",
        "quantize nano_llama -s Q8_0 -o x/",
        "quantize float.onnx --preset A8W8 --data random -o x.onnx/",
        "convert nano_llama --to onnx -o x.onnx/",
    ] {
        let run = place.run(&line.split(' ').collect::<Vec<_>>());
        assert!(run.code == Some(2) && run.stderr.contains("ends with a slash"), "{line}: {run:?}");
    }
    let run = place.run(&["quantize", "nano_llama", "-s", "Q4_0", "--imatrix", "nano_llama", "-o", "x.gguf"]);
    assert!(run.code == Some(2) && run.stderr.contains("--imatrix nano_llama is a directory"), "{run:?}");
    assert_eq!(names(&place.path("")), ["float.onnx", "nano_llama"]);
}

#[test]
fn options_that_mean_nothing_for_a_checkpoint_or_a_gguf_file_are_refused_by_name() {
    let place = Place::new();
    place.write("text.txt", &"a text of some words ".repeat(200));
    place.succeed(&["quantize", "nano_llama", "-s", "F16", "-o", "f16.gguf"]);
    place.succeed(&["quantize", "nano_llama", "-s", "int4:g32", "-o", "int4"]);
    let before = names(&place.path(""));
    let to_checkpoint = "quantize nano_llama -s int4:g32 -o out";
    let to_gguf = "quantize nano_llama -s Q4_0 -o out.gguf";
    let from_gguf = "quantize f16.gguf -s Q4_0 -o out.gguf";
    let codes_to_gguf = "quantize nano_llama -s int4:g32 -f gguf -o out.gguf";
    let codes_to_graph = "quantize nano_llama -s int4:g32 -f onnx -o out.onnx";
    let plan = "plan nano_llama -s int4:g32 -f gguf";
    let measured = "quantize nano_llama -s Q4_0 --algorithm imatrix -o out.gguf --calib text.txt";
    let eval = "eval f16.gguf --data text.txt --seq-len 64";
    for (line, option) in [
        (to_checkpoint, "--propagate float --calib text.txt"),
        (to_checkpoint, "--imatrix text.txt"),
        (to_checkpoint, "--save-imatrix out.dat --calib text.txt"),
        (to_checkpoint, "--external-data always"),
        (to_checkpoint, "--preprocess size=3"),
        (to_checkpoint, "--kv-cache-post-rope"),
        (to_checkpoint, "--min-kv-scale 0.1"),
        (to_gguf, "--kv-cache fp8"),
        (to_gguf, "--kv-cache-post-rope"),
        (to_gguf, "--min-kv-scale 0.1"),
        (to_gguf, "--attention fp8"),
        (to_gguf, "--pack-method order"),
        (to_gguf, "--no-keep-defaults"),
        (to_gguf, "--weights-only"),
        (to_gguf, "--max-shard-size 1MB"),
        (to_gguf, "--calib text.txt"),
        (to_gguf, "--algorithm gptq"),
        (measured, "--propagate float"),
        (from_gguf, "--lora int4"),
        (from_gguf, "--max-shard-size 1MB"),
        (from_gguf, "--kv-cache fp8"),
        (codes_to_gguf, "--max-shard-size 1MB"),
        (codes_to_gguf, "--pack-method order"),
        (codes_to_graph, "--max-shard-size 1MB"),
        (codes_to_graph, "--pack-method order"),
        (plan, "--max-shard-size 1MB"),
        (plan, "--pack-method order"),
        ("plan f16.gguf -s int4:g32", "--imatrix text.txt"),
        ("convert int4 --to float -o out", "--requantize"),
        ("convert f16.gguf --to float -o out", "--lora int4"),
        ("convert int4 --to gguf -o out.gguf", "--max-shard-size 1MB"),
        ("convert int4 --to gptq -o out", "--dtype bf16"),
        (eval, "--lora int4"),
        (eval, "--labels x"),
        (eval, "--stride 65"),
    ] {
        let run = place.run(&line.split(' ').chain(option.split(' ')).collect::<Vec<_>>());
        let name = option.split(' ').next().unwrap();
        assert!(run.code == Some(2) && run.stderr.contains(name), "{line} {option}: {run:?}");
    }
    assert_eq!(names(&place.path("")), before);
    // With a checkpoint among the outputs they have a meaning.
    let both = ["quantize", "nano_llama", "-s", "int4:g32", "-f", "gguf", "-f", "quark", "-o", "both"];
    place.succeed(&[&both[..], &["--max-shard-size", "1MB", "--pack-method", "order"]].concat());
}

#[test]
fn what_is_not_known_is_wrong_usage_for_gguf_files_too() {
    let place = Place::new();
    for (options, told) in [
        (&["-s", "Q9_K"][..], "unknown scheme `Q9_K`"),
        (&["-s", "Q4_K_M", "--algorithm", "gptp"], "did you mean `gptq`"),
        (&["-s", "Q4_K_M", "--algorithm", "imatrix,gptp"], "unknown algorithm `gptp`"),
        (&["-s", "Q4_K_M", "--override", "blk.*=Q9_K"], "`Q9_K` is not a tensor type"),
        (&["-s", "Q4_K_M", "--imatrix", "missing.dat"], "missing.dat: there is no such file"),
        (&["-s", "Q4_K_M", "--algorithm", "imatrix", "--calib", "missing.txt"], "missing.txt: there is no such file"),
        (&["-s", "Q4_K_M", "--algorithm", "imatrix"], "needs calibration data"),
    ] {
        for command in [&["plan", "nano_llama"][..], &["quantize", "nano_llama", "-o", "out.gguf"]] {
            let run = place.run(&[command, options].concat());
            // Data may come after the plan.
            let is_open = command[0] == "plan" && told.starts_with("needs");
            assert_eq!(run.code, Some(if is_open { 0 } else { 2 }), "{command:?} {options:?}: {run:?}");
            assert!(run.stderr.contains(told), "{options:?}: {}", run.stderr);
        }
    }
    assert_eq!(names(&place.path("")), ["nano_llama"]);
}

#[test]
fn presets_of_graphs_are_no_schemes_of_checkpoints() {
    let place = Place::new();
    for (scheme, told) in [("U8S8_AAWS", "is a preset for ONNX graphs"), ("U8S8_AAWT", "unknown scheme")] {
        let run = place.run(&["quantize", "nano_llama", "-s", scheme, "-f", "onnx", "-o", "out"]);
        assert!(run.code == Some(2) && run.stderr.contains(told), "{run:?}");
    }
}

#[test]
fn graphs_are_no_references_of_checkpoints() {
    let place = Place::new();
    place.write("text.txt", "A text to measure on.");
    place.succeed(&["convert", "nano_llama", "--to", "onnx", "-o", "g.onnx"]);
    let refused = place.run(&["eval", "nano_llama", "--data", "text.txt", "--reference", "g.onnx"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("--reference g.onnx is an ONNX graph"), "{}", refused.stderr);
}
