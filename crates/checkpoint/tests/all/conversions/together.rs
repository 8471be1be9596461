//! Sources whose layers differ, in layouts that have one group size or one scheme for all of them, and the advice of refusals.

use super::sources::convert;
use crate::common::{llama, llama_config, quantize, scheme, weight, write};
use kvant_checkpoint::plan::{Plan, PlanError};
use kvant_checkpoint::recipe::Settings;
use kvant_container::{Diagnostic, Dtype};
use kvant_formats::format::{FormatHandle, OutputFormat};
use kvant_formats::transcode::ConversionTarget;
use kvant_formats::verify::{Options, verify};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const AWQ: ConversionTarget = ConversionTarget::Codes(FormatHandle::AWQ);

/// A Llama in Quark's layout, with another scheme for some layers.
fn source(dir: &Path, of_most: &str, of_some: &str) -> PathBuf {
    let (model, source) = (dir.join("model"), dir.join("source"));
    write(&model, &llama_config(), &llama(Dtype::BF16));
    let overrides = vec![of_some.parse().unwrap()];
    quantize(&model, &source, &Settings { format: Some(OutputFormat::QUARK), overrides, ..scheme(of_most) }, 1)
        .unwrap();
    source
}

fn weights(plan: &Plan) -> BTreeSet<String> {
    plan.layers().iter().map(|layer| layer.scheme.weight.to_string()).collect()
}

#[test]
fn layers_of_one_group_size_are_made_where_loss_is_accepted() {
    for (of_most, of_some, expected) in [
        ("int4:g32", "*down_proj=int4:g16", "int4:g32:f16"),
        ("int4:g16", "*down_proj=int4:g32", "int4:g16:f16"),
        ("uint4:g32:zp", "*down_proj=int4:channel", "uint4:g32:f16:zp"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let source = source(dir.path(), of_most, of_some);
        let out = dir.path().join("out");
        let refused = convert(&source, &out, AWQ, false, 1).unwrap_err();
        assert!(matches!(refused, PlanError::Conversion { .. }), "{refused:?}");
        assert!(refused.to_string().contains("AWQ has one group size"), "{refused}");
        assert!(refused.hint().unwrap().contains("‹requantize›"), "{refused}");
        let plan = convert(&source, &out, AWQ, true, 1).unwrap();
        let of_kept = plan.layers().iter().filter(|layer| layer.is_recoded());
        assert!(of_kept.clone().count() >= 6, "{of_most} {of_some}");
        assert!(of_kept.clone().all(|layer| layer.scheme.weight.to_string() == expected), "{:?}", weights(&plan));
        assert!(verify(&out, &Options::default()).unwrap().passes());
    }
}

/// Of a layer with as many inputs as a group it is not known whether it was quantized in groups: it fits the others either way.
#[test]
fn layers_of_a_single_group_take_the_group_size_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path(), "int4:channel", "*down_proj=int8:channel");
    let plan = convert(&source, &dir.path().join("out"), AWQ, true, 1).unwrap();
    assert_eq!(plan.layers().iter().filter(|layer| layer.is_recoded()).count(), 6);
    assert!(verify(&dir.path().join("out"), &Options::default()).unwrap().passes());
}

#[test]
fn advice_to_requantize_is_given_only_where_it_helps() {
    let dir = tempfile::tempdir().unwrap();
    let (model, source, out) = (dir.path().join("model"), dir.path().join("source"), dir.path().join("out"));
    // The first layer could be requantized; AWQ packs 8 output channels to a word, and some have 60.
    let narrow = |(name, dtype, shape, bytes): crate::common::Tensor| match name.contains("gate_proj")
        || name.contains("up_proj")
    {
        true => weight(&name, dtype, &[60, shape[1]]),
        false if name.contains("down_proj") => weight(&name, dtype, &[shape[0], 60]),
        false => (name, dtype, shape, bytes),
    };
    let mut config = llama_config();
    config["intermediate_size"] = 60.into();
    write(&model, &config, &llama(Dtype::BF16).into_iter().map(narrow).collect::<Vec<_>>());
    quantize(
        &model,
        &source,
        &Settings { format: Some(OutputFormat::COMPRESSED_TENSORS), ..scheme("int8:channel") },
        1,
    )
    .unwrap();
    for requantize in [false, true] {
        let refused = convert(&source, &out, AWQ, requantize, 1).unwrap_err();
        assert!(!refused.hint().unwrap().contains("‹requantize›"), "{refused}: {:?}", refused.hint());
    }
    // Activations that the target does not quantize are left out with it.
    let (with_inputs, whole) = (dir.path().join("with_inputs"), dir.path().join("whole"));
    write(&whole, &llama_config(), &llama(Dtype::BF16));
    quantize(&whole, &with_inputs, &Settings { format: Some(OutputFormat::COMPRESSED_TENSORS), ..scheme("W8A8") }, 1)
        .unwrap();
    let refused = convert(&with_inputs, &out, AWQ, false, 1).unwrap_err();
    assert!(refused.to_string().contains("only weights"), "{refused}");
    assert!(refused.hint().unwrap().contains("‹requantize›"), "{refused}");
    convert(&with_inputs, &out, AWQ, true, 1).unwrap();
}
