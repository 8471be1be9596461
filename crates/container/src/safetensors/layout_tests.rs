//! Sharding, alignment, header bytes and the index.

use proptest::prelude::*;

use super::*;
use crate::dtype::SizeError;
use crate::safetensors::Header;

fn declare(name: &str, dtype: Dtype, shape: &[usize]) -> TensorDeclaration {
    TensorDeclaration::new(name, dtype, shape)
}

fn layout(declarations: Vec<TensorDeclaration>, max_shard_size: u64) -> Layout {
    Layout::new(declarations, max_shard_size, BTreeMap::new()).unwrap()
}

fn bytes_named(sizes: &[usize]) -> Vec<TensorDeclaration> {
    sizes.iter().enumerate().map(|(i, &size)| declare(&format!("t{i}"), Dtype::U8, &[size])).collect()
}

fn names(layout: &Layout) -> Vec<&str> {
    layout.shards().iter().map(Shard::file_name).collect()
}

#[test]
fn header_is_written_as_the_format_specifies() {
    let declarations = vec![declare("a\"", Dtype::U8, &[3]), declare("b", Dtype::F32, &[])];
    let layout = Layout::new(declarations, 100, [("format".into(), "pt".into())].into()).unwrap();
    let json = concat!(
        r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"#,
        r#""a\"":{"dtype":"U8","shape":[3],"data_offsets":[4,7]}}"#
    );
    let header = layout.shards()[0].header();
    assert_eq!(header.len() % 8, 0);
    assert_eq!(header[..8], (header.len() as u64 - 8).to_le_bytes());
    assert_eq!(std::str::from_utf8(&header[8..]).unwrap().trim_end_matches(' '), json);
    assert_eq!(layout.shards()[0].tensors(), [1, 0]);
}

#[test]
fn single_shard_has_plain_name_and_no_index() {
    for declarations in [vec![], bytes_named(&[3, 4])] {
        let layout = layout(declarations, 7);
        assert_eq!(names(&layout), ["model.safetensors"]);
        assert_eq!(layout.index(), None);
    }
}

#[test]
fn files_of_diffusers_have_its_names() {
    let named = |max| layout(bytes_named(&[6, 4]), max).with_files(WeightFiles::Diffusion);
    assert_eq!(names(&named(100)), ["diffusion_pytorch_model.safetensors"]);
    let two = named(6);
    assert_eq!(names(&two)[1], "diffusion_pytorch_model-00002-of-00002.safetensors");
    assert!(two.index().unwrap().contains("diffusion_pytorch_model-00001-of-00002.safetensors"));
    let (index, _) = crate::geometry::Geometry::from(two).index.unwrap();
    assert_eq!(index, "diffusion_pytorch_model.safetensors.index.json");
}

#[test]
fn shards_are_filled_in_order_up_to_the_limit() {
    let layout = layout(bytes_named(&[6, 4, 1, 30, 0, 5, 5, 0]), 10);
    assert_eq!(
        names(&layout),
        [
            "model-00001-of-00004.safetensors",
            "model-00002-of-00004.safetensors",
            "model-00003-of-00004.safetensors",
            "model-00004-of-00004.safetensors"
        ]
    );
    let groups: Vec<&[usize]> = layout.shards().iter().map(Shard::tensors).collect();
    assert_eq!(groups, [&[0, 1][..], &[2], &[3, 4], &[5, 6, 7]]);
    assert_eq!(layout.total_size(), 51);
}

#[test]
fn index_is_sorted_by_name() {
    let declarations = vec![declare("z", Dtype::U8, &[2]), declare("a", Dtype::U8, &[2])];
    let index = layout(declarations, 2).index().unwrap();
    let expected = r#"{
  "metadata": {
    "total_size": 4
  },
  "weight_map": {
    "a": "model-00002-of-00002.safetensors",
    "z": "model-00001-of-00002.safetensors"
  }
}
"#;
    assert_eq!(index, expected);
}

#[test]
fn invalid_declarations_are_refused() {
    let refused = |declarations| Layout::new(declarations, 10, BTreeMap::new()).unwrap_err();
    let twice = vec![declare("a", Dtype::U8, &[1]), declare("a", Dtype::U8, &[2])];
    assert_eq!(refused(twice), LayoutError::DuplicateName { tensor: "a".into() });
    assert_eq!(refused(vec![declare("__metadata__", Dtype::U8, &[1])]), LayoutError::ReservedName);
    let odd = refused(vec![declare("a", Dtype::F4, &[3])]);
    assert!(matches!(odd, LayoutError::Size { problem: SizeError::PartialByte, .. }));
    let huge = vec![declare("a", Dtype::U8, &[1 << 60]); 1];
    let many = (0..16).map(|i| TensorDeclaration { name: i.to_string(), ..huge[0].clone() }).collect();
    assert_eq!(refused(many), LayoutError::TotalOverflow);
}

#[test]
fn header_over_the_limit_is_refused_with_a_hint() {
    let name = "x".repeat(MAX_HEADER_LEN as usize);
    let error = Layout::new(vec![declare(&name, Dtype::U8, &[1])], 10, BTreeMap::new()).unwrap_err();
    assert!(matches!(error, LayoutError::HeaderTooLong { .. }));
    assert!(error.hint().is_some());
}

fn any_dtype() -> impl Strategy<Value = Dtype> {
    prop::sample::select(vec![Dtype::F4, Dtype::U8, Dtype::F8_E4M3, Dtype::BF16, Dtype::F32, Dtype::I64])
}

proptest! {
    #[test]
    fn layouts_parse_back_aligned_complete_and_within_limits(
        tensors in proptest::collection::vec((any_dtype(), proptest::collection::vec(0..5usize, 0..3)), 0..40),
        max_shard_size in 0..200u64,
    ) {
        // An even innermost dimension keeps packed elements in whole bytes.
        let declarations: Vec<TensorDeclaration> = tensors.into_iter().enumerate()
            .map(|(i, (dtype, shape))| declare(&format!("t{i}"), dtype, &[&shape[..], &[2]].concat()))
            .collect();
        let layout = layout(declarations.clone(), max_shard_size);
        prop_assert_eq!(&layout, &Layout::new(declarations, max_shard_size, BTreeMap::new()).unwrap());
        let mut seen = 0;
        for (s, shard) in layout.shards().iter().enumerate() {
            let header = Header::parse(shard.header(), shard.file_len()).unwrap();
            let data_len = shard.file_len() - header.data_start();
            let filled = shard.tensors().iter().filter(|&&i| layout.places()[i].len > 0).count();
            prop_assert!(data_len <= max_shard_size || filled == 1);
            let mut end = header.data_start();
            for &i in shard.tensors() {
                let place = layout.places()[i];
                let declaration = &layout.declarations()[i];
                let entry = header.tensors().iter().find(|t| t.name() == declaration.name).unwrap();
                prop_assert_eq!((entry.dtype(), entry.shape()), (declaration.dtype, &declaration.shape[..]));
                prop_assert_eq!(entry.range(), place.offset..place.offset + place.len);
                prop_assert_eq!((place.shard, place.offset), (s, end), "gap, overlap or wrong shard");
                prop_assert_eq!(place.offset % (declaration.dtype.bitsize() as u64 / 8).max(1), 0);
                end += place.len;
                seen += 1;
            }
            prop_assert_eq!(end, shard.file_len());
        }
        prop_assert_eq!(seen, layout.declarations().len());
    }
}
