//! GGUF files end to end on small checkpoints: order of rows, stacking, types, refusals, threads, resumption.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use crate::common::{Tensor, encoded, llama, llama_config, weight, write};
use kvant_checkpoint::engine::{Done, EngineError, Output, OutputError, Progress, Silent, Start};
use kvant_checkpoint::gguf::imatrix::{self, ImatrixError, Importance, InputSums, Keep, Provenance};
use kvant_checkpoint::gguf::plan::Reason;
use kvant_checkpoint::gguf::run::run;
use kvant_checkpoint::gguf::{GgufPlan, GgufRecipe};
use kvant_checkpoint::plan::Plan;
use kvant_checkpoint::recipe::Settings;
use kvant_container::gguf::{GgufFile, TensorType, Value};
use kvant_container::{Checkpoint, Diagnostic, Dtype, Durability, ErrorKind};
use kvant_formats::format::FormatHandle;
use kvant_formats::transcode::{Conversion, ConversionTarget};
use kvant_formats::verify::{Loads, Options, verify};
use kvant_forward::forward::Decoder;
use kvant_forward::forward::cpu::Cpu;
use kvant_gguf::ftype::Ftype;
use kvant_gguf::model::GgufPlanError;
use kvant_gguf::model::values::values;
use kvant_numeric::simd::Isa;
use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;

fn with_context(mut config: Json) -> Json {
    config["max_position_embeddings"] = json!(128);
    config["rms_norm_eps"] = json!(1e-6);
    config
}

fn tokenizer(tokens: usize) -> Json {
    let vocabulary: serde_json::Map<String, Json> = (0..tokens).map(|id| (format!("t{id}"), json!(id))).collect();
    json!({
        "added_tokens": [], "pre_tokenizer": {"type": "ByteLevel", "use_regex": true}, "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    })
}

fn made(config: &Json, tensors: &[Tensor]) -> (TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("model.gguf"));
    write(&source, config, tensors);
    std::fs::write(source.join("tokenizer.json"), tokenizer(30).to_string()).unwrap();
    (dir, source, target)
}

fn small(dtype: Dtype) -> (TempDir, PathBuf, PathBuf) {
    made(&with_context(llama_config()), &llama(dtype))
}

fn recipe(settings: &Settings) -> GgufRecipe {
    GgufRecipe::of(settings, &Settings::default()).unwrap().unwrap()
}

fn plan_of(source: &Path, recipe: GgufRecipe) -> Result<GgufPlan, GgufPlanError> {
    GgufPlan::new(&Checkpoint::open(source).unwrap(), recipe, "model.gguf")
}

fn carry_out(
    source: &Path,
    target: &Path,
    plan: &GgufPlan,
    threads: usize,
    cancelled: &AtomicBool,
    progress: &dyn Progress,
) -> Result<Done, EngineError> {
    let checkpoint = Checkpoint::open(source).unwrap();
    let Start::Working(output) = Output::begin(plan, source, target, false)? else { return Ok(Done::default()) };
    let done = run(plan, &checkpoint, &output, threads, cancelled, progress)?;
    output.finish(plan, &checkpoint, Durability::Process)?;
    Ok(done)
}

fn quantize(source: &Path, target: &Path, ftype: Ftype, threads: usize) -> Result<Done, EngineError> {
    let plan = plan_of(source, GgufRecipe::plain(ftype)).unwrap();
    carry_out(source, target, &plan, threads, &AtomicBool::new(false), &Silent)
}

fn read(path: &Path, tensor: &str) -> Vec<f32> {
    let file = GgufFile::open(path).unwrap();
    let tensor = file.tensor(tensor).unwrap_or_else(|| panic!("no {tensor}"));
    values(Isa::best(), tensor).unwrap()
}

fn source_values(source: &Path, tensor: &str) -> Vec<f32> {
    let checkpoint = Checkpoint::open(source).unwrap();
    let bytes = checkpoint.tensor(tensor).unwrap_or_else(|| panic!("no {tensor}")).bytes().to_vec();
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn float_tensors_are_stored_in_the_row_order_of_the_graph() {
    let (_dir, source, target) = small(Dtype::F32);
    quantize(&source, &target, Ftype::F32, 2).unwrap();
    for (name, tensor) in [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output.weight", "lm_head.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
        ("blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight"),
        ("blk.0.attn_output.weight", "model.layers.0.self_attn.o_proj.weight"),
        ("blk.0.ffn_gate.weight", "model.layers.0.mlp.gate_proj.weight"),
        ("blk.0.ffn_up.weight", "model.layers.0.mlp.up_proj.weight"),
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
    ] {
        assert_eq!(read(&target, name), source_values(&source, tensor), "{name}");
    }
    // Two heads of 32 rows: the halves of each stand side by side.
    let stored = source_values(&source, "model.layers.0.self_attn.q_proj.weight");
    let row = |row: usize| stored[row * 64..][..64].to_vec();
    let turned: Vec<f32> = (0..64).flat_map(|out| row(out / 32 * 32 + out % 2 * 16 + out % 32 / 2)).collect();
    assert_eq!(read(&target, "blk.0.attn_q.weight"), turned);
    let file = GgufFile::open(&target).unwrap();
    assert_eq!(file.len(), 12);
    assert_eq!(file.metadata().get("llama.attention.head_count_kv"), Some(&Value::U32(1)));
    assert_eq!(file.metadata().get("llama.rope.dimension_count"), Some(&Value::U32(32)));
}

#[test]
fn gguf_bytes_do_not_depend_on_threads_and_no_file_is_left() {
    let (dir, source, target) = small(Dtype::BF16);
    quantize(&source, &target, Ftype::Q8_0, 1).unwrap();
    let expected = std::fs::read(&target).unwrap();
    for threads in [2, 5] {
        let target = dir.path().join(format!("{threads}.gguf"));
        quantize(&source, &target, Ftype::Q8_0, threads).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), expected);
    }
    let names = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(names, 4, "the source and three files");
}

