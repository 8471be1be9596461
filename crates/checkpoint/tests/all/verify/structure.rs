//! Files, names, shapes, the head, the tokenizer.

use super::model::Model;
use crate::common::{self, weight};
use kvant_checkpoint::engine::OutputPlan;
use kvant_container::{Checkpoint, Dtype, Durability, Layout, TensorDeclaration, Writer};
use kvant_formats::format::OutputFormat;
use kvant_formats::verify::{Options, Report, verify};
use kvant_quant::finding::Severity;
use serde_json::{Value, json};
use std::path::Path;

fn block(name: &str) -> String {
    format!("model.layers.0.{name}")
}

#[test]
fn written_checkpoints_verify() {
    Model::float().assert_healthy();
    for scheme in
        ["int4:g32", "uint4:g32:zp", "int8:channel", "e4m3:channel+e4m3:channel!dynamic", "e2m1:g32:e8m0", "int3:g32"]
    {
        Model::quantized(scheme, OutputFormat::QUARK).assert_healthy();
    }
    for scheme in [
        "int4:g32",
        "int4:g32:zp",
        "int3:channel",
        "e4m3:b32x32+e4m3:g32!dynamic",
        "e2m1:g16:e4m3:f32",
        "e2m3:g32:e8m0",
    ] {
        Model::quantized(scheme, OutputFormat::COMPRESSED_TENSORS).assert_healthy();
    }
    Model::quantized("mx9", OutputFormat::PlainFloats).assert_healthy();
}

#[test]
fn mixed_symmetry_in_gptq_must_be_declared() {
    let mixed = |overrides: &[&str]| Model::float().quantize_mixed("int4:g32", overrides, OutputFormat::GPTQ);
    mixed(&["*.down_proj=uint4:g32:zp"]).assert_healthy();
    // Without a word about them kernels would ignore their zero points.
    mixed(&["*.down_proj=uint4:g32:zp"])
        .configured(|config| config["quantization_config"]["dynamic"] = json!({}))
        .assert_error("zero-points", "down_proj.qzeros", "middle");
}

#[test]
fn nano_llama_verifies() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/nano_llama");
    let report = verify(&source, &Options::default()).unwrap();
    let found: Vec<_> = report.findings.iter().map(|finding| (finding.severity, finding.check)).collect();
    // Its four heads cannot be shared out over eight devices.
    assert_eq!(found, [(Severity::Note, "tensor-parallel")]);
    assert_eq!((report.passes(), report.family, report.quantized_layers), (true, Some("llama"), 0));
}

#[test]
fn missing_weight_is_an_error() {
    Model::quantized("int4:g32", OutputFormat::QUARK).without("embed_tokens.weight").assert_error(
        "names",
        "token embedding",
        "missing",
    );
    Model::float().without("down_proj.weight").assert_error("names", "block 0", "down projection");
    Model::float()
        .configured(|config| config["num_hidden_layers"] = json!(3))
        .assert_error("names", "block 1", "missing");
}

#[test]
fn weight_missing_from_one_block_is_an_error() {
    let mut model = Model::float().configured(|config| config["num_hidden_layers"] = json!(3));
    let copies = |number: usize, tensors: &[common::Tensor]| -> Vec<common::Tensor> {
        let copy = |tensor: &common::Tensor| {
            (tensor.0.replace("layers.0", &format!("layers.{number}")), tensor.1, tensor.2.clone(), tensor.3.clone())
        };
        tensors.iter().filter(|tensor| tensor.0.contains("layers.0")).map(copy).collect()
    };
    let more: Vec<_> = [1, 2].into_iter().flat_map(|number| copies(number, &model.tensors)).collect();
    model.tensors.extend(more);
    model.assert_healthy();
    let bias = weight("model.layers.2.self_attn.q_proj.bias", Dtype::BF16, &[128]);
    let uneven = Model { tensors: [model.tensors.clone(), vec![bias]].concat(), ..model.clone() };
    uneven.assert_error("names", "model.layers.1.self_attn.q_proj.bias", "1 of 3 blocks have it");
    let lacking = model.without("layers.1.input_layernorm.weight");
    lacking.assert_error("names", "model.layers.1.input_layernorm.weight", "2 of 3 blocks have it");
}

#[test]
fn unused_tensor_is_a_warning() {
    let extra = weight(&block("mlp.extra_proj.weight"), Dtype::BF16, &[8, 64]);
    Model::float().with(extra).assert_found(
        Severity::Warning,
        "names",
        "extra_proj.weight",
        "not part of the architecture",
    );
    // As AMD Quark 0.13 names the scales of AWQ.
    let scales = weight(&block("mlp.up_proj.qscales"), Dtype::F16, &[2, 128]);
    Model::float().with(scales).assert_found(Severity::Warning, "names", "qscales", "not part");
    let lost = weight(&block("mlp.up_proj.weight_scale_2"), Dtype::F32, &[1]);
    Model::float().with(lost).assert_found(Severity::Warning, "names", "weight_scale_2", "without a quantized layer");
}

