//! Round trips of metadata and tensors, and what is refused.

use super::parse::parse;
use super::*;
use crate::Diagnostic;
use crate::geometry::Geometry;
use crate::{Durability, ErrorKind, Writer};
use proptest::prelude::*;

/// One value of each type, with arrays of each.
fn metadata() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("u8", 200u8);
    metadata.set("i8", -7i8);
    metadata.set("u16", 65_000u16);
    metadata.set("i16", -3_000i16);
    metadata.set("u32", 4_000_000_000u32);
    metadata.set("i32", -1i32);
    metadata.set("f32", f32::MIN_POSITIVE);
    metadata.set("bool", true);
    metadata.set("string", "näme\n");
    metadata.set("u64", u64::MAX);
    metadata.set("i64", i64::MIN);
    metadata.set("f64", 0.1f64);
    metadata.set("bytes", Value::String(Text::from_bytes([0xff, 0x00, 0xfe])));
    let arrays = [
        Array::U8(vec![1, 2]),
        Array::I8(vec![-1]),
        Array::U16(vec![]),
        Array::I16(vec![3]),
        Array::U32(vec![4, 5, 6]),
        Array::I32(vec![-4]),
        Array::F32(vec![1.5, f32::INFINITY]),
        Array::Bool(vec![true, false]),
        Array::String(vec!["a".into(), "".into()]),
        Array::Array(vec![Array::U8(vec![]), Array::Array(vec![Array::F64(vec![2.5])])]),
        Array::U64(vec![7]),
        Array::I64(vec![-8]),
        Array::F64(vec![-0.0]),
    ];
    metadata.set("nested", Value::Array(Array::Array(arrays.to_vec())));
    for array in arrays {
        metadata.set(format!("array.{}", array.kind().id()), Value::Array(array));
    }
    metadata
}

fn declared(name: &str, kind: TensorType, shape: &[usize]) -> GgufDeclaration {
    GgufDeclaration { name: name.to_owned(), kind, shape: shape.to_vec() }
}

fn layout(declarations: Vec<GgufDeclaration>) -> Result<GgufLayout, GgufLayoutError> {
    GgufLayout::new("model.gguf", &metadata(), declarations)
}

/// The bytes of a file whose tensors are zeros.
fn file_of(declarations: Vec<GgufDeclaration>) -> Vec<u8> {
    let layout = layout(declarations).unwrap();
    let mut bytes = layout.files()[0].header.clone();
    bytes.resize(layout.disk_size() as usize, 0);
    bytes
}

fn small_file() -> Vec<u8> {
    file_of(vec![declared("a", TensorType::F32, &[3]), declared("b", TensorType::Q4_0, &[2, 64])])
}

#[test]
fn gguf_round_trip() {
    let dir = tempfile::tempdir().unwrap();
    let declarations = vec![
        declared("scalar", TensorType::F32, &[]),
        declared("matrix", TensorType::Q8_0, &[2, 32]),
        declared("experts", TensorType::BF16, &[2, 3, 4]),
        declared("empty", TensorType::F16, &[0, 8]),
    ];
    let layout = layout(declarations).unwrap();
    assert!(layout.places().iter().all(|place| place.offset % 32 == 0));
    let writer = Writer::create(dir.path(), layout.clone()).unwrap();
    for (tensor, place) in layout.places().iter().enumerate() {
        let bytes: Vec<u8> = (0..place.len).map(|i| (i as usize * 7 + tensor) as u8).collect();
        let (first, second) = bytes.split_at(bytes.len() / 2);
        writer.write_at(tensor, first.len() as u64, second).unwrap();
        writer.write_at(tensor, 0, first).unwrap();
    }
    writer.finish(Durability::Process).unwrap();

    let file = GgufFile::open(&dir.path().join("model.gguf")).unwrap();
    assert_eq!((file.version(), file.alignment(), file.len(), file.is_empty()), (3, 32, 4, false));
    assert_eq!(file.metadata(), &metadata());
    assert_eq!(file.maps()[0].len() as u64, layout.disk_size());
    for (tensor, view) in file.tensors().enumerate() {
        let declaration = &layout.declarations()[tensor];
        assert_eq!(
            (view.name(), view.kind(), view.shape()),
            (&*declaration.name, declaration.kind, &*declaration.shape)
        );
        assert_eq!(view.byte_len(), layout.places()[tensor].len);
        assert!(view.bytes().iter().enumerate().all(|(i, byte)| *byte == (i * 7 + tensor) as u8));
        view.release_part(0..usize::MAX);
    }
    assert!(file.tensor("experts").is_some() && file.tensor("nothing").is_none());
}

