//! `--json`: every command and variant prints what its schema in docs/schemas says. Only the keywords that those schemas use are
//! understood here; one that is not is an error.

use crate::kvant::Place;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn schema(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/schemas/{name}.schema.json"));
    serde_json::from_slice(&std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))).unwrap()
}

/// Where a value is not what a schema says; nothing where it is.
fn problem(root: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    let rules = schema.as_object().unwrap();
    rules.iter().find_map(|(keyword, rule)| match keyword.as_str() {
        "$schema" | "$id" | "$defs" | "title" | "description" => None,
        "$ref" => {
            let target = root.pointer(rule.as_str().unwrap().trim_start_matches('#')).unwrap();
            problem(root, target, value, at)
        }
        "const" => (rule != value).then(|| format!("{at}: {value} is not {rule}")),
        "enum" => (!rule.as_array().unwrap().contains(value)).then(|| format!("{at}: {value} is none of {rule}")),
        "type" => {
            let names = rule.as_array().cloned().unwrap_or_else(|| vec![rule.clone()]);
            let is = names.iter().any(|name| is_of_type(value, name.as_str().unwrap()));
            (!is).then(|| format!("{at}: {value} is no {rule}"))
        }
        "required" => {
            let lacks = rule
                .as_array()
                .unwrap()
                .iter()
                .find(|key| value.is_object() && value.get(key.as_str().unwrap()).is_none());
            lacks.map(|key| format!("{at}: lacks {key}"))
        }
        "properties" => rule
            .as_object()
            .unwrap()
            .iter()
            .find_map(|(key, schema)| problem(root, schema, value.get(key)?, &format!("{at}.{key}"))),
        "additionalProperties" => {
            value.as_object()?.iter().find_map(|(key, value)| problem(root, rule, value, &format!("{at}.{key}")))
        }
        "items" => {
            value.as_array()?.iter().enumerate().find_map(|(i, item)| problem(root, rule, item, &format!("{at}[{i}]")))
        }
        "oneOf" => {
            let problems: Vec<_> =
                rule.as_array().unwrap().iter().map(|schema| problem(root, schema, value, at)).collect();
            let fitting = problems.iter().filter(|problem| problem.is_none()).count();
            (fitting != 1).then(|| format!("{at}: {fitting} variants fit: {problems:?}"))
        }
        other => panic!("{at}: the keyword {other} is not understood"),
    })
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("the type {other}"),
    }
}

/// Runs a command and holds its output against the schema of that name.
fn check(place: &Place, name: &str, args: &[&str]) -> Value {
    let run = place.run(&[args, &["--json"]].concat());
    let value: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {run:?}"));
    assert!(run.stdout.starts_with(&format!("{{\"schema\":\"kvant.{name}/1\"")), "{args:?}: {}", run.stdout);
    let schema = schema(name);
    assert_eq!(problem(&schema, &schema, &value, name), None, "{args:?}");
    value
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data").join(name)
}

