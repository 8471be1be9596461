//! `--json`: every command and variant prints what its schema in docs/schemas says, and no key that is not documented there. Only the
//! keywords that those schemas use are understood here; one that is not is an error.

use crate::kvant::Place;
use crate::made_model::write_encoder;
use crate::onnx::timing::has_onnx_runtime;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

const SCHEMAS: [&str; 13] = [
    "quantize",
    "convert",
    "plan",
    "inspect",
    "verify",
    "eval",
    "generate",
    "graph",
    "sensitivity",
    "search",
    "report",
    "list",
    "error",
];

fn schema(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/schemas/{name}.schema.json"));
    serde_json::from_slice(&std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))).unwrap()
}

/// The path at which a value violates a schema; `None` if it conforms. The schemas `true` and `false` take everything and nothing.
fn problem(root: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    if let Value::Bool(takes) = schema {
        return (!takes).then(|| format!("{at}: is not documented"));
    }
    let rules = schema.as_object().unwrap();
    rules.iter().find_map(|(keyword, rule)| match keyword.as_str() {
        "$schema" | "$id" | "$defs" | "title" | "description" => None,
        "$ref" => problem(root, target(root, rule), value, at),
        "const" => (rule != value).then(|| format!("{at}: {value} is not {rule}")),
        "enum" => (!rule.as_array().unwrap().contains(value)).then(|| format!("{at}: {value} is none of {rule}")),
        "type" => {
            let is = types(schema).iter().any(|name| is_of_type(value, name));
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
            let mut others = value.as_object()?.iter().filter(|(key, _)| schema["properties"].get(key).is_none());
            others.find_map(|(key, value)| problem(root, rule, value, &format!("{at}.{key}")))
        }
        "prefixItems" => {
            let mut pairs = rule.as_array().unwrap().iter().zip(value.as_array()?).enumerate();
            pairs.find_map(|(i, (schema, item))| problem(root, schema, item, &format!("{at}[{i}]")))
        }
        "items" => {
            let first = schema["prefixItems"].as_array().map_or(0, Vec::len);
            let mut items = value.as_array()?.iter().enumerate().skip(first);
            items.find_map(|(i, item)| problem(root, rule, item, &format!("{at}[{i}]")))
        }
        "minItems" => (value.as_array()?.len() < number(rule)).then(|| format!("{at}: less than {rule} items")),
        "maxItems" => (value.as_array()?.len() > number(rule)).then(|| format!("{at}: more than {rule} items")),
        "oneOf" => {
            let problems: Vec<_> =
                rule.as_array().unwrap().iter().map(|schema| problem(root, schema, value, at)).collect();
            let fitting = problems.iter().filter(|problem| problem.is_none()).count();
            (fitting != 1).then(|| format!("{at}: {fitting} variants fit: {problems:?}"))
        }
        other => panic!("{at}: the keyword {other} is not understood"),
    })
}

/// The target of a reference.
fn target<'a>(root: &'a Value, reference: &Value) -> &'a Value {
    root.pointer(reference.as_str().unwrap().trim_start_matches('#')).unwrap()
}

fn number(rule: &Value) -> usize {
    rule.as_u64().unwrap().try_into().unwrap()
}

/// The types that a schema names.
fn types(schema: &Value) -> Vec<&str> {
    match &schema["type"] {
        Value::Array(names) => names.iter().map(|name| name.as_str().unwrap()).collect(),
        name => name.as_str().into_iter().collect(),
    }
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

/// Configurations of other tools, whose keys are theirs.
const FOREIGN: &str = "/quantization/config";

/// The places of objects in a value, one for the elements of an array: what kind of place it is, and a pointer to it.
fn objects(value: &Value, kind: &str, pointer: &str, found: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(members) if kind != FOREIGN => {
            found.entry(kind.to_owned()).or_insert_with(|| pointer.to_owned());
            for (key, member) in members {
                let key = key.replace('~', "~0").replace('/', "~1");
                objects(member, &format!("{kind}/{key}"), &format!("{pointer}/{key}"), found);
            }
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(i, item)| objects(item, &format!("{kind}/*"), &format!("{pointer}/{i}"), found));
        }
        _ => {}
    }
}

