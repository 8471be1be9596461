//! The loaders' support of checkpoints, by the table of their rules.

use super::model::{Model, verdict};
use crate::common;
use kvant_checkpoint::plan::Plan;
use kvant_checkpoint::recipe::Settings;
use kvant_container::{Checkpoint, Dtype};
use kvant_formats::format::OutputFormat;
use kvant_formats::transcode::{Conversion, ConversionTarget};
use kvant_formats::verify::{Loads, Options, Report, loaders};
use serde_json::json;
use std::path::Path;

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

/// The loaders of the table that a plan lists.
fn planned(dir: &Path, settings: &Settings) -> Option<Vec<&'static str>> {
    let found = common::plan(dir, settings).ok()?.loaders();
    let ids = [("transformers", "transformers"), ("vLLM", "vllm"), ("SGLang", "sglang"), ("amd-quark", "amd-quark")];
    let is_listed = |start: &str| found.iter().any(|name| name.starts_with(start));
    Some(ids.into_iter().filter(|(start, _)| is_listed(start)).map(|(_, id)| id).collect())
}

/// A fixture of the model crate, with weights.
fn fixture(name: &str) -> Model {
    let headers = crate::support::Checkpoint::read(name);
    let tensors = headers.tensors.iter().map(|tensor| common::weight(&tensor.name, Dtype::BF16, &tensor.shape));
    Model { config: headers.config.clone(), tensors: tensors.collect() }
}

#[test]
fn every_family_has_the_same_loaders_in_plans_and_in_finished_checkpoints() {
    let cases = [
        ("int4:g16", OutputFormat::COMPRESSED_TENSORS, None),
        ("e4m3:channel+e4m3:channel!dynamic", OutputFormat::COMPRESSED_TENSORS, None),
        ("int4:g16", OutputFormat::COMPRESSED_TENSORS, Some("*experts*")),
        ("e4m3:channel+e4m3:channel!dynamic", OutputFormat::QUARK, None),
    ];
    let mut compared = 0;
    for name in crate::support::names() {
        let float = fixture(&name);
        for (scheme, format, exclude) in cases {
            // Nothing to exclude, or nothing left.
            if exclude.is_some() && !float.tensors.iter().any(|(name, ..)| name.contains("experts")) {
                continue;
            }
            let exclude = exclude.into_iter().map(str::to_owned).collect();
            let settings = Settings { format: Some(format), exclude, ..common::scheme(scheme) };
            let dir = tempfile::tempdir().unwrap();
            let (source, target) = (dir.path().join("source"), dir.path().join("target"));
            common::write(&source, &float.config, &float.tensors);
            let Some(planned) = planned(&source, &settings) else { continue };
            common::quantize(&source, &target, &settings, 1).unwrap();
            let report = Model::read(&target).verify();
            let errors: Vec<_> = report.errors().map(|error| error.check).collect();
            let listed: Vec<&str> = ["transformers", "vllm", "sglang", "amd-quark"]
                .into_iter()
                .filter(|id| loads(&report, id) == Loads::Yes)
                .collect();
            assert_eq!(planned, listed, "{name} {settings:?}: {errors:?} {:#?}", report.verdicts);
            compared += 1;
        }
    }
    assert!(compared > 200, "{compared}");
}

