//! The engine end to end on small checkpoints: sources of every kind, refusals, bands, resumption.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use crate::common::{encoded, files, llama, llama_config, plan, quantize, scheme, weight, write};
use kvant_checkpoint::engine::{
    self, Claim, EngineError, Output, OutputError, OutputPlan, Progress, Silent, Start, Verify,
};
use kvant_checkpoint::plan::{CalibratedPlan, Plan, PlanError, TensorAction};
use kvant_checkpoint::recipe::{Recipe, Settings};
use kvant_container::{Checkpoint, Diagnostic, Dtype, Durability, Geometry, OutputFile};
use kvant_formats::verify::{Options, verify};
use kvant_quant::finding::Severity;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tempfile::TempDir;

fn small(dtype: Dtype) -> (TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    write(&source, &llama_config(), &llama(dtype));
    (dir, source, target)
}

fn bytes(dir: &Path, tensor: &str) -> Vec<u8> {
    Checkpoint::open(dir).unwrap().tensor(tensor).unwrap_or_else(|| panic!("no {tensor}")).bytes().to_vec()
}

#[test]
fn every_scheme_runs_and_accounts_for_every_tensor() {
    let (_dir, source, target) = small(Dtype::BF16);
    for preset in kvant_quant::scheme::PRESETS {
        let settings = Settings { weights_only: Some(true), ..scheme(preset.name) };
        let settings =
            match preset.name.contains("128") || preset.name.starts_with('W') || preset.name.contains("BLOCK") {
                // The model is too small for groups of 128.
                true if preset.spelling.contains("g128") => continue,
                _ => settings,
            };
        let plan = plan(&source, &settings).unwrap_or_else(|e| panic!("{}: {e}", preset.name));
        assert_eq!(plan.layers().len() + plan.kept().len() + plan.dropped().len(), 12, "{}", preset.name);
        let target = target.with_extension(preset.name);
        quantize(&source, &target, &settings, 2).unwrap_or_else(|e| panic!("{}: {e}", preset.name));
        let written = Checkpoint::open(&target).unwrap();
        assert_eq!(written.tensor("lm_head.weight").unwrap().bytes(), bytes(&source, "lm_head.weight"));
    }
}

#[test]
fn output_bytes_do_not_depend_on_threads() {
    let (_dir, source, target) = small(Dtype::F16);
    for text in ["int4:g32", "e2m1:g16:e4m3:f32", "int8:tensor", "int4:channel/e4m3:tensor:f32", "mx9"] {
        let (one, many) = (
            target.with_extension(format!("{text}1").replace('/', "-")),
            target.with_extension(format!("{text}3").replace('/', "-")),
        );
        quantize(&source, &one, &scheme(text), 1).unwrap();
        quantize(&source, &many, &scheme(text), 3).unwrap();
        assert_eq!(files(&one), files(&many), "{text}");
    }
}

#[test]
fn fused_siblings_share_the_global_scale() {
    let (_dir, source, target) = small(Dtype::BF16);
    quantize(&source, &target, &scheme("e2m1:g16:e4m3:f32"), 2).unwrap();
    let scale = |module: &str| bytes(&target, &format!("model.layers.0.{module}.weight_scale_2"));
    assert_eq!(scale("self_attn.q_proj"), scale("self_attn.k_proj"));
    assert_eq!(scale("self_attn.q_proj"), scale("self_attn.v_proj"));
    assert_eq!(scale("mlp.gate_proj"), scale("mlp.up_proj"));
    assert_ne!(scale("mlp.gate_proj"), scale("mlp.down_proj"));
}

#[test]
fn fused_siblings_with_two_schemes_are_refused() {
    let (_dir, source, _target) = small(Dtype::BF16);
    for (exclude, overrides) in [(vec!["*k_proj"], vec![]), (vec![], vec!["*.up_proj=int8:channel"])] {
        let settings = Settings {
            exclude: exclude.iter().map(|s| s.to_string()).collect(),
            overrides: overrides.iter().map(|s: &&str| s.parse().unwrap()).collect(),
            ..scheme("int4:g32")
        };
        let error = plan(&source, &settings).unwrap_err();
        assert!(matches!(error, PlanError::Siblings { .. }), "{error}");
        assert!(error.hint().unwrap().contains("one scheme"));
    }
}

