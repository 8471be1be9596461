//! `kvant inspect`.

use crate::kvant::Place;
use kvant_container::onnx;

#[test]
fn inspect_tables() {
    let place = Place::new();
    insta::assert_snapshot!("inspect", place.show(&["inspect", "nano_llama"]));
    insta::assert_snapshot!("inspect_file", place.show(&["inspect", "nano_llama/model.safetensors", "--all"]));
    place.succeed(&["quantize", "nano_llama", "--scheme", "W4A16", "--max-shard-size", "500kB", "-o", "out"]);
    insta::assert_snapshot!("inspect_quantized", place.show(&["inspect", "out"]));
}

#[test]
fn graph_of_an_unknown_maker_names_none() {
    let place = crate::onnx::place();
    let mut model = onnx::read(&place.path("float.onnx")).unwrap();
    for (name, told) in [("", "ONNX graph of 10 nodes, opset "), ("me", "ONNX graph of 10 nodes, made by me, opset ")] {
        model.producer_name = Some(name.to_owned());
        model.producer_version = Some(String::new());
        onnx::write(model.clone(), &place.path("float.onnx"), onnx::ExternalData::Auto).unwrap();
        let told_of = place.succeed(&["inspect", "float.onnx"]).stdout;
        assert!(told_of.starts_with(told), "{told_of}");
    }
}

/// Names of tensors alone are longer.
#[test]
fn lines_fit_a_narrow_terminal() {
    let place = Place::new();
    for command in
        [&["verify", "nano_llama"][..], &["plan", "nano_llama", "-s", "int4:g32"], &["inspect", "nano_llama"]]
    {
        for columns in [40, 60] {
            let output = place.command(command).env("COLUMNS", columns.to_string()).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let is_name = |line: &&str| line.trim_end().starts_with("model.layers.") && !line.trim_end().contains("  ");
            let long = text.lines().filter(|line| !is_name(line)).find(|line| line.chars().count() > columns);
            assert_eq!(long, None, "{command:?} {columns}: {text}");
        }
    }
}

#[test]
fn quantization_is_found_in_every_format() {
    let place = Place::new();
    for (scheme, method, detail) in [
        ("mxfp4", "quark", "scheme e2m1:g32:e8m0+e2m1:g32:e8m0!dynamic"),
        ("MXFP4A16", "compressed-tensors", "format mxfp4-pack-quantized"),
    ] {
        place.succeed(&["quantize", "nano_llama", "--scheme", scheme, "-o", "out", "--overwrite"]);
        let found = place.succeed(&["inspect", "out", "--json"]).json();
        let quantization = &found["quantization"];
        assert_eq!(quantization["method"], method);
        assert_eq!(quantization["details"][0], detail);
        assert_eq!(quantization["evidence"][".weight_scale"], 28);
        assert_eq!(quantization["config"]["quant_method"], method);
        // A file alone has no configuration: names must do.
        let file = place.succeed(&["inspect", "out/model.safetensors", "--json"]).json();
        assert!(file["quantization"]["method"].as_str().unwrap().contains(method), "{}", file["quantization"]);
    }
}

#[test]
fn unquantized_model_has_null_quantization() {
    let found = Place::new().succeed(&["inspect", "nano_llama", "--json"]).json();
    assert_eq!((&found["quantization"], &found["tied"]), (&serde_json::Value::Null, &false.into()));
    assert_eq!((found["family"].as_str(), found["bytes"].as_u64()), (Some("llama"), Some(2_623_744)));
}

#[test]
fn control_characters_in_names_are_escaped() {
    let place = Place::empty();
    let header = r#"{"a\u001b[2Jb":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[7]].concat();
    std::fs::write(place.path("odd.safetensors"), file).unwrap();
    for option in ["--all", "--quiet"] {
        let run = place.succeed(&["inspect", "odd.safetensors", option]);
        assert!(run.stdout.contains("a\\u{1b}[2Jb") && !run.stdout.contains('\u{1b}'), "{run:?}");
    }
    assert_eq!(place.succeed(&["inspect", "odd.safetensors", "--json"]).json()["tensors"][0]["name"], "a\u{1b}[2Jb");
}
