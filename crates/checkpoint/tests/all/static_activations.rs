//! Static activations end to end with made-up statistics: places of the plan, parameters, tensors of both layouts.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use crate::common::{files, llama, llama_config, scheme, weight, write};
use kvant_checkpoint::calibration::{CalibrationError, Resolved, Statistics, resolve};
use kvant_checkpoint::engine::{self, EngineError, Output, Silent, Start};
use kvant_checkpoint::plan::{CalibratedPlan, Plan, PlanError};
use kvant_checkpoint::recipe::{Recipe, Settings};
use kvant_container::{Checkpoint, Diagnostic, Dtype, Durability};
use kvant_formats::verify::{Options, verify};
use kvant_numeric::simd::Isa;
use kvant_weights::activation_point::ActivationPoint;
use kvant_weights::activation_point::Parameters;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

fn small(dtype: Dtype) -> (TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    write(&source, &llama_config(), &llama(dtype));
    (dir, source, target)
}

fn plan(source: &Path, settings: &Settings) -> Result<Plan, PlanError> {
    let recipe = Recipe::resolve(settings, &Settings::default()).unwrap().with_calibration(true);
    Plan::new(&Checkpoint::open(source).unwrap(), recipe)
}

/// Statistics in which every place has seen two tokens, with a largest magnitude of its own.
fn statistics(plan: &Plan) -> Statistics {
    let mut statistics = Statistics::new(plan).unwrap();
    for (i, planned) in plan.sites().iter().enumerate() {
        let mut rows = vec![0.25; 2 * planned.features];
        rows[0] = -(i as f32 + 1.0);
        statistics.update(&planned.site, Isa::best(), &rows, planned.features);
    }
    statistics
}

fn quantize(plan: &CalibratedPlan, source: &Path, target: &Path, threads: usize) -> Result<(), EngineError> {
    let checkpoint = Checkpoint::open(source).unwrap();
    let Start::Working(output) = Output::begin(plan, source, target, false)? else { return Ok(()) };
    engine::run(plan, &checkpoint, &output, threads, &AtomicBool::new(false), &Silent)?;
    output.finish(plan, &checkpoint, Durability::Process)?;
    Ok(())
}

fn made(source: &Path, target: &Path, settings: &Settings) -> Resolved {
    let planned = plan(source, settings).unwrap();
    let resolved = resolve(&planned, &statistics(&planned)).unwrap();
    let planned = planned.calibrated(resolved.parameters.clone(), None).unwrap();
    quantize(&planned, source, target, 2).unwrap();
    resolved
}

/// The value of a tensor of one element.
fn scalar(dir: &Path, name: &str) -> (Dtype, Vec<usize>, f32) {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let view = checkpoint.tensor(name).unwrap_or_else(|| panic!("no {name}"));
    let value = match (view.dtype(), view.bytes()) {
        (Dtype::F32, bytes) => f32::from_le_bytes(bytes.try_into().unwrap()),
        (Dtype::BF16, bytes) => half::bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        (Dtype::I8, bytes) => f32::from(bytes[0] as i8),
        (other, _) => panic!("{name} is {other}"),
    };
    (view.dtype(), view.shape().to_vec(), value)
}

fn amax(plan: &Plan, site: &str) -> f32 {
    let site: ActivationPoint = site.parse().unwrap();
    plan.sites().iter().position(|planned| planned.site == site).unwrap_or_else(|| panic!("no {site}")) as f32 + 1.0
}

#[test]
fn mostly_nan_activations_are_refused() {
    let (_dir, source, _) = small(Dtype::BF16);
    let planned = plan(&source, &scheme("fp8")).unwrap();
    let with_nan = |every: usize| {
        let mut statistics = statistics(&planned);
        let site = &planned.sites()[0];
        let mut rows = vec![0.5; 100 * site.features];
        rows.iter_mut().step_by(every * site.features).for_each(|value| *value = f32::NAN);
        statistics.update(&site.site, Isa::best(), &rows, site.features);
        resolve(&planned, &statistics)
    };
    // A tenth of the tokens is left out and reported; more is a model that computes nothing.
    assert_eq!(with_nan(10).unwrap().report.not_finite[0].1, 10);
    assert!(matches!(with_nan(2), Err(CalibrationError::NotFinite { count: 50, tokens: 102, .. })));
}