/// Stops a run after some tensors.
struct Stop<'a> {
    left: AtomicUsize,
    cancelled: &'a AtomicBool,
}

impl Progress for Stop<'_> {
    fn begin(&self, _total: u64, _done: u64) {}

    fn advance(&self, _name: &str, _weights: u64) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.cancelled.store(true, Ordering::Relaxed);
        }
    }
}

#[test]
fn interrupted_gguf_run_resumes_with_identical_output() {
    let (dir, source, target) = small(Dtype::BF16);
    let whole = dir.path().join("whole.gguf");
    quantize(&source, &whole, Ftype::Q4_0, 2).unwrap();
    let plan = plan_of(&source, GgufRecipe::plain(Ftype::Q4_0)).unwrap();
    let cancelled = AtomicBool::new(false);
    let stop = Stop { left: AtomicUsize::new(5), cancelled: &cancelled };
    let stopped = carry_out(&source, &target, &plan, 1, &cancelled, &stop);
    assert!(matches!(stopped, Err(EngineError::Cancelled)) && !target.exists());
    let done = carry_out(&source, &target, &plan, 2, &AtomicBool::new(false), &Silent).unwrap();
    assert_eq!((done.resumed, done.jobs), (5, 12));
    assert_eq!(std::fs::read(&target).unwrap(), std::fs::read(&whole).unwrap());
    assert!(!dir.path().join("model.gguf.partial").exists());
}

#[test]
fn only_gguf_files_are_replaced() {
    let (_dir, source, target) = small(Dtype::BF16);
    let plan = plan_of(&source, GgufRecipe::plain(Ftype::Q8_0)).unwrap();
    std::fs::write(&target, "my notes").unwrap();
    for overwrite in [false, true] {
        let refused = Output::check(&plan, &source, &target, overwrite);
        assert!(matches!(refused, Err(OutputError::NotReplaceable { .. })), "{refused:?}");
        let hint = refused.unwrap_err().hint().unwrap();
        assert!(hint.contains("only with one of its kind"), "{hint}");
    }
    std::fs::remove_file(&target).unwrap();
    quantize(&source, &target, Ftype::Q8_0, 1).unwrap();
    assert!(matches!(Output::check(&plan, &source, &target, false), Err(OutputError::Exists(_))));
    assert!(Output::check(&plan, &source, &target, true).is_ok());
}

