//! Round trips, parallel delivery, resuming, and what is refused; the reference implementation reads the result.

use rayon::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::TensorFile;
use crate::dtype::Dtype;
use crate::safetensors::{Layout, TensorDeclaration};

fn small_layout(max_shard_size: u64) -> Layout {
    let declarations = vec![
        TensorDeclaration::new("a", Dtype::U8, [3]),
        TensorDeclaration::new("b", Dtype::F32, [2]),
        TensorDeclaration::new("empty", Dtype::F32, [0]),
    ];
    Layout::new(declarations, max_shard_size, [("format".to_string(), "pt".to_string())].into()).unwrap()
}

fn deliver(writer: &Writer) {
    writer.write_at(1, 4, &[5, 6, 7, 8]).unwrap();
    writer.write_at(0, 0, &[10, 11, 12]).unwrap();
    writer.write_at(1, 0, &[1, 2, 3, 4]).unwrap();
}

fn written(dir: &TempDir) -> Vec<u8> {
    fs::read(dir.path().join("model.safetensors")).unwrap()
}

#[test]
fn reference_implementation_reads_written_files() {
    let dir = tempfile::tempdir().unwrap();
    let writer = Writer::create(&dir.path().join("new/dir"), small_layout(100)).unwrap();
    deliver(&writer);
    writer.finish(Durability::Disk).unwrap();
    let bytes = fs::read(dir.path().join("new/dir/model.safetensors")).unwrap();
    let file = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor("a").unwrap().data(), [10, 11, 12]);
    assert_eq!(file.tensor("b").unwrap().data(), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(file.tensor("empty").unwrap().shape(), [0]);
}

#[test]
fn files_of_the_reference_implementation_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let view = |dtype, data| ::safetensors::tensor::TensorView::new(dtype, vec![2], data).unwrap();
    let tensors = [("w", view(Dtype::BF16, &[1, 2, 3, 4])), ("q", view(Dtype::F8_E4M3, &[5, 6]))];
    fs::write(&path, ::safetensors::serialize(tensors, None).unwrap()).unwrap();
    let file = TensorFile::open(&path).unwrap();
    let found: Vec<_> = file.tensors().map(|t| (t.name(), t.dtype(), t.bytes())).collect();
    assert_eq!(found, [("w", Dtype::BF16, &[1, 2, 3, 4][..]), ("q", Dtype::F8_E4M3, &[5, 6][..])]);
}

#[test]
fn views_release_their_pages() {
    let dir = tempfile::tempdir().unwrap();
    let writer = Writer::create(dir.path(), small_layout(100)).unwrap();
    deliver(&writer);
    writer.finish(Durability::Process).unwrap();
    let file = TensorFile::open(&dir.path().join("model.safetensors")).unwrap();
    let view = file.tensors().next().unwrap();
    view.will_need();
    view.release();
    view.release_part(2..usize::MAX);
    assert_eq!((view.name(), view.byte_len(), view.bytes()), ("b", 8, &[1, 2, 3, 4, 5, 6, 7, 8][..]));
    let pieces: Vec<&[u8]> = view.pieces(3).collect();
    assert_eq!(pieces, [&[1, 2, 3][..], &[4, 5, 6], &[7, 8]]);
}

#[test]
fn thousand_tensors_are_written_from_two_threads() {
    let size = |i: usize| 1 + (i * 37) % 300;
    let byte = |i: usize, at: usize| (i * 31 + at * 7) as u8;
    let content = |i: usize| (0..size(i)).map(|at| byte(i, at)).collect::<Vec<u8>>();
    let declarations = (0..1000).map(|i| TensorDeclaration::new(format!("t{i}"), Dtype::U8, [size(i)])).collect();
    let layout = Layout::new(declarations, 20_000, Default::default()).unwrap();
    assert!(layout.shards().len() > 5);
    let dir = tempfile::tempdir().unwrap();
    let writer = Writer::create(dir.path(), layout).unwrap();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    pool.install(|| {
        (0..1000).into_par_iter().rev().for_each(|i| {
            for (piece, bytes) in content(i).chunks(100).enumerate() {
                writer.write_at(i, piece as u64 * 100, bytes).unwrap();
            }
        });
    });
    writer.finish(Durability::Process).unwrap();
    let checkpoint = crate::Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.len(), 1000);
    for i in 0..1000 {
        assert_eq!(checkpoint.tensor(&format!("t{i}")).unwrap().bytes(), content(i), "t{i}");
    }
}