const UP: &str = "model.layers.0.mlp.up_proj";

#[test]
fn every_static_scheme_writes_the_tensors_of_its_layout() {
    for (name, suffix, dtype, shape, divisor) in [
        ("int8", "input_scale", Dtype::F32, vec![], 127.5),
        ("fp8", "input_scale", Dtype::BF16, vec![], 448.0),
        ("mxfp4_fp8", "input_scale", Dtype::BF16, vec![], 448.0),
        ("nvfp4", "input_scale_2", Dtype::F32, vec![], 448.0 * 6.0),
        ("amdfp4_global16", "input_scale_2", Dtype::F32, vec![], 114_688.0 * 6.0),
        ("FP8", "input_scale", Dtype::BF16, vec![1], 448.0),
        ("NVFP4", "input_global_scale", Dtype::F32, vec![1], 448.0 * 6.0),
    ] {
        let (_dir, source, target) = small(Dtype::BF16);
        let planned = plan(&source, &scheme(name)).unwrap();
        assert_eq!(planned.sites().len(), 7, "{name}");
        made(&source, &target, &scheme(name));
        let found = scalar(&target, &format!("{UP}.{suffix}"));
        // Gate and up share what is global.
        let shared = amax(&planned, &format!("input:{UP}")).max(amax(&planned, "input:model.layers.0.mlp.gate_proj"));
        let own = amax(&planned, &format!("input:{UP}"));
        let expected =
            if suffix.ends_with("scale") && suffix != "input_global_scale" { own / divisor } else { shared / divisor };
        let expected = if suffix == "input_global_scale" { 1.0 / expected } else { expected };
        assert_eq!((found.0, found.1), (dtype, shape), "{name}");
        assert!((found.2 / expected - 1.0).abs() < 1.0 / 256.0, "{name}: {} not {expected}", found.2);
    }
}

#[test]
fn zero_points_and_per_channel_scales_are_stored() {
    let (_dir, source, target) = small(Dtype::BF16);
    made(&source, &target, &scheme("int8:tensor+uint8:channel@1:zp!static"));
    let checkpoint = Checkpoint::open(&target).unwrap();
    let scale = checkpoint.tensor(&format!("{UP}.input_scale")).unwrap();
    assert_eq!((scale.dtype(), scale.shape()), (Dtype::BF16, [64].as_slice()));
    let point = checkpoint.tensor(&format!("{UP}.input_zero_point")).unwrap();
    // The first feature saw -n and 0.25, the others 0.25 alone.
    assert_eq!((point.dtype(), point.bytes()[1]), (Dtype::U8, 0));
    assert!(point.bytes()[0] > 200);
    drop(checkpoint);
    let symmetric = target.with_extension("int8");
    made(&source, &symmetric, &scheme("int8"));
    assert_eq!(scalar(&symmetric, &format!("{UP}.input_zero_point")), (Dtype::I8, vec![], 0.0));
}

#[test]
fn keys_and_values_share_a_scale_only_before_rope() {
    let cached = |after, least| Settings {
        kv_cache: Some("fp8".to_owned()),
        kv_cache_post_rope: Some(after),
        min_kv_scale: Some(least),
        ..scheme("int4:g32")
    };
    let output = |dir: &Path, leaf: &str| scalar(dir, &format!("model.layers.0.self_attn.{leaf}.output_scale")).2;
    let (_dir, source, target) = small(Dtype::BF16);
    let resolved = made(&source, &target, &cached(false, 0.0));
    assert_eq!(resolved.parameters.iter().count(), 2);
    assert_eq!(output(&target, "k_proj"), output(&target, "v_proj"));
    let after = target.with_extension("after");
    made(&source, &after, &cached(true, 0.0));
    assert!(output(&after, "k_proj") < output(&after, "v_proj"));
    let least = target.with_extension("least");
    let resolved = made(&source, &least, &cached(true, 0.003));
    assert_eq!(
        (resolved.report.raised, output(&least, "k_proj")),
        (vec![ActivationPoint::Key(0)], half::bf16::from_f32(0.003).to_f32())
    );
    let packed = target.with_extension("packed");
    let settings = Settings { format: Some("compressed-tensors".parse().unwrap()), ..cached(true, 0.0) };
    made(&source, &packed, &settings);
    let scale = |name: &str| scalar(&packed, &format!("model.layers.0.self_attn.{name}"));
    assert_eq!((scale("k_scale").1, scale("k_scale").0), (vec![1], Dtype::BF16));
    assert!(scale("k_scale").2 < scale("v_scale").2);
}