#[test]
fn tensor_types_follow_ftype_columns_and_overrides() {
    let (_dir, source, _) = small(Dtype::BF16);
    let overrides = vec!["*.v_proj=F16".parse().unwrap()];
    let settings = Settings {
        scheme: Some("Q8_0".into()),
        overrides,
        exclude: vec!["blk.0.ffn_down".into()],
        ..Settings::default()
    };
    let plan = plan_of(&source, recipe(&settings)).unwrap();
    let kind = |name: &str| {
        let tensor = plan.tensors.iter().find(|tensor| tensor.name == name).unwrap();
        (tensor.kind, tensor.reason)
    };
    assert_eq!(kind("blk.0.attn_q.weight"), (TensorType::Q8_0, Reason::Ftype));
    assert_eq!(kind("blk.0.attn_v.weight"), (TensorType::F16, Reason::Override));
    assert_eq!(kind("blk.0.ffn_down.weight"), (TensorType::BF16, Reason::Excluded));
    assert_eq!(kind("blk.0.attn_norm.weight"), (TensorType::F32, Reason::Fixed));
    assert_eq!(plan.tensors.len() + plan.dropped.len(), 12);
    assert!(plan.peak_memory(2) > plan.peak_memory(1) && plan.bits_per_weight() == 8.5);
}

/// A Mixtral of one block whose experts are one by one, or one tensor.
fn mixtral(fused: bool) -> (Json, Vec<Tensor>) {
    let mut tensors: Vec<Tensor> = llama(Dtype::F32).into_iter().filter(|(name, ..)| !name.contains("mlp")).collect();
    tensors.push(weight("model.layers.0.block_sparse_moe.gate.weight", Dtype::F32, &[3, 64]));
    let expert = |e: usize, name: &str, shape: &[usize]| {
        weight(&format!("model.layers.0.block_sparse_moe.experts.{e}.{name}.weight"), Dtype::F32, shape)
    };
    let all: Vec<Tensor> = (0..3)
        .flat_map(|e| [expert(e, "w1", &[128, 64]), expert(e, "w2", &[64, 128]), expert(e, "w3", &[128, 64])])
        .collect();
    match fused {
        false => tensors.extend(all),
        true => {
            let join = |parts: &[&str]| -> Vec<u8> {
                let of = |e: usize, part: &str| {
                    let end = format!("experts.{e}.{part}.weight");
                    all.iter().find(|(name, ..)| name.ends_with(&end)).unwrap().3.clone()
                };
                (0..3).flat_map(|e| parts.iter().flat_map(move |part| of(e, part)).collect::<Vec<u8>>()).collect()
            };
            let name = |leaf: &str| format!("model.layers.0.mlp.experts.{leaf}");
            tensors.push((name("gate_up_proj"), Dtype::F32, vec![3, 256, 64], join(&["w1", "w3"])));
            tensors.push((name("down_proj"), Dtype::F32, vec![3, 64, 128], join(&["w2"])));
        }
    }
    let mut config = with_context(llama_config());
    config["model_type"] = json!("mixtral");
    config["architectures"] = json!(["MixtralForCausalLM"]);
    config["num_local_experts"] = json!(3);
    config["num_experts_per_tok"] = json!(2);
    (config, tensors)
}

#[test]
fn experts_are_stacked_from_either_storage() {
    let mut found = Vec::new();
    for fused in [false, true] {
        let (config, tensors) = mixtral(fused);
        let (_dir, source, target) = made(&config, &tensors);
        quantize(&source, &target, Ftype::F32, 2).unwrap();
        let file = GgufFile::open(&target).unwrap();
        assert_eq!(file.tensor("blk.0.ffn_up_exps.weight").unwrap().shape(), [3, 128, 64]);
        assert_eq!(file.tensor("blk.0.ffn_gate_inp.weight").unwrap().kind(), TensorType::F32);
        found.push(["gate", "up", "down"].map(|part| read(&target, &format!("blk.0.ffn_{part}_exps.weight"))));
        if !fused {
            let second = source_values(&source, "model.layers.0.block_sparse_moe.experts.1.w3.weight");
            assert_eq!(found[0][1][128 * 64..][..128 * 64], second);
        }
    }
    assert_eq!(found[0], found[1]);
}