#[test]
fn impossible_requests_are_refused_with_a_hint() {
    let (_dir, source, _target) = small(Dtype::BF16);
    let refused = |text: &str, format: Option<&str>| {
        let settings = Settings { format: format.map(|f| f.parse().unwrap()), ..scheme(text) };
        let error = plan(&source, &settings).unwrap_err();
        assert!(error.hint().is_some(), "{error}");
        error
    };
    assert!(matches!(refused("int8", None), PlanError::Calibration { .. }));
    assert!(matches!(refused("int4_wo_128", None), PlanError::Shape { .. }));
    assert!(matches!(refused("mx6", Some("quark")), PlanError::CannotHold { .. }));
    assert!(matches!(refused("uint4:g32:zp", Some("compressed-tensors")), PlanError::CannotHold { .. }));
    assert!(matches!(refused("int4:g32:fzp", Some("quark")), PlanError::CannotHold { .. }));
    let nothing = Settings { exclude: vec!["*".to_owned()], ..scheme("int4:g32") };
    assert!(matches!(plan(&source, &nothing).unwrap_err(), PlanError::Nothing { .. }));
}

#[test]
fn non_finite_weights_are_named() {
    let (_dir, source, target) = small(Dtype::BF16);
    let mut tensors = llama(Dtype::F32);
    let up = tensors.iter_mut().find(|t| t.0.contains("up_proj")).unwrap();
    up.3[(5 * 64 + 3) * 4..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    write(&source, &llama_config(), &tensors);
    for text in ["int4:g32", "e4m3:tensor", "e2m1:g16:e4m3:f32", "mx9", "int8:channel:mse"] {
        let error = quantize(&source, &target.with_extension(text), &scheme(text), 2).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("mlp.up_proj.weight") && message.contains("model.safetensors"), "{message}");
        assert!(message.contains("output 5, input 3 is NaN"), "{text}: {message}");
        assert!(error.hint().unwrap().contains("‹exclude›"));
        assert!(!target.with_extension(text).exists());
    }
}

