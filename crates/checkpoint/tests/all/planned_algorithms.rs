//! Plans of recipes with algorithms: stages and links, what is refused, what is estimated.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use crate::common::{llama, llama_config, scheme, weight, write};
use kvant_checkpoint::plan::{AlgorithmProblem, CalibrationSize, LayerId, Plan, PlanError, PlannedStage};
use kvant_checkpoint::recipe::{Recipe, Settings};
use kvant_container::{Checkpoint, Diagnostic, Dtype, ErrorKind};
use kvant_forward::forward::cpu::Precision;
use kvant_model::network::Input;
use serde_json::{Value, json};

const SIZE: CalibrationSize = CalibrationSize {
    sequences: 8,
    held_out: 0,
    length: 16,
    memory: 1 << 30,
    tokenizing: 0,
    precision: Precision::F32,
};

fn with(scheme_name: &str, algorithms: &str) -> Settings {
    scheme(scheme_name).with_algorithms(&[algorithms.to_owned()]).unwrap()
}

fn plan_of(config: &Value, settings: &Settings, calibrated: bool) -> Result<Plan, PlanError> {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), config, &llama(Dtype::BF16));
    let recipe = Recipe::resolve(settings, &Settings::default()).unwrap().with_calibration(calibrated);
    Plan::new(&Checkpoint::open(dir.path()).unwrap(), recipe)
}

fn plan(scheme_name: &str, algorithms: &str) -> Plan {
    plan_of(&llama_config(), &with(scheme_name, algorithms), true).unwrap()
}

#[test]
fn subsets_follow_the_forward_pass_and_other_layers_are_outside() {
    let plan = plan_of(
        &llama_config(),
        &Settings { exclude: vec!["*.o_proj".to_owned()], keep_defaults: Some(false), ..with("int4:g32", "awq,gptq") },
        true,
    )
    .unwrap();
    let names = |stage: &PlannedStage| {
        let leaf = |layer: &LayerId| plan.layer(*layer).module.rsplit('.').next().unwrap().to_owned();
        stage.layers.iter().map(leaf).collect::<Vec<_>>().join(" ")
    };
    let stages: Vec<(Input, String)> =
        plan.blocks()[0].stages.iter().map(|stage| (stage.input, names(stage))).collect();
    let expected = [
        (Input::Attention, "q_proj k_proj v_proj".to_owned()),
        (Input::FeedForward, "gate_proj up_proj".to_owned()),
        (Input::Hidden, "down_proj".to_owned()),
    ];
    assert_eq!(stages, expected);
    assert_eq!(plan.blocks()[0].links.len(), 4);
    let outside: Vec<&str> = plan.outside().iter().map(|index| plan.layer(*index).name.as_str()).collect();
    assert_eq!(outside, ["lm_head"]);
    assert!(plan.notices().iter().any(|notice| notice.starts_with("`lm_head`")), "{:?}", plan.notices());
    assert!(plan.needs_calibration());
    let config = plan.config().unwrap();
    let names: Vec<&Value> =
        config["quantization_config"]["algo_config"].as_array().unwrap().iter().map(|item| &item["name"]).collect();
    assert_eq!(names, [&json!("awq"), &json!("gptq")]);
}

#[test]
fn rtn_recipes_have_no_blocks_and_no_cost() {
    let plan = plan("int4:g32", "rtn");
    assert!(plan.blocks().is_empty() && plan.outside().is_empty() && !plan.needs_calibration());
    assert_eq!(plan.calibration_cost(SIZE, 2), None);
    assert_eq!(plan.config().unwrap()["quantization_config"]["algo_config"], Value::Null);
}