/// Holds a value against a schema, and sees to it that a further key would be noticed, in whichever object of it.
fn fit(name: &str, value: &Value, context: &[&str]) {
    let schema = schema(name);
    assert_eq!(problem(&schema, &schema, value, name), None, "{context:?}");
    let mut places = BTreeMap::new();
    objects(value, "", "", &mut places);
    for pointer in places.values() {
        let mut more = value.clone();
        more.pointer_mut(pointer).unwrap()["undocumented"] = Value::Null;
        assert!(problem(&schema, &schema, &more, name).is_some(), "{context:?}: {pointer} takes any key");
    }
}

/// Runs a command and holds its output against the schema of that name.
pub fn check(place: &Place, name: &str, args: &[&str]) -> Value {
    let run = place.run(&[args, &["--json"]].concat());
    let value: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {run:?}"));
    assert!(run.stdout.starts_with(&format!("{{\"schema\":\"kvant.{name}/1\"")), "{args:?}: {}", run.stdout);
    fit(name, &value, args);
    value
}

/// Returns whether there is something in an array.
fn has(value: &Value) -> bool {
    value.as_array().is_some_and(|items| !items.is_empty())
}

const SENTENCE: &str = "The iterator yields every element of the slice, in order. ";
const INT4: [&str; 3] = ["nano_llama", "--scheme", "int4:g32"];
const GGUF: [&str; 5] = ["nano_llama", "--scheme", "Q4_K_M", "--override", "token_embd.weight=Q8_0"];
const CALIBRATED: [&str; 6] = ["--calib", "text.txt", "--num-samples", "2", "--seq-len", "32"];

/// The small model, with texts.
fn place() -> Place {
    let place = Place::new();
    place.write("text.txt", &SENTENCE.repeat(200));
    place.write("hello.txt", "Hello, how are you?");
    place
}

#[test]
fn plan_json_matches_its_schema() {
    let place = place();
    let plan = |args: &[&str]| check(&place, "plan", &[&["plan"], args].concat());
    let kept = plan(&[&INT4[..], &["--override", "*.down_proj=int8:channel", "-x", "*.layers.0.*"]].concat());
    assert_eq!(kept["recipe"]["override"][1], json!({"layers": "*.layers.0.*", "scheme": "keep"}));
    plan(&[&INT4[..], &["--format", "awq", "--format", "gguf", "--requantize"]].concat());
    plan(&[&INT4[..], &["--format", "gguf"]].concat());
    let gptq = ["--algorithm", "awq,gptq:damping=0.05"];
    let calibrated = plan(&[&INT4[..], &gptq, &CALIBRATED].concat());
    assert_eq!(calibrated["recipe"]["algorithm"], json!(["awq", "gptq:damping=0.05"]));
    assert!(plan(&[&INT4[..], &gptq, &["--format", "gguf"]].concat())["calibration"].is_object());
    let attention = ["--kv-cache", "fp8", "--attention", "fp8", "--min-kv-scale", "0.5", "--kv-cache-post-rope"];
    let attended = plan(&[&["nano_llama", "-s", "fp8"], &attention[..]].concat());
    assert!(has(&attended["sites"]) && attended["recipe"]["min_kv_scale"] == 0.5, "{}", attended["recipe"]);
    let mix = plan(&[&GGUF[..], &["--algorithm", "imatrix"], &CALIBRATED].concat());
    let rules = json!([{"layers": "token_embd.weight", "scheme": "Q8_0"}]);
    assert_eq!((&mix["recipe"]["override"], &mix["recipe"]["importance"]), (&rules, &json!(true)));
    place.write("recipe.toml", "version = 2\nscheme = \"W4A16\"\nseed = 3\nmax_shard_size = \"1MB\"\n");
    plan(&["nano_llama", "--recipe", "recipe.toml"]);
    check(&place, "plan", &["quantize", "nano_llama", "--scheme", "mxfp4", "--dry-run"]);
}