#[test]
fn geometry_matches_the_layout() {
    let layout = layout(vec![declared("a", TensorType::F32, &[3])]).unwrap();
    let geometry = Geometry::from(layout.clone());
    assert_eq!((geometry.disk_size(), &geometry.places[..]), (layout.disk_size(), layout.places()));
    assert_eq!(geometry.files[0].header, layout.files()[0].header);
}

#[test]
fn tensor_types_have_ids_and_names() {
    for kind in TensorType::ALL {
        assert_eq!(TensorType::from_id(kind.id()), Some(*kind));
        assert_eq!(kind.to_string().len(), kind.name().len());
    }
    for kind in ValueType::ALL {
        assert_eq!(ValueType::from_id(kind.id()), Some(kind));
    }
    assert_eq!((TensorType::from_id(4), TensorType::from_id(42), ValueType::from_id(13)), (None, None, None));
    assert_eq!(TensorType::Q6_K.byte_len(&[3, 512]), Some(3 * 2 * 210));
    assert_eq!(TensorType::Q6_K.byte_len(&[3, 128]), None);
    assert_eq!(TensorType::F32.byte_len(&[usize::MAX, 2]), None);
}

#[test]
fn invalid_gguf_declarations_are_refused() {
    let twice = vec![declared("a", TensorType::F32, &[1]), declared("a", TensorType::F32, &[1])];
    assert!(matches!(layout(twice), Err(GgufLayoutError::DuplicateName { .. })));
    let long = vec![declared(&"x".repeat(64), TensorType::F32, &[1])];
    assert!(matches!(layout(long), Err(GgufLayoutError::LongName { .. })));
    for (kind, shape) in
        [(TensorType::Q4_K, &[1, 255][..]), (TensorType::F32, &[1, 1, 1, 1, 1]), (TensorType::F32, &[usize::MAX; 2])]
    {
        assert!(matches!(layout(vec![declared("a", kind, shape)]), Err(GgufLayoutError::Shape { .. })), "{shape:?}");
    }
    let huge = vec![declared("a", TensorType::F32, &[1 << 61]), declared("b", TensorType::F32, &[1 << 61])];
    assert_eq!(layout(huge), Err(GgufLayoutError::TotalOverflow));
    let mut metadata = Metadata::new();
    metadata.set("general.alignment", 64u32);
    assert_eq!(GgufLayout::new("x", &metadata, vec![]), Err(GgufLayoutError::Alignment));
}

#[test]
fn every_truncated_gguf_file_is_refused() {
    let whole = small_file();
    assert!(parse(&whole).is_ok());
    // The last block is padded to 32 bytes.
    let needed = whole.len() - (32 - 2 * 2 * 18 % 32);
    for len in 0..needed {
        assert!(parse(&whole[..len]).is_err(), "{len} of {}", whole.len());
    }
}