#[test]
fn learned_rotation_needs_data_and_the_gradient_of_the_model() {
    let problem = |error: PlanError| match error {
        PlanError::Algorithm { problem, .. } => problem,
        other => panic!("{other}"),
    };
    let learned = with("int4:g32", "rotate:steps=100");
    let without_data = plan_of(&llama_config(), &learned, false).unwrap_err();
    assert!(matches!(problem(without_data), AlgorithmProblem::NoData));
    let plan = plan_of(&llama_config(), &learned, true).unwrap();
    assert!(plan.runs_data() && plan.blocks().is_empty());
    let [cost, more] = ["rotate:steps=100", "rotate:steps=200"].map(|text| {
        let plan = plan_of(&llama_config(), &with("int4:g32", text), true).unwrap();
        plan.calibration_cost(SIZE, 2).unwrap()
    });
    assert!(cost.rotation > 0.0 && more.rotation > 1.5 * cost.rotation && more.peak_memory == cost.peak_memory);
    let fixture = crate::support::Checkpoint::read("deepseek_v32");
    let dir = tempfile::tempdir().unwrap();
    let tensors = fixture.tensors.iter().map(|meta| weight(&meta.name, Dtype::BF16, &meta.shape));
    write(dir.path(), &fixture.config, &tensors.collect::<Vec<_>>());
    let recipe = Recipe::resolve(&learned, &Settings::default()).unwrap().with_calibration(true);
    let error = Plan::new(&Checkpoint::open(dir.path()).unwrap(), recipe).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.hint().unwrap().contains("leave steps out"), "{:?}", error.hint());
    assert!(matches!(
        problem(error),
        AlgorithmProblem::CannotLearnRotation { step: "attention to keys that an indexer chooses" }
    ));
}

#[test]
fn algorithms_are_part_of_the_fingerprint() {
    let fingerprint = |algorithms: &str| {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &llama_config(), &llama(Dtype::BF16));
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let of = |algorithms: &str| {
            let recipe = Recipe::resolve(&with("int4:g32", algorithms), &Settings::default()).unwrap();
            Plan::new(&checkpoint, recipe.with_calibration(true)).unwrap().fingerprint().to_owned()
        };
        of("gptq") == of(algorithms)
    };
    assert!(fingerprint("gptq:damping=0.01"));
    assert!(!fingerprint("gptq:damping=0.02") && !fingerprint("awq,gptq") && !fingerprint("rtn"));
}

#[test]
fn cost_estimate_counts_the_large_terms() {
    let cost = plan("int4:g32", "gptq").calibration_cost(SIZE, 2).unwrap();
    // Multiplications for each token: q, k and v 8192, attention 1024, o 4096, gate and up 16384, down 8192.
    // Each once, as a run goes on where the one before it has ended.
    assert_eq!(cost.tokens, 128);
    assert_eq!(cost.passes, 2.0 * 128.0 * 37_888.0);
    assert_eq!(cost.hessians, 128.0 * (3.0 * 64.0 * 64.0 + 128.0 * 128.0));
    let narrow = 3.0 * 64_f64.powi(3) / 3.0 + 2.0 * (128.0 + 64.0 + 256.0) * 64.0 * 64.0;
    let wide = 128_f64.powi(3) / 3.0 + 2.0 * 64.0 * 128.0 * 128.0;
    assert!((cost.rounding / (narrow + wide) - 1.0).abs() < 1e-12, "{}", cost.rounding);
    assert_eq!((cost.search, cost.disk), (0.0, 128 * (2 * 64 + 64 + 128) * 4));
}

#[test]
fn more_algorithms_cost_more() {
    let cost = |algorithms: &str| plan("int4:g32", algorithms).calibration_cost(SIZE, 2).unwrap();
    let (gptq, gptaq, awq, both) = (cost("gptq"), cost("gptaq"), cost("awq"), cost("awq,gptq"));
    assert_eq!(gptaq.disk, 2 * gptq.disk);
    assert_eq!((gptaq.passes, gptaq.hessians), (2.0 * gptq.passes, 3.0 * gptq.hessians));
    assert_eq!((awq.hessians, awq.rounding), (0.0, 0.0));
    // Twenty trials of attention, of the network, and of o and down.
    assert_eq!(awq.search, 20.0 * 2.0 * 128.0 * (12_288.0 + 24_576.0 + 4096.0 + 8192.0));
    assert_eq!((both.search, both.rounding), (awq.search, gptq.rounding));
    assert!(both.operations() > gptq.operations() && both.peak_memory > gptq.peak_memory);
    assert_eq!(cost("smoothquant").search, 0.0);
}

