//! GGUF files made of GGUF files: what keeps its type keeps its bytes, what changes it is made of its values, and all that the
//! metadata say stays.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use crate::common::{Tensor, llama_config, weight, write};
use kvant_checkpoint::engine::{Output, Silent, Start};
use kvant_checkpoint::gguf::plan::Reason;
use kvant_checkpoint::gguf::run::run;
use kvant_checkpoint::gguf::{Accepted, GgufPlan, GgufRecipe, measure};
use kvant_checkpoint::recipe::Settings;
use kvant_container::gguf::{Array, GgufDeclaration, GgufFile, GgufLayout, Metadata, TensorType, Value};
use kvant_container::{Checkpoint, Diagnostic, Dtype, Durability, ErrorKind, Writer};
use kvant_gguf::ftype::{FTYPES, Ftype};
use kvant_gguf::model::values::values;
use kvant_gguf::model::{GgufPlanError, restore};
use kvant_numeric::ggml::{GgmlType, quantize};
use kvant_numeric::simd::Isa;
use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

fn tokenizer() -> Json {
    let vocabulary: serde_json::Map<String, Json> = (0..30).map(|id| (format!("t{id}"), json!(id))).collect();
    json!({
        "added_tokens": [], "pre_tokenizer": {"type": "ByteLevel", "use_regex": true}, "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    })
}

/// A Mixtral of a block whose rows are whole blocks of every type.
fn model(dir: &Path) -> PathBuf {
    let mut config = llama_config();
    let stated = json!({
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 256, "intermediate_size": 256,
        "num_hidden_layers": 1, "num_local_experts": 2, "num_experts_per_tok": 2, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
    });
    stated.as_object().unwrap().iter().for_each(|(key, value)| config[key] = value.clone());
    let mut tensors = vec![
        weight("model.embed_tokens.weight", Dtype::F32, &[32, 256]),
        weight("model.norm.weight", Dtype::F32, &[256]),
        weight("lm_head.weight", Dtype::F32, &[32, 256]),
    ];
    tensors.extend(block());
    let path = dir.join("source");
    write(&path, &config, &tensors);
    std::fs::write(path.join("tokenizer.json"), tokenizer().to_string()).unwrap();
    path
}

fn block() -> Vec<Tensor> {
    let tensor = |name: &str, shape: &[usize]| weight(&format!("model.layers.0.{name}.weight"), Dtype::F32, shape);
    let mut tensors = vec![
        tensor("input_layernorm", &[256]),
        tensor("post_attention_layernorm", &[256]),
        tensor("self_attn.q_proj", &[64, 256]),
        tensor("self_attn.k_proj", &[32, 256]),
        tensor("self_attn.v_proj", &[32, 256]),
        tensor("self_attn.o_proj", &[256, 64]),
        tensor("block_sparse_moe.gate", &[2, 256]),
    ];
    for expert in 0..2 {
        for name in ["w1", "w2", "w3"] {
            tensors.push(tensor(&format!("block_sparse_moe.experts.{expert}.{name}"), &[256, 256]));
        }
    }
    tensors
}

fn carry_out(plan: &GgufPlan, checkpoint: &Checkpoint, source: &Path, target: &Path) {
    let Start::Working(output) = Output::begin(plan, source, target, false).unwrap() else { panic!("finished") };
    run(plan, checkpoint, &output, 2, &AtomicBool::new(false), &Silent).unwrap();
    output.finish(plan, checkpoint, Durability::Process).unwrap();
}

/// A file of the model in a mix.
fn file_of(dir: &TempDir, ftype: Ftype) -> PathBuf {
    let (source, target) = (dir.path().join("source"), dir.path().join(format!("{ftype}.gguf")));
    if target.exists() {
        return target;
    }
    let source = if source.exists() { source } else { model(dir.path()) };
    let checkpoint = Checkpoint::open(&source).unwrap();
    let plan = GgufPlan::new(&checkpoint, GgufRecipe::plain(ftype), "model.gguf").unwrap();
    carry_out(&plan, &checkpoint, &source, &target);
    target
}

fn settings(ftype: &str, requantize: bool) -> Settings {
    Settings { scheme: Some(ftype.to_owned()), requantize: Some(requantize), ..Settings::default() }
}

fn plan_of(checkpoint: &Checkpoint, settings: &Settings) -> Result<GgufPlan, GgufPlanError> {
    let recipe = GgufRecipe::of(settings, &Settings::default()).unwrap().unwrap();
    GgufPlan::new(checkpoint, recipe, "model.gguf")
}

/// The file that is made of another one.
fn made(dir: &TempDir, source: &Path, settings: &Settings) -> (PathBuf, GgufPlan) {
    let target = dir.path().join("made.gguf");
    let checkpoint = restore::open_any(source).unwrap();
    let plan = plan_of(&checkpoint, settings).unwrap();
    let _ = std::fs::remove_file(&target);
    carry_out(&plan, &checkpoint, source, &target);
    (target, plan)
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

#[test]
fn gguf_of_any_ftype_converts_to_itself() {
    let dir = tempfile::tempdir().unwrap();
    for row in FTYPES {
        let (source, target) = (file_of(&dir, row.ftype), dir.path().join("same.gguf"));
        let checkpoint = restore::open_any(&source).unwrap();
        let plan = GgufPlan::convert(&checkpoint, Accepted::Nothing, "same.gguf").unwrap();
        carry_out(&plan, &checkpoint, &source, &target);
        assert!(read(&source) == read(&target), "{}", row.name);
        let errors = measure(&plan, &checkpoint, &target).unwrap();
        assert!(errors.iter().all(|error| error.relative == 0.0), "{}", row.name);
        assert_eq!(errors.is_empty(), row.ftype.is_float(), "{}", row.name);
        std::fs::remove_file(target).unwrap();
    }
}

#[test]
fn float_gguf_quantizes_like_its_model() {
    let dir = tempfile::tempdir().unwrap();
    let floats = file_of(&dir, Ftype::F32);
    for ftype in [
        Ftype::Q4_K_M,
        Ftype::Q2_K,
        Ftype::Q8_0,
        Ftype::IQ4_XS,
        Ftype::TQ2_0,
        Ftype::MXFP4_MOE,
        Ftype::BF16,
        Ftype::F32,
    ] {
        let (target, _) = made(&dir, &floats, &settings(ftype.row().name, false));
        assert!(read(&target) == read(&file_of(&dir, ftype)), "{ftype}");
    }
    let named = ["*layers.0.self_attn.q_proj=Q6_K", "blk.0.attn_k=F16"].map(|text| text.parse().unwrap());
    let (target, plan) = made(&dir, &floats, &Settings { overrides: named.to_vec(), ..settings("Q8_0", false) });
    let file = GgufFile::open(&target).unwrap();
    let kind = |name: &str| file.tensor(name).unwrap().kind();
    assert_eq!((kind("blk.0.attn_q.weight"), kind("blk.0.attn_k.weight")), (TensorType::Q6_K, TensorType::F16));
    assert_eq!((plan.family, plan.architecture.as_str()), (Some("mixtral"), "llama"));
}

#[test]
fn gguf_codes_need_requantize_unless_their_type_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let source = file_of(&dir, Ftype::Q8_0);
    let checkpoint = restore::open_any(&source).unwrap();
    match plan_of(&checkpoint, &settings("Q4_K_M", false)) {
        Err(error @ GgufPlanError::Twice { from: TensorType::Q8_0, .. }) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.hint().unwrap().contains("‹requantize›"));
        }
        other => panic!("{other:?}"),
    }
    let (target, plan) = made(&dir, &source, &settings("Q4_K_M", true));
    assert!(plan.notices.iter().any(|notice| notice.contains("a second time")), "{:?}", plan.notices);
    let (before, after) = (GgufFile::open(&source).unwrap(), GgufFile::open(&target).unwrap());
    let (mut kept, mut anew) = (0, 0);
    for (old, new) in before.tensors().zip(after.tensors()) {
        assert_eq!((old.name(), old.shape()), (new.name(), new.shape()));
        if old.kind() == new.kind() {
            assert!(old.bytes() == new.bytes(), "{}", old.name());
            kept += 1;
            continue;
        }
        let columns = *old.shape().last().unwrap();
        let kind = GgmlType::from_id(new.kind().id()).unwrap();
        let mut expected = vec![0; new.bytes().len()];
        quantize(Isa::best(), kind, columns, &values(Isa::best(), old).unwrap(), None, &mut expected);
        assert!(expected == new.bytes(), "{}", old.name());
        anew += 1;
    }
    // Norms and the router are kept.
    assert!(kept >= 4 && anew >= 8, "{kept} kept, {anew} anew");
    let (floats, _) = made(&dir, &source, &settings("F32", false));
    let file = GgufFile::open(&floats).unwrap();
    assert!(
        file.tensors()
            .all(|tensor| values(Isa::best(), tensor) == values(Isa::best(), before.tensor(tensor.name()).unwrap()))
    );
}