#[test]
fn non_finite_norm_fails_verification() {
    let (_dir, source, target) = small(Dtype::BF16);
    let mut tensors = llama(Dtype::F32);
    let norm = tensors.iter_mut().find(|t| t.0.contains("input_layernorm")).unwrap();
    norm.3[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    write(&source, &llama_config(), &tensors);
    let (checkpoint, plan) = (
        Checkpoint::open(&source).unwrap(),
        plan(&source, &scheme("int4:g32")).unwrap().without_calibration().unwrap(),
    );
    let Start::Working(output) = Output::begin(&plan, &source, &target, false).unwrap() else { panic!() };
    engine::run(&plan, &checkpoint, &output, 1, &AtomicBool::new(false), &Silent).unwrap();
    let error = output.place(&plan, &checkpoint, Durability::Process, Verify::Run).unwrap_err();
    assert!(
        matches!(error, EngineError::VerificationFailed { .. }) && error.to_string().contains("input_layernorm"),
        "{error}"
    );
    assert!(!target.exists());
}

#[test]
fn fp8_sources_are_read_with_their_scales() {
    let (_dir, source, target) = small(Dtype::BF16);
    let mut tensors = llama(Dtype::BF16);
    for module in ["mlp.down_proj", "mlp.up_proj", "mlp.gate_proj", "self_attn.o_proj"] {
        let name = format!("model.layers.0.{module}.weight");
        let tensor = tensors.iter_mut().find(|t| t.0 == name).unwrap();
        let (rows, columns) = (tensor.2[0], tensor.2[1]);
        // 1.0 in e4m3 is 0x38; the scales differ by block.
        *tensor = (name.clone(), Dtype::F8_E4M3, vec![rows, columns], vec![0x38; rows * columns]);
        let blocks = [rows.div_ceil(32), columns.div_ceil(32)];
        let scales: Vec<f32> = (0..blocks[0] * blocks[1]).map(|i| 1.0 + i as f32).collect();
        tensors.push((format!("{name}_scale_inv"), Dtype::F32, blocks.to_vec(), encoded(Dtype::F32, &scales)));
    }
    let mut config = llama_config();
    config["quantization_config"] = serde_json::json!({"quant_method": "fp8", "weight_block_size": [32, 32]});
    write(&source, &config, &tensors);
    let settings = Settings { exclude: vec!["*o_proj".to_owned()], ..scheme("mx9") };
    let plan = plan(&source, &settings).unwrap().without_calibration().unwrap();
    assert!(plan.kept().iter().any(|kept| matches!(kept.action, TensorAction::Widen { .. })));
    assert!(
        plan.notices().iter().any(|note| note.contains("o_proj` is excluded and becomes floats")),
        "{:?}",
        plan.notices()
    );
    assert_eq!(plan.dropped().len(), 4);
    quantize(&source, &target, &settings, 2).unwrap();

    let written = Checkpoint::open(&target).unwrap();
    for module in ["mlp.down_proj", "self_attn.o_proj"] {
        let view = written.tensor(&format!("model.layers.0.{module}.weight")).unwrap();
        assert_eq!(view.dtype(), Dtype::BF16, "{module}");
        let value = |row: usize, column: usize| {
            let at = (row * view.shape()[1] + column) * 2;
            half::bf16::from_le_bytes([view.bytes()[at], view.bytes()[at + 1]]).to_f32()
        };
        let across = view.shape()[1] / 32;
        assert_eq!((value(0, 0), value(0, 33), value(63, 1)), (1.0, 2.0, 1.0 + across as f32), "{module}");
    }
    assert_eq!(written.config().unwrap().unwrap().get("quantization_config"), None);
    assert!(written.tensor("model.layers.0.mlp.up_proj.weight_scale_inv").is_none());
}

#[test]
fn unrelated_scale_tensors_are_copied() {
    let (_dir, source, target) = small(Dtype::BF16);
    let mut tensors = llama(Dtype::BF16);
    let name = "model.layers.0.mlp.down_proj.weight_scale";
    tensors.push((name.to_owned(), Dtype::F32, vec![], encoded(Dtype::F32, &[3.0])));
    write(&source, &llama_config(), &tensors);
    let settings = Settings { format: Some("fake".parse().unwrap()), ..scheme("int8:channel") };
    quantize(&source, &target, &settings, 1).unwrap();
    assert_eq!(bytes(&target, name), 3.0f32.to_le_bytes());
    let first = |dir: &Path| {
        let bytes = bytes(dir, "model.layers.0.mlp.down_proj.weight");
        half::bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    };
    assert!((first(&source) - first(&target)).abs() < first(&source).abs() * 0.05 + 1e-3);
}

#[test]
fn experts_of_one_tensor_may_have_several_schemes() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    let config =
        serde_json::json!({"model_type": "gpt_oss", "num_hidden_layers": 1, "num_local_experts": 3, "hidden_size": 64});
    let name = "model.layers.0.mlp.experts.down_proj";
    write(
        &source,
        &config,
        &[weight(name, Dtype::F32, &[3, 32, 64]), weight("model.embed_tokens.weight", Dtype::F32, &[8, 64])],
    );
    for (default, other) in [("f16", "int8:channel"), ("int8:channel", "f16"), ("int8:channel", "keep")] {
        let target = target.with_extension(format!("{default}{other}").replace(':', "-"));
        let overrides = vec![format!("*.experts.1.down_proj={other}").parse().unwrap()];
        let settings = Settings { format: Some("fake".parse().unwrap()), overrides, ..scheme(default) };
        if other == "keep" {
            // The tensor is one: all are kept, and nothing is left.
            assert!(matches!(plan(&source, &settings).unwrap_err(), PlanError::Nothing { .. }));
            continue;
        }
        quantize(&source, &target, &settings, 2).unwrap();
        let floats = |dir: &Path| {
            bytes(dir, name).chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>()
        };
        let (before, after) = (floats(&source), floats(&target));
        assert!(before.iter().zip(&after).all(|(b, a)| (b - a).abs() < 2e-3), "{default} {other}");
    }
    let by_tensor = Settings { exclude: vec!["*.experts.down_proj".to_owned()], ..scheme("int8:channel") };
    assert!(matches!(plan(&source, &by_tensor).unwrap_err(), PlanError::Nothing { .. }));
}

