//! The loaders' support of checkpoints, by the table of their rules.

use super::model::{Model, verdict};
use kvant_formats::format::OutputFormat;
use kvant_formats::verify::{Loads, Options, Report, loaders};
use serde_json::json;

fn loads(report: &Report, loader: &str) -> Loads {
    verdict(report, loader).loads
}

fn asked(model: &Model, loader: &str) -> Report {
    let loader = loaders().iter().find(|known| known.id == loader).unwrap();
    model.verify_with(&Options { loader: Some(&loader.id), ..Options::default() })
}

#[test]
fn plans_and_finished_checkpoints_list_the_same_loaders() {
    for (scheme, export) in [
        ("int4:g32", OutputFormat::QUARK),
        ("int3:channel", OutputFormat::QUARK),
        ("int8:channel", OutputFormat::QUARK),
        ("e4m3:channel+e4m3:channel!dynamic", OutputFormat::QUARK),
        ("e2m1:g32:e8m0", OutputFormat::QUARK),
        ("e2m1:g16:e4m3:f32", OutputFormat::COMPRESSED_TENSORS),
        ("int4:g32:zp", OutputFormat::COMPRESSED_TENSORS),
        ("int3:g32", OutputFormat::COMPRESSED_TENSORS),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let float = Model::float();
        crate::common::write(dir.path(), &float.config, &float.tensors);
        let settings = kvant_checkpoint::recipe::Settings { format: Some(export), ..crate::common::scheme(scheme) };
        let planned = crate::common::plan(dir.path(), &settings).unwrap().loaders();
        let report = float.quantize(scheme, export).verify();
        let taken = |id: &str| loads(&report, id) == Loads::Yes;
        for (name, id) in [("vLLM", "vllm"), ("SGLang", "sglang"), ("amd-quark", "amd-quark")] {
            assert_eq!(planned.contains(&name), taken(id), "{scheme} {name}: {:?}", report.verdicts);
        }
        let transformers = planned.iter().any(|name| name.starts_with("transformers"));
        assert_eq!(transformers, taken("transformers"), "{scheme}");
    }
}

#[test]
fn plans_and_checks_agree_on_block_sizes() {
    // k_proj has 32 output channels, and all but down_proj 64 input channels.
    for (block, group, taken) in [(32, 32, [true, true]), (64, 64, [true, false]), (32, 48, [false, false])] {
        let scheme = format!("e4m3:b{block}x{block}+e4m3:g{group}!dynamic");
        let dir = tempfile::tempdir().unwrap();
        let float = Model::float();
        crate::common::write(dir.path(), &float.config, &float.tensors);
        let format = Some(OutputFormat::COMPRESSED_TENSORS);
        let settings = kvant_checkpoint::recipe::Settings { format, ..crate::common::scheme(&scheme) };
        let planned = crate::common::plan(dir.path(), &settings).unwrap().loaders();
        let report = float.quantize(&scheme, OutputFormat::COMPRESSED_TENSORS).verify();
        for (id, name, taken) in
            [("transformers", "transformers with compressed-tensors", taken[0]), ("vllm", "vLLM", taken[1])]
        {
            assert_eq!(planned.contains(&name), taken, "{scheme} {name}");
            assert_eq!(loads(&report, id) == Loads::Yes, taken, "{scheme} {name}: {:?}", report.verdicts);
        }
    }
}

#[test]
fn float_checkpoints_load_in_engines_only() {
    let report = Model::float().verify();
    let found = loaders().iter().map(|loader| (loader.id.as_str(), loads(&report, &loader.id)));
    let expected = [
        ("amd-quark", Loads::No),
        ("transformers", Loads::Yes),
        ("vllm", Loads::Yes),
        ("sglang", Loads::Yes),
        ("llama.cpp", Loads::No),
        ("onnxruntime", Loads::No),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

#[test]
fn requested_loader_alone_decides() {
    let int3 = Model::quantized("int3:channel", OutputFormat::QUARK);
    assert!(int3.verify().passes());
    let report = asked(&int3, "vllm");
    assert!(!report.passes());
    let reason = &verdict(&report, "vllm").reasons[0];
    assert!(reason.reason.starts_with("int3 with a scale for each channel is not among what it runs"), "{reason:?}");
    // Values do not keep a checkpoint from loading.
    let nan = Model::quantized("int4:g32", OutputFormat::COMPRESSED_TENSORS)
        .edit("up_proj.weight_scale", |bytes| bytes.fill(0xFF));
    assert!(!nan.verify().passes() && asked(&nan, "vllm").passes());
    let torn = Model::float().without("down_proj.weight");
    assert!(!asked(&torn, "vllm").passes());
}

#[test]
fn vllm_requires_named_heads_in_quark_format() {
    let unnamed = Model::quantized("int4:g32", OutputFormat::QUARK).restated(|config| config["exclude"] = json!([]));
    let report = asked(&unnamed, "vllm");
    assert!(!report.passes());
    assert_eq!(verdict(&report, "vllm").reasons[0].place, "lm_head");
    assert!(asked(&unnamed, "amd-quark").passes());
}

#[test]
fn undescribed_architectures_have_unknown_support() {
    let unknown = Model::float().configured(|config| {
        config["model_type"] = json!("gpt9");
        config["architectures"] = json!(["Gpt9ForCausalLM"]);
    });
    assert_eq!(loads(&unknown.verify(), "vllm"), Loads::Unknown);
}

#[test]
fn blocks_must_not_span_fused_layers() {
    let blocks = |size: usize| {
        Model::quantized(&format!("e4m3:b{size}x{size}+e4m3:g{size}!dynamic"), OutputFormat::COMPRESSED_TENSORS)
    };
    assert_eq!(loads(&blocks(32).verify(), "vllm"), Loads::Yes);
    // k_proj has 32 output channels.
    let report = blocks(64).verify();
    assert_eq!(loads(&report, "vllm"), Loads::No);
    assert!(verdict(&report, "vllm").reasons[0].reason.contains("32 output channels are not a multiple of 64"));
    assert_eq!(loads(&report, "transformers"), Loads::Yes);
}