#[test]
fn fp8_attention_stores_query_and_softmax_scales() {
    let (_dir, source, target) = small(Dtype::F16);
    let fp8 = || Some("fp8".to_owned());
    let settings = Settings { kv_cache: fp8(), queries: fp8(), probabilities: fp8(), ..scheme("fp8") };
    let planned = plan(&source, &settings).unwrap();
    assert_eq!(planned.sites().len(), 7 + 4);
    assert_eq!(
        planned.attention()[0].query,
        Some(ActivationPoint::Output("model.layers.0.self_attn.q_proj".to_owned()))
    );
    made(&source, &target, &settings);
    let written = Checkpoint::open(&target).unwrap();
    for name in ["q_proj.output_scale", "k_proj.output_scale", "v_proj.output_scale", "prob_output_scale"] {
        assert_eq!(written.tensor(&format!("model.layers.0.self_attn.{name}")).unwrap().dtype(), Dtype::F16, "{name}");
    }
    let error =
        plan(&source, &Settings { format: Some("compressed-tensors".parse().unwrap()), ..settings }).unwrap_err();
    assert!(matches!(error, PlanError::CannotHold { .. }) && error.hint().unwrap().contains("quark"), "{error}");
}

#[test]
fn excluded_layers_may_own_the_cache() {
    let (_dir, source, target) = small(Dtype::BF16);
    let exclude = vec!["*.self_attn.*".to_owned()];
    made(&source, &target, &Settings { kv_cache: Some("int8".to_owned()), exclude, ..scheme("int4:g32") });
    assert_eq!(scalar(&target, "model.layers.0.self_attn.k_proj.output_scale").0, Dtype::F32);
    assert_eq!(scalar(&target, "model.layers.0.self_attn.k_proj.output_zero_point").2, 0.0);
}