#[test]
fn gguf_metadata_is_kept_except_the_ftype() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (file_of(&dir, Ftype::F16), dir.path().join("Q4_0.gguf"));
    let checkpoint = restore::open_any(&source).unwrap();
    let plan = plan_of(&checkpoint, &settings("Q4_0", false)).unwrap();
    carry_out(&plan, &checkpoint, &source, &target);
    let (before, after) = (GgufFile::open(&source).unwrap(), GgufFile::open(&target).unwrap());
    assert!(
        matches!(after.metadata().get("tokenizer.ggml.tokens"), Some(Value::Array(Array::String(all))) if all.len() == 32)
    );
    let changed = before.metadata().entries().iter().zip(after.metadata().entries()).filter(|(a, b)| a != b);
    assert_eq!(changed.map(|(entry, _)| entry.0.as_str()).collect::<Vec<_>>(), ["general.file_type"]);
    let router = plan.tensors.iter().find(|tensor| tensor.name == "blk.0.ffn_gate_inp.weight").unwrap();
    assert_eq!((router.kind, router.reason), (TensorType::F32, Reason::Kept));
}

/// A file of an architecture that nothing is known of.
fn foreign(dir: &Path) -> PathBuf {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "unheard-of");
    metadata.set("general.alignment", 32u32);
    metadata.set("unheard-of.some_flag", true);
    let declared =
        |name: &str, kind, shape: &[usize]| GgufDeclaration { name: name.to_owned(), kind, shape: shape.to_vec() };
    let tensors = vec![
        declared("blk.0.attn_q.weight", TensorType::F32, &[4, 256]),
        declared("blk.0.strange.weight", TensorType::IQ2_XXS, &[3, 256]),
        declared("blk.0.attn_norm.weight", TensorType::F32, &[256]),
    ];
    let layout = GgufLayout::new("foreign.gguf", &metadata, tensors).unwrap();
    let places = layout.places().to_vec();
    let writer = Writer::create(dir, layout).unwrap();
    for (index, place) in places.iter().enumerate() {
        let bytes: Vec<u8> = match index {
            1 => (0..place.len).map(|i| i as u8).collect(),
            _ => (0..place.len / 4).flat_map(|i| (i as f32 * 0.01).sin().to_le_bytes()).collect(),
        };
        writer.write_at(index, 0, &bytes).unwrap();
    }
    writer.finish(Durability::Process).unwrap();
    dir.join("foreign.gguf")
}