/// A file with one entry of metadata and one tensor, given as bytes.
fn made(entry: &[u8], tensor: &[u8]) -> Vec<u8> {
    let (tensors, entries) = (u64::from(!tensor.is_empty()), u64::from(!entry.is_empty()));
    let head =
        [b"GGUF", &3u32.to_le_bytes()[..], &tensors.to_le_bytes(), &entries.to_le_bytes(), entry, tensor].concat();
    [head, vec![0; 4096]].concat()
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

fn tensor(dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let dims_bytes: Vec<u8> = dims.iter().flat_map(|dim| dim.to_le_bytes()).collect();
    [&string("t")[..], &(dims.len() as u32).to_le_bytes(), &dims_bytes, &kind.to_le_bytes(), &offset.to_le_bytes()]
        .concat()
}

fn refusal(bytes: &[u8]) -> GgufError {
    parse(bytes).unwrap_err()
}

#[test]
fn hostile_gguf_headers_are_refused() {
    assert_eq!(refusal(b""), GgufError::NotGguf);
    assert_eq!(refusal(b"GGML1234"), GgufError::NotGguf);
    let with_version = |version: u32| [b"GGUF", &version.to_le_bytes()[..], &[0; 64]].concat();
    assert_eq!(refusal(&with_version(1)), GgufError::Version(1));
    assert_eq!(refusal(&with_version(4)), GgufError::Version(4));
    assert_eq!(refusal(&with_version(3u32.swap_bytes())), GgufError::BigEndian);
    assert_eq!(refusal(&with_version(1)).kind(), ErrorKind::Unsupported);
    assert!(parse(&with_version(2)).is_ok());
    let counts = |tensors: u64, entries: u64| {
        [b"GGUF", &3u32.to_le_bytes()[..], &tensors.to_le_bytes(), &entries.to_le_bytes(), &[0; 64]].concat()
    };
    assert!(matches!(refusal(&counts(u64::MAX, 0)), GgufError::Impossible { .. }));
    assert!(matches!(refusal(&counts(0, u64::MAX / 2)), GgufError::Impossible { .. }));
}

#[test]
fn hostile_gguf_metadata_is_refused() {
    let entry = |kind: u32, value: &[u8]| made(&[&string("key")[..], &kind.to_le_bytes(), value].concat(), &[]);
    assert!(matches!(refusal(&entry(13, &[])), GgufError::Impossible { .. }));
    assert!(matches!(refusal(&entry(7, &[2])), GgufError::Impossible { .. }));
    assert!(matches!(refusal(&entry(8, &u64::MAX.to_le_bytes())), GgufError::Truncated { .. }));
    let array = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
    assert!(matches!(refusal(&entry(9, &array(10, 1 << 62))), GgufError::Impossible { .. }));
    assert!(matches!(refusal(&entry(9, &array(9, 100).repeat(40))), GgufError::Impossible { .. }));
    let nested: Vec<u8> = array(9, 1).repeat(20);
    assert!(matches!(refusal(&entry(9, &nested)), GgufError::Impossible { what, .. } if what.contains("nesting")));
    let key = [&1u64.to_le_bytes()[..], &[0xff], &0u32.to_le_bytes(), &[1]].concat();
    assert!(matches!(refusal(&made(&key, &[])), GgufError::NotText { .. }));
    let mut twice = made(&[&string("key")[..], &0u32.to_le_bytes(), &[1]].concat().repeat(2), &[]);
    twice[16] = 2;
    assert_eq!(refusal(&twice), GgufError::DuplicateKey("key".into()));
    for alignment in [0u32, 3, 1 << 31] {
        let key = [&string("general.alignment")[..], &4u32.to_le_bytes(), &alignment.to_le_bytes()].concat();
        assert!(matches!(refusal(&made(&key, &[])), GgufError::Impossible { .. }), "{alignment}");
    }
}

#[test]
fn hostile_gguf_tensors_are_refused() {
    assert!(parse(&made(&[], &tensor(&[32, 2], 8, 0))).is_ok());
    for (bytes, word) in [
        (tensor(&[1, 1, 1, 1, 1], 0, 0), "dimensions"),
        (tensor(&[33], 8, 0), "block size"),
        (tensor(&[1 << 40, 1 << 40], 0, 0), "block size"),
        (tensor(&[8], 0, 16), "not a multiple"),
        (tensor(&[8], 0, 1 << 63), "not in the file"),
        (tensor(&[8], 0, u64::MAX - 31), "not in the file"),
        (tensor(&[1 << 20], 0, 0), "not in the file"),
    ] {
        let error = refusal(&made(&[], &bytes));
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
    assert_eq!(refusal(&made(&[], &tensor(&[8], 5, 0))), GgufError::TensorType { tensor: "t".into(), id: 5 });
    let two = |first: &str, second: &str| {
        let (mut a, mut b) = (tensor(&[8], 0, 0), tensor(&[8], 0, 0));
        (a[8], b[8]) = (first.as_bytes()[0], second.as_bytes()[0]);
        let mut bytes = made(&[], &[a, b].concat());
        bytes[8] = 2;
        bytes
    };
    assert_eq!(refusal(&two("a", "a")), GgufError::DuplicateTensor("a".into()));
    assert!(refusal(&two("a", "b")).to_string().contains("overlaps"));
}

proptest! {
    #[test]
    fn damaged_gguf_never_panics(position in 0usize..2000, byte: u8, len in 0usize..4096) {
        let mut bytes = small_file();
        let position = position % bytes.len();
        bytes[position] = byte;
        bytes.truncate(len.max(1));
        if let Ok(header) = parse(&bytes) {
            prop_assert!(header.tensors.iter().all(|tensor| tensor.range.end <= bytes.len()));
        }
    }
}

/// A model in two files, with the parts' metadata and a tensor in each.
fn parts(dir: &std::path::Path, names: [&str; 2]) -> [std::path::PathBuf; 2] {
    let part = |number: u16, tensor: &str| {
        let mut metadata = Metadata::new();
        if number == 0 {
            metadata.set("general.architecture", "llama");
        }
        metadata.set("split.no", number);
        metadata.set("split.count", 2u16);
        metadata.set("split.tensors.count", 2i32);
        let layout = GgufLayout::new("m.gguf", &metadata, vec![declared(tensor, TensorType::F32, &[2])]).unwrap();
        let mut bytes = layout.files()[0].header.clone();
        bytes.resize(layout.disk_size() as usize, 0);
        let start = layout.places()[0].offset as usize;
        bytes[start..start + 8].fill(number as u8 + 1);
        bytes
    };
    let paths = names.map(|name| dir.join(name));
    std::fs::write(&paths[0], part(0, "a")).unwrap();
    std::fs::write(&paths[1], part(1, "b")).unwrap();
    paths
}

const PARTS: [&str; 2] = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];

#[test]
fn parts_of_a_model_are_opened_together() {
    let dir = tempfile::tempdir().unwrap();
    for path in parts(dir.path(), PARTS) {
        let file = GgufFile::open(&path).unwrap();
        assert_eq!((file.len(), file.maps().len(), file.path()), (2, 2, path.as_path()));
        assert_eq!(file.tensor("a").unwrap().bytes(), [1; 8]);
        assert_eq!(file.tensor("b").unwrap().bytes(), [2; 8]);
        let keys: Vec<&str> = file.metadata().entries().iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["general.architecture"], "what it says of parts is not the model's");
    }
}