#[test]
fn static_outputs_are_stored_only_for_quantized_layers() {
    let (_dir, source, target) = small(Dtype::BF16);
    made(&source, &target, &scheme("int8:tensor+int8:tensor!static+int8:tensor!static"));
    let checkpoint = Checkpoint::open(&target).unwrap();
    let with = |suffix: &str| checkpoint.tensors().filter(|tensor| tensor.name().ends_with(suffix)).count();
    assert_eq!((with(".output_scale"), with(".output_zero_point")), (7, 7));
    let import = kvant_formats::import::open(&checkpoint).unwrap();
    for module in ["model.embed_tokens", "model.norm", "model.layers.0.input_layernorm", "lm_head"] {
        assert!(import.activations(module).is_none(), "{module}");
    }
    assert_eq!(import.activations(UP).unwrap().output.as_ref().unwrap().scheme.to_string(), "int8:tensor!static");
    let errors = |dir: &Path| {
        let report = verify(dir, &Options::default()).unwrap();
        report
            .errors()
            .filter(|error| error.check == "activations")
            .map(|error| error.place.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(errors(&target), [""; 0]);
    // A quantized layer without the scale that config.json promises is still an error.
    let tensors: Vec<_> = checkpoint.tensors().filter(|tensor| tensor.name() != format!("{UP}.output_scale")).collect();
    let tensors: Vec<crate::common::Tensor> = tensors
        .iter()
        .map(|tensor| (tensor.name().to_owned(), tensor.dtype(), tensor.shape().to_vec(), tensor.bytes().to_vec()))
        .collect();
    let damaged = target.with_extension("damaged");
    write(&damaged, &checkpoint.config().unwrap().unwrap(), &tensors);
    assert_eq!(errors(&damaged), [format!("{UP}.output_scale")]);
}

#[test]
fn plans_with_static_outputs_and_their_results_agree_for_several_architectures() {
    for fixture in ["llama", "opt", "qwen3", "phi3", "mixtral", "gpt_neox"] {
        let (_dir, source, target) = small(Dtype::BF16);
        let headers = crate::support::Checkpoint::read(fixture);
        let tensors = headers.tensors.iter().map(|meta| weight(&meta.name, Dtype::BF16, &meta.shape));
        std::fs::remove_dir_all(&source).unwrap();
        write(&source, &headers.config, &tensors.collect::<Vec<_>>());
        let settings = scheme("int8:tensor+int8:tensor!static+int8:tensor!static");
        let planned = plan(&source, &settings).unwrap();
        made(&source, &target, &settings);
        let checkpoint = Checkpoint::open(&target).unwrap();
        let outputs = checkpoint.tensors().filter(|tensor| tensor.name().ends_with(".output_scale")).count();
        assert_eq!(outputs, planned.layers().len(), "{fixture}");
        let report = verify(&target, &Options::default()).unwrap();
        let errors: Vec<_> = report.errors().filter(|error| error.check != "tokenizer").collect();
        assert!(errors.is_empty(), "{fixture}: {errors:?}");
        for (name, id) in [
            ("amd-quark", "amd-quark"),
            ("transformers with amd-quark", "transformers"),
            ("vLLM", "vllm"),
            ("SGLang", "sglang"),
        ] {
            let verdict = report.verdicts.iter().find(|verdict| verdict.id == id).unwrap();
            let listed = planned.loaders().contains(&name);
            assert_eq!(listed, verdict.loads == kvant_formats::verify::Loads::Yes, "{fixture} {name}: {verdict:?}");
        }
    }
}

#[test]
fn layouts_without_output_scales_refuse_them() {
    let (_dir, source, _) = small(Dtype::BF16);
    let schemes = [
        ("awq", "uint4:g32:zp+-+int8:tensor!static"),
        ("gptq", "int4:g32+-+int8:tensor!static"),
        ("gptq_v2", "int4:g32+-+int8:tensor!static"),
        ("fp8", "e4m3:tensor+e4m3:tensor!static+e4m3:tensor!static"),
    ];
    for (format, text) in schemes {
        let settings = Settings { format: Some(format.parse().unwrap()), ..scheme(text) };
        let error = plan(&source, &settings).unwrap_err();
        assert!(matches!(error, PlanError::CannotHold { .. }) && error.hint().is_some(), "{format}: {error}");
    }
}

#[test]
fn fake_quantization_records_static_activation_scales() {
    let (_dir, source, target) = small(Dtype::BF16);
    let settings = |format: &str, after| Settings {
        format: Some(format.parse().unwrap()),
        kv_cache: Some("fp8".to_owned()),
        kv_cache_post_rope: Some(after),
        ..scheme("int8:tensor+uint8:tensor:zp!static")
    };
    for after in [false, true] {
        let [fake, quark] = ["fake", "quark"].map(|format| target.with_extension(format!("{format}-{after}")));
        made(&source, &fake, &settings("fake", after));
        made(&source, &quark, &settings("quark", after));
        let (fake, quark) = (Checkpoint::open(&fake).unwrap(), Checkpoint::open(&quark).unwrap());
        assert!(fake.tensors().all(|tensor| tensor.name().ends_with(".weight") && tensor.dtype() == Dtype::BF16));
        let (fake, quark) = (kvant_formats::import::open(&fake).unwrap(), kvant_formats::import::open(&quark).unwrap());
        for leaf in ["mlp.up_proj", "mlp.down_proj", "self_attn.k_proj", "self_attn.v_proj"] {
            let module = format!("model.layers.0.{leaf}");
            assert_eq!(fake.activations(&module), quark.activations(&module), "{module}");
            assert!(fake.activations(&module).unwrap().input.as_ref().unwrap().parameters.is_some());
        }
        assert_eq!(fake.attention(0), quark.attention(0));
        assert_eq!(fake.attention(0).is_some(), after);
        assert!(fake.activations("model.norm").is_none());
    }
}

#[test]
fn damaged_fake_quantization_records_are_found() {
    let (_dir, source, target) = small(Dtype::BF16);
    made(&source, &target, &Settings { format: Some("fake".parse().unwrap()), ..scheme("int8") });
    let intact: serde_json::Value =
        serde_json::from_slice(&std::fs::read(target.join("config.json")).unwrap()).unwrap();
    let error_of = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut config = intact.clone();
        change(&mut config["kvant_fake_quantization"]);
        std::fs::write(target.join("config.json"), config.to_string()).unwrap();
        let report = verify(&target, &Options::default()).unwrap();
        let errors = report.errors().filter(|error| error.check == "activations");
        let found = errors.map(|error| error.reason.clone()).collect::<Vec<_>>().join(" ");
        let opened = kvant_formats::import::open(&Checkpoint::open(&target).unwrap()).err();
        assert_eq!(opened.map(|error| error.to_string().contains(&found)), (!found.is_empty()).then_some(true));
        found
    };
    assert_eq!(error_of(&|_| ()), "");
    assert!(error_of(&|fake| fake["static"] = json!({})).contains("no static scale for input:"));
    assert!(error_of(&|fake| fake["layers"][0]["modules"] = json!(["*.other"])).contains("names `*.other`"));
    assert!(error_of(&|fake| fake["version"] = json!(2)).contains("version 2"));
    assert!(error_of(&|fake| fake["layers"] = json!(3)).contains("invalid type"));
}

#[test]
fn static_schemes_without_data_are_refused_for_every_format() {
    let (_dir, source, target) = small(Dtype::BF16);
    let cached = Settings { kv_cache: Some("fp8".to_owned()), ..scheme("int4:g32") };
    for settings in [scheme("int8"), scheme("nvfp4"), scheme("int4:g32+-+e4m3:tensor!static"), cached] {
        let error = crate::common::plan(&source, &settings).unwrap_err();
        assert!(matches!(error, PlanError::Calibration { .. }) && error.hint().unwrap().contains("‹calib›"), "{error}");
    }
    for text in
        ["int8:tensor+int8:g32!static", "int8:tensor+int8:tensor:mse!dynamic", "int8:tensor+int8:channel@1:mse!static"]
    {
        assert!(matches!(plan(&source, &scheme(text)).unwrap_err(), PlanError::Activation { .. }), "{text}");
    }
    let floats = Settings { format: Some("fake".parse().unwrap()), ..scheme("int8") };
    assert!(matches!(crate::common::plan(&source, &floats).unwrap_err(), PlanError::Calibration { .. }));
    let floats = Settings { weights_only: Some(true), ..floats };
    let planned = crate::common::plan(&source, &floats).unwrap();
    assert!(planned.sites().is_empty() && planned.notices().is_empty());
    crate::common::quantize(&source, &target, &floats, 1).unwrap();
    let config = Checkpoint::open(&target).unwrap().config().unwrap().unwrap();
    assert_eq!(config, llama_config());
}

#[test]
fn plan_requires_exactly_its_parameters() {
    let (_dir, source, _) = small(Dtype::BF16);
    let planned = plan(&source, &scheme("fp8")).unwrap();
    assert!(planned.needs_calibration());
    assert!(matches!(planned.without_calibration(), Err(PlanError::Uncalibrated)));
    let planned = plan(&source, &scheme("fp8")).unwrap();
    let error = planned.calibrated(Parameters::default(), None).unwrap_err();
    assert!(matches!(error, PlanError::Parameters { found: 0, .. }));
}

#[test]
fn changed_calibration_restarts_and_the_same_gives_identical_bytes() {
    let (_dir, source, target) = small(Dtype::BF16);
    let calibrated = |more: f32| {
        let planned = plan(&source, &scheme("fp8")).unwrap();
        let mut statistics = statistics(&planned);
        let site = ActivationPoint::Input(UP.to_owned());
        statistics.update(&site, Isa::best(), &[more; 64], 64);
        // As a resumed calibration does it.
        let stored = serde_json::to_string(&statistics).unwrap();
        let statistics: Statistics = serde_json::from_str(&stored).unwrap();
        planned
            .calibrated(resolve(&plan(&source, &scheme("fp8")).unwrap(), &statistics).unwrap().parameters, None)
            .unwrap()
    };
    let (first, same, other) = (calibrated(1.0), calibrated(1.0), calibrated(99.0));
    assert_eq!(first.fingerprint(), same.fingerprint());
    assert_ne!(first.fingerprint(), other.fingerprint());
    let (one, three) = (target.with_extension("1"), target.with_extension("3"));
    quantize(&first, &source, &one, 1).unwrap();
    quantize(&same, &source, &three, 3).unwrap();
    assert_eq!(files(&one), files(&three));
}

/// A Mixtral of one block with three experts.
fn mixtral(source: &Path) {
    let mut tensors = llama(Dtype::BF16);
    tensors.retain(|tensor| !tensor.0.contains(".mlp."));
    let moe = "model.layers.0.block_sparse_moe";
    tensors.push(weight(&format!("{moe}.gate.weight"), Dtype::BF16, &[3, 64]));
    for expert in 0..3 {
        for (leaf, shape) in [("w1", [96, 64]), ("w2", [64, 96]), ("w3", [96, 64])] {
            tensors.push(weight(&format!("{moe}.experts.{expert}.{leaf}.weight"), Dtype::BF16, &shape));
        }
    }
    let mut config = llama_config();
    config["model_type"] = "mixtral".into();
    config["architectures"] = serde_json::json!(["MixtralForCausalLM"]);
    config["num_local_experts"] = 3.into();
    config["num_experts_per_tok"] = 2.into();
    write(source, &config, &tensors);
}

#[test]
fn experts_share_global_scales_and_fill_in_for_each_other() {
    let (_dir, source, target) = small(Dtype::BF16);
    mixtral(&source);
    let expert = |number: usize, leaf: &str| {
        ActivationPoint::Input(format!("model.layers.0.block_sparse_moe.experts.{number}.{leaf}"))
    };
    for (name, shared) in [("fp8", false), ("nvfp4", true)] {
        let planned = plan(&source, &scheme(name)).unwrap();
        let mut statistics = Statistics::new(&planned).unwrap();
        for (i, site) in planned.sites().iter().enumerate().filter(|(_, planned)| planned.site != expert(1, "w2")) {
            let row = vec![i as f32 + 1.0; site.features];
            statistics.update(&site.site, Isa::best(), &row, site.features);
        }
        let resolved = resolve(&planned, &statistics).unwrap();
        let scale = |site: ActivationPoint| resolved.parameters.get(&site).unwrap().scales[0];
        let filled: Vec<&ActivationPoint> = resolved.report.filled.iter().map(|filled| &filled.site).collect();
        assert_eq!(filled, [&expert(1, "w2")], "{name}");
        assert_eq!((resolved.report.filled[0].from, resolved.report.filled[0].tokens), (2, 2));
        assert_eq!(scale(expert(1, "w2")), scale(expert(0, "w2")).max(scale(expert(2, "w2"))), "{name}");
        assert_eq!(scale(expert(0, "w1")) == scale(expert(2, "w3")), shared, "{name}");
        assert!(resolved.report.notices()[0].contains("experts.1.w2"));
        let target = target.with_extension(name);
        quantize(&planned.calibrated(resolved.parameters, None).unwrap(), &source, &target, 2).unwrap();
    }
}

#[test]
fn unobserved_activations_are_named() {
    let (_dir, source, _target) = small(Dtype::BF16);
    let planned = plan(&source, &scheme("fp8")).unwrap();
    let statistics = Statistics::new(&planned).unwrap();
    assert!(matches!(resolve(&planned, &statistics), Err(CalibrationError::Unobserved(_))));
    assert!(matches!(resolve(&planned, &Statistics::default()), Err(CalibrationError::Missing(_))));
}

#[test]
fn undescribed_architectures_cannot_quantize_attention() {
    let dir = tempfile::tempdir().unwrap();
    let config = serde_json::json!({"model_type": "unheard-of"});
    write(dir.path(), &config, &[weight("blocks.0.q_proj.weight", Dtype::F32, &[32, 32])]);
    let settings = Settings { kv_cache: Some("fp8".to_owned()), ..scheme("int4:g32") };
    assert!(matches!(plan(dir.path(), &settings).unwrap_err(), PlanError::Attention { .. }));
}
