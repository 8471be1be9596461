//! Runs block by block: what they observe outside of the blocks, and codes that they leave alone.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use crate::common::{encoded, llama, llama_config, quantize, scheme, weight, write};
use kvant_checkpoint::blockwise::{self, BlockResults, Propagate, Sources};
use kvant_checkpoint::calibration::{Statistics, observe, resolve};
use kvant_checkpoint::engine::{self, Output, Silent, Start};
use kvant_checkpoint::plan::Plan;
use kvant_checkpoint::recipe::{Recipe, Settings};
use kvant_container::{Checkpoint, Dtype, Durability};
use kvant_forward::forward::Decoder;
use kvant_forward::forward::cpu::Cpu;
use kvant_weights::activation_point::ActivationPoint;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

const MEMORY: u64 = 1 << 30;

pub fn sequences() -> Vec<Vec<u32>> {
    (0..4).map(|sequence| (0..16).map(|at| (at * at * 7 + sequence * 5) % 31).collect()).collect()
}

pub fn planned(checkpoint: &Checkpoint, settings: &Settings) -> Plan {
    let recipe = Recipe::resolve(settings, &Settings::default()).unwrap().with_calibration(true);
    Plan::new(checkpoint, recipe).unwrap_or_else(|error| panic!("{error}"))
}

pub fn with_algorithms(settings: Settings, algorithms: &str) -> Settings {
    settings.with_algorithms(&[algorithms.to_owned()]).unwrap()
}

/// Quantizes the blocks of a plan into a started output.
fn run_blocks(plan: &Plan, checkpoint: &Checkpoint, output: &Output, target: &Path) -> BlockResults {
    let decoder = Decoder::open(checkpoint).unwrap();
    let (cpu, sequences) = (Cpu::default(), sequences());
    let sources =
        Sources { plan, checkpoint, decoder: &decoder, ops: &cpu, sequences: &sequences, held_out: &[], output };
    let settings =
        blockwise::Settings { target, key: "key", memory: MEMORY, propagate: Propagate::default(), shown: &[] };
    blockwise::run(&sources, settings, &AtomicBool::new(false), &|_| {}, &|_| {}).unwrap_or_else(|e| panic!("{e}"))
}

/// A checkpoint quantized with algorithms, and the statistics of its activations.
pub fn quantized_by_blocks(source: &Path, target: &Path, settings: &Settings) -> Statistics {
    let checkpoint = Checkpoint::open(source).unwrap();
    let plan = planned(&checkpoint, settings).on_data("data");
    let Start::Working(output) = Output::begin(&plan, source, target, false).unwrap() else { panic!("finished") };
    let statistics = run_blocks(&plan, &checkpoint, &output, target).statistics;
    let parameters = resolve(&plan, &statistics).unwrap_or_else(|error| panic!("{error}")).parameters;
    let plan = plan.calibrated(parameters, serde_json::Value::Null).unwrap();
    engine::run(&plan, &checkpoint, &output, 2, &AtomicBool::new(false), &Silent).unwrap();
    output.finish(&plan, &checkpoint, Durability::Process).unwrap();
    statistics
}

