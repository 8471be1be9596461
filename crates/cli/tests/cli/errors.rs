//! Refusals: the exit code, the message, the hint, and that nothing is written.

use crate::kvant::{Place, names};

#[test]
fn error_messages() {
    let place = Place::new();
    place.write("model.onnx", "");
    place.write("short.safetensors", "\u{8}");
    place.write("recipe.toml", "version = 2\nscheme = \"mxfp4\"\nexcludes = [\"lm_head\"]\n");
    let quantize = |more: &[&str]| place.show(&[&["quantize", "nano_llama", "-o", "out"], more].concat());
    for (name, code, text) in [
        ("unknown_scheme", 2, quantize(&["--scheme", "int4_wo_12"])),
        ("misspelt_scheme", 2, quantize(&["--scheme", "int4:g128:zq"])),
        ("algorithm_as_scheme", 2, quantize(&["--scheme", "awq"])),
        ("unknown_algorithm", 2, quantize(&["--scheme", "int4_wo_128", "--algorithm", "gptp"])),
        ("algorithm_option", 2, quantize(&["--scheme", "int4_wo_128", "--algorithm", "awq,gptq:damp=0.1"])),
        ("two_roundings", 2, quantize(&["--scheme", "int4_wo_128", "--quant-algo", "gptq", "--quant_algo", "qronos"])),
        ("group_does_not_divide", 1, quantize(&["--scheme", "int4:g96"])),
        ("no_place_in_the_format", 1, quantize(&["--scheme", "mx9", "--format", "quark"])),
        ("siblings", 1, quantize(&["--scheme", "mxfp4", "--override", "*.q_proj=int8:channel"])),
        ("nothing_left", 1, quantize(&["--scheme", "mxfp4", "--exclude", "*"])),
        ("unknown_field", 2, quantize(&["--recipe", "recipe.toml"])),
        ("no_recipe_file", 2, quantize(&["--recipe", "nowhere.toml"])),
        ("onnx", 1, place.show(&["quantize", "model.onnx", "--preset", "A8W8", "-o", "out.onnx"])),
        ("no_model", 2, place.show(&["plan", "nowhere", "--scheme", "mxfp4"])),
        ("damaged_file", 1, place.show(&["inspect", "short.safetensors"])),
    ] {
        insta::assert_snapshot!(format!("error_{name}"), text);
        assert!(text.contains(&format!("exit code: {code}\n")), "{text}");
    }
    assert_eq!(names(&place.path("")), ["model.onnx", "nano_llama", "recipe.toml", "short.safetensors"]);
}

#[test]
fn usage_errors() {
    let place = Place::new();
    for (name, args) in [
        ("no_scheme", &["quantize", "nano_llama", "-o", "out"][..]),
        ("no_output", &["quantize", "nano_llama", "--scheme", "mxfp4"]),
        ("unknown_option", &["quantize", "nano_llama", "--schema", "mxfp4", "-o", "out"]),
        ("unknown_command", &["quantise", "nano_llama"]),
        ("bad_override", &["plan", "nano_llama", "--scheme", "mxfp4", "--override", "int8:channel"]),
        ("calibration_needed", &["quantize", "nano_llama", "-o", "out", "--scheme", "int8"]),
        (
            "algorithm_without_data",
            &["quantize", "nano_llama", "-o", "out", "--scheme", "int4_wo_128", "--algorithm", "gptq"],
        ),
        (
            "importance_without_data",
            &["quantize", "nano_llama", "-o", "out", "--scheme", "Q4_0", "--algorithm", "imatrix"],
        ),
        ("bad_size", &["plan", "nano_llama", "--scheme", "mxfp4", "--max-shard-size", "5 apples"]),
        ("bad_format", &["plan", "nano_llama", "--scheme", "mxfp4", "--format", "quarks"]),
        ("output_is_source", &["quantize", "nano_llama", "-s", "mxfp4", "-o", "nano_llama", "--overwrite"]),
        ("no_threads", &["plan", "nano_llama", "--scheme", "mxfp4", "--threads", "0"]),
    ] {
        let text = place.show(args);
        insta::assert_snapshot!(format!("usage_{name}"), text);
        assert!(text.contains("exit code: 2\n-- stdout\n-- stderr\nerror: "), "{text}");
    }
    assert_eq!(names(&place.path("")), ["nano_llama"]);
}