#[test]
fn shapes_that_do_not_match_the_config_are_an_error() {
    for key in ["vocab_size", "intermediate_size", "num_key_value_heads"] {
        let model = Model::quantized("int4:g32", OutputFormat::COMPRESSED_TENSORS);
        let wrong = model.configured(|config| config[key] = json!(4)).verify();
        assert!(wrong.errors().any(|error| error.check == "shapes"), "{key}: {:?}", wrong.findings);
    }
}

#[test]
fn untied_head_must_exist() {
    Model::float().without("lm_head.weight").assert_error("tied", "lm_head.weight", "missing");
    let tied = || Model::float().configured(|config| config["tie_word_embeddings"] = json!(true));
    tied().assert_error("tied", "lm_head", "another matrix");
    tied().without("lm_head.weight").assert_healthy();
    let bytes = tied().tensors.iter().find(|tensor| tensor.0.ends_with("embed_tokens.weight")).unwrap().3.clone();
    tied().edit("lm_head.weight", |head| *head = bytes).assert_healthy();
}

/// Writes a model, changes its directory, and verifies it.
fn verified(change: impl FnOnce(&Path)) -> Report {
    let dir = tempfile::tempdir().unwrap();
    common::write(dir.path(), &common::llama_config(), &common::llama(Dtype::BF16));
    change(dir.path());
    verify(dir.path(), &Options::default()).unwrap()
}

fn checks(report: &Report, severity: Severity) -> Vec<&'static str> {
    report.findings.iter().filter(|finding| finding.severity == severity).map(|finding| finding.check).collect()
}

