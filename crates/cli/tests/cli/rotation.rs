//! Rotated models at the command line.

use crate::kvant::Place;
use std::fs;

/// The KL divergence from the float model on some text.
fn divergence(place: &Place, model: &str) -> f64 {
    let run =
        place.succeed(&["eval", model, "--reference", "nano_llama", "--data", "text.txt", "--seq-len", "64", "--json"]);
    run.json()["kl_mean"].as_f64().unwrap()
}

#[test]
fn rotated_model_has_other_codes_and_the_same_function() {
    let place = Place::new();
    place.write("text.txt", &"Every word counts, and the same word again. ".repeat(40));
    place.succeed(&["quantize", "nano_llama", "--scheme", "int8:channel", "-o", "plain"]);
    for (spelling, out) in [("rotate", "all"), ("rotate:size=32:seed=5", "groups"), ("quarot:stream=off", "heads")] {
        place.succeed(&["quantize", "nano_llama", "--scheme", "int8:channel", "--algorithm", spelling, "-o", out]);
        let (rotated, plain) = (divergence(&place, out), divergence(&place, "plain"));
        assert!(rotated < 2.0 * plain + 1e-5 && rotated != plain, "{out}: {rotated} {plain}");
        place.succeed(&["verify", out]);
    }
    let read = |model: &str| fs::read(place.path(&format!("{model}/model.safetensors"))).unwrap();
    assert!(read("all") != read("plain") && read("all") != read("groups"));
    place.succeed(&[
        "quantize",
        "nano_llama",
        "-s",
        "int8:channel",
        "--algorithm",
        "rotate",
        "-o",
        "again",
        "--threads",
        "1",
    ]);
    assert!(read("again") == read("all"), "bytes do not depend on threads");
}

#[test]
fn rotations_combine_with_calibrated_algorithms_and_activations() {
    let place = Place::new();
    place.write("text.txt", &"Every word counts, and the same word again. ".repeat(60));
    let data = ["--calib", "text.txt", "--num-samples", "8", "--seq-len", "32"];
    for (scheme, algorithm, out) in [
        ("int4:g32", "rotate,awq,qronos", "a"),
        ("int8:channel+int8:tensor!static", "rotate", "b"),
        ("Q8_0", "rotate", "c.gguf"),
    ] {
        let run = ["quantize", "nano_llama", "-s", scheme, "--algorithm", algorithm, "-o", out];
        let data = if out == "c.gguf" { &[][..] } else { &data[..] };
        place.succeed(&[&run[..], data].concat());
        let divergence = divergence(&place, out);
        assert!(divergence < 0.2, "{scheme} {algorithm}: {divergence}");
    }
}

#[test]
fn rotated_inputs_of_down_projections_keep_the_function_and_are_read_back() {
    let place = Place::new();
    place.write("text.txt", &"Every word counts, and the same word again. ".repeat(40));
    place.succeed(&["quantize", "nano_llama", "--scheme", "int8:channel", "-o", "plain"]);
    let plain = divergence(&place, "plain");
    for (format, algorithm) in [
        ("quark", "rotate:down=on"),
        ("compressed-tensors", "rotate:stream=off:heads=off:down=on"),
        ("quark", "rotate:size=32:down=on"),
        ("compressed-tensors", "rotate:size=32:down=on"),
    ] {
        let out = format!("{format} {algorithm}");
        let run =
            ["quantize", "nano_llama", "-s", "int8:channel", "--algorithm", algorithm, "--format", format, "-o", &out];
        place.succeed(&run);
        let rotated = divergence(&place, &out);
        assert!(rotated < 2.0 * plain + 1e-5 && rotated != plain, "{out}: {rotated} {plain}");
        place.succeed(&["verify", &out]);
        // The other format says the same.
        let other = if format == "quark" { "compressed-tensors" } else { "quark" };
        place.succeed(&["convert", &out, "--to", other, "-o", "other", "--overwrite"]);
        assert!((divergence(&place, "other") - rotated).abs() < 1e-9, "{out}");
        let refused = place.run(&["convert", &out, "--to", "float", "-o", "floats"]);
        assert!(refused.code == Some(1) && refused.stderr.contains("rotated while the model runs"), "{refused:?}");
    }
}

#[test]
fn calibrated_algorithms_see_rotated_inputs() {
    let place = Place::new();
    place.write("text.txt", &"Every word counts, and the same word again. ".repeat(60));
    let data = ["--calib", "text.txt", "--num-samples", "8", "--seq-len", "32"];
    for (scheme, algorithm, out) in [
        ("int4:g32+int8:token!dynamic", "rotate:down=on,gptq", "a"),
        ("int8:channel+int8:tensor!static", "rotate:down=on", "b"),
        ("int4:g32", "rotate:down=on,awq,qronos", "c"),
        ("int4:g32", "rotate:down=on,gptq,autoround:iterations=2", "d"),
    ] {
        let run = ["quantize", "nano_llama", "-s", scheme, "--algorithm", algorithm, "--format", "quark", "-o", out];
        place.succeed(&[&run[..], &data[..]].concat());
        let divergence = divergence(&place, out);
        assert!(divergence < 0.2, "{scheme} {algorithm}: {divergence}");
    }
}