#[test]
fn conv1d_and_fused_experts_are_simulated_in_their_orientation() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    let config = serde_json::json!({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 32, "n_head": 2, "n_layer": 1, "vocab_size": 8});
    let name = "transformer.h.0.mlp.c_fc.weight";
    write(
        &source,
        &config,
        &[weight("transformer.wte.weight", Dtype::F32, &[8, 32]), weight(name, Dtype::F32, &[32, 128])],
    );
    let error = plan(&source, &scheme("int4:g32")).unwrap_err();
    assert!(error.hint().unwrap().contains("‹format› fake"), "{error}");
    quantize(&source, &target, &Settings { format: Some("fake".parse().unwrap()), ..scheme("int8:channel") }, 2)
        .unwrap();
    let (before, after) = (bytes(&source, name), bytes(&target, name));
    let floats =
        |bytes: &[u8]| bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<f32>>();
    let (before, after) = (floats(&before), floats(&after));
    // One scale an output, that is a column of [in, out].
    for output in 0..128 {
        let column = |values: &[f32]| (0..32).map(|input| values[input * 128 + output]).collect::<Vec<f32>>();
        let (before, after) = (column(&before), column(&after));
        let scale = before.iter().fold(0.0f32, |m, v| m.max(v.abs())) / 127.5;
        assert!(before.iter().zip(&after).all(|(b, a)| (b - a).abs() <= scale * 0.5001 || b.abs() > 127.0 * scale));
        assert_ne!(before, after);
    }
}

/// Stops after so many jobs, as Ctrl-C would.
struct StopAfter<'a> {
    left: AtomicUsize,
    cancelled: &'a AtomicBool,
}

impl Progress for StopAfter<'_> {
    fn begin(&self, _total_bytes: u64, _done_bytes: u64) {}

    fn advance(&self, _name: &str, _bytes: u64) {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.cancelled.store(true, Ordering::SeqCst);
        }
    }
}

fn stop_after(jobs: usize, plan: &CalibratedPlan, source: &Path, target: &Path) {
    let cancelled = AtomicBool::new(false);
    let checkpoint = Checkpoint::open(source).unwrap();
    let Start::Working(output) = Output::begin(plan, source, target, false).unwrap() else { panic!("finished") };
    let progress = StopAfter { left: AtomicUsize::new(jobs), cancelled: &cancelled };
    let error = engine::run(plan, &checkpoint, &output, 1, &cancelled, &progress).unwrap_err();
    assert!(matches!(error, EngineError::Cancelled));
}

#[test]
fn interrupted_run_resumes_with_identical_output() {
    let (dir, source, target) = small(Dtype::BF16);
    let whole = dir.path().join("whole");
    let settings = Settings { max_shard_size: Some("20KB".parse().unwrap()), ..scheme("int4:g32") };
    quantize(&source, &whole, &settings, 2).unwrap();
    let plan = plan(&source, &settings).unwrap().without_calibration().unwrap();
    stop_after(4, &plan, &source, &target);
    assert!(!target.exists() && dir.path().join("target.partial").exists());

    let done = quantize(&source, &target, &settings, 2).unwrap();
    assert_eq!(done.resumed, 4);
    assert_eq!(files(&whole), files(&target));
    assert!(!dir.path().join("target.partial").exists() && !dir.path().join("target.partial.journal").exists());
}