#[test]
fn hints_name_options_of_the_command() {
    let place = Place::new();
    place.write("notes.txt", "no model");
    place.write("graph.onnx", "");
    fn quantize<'a>(more: &[&'a str]) -> Vec<&'a str> {
        [&["quantize", "nano_llama", "-o", "out"], more].concat()
    }
    for (code, args, told, untold) in [
        (1, ["convert", "notes.txt", "--to", "gguf", "-o", "out"].to_vec(), ".bin, .gguf or .onnx file", "damaged"),
        (1, ["convert", "graph.onnx", "--to", "float", "-o", "out"].to_vec(), "is an ONNX graph", "damaged"),
        (2, quantize(&["--scheme", "Q4_K_M", "--format", "awq"]), "scheme for GGUF files only", "unknown"),
        (2, quantize(&["--scheme", "int4:g3x", "--format", "gguf"]), "g3x", "not a GGUF type"),
        (2, quantize(&["--scheme", "Q4_K_X", "--format", "gguf"]), "not a GGUF type", "unknown scheme"),
        (1, quantize(&["--scheme", "Q4_0", "--override", "*.dawn=Q8_0"]), "ffn_down", "note"),
    ] {
        let run = place.run(&args);
        assert_eq!(run.code, Some(code), "{args:?}: {run:?}");
        assert!(run.stderr.contains(told) && !run.stderr.contains(untold), "{args:?}: {}", run.stderr);
    }
    place.write("out.gguf", "mine");
    let run = place.run(&["quantize", "nano_llama", "--scheme", "Q8_0", "-o", "out.gguf"]);
    assert!(run.stderr.contains("choose another output with -o"), "{}", run.stderr);
}

#[test]
fn patterns_are_looked_for_where_they_were_given() {
    let place = Place::new();
    place.write(
        "override.toml",
        "version = 2\nscheme = \"mxfp4\"\noverride = [{layers = \"*.dawn\", scheme = \"int8\"}]\n",
    );
    place.write("exclude.toml", "version = 2\nscheme = \"mxfp4\"\nexclude = [\"*.dawn\"]\n");
    for (options, told) in [
        (&["-s", "mxfp4", "--override", "*.dawn=int8"][..], "given with --override\n"),
        (&["-s", "mxfp4", "--exclude", "*.dawn"], "given with --exclude\n"),
        (&["--recipe", "override.toml"], "given in the recipe file\n"),
        (&["--recipe", "exclude.toml"], "given in the recipe file\n"),
        (
            &["--recipe", "exclude.toml", "--override", "*.q_praj=int8", "--exclude", "*.dawn"],
            "given in the recipe file\n",
        ),
    ] {
        let run = place.run(&[&["plan", "nano_llama"], options].concat());
        assert!(run.code == Some(1) && run.stderr.contains(told), "{options:?}: {run:?}");
    }
    let run = place.run(&["plan", "nano_llama", "-s", "mxfp4", "--exclude", "re:("]);
    assert!(run.code == Some(2) && run.stderr.contains("position 1:"), "{run:?}");
}

#[test]
fn missing_configuration_is_named_as_what_is_missing() {
    let place = Place::new();
    std::fs::create_dir(place.path("tensors")).unwrap();
    for to in ["tensors/model.safetensors", "alone.safetensors"] {
        std::fs::copy(place.path("nano_llama/model.safetensors"), place.path(to)).unwrap();
    }
    for (model, hint) in [
        ("tensors", "put the model's config.json next to its weights"),
        ("alone.safetensors", "name the directory of the model, not one of its files"),
    ] {
        let run = place.run(&["quantize", model, "-s", "Q4_K_M", "-o", "out.gguf"]);
        assert!(run.code == Some(1) && run.stderr.contains("there is no config.json"), "{run:?}");
        assert!(run.stderr.ends_with(&format!("hint: {hint}\n")), "{run:?}");
    }
}