#[test]
fn quantize_and_convert_json_match_their_schemas() {
    let place = place();
    check(&place, "quantize", &[&["quantize"], &INT4[..], &["-o", "int4"]].concat());
    let all = ["--format", "awq", "--format", "gguf", "--format", "onnx", "-o", "all"];
    check(&place, "quantize", &[&["quantize"], &INT4[..], &all].concat());
    check(&place, "quantize", &[&["quantize"], &GGUF[..], &["-o", "q4.gguf"]].concat());
    check(&place, "quantize", &["quantize", "int4", "-s", "int8:channel", "--requantize", "-o", "again"]);
    for (to, output) in [("gptq", "c"), ("float", "f"), ("gguf", "c.gguf"), ("onnx", "c.onnx")] {
        check(&place, "convert", &["convert", "int4", "--to", to, "--dry-run"]);
        check(&place, "convert", &["convert", "int4", "--to", to, "-o", output]);
    }
    let anew = check(&place, "convert", &["convert", "again", "--to", "awq", "--requantize", "-o", "awq"]);
    assert!(has(&anew["errors"]), "{anew}");
    check(&place, "inspect", &["inspect", "nano_llama", "--suggest-family"]);
    for model in ["nano_llama", "nano_llama/model.safetensors", "int4", "c", "q4.gguf", "all/onnx/model.onnx"] {
        check(&place, "inspect", &["inspect", model]);
        check(&place, "verify", &["verify", model]);
    }
    let refused = check(&place, "verify", &["verify", "q4.gguf", "--for", "vllm", "--tensor-parallel", "2"]);
    assert_eq!(refused["passes"], false);
    let eval = ["eval", "int4", "--data", "text.txt", "--seq-len", "64"];
    check(&place, "eval", &eval);
    check(&place, "eval", &[&eval[..], &["--reference", "nano_llama"]].concat());
    let generate = ["generate", "int4", "--prompt", SENTENCE, "--prompt", "fn", "--max-new-tokens", "4"];
    check(&place, "generate", &generate);
    check(&place, "generate", &[&generate[..], &["--reference", "nano_llama"]].concat());
    place.write("eval.json", &place.succeed(&[&eval[..], &["--json"]].concat()).stdout);
    check(&place, "report", &["report", "eval.json", "-o", "eval.html"]);
    let search = ["search", "nano_llama", "--options", "int4:g128,int8:channel", "--data", "text.txt"];
    let few = ["--num-samples", "2", "--seq-len", "32"];
    check(&place, "search", &[&search[..], &few].concat());
    let then = ["--target-bpw", "6", "-o", "mix.toml", "--then", "quantize", "-o", "mixed"];
    let line = [&search[..], &few, &["--json"], &then].concat();
    fit("search", &place.succeed(&line).json(), &line);
}

#[test]
fn calibrated_json_matches_its_schema() {
    let place = place();
    let useless = "{\"nothing\": 1}\nno JSON\n{\"text\": \"\"}\n";
    place.write("rows.jsonl", &format!("{{\"text\": \"{SENTENCE}\"}}\n{useless}"));
    let quantize = |args: &[&str], output: &str| {
        check(&place, "quantize", &[&["quantize", "nano_llama", "-o", output], args].concat())
    };
    let found = quantize(&["-s", "int8", "--calib", "rows.jsonl", "--report", "int8.html"], "int8");
    let shown = &found["activations"][0];
    assert!(has(&found["activations"]) && shown["clipped"] == 0.0 && shown["range"].is_object(), "{shown}");
    let skipped = &found["calibration"]["data"]["files"][0]["skipped"];
    assert_eq!(*skipped, json!({"no_text": 1, "not_json": 1, "empty": 1}));
    let eval = check(&place, "eval", &["eval", "int8", "--data", "text.txt", "--seq-len", "64"]);
    assert_eq!(eval["quantized_activations"], json!(["inputs of 28 layers: int8:tensor!static"]));
    let awq = ["--algorithm", "awq:ratios=2,gptq,tune:iterations=2"];
    let scaled = quantize(&[&["-s", "int4:g32"], &awq[..], &CALIBRATED, &["--report", "a.md"]].concat(), "awq");
    assert!(has(&scaled["activations"]) && scaled["activations"][0]["range"].is_null(), "{scaled}");
    assert!(has(&scaled["calibration"]["tunings"]), "{scaled}");
    assert!(has(&scaled["calibration"]["links"]) && scaled["calibration"]["held_out"].is_object(), "{scaled}");
    let starved = quantize(&["-s", "int4:g32", "--algorithm", "gptq", "--calib", "hello.txt"], "starved");
    let record = &starved["calibration"];
    assert!(
        has(&record["starved"]) && record["held_out"].is_null() && record["data"]["short_documents"] == 1,
        "{record}"
    );
    let least = ["-s", "fp8", "--kv-cache", "fp8", "--min-kv-scale", "100"];
    let raised = quantize(&[&least[..], &CALIBRATED].concat(), "cache");
    assert!(has(&raised["calibration"]["report"]["raised"]), "{raised}");
}

