//! Checkpoints of architectures without a description: which layers are quantized, how the result names them, and what is said.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use crate::common::{Tensor, plan, quantize, scheme, weight, write};
use kvant_checkpoint::plan::{Plan, PlanError};
use kvant_checkpoint::recipe::Settings;
use kvant_container::{Checkpoint, Diagnostic, Dtype};
use kvant_formats::format::OutputFormat;
use kvant_formats::verify::{Options, verify};
use kvant_quant::finding::Severity;
use serde_json::{Value, json};
use std::path::PathBuf;
use tempfile::TempDir;

/// A checkpoint on disk.
struct Model {
    _dir: TempDir,
    source: PathBuf,
    target: PathBuf,
}

/// Matrices by module and shape; names that end in something else than a module are taken as they are.
fn model(config: &Value, shapes: &[(&str, &[usize])]) -> Model {
    let name = |name: &str| match name.ends_with(".bias") {
        true => name.to_owned(),
        false => format!("{name}.weight"),
    };
    let tensors: Vec<Tensor> = shapes.iter().map(|(module, shape)| weight(&name(module), Dtype::BF16, shape)).collect();
    with_tensors(config, &tensors)
}

fn with_tensors(config: &Value, tensors: &[Tensor]) -> Model {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    write(&source, config, tensors);
    Model { _dir: dir, source, target }
}

impl Model {
    fn plan(&self, settings: &Settings) -> Plan {
        plan(&self.source, settings).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The modules that are quantized.
    fn quantized(&self, settings: &Settings) -> Vec<String> {
        self.plan(settings).layers().iter().map(|layer| layer.module.clone()).collect()
    }

    /// The configuration of the output, which has passed verification.
    fn written(&self, settings: &Settings) -> Value {
        quantize(&self.source, &self.target, settings, 1).unwrap_or_else(|error| panic!("{error}"));
        Checkpoint::open(&self.target).unwrap().config().unwrap().unwrap()["quantization_config"].clone()
    }

    /// The errors that verification of the output finds.
    fn errors(&self) -> Vec<String> {
        let findings = verify(&self.target, &Options::default()).unwrap().findings;
        let errors = findings.into_iter().filter(|finding| finding.severity == Severity::Error);
        errors.map(|finding| format!("{} {}: {}", finding.check, finding.place, finding.reason)).collect()
    }
}

fn settings(text: &str, export: OutputFormat) -> Settings {
    Settings { format: Some(export), ..scheme(text) }
}

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

const NEMOTRON: [(&str, &[usize]); 7] = [
    ("backbone.embeddings", &[32, 64]),
    ("backbone.layers.0.norm", &[64]),
    ("backbone.layers.0.mixer.up_proj", &[128, 64]),
    ("backbone.layers.0.mixer.down_proj", &[64, 128]),
    ("backbone.layers.0.mixer.gate", &[4, 64]),
    ("backbone.norm_f", &[64]),
    ("lm_head", &[32, 64]),
];

fn nemotron() -> Model {
    let config = json!({"model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"], "vocab_size": 32,
        "layers_block_type": ["mlp"], "hidden_size": 64, "num_attention_heads": 4});
    model(&config, &NEMOTRON)
}

#[test]
fn ignore_lists_use_names_of_transformers_after_loading() {
    let model = nemotron();
    let config = model.written(&settings("int4:g32", OutputFormat::COMPRESSED_TENSORS));
    assert_eq!(config["config_groups"]["group_0"]["targets"], json!(["Linear"]));
    let ignore = strings(&config["ignore"]);
    for name in ["lm_head", "backbone.layers.0.mixer.gate", "model.layers.0.mixer.gate"] {
        assert!(ignore.contains(&name), "{name}: {ignore:?}");
    }
    assert!(model.errors().is_empty(), "{:?}", model.errors());
    // As other tools write it: by the names on disk alone.
    for (change, about) in [("targets", "mixer.up_proj"), ("ignore", "mixer.gate")] {
        let path = model.target.join("config.json");
        let whole: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let mut other = whole.clone();
        match change {
            "targets" => {
                other["quantization_config"]["config_groups"]["group_0"]["targets"] =
                    json!(["re:backbone.*up_proj", "re:backbone.*down_proj"]);
            }
            _ => other["quantization_config"]["ignore"] = json!(["lm_head", "backbone.layers.0.mixer.gate"]),
        }
        std::fs::write(&path, other.to_string()).unwrap();
        let errors = model.errors();
        std::fs::write(&path, whole.to_string()).unwrap();
        assert!(errors.iter().any(|error| error.contains("loader-names") && error.contains(about)), "{errors:?}");
    }
}

