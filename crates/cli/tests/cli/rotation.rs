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