#[test]
fn damage_in_unfinished_output_is_repaired() {
    let (dir, source, target) = small(Dtype::BF16);
    let whole = dir.path().join("whole");
    quantize(&source, &whole, &scheme("int4:g32"), 2).unwrap();
    let plan = plan(&source, &scheme("int4:g32")).unwrap().without_calibration().unwrap();
    stop_after(8, &plan, &source, &target);
    let file = dir.path().join("target.partial/model.safetensors");
    let mut damaged = std::fs::read(&file).unwrap();
    let header = u64::from_le_bytes(damaged[..8].try_into().unwrap()) as usize + 8;
    damaged[header..].iter_mut().for_each(|byte| *byte ^= 0x55);
    std::fs::write(&file, damaged).unwrap();

    assert_eq!(quantize(&source, &target, &scheme("int4:g32"), 2).unwrap().resumed, 0);
    assert_eq!(files(&whole), files(&target));
}

#[test]
fn work_of_another_plan_is_not_resumed() {
    let (dir, source, target) = small(Dtype::BF16);
    let whole = dir.path().join("whole");
    quantize(&source, &whole, &scheme("int4:g64"), 2).unwrap();
    stop_after(4, &plan(&source, &scheme("int4:g32")).unwrap().without_calibration().unwrap(), &source, &target);
    let refused = quantize(&source, &target, &scheme("int4:g64"), 2).unwrap_err();
    assert!(matches!(refused, EngineError::Output(OutputError::OtherRun { .. })), "{refused}");
    assert!(dir.path().join("target.partial").exists(), "hours of work are not thrown away");
    Claim::discard(&target, false).unwrap();
    assert_eq!(quantize(&source, &target, &scheme("int4:g64"), 2).unwrap().resumed, 0);
    assert_eq!(files(&whole), files(&target));
}

#[test]
fn run_killed_after_the_last_rename_is_complete() {
    let (dir, source, target) = small(Dtype::BF16);
    quantize(&source, &target, &scheme("int4:g32"), 2).unwrap();
    let (plan, journal) = (
        plan(&source, &scheme("int4:g32")).unwrap().without_calibration().unwrap(),
        dir.path().join("target.partial.journal"),
    );
    let head = serde_json::json!({"kvant_journal": 1, "plan": plan.fingerprint()});
    std::fs::write(&journal, format!("{head}\n{{\"whole\":true}}\n")).unwrap();
    std::fs::create_dir(dir.path().join("target.partial.replaced")).unwrap();
    let Ok(Start::Finished(placed)) = Output::begin(&plan, &source, &target, false) else { panic!("not finished") };
    assert!(journal.exists() && !dir.path().join("target.partial.replaced").exists());
    placed.commit().unwrap();
    assert!(!journal.exists());
    let again = Output::begin(&plan, &source, &target, false).unwrap_err();
    assert!(again.to_string().contains("exists already"), "{again}");
}

#[test]
fn one_of_several_outputs_is_found_complete_until_committed() {
    let (dir, source, target) = small(Dtype::BF16);
    let (plan, other) =
        (plan(&source, &scheme("int4:g32")).unwrap().without_calibration().unwrap(), dir.path().join("other"));
    let both = [target.clone(), other.clone()];
    let check = || Output::check_all(&plan, &source, &both, false);
    check().unwrap();
    let checkpoint = Checkpoint::open(&source).unwrap();
    for place in [&target, &other] {
        let Ok(Start::Working(output)) = Output::begin(&plan, &source, place, false) else { panic!("finished") };
        engine::run(&plan, &checkpoint, &output, 2, &AtomicBool::new(false), &Silent).unwrap();
        output.place(&plan, &checkpoint, Durability::Process, Verify::Run).unwrap();
        check().unwrap();
    }
    for place in [&other, &target] {
        let Ok(Start::Finished(placed)) = Output::begin(&plan, &source, place, false) else { panic!("not finished") };
        placed.commit().unwrap();
        assert!(check().unwrap_err().to_string().contains("exists already"));
    }
    std::fs::remove_dir_all(&target).unwrap();
    assert!(check().unwrap_err().to_string().contains("other"), "the second is in the way");
}