#[test]
fn several_schemes_are_targeted_under_both_names() {
    let overrides = vec!["*.down_proj=int8:channel".parse().unwrap()];
    let config = nemotron().written(&Settings { overrides, ..settings("int4:g32", OutputFormat::COMPRESSED_TENSORS) });
    let targets = strings(&config["config_groups"]["group_1"]["targets"]);
    assert_eq!(targets, [r"re:.*\.down_proj$"]);
}

#[test]
fn heads_and_conditions_are_kept_and_not_listed_where_quantized() {
    let config = json!({"_class_name": "FluxTransformer2DModel"});
    let model = model(
        &config,
        &[
            ("blocks.0.attn.to_q", &[64, 64]),
            ("time_text_embed.timestep_embedder.linear_1", &[64, 64]),
            ("context_embedder", &[64, 64]),
            ("proj_out", &[64, 64]),
        ],
    );
    let kept = model.quantized(&settings("int4:g32", OutputFormat::QUARK));
    assert_eq!(kept, ["blocks.0.attn.to_q", "context_embedder"]);
    let all = Settings { keep_defaults: Some(false), ..settings("int4:g32", OutputFormat::QUARK) };
    let all_quantized = model.quantized(&all);
    for delicate in ["proj_out", "time_text_embed.timestep_embedder.linear_1"] {
        assert!(all_quantized.contains(&delicate.to_owned()), "{delicate}");
    }
    let config = model.written(&all);
    assert!(!strings(&config["exclude"]).contains(&"proj_out"), "{config}");
}

#[test]
fn tower_that_is_the_whole_model_is_quantized() {
    let shapes: [(&str, &[usize]); 3] = [
        ("vit.encoder.layer.0.attention.attention.query", &[64, 64]),
        ("vit.encoder.layer.0.intermediate.dense", &[128, 64]),
        ("classifier", &[8, 64]),
    ];
    let vit = model(&json!({"model_type": "vit", "architectures": ["ViTForImageClassification"]}), &shapes);
    assert_eq!(vit.quantized(&scheme("int4:g32")).len(), 2);
    let mut both = shapes.to_vec();
    let text: [(&str, &[usize]); 2] =
        [("model.layers.0.self_attn.q_proj", &[64, 64]), ("model.embed_tokens", &[32, 64])];
    both.extend(text);
    let beside = model(&json!({"model_type": "some_vlm", "vocab_size": 32}), &both);
    assert_eq!(beside.quantized(&scheme("int4:g32")), ["model.layers.0.self_attn.q_proj"]);
}

#[test]
fn embeddings_routers_gates_and_predictions_stay_float() {
    let config = json!({"model_type": "strange", "num_attention_heads": 16, "n_routed_experts": 6, "vocab_size": 999});
    let model = model(
        &config,
        &[
            ("user_table", &[100, 64]),
            ("item_lookup", &[100, 64]),
            ("emb", &[100, 64]),
            ("mask_decoder.mask_tokens", &[4, 64]),
            ("model.layers.0.mlp.router.classifier", &[9, 64]),
            ("model.layers.0.mlp.router_mlp", &[64, 64]),
            ("model.layers.0.linear_attn.in_proj_a", &[32, 64]),
            ("model.layers.0.self_attn.g_proj", &[16, 64]),
            ("model.layers.0.mixer.x_proj", &[64, 64]),
            ("model.layers.0.norm1.linear", &[64, 64]),
            ("class_labels_classifier", &[32, 64]),
            ("bbox_predictor.layers.0", &[64, 64]),
            ("model.layers.0.self_attn.q_proj", &[64, 64]),
            ("model.layers.0.mlp.wide_proj", &[256, 64]),
        ],
    );
    assert_eq!(
        model.quantized(&scheme("int4:g32")),
        ["model.layers.0.self_attn.q_proj", "model.layers.0.mlp.wide_proj"]
    );
    let all = Settings { keep_defaults: Some(false), ..scheme("int4:g32") };
    let all = model.quantized(&all);
    assert!(all.contains(&"model.layers.0.norm1.linear".to_owned()) && !all.contains(&"emb".to_owned()), "{all:?}");
}