#[test]
fn evaluated_json_matches_its_schema() {
    let place = place();
    place.write("short.txt", &SENTENCE.repeat(12));
    let quantize = |name: &str, args: &[&str]| {
        check(&place, name, &[&["quantize", "nano_llama", "--eval", "short.txt"], args].concat())
    };
    let limits = ["--max-kl", "50", "--max-perplexity-increase", "1000"];
    let found = quantize("quantize", &[&["-s", "int4:g32", "-o", "int4"], &limits[..]].concat());
    assert!(found["evaluation"]["accepted"] == true && found["evaluation"]["max_kl"] == 50.0, "{found}");
    let found = quantize("quantize", &["-s", "Q8_0", "-o", "q8.gguf"]);
    assert!(found["evaluation"]["kl_mean"].is_number() && found["evaluation"]["max_kl"].is_null(), "{found}");
    quantize("error", &["-s", "int2:g64", "-o", "refused", "--max-kl", "0.0001"]);
}

#[test]
fn json_of_encoders_matches_its_schema() {
    let place = Place::empty();
    write_encoder(&place.path("bert"));
    place.write("tokens.jsonl", "[1, 5, 9, 22]\n[7, 3, 60, 2, 11]\n");
    let scheme = ["-s", "int8:channel+int8:tensor!static", "-f", "compressed-tensors", "--calib", "tokens.jsonl"];
    check(&place, "quantize", &[&["quantize", "bert", "-o", "out"], &scheme[..]].concat());
    let eval = ["eval", "out", "--data", "tokens.jsonl"];
    let found = check(&place, "eval", &[&eval[..], &["--reference", "bert"]].concat());
    assert!(found["embedding_cosine_mean"].as_f64().unwrap() > 0.8, "{found}");
    assert!(found["outputs"][0]["name"] == "pooled" && found["sequences"] == 2 && found["tokens"] == 9, "{found}");
    let refused = check(&place, "error", &eval);
    assert!(refused.to_string().contains("is measured against the model that it was made from"), "{refused}");
}

#[test]
fn json_of_decoder_graphs_on_text_matches_its_schema() {
    let place = place();
    let graph = "float.onnx";
    place.succeed(&["convert", "nano_llama", "--to", "onnx", "-o", graph]);
    std::fs::copy(place.path("nano_llama/tokenizer.json"), place.path("tokenizer.json")).unwrap();
    let quantize = ["quantize", graph, "--preset", "MATMUL_NBITS", "--runtime", "rten", "-o", "int4.onnx"];
    let found = check(&place, "quantize", &[&quantize[..], &CALIBRATED].concat());
    assert_eq!(found["quality"]["text"]["tokens"], 62, "{found}");
    let eval = ["eval", "int4.onnx", "--data", "text.txt", "--seq-len", "64", "--runtime", "rten"];
    let found = check(&place, "eval", &[&eval[..], &["--reference", graph]].concat());
    assert!(found["kl_mean"].as_f64().unwrap() > 0.0, "{found}");
    check(&place, "eval", &[&eval[..], &["--tokenizer", "nano_llama"]].concat());
}

/// A directory with two small graphs and data for them.
fn graphs() -> Place {
    let place = Place::empty();
    for model in ["tinycnn", "tinytransformer"] {
        for name in [format!("{model}.float.onnx"), format!("{model}.calib.npz")] {
            let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data").join(&name);
            std::fs::copy(data, place.path(&name)).unwrap();
        }
    }
    place
}

/// Writes two samples of the CNN with their classes.
fn labelled(path: &Path) {
    let values = (0..2 * 3 * 16 * 16).flat_map(|i| (i as f32 * 0.7).sin().to_le_bytes());
    let bytes: Vec<u8> = values.chain([3_i64, 5].into_iter().flat_map(i64::to_le_bytes)).collect();
    let (start, end) = (bytes.len() - 16, bytes.len());
    let header = json!({
        "x": {"dtype": "F32", "shape": [2, 3, 16, 16], "data_offsets": [0, start]},
        "label": {"dtype": "I64", "shape": [2], "data_offsets": [start, end]},
    });
    let header = header.to_string().into_bytes();
    std::fs::write(path, [&(header.len() as u64).to_le_bytes(), &header[..], &bytes].concat()).unwrap();
}