#[test]
fn unknown_architectures_and_types_are_copied() {
    let dir = tempfile::tempdir().unwrap();
    let source = foreign(dir.path());
    let checkpoint = restore::open_any(&source).unwrap();
    let same = GgufPlan::convert(&checkpoint, Accepted::Nothing, "same.gguf").unwrap();
    carry_out(&same, &checkpoint, &source, &dir.path().join("same.gguf"));
    assert!(read(&source) == read(&dir.path().join("same.gguf")));
    assert_eq!((same.family, same.architecture.as_str()), (None, "unheard-of"));
    match plan_of(&checkpoint, &settings("Q8_0", true)) {
        Err(GgufPlanError::Undecoded { tensor, kind }) => {
            assert_eq!((tensor.as_str(), kind), ("blk.0.strange.weight", TensorType::IQ2_XXS));
        }
        other => panic!("{other:?}"),
    }
    let keep = Settings { exclude: vec!["blk.0.strange*".to_owned()], ..settings("Q8_0", false) };
    let (target, _) = made(&dir, &source, &keep);
    let file = GgufFile::open(&target).unwrap();
    let kinds: Vec<TensorType> = file.tensors().map(|tensor| tensor.kind()).collect();
    assert_eq!(kinds, [TensorType::Q8_0, TensorType::IQ2_XXS, TensorType::F32]);
    assert_eq!(file.metadata().get("unheard-of.some_flag"), Some(&Value::Bool(true)));
    let damaged = read(&source)[..200].to_vec();
    std::fs::write(dir.path().join("damaged.gguf"), damaged).unwrap();
    assert_eq!(restore::open_any(&dir.path().join("damaged.gguf")).unwrap_err().kind(), ErrorKind::Invalid);
}
