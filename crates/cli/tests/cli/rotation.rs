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