const CNN: [&str; 3] = ["tinycnn.float.onnx", "--preset", "A8W8"];
const SAMPLES: [&str; 4] = ["--data", "tinycnn.calib.npz", "--runtime", "rten"];

#[test]
fn graph_json_matches_its_schemas() {
    let place = graphs();
    check(&place, "plan", &[&["plan"], &CNN[..]].concat());
    check(&place, "plan", &["plan", "tinycnn.float.onnx", "--preset", "FP16_MODEL"]);
    let adaround = ["--algorithm", "cle,adaround:num_iterations=5", "-o", "q.onnx", "--report", "r.json"];
    let printed = check(&place, "quantize", &[&["quantize"], &CNN[..], &SAMPLES, &adaround].concat());
    let report: Value = serde_json::from_slice(&std::fs::read(place.path("r.json")).unwrap()).unwrap();
    fit("quantize", &report, &adaround);
    assert_eq!(report, printed);
    assert!(has(&printed["quality"]["outputs"]) && has(&printed["report"]["gains"]), "{printed}");
    let auto =
        ["quantize", "tinycnn.float.onnx", "--auto", "--max-drop", "0.3", "--num-samples", "2", "-o", "auto.onnx"];
    assert_eq!(check(&place, "quantize", &[&auto[..], &SAMPLES].concat())["accuracy"]["samples_from"], "held-out");
    let half = ["quantize", "tinycnn.float.onnx", "--preset", "FP16_MODEL", "-o", "half.onnx"];
    assert!(check(&place, "quantize", &half)["quality"]["not_measured"].is_string());
    let least = ["--min-sqnr", "99", "-o", "refused.onnx"];
    let refused = check(&place, "quantize", &[&["quantize"], &CNN[..], &SAMPLES, &least].concat());
    assert!(refused["output"].is_null() && refused["quality"]["samples"].is_number(), "{refused}");
    check(&place, "inspect", &["inspect", "q.onnx"]);
    // Whether ONNX Runtime is there to be asked, the machine decides.
    let mut verified = check(&place, "verify", &["verify", "q.onnx"]);
    let said =
        [json!({"engine": "e", "opens": true}), json!({"engine": "e", "opens": false, "problem": "p"}), json!(null)];
    for opening in said {
        verified["onnxruntime"] = opening;
        fit("verify", &verified, &[]);
    }
    let eval = ["eval", "q.onnx", "--reference", "tinycnn.float.onnx"];
    check(&place, "eval", &[&eval[..], &SAMPLES].concat());
    let shown = [&["quantize"], &CNN[..], &SAMPLES, &["-o", "shown.onnx", "--report", "shown.html"]].concat();
    let shown = check(&place, "quantize", &shown);
    let activation =
        shown["report"]["tensors"].as_array().unwrap().iter().find(|tensor| tensor["role"] == "activation");
    assert!(activation.unwrap()["histogram"]["counts"].is_array(), "{shown}");
    assert!(shown["quality"]["outputs"][0]["histogram"].is_object(), "{shown}");
    if has_onnx_runtime() {
        check(&place, "eval", &[&eval[..], &["--data", "tinycnn.calib.npz", "--time"]].concat());
        check(&place, "eval", &["eval", "q.onnx", "--time"]);
    }
    labelled(&place.path("labelled.safetensors"));
    let labels = ["--data", "labelled.safetensors", "--labels", "label", "--runtime", "rten"];
    assert!(check(&place, "eval", &[&eval[..], &labels].concat())["top5"].is_number());
    let few = ["--eval-samples", "2", "--num-samples", "2", "--leave-one-out"];
    let search = [&["sensitivity"], &CNN[..], &SAMPLES, &few].concat();
    check(&place, "sensitivity", &search);
    check(&place, "sensitivity", &[&search[..], &["--target-size", "90%", "-o", "mix.toml"]].concat());
}