#[test]
fn impossible_algorithms_are_refused_first() {
    let refused = |config: &Value, settings: &Settings, calibrated: bool| {
        let error = plan_of(config, settings, calibrated).unwrap_err();
        assert!(error.hint().is_some(), "{error}");
        (error.to_string(), error.kind())
    };
    let llama = llama_config();
    let (message, kind) = refused(&llama, &with("int4:g32", "awq,gptq"), false);
    assert_eq!((message.as_str(), kind), ("awq,gptq: needs calibration data, and none is given", ErrorKind::Usage));
    let (message, kind) = refused(&llama, &with("mx6", "gptq"), true);
    assert!(message.starts_with("gptq: layer `model.layers.0.self_attn.q_proj` would be `mx6`"), "{message}");
    assert_eq!(kind, ErrorKind::Unsupported);
    let mut unknown = llama.clone();
    (unknown["model_type"], unknown["architectures"]) = (json!("what"), json!(["WhatForCausalLM"]));
    let (message, kind) = refused(&unknown, &with("int4:g32", "gptq"), true);
    assert_eq!((message.contains("WhatForCausalLM has no description"), kind), (true, ErrorKind::Unsupported));
    let mut biased = llama.clone();
    biased["rope_scaling"] = json!({"rope_type": "what"});
    assert_eq!(refused(&biased, &with("int4:g32", "gptq"), true).1, ErrorKind::Unsupported);
}

#[test]
fn roundings_refuse_unsuitable_schemes_and_settings() {
    let refused = |scheme: &str, algorithms: &str| {
        let error = plan_of(&llama_config(), &with(scheme, algorithms), true).unwrap_err();
        assert_eq!((error.kind(), error.hint().is_some()), (ErrorKind::Unsupported, true), "{error}");
        error.to_string()
    };
    let message = refused("int4:g32", "hqq");
    assert!(message.starts_with("hqq: `hqq` is not for layer `model.layers.0."), "{message}");
    assert!(message.ends_with("add `:zp`"), "{message}");
    assert!(refused("e4m3:channel", "adaround").ends_with("it trains integers of at most 16 bits"));
    assert!(
        refused("int4:g32", "awq,adaquant:selective_update=on").contains("`adaquant:selective_update` is for ONNX")
    );
    assert!(refused("int4:g32", "adaround:drop_ratio=0.5").contains("drop_ratio"));
    assert!(refused("int4:g32", "adaround:update_bias=on").contains("update_bias"));
}

#[test]
fn hqq_needs_no_data_and_more_memory_than_rtn() {
    let planned = |algorithms: &str| plan_of(&llama_config(), &with("uint4:g32:zp", algorithms), false).unwrap();
    let (nearest, hqq) = (planned("rtn"), planned("hqq"));
    assert!(hqq.blocks().is_empty() && !hqq.needs_calibration() && hqq.calibration_cost(SIZE, 2).is_none());
    assert_ne!(hqq.fingerprint(), nearest.fingerprint());
    assert_ne!(hqq.fingerprint(), planned("hqq:steps=3").fingerprint());
    assert!(hqq.peak_memory(2) >= nearest.peak_memory(2));
    assert!(matches!(
        plan_of(&llama_config(), &with("uint4:g32:zp", "awq,hqq"), false),
        Err(PlanError::Algorithm { .. })
    ));
}

#[test]
fn training_costs_a_hessian_product_per_step() {
    let cost = |algorithms: &str| plan("int4:g32", algorithms).calibration_cost(SIZE, 2).unwrap();
    let (gptaq, ada_round) = (cost("gptaq"), cost("adaround"));
    assert_eq!((ada_round.passes, ada_round.hessians, ada_round.disk), (gptaq.passes, gptaq.hessians, gptaq.disk));
    assert!(
        ada_round.rounding > 100.0 * gptaq.rounding
            && cost("adaround:num_iterations=10").rounding < gptaq.rounding * 20.0
    );
}

#[test]
fn correcting_biases_takes_the_runs_of_gptq_and_no_hessians() {
    let dir = tempfile::tempdir().unwrap();
    let mut tensors = llama(Dtype::BF16);
    tensors.push(weight("model.layers.0.self_attn.q_proj.bias", Dtype::BF16, &[64]));
    let mut config = llama_config();
    config["attention_bias"] = json!(true);
    write(dir.path(), &config, &tensors);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let planned = |algorithms: &str| {
        let recipe = Recipe::resolve(&with("int4:g32", algorithms), &Settings::default()).unwrap();
        Plan::new(&checkpoint, recipe.with_calibration(true)).unwrap()
    };
    let (plain, gptq, corrected) = (planned("rtn"), planned("gptq"), planned("bias-correction"));
    assert!(corrected.needs_calibration() && corrected.fingerprint() != plain.fingerprint());
    assert_ne!(corrected.fingerprint(), planned("bias-correction:strength=0.5").fingerprint());
    let cost = |plan: &Plan| plan.calibration_cost(SIZE, 2).unwrap();
    let (gptq, corrected) = (cost(&gptq), cost(&corrected));
    assert_eq!((corrected.passes, corrected.disk), (gptq.passes, gptq.disk));
    assert_eq!((corrected.hessians, corrected.rounding, corrected.search), (0.0, 0.0, 0.0));
    assert!(corrected.peak_memory < gptq.peak_memory);
}