#[test]
fn tokenizer_must_fit_the_embedding() {
    let with = |text: &'static str| verified(move |dir| std::fs::write(dir.join("tokenizer.json"), text).unwrap());
    assert_eq!(checks(&verified(|_| {}), Severity::Warning), ["tokenizer"]);
    assert_eq!(checks(&with(r#"{"added_tokens":[],"model":{"vocab":{"a":31}}}"#), Severity::Error), [""; 0]);
    assert_eq!(checks(&with(r#"{"added_tokens":[],"model":{"vocab":{"a":31}}}"#), Severity::Warning), [""; 0]);
    assert_eq!(checks(&with(r#"{"added_tokens":[],"model":{"vocab":{"a":32}}}"#), Severity::Warning), ["tokenizer"]);
    assert_eq!(
        checks(&with(r#"{"model":{"vocab":[["a",0.5]]},"added_tokens":[{"id":99}]}"#), Severity::Warning),
        ["tokenizer"]
    );
    let merged = r#"{"added_tokens":[],"model":{"vocab":{"a":0,"b":1},"merges":["a b",["b","a"]]}}"#;
    assert_eq!(checks(&with(merged), Severity::Error), [""; 0]);
    let broken = r#"{"added_tokens":[],"model":{"vocab":{"a":0,"b":1},"merges":["a b",["b","zz"]]}}"#;
    for text in ["{", "{}", r#"{"model":{"vocab":{"a":1}}}"#, r#"{"added_tokens":[],"model":{}}"#, broken] {
        assert_eq!(checks(&with(text), Severity::Error), ["tokenizer"], "{text}");
    }
}

#[test]
fn unreadable_config_is_an_error() {
    let with = |text: &'static str| verified(move |dir| std::fs::write(dir.join("config.json"), text).unwrap());
    for text in ["{", "[]", "{}", r#"{"model_type": "llama", "hidden_size": -1}"#] {
        assert!(checks(&with(text), Severity::Error).contains(&"config"), "{text}");
    }
    assert!(
        checks(&verified(|dir| std::fs::remove_file(dir.join("config.json")).unwrap()), Severity::Error)
            .contains(&"config")
    );
    let unknown = with(r#"{"model_type": "gpt9"}"#);
    assert!(unknown.passes() && checks(&unknown, Severity::Warning).contains(&"config"));
}

#[test]
fn values_unknown_to_transformers_are_an_error() {
    let with = |key: &'static str, value: Value| Model::float().configured(|config| config[key] = value);
    with("hidden_act", json!("nonsense")).assert_error("config", "hidden_act", "`nonsense`");
    with("dtype", json!("int99")).assert_error("config", "dtype", "`int99`");
    with("rope_scaling", json!({"rope_type": "nonsense"})).assert_error("config", "rope_type", "`nonsense`");
    let nested = json!({"full_attention": {"rope_type": "nonsense"}});
    with("rope_parameters", nested).assert_error("config", "rope_type", "`nonsense`");
    with("torch_dtype", json!("torch.bfloat16")).assert_healthy();
    with("rope_scaling", json!({"type": "linear", "factor": 2.0})).assert_healthy();
    with("rope_scaling", json!({"rope_type": "llama3", "factor": 8.0})).assert_error(
        "config",
        "low_freq_factor",
        "`llama3`",
    );
    with("rope_scaling", json!({"rope_type": "yarn"})).assert_error("config", "factor", "`yarn`");
    let short = json!({"rope_type": "longrope", "short_factor": [1.0], "long_factor": vec![1.0; 16]});
    with("rope_scaling", short).assert_error("config", "short_factor", "1 numbers");
    let fits = json!({"rope_type": "longrope", "short_factor": vec![1.0; 16], "long_factor": vec![1.0; 16]});
    with("rope_scaling", fits).assert_healthy();
    // Code beside the weights may know more.
    let own = with("hidden_act", json!("nonsense")).configured(|config| config["auto_map"] = json!({}));
    own.assert_healthy();
}

#[test]
fn missing_sizes_are_an_error() {
    for size in ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"] {
        let without = Model::float().configured(|config| drop(config.as_object_mut().unwrap().remove(size)));
        without.assert_error("config", size, "is missing");
        let own_code = without.configured(|config| config["auto_map"] = json!({}));
        assert!(own_code.verify().errors().all(|error| !error.reason.contains("is missing")), "{size}");
    }
}

#[test]
fn sizes_that_contradict_each_other_are_an_error() {
    let with = |key: &str, value: Value| Model::float().configured(|config| config[key] = value);
    let heads = with("num_attention_heads", json!(3)).configured(|config| config["head_dim"] = Value::Null);
    heads.assert_error("config", "num_attention_heads", "does not divide hidden_size 64");
    with("layer_types", json!(vec!["full_attention"; 5])).assert_error("config", "layer_types", "has 5 entries for");
    let chosen = with("num_experts", json!(4)).configured(|config| config["num_experts_per_tok"] = json!(5));
    chosen.assert_error("config", "num_experts_per_tok", "is 5, and there are 4 experts");
    let mixer = with("mamba_n_heads", json!(4)).configured(|config| {
        config["mamba_d_head"] = json!(32);
        config["mamba_expand"] = json!(3);
    });
    mixer.assert_error("config", "mamba_n_heads", "the mixers are 192 wide");
}

#[test]
fn unparsable_json_files_are_an_error() {
    for (name, text) in
        [("tokenizer_config.json", "{"), ("generation_config.json", "[5]"), ("special_tokens_map.json", "5")]
    {
        let report = verified(|dir| std::fs::write(dir.join(name), text).unwrap());
        let error = report.errors().find(|error| error.check == "json-files").unwrap();
        assert_eq!(error.place, name);
    }
    let fits = verified(|dir| std::fs::write(dir.join("generation_config.json"), "{}").unwrap());
    assert!(fits.passes());
}

#[test]
fn sources_that_fail_verification_are_refused_first() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let cases: [(&str, Value, &str); 4] = [
        ("num_hidden_layers", json!(null), "num_hidden_layers"),
        ("rope_scaling", json!({"rope_type": "llama3"}), "factor"),
        ("quantization_config", json!({"quant_method": "foo"}), "foo"),
        ("quantization_config", json!(5), "not an object"),
    ];
    for (key, value, named) in cases {
        let model = Model::float().configured(|config| config[key] = value);
        crate::common::write(&source, &model.config, &model.tensors);
        let checkpoint = Checkpoint::open(&source).unwrap();
        let error = match common::plan(&source, &common::scheme("int4:g32")) {
            Ok(plan) => plan.without_calibration().unwrap().preflight(&checkpoint).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(named), "{key}: {error}");
    }
}

#[test]
fn byte_order_mark_in_config_is_an_error() {
    let report = verified(|dir| {
        let text = std::fs::read_to_string(dir.join("config.json")).unwrap();
        std::fs::write(dir.join("config.json"), format!("\u{feff}{text}")).unwrap();
    });
    assert_eq!(checks(&report, Severity::Error), ["config"]);
    assert!(report.errors().next().unwrap().reason.contains("byte order mark"));
}

#[test]
fn unknown_dtype_in_a_header_is_an_error() {
    let report = verified(|dir| {
        let path = dir.join("model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(6).position(|part| part == b"\"BF16\"").unwrap();
        bytes[at..at + 6].copy_from_slice(b"\"Q7\"  ");
        std::fs::write(path, bytes).unwrap();
    });
    assert_eq!(checks(&report, Severity::Error), ["files"]);
    assert!(report.verdicts.iter().all(|verdict| verdict.loads == kvant_formats::verify::Loads::No));
}

/// Two shards with an index.
fn sharded(dir: &Path) {
    let tensors = common::llama(Dtype::BF16);
    let declarations =
        tensors.iter().map(|tensor| TensorDeclaration::new(tensor.0.clone(), tensor.1, tensor.2.clone()));
    std::fs::remove_file(dir.join("model.safetensors")).unwrap();
    let writer = Writer::create(dir, Layout::new(declarations.collect(), 60_000, Default::default()).unwrap()).unwrap();
    tensors.iter().enumerate().for_each(|(at, tensor)| writer.write_at(at, 0, &tensor.3).unwrap());
    writer.finish(Durability::Process).unwrap();
    assert!(Checkpoint::open(dir).unwrap().shards().len() > 1);
}

fn index(dir: &Path, edit: impl FnOnce(&mut Value)) {
    let path = dir.join("model.safetensors.index.json");
    let mut index: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    edit(&mut index);
    std::fs::write(path, index.to_string()).unwrap();
}

#[test]
fn shards_must_match_their_index() {
    assert_eq!(checks(&verified(sharded), Severity::Error), [""; 0]);
    let first = |dir: &Path| dir.join("model-00001-of-00002.safetensors");
    let broken: [&dyn Fn(&Path); 4] = [
        &|dir| std::fs::remove_file(first(dir)).unwrap(),
        &|dir| index(dir, |index| index["weight_map"]["lm_head.weight"] = json!("model-00001-of-00002.safetensors")),
        &|dir| index(dir, |index| index["weight_map"]["more.weight"] = json!("model-00001-of-00002.safetensors")),
        &|dir| std::fs::write(first(dir), "short").unwrap(),
    ];
    for (number, breaking) in broken.iter().enumerate() {
        let report = verified(|dir| {
            sharded(dir);
            breaking(dir);
        });
        assert_eq!(checks(&report, Severity::Error), ["files"], "{number}: {:?}", report.findings);
        assert!(report.verdicts.iter().all(|verdict| verdict.loads == kvant_formats::verify::Loads::No));
    }
}

#[test]
fn tensors_missing_from_the_index_are_reported() {
    let report = verified(|dir| {
        sharded(dir);
        index(dir, |index| {
            index["weight_map"].as_object_mut().unwrap().remove("model.norm.weight");
            index["metadata"]["total_size"] = json!(7);
        });
    });
    assert!(report.findings.iter().any(|finding| finding.check == "files" && finding.place == "model.norm.weight"));
    assert!(
        report
            .findings
            .iter()
            .any(|finding| finding.severity == Severity::Note && finding.reason.contains("total_size"))
    );
    let stray = verified(|dir| {
        sharded(dir);
        std::fs::copy(dir.join("model-00001-of-00002.safetensors"), dir.join("old.safetensors")).unwrap();
    });
    assert!(stray.findings.iter().any(|finding| finding.check == "files" && finding.place == "old.safetensors"));
}

#[test]
fn single_file_is_verified_as_far_as_possible() {
    let dir = tempfile::tempdir().unwrap();
    common::write(dir.path(), &common::llama_config(), &common::llama(Dtype::BF16));
    let alone = || verify(&dir.path().join("model.safetensors"), &Options::default()).unwrap();
    assert!(alone().passes() && alone().family == Some("llama"), "config.json is used where it lies beside the file");
    std::fs::remove_file(dir.path().join("config.json")).unwrap();
    assert!(alone().passes() && alone().family.is_none());
    assert!(verify(&dir.path().join("nothing"), &Options::default()).is_err());
}

#[test]
fn weights_of_integers_are_reported_as_such_and_not_as_missing() {
    let weight = "model.layers.0.self_attn.q_proj.weight";
    let shape = Model::float().tensors.into_iter().find(|(name, ..)| name == weight).unwrap().2;
    for dtype in [Dtype::I64, Dtype::I32] {
        let bytes = vec![0; shape.iter().product::<usize>() * dtype.bitsize() / 8];
        let integers = Model::float().with((weight.to_owned(), dtype, shape.clone(), bytes));
        integers.assert_error("names", weight, &format!("holds integers ({dtype}), but no scales"));
        assert_eq!(integers.verify().errors().count(), 1, "{:?}", integers.verify().findings);
        let dir = tempfile::tempdir().unwrap();
        common::write(dir.path(), &integers.config, &integers.tensors);
        let refused = common::plan(dir.path(), &common::scheme("int4:g32")).unwrap_err();
        assert!(refused.to_string().contains(weight), "{refused}");
    }
}
