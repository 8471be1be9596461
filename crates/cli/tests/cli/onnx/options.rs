//! Options that do not apply, have no effect or name what is not there.

use super::sensitivity::SENSITIVITY;
use super::{place, quantize};
use crate::kvant::names;

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
fn types_of_codes_that_no_tensor_has_are_refused() {
    let place = place();
    for (options, told) in [
        (&["--preset", "MATMUL_NBITS", "--activation", "int8"][..], ["--activation", "--preset MATMUL_NBITS"]),
        (&["--preset", "FP16_MODEL", "--weight", "int8"], ["--weight", "--preset FP16_MODEL"]),
        (&["--preset", "A8W8", "--weights-only", "--activation", "int8"], ["--activation", "--weights-only"]),
        (&["--preset", "FP16_MODEL", "--calibration-method", "mse"], ["--calibration-method", "--preset FP16_MODEL"]),
    ] {
        for line in [&["plan", "float.onnx"][..], &["quantize", "float.onnx", "-o", "out.onnx"]] {
            let run = place.run(&[line, options].concat());
            assert!(run.code == Some(2) && run.stderr.contains("hint: leave one of them out"), "{run:?}");
            assert!(told.iter().all(|told| run.stderr.contains(told)), "{run:?}");
        }
    }
    // Its only operators take one scale for each activation, or have no channels.
    let only = ["--op-types", "Gemm,GlobalAveragePool,MaxPool", "--activation", "uint8", "--per-channel-activations"];
    let run = place.run(&[&["plan", "float.onnx", "--preset", "U8S8_AAWS"], &only[..]].concat());
    assert!(run.code == Some(2) && run.stderr.contains("--per-channel-activations has no effect"), "{run:?}");
    assert!(run.stderr.contains("hint: leave --per-channel-activations out"), "{run:?}");
}

#[test]
fn misspelt_data_are_usage_errors_with_what_there_is() {
    let place = place();
    std::fs::create_dir(place.path("images")).unwrap();
    std::fs::write(place.path("images/a.png"), "no picture").unwrap();
    let quantize = ["quantize", "float.onnx", "--preset", "A8W8", "-o", "out.onnx"];
    for (options, told) in [
        (&["--data", "random:foo"][..], "random, random:normal or random:uniform"),
        (&["--data", "images", "--preprocess", "foo=1"], "the keys are size, letterbox"),
        (&["--data", "images", "--preprocess", "interpolation=cubic"], "nearest, bilinear, bicubic or lanczos"),
    ] {
        let run = place.run(&[&quantize[..], options].concat());
        assert!(run.code == Some(2) && run.stderr.contains(told), "{run:?}");
        assert!(run.stderr.contains("hint: "), "{run:?}");
    }
    let run = place.run(&[&quantize[..], &["--data", "images", "--preprocess", "size=8x8"]].concat());
    assert!(run.code == Some(1) && run.stderr.contains("hint: the picture is damaged"), "{run:?}");
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
fn recipe_named_like_a_graph_is_refused() {
    let place = place();
    let run = place.run(&[&SENSITIVITY[..], &["--target-sqnr", "20", "-o", "mixed.onnx"]].concat());
    assert!(run.code == Some(2) && run.stderr.contains("mixed.onnx") && run.stderr.contains(".toml"), "{run:?}");
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