/// Layers before the blocks (inputs of layers, of lanes, of the first block) and behind them (of lanes, of the head).
#[test]
fn layers_outside_the_blocks_are_observed_with_and_without_algorithms() {
    for (fixture, before, behind) in [
        (
            "gemma3n_text",
            &["model.per_layer_model_projection", "model.altup_projections.2"][..],
            &["model.altup_unembed_projections.0"][..],
        ),
        ("gemma4_layer_inputs", &["model.per_layer_model_projection"], &[]),
        ("opt_350m", &["model.decoder.project_in"], &["model.decoder.project_out"]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (source, target) = (dir.path().join("source"), dir.path().join("target"));
        let fixture_files = crate::support::Checkpoint::read(fixture);
        let tensors = fixture_files.tensors.iter().map(|meta| weight(&meta.name, Dtype::BF16, &meta.shape));
        write(&source, &fixture_files.config, &tensors.collect::<Vec<_>>());
        let outside = before.iter().chain(behind);
        let settings = Settings {
            overrides: outside.map(|layer| format!("{layer}=int8").parse().unwrap()).collect(),
            ..scheme("int8")
        };
        let checkpoint = Checkpoint::open(&source).unwrap();
        let plan = planned(&checkpoint, &settings);
        let (decoder, cpu) = (Decoder::open(&checkpoint).unwrap(), Cpu::default());
        let none = Statistics::new(&plan).unwrap();
        let stop = AtomicBool::new(false);
        let plain = observe(&decoder, &cpu, &sequences(), none, MEMORY, &stop, |_, _, _| {}).unwrap();
        resolve(&plan, &plain).unwrap_or_else(|error| panic!("{fixture}: {error}"));
        let by_blocks = quantized_by_blocks(&source, &target, &with_algorithms(settings, "gptq"));
        let of = |statistics: &Statistics, layer: &str| {
            statistics.get(&ActivationPoint::Input(layer.to_owned())).cloned().unwrap_or_else(|| panic!("no {layer}"))
        };
        // Nothing before these layers is quantized.
        for layer in before {
            assert_eq!(of(&by_blocks, layer), of(&plain, layer), "{fixture}: {layer}");
        }
        for layer in before.iter().chain(behind) {
            assert_eq!(of(&by_blocks, layer).tokens(), 64, "{fixture}: {layer}");
        }
    }
}

/// A llama of two blocks.
pub fn two_blocks() -> (serde_json::Value, Vec<crate::common::Tensor>) {
    let mut config = llama_config();
    config["num_hidden_layers"] = 2.into();
    let mut tensors = llama(Dtype::BF16);
    let blocks = tensors.iter().filter(|(name, ..)| name.contains("layers.0."));
    let second = blocks.map(|(name, dtype, shape, _)| weight(&name.replace("layers.0.", "layers.1."), *dtype, shape));
    let second: Vec<_> = second.collect();
    tensors.extend(second);
    // Norms whose scales can be moved.
    for (name, dtype, shape, bytes) in &mut tensors {
        if name.ends_with("norm.weight") {
            *bytes = encoded(*dtype, &vec![1.0; shape[0]]);
        }
    }
    (config, tensors)
}

/// The tensors of some layers, as they are stored.
fn stored(model: &Path, layers: &str) -> BTreeMap<String, Vec<u8>> {
    let checkpoint = Checkpoint::open(model).unwrap();
    let tensors =
        checkpoint.tensors().filter(|tensor| tensor.name().contains(layers) && !tensor.name().contains("norm"));
    tensors.map(|tensor| (tensor.name().to_owned(), tensor.bytes().to_vec())).collect()
}

#[test]
fn algorithms_leave_the_codes_of_excluded_layers_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (config, tensors) = two_blocks();
    write(&path("base"), &config, &tensors);
    let in_quark = |text: &str| Settings { format: Some("quark".parse().unwrap()), ..scheme(text) };
    quantize(&path("base"), &path("mx"), &in_quark("mxfp4"), 1).unwrap();
    for (algorithms, excluded) in [
        ("gptq", "layers.0."),
        ("awq,gptq", "layers.0."),
        ("awq", "down_proj"),
        ("smoothquant", "o_proj"),
        ("hqq", "layers.1."),
    ] {
        let exclude = vec![format!("*{excluded}*")];
        let text = if algorithms == "hqq" { "uint4:g32:zp" } else { "int4:g32" };
        let settings = Settings { requantize: Some(true), exclude, ..in_quark(text) };
        let (settings, target) = (with_algorithms(settings, algorithms), path(&format!("{algorithms}{excluded}")));
        let checkpoint = Checkpoint::open(&path("mx")).unwrap();
        let plan = planned(&checkpoint, &settings);
        assert!(
            plan.notices().iter().any(|notice| notice.contains("the codes that they have")),
            "{:?}",
            plan.notices()
        );
        assert!(plan.outside().is_empty(), "{algorithms}: {:?}", plan.outside());
        match plan.blocks().is_empty() {
            true => drop(quantize(&path("mx"), &target, &settings, 2).unwrap()),
            false => drop(quantized_by_blocks(&path("mx"), &target, &settings)),
        }
        assert_eq!(stored(&target, excluded), stored(&path("mx"), excluded), "{algorithms}");
        let all = stored(&target, "layers.");
        assert!(
            all.keys().any(|name| !name.contains(excluded)
                && all[name] != stored(&path("mx"), name).remove(name).unwrap_or_default())
        );
    }
}
