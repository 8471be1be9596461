//! Means of sums, round trips through both formats, and what is refused.

use super::*;

fn sums() -> BTreeMap<String, InputSums> {
    let mut plain = InputSums::new(2, 1);
    plain.add(0, &[1.0, 2.0, 3.0, 0.0]);
    let mut experts = InputSums::new(2, 3);
    experts.add(0, &[2.0, 2.0]);
    experts.add(2, &[1.0, 0.0, 1.0, 4.0]);
    [("blk.0.attn_q.weight".to_owned(), plain), ("blk.0.ffn_up_exps.weight".to_owned(), experts)].into()
}

fn provenance() -> Provenance {
    Provenance { file: None, datasets: vec!["text.txt".to_owned()], chunks: 3, chunk_size: 512 }
}

#[test]
fn importance_is_the_mean_square_of_inputs() {
    let importance = Importance::of_sums(&sums(), provenance());
    assert_eq!(importance.of_matrix("blk.0.attn_q.weight", 0, 2), Some(&[5.0, 2.0][..]));
    assert_eq!(importance.of_matrix("blk.0.ffn_up_exps.weight", 2, 2), Some(&[1.0, 8.0][..]));
    assert_eq!(importance.of_matrix("blk.0.ffn_up_exps.weight", 1, 2), None, "no token met this expert");
    assert_eq!(importance.of_matrix("blk.0.attn_q.weight", 1, 2), None);
    assert_eq!((importance.len(), importance.len_of("blk.0.ffn_up_exps.weight")), (2, Some(6)));
    assert!(importance.len_of("output.weight").is_none() && !importance.is_empty());
}

#[test]
fn imatrix_gguf_files_round_trip() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("imatrix.gguf");
    write(&path, &sums(), &provenance()).unwrap();
    let expected = Importance::of_sums(&sums(), Provenance { file: Some("imatrix.gguf".into()), ..provenance() });
    assert_eq!(read(&path).unwrap(), expected);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn legacy_imatrix_files_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("imatrix.dat");
    write(&path, &sums(), &provenance()).unwrap();
    let found = read(&path).unwrap();
    assert_eq!(found.of_matrix("blk.0.attn_q.weight", 0, 2), Some(&[5.0, 2.0][..]));
    let all = found.of_matrix("blk.0.ffn_up_exps.weight", 0, 6).unwrap();
    assert_eq!(all, [4.0, 4.0, 1.0, 1.0, 1.0, 8.0]);
    assert_eq!(found.of_matrix("blk.0.ffn_up_exps.weight", 2, 2), Some(&[1.0, 8.0][..]));
}

#[test]
fn damaged_imatrix_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("imatrix.dat");
    write(&path, &sums(), &provenance()).unwrap();
    let whole = std::fs::read(&path).unwrap();
    // Behind the entries stand the chunks and the name of the data, which older files lack.
    let tail = 4 + 4 + "text.txt".len();
    for len in 0..whole.len() - tail {
        std::fs::write(&path, &whole[..len]).unwrap();
        assert!(matches!(read(&path), Err(ImatrixError::Damaged { .. })), "{len}");
    }
    std::fs::write(&path, (-1i32).to_le_bytes()).unwrap();
    assert!(read(&path).is_err());
    let mut metadata = Metadata::new();
    metadata.set("general.type", "model");
    let layout = kvant_container::gguf::GgufLayout::new("x", &metadata, vec![]).unwrap();
    std::fs::write(&path, &layout.files()[0].header).unwrap();
    assert!(read(&path).unwrap_err().to_string().contains("not an importance matrix"));
}
