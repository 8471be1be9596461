//! Whole directories: good ones, wrong ones, hostile ones.

use crate::Diagnostic;
use std::fs;

use tempfile::TempDir;

use super::*;
use crate::ErrorKind;
use crate::dtype::Dtype;
use crate::safetensors::{Layout, TensorDeclaration};
use crate::{Durability, Writer};

/// A directory with the given text files.
fn dir_with(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

/// Writes a safetensors file whose tensors are one byte each: their position.
fn shard(dir: &TempDir, name: &str, tensors: &[&str]) {
    let declarations = tensors.iter().map(|&t| TensorDeclaration::new(t, Dtype::U8, [1])).collect();
    let layout = Layout::new(declarations, u64::MAX, [("from".to_string(), name.to_string())].into()).unwrap();
    let own = tempfile::tempdir().unwrap();
    let writer = Writer::create(own.path(), layout).unwrap();
    for i in 0..tensors.len() {
        writer.write_at(i, 0, &[i as u8]).unwrap();
    }
    writer.finish(Durability::Process).unwrap();
    let target = dir.path().join(name);
    fs::create_dir_all(target.parent().unwrap()).unwrap();
    fs::copy(own.path().join("model.safetensors"), target).unwrap();
}

fn index(dir: &TempDir, weight_map: &str) {
    fs::write(dir.path().join("model.safetensors.index.json"), format!(r#"{{"weight_map":{weight_map}}}"#)).unwrap();
}

fn problem(path: &Path) -> CheckpointError {
    match Checkpoint::open(path) {
        Err(Error::Checkpoint { problem, .. }) => problem,
        other => panic!("{other:?}"),
    }
}

fn names(checkpoint: &Checkpoint) -> Vec<&str> {
    checkpoint.tensors().map(|t| t.name()).collect()
}

#[test]
fn index_maps_tensors_to_shards() {
    let dir = dir_with(&[("config.json", r#"{"model_type":"llama"}"#)]);
    shard(&dir, "b.safetensors", &["z", "y"]);
    shard(&dir, "sub/a.safetensors", &["x"]);
    shard(&dir, "model.safetensors", &["decoy"]);
    index(&dir, r#"{"x":"sub/a.safetensors","y":"b.safetensors","z":"b.safetensors"}"#);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(names(&checkpoint), ["z", "y", "x"]);
    assert_eq!((checkpoint.len(), checkpoint.is_empty()), (3, false));
    assert_eq!(checkpoint.tensor("y").unwrap().bytes(), [1]);
    assert!(checkpoint.tensor("decoy").is_none());
    assert!(checkpoint.unindexed().is_empty());
    assert_eq!(checkpoint.metadata()["from"], "b.safetensors");
    assert_eq!(checkpoint.config().unwrap().unwrap()["model_type"], "llama");
    let decoy = LeftOutFile { name: "model.safetensors".into(), reason: LeftOutReason::OtherSafetensors };
    assert!(checkpoint.left_out_files().unwrap().contains(&decoy));
}

#[test]
fn unindexed_tensors_are_kept_and_reported() {
    let dir = dir_with(&[]);
    shard(&dir, "a.safetensors", &["x", "w", "v"]);
    index(&dir, r#"{"x":"a.safetensors"}"#);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(names(&checkpoint), ["x", "w", "v"]);
    assert_eq!(checkpoint.unindexed(), ["v", "w"]);
}

#[test]
fn without_index_default_name_wins_over_all_files() {
    let dir = dir_with(&[]);
    shard(&dir, "b.safetensors", &["b"]);
    shard(&dir, "a.safetensors", &["a"]);
    fs::write(dir.path().join("._a.safetensors"), "junk").unwrap();
    assert_eq!(names(&Checkpoint::open(dir.path()).unwrap()), ["a", "b"]);
    shard(&dir, "model.safetensors", &["m"]);
    assert_eq!(names(&Checkpoint::open(dir.path()).unwrap()), ["m"]);
}

#[test]
fn component_of_a_pipeline_is_read_without_its_other_types() {
    let dir = tempfile::tempdir().unwrap();
    shard(&dir, "diffusion_pytorch_model.safetensors", &["a"]);
    shard(&dir, "diffusion_pytorch_model.fp16.safetensors", &["a"]);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.shards().len(), 1);
    assert!(checkpoint.shards()[0].path().ends_with("diffusion_pytorch_model.safetensors"));
}

#[test]
fn pipeline_is_refused_with_the_names_of_its_components() {
    let dir = dir_with(&[("model_index.json", r#"{"_class_name": "FluxPipeline"}"#)]);
    assert_eq!(problem(dir.path()), CheckpointError::NoWeights);
    shard(&dir, "vae/diffusion_pytorch_model.safetensors", &["a"]);
    shard(&dir, "text_encoder/model.safetensors", &["a"]);
    fs::create_dir(dir.path().join("scheduler")).unwrap();
    let components = vec!["text_encoder".to_owned(), "vae".to_owned()];
    assert_eq!(problem(dir.path()), CheckpointError::Pipeline { components });
}

#[test]
fn single_index_of_another_name_is_used() {
    let dir = dir_with(&[("other.safetensors.index.json", r#"{"weight_map":{"x":"a.safetensors"}}"#)]);
    shard(&dir, "a.safetensors", &["x"]);
    shard(&dir, "b.safetensors", &["y"]);
    assert_eq!(names(&Checkpoint::open(dir.path()).unwrap()), ["x"]);
    fs::write(dir.path().join("third.safetensors.index.json"), "{}").unwrap();
    assert!(matches!(problem(dir.path()), CheckpointError::TwoIndices { .. }));
}

#[test]
fn single_file_uses_neighbouring_files_when_they_form_a_model() {
    let dir = dir_with(&[("tokenizer.json", "{}")]);
    shard(&dir, "x.safetensors", &["x"]);
    let open = || Checkpoint::open(&dir.path().join("x.safetensors")).unwrap();
    let bare = open();
    assert_eq!((names(&bare), bare.directory()), (vec!["x"], None));
    assert_eq!(bare.config().unwrap(), None);
    assert_eq!(bare.extra_files().unwrap(), Vec::<PathBuf>::new());
    assert_eq!(bare.left_out_files().unwrap(), []);
    fs::write(dir.path().join("config.json"), r#"{"model_type":"x"}"#).unwrap();
    let model = open();
    assert_eq!((names(&model), model.directory()), (vec!["x"], Some(dir.path())));
    assert_eq!(model.config().unwrap().unwrap()["model_type"], "x");
    assert_eq!(model.extra_files().unwrap(), [PathBuf::from("tokenizer.json")]);
    assert_eq!(model.left_out_files().unwrap(), []);
    // One shard of several is not the model of the directory.
    shard(&dir, "y.safetensors", &["y"]);
    index(&dir, r#"{"x":"x.safetensors","y":"y.safetensors"}"#);
    assert_eq!(open().config().unwrap(), None);
}

#[test]
fn index_paths_outside_the_directory_are_refused() {
    let dir = dir_with(&[]);
    shard(&dir, "in/a.safetensors", &["x"]);
    shard(&dir, "a.safetensors", &["x"]);
    let absolute = dir.path().join("a.safetensors");
    for path in [
        "../a.safetensors",
        absolute.to_str().unwrap(),
        "x/../../a.safetensors",
        "..\\\\a.safetensors",
        "C:a.safetensors",
    ] {
        fs::write(dir.path().join("in/model.safetensors.index.json"), format!(r#"{{"weight_map":{{"x":"{path}"}}}}"#))
            .unwrap();
        let problem = problem(&dir.path().join("in"));
        assert!(matches!(&problem, CheckpointError::UnsafePath { tensor, .. } if tensor == "x"), "{path}: {problem}");
    }
}

#[test]
fn shard_that_file_names_count_is_refused_by_name_where_the_index_is_missing() {
    let dir = dir_with(&[]);
    shard(&dir, "model-00001-of-00003.safetensors", &["x"]);
    shard(&dir, "model-00003-of-00003.safetensors", &["z"]);
    let missing = problem(dir.path());
    assert_eq!(missing, CheckpointError::MissingNumberedShard { shard: "model-00002-of-00003.safetensors".into() });
    assert!(missing.hint().is_some());
    shard(&dir, "model-00002-of-00003.safetensors", &["y"]);
    assert!(Checkpoint::open(dir.path()).is_ok());
}

#[test]
fn index_that_does_not_match_its_shards_is_refused() {
    let dir = dir_with(&[]);
    shard(&dir, "a.safetensors", &["x"]);
    shard(&dir, "b.safetensors", &["y"]);
    index(&dir, r#"{"x":"a.safetensors","y":"c.safetensors"}"#);
    let missing = problem(dir.path());
    assert_eq!(missing, CheckpointError::MissingShard { shard: "c.safetensors".into(), tensor: "y".into() });
    assert!(missing.hint().is_some());
    index(&dir, r#"{"x":"a.safetensors","z":"a.safetensors"}"#);
    assert_eq!(
        problem(dir.path()),
        CheckpointError::MissingTensor { tensor: "z".into(), shard: "a.safetensors".into() }
    );
    index(&dir, r#"{"x":"b.safetensors","y":"a.safetensors"}"#);
    assert!(matches!(problem(dir.path()), CheckpointError::WrongShard { tensor, .. } if tensor == "x"));
    index(&dir, r#"{"x":"a.safetensors","x":"b.safetensors"}"#);
    assert_eq!(problem(dir.path()), CheckpointError::DuplicateTensor { tensor: "x".into() });
    index(&dir, r#"{"x":"a.h5"}"#);
    assert_eq!(problem(dir.path()).kind(), ErrorKind::Unsupported);
}

#[test]
fn malformed_index_is_refused() {
    let dir = dir_with(&[]);
    shard(&dir, "a.safetensors", &["x"]);
    for weight_map in ["[]", r#"{"x":1}"#, "{", &"[".repeat(100_000)] {
        index(&dir, weight_map);
        let error = Checkpoint::open(dir.path()).unwrap_err();
        assert!(matches!(error, Error::Json { .. }), "{error}");
        assert!(error.to_string().contains("model.safetensors.index.json"), "{error}");
    }
}

#[test]
fn duplicate_tensor_in_two_shards_is_refused() {
    let dir = dir_with(&[]);
    shard(&dir, "a.safetensors", &["x"]);
    shard(&dir, "b.safetensors", &["y", "x"]);
    for with_index in [false, true] {
        if with_index {
            index(&dir, r#"{"x":"a.safetensors","y":"b.safetensors"}"#);
        }
        let error = Checkpoint::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("`x`") && error.contains("a.safetensors") && error.contains("b.safetensors"), "{error}");
    }
}

#[test]
fn truncated_shard_error_names_file_and_tensor() {
    let dir = dir_with(&[]);
    shard(&dir, "a.safetensors", &["x", "y"]);
    let path = dir.path().join("a.safetensors");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let error = Checkpoint::open(dir.path()).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("a.safetensors") && message.contains("`y`") && message.contains("1 bytes are missing"),
        "{message}"
    );
    assert!(error.hint().unwrap().contains("incomplete"));
}

/// A file that `torch.save` wrote.
const PYTORCH_FILE: &[u8] = include_bytes!("../pytorch/fixtures/archive.bin");

#[test]
fn files_of_pytorch_are_read_where_there_are_no_safetensors() {
    let dir = dir_with(&[("config.json", "{}"), ("training_args.bin", "x"), ("optimizer.pt", "x")]);
    fs::write(dir.path().join("pytorch_model.bin"), PYTORCH_FILE).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.len(), 7);
    let (tied, head) = (checkpoint.tensor("embedding.weight").unwrap(), checkpoint.tensor("head.weight").unwrap());
    assert_eq!(tied.bytes(), head.bytes());
    let left_out = checkpoint.left_out_files().unwrap();
    assert_eq!(
        left_out.iter().map(|file| file.name.to_str().unwrap()).collect::<Vec<_>>(),
        ["optimizer.pt", "training_args.bin"]
    );
    // A file by its own name.
    fs::write(dir.path().join("weights.pt"), PYTORCH_FILE).unwrap();
    assert_eq!(Checkpoint::open(&dir.path().join("weights.pt")).unwrap().len(), 7);
    shard(&dir, "model.safetensors", &["x"]);
    assert_eq!(names(&Checkpoint::open(dir.path()).unwrap()), ["x"]);
}

#[test]
fn shards_of_pytorch_are_found_by_their_index_or_their_numbers() {
    let dir = dir_with(&[("training_args.bin", "x")]);
    let first = "pytorch_model-00001-of-00002.bin";
    fs::write(dir.path().join(first), PYTORCH_FILE).unwrap();
    let missing = CheckpointError::MissingNumberedShard { shard: "pytorch_model-00002-of-00002.bin".into() };
    assert_eq!(problem(dir.path()), missing);
    let types = include_bytes!("../pytorch/fixtures/types.bin");
    fs::write(dir.path().join("pytorch_model-00002-of-00002.bin"), types).unwrap();
    assert_eq!(Checkpoint::open(dir.path()).unwrap().len(), 9);
    let map = format!(r#"{{"weight_map":{{"weight":"{first}"}}}}"#);
    fs::write(dir.path().join("pytorch_model.bin.index.json"), map).unwrap();
    assert_eq!(Checkpoint::open(dir.path()).unwrap().len(), 7);
}

#[test]
fn other_formats_are_unsupported() {
    let pickle = dir_with(&[("config.json", "{}"), ("weights.pt", "x")]);
    let error = problem(pickle.path());
    assert!(matches!(error, CheckpointError::Pickle { .. }));
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.hint().unwrap().contains("weights.pt"));
    assert!(matches!(problem(dir_with(&[("m.gguf", "x")]).path()), CheckpointError::Gguf { .. }));
    assert_eq!(problem(dir_with(&[("README.md", "x")]).path()), CheckpointError::NoWeights);
    assert_eq!(problem(&pickle.path().join("config.json")), CheckpointError::NotSafetensors);
    let missing = problem(&pickle.path().join("org/model"));
    assert_eq!((missing.kind(), missing.hint().is_some()), (ErrorKind::Io, true));
}

#[test]
fn extra_files_are_copied_and_others_reported() {
    let dir = dir_with(&[
        ("config.json", "{}"),
        ("tokenizer.json", "{}"),
        ("chat_template.jinja", ""),
        ("modeling.py", ""),
        ("pytorch_model.bin", ""),
        (".gitattributes", ""),
    ]);
    shard(&dir, "model.safetensors", &["x"]);
    shard(&dir, "original/consolidated.safetensors", &["x"]);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let extra = checkpoint.extra_files().unwrap();
    assert_eq!(extra, [PathBuf::from("chat_template.jinja"), "tokenizer.json".into()]);
    let left_out = checkpoint.left_out_files().unwrap();
    let left_out: Vec<_> = left_out.iter().map(|f| (f.name.to_str().unwrap(), f.reason)).collect();
    use LeftOutReason::*;
    let expected = [
        (".gitattributes", Hidden),
        ("modeling.py", Code),
        ("original", Directory),
        ("pytorch_model.bin", OtherWeights),
    ];
    assert_eq!(left_out, expected);
}

#[test]
fn malformed_config_is_an_error() {
    let dir = dir_with(&[]);
    shard(&dir, "model.safetensors", &["x"]);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.config().unwrap(), None);
    let config = dir.path().join("config.json");
    fs::write(&config, "[".repeat(100_000)).unwrap();
    assert!(matches!(checkpoint.config(), Err(Error::Json { .. })));
    fs::File::create(&config).unwrap().set_len(MAX_CONFIG_LEN + 1).unwrap();
    assert!(matches!(checkpoint.config(), Err(Error::TooLarge { .. })));
}

#[cfg(unix)]
#[test]
fn symlinks_of_download_caches_are_followed() {
    let blobs = dir_with(&[("t", "{}")]);
    shard(&blobs, "blob", &["x"]);
    let snapshot = dir_with(&[]);
    let link =
        |from: &str, to: &str| std::os::unix::fs::symlink(blobs.path().join(from), snapshot.path().join(to)).unwrap();
    link("blob", "model.safetensors");
    link("t", "tokenizer.json");
    link("gone", "broken.txt");
    let checkpoint = Checkpoint::open(snapshot.path()).unwrap();
    assert_eq!(names(&checkpoint), ["x"]);
    assert_eq!(checkpoint.extra_files().unwrap(), [PathBuf::from("tokenizer.json")]);
    assert_eq!(checkpoint.left_out_files().unwrap()[0].reason, LeftOutReason::NotAFile);
}

#[test]
fn adapter_without_model_is_refused() {
    let dir = dir_with(&[]);
    shard(&dir, "adapter_model.safetensors", &["a.lora_A.weight", "a.lora_B.weight"]);
    assert!(matches!(problem(dir.path()), CheckpointError::Adapter { base: None }));
    // A model may hold adapters beside its weights, and lie beside one.
    shard(&dir, "model.safetensors", &["a.weight", "a.lora_A.speech.weight"]);
    assert_eq!(names(&Checkpoint::open(dir.path()).unwrap()), ["a.weight", "a.lora_A.speech.weight"]);
}

#[test]
fn rewritten_or_replaced_description_is_a_changed_file() {
    let dir = dir_with(&[("config.json", "{}"), ("tokenizer.json", "{}"), ("run.log", "")]);
    shard(&dir, "model.safetensors", &["x"]);
    let changed = |checkpoint: &Checkpoint| checkpoint.changed_file().map(Path::to_path_buf);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    fs::write(dir.path().join("run.log"), "one line").unwrap();
    assert_eq!(changed(&checkpoint), None);
    fs::write(dir.path().join("config.json"), r#"{"model_type":"llama"}"#).unwrap();
    assert_eq!(changed(&checkpoint), Some(dir.path().join("config.json")));
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(changed(&checkpoint), None);
    fs::write(dir.path().join("new"), r#"{"version":"1.0"}"#).unwrap();
    fs::rename(dir.path().join("new"), dir.path().join("tokenizer.json")).unwrap();
    assert_eq!(changed(&checkpoint), Some(dir.path().join("tokenizer.json")));
}

#[test]
fn parts_of_a_tensor_are_seen_in_its_place() {
    let dir = dir_with(&[]);
    let layout =
        Layout::new(vec![TensorDeclaration::new("all", Dtype::U8, [2, 3])], u64::MAX, BTreeMap::new()).unwrap();
    let writer = Writer::create(dir.path(), layout).unwrap();
    writer.write_at(0, 0, &[0, 1, 2, 3, 4, 5]).unwrap();
    writer.finish(Durability::Process).unwrap();
    let part = |name: &str, shape: &[usize]| TensorPart { name: name.to_owned(), shape: shape.to_vec() };
    let divided =
        |parts: &[TensorPart]| Checkpoint::open(dir.path()).unwrap().divided(|_| Some(parts.to_vec())).unwrap();
    let checkpoint = divided(&[part("a", &[1, 3]), part("b", &[3])]);
    assert_eq!(names(&checkpoint), ["a", "b"]);
    let bytes = |name: &str| checkpoint.tensor(name).map(|tensor| tensor.bytes().to_vec());
    assert_eq!([bytes("a"), bytes("b"), bytes("all")], [Some(vec![0, 1, 2]), Some(vec![3, 4, 5]), None]);
    // Too few bytes, too many, and a name that is taken.
    for parts in [vec![part("a", &[3])], vec![part("a", &[7])], vec![part("a", &[3]), part("all", &[3])]] {
        assert_eq!(names(&divided(&parts)), ["all"]);
    }
}