#[test]
fn rejected_output_becomes_unfinished_again() {
    let (dir, source, target) = small(Dtype::BF16);
    let plan = plan(&source, &scheme("int4:g32")).unwrap().without_calibration().unwrap();
    let checkpoint = Checkpoint::open(&source).unwrap();
    let begin = || Output::begin(&plan, &source, &target, false).unwrap();
    let finish = |output: Output| {
        let done = engine::run(&plan, &checkpoint, &output, 2, &AtomicBool::new(false), &Silent).unwrap();
        (output.place(&plan, &checkpoint, Durability::Process, Verify::Run).unwrap(), done)
    };
    let Start::Working(output) = begin() else { panic!("finished") };
    drop(finish(*output));
    let made = files(&target);
    let Start::Finished(placed) = begin() else { panic!("not finished") };
    let rejected = placed.keep_if(&plan.form(), |_| Err(OutputError::NoName(target.clone())));
    assert!(matches!(rejected, Err(OutputError::NoName(_))) && !target.exists());
    let Start::Working(output) = begin() else { panic!("finished") };
    let (placed, done) = finish(*output);
    assert!(done.resumed == done.jobs && files(&target) == made);
    let accepted: Result<_, OutputError> = placed.keep_if(&plan.form(), |_| Ok(()));
    accepted.unwrap().commit().unwrap();
    assert!(!dir.path().join("target.partial.journal").exists());
}

#[test]
fn warnings_of_acceptance_are_those_of_verifying_the_finished_output() {
    let (_dir, source, target) = small(Dtype::BF16);
    let plan = plan(&source, &scheme("int4:g32")).unwrap().without_calibration().unwrap();
    let checkpoint = Checkpoint::open(&source).unwrap();
    let begin = || Output::begin(&plan, &source, &target, false).unwrap();
    let Start::Working(output) = begin() else { panic!("finished") };
    engine::run(&plan, &checkpoint, &output, 2, &AtomicBool::new(false), &Silent).unwrap();
    let accepted = output.place(&plan, &checkpoint, Durability::Process, Verify::Run).unwrap();
    let found = verify(&target, &Options::default()).unwrap().findings;
    let warnings: Vec<_> = found.into_iter().filter(|finding| finding.severity == Severity::Warning).collect();
    assert!(warnings.iter().any(|warning| warning.place == "tokenizer.json"), "{warnings:?}");
    assert_eq!(accepted.warnings(), warnings);
    drop(accepted);
    let resumed = |acceptance| {
        let Start::Finished(committed) = begin() else { panic!("not finished") };
        committed.verify(&plan, acceptance).unwrap().warnings().to_vec()
    };
    assert_eq!(resumed(Verify::Run), warnings);
    assert_eq!(resumed(Verify::Skip), []);
    let Start::Finished(committed) = begin() else { panic!("not finished") };
    std::fs::write(target.join("config.json"), "{").unwrap();
    assert!(matches!(committed.verify(&plan, Verify::Run), Err(EngineError::VerificationFailed { .. })));
    assert!(!target.exists() && matches!(begin(), Start::Working(_)));
}