#[test]
fn checkpoints_and_gguf_files() {
    let place = Place::new();
    place.write("text.txt", &"The iterator yields every element of the slice, in order. ".repeat(200));
    let int4 = ["nano_llama", "--scheme", "int4:g32"];
    let gguf = ["nano_llama", "--scheme", "Q4_K_M", "--override", "token_embd.weight=Q8_0"];
    check(&place, "plan", &[&["plan"], &int4[..], &["--override", "*.down_proj=int8:channel"]].concat());
    check(&place, "plan", &[&["plan"], &int4[..], &["--format", "gguf"]].concat());
    let calibrated = ["--algorithm", "gptq", "--calib", "text.txt", "--num-samples", "2", "--seq-len", "32"];
    check(&place, "plan", &[&["plan"], &int4[..], &calibrated].concat());
    let plan = check(&place, "plan", &[&["plan"], &gguf[..]].concat());
    assert_eq!(plan["recipe"]["override"], json!([{"layers": "token_embd.weight", "scheme": "Q8_0"}]));
    check(&place, "quantize", &[&["quantize"], &int4[..], &["-o", "int4"]].concat());
    check(&place, "quantize", &[&["quantize"], &int4[..], &calibrated, &["-o", "gptq"]].concat());
    let all = ["--format", "awq", "--format", "gguf", "--format", "onnx", "-o", "all"];
    check(&place, "quantize", &[&["quantize"], &int4[..], &all].concat());
    check(&place, "quantize", &[&["quantize"], &gguf[..], &["-o", "q4.gguf"]].concat());
    check(&place, "plan", &["quantize", "nano_llama", "--scheme", "mxfp4", "--dry-run"]);
    for (to, output) in [("gptq", "c"), ("float", "f"), ("gguf", "c.gguf"), ("onnx", "c.onnx")] {
        check(&place, "convert", &["convert", "int4", "--to", to, "--dry-run"]);
        check(&place, "convert", &["convert", "int4", "--to", to, "-o", output]);
    }
    check(&place, "convert", &["convert", "int4", "--to", "awq", "--requantize", "-o", "awq"]);
    for model in ["nano_llama", "nano_llama/model.safetensors", "int4", "q4.gguf", "all/onnx/model.onnx"] {
        check(&place, "inspect", &["inspect", model]);
        check(&place, "verify", &["verify", model]);
    }
    let eval = ["eval", "int4", "--data", "text.txt", "--seq-len", "64"];
    check(&place, "eval", &eval);
    check(&place, "eval", &[&eval[..], &["--reference", "nano_llama"]].concat());
}

#[test]
fn graphs() {
    let place = Place::empty();
    for name in ["tinycnn.float.onnx", "tinycnn.calib.npz"] {
        std::fs::copy(data(name), place.path(name)).unwrap();
    }
    let runtime = ["--data", "tinycnn.calib.npz", "--runtime", "rten"];
    let model = ["tinycnn.float.onnx", "--preset", "A8W8"];
    check(&place, "plan", &[&["plan"], &model[..]].concat());
    check(&place, "plan", &["plan", "tinycnn.float.onnx", "--preset", "FP16_MODEL"]);
    let quantize =
        [&["quantize"], &model[..], &runtime, &["--algorithm", "cle,adaround", "-o", "q.onnx", "--report", "r.json"]]
            .concat();
    let printed = check(&place, "quantize", &quantize);
    let report: Value = serde_json::from_slice(&std::fs::read(place.path("r.json")).unwrap()).unwrap();
    assert_eq!((&report["schema"], &report["report"]), (&printed["schema"], &printed["report"]));
    check(&place, "quantize", &["quantize", "tinycnn.float.onnx", "--preset", "FP16_MODEL", "-o", "half.onnx"]);
    check(&place, "inspect", &["inspect", "q.onnx"]);
    check(&place, "verify", &["verify", "q.onnx"]);
    check(&place, "eval", &[&["eval", "q.onnx", "--reference", "tinycnn.float.onnx"], &runtime[..]].concat());
    let search = [&["sensitivity"], &model[..], &runtime, &["--test-samples", "4", "--num-samples", "4"]].concat();
    check(&place, "sensitivity", &[&search[..], &["--target-size", "90%", "-o", "mix.toml"]].concat());
}

#[test]
fn lists_and_errors() {
    let place = Place::empty();
    for topic in [
        "schemes",
        "formats",
        "exports",
        "algorithms",
        "families",
        "presets",
        "passes",
        "elements",
        "checks",
        "loaders",
    ] {
        assert_eq!(check(&place, "list", &["list", topic])["topic"], topic);
    }
    check(&place, "error", &["inspect", "nowhere"]);
    check(&place, "error", &["plan", "nowhere", "--no-such-option"]);
}

#[test]
fn schemas_are_documented_and_other_objects_do_not_fit() {
    let names = ["quantize", "convert", "plan", "inspect", "verify", "eval", "sensitivity", "list", "error"];
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md")).unwrap();
    for name in names {
        let schema = schema(name);
        assert!(page.contains(&format!("`kvant.{name}/1`")), "{name}");
        assert!(problem(&schema, &schema, &json!({"schema": format!("kvant.{name}/1")}), name).is_some(), "{name}");
        assert!(problem(&schema, &schema, &json!({"schema": "kvant.other/1"}), name).is_some(), "{name}");
    }
}
