//! `kvant verify`, and the verification at the end of `kvant quantize`.

use crate::kvant::{Place, names};
use serde_json::Value;
use std::fs;

/// Replaces a text in a file of text.
pub fn replace(place: &Place, file: &str, from: &str, to: &str) {
    let text = fs::read_to_string(place.path(file)).unwrap();
    assert!(text.contains(from), "{file}");
    place.write(file, &text.replace(from, to));
}

/// Overwrites the first bytes of a tensor.
fn overwrite(place: &Place, file: &str, tensor: &str, bytes: &[u8]) {
    let mut contents = fs::read(place.path(file)).unwrap();
    let length = u64::from_le_bytes(contents[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&contents[8..8 + length]).unwrap();
    let start = 8 + length + header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    contents[start..start + bytes.len()].copy_from_slice(bytes);
    fs::write(place.path(file), contents).unwrap();
}

fn quantized(scheme: &str) -> Place {
    let place = Place::new();
    place.succeed(&["quantize", "nano_llama", "--scheme", scheme, "-o", "out"]);
    place
}

#[test]
fn verify_tables() {
    let place = quantized("W4A16");
    insta::assert_snapshot!("verify_float", place.show(&["verify", "nano_llama"]));
    insta::assert_snapshot!("verify", place.show(&["verify", "out"]));
    insta::assert_snapshot!("verify_devices", place.show(&["verify", "out", "--tensor-parallel", "8"]));
    replace(&place, "out/config.json", "\"group_size\": 128", "\"group_size\": 64");
    insta::assert_snapshot!("verify_broken", place.show(&["verify", "out"]));
    insta::assert_snapshot!("verify_broken_all", place.show(&["verify", "out", "--quick", "--all"]));
}

#[test]
fn files_other_than_those_written_are_found() {
    let place = quantized("W4A16");
    // A bit of a code, which every other check takes for a code.
    let weights = fs::read(place.path("out/model.safetensors")).unwrap();
    let mut flipped = weights.clone();
    *flipped.last_mut().unwrap() ^= 1;
    fs::write(place.path("out/model.safetensors"), flipped).unwrap();
    let run = place.run(&["verify", "out"]);
    assert!(run.code == Some(1) && run.stdout.contains("is not as Kvant wrote it"), "{run:?}");
    assert_eq!(place.run(&["verify", "out", "--for", "vllm"]).code, Some(1));
    place.succeed(&["verify", "out", "--quick"]);
    let manifest = fs::read(place.path("out/kvant_manifest.json")).unwrap();
    place.write("out/kvant_manifest.json", "{}");
    let blind = place.succeed(&["verify", "out"]);
    assert!(blind.stdout.contains("whether files are as Kvant wrote them is not known"), "{blind:?}");
    fs::write(place.path("out/kvant_manifest.json"), manifest).unwrap();
    fs::write(place.path("out/model.safetensors"), weights).unwrap();
    fs::remove_file(place.path("out/generation_config.json")).unwrap();
    let warned = place.succeed(&["verify", "out"]);
    assert!(warned.stdout.contains("is not there, and kvant_manifest.json lists it"), "{warned:?}");
}

#[test]
fn layers_of_zeros_in_the_source_are_shown_by_quantize() {
    let place = Place::new();
    let zeros = vec![0; 384 * 128 * 2];
    overwrite(&place, "nano_llama/model.safetensors", "model.layers.1.mlp.up_proj.weight", &zeros);
    let run = place.succeed(&["quantize", "nano_llama", "--scheme", "int4:g64", "--quiet", "-o", "out"]);
    let named = "warning: model.layers.1.mlp.up_proj.weight: all codes are the same";
    assert!(run.stderr.contains(named), "{run:?}");
}

/// A key that is left over from the model's codes, beside its floats.
#[test]
fn quantization_that_is_stated_and_not_there_is_an_error() {
    let place = Place::new();
    let config = fs::read_to_string(place.path("nano_llama/config.json")).unwrap();
    for stated in [
        r#"{"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": true}"#,
        r#"{"quant_method": "fp8", "activation_scheme": "dynamic"}"#,
    ] {
        place.write(
            "nano_llama/config.json",
            &config.replacen('{', &format!("{{\"quantization_config\": {stated},"), 1),
        );
        let run = place.run(&["verify", "nano_llama"]);
        assert!(run.code == Some(1) && run.stdout.contains("no layer has codes"), "{run:?}");
        assert_eq!(place.run(&["verify", "nano_llama", "--for", "vllm"]).code, Some(1));
        // The output is quantized from the floats, and its `quantization_config` describes it.
        place.succeed(&["quantize", "nano_llama", "-s", "int4:g64", "-o", "out", "--overwrite"]);
        place.succeed(&["verify", "out"]);
    }
}

#[test]
fn statements_of_mlx_that_differ_cause_a_warning() {
    let place = Place::new();
    place.succeed(&["quantize", "nano_llama", "-s", "int4:g64", "-f", "mlx", "-o", "out"]);
    let config = fs::read_to_string(place.path("out/config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["quantization_config"]["group_size"] = 128.into();
    place.write("out/config.json", &config.to_string());
    let run = place.run(&["verify", "out"]);
    assert!(run.stdout.contains("`quantization` and `quantization_config` differ"), "{run:?}");
}

/// As the cache of the Hugging Face Hub has them.
#[cfg(unix)]
#[test]
fn linked_files_are_those_written() {
    let place = quantized("W4A16");
    fs::create_dir(place.path("snapshot")).unwrap();
    for entry in fs::read_dir(place.path("out")).unwrap() {
        let file = entry.unwrap().path();
        std::os::unix::fs::symlink(&file, place.path("snapshot").join(file.file_name().unwrap())).unwrap();
    }
    assert!(!place.succeed(&["verify", "snapshot"]).stdout.contains("manifest"));
}

#[test]
fn verify_for_loader_decides_the_exit_code() {
    let place = quantized("int3:channel");
    insta::assert_snapshot!("verify_for", place.show(&["verify", "out", "--for", "vllm"]));
    let code = |loader: &str| place.run(&["verify", "out", "--for", loader]).code;
    assert_eq!((code("vllm"), code("onnxruntime"), code("transformers")), (Some(1), Some(1), Some(0)));
    assert_eq!(place.run(&["verify", "out", "--for", "excel"]).code, Some(2));
    assert_eq!(place.run(&["verify", "out", "--tensor-parallel", "0"]).code, Some(2));
}

#[test]
fn verify_json_is_one_object() {
    let place = quantized("int4_wo_128");
    let object = place.succeed(&["verify", "out", "--json"]).json();
    assert_eq!(
        (&object["passes"], &object["method"], &object["quantized_layers"]),
        (&true.into(), &"quark".into(), &28.into())
    );
    assert!(
        object["loaders"].as_array().unwrap().iter().any(|loader| loader["id"] == "vllm" && loader["loads"] == "yes")
    );
    overwrite(&place, "out/model.safetensors", "model.layers.2.mlp.up_proj.weight_scale", &[0xFF, 0xFF]);
    let run = place.run(&["verify", "out", "--json"]);
    let object = run.json();
    assert_eq!((run.code, &object["passes"]), (Some(1), &false.into()));
    let finding = &object["findings"][0];
    assert_eq!((&finding["check"], &finding["severity"]), (&"scales".into(), &"error".into()));
    assert_eq!(finding["place"], "model.layers.2.mlp.up_proj.weight_scale");
    // Nothing but the object is on stdout.
    assert_eq!(run.stdout.lines().count(), 1);
    assert_eq!(place.run(&["verify", "out", "--json", "--quick"]).code, Some(0));
}

#[test]
fn verify_refuses_what_is_not_a_model() {
    let place = Place::new();
    place.write("notes.txt", "");
    for (path, code) in [("nowhere", 2), ("notes.txt", 1)] {
        let run = place.run(&["verify", path]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(code), ""), "{run:?}");
    }
}

#[test]
fn importance_matrix_is_no_model() {
    let place = Place::new();
    place.write("text.txt", &"The tower stood where the river turns. ".repeat(40));
    let measure = ["quantize", "nano_llama", "-s", "Q4_0", "-a", "imatrix", "--calib", "text.txt", "--seq-len", "32"];
    place.succeed(&[&measure[..], &["-o", "out.gguf", "--save-imatrix", "inputs.gguf"]].concat());
    for line in [
        &["verify", "inputs.gguf"][..],
        &["verify", "inputs.gguf", "--for", "llama.cpp"],
        &["plan", "inputs.gguf", "-s", "Q8_0"],
        &["convert", "inputs.gguf", "--to", "float", "-o", "floats"],
    ] {
        let run = place.run(line);
        let told = format!("{}{}", run.stdout, run.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            run.code == Some(1) && told.contains("importance matrix") && told.contains("--imatrix"),
            "{line:?}: {told}"
        );
    }
    place.succeed(&["inspect", "inputs.gguf"]);
}

#[test]
fn output_failing_preflight_needs_no_verify() {
    let place = Place::new();
    replace(&place, "nano_llama/config.json", "\"vocab_size\": 2048", "\"vocab_size\": 2000");
    let args = ["quantize", "nano_llama", "--scheme", "int4_wo_128", "-o", "out"];
    insta::assert_snapshot!("quantize_unfit", place.show(&args));
    assert_eq!(names(&place.path("")), ["nano_llama"]);
    // `kvant plan` refuses it too, and takes the same option.
    let plan = ["plan", "nano_llama", "--scheme", "int4_wo_128"];
    let refused = place.run(&plan);
    assert!(refused.code == Some(1) && refused.stderr.contains("use --no-verify"), "{refused:?}");
    place.succeed(&[&plan[..], &["--no-verify"]].concat());
    place.succeed(&[&args[..], &["--no-verify"]].concat());
    assert_eq!(names(&place.path("")), ["nano_llama", "out"]);
}

#[test]
fn weights_without_config_are_verified_by_their_metadata() {
    let place = Place::new();
    std::fs::remove_file(place.path("nano_llama/config.json")).unwrap();
    place.succeed(&["quantize", "nano_llama", "--scheme", "int4:g128:bf16", "-o", "out"]);
    place.succeed(&["verify", "out"]);
    overwrite(&place, "out/model.safetensors", "model.layers.2.mlp.up_proj.weight_scale", &[0xFF, 0xFF]);
    let run = place.run(&["verify", "out"]);
    assert_eq!(run.code, Some(1));
    assert!(run.stdout.contains("model.layers.2.mlp.up_proj.weight_scale"), "{run:?}");
}

#[test]
fn directory_of_gguf_files_gets_a_hint_to_name_one() {
    let place = Place::new();
    fs::create_dir(place.path("files")).unwrap();
    for name in ["files/a.gguf", "files/b.gguf"] {
        place.succeed(&["quantize", "nano_llama", "-s", "Q8_0", "-o", name]);
    }
    let run = place.run(&["verify", "files"]);
    let told = format!("{}{}", run.stdout, run.stderr);
    assert!(run.code == Some(1) && told.contains("2 GGUF files") && told.contains("files/a.gguf"), "{run:?}");
    assert!(!told.contains("not read"), "{told}");
}