#[test]
fn importance_reaches_the_blocks_and_must_match_in_size() {
    let (dir, source, target) = small(Dtype::F32);
    let sums = |columns: usize| {
        let mut sums = InputSums::new(columns, 1);
        sums.add(0, &(0..columns).map(|i| if i % 32 == 0 { 100.0 } else { 0.01 }).collect::<Vec<f32>>());
        let all = [("blk.0.ffn_up.weight".to_owned(), sums)].into();
        Arc::new(Importance::of_sums(&all, Provenance::default()))
    };
    quantize(&source, &target, Ftype::Q4_0, 1).unwrap();
    let weighed = dir.path().join("weighed.gguf");
    let plan = plan_of(&source, GgufRecipe::plain(Ftype::Q4_0).with_importance(sums(64))).unwrap();
    let told = "the importance of `blk.0.attn_q.weight` and 6 more is not known: all inputs weigh the same there";
    assert!(plan.notices.iter().any(|notice| notice == told), "{:?}", plan.notices);
    carry_out(&source, &weighed, &plan, 2, &AtomicBool::new(false), &Silent).unwrap();
    let error = |path: &Path| {
        let values = read(path, "blk.0.ffn_up.weight");
        let source = source_values(&source, "model.layers.0.mlp.up_proj.weight");
        values.iter().zip(&source).step_by(32).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>()
    };
    assert!(error(&weighed) < error(&target) * 0.5);
    let misfit = plan_of(&source, GgufRecipe::plain(Ftype::Q4_0).with_importance(sums(32)));
    assert!(matches!(misfit, Err(GgufPlanError::Importance { found: 32, expected: 64, .. })));
}