#[test]
fn rotated_inputs_are_refused_where_no_loader_computes_them() {
    let place = Place::new();
    let refused = |more: &[&str]| {
        let run = ["plan", "nano_llama", "-s", "int4:g32", "--algorithm", "rotate:down=on"];
        let run = place.run(&[&run[..], more].concat());
        assert_eq!(run.code, Some(1), "{run:?}");
        run.stderr
    };
    for format in ["awq", "gptq", "mlx", "fake", "gguf", "onnx"] {
        let error = refused(&["--format", format]);
        assert!(error.contains("while the model runs") && error.contains("quark or compressed-tensors"), "{error}");
    }
    assert!(refused(&["--exclude", "*.1.mlp.down_proj"]).contains("model.layers.1.mlp.down_proj: stays float"));
    let of_size =
        place.run(&["plan", "nano_llama", "-s", "int4:g32", "--algorithm", "rotate:stream=off:down=on:size=48"]);
    assert!(of_size.stderr.contains("in groups of 48"), "{of_size:?}");
    let file = place.run(&["plan", "nano_llama", "-s", "Q4_K_M", "--algorithm", "rotate:down=on"]);
    assert!(file.code == Some(1) && file.stderr.contains("while the model runs"), "{file:?}");
}

#[test]
fn rotations_of_quark_json_are_those_of_kvant() {
    let place = Place::new();
    let quark =
        r#"{"name": "rotation", "r1": false, "r2": true, "r4": true, "rotation_size": 32, "scaling_layers": {}}"#;
    place.write("rotation.json", quark);
    place.write("r3.json", r#"{"name": "rotation", "r3": true}"#);
    let run = |algorithm: &str| {
        place.run(&[
            "plan",
            "nano_llama",
            "-s",
            "int8:channel",
            "--format",
            "quark",
            "--algorithm",
            algorithm,
            "--json",
        ])
    };
    let plan = run("rotation.json").json();
    assert_eq!(plan["recipe"]["algorithm"], serde_json::json!(["rotate:stream=off:down=on:size=32"]), "{plan}");
    assert!(run("r3.json").stderr.contains("rotation.r3"));
}

#[test]
fn rotations_come_first_and_fit_the_channels() {
    let place = Place::new();
    let refused = |algorithm: &str| {
        let run = place.run(&["plan", "nano_llama", "-s", "int4:g32", "--algorithm", algorithm]);
        assert_ne!(run.code, Some(0), "{run:?}");
        run.stderr
    };
    assert!(refused("gptq,rotate").contains("give `rotate` first"));
    assert!(refused("rotate:size=48").contains("128 channels"));
    assert!(refused("rotate:size=2").contains("from 4"));
    assert!(refused("rotate:stream=off:heads=off").contains("nothing"));
    // Its weights are codes.
    place.succeed(&["quantize", "nano_llama", "-s", "int4:g32", "-o", "codes"]);
    let run =
        place.run(&["quantize", "codes", "-s", "int8:channel", "--requantize", "--algorithm", "rotate", "-o", "out"]);
    assert!(run.code == Some(1) && run.stderr.contains("is quantized already"), "{run:?}");
}

#[test]
fn learned_rotation_is_recorded_planned_and_combined() {
    let place = Place::new();
    place.write("text.txt", &"Every word counts, and the same word again. ".repeat(60));
    let data = ["--calib", "text.txt", "--num-samples", "8", "--seq-len", "32"];
    for (scheme, algorithm, out) in [
        ("mxfp4", "rotate:size=32:steps=4", "nearest"),
        ("nvfp4", "rotate:steps=3:stream=off", "static"),
        ("int4:channel+int4:token!dynamic", "rotate:steps=3,qronos", "blocks"),
    ] {
        place.succeed(
            &[&["quantize", "nano_llama", "-s", scheme, "--algorithm", algorithm, "-o", out], &data[..]].concat(),
        );
        let record = fs::read_to_string(place.path(&format!("{out}/calibration.json"))).unwrap();
        let record: serde_json::Value = serde_json::from_str(&record).unwrap();
        let learned = &record["rotation"];
        let matrices = if out == "static" { 4 } else { 5 };
        assert_eq!(learned["matrices"], matrices, "{record}");
        let [before, after] = ["loss_before", "loss_after"].map(|key| learned[key].as_f64().unwrap());
        assert!(before > 0.0 && learned["used"].as_bool() == Some(after < before), "{learned}");
        place.succeed(&["verify", out]);
        assert!(divergence(&place, out) < 0.3, "{out}");
        assert!(!place.path(&format!("{out}.partial.blocks")).exists(), "what was learned is cleared away");
    }
    let plan = ["plan", "nano_llama", "-s", "mxfp4", "--algorithm", "rotate:steps=100", "--json"];
    let plan = place.succeed(&[&plan[..], &data].concat()).json();
    assert!(plan["calibration"]["rotation"].as_f64().unwrap() > 1e9 && plan["needs_data"] == false, "{plan}");
}

#[test]
fn learned_rotation_needs_data_and_schemes_with_scales_of_their_own() {
    let place = Place::new();
    place.write("text.txt", &"Every word counts, and the same word again. ".repeat(60));
    let run = |scheme: &str, more: &[&str]| {
        let run = ["quantize", "nano_llama", "-s", scheme, "--algorithm", "rotate:steps=2", "-o", "out"];
        let run = place.run(&[&run[..], more].concat());
        assert_ne!(run.code, Some(0), "{run:?}");
        run.stderr
    };
    assert!(run("mxfp4", &[]).contains("needs calibration data"));
    assert!(run("Q4_0", &["--calib", "text.txt"]).contains("GGUF"));
}