#[test]
fn non_finite_gguf_weight_is_reported_with_its_file() {
    let place = Place::new();
    place.succeed(&["quantize", "nano_llama", "--scheme", "F32", "-o", "floats.gguf"]);
    let mut bytes = std::fs::read(place.path("floats.gguf")).unwrap();
    // Blocks stand in the middle, and most of them is matrices.
    let middle = bytes.len() / 8 * 4;
    bytes[middle..middle + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(place.path("floats.gguf"), bytes).unwrap();
    let lines: [&[&str]; 2] = [
        &["quantize", "floats.gguf", "--scheme", "Q8_0", "-o", "out.gguf"],
        &["quantize", "floats.gguf", "--scheme", "int4:g32", "--no-keep-defaults", "-o", "out"],
    ];
    for line in lines {
        let run = place.run(line);
        assert_eq!(run.code, Some(1), "{run:?}");
        assert!(run.stderr.contains("floats.gguf: the ") && run.stderr.contains("--exclude"), "{}", run.stderr);
    }
}

#[test]
fn json_errors_are_objects_on_stdout() {
    let place = Place::new();
    for (args, code, kind) in [
        (&["plan", "nano_llama", "--scheme", "int4_wo_12", "--json"][..], 2, "usage"),
        (&["quantize", "nano_llama", "--scheme", "fp8", "-o", "out", "--json"], 2, "usage"),
        (&["plan", "nano_llama", "--scheme", "mx6", "--format", "quark", "--json"], 1, "unsupported"),
        (&["inspect", "nowhere", "--json"], 2, "usage"),
        (&["inspect", "--json"], 2, "usage"),
    ] {
        let run = place.run(args);
        let error = &run.json()["error"];
        assert_eq!((run.code, error["kind"].as_str()), (Some(code), Some(kind)));
        let message = error["message"].as_str().unwrap();
        assert!(!message.is_empty() && !message.contains('\n'), "{message}");
        assert!(run.stderr.starts_with("error: "), "{run:?}");
    }
}

#[test]
fn unmatched_patterns_are_refused_with_nearest_names() {
    let place = Place::new();
    place.write("recipe.toml", "version = 2\nscheme = \"int4:g32\"\nexclude = [\"*.down_porj\"]\n");
    let int4 = ["--scheme", "int4:g32"];
    for options in [
        &["--scheme", "int4:g32", "-x", "*.down_porj"][..],
        &["--scheme", "int4:g32", "-x", "re:.*down_porj$"],
        &["--scheme", "int4:g32", "--override", "*.down_porj=int8:channel"],
        &["--scheme", "int4:g32", "--override", "*.down_porj=keep"],
        &["--recipe", "recipe.toml"],
        &["--scheme", "Q8_0", "-x", "*.down_porj"],
        &["--scheme", "Q8_0", "--override", "re:.*down_porj=Q4_0"],
    ] {
        let run = place.run(&[&["quantize", "nano_llama", "-o", "out"], options].concat());
        assert_eq!(run.code, Some(1), "{options:?}: {run:?}");
        assert!(run.stderr.contains("down_porj") && run.stderr.contains("did you mean down_proj"), "{}", run.stderr);
        assert!(!place.path("out").exists());
    }
    place.succeed(&["quantize", "nano_llama", "-s", "F16", "-o", "f16.gguf"]);
    for pattern in [&["-x", "*.ffn_donw"], &["--override", "*.ffn_donw=Q8_0"]] {
        let run = place.run(&[&["quantize", "f16.gguf", "-s", "Q4_0", "-o", "out.gguf"][..], pattern].concat());
        assert!(run.code == Some(1) && run.stderr.contains("ffn_donw"), "{run:?}");
        assert!(run.stderr.contains("did you mean ffn_down") && !place.path("out.gguf").exists(), "{run:?}");
    }
    let run = place.run(&[&["plan", "nano_llama", "-x", "re:(q|k"][..], &int4].concat());
    assert!(run.code == Some(2) && run.stderr.contains("not a regular expression"), "{run:?}");
    // What is never quantized can be named, and regular expressions take layers out.
    for (pattern, kept) in [("lm_head", 0), ("model.norm", 0), ("re:.*(gate|up|down)_proj$", 12), ("*.o_proj", 4)] {
        let plan = place.succeed(&[&["plan", "nano_llama", "--json", "-x", pattern][..], &int4].concat()).json();
        assert_eq!(plan["quantized_layers"], 28 - kept, "{pattern}");
    }
}

#[test]
fn remedies_are_data_with_settings_of_the_command() {
    let place = Place::new();
    let run = place.run(&["quantize", "nano_llama", "-s", "fp8", "-o", "out", "--json"]);
    let error = &run.json()["error"];
    let [data, weights, scheme, statistics] = error["remedies"].as_array().unwrap().as_slice() else {
        panic!("{run:?}")
    };
    assert_eq!((&data["kind"], &data["setting"]), (&"give-calibration-data".into(), &"calib".into()));
    assert_eq!(
        (&weights["kind"], &weights["text"].as_str().unwrap().contains("--weights-only")),
        (&"quantize-weights-only".into(), &true)
    );
    assert_eq!((&scheme["kind"], &scheme["values"]), (&"use-scheme".into(), &serde_json::json!([])));
    assert_eq!((&statistics["kind"], &statistics["setting"]), (&"setting".into(), &"statistics".into()));
    std::fs::create_dir(place.path("out")).unwrap();
    place.write("out/mine.txt", "mine");
    let run = place.run(&["quantize", "nano_llama", "-s", "int4_wo_128", "-o", "out", "--json"]);
    let kinds: Vec<_> = run.json()["error"]["remedies"].as_array().unwrap().iter().map(|r| r["kind"].clone()).collect();
    assert_eq!(kinds, ["text", "choose-output"], "{run:?}");
}

#[test]
fn mistakes_in_recipes_are_reported_with_file_and_key() {
    let place = Place::new();
    let group = r#"{"global_quant_config": {"weight": {"dtype": "int4", "qscheme": "per_group"}}}"#;
    for (name, text, told) in [
        ("broken.json", "[", "JSON"),
        ("group.json", group, "`group_size` is missing"),
        (
            "expression.toml",
            "version = 2\nscheme = \"int4:g32\"\nexclude = [\"re:([\"]\n",
            "is not a regular expression",
        ),
    ] {
        place.write(name, text);
        let run = place.run(&["plan", "nano_llama", "--recipe", name]);
        let is_told = run.stderr.contains(told) && run.stderr.contains(name) && !run.stderr.contains("TOML:");
        assert!(run.code != Some(0) && is_told, "{name}: {}", run.stderr);
    }
}

/// Whether a loss can be accepted depends on the target.
#[test]
fn conversions_are_refused_with_advice_that_helps() {
    let place = Place::new();
    place.succeed(&["quantize", "nano_llama", "--scheme", "int4:g32", "--format", "quark", "-o", "int4"]);
    place.succeed(&["quantize", "nano_llama", "--scheme", "int8:channel", "--format", "quark", "-o", "int8"]);
    for (source, format, told, untold) in [
        ("int4", "fp8", "convert --to float and quantize that", "--requantize"),
        ("int4", "mxfp4", "choose another format", "--requantize"),
        ("int8", "awq", "--requantize", "another format"),
    ] {
        let run = place.run(&["convert", source, "--to", format, "-o", "out"]);
        assert!(run.stderr.contains(told) && !run.stderr.contains(untold), "{format}: {}", run.stderr);
    }
    let run = place.run(&["convert", "int8", "--to", "awq", "--requantize", "-o", "out"]);
    assert_eq!(run.code, Some(0), "{run:?}");
}

#[test]
fn broken_scales_are_named_in_conversions() {
    let place = Place::new();
    place.succeed(&["quantize", "nano_llama", "--scheme", "int4:g32", "--format", "quark", "-o", "int4"]);
    let file = place.path("int4").join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let scales = &header["model.layers.0.mlp.up_proj.weight_scale"];
    let start = 8 + length + scales["data_offsets"][0].as_u64().unwrap() as usize;
    let nan: &[u8] = if scales["dtype"] == "F32" { &[0, 0, 0xc0, 0x7f] } else { &[0xc0, 0x7f] };
    bytes[start..start + nan.len()].copy_from_slice(nan);
    std::fs::write(&file, bytes).unwrap();
    for (format, more) in [("gguf", &[][..]), ("gguf", &["--requantize"]), ("awq", &["--requantize"]), ("float", &[])] {
        let output = if format == "gguf" { "out.gguf" } else { "out" };
        let run = place.run(&[&["convert", "int4", "--to", format, "-o", output], more].concat());
        assert!(run.code == Some(1) && run.stderr.contains("is NaN"), "{format}: {}", run.stderr);
        assert!(!run.stderr.contains("exact") && !run.stderr.contains("beyond"), "{format}: {}", run.stderr);
    }
}