/// transformers merges the experts of architectures that are published so, and of no others.
#[test]
fn experts_that_were_split_load_where_they_are_published_one_by_one() {
    for (name, loads_split, loads_kept) in
        [("mistral4", false, true), ("qwen3_vl_moe", false, true), ("gpt_oss", false, true), ("qwen3_moe", true, false)]
    {
        let float = fixture(name);
        for (exclude, expected) in [(None, loads_split), (Some("*experts*"), loads_kept)] {
            let dir = tempfile::tempdir().unwrap();
            let (source, target) = (dir.path().join("source"), dir.path().join("target"));
            common::write(&source, &float.config, &float.tensors);
            let exclude: Vec<String> = exclude.into_iter().map(str::to_owned).collect();
            let format = Some(OutputFormat::COMPRESSED_TENSORS);
            let settings = Settings { format, exclude, ..common::scheme("int4:g16") };
            assert_eq!(planned(&source, &settings).unwrap().contains(&"transformers"), expected, "{name} {settings:?}");
            common::quantize(&source, &target, &settings, 1).unwrap();
            let report = Model::read(&target).verify();
            let verdict = verdict(&report, "transformers");
            assert_eq!(verdict.loads == Loads::Yes, expected, "{name} {settings:?}: {verdict:?}");
            if !settings.exclude.is_empty() {
                continue;
            }
            // The same holds of their values.
            let target_of_floats = ConversionTarget::Float(None);
            let conversion = Conversion { target: target_of_floats, requantize: false, max_shard_size: u64::MAX };
            let plan = Plan::convert(&Checkpoint::open(&target).unwrap(), &conversion).unwrap();
            let loads = plan.loaders().iter().any(|loader| loader.contains("transformers") || loader.contains("all"));
            assert_eq!((loads, plan.loader_refusals().is_empty()), (expected, !plan.loaders().is_empty()), "{name}");
        }
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
        ("diffusers", Loads::No),
        ("vllm", Loads::Yes),
        ("sglang", Loads::Yes),
        ("llama.cpp", Loads::No),
        ("onnxruntime", Loads::No),
        ("comfyui", Loads::No),
        ("mlx-lm", Loads::Yes),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

#[test]
fn requested_loader_and_values_decide() {
    let int3 = Model::quantized("int3:channel", OutputFormat::QUARK);
    assert!(int3.verify().passes());
    let report = asked(&int3, "vllm");
    assert!(!report.passes());
    let reason = &verdict(&report, "vllm").reasons[0];
    assert!(reason.reason.starts_with("int3 with a scale for each channel is not among what it runs"), "{reason:?}");
    // It loads, and computes NaN.
    let nan = Model::quantized("int4:g32", OutputFormat::COMPRESSED_TENSORS)
        .edit("up_proj.weight_scale", |bytes| bytes.fill(0xFF));
    assert!(!nan.verify().passes() && !asked(&nan, "vllm").passes());
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

/// A mixture of two experts, of the one block of the model.
fn mixture() -> Model {
    let block = "model.layers.0";
    let ones = |name: String, shape: &[usize]| {
        let values = (0..shape.iter().product::<usize>()).flat_map(|_| half::bf16::from_f32(1.0).to_le_bytes());
        (format!("{name}.weight"), Dtype::BF16, shape.to_vec(), values.collect())
    };
    let experts = (0..2).flat_map(|expert| {
        [("gate_proj", [32, 64]), ("up_proj", [32, 64]), ("down_proj", [64, 32])]
            .map(|(name, shape)| ones(format!("{block}.mlp.experts.{expert}.{name}"), &shape))
    });
    let others = [
        ones(format!("{block}.mlp.gate"), &[2, 64]),
        ones(format!("{block}.self_attn.q_norm"), &[32]),
        ones(format!("{block}.self_attn.k_norm"), &[32]),
    ];
    let mut model =
        Model::float().without("mlp.gate_proj.weight").without("mlp.up_proj.weight").without("mlp.down_proj.weight");
    model.tensors.extend(experts.chain(others));
    model.configured(|config| {
        config["model_type"] = json!("qwen3_moe");
        config["architectures"] = json!(["Qwen3MoeForCausalLM"]);
        for (key, value) in
            [("num_experts", 2), ("num_experts_per_tok", 1), ("moe_intermediate_size", 32), ("head_dim", 32)]
        {
            config[key] = json!(value);
        }
    })
}

#[test]
fn engines_refuse_blocks_whose_experts_have_several_schemes() {
    let float = mixture();
    for (overrides, engines) in [
        (&[][..], true),
        (&["*.mlp.experts.*=int8:g32"], true),
        (&["*.experts.1.*=int8:g32"], false),
        (&["*.experts.*.down_proj=int8:g32"], false),
        (&["*.experts.1.*=none"], false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        common::write(dir.path(), &float.config, &float.tensors);
        let parsed = overrides.iter().map(|text| text.parse().unwrap()).collect();
        let format = Some(OutputFormat::COMPRESSED_TENSORS);
        let settings = kvant_checkpoint::recipe::Settings { format, overrides: parsed, ..common::scheme("int4:g32") };
        let planned = common::plan(dir.path(), &settings).unwrap().loaders();
        let made = float.quantize_mixed("int4:g32", overrides, OutputFormat::COMPRESSED_TENSORS).verify();
        for (name, id) in [("vLLM", "vllm"), ("SGLang", "sglang")] {
            assert_eq!(planned.contains(&name), engines, "{overrides:?} {name}");
            assert_eq!(loads(&made, id) == Loads::Yes, engines, "{overrides:?} {name}: {:?}", made.verdicts);
        }
    }
}

#[test]
fn quantized_routers_are_not_known_to_load() {
    let float = mixture();
    let dir = tempfile::tempdir().unwrap();
    common::write(dir.path(), &float.config, &float.tensors);
    let fp8 = "e4m3:channel+e4m3:channel!dynamic";
    for (scheme, format) in [("int4:g32", OutputFormat::COMPRESSED_TENSORS), (fp8, OutputFormat::QUARK)] {
        let routers = format!("*.mlp.gate={scheme}");
        let overrides = vec![routers.parse().unwrap()];
        let settings = Settings { format: Some(format), overrides, ..common::scheme(scheme) };
        let plan = common::plan(dir.path(), &settings).unwrap();
        assert!(plan.loaders().is_empty(), "{format}: {:?}", plan.loaders());
        let refusals = plan.loader_refusals();
        assert!(!refusals.is_empty() && refusals.iter().any(|refusal| refusal.reason.contains("quantized routers")));
        let made = float.quantize_mixed(scheme, &[routers.as_str()], format).verify();
        assert_eq!(loads(&made, "transformers"), Loads::No, "{format}");
    }
}

#[test]
fn loaders_without_a_model_type_find_no_class() {
    let unnamed =
        |model: &Model| model.clone().configured(|config| drop(config.as_object_mut().unwrap().remove("model_type")));
    let float = unnamed(&Model::float());
    let dir = tempfile::tempdir().unwrap();
    common::write(dir.path(), &float.config, &float.tensors);
    let planned = common::plan(dir.path(), &common::scheme("int4:g32")).unwrap();
    assert_eq!((planned.family(), planned.loaders().as_slice()), (Some("llama"), &[][..]));
    let report = float.verify();
    for id in ["transformers", "vllm", "sglang"] {
        assert_eq!(loads(&report, id), Loads::No, "{id}");
        assert!(verdict(&report, id).reasons[0].reason.contains("model_type"), "{id}");
    }
}

#[test]
fn described_architectures_have_only_the_loaders_of_their_model_type() {
    let text = "name = \"loaders-novel\"\nmodel_types = [\"loaders_novel\"]\n";
    kvant_model::family::register(kvant_model::family::parse(text, "f.toml".as_ref()).unwrap()).unwrap();
    let novel = Model::float().configured(|config| config["model_type"] = json!("loaders_novel"));
    let dir = tempfile::tempdir().unwrap();
    common::write(dir.path(), &novel.config, &novel.tensors);
    let planned = common::plan(dir.path(), &common::scheme("int4:g32")).unwrap();
    assert_eq!((planned.family(), planned.loaders().as_slice()), (Some("loaders-novel"), &[][..]));
    let report = novel.quantize("int4:g32", OutputFormat::QUARK).verify();
    assert_eq!((report.family, loads(&report, "vllm")), (Some("loaders-novel"), Loads::Unknown));
}