#[test]
fn resumed_files_equal_uninterrupted_ones() {
    let [whole, resumed] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let writer = Writer::create(whole.path(), small_layout(100)).unwrap();
    deliver(&writer);
    writer.finish(Durability::Process).unwrap();

    let first = Writer::create(resumed.path(), small_layout(100)).unwrap();
    first.write_at(0, 0, &[10, 11, 12]).unwrap();
    first.write_at(1, 0, &[99; 5]).unwrap();
    drop(first);
    let second = Writer::reopen(resumed.path(), small_layout(100)).unwrap();
    let mut kept = [0; 3];
    second.read_at(0, 0, &mut kept).unwrap();
    assert_eq!(kept, [10, 11, 12]);
    second.mark_delivered(0, 3).unwrap();
    second.write_at(1, 0, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    second.finish(Durability::Process).unwrap();
    assert_eq!(written(&resumed), written(&whole));
}

#[test]
fn files_of_another_layout_are_not_resumed() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Writer::reopen(dir.path(), small_layout(100)), Err(Error::Io { .. })));
    drop(Writer::create(dir.path(), small_layout(100)).unwrap());
    let reopen = || match Writer::reopen(dir.path(), small_layout(100)) {
        Err(Error::Writer { problem, .. }) => problem,
        other => panic!("{other:?}"),
    };
    let path = dir.path().join("model.safetensors");
    let mut bytes = written(&dir);
    bytes[9] ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert_eq!(reopen(), WriterError::OtherHeader);
    bytes.pop();
    fs::write(&path, &bytes).unwrap();
    let expected = bytes.len() as u64 + 1;
    assert_eq!(reopen(), WriterError::OtherLength { found: expected - 1, expected });
    assert!(reopen().hint().is_some());
}

#[test]
fn bytes_outside_a_tensor_are_refused_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let writer = Writer::create(dir.path(), small_layout(100)).unwrap();
    let before = written(&dir);
    for (tensor, offset, len) in [(0, 0, 4), (0, 3, 1), (0, 4, 0), (0, u64::MAX, 1), (2, 0, 1)] {
        let error = writer.write_at(tensor, offset, &vec![1; len]).unwrap_err();
        assert!(matches!(error, Error::Writer { problem: WriterError::OutOfRange { .. }, .. }), "{error}");
        assert!(writer.read_at(tensor, offset, &mut vec![1; len]).is_err());
    }
    let error = writer.write_at(3, 0, &[]).unwrap_err();
    assert!(
        matches!(error, Error::Writer { problem: WriterError::NoSuchTensor { index: 3, count: 3 }, .. }),
        "{error}"
    );
    assert_eq!(written(&dir), before);
}

#[test]
fn incomplete_tensors_fail_to_finish() {
    let dir = tempfile::tempdir().unwrap();
    let writer = Writer::create(dir.path(), small_layout(4)).unwrap();
    writer.write_at(0, 0, &[1, 2, 3]).unwrap();
    writer.write_at(1, 0, &[1, 2, 3]).unwrap();
    let error = writer.finish(Durability::Process).unwrap_err();
    assert!(
        error.to_string().ends_with("model-00002-of-00002.safetensors: tensor `b`: 5 bytes were never written"),
        "{error}"
    );
    assert!(!dir.path().join("model.safetensors.index.json").exists());
}

#[test]
fn unwritable_directory_is_named_in_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Writer::create(&file.join("out"), small_layout(100)).unwrap_err();
    assert!(error.to_string().contains("file/out"), "{error}");
}