#[test]
fn correcting_biases_is_refused_where_no_quantized_layer_has_one() {
    let error = plan_of(&llama_config(), &with("int4:g32", "gptq,bias-correction"), true).unwrap_err();
    assert!(matches!(&error, PlanError::Algorithm { problem: AlgorithmProblem::NoBiases, .. }), "{error}");
    assert_eq!((error.kind(), error.hint().is_some()), (ErrorKind::Unsupported, true));
}

#[test]
fn transform_is_refused_where_tensors_are_not_understood() {
    let dir = tempfile::tempdir().unwrap();
    // It may read what the norms put out. No algorithm runs on such a model.
    let mut tensors = llama(Dtype::BF16);
    tensors.push(weight("model.layers.0.self_attn.q_proj.lora_A.weight", Dtype::BF16, &[4, 64]));
    write(dir.path(), &llama_config(), &tensors);
    let recipe = Recipe::resolve(&with("int4:g32", "awq"), &Settings::default()).unwrap().with_calibration(true);
    let error = Plan::new(&Checkpoint::open(dir.path()).unwrap(), recipe).unwrap_err();
    assert!(matches!(&error, PlanError::Algorithm { problem: AlgorithmProblem::CannotRun(_), .. }), "{error}");
}

#[test]
fn transform_without_smoothing_pairs_is_refused() {
    // Only the head is quantized, which no block has.
    let exclude = vec!["model.*".to_owned()];
    let settings = Settings { exclude, keep_defaults: Some(false), ..with("int4:g32", "awq") };
    let error = plan_of(&llama_config(), &settings, true).map(|plan| plan.layers().len()).unwrap_err();
    assert!(error.to_string().starts_with("awq: `awq` finds no pair of layers"), "{error}");
}

/// A model with the tensors of a fixture, planned.
fn plan_of_fixture(fixture: &str, settings: &Settings) -> Result<Plan, PlanError> {
    let dir = tempfile::tempdir().unwrap();
    let fixture = crate::support::Checkpoint::read(fixture);
    let tensors = fixture.tensors.iter().map(|meta| weight(&meta.name, Dtype::BF16, &meta.shape));
    write(dir.path(), &fixture.config, &tensors.collect::<Vec<_>>());
    let recipe = Recipe::resolve(settings, &Settings::default()).unwrap().with_calibration(true);
    Plan::new(&Checkpoint::open(dir.path()).unwrap(), recipe)
}

#[test]
fn tuning_is_refused_where_a_block_has_no_gradients() {
    for (fixture, layer, step) in [
        ("deepseek_v32", "model.layers.0.", "an indexer"),
        ("deberta_v2", "deberta.encoder.layer.0.", "scores of distances"),
        ("gemma3n_text", "model.layers.0.", "more than one stream"),
        ("gemma4_layer_inputs", "model.layers.0.", "more than one stream"),
    ] {
        let error = plan_of_fixture(fixture, &with("int8:channel", "gptq,autoround")).expect_err(fixture);
        let (message, hint) = (error.to_string(), error.hint().unwrap());
        assert!(message.contains(&format!("`autoround` cannot tune `{layer}")), "{fixture}: {message}");
        assert!(message.contains(step), "{fixture}: {message}");
        assert_eq!(
            (error.kind(), hint.as_str()),
            (ErrorKind::Unsupported, "leave autoround out of ‹algorithm›"),
            "{fixture}"
        );
        plan_of_fixture(fixture, &with("int8:channel", "gptq")).unwrap_or_else(|error| panic!("{fixture}: {error}"));
    }
    // Blocks without quantized layers are not tuned.
    let exclude = vec!["model.layers.1.*".to_owned()];
    plan_of_fixture("minimax_m3_text", &Settings { exclude, ..with("int8:channel", "gptq,autoround") }).unwrap();
}