#[test]
fn transformer_graph_json_matches_its_schema() {
    let place = graphs();
    let quantize = |preset: &str, more: &[&str]| {
        let model = ["quantize", "tinytransformer.float.onnx", "--preset", preset, "--overwrite", "-o", "q.onnx"];
        let samples = ["--data", "tinytransformer.calib.npz", "--runtime", "rten"];
        check(&place, "quantize", &[&model[..], &samples, more].concat())["report"].clone()
    };
    assert!(has(&quantize("A8W8", &["--algorithm", "quarot"])["rotated"]));
    let scaled = quantize("A8W4", &["--algorithm", "awq:ratios=2,gptq"]);
    assert!(has(&scaled["scaled_inputs"]) && has(&scaled["limited_weights"]), "{scaled}");
    assert!(quantize("U8S8_AAWS", &["--calibration-method", "auto"])["saturation"].is_object());
    assert!(has(&quantize("MATMUL_NBITS", &[])["left_in_float"]));
}

#[test]
fn list_and_error_json_match_their_schemas() {
    let place = Place::empty();
    let unknown = check(&place, "error", &["list", "nothing"]);
    let message = unknown["error"]["message"].as_str().unwrap();
    let topics = message.split_once("possible values: ").unwrap().1.trim_end_matches(']');
    assert!(topics.split(", ").count() >= 12, "{topics}");
    for topic in topics.split(", ") {
        assert_eq!(check(&place, "list", &["list", topic])["topic"], topic);
    }
    check(&place, "error", &["inspect", "nowhere"]);
    check(&place, "error", &["plan", "nowhere", "--no-such-option"]);
}

#[test]
fn schemas_are_documented_and_reject_other_objects() {
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/json.md")).unwrap();
    for name in SCHEMAS {
        let schema = schema(name);
        assert!(page.contains(&format!("`kvant.{name}/1`")), "{name}");
        assert!(problem(&schema, &schema, &json!({"schema": format!("kvant.{name}/1")}), name).is_some(), "{name}");
        assert!(problem(&schema, &schema, &json!({"schema": "kvant.other/1"}), name).is_some(), "{name}");
    }
}

/// The schemas inside of a schema.
fn inner(schema: &Value) -> Vec<(String, &Value)> {
    let keyed = ["$defs", "properties"].into_iter().filter_map(|keyword| schema[keyword].as_object());
    let keyed = keyed.flatten().map(|(key, schema)| (format!(".{key}"), schema));
    let listed = ["oneOf", "prefixItems"].into_iter().filter_map(|keyword| schema[keyword].as_array());
    let listed = listed.flatten().map(|schema| ("[]".to_owned(), schema));
    let single = ["items", "additionalProperties"].into_iter().filter_map(|keyword| schema.get(keyword));
    keyed.chain(listed).chain(single.map(|schema| ("[]".to_owned(), schema))).collect()
}

/// Gaps of a schema: keys without a description, objects that accept any key, arrays of anything.
fn gaps(root: &Value, schema: &Value, at: &str) -> Vec<String> {
    let mut found = Vec::new();
    let is_told = |schema: &Value| schema["description"].is_string();
    for (key, schema) in schema["properties"].as_object().into_iter().flatten() {
        if !is_told(schema) && !schema.get("$ref").is_some_and(|reference| is_told(target(root, reference))) {
            found.push(format!("{at}.{key}: has no description"));
        }
    }
    let open = schema.get("additionalProperties").is_none_or(|rule| rule == true);
    if types(schema).contains(&"object") && open && !at.ends_with(".quantization.config") {
        found.push(format!("{at}: takes any key"));
    }
    if matches!(types(schema)[..], ["array"] | ["array", "null"]) && schema.get("items").is_none() {
        found.push(format!("{at}: takes any item"));
    }
    found.extend(inner(schema).into_iter().flat_map(|(key, schema)| gaps(root, schema, &format!("{at}{key}"))));
    found
}

#[test]
fn schemas_define_every_key() {
    let mut shared: BTreeMap<String, Value> = BTreeMap::new();
    for name in SCHEMAS {
        let schema = schema(name);
        assert_eq!(gaps(&schema, &schema, name), [""; 0]);
        for (key, definition) in schema["$defs"].as_object().into_iter().flatten() {
            let known = shared.entry(key.clone()).or_insert_with(|| definition.clone());
            assert_eq!(known, definition, "{name}: {key} is another thing elsewhere");
        }
    }
}