#[test]
fn impossible_gguf_requests_are_refused_first() {
    let refused = |config: &Json, tensors: &[Tensor]| {
        let (_dir, source, _) = made(config, tensors);
        plan_of(&source, GgufRecipe::plain(Ftype::Q8_0)).unwrap_err()
    };
    let config = with_context(llama_config());
    let change = |key: &str, value: Json| {
        let mut config = config.clone();
        config[key] = value;
        config
    };
    let tensors = llama(Dtype::BF16);
    let unknown = json!({"model_type": "unheard_of", "architectures": ["UnheardOf"], "hidden_size": 64});
    let error = refused(&unknown, &tensors);
    assert!(matches!(error, GgufPlanError::Family { .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let error = refused(&change("rope_scaling", json!({"type": "dynamic", "factor": 2.0})), &tensors);
    assert!(matches!(error, GgufPlanError::Scaling(_)), "{error}");
    let error = refused(&change("head_dim", json!(24)), &tensors);
    assert!(matches!(error, GgufPlanError::Shape { .. }), "{error}");
    assert!(matches!(refused(&llama_config(), &tensors), GgufPlanError::Config(_)));
    let mut more = tensors.clone();
    more.push(weight("model.layers.0.self_attn.mystery.weight", Dtype::BF16, &[4, 4]));
    assert!(matches!(refused(&config, &more), GgufPlanError::NoPlace { .. }));
    let mut integers = tensors.clone();
    integers[2] = ("model.layers.0.self_attn.q_proj.weight".into(), Dtype::F64, vec![64, 64], vec![0; 64 * 64 * 8]);
    assert!(matches!(refused(&config, &integers), GgufPlanError::SourceType { .. }));

    let (_dir, source, _) = small(Dtype::BF16);
    std::fs::write(source.join("tokenizer.json"), tokenizer(33).to_string()).unwrap();
    let error = plan_of(&source, GgufRecipe::plain(Ftype::Q8_0)).unwrap_err();
    assert!(error.to_string().contains("33 tokens"), "{error}");
    std::fs::remove_file(source.join("tokenizer.json")).unwrap();
    let error = plan_of(&source, GgufRecipe::plain(Ftype::Q8_0)).unwrap_err();
    assert!(error.hint().unwrap().contains("copy tokenizer.json"), "{error}");
}

#[test]
fn non_finite_weight_is_named() {
    let mut tensors = llama(Dtype::F32);
    let mut values = vec![0.5f32; 64 * 64];
    values[65] = f32::NAN;
    tensors[5].3 = encoded(Dtype::F32, &values);
    let (_dir, source, target) = made(&with_context(llama_config()), &tensors);
    let error = quantize(&source, &target, Ftype::Q8_0, 1).unwrap_err().to_string();
    assert!(error.contains("o_proj.weight") && error.contains("output 1, input 1 is NaN"), "{error}");
    assert!(!target.exists());
}

/// The ids of the checks that find errors in a file.
fn failing(path: &Path) -> Vec<&'static str> {
    let report = verify(path, &Options::default()).unwrap();
    report.errors().map(|error| error.check).collect()
}

#[test]
fn written_gguf_verifies_and_damage_is_found() {
    let (_dir, source, target) = small(Dtype::F32);
    quantize(&source, &target, Ftype::Q8_0, 2).unwrap();
    assert_eq!(failing(&target), [""; 0]);
    let whole = std::fs::read(&target).unwrap();
    let file = GgufFile::open(&target).unwrap();
    let tensor = file.tensors().find(|tensor| tensor.kind() == TensorType::Q8_0).unwrap();
    let place = whole.windows(64).position(|window| window == &tensor.bytes()[..64]).unwrap();
    drop(file);
    let damaged = target.with_file_name("damaged.gguf");
    let mut bytes = whole.clone();
    bytes[place..place + 2].copy_from_slice(&0x7C00_u16.to_le_bytes());
    std::fs::write(&damaged, &bytes).unwrap();
    assert_eq!(failing(&damaged), ["gguf-values"]);
    std::fs::write(&damaged, &whole[..whole.len() - 32]).unwrap();
    assert_eq!(failing(&damaged), ["gguf-file"]);
    let key = b"llama.block_count";
    let place = whole.windows(key.len()).position(|window| window == key).unwrap();
    let mut bytes = whole;
    bytes[place..place + key.len()].copy_from_slice(b"llama.block_kount");
    std::fs::write(&damaged, &bytes).unwrap();
    assert!(failing(&damaged).contains(&"gguf-metadata"));
}

#[test]
fn headers_llama_cpp_refuses_are_reported() {
    let (_dir, source, target) = small(Dtype::F32);
    quantize(&source, &target, Ftype::Q8_0, 2).unwrap();
    let whole = std::fs::read(&target).unwrap();
    let damaged = target.with_file_name("damaged.gguf");
    let behind =
        |key: &[u8], more: usize| whole.windows(key.len()).position(|part| part == key).unwrap() + key.len() + more;
    let report = |at: usize, value: &[u8]| {
        let mut bytes = whole.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        std::fs::write(&damaged, &bytes).unwrap();
        verify(&damaged, &Options::default()).unwrap()
    };
    let loads = |report: &kvant_formats::verify::Report, id: &str| {
        report.verdicts.iter().find(|verdict| verdict.id == id).unwrap().loads
    };
    // Behind a key stand the type of the value and, of texts, the length.
    let architecture = behind(b"general.architecture", 12);
    let sound = report(architecture, b"llama");
    assert_eq!((sound.family, loads(&sound, "llama.cpp")), (Some("llama"), Loads::Yes));
    let unknown = report(architecture, b"xxxxx");
    assert_eq!(
        (unknown.family, loads(&unknown, "llama.cpp"), loads(&unknown, "sglang")),
        (None, Loads::Unknown, Loads::Unknown)
    );
    let fewer = report(behind(b"llama.block_count", 4), &0u32.to_le_bytes());
    assert!(fewer.errors().any(|error| error.check == "gguf-tensors" && error.reason.contains("past the 0 blocks")));
    assert_eq!(loads(&fewer, "llama.cpp"), Loads::No);
    let version = report(4, &99u32.to_le_bytes());
    assert_eq!(version.errors().map(|error| error.check).collect::<Vec<_>>(), ["gguf-file"]);
    std::fs::write(&damaged, &whole[..200]).unwrap();
    let cut = verify(&damaged, &Options::default()).unwrap();
    assert!(cut.errors().next().unwrap().reason.contains("ends early"), "{:?}", cut.findings);
}

#[test]
fn fused_layers_of_several_types_are_refused_first() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/nano_llama");
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("model.gguf");
    quantize(&source, &target, Ftype::Q4_K_M, 2).unwrap();
    let checkpoint = kvant_gguf::model::restore::open(&target).unwrap();
    let plan = |requantize| {
        let conversion = Conversion {
            target: ConversionTarget::Codes(FormatHandle::COMPRESSED_TENSORS),
            requantize,
            max_shard_size: 1 << 30,
        };
        Plan::convert(&checkpoint, &conversion)
    };
    let error = plan(false).unwrap_err();
    assert!(error.to_string().contains("which engines fuse with it"), "{error}");
    assert!(error.hint().unwrap().contains("‹requantize›"), "{error}");
    plan(true).unwrap();
}

#[test]
fn interrupted_imatrix_resumes_with_identical_sums() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/nano_llama");
    let checkpoint = Checkpoint::open(&source).unwrap();
    let plan = GgufPlan::new(&checkpoint, GgufRecipe::plain(Ftype::Q4_0), "model.gguf").unwrap();
    let decoder = Decoder::open(&checkpoint).unwrap();
    // Neighbours of other lengths are chunks of their own.
    let sequence = |i: u32| (0..31 + i % 2).map(|t| (i * 97 + t * 31) % 2000).collect();
    let sequences: Vec<Vec<u32>> = (0..6).map(sequence).collect();
    let tokens = sequences.iter().map(Vec::len).sum::<usize>() as u64;
    let dir = tempfile::tempdir().unwrap();
    let stop = AtomicBool::new(false);
    let measured = |name: &str, key: &str, watch: &mut dyn FnMut(u64)| {
        let keep = Keep { target: &dir.path().join(name), key, every: Duration::ZERO };
        let memory = if name == "spilled" { 0 } else { 1 << 30 };
        imatrix::collect(&plan, &decoder, &Cpu::default(), &sequences, memory, keep, &stop, |done, _| watch(done))
    };
    let whole = measured("whole", "key", &mut |_| ()).unwrap();
    for name in ["held", "spilled"] {
        // In the third of four blocks.
        let mut stop_late = |done| stop.store(done > tokens / 2, Ordering::Relaxed);
        assert!(matches!(measured(name, "key", &mut stop_late), Err(ImatrixError::Cancelled)));
        stop.store(false, Ordering::Relaxed);
        let mut first = None;
        let resumed = measured(name, "key", &mut |done| first = first.or(Some(done))).unwrap();
        assert!(first.unwrap() > tokens / 2, "two blocks were done");
        assert_eq!(resumed, whole);
        let mut first = None;
        measured(name, "another key", &mut |done| first = first.or(Some(done))).unwrap();
        assert!(first.unwrap() < tokens / 4, "what is of other data is not gone on with");
    }
}

#[test]
fn activation_functions_that_the_graph_lacks_are_named() {
    let mut config = with_context(llama_config());
    let departures = |config: &Json| {
        let (_dir, source, _) = made(config, &llama(Dtype::F32));
        plan_of(&source, GgufRecipe::plain(Ftype::Q4_0)).unwrap().departures.clone()
    };
    assert!(departures(&config).is_empty());
    config["hidden_act"] = json!("gelu");
    let told = "llama.cpp's graph of `llama` computes SiLU, and the model `gelu`: results differ";
    assert_eq!(departures(&config), [told]);
}