#[test]
fn finished_output_that_was_changed_is_refused_and_left_alone() {
    let (_dir, source, target) = small(Dtype::BF16);
    let plan = plan(&source, &scheme("int4:g32")).unwrap().without_calibration().unwrap();
    let checkpoint = Checkpoint::open(&source).unwrap();
    let begin = || Output::begin(&plan, &source, &target, false);
    let Ok(Start::Working(output)) = begin() else { panic!("finished") };
    engine::run(&plan, &checkpoint, &output, 2, &AtomicBool::new(false), &Silent).unwrap();
    drop(output.place(&plan, &checkpoint, Durability::Process, Verify::Run).unwrap());
    let config = std::fs::read(target.join("config.json")).unwrap();
    for (text, told) in [(Some("{"), "config.json (changed)"), (None, "it lacks config.json")] {
        match text {
            Some(text) => std::fs::write(target.join("config.json"), text).unwrap(),
            None => std::fs::remove_file(target.join("config.json")).unwrap(),
        }
        let before = files(&target);
        let refused = begin().err().unwrap().to_string();
        assert!(refused.ends_with(told), "{refused}");
        assert_eq!(files(&target), before);
    }
    std::fs::write(target.join("config.json"), config).unwrap();
    assert!(matches!(begin(), Ok(Start::Finished(_))));
}

#[test]
fn existing_outputs_and_foreign_files_are_kept() {
    let (dir, source, target) = small(Dtype::BF16);
    std::fs::create_dir(&target).unwrap();
    std::fs::write(target.join("thesis.txt"), "mine").unwrap();
    let error = quantize(&source, &target, &scheme("int4:g32"), 1).unwrap_err();
    assert!(error.hint().unwrap().contains("‹overwrite›"), "{error}");
    let mine = plan(&source, &scheme("int4:g32")).unwrap().without_calibration().unwrap();
    let refused = |target: &Path| Output::check(&mine, &source, target, true).unwrap_err().to_string();
    assert!(refused(&target).contains("thesis.txt"));
    assert!(refused(&target.join("thesis.txt")).contains("not a directory"));
    std::fs::remove_dir_all(&target).unwrap();
    quantize(&source, &target, &scheme("int4:g32"), 1).unwrap();
    Output::check(&mine, &source, &target, true).unwrap();
    std::fs::create_dir(target.join(".git")).unwrap();
    assert!(refused(&target).contains(".git"));
    std::fs::remove_dir_all(&target).unwrap();
    std::fs::create_dir(dir.path().join("target.partial")).unwrap();
    let error = quantize(&source, &target, &scheme("int4:g32"), 1).unwrap_err();
    assert!(error.to_string().contains("not an unfinished output"), "{error}");
    std::fs::rename(dir.path().join("target.partial"), dir.path().join("target.partial.replaced")).unwrap();
    let error = quantize(&source, &target, &scheme("int4:g32"), 1).unwrap_err();
    assert!(error.to_string().contains("not an unfinished output"), "{error}");
    let error = quantize(&source, &dir.path().join("new/.."), &scheme("int4:g32"), 1).unwrap_err();
    assert!(error.to_string().contains("does not end in a name") && !dir.path().join("new").exists(), "{error}");
    let checkpoint = Checkpoint::open(&source).unwrap();
    let recipe = Recipe::resolve(&scheme("int4:g32"), &Settings::default()).unwrap();
    let plan = Plan::new(&checkpoint, recipe).unwrap().without_calibration().unwrap();
    let error = Output::begin(&plan, &source, &source, true).unwrap_err();
    assert!(error.to_string().contains("source"), "{error}");
}

/// A plan of one file of so many bytes.
struct Large(u64);

impl OutputPlan for Large {
    fn fingerprint(&self) -> &str {
        "large"
    }

    fn geometry(&self) -> Geometry {
        let file = OutputFile { name: "model".to_owned(), header: Vec::new(), len: self.0 };
        Geometry { files: vec![file], names: Vec::new(), places: Vec::new(), index: None }
    }
}

