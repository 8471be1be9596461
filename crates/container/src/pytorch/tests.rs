//! Files of PyTorch: what `fixtures/make.py` writes, and damaged ones.

use super::*;
use crate::Diagnostic;
use crate::dtype::Dtype;

const ARCHIVE: &[u8] = include_bytes!("fixtures/archive.bin");
const STACKED: &[u8] = include_bytes!("fixtures/stacked.bin");

/// Names, types, shapes and bytes, sorted by name.
fn read(file: &[u8]) -> Vec<(String, Dtype, Vec<usize>, Vec<u8>)> {
    let entries = entries(file).unwrap();
    let mut tensors: Vec<_> = entries
        .iter()
        .map(|entry| {
            let range = entry.range().start as usize..entry.range().end as usize;
            (entry.name().to_owned(), entry.dtype(), entry.shape().to_vec(), file[range].to_vec())
        })
        .collect();
    tensors.sort();
    tensors
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn tensors_of_both_containers_are_found() {
    let tied = floats(&[1.0, -2.0, 0.5]);
    let ids = [7_i64, -9].iter().flat_map(|value| value.to_le_bytes()).collect();
    let expected = [
        ("embedding.weight", Dtype::F32, vec![1, 3], tied.clone()),
        ("empty", Dtype::F32, vec![0, 4], vec![]),
        ("head.weight", Dtype::F32, vec![1, 3], tied),
        ("ids", Dtype::I64, vec![2, 1], ids),
        ("parameter", Dtype::F16, vec![1], vec![0, 0x34]),
        ("scale", Dtype::BF16, vec![], vec![0xc0, 0x3f]),
        ("weight", Dtype::F32, vec![2, 2], floats(&[2.0, 3.0, 4.0, 5.0])),
    ];
    let expected = expected.map(|(name, dtype, shape, bytes)| (name.to_owned(), dtype, shape, bytes));
    assert_eq!(read(ARCHIVE), expected);
    assert_eq!(read(STACKED), expected);
    assert_eq!(read(include_bytes!("fixtures/wrapped.bin")), expected);
}

#[test]
fn types_without_storages_of_their_own_are_read() {
    let tensors = read(include_bytes!("fixtures/types.bin"));
    let types: Vec<_> = tensors.iter().map(|(name, dtype, ..)| (name.as_str(), *dtype)).collect();
    assert_eq!(types, [("codes", Dtype::F8_E4M3), ("wide", Dtype::U16)]);
}

#[test]
fn what_is_not_a_tensor_is_refused_by_name() {
    let problem = |file: &[u8]| entries(file).unwrap_err();
    let strided = problem(include_bytes!("fixtures/strided.bin"));
    assert_eq!(strided, PytorchError::Strided { name: "turned".into(), shape: vec![2, 4] });
    let step = problem(include_bytes!("fixtures/not_a_tensor.bin"));
    assert_eq!(step, PytorchError::NotATensor { name: "steps".into() });
    let path = problem(include_bytes!("fixtures/name.bin"));
    assert!(matches!(&path, PytorchError::Name { name } if name.starts_with("pathlib")), "{path}");
    let module = problem(include_bytes!("fixtures/module.bin"));
    assert!(matches!(&module, PytorchError::Name { name } if name == "torch.nn.modules.linear.Linear"), "{module}");
    assert_eq!(problem(include_bytes!("fixtures/tensor.bin")), PytorchError::NotADictionary);
    assert_eq!(problem(b"version https://git-lfs.github.com/spec/v1\n"), PytorchError::LfsPointer);
    assert_eq!(problem(b""), PytorchError::Unknown);
}

#[test]
fn names_of_python_are_never_looked_up() {
    // `os.system("true")` as a pickle, bare and in the first place of stacked ones.
    let program = b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.";
    assert_eq!(entries(program).unwrap_err(), PytorchError::Name { name: "os.system".into() });
    assert_eq!(entries(b"\x80\x02K\x01.").unwrap_err(), PytorchError::BarePickle);
    // An object that is made without a function, and one by its state.
    assert!(matches!(entries(b"\x80\x02}}\x81."), Err(PytorchError::Instruction { instruction: 0x81, .. })));
    assert!(matches!(entries(b"\x80\x02K\x01}b."), Err(PytorchError::Pickle { .. })));
}

#[test]
fn truncated_and_altered_files_are_errors() {
    for file in [ARCHIVE, STACKED] {
        for len in 0..file.len() {
            assert!(entries(&file[..len]).is_err(), "{len}");
        }
    }
    // Each byte of the pickles with each of its bits turned: an error, or other tensors inside the file.
    for file in [ARCHIVE, STACKED] {
        for at in 0..file.len().min(1500) {
            for bit in 0..8 {
                let mut altered = file.to_vec();
                altered[at] ^= 1 << bit;
                let len = file.len() as u64;
                let found = entries(&altered);
                assert!(found.is_err() || found.is_ok_and(|entries| entries.iter().all(|e| e.range().end <= len)));
            }
        }
    }
}

#[test]
fn nested_values_end_at_a_depth() {
    let mut deep = b"\x80\x02)".to_vec();
    deep.extend([0x85; 100_000]);
    deep.push(b'.');
    assert!(matches!(entries(&deep), Err(PytorchError::Pickle { .. })));
    // Lists that are put into lists after they were made.
    let mut deep = b"\x80\x02".to_vec();
    deep.extend([b']'; 1000]);
    deep.extend([b'a'; 999]);
    deep.push(b'.');
    assert!(entries(&deep).is_err());
}

#[test]
fn hints_say_what_to_do() {
    let hint = |problem: PytorchError| problem.hint().unwrap_or_default();
    assert!(hint(PytorchError::Name { name: "os.system".into() }).contains("safetensors"));
    assert!(hint(PytorchError::Strided { name: "a".into(), shape: vec![] }).contains("contiguous"));
}