#[test]
fn tied_heads_without_a_tensor_are_excluded() {
    let config = json!({"model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 32});
    let model = model(
        &config,
        &[
            ("bert.embeddings.word_embeddings", &[32, 64]),
            ("bert.encoder.layer.0.intermediate.dense", &[128, 64]),
            ("cls.predictions.transform.dense", &[64, 64]),
            ("cls.predictions.bias", &[32]),
        ],
    );
    for (export, list) in [(OutputFormat::QUARK, "exclude"), (OutputFormat::COMPRESSED_TENSORS, "ignore")] {
        let config = Model { target: model.target.with_extension(list), ..Model::of(&model) }
            .written(&settings("int4:g32", export));
        assert!(strings(&config[list]).contains(&"cls.predictions.decoder"), "{config}");
    }
}

impl Model {
    /// The same source, for another output.
    fn of(other: &Model) -> Model {
        Model { _dir: tempfile::tempdir().unwrap(), source: other.source.clone(), target: other.target.clone() }
    }
}

#[test]
fn weights_that_a_loader_reads_as_float_stay_float() {
    let config = json!({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": 32});
    let (wi, wo) = ("encoder.block.0.layer.1.DenseReluDense.wi", "encoder.block.0.layer.1.DenseReluDense.wo");
    let model = model(&config, &[("shared", &[32, 64]), (wi, &[128, 64]), (wo, &[64, 128])]);
    assert_eq!(model.quantized(&settings("int4:g32", OutputFormat::QUARK)), [wi]);
    let fp8 = "e4m3:channel+e4m3:channel!dynamic";
    assert_eq!(model.quantized(&settings(fp8, OutputFormat::COMPRESSED_TENSORS)), [wi, wo]);
    let error = plan(&model.source, &settings("int4:g32", OutputFormat::COMPRESSED_TENSORS)).unwrap_err();
    assert!(matches!(error, PlanError::CannotHold { .. }) && error.to_string().contains("packed"), "{error}");
    let asked =
        Settings { overrides: vec!["*.wo=int8:channel".parse().unwrap()], ..settings("int4:g32", OutputFormat::QUARK) };
    let error = plan(&model.source, &asked).unwrap_err();
    assert!(
        matches!(error, PlanError::CannotHold { .. }) && error.to_string().contains("casts activations"),
        "{error}"
    );
}

#[test]
fn experts_split_by_the_loader_are_refused() {
    let config = json!({"model_type": "llama4_text", "architectures": ["Llama4ForCausalLM"], "vocab_size": 32});
    let tensors = [
        weight("model.layers.0.self_attn.q_proj.weight", Dtype::BF16, &[64, 64]),
        weight("model.layers.0.feed_forward.experts.down_proj", Dtype::BF16, &[2, 64, 64]),
    ];
    let model = with_tensors(&config, &tensors);
    let error = plan(&model.source, &settings("int4:g32", OutputFormat::COMPRESSED_TENSORS)).unwrap_err();
    assert!(error.to_string().contains("experts") && error.hint().unwrap().contains("fake"), "{error}");
}

#[test]
fn weights_left_in_floats_are_reported_first() {
    let config = json!({"model_type": "strange", "architectures": ["StrangeForCausalLM"], "vocab_size": 32});
    let tensors = [
        weight("model.layers.0.self_attn.q_proj.weight", Dtype::BF16, &[64, 64]),
        weight("model.layers.0.feed_forward.experts.down_proj", Dtype::BF16, &[2, 64, 64]),
    ];
    let model = with_tensors(&config, &tensors);
    let plan = model.plan(&settings("int4:g32", OutputFormat::QUARK));
    let share = plan.float_share().unwrap();
    assert!(share.starts_with("67 % of the weights") && share.contains("feed_forward.experts.down_proj"), "{share}");
    assert_eq!(plan.notices()[0], share);
}

#[test]
fn layer_not_divisible_by_groups_stays_float_unless_overridden() {
    let config = json!({"model_type": "strange", "architectures": ["StrangeModel"]});
    let model = model(
        &config,
        &[
            ("layers.0.up", &[256, 64]),
            ("layers.0.down", &[64, 256]),
            ("layers.0.odd", &[64, 40]),
            ("layers.0.mix", &[64, 64]),
        ],
    );
    let quantized = model.plan(&settings("int4:g32", OutputFormat::QUARK));
    assert_eq!(quantized.layers().len(), 3);
    let note = quantized.notices().iter().find(|notice| notice.contains("`layers.0.odd` stays in floats"));
    assert!(note.is_some_and(|note| note.contains("40")), "{:?}", quantized.notices());
    let config = model.written(&settings("int4:g32", OutputFormat::QUARK));
    assert!(strings(&config["exclude"]).contains(&"layers.0.odd"));
    let asked =
        Settings { overrides: vec!["*.odd=int4:g32".parse().unwrap()], ..settings("int4:g32", OutputFormat::QUARK) };
    assert!(matches!(plan(&model.source, &asked).unwrap_err(), PlanError::Shape { .. }));
    // A scheme that fits little is the wrong scheme.
    assert!(matches!(
        plan(&model.source, &settings("int4:g256", OutputFormat::QUARK)).unwrap_err(),
        PlanError::Shape { .. }
    ));
}

#[test]
fn integer_tables_are_copied() {
    let config = json!({"model_type": "strange", "architectures": ["StrangeModel"]});
    let integers =
        |name: &str, dtype: Dtype, size: usize| -> Tensor { (name.to_owned(), dtype, vec![4], vec![1; 4 * size]) };
    let linear = weight("layers.0.up.weight", Dtype::BF16, &[64, 64]);
    let tables = [
        linear.clone(),
        integers("layers.0.tid2eid", Dtype::I64, 8),
        integers("norm.num_batches_tracked", Dtype::I64, 8),
        integers("hash.multipliers", Dtype::I32, 4),
    ];
    let model = with_tensors(&config, &tables);
    let plan_of = model.plan(&scheme("int4:g32"));
    assert_eq!((plan_of.layers().len(), plan_of.kept().len()), (1, 3));
    model.written(&scheme("int4:g32"));
    // Beside scales they are codes.
    let codes =
        [linear, integers("layers.0.down.codes", Dtype::I32, 4), weight("layers.0.down.scales", Dtype::BF16, &[4])];
    let model = with_tensors(&config, &codes);
    assert!(matches!(plan(&model.source, &scheme("int4:g32")).unwrap_err(), PlanError::AlreadyQuantized { .. }));
}

#[test]
fn weights_of_wide_integers_are_no_codes() {
    let config = crate::common::llama_config();
    let mut tensors = crate::common::llama(Dtype::F32);
    let up = tensors.iter_mut().find(|(name, ..)| name.ends_with("0.mlp.up_proj.weight")).unwrap();
    up.1 = Dtype::I32;
    let model = with_tensors(&config, &tensors);
    let error = plan(&model.source, &scheme("int4:g32")).unwrap_err();
    assert!(matches!(&error, PlanError::SourceType { dtype, .. } if dtype == "I32"), "{error}");
}

#[test]
fn model_type_and_class_of_different_families_give_a_notice() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = crate::common::llama_config();
    config["architectures"] = json!(["Qwen2ForCausalLM"]);
    write(dir.path(), &config, &crate::common::llama(Dtype::BF16));
    let plan = plan(dir.path(), &scheme("int4:g32")).unwrap();
    let notice = plan.notices().iter().find(|notice| notice.contains("different models"));
    assert!(
        notice.is_some_and(|text| text.contains("`llama`") && text.contains("`Qwen2ForCausalLM`")),
        "{:?}",
        plan.notices()
    );
    let loaders = plan.loaders();
    assert!(!loaders.contains(&"vLLM") && !loaders.contains(&"SGLang") && !loaders.is_empty(), "{loaders:?}");

    // transformers makes the class of model_type, whose tensors have other names.
    config["model_type"] = json!("opt");
    write(dir.path(), &config, &crate::common::llama(Dtype::BF16));
    let plan = self::plan(dir.path(), &scheme("int4:g32")).unwrap();
    let refusals = plan.loader_refusals();
    assert!(plan.loaders().is_empty(), "{:?}", plan.loaders());
    assert!(!refusals.is_empty() && refusals[0].reason.contains("whose tensors have other names"), "{refusals:?}");
}