#[test]
fn free_space_is_checked_for_all_outputs_of_a_disk() {
    let dir = tempfile::tempdir().unwrap();
    let free = kvant_container::positioned::available_space(dir.path()).unwrap();
    let large = Large(free / 10 * 6);
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let both: [(&dyn OutputPlan, &Path); 2] = [(&large, &one), (&large, &two)];
    Output::check_room(&both[..1], &[], &[]).unwrap();
    let error = Output::check_room(&both[..1], &[(one.as_path(), free / 2)], &[]).unwrap_err();
    assert!(error.to_string().contains("for temporary files"), "{error}");
    let error = Output::check_room(&both[..1], &[], &[(one.as_path(), free / 2)]).unwrap_err();
    assert!(
        matches!(error, OutputError::NoRoom { needed, temporary: 0, .. } if needed > large.0 + free / 2),
        "{error}"
    );
    let error = Output::check_room(&both, &[], &[]).unwrap_err();
    assert!(matches!(error, OutputError::NoRoom { others: 1, needed, .. } if needed > large.0 * 2), "{error}");
    // What an earlier run has made needs no more.
    std::fs::write(&one, "whole").unwrap();
    std::fs::write(
        dir.path().join("one.partial.journal"),
        "{\"kvant_journal\":1,\"plan\":\"large\"}\n{\"whole\":true}\n",
    )
    .unwrap();
    Output::check_room(&both, &[], &[]).unwrap();
}

/// Begins an output of which one job is done and another torn, as a kill leaves it, and gives it up at once.
#[test]
fn run_killed_at_start_loses_no_work() {
    let (_dir, source, target) = small(Dtype::BF16);
    let checkpoint = Checkpoint::open(&source).unwrap();
    let plan = plan(&source, &scheme("int4:g32")).unwrap().without_calibration().unwrap();
    let journal = target.with_file_name("target.partial.journal");
    {
        let Start::Working(output) = Output::begin(&plan, &source, &target, false).unwrap() else { panic!() };
        engine::run(&plan, &checkpoint, &output, 1, &AtomicBool::new(false), &Silent).unwrap();
    }
    let whole = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, format!("{whole}{{\"job\":")).unwrap();
    for _ in 0..2 {
        let Start::Working(output) = Output::begin(&plan, &source, &target, false).unwrap() else { panic!() };
        assert!((0..plan.jobs().len()).all(|job| output.is_adopted(job)));
        drop(output);
        let now = std::fs::read_to_string(&journal).unwrap();
        let behind = now.strip_prefix(&whole).unwrap();
        assert!(
            behind.starts_with("{\"process\":") && behind.lines().count() == 1,
            "nothing is written anew: {behind}"
        );
    }
    let other = crate::common::plan(&source, &scheme("int8:channel")).unwrap().without_calibration().unwrap();
    assert!(Output::begin(&other, &source, &target, false).unwrap_err().to_string().contains("unfinished run"));
}

#[test]
fn output_failing_verification_gets_no_name() {
    let (_dir, source, target) = small(Dtype::BF16);
    let mut config = llama_config();
    config["vocab_size"] = 7.into();
    std::fs::write(source.join("config.json"), config.to_string()).unwrap();
    let checkpoint = Checkpoint::open(&source).unwrap();
    let plan = plan(&source, &scheme("int4:g32")).unwrap().without_calibration().unwrap();
    assert!(matches!(plan.preflight(&checkpoint), Err(EngineError::PreflightFailed { .. })));
    // Whoever does not ask before finds it in the end; a rerun comes to the same point, and past it where nobody looks.
    for (run, acceptance) in [Verify::Run, Verify::Run, Verify::Skip].into_iter().enumerate() {
        let Start::Working(output) = Output::begin(&plan, &source, &target, false).unwrap() else { panic!() };
        let done = engine::run(&plan, &checkpoint, &output, 1, &AtomicBool::new(false), &Silent).unwrap();
        assert_eq!(done.resumed, if run > 0 { done.jobs } else { 0 });
        let placed = output.place(&plan, &checkpoint, Durability::Process, acceptance);
        match acceptance {
            Verify::Run | Verify::Codes => {
                assert!(matches!(placed, Err(EngineError::VerificationFailed { .. })), "{placed:?}");
                assert!(!target.exists() && target.with_file_name("target.partial").is_dir());
            }
            Verify::Skip => assert_eq!(placed.unwrap().commit().unwrap(), target),
        }
    }
}