#[test]
fn wrong_parts_are_refused_by_name() {
    let problem = |path: &std::path::Path| match GgufFile::open(path) {
        Err(crate::Error::Gguf { problem, .. }) => problem,
        other => panic!("{other:?}"),
    };
    let dir = tempfile::tempdir().unwrap();
    let named = parts(dir.path(), ["m.gguf", "n.gguf"]);
    assert_eq!(problem(&named[1]), GgufError::PartName { number: 2, count: 2 });
    let [first, second] = parts(dir.path(), PARTS);
    std::fs::copy(&first, &second).unwrap();
    assert_eq!(problem(&first), GgufError::OtherPart { stated: "part 1 of 2".into() });
    std::fs::remove_file(&second).unwrap();
    assert_eq!(GgufFile::open(&first).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn models_in_parts_round_trip() {
    let dir = tempfile::tempdir().unwrap();
    let declarations: Vec<GgufDeclaration> = [3, 8, 1, 40, 2]
        .iter()
        .zip('a'..)
        .map(|(len, name)| declared(&name.to_string(), TensorType::F32, &[*len]))
        .collect();
    let layout = GgufLayout::in_parts("m", &metadata(), declarations.clone(), 48).unwrap();
    let names: Vec<&str> = layout.files().iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"]);
    let shards: Vec<usize> = layout.places().iter().map(|place| place.shard).collect();
    assert_eq!(shards, [0, 0, 0, 1, 2], "a tensor larger than the limit gets a separate file");
    let writer = Writer::create(dir.path(), layout.clone()).unwrap();
    for (tensor, place) in layout.places().iter().enumerate() {
        writer.write_at(tensor, 0, &vec![tensor as u8 + 1; place.len as usize]).unwrap();
    }
    writer.finish(Durability::Process).unwrap();
    let file = GgufFile::open(&dir.path().join(names[2])).unwrap();
    assert_eq!((file.len(), file.maps().len(), file.metadata()), (5, 3, &metadata()));
    for (tensor, view) in file.tensors().enumerate() {
        assert!(view.name() == declarations[tensor].name && view.bytes().iter().all(|byte| *byte == tensor as u8 + 1));
    }
    let whole = GgufLayout::in_parts("m", &metadata(), declarations.clone(), 1000).unwrap();
    assert_eq!(whole, GgufLayout::new("m.gguf", &metadata(), declarations).unwrap());
    let many = (0..=u16::MAX as usize + 1).map(|number| declared(&number.to_string(), TensorType::F32, &[1])).collect();
    let refused = GgufLayout::in_parts("m", &metadata(), many, 1).unwrap_err();
    assert_eq!(refused, GgufLayoutError::TooManyParts { parts: 65537, tensors: 65537 });
}
