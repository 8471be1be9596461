//! Runs block by block: what they observe outside of the blocks, and codes that they leave alone.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use crate::common::{scheme, weight, write};
use kvant_checkpoint::blockwise::{self, BlockResults, Propagate, Sources};
use kvant_checkpoint::calibration::{Statistics, observe, resolve};
use kvant_checkpoint::engine::{self, Output, Silent, Start};
use kvant_checkpoint::plan::Plan;
use kvant_checkpoint::recipe::{Recipe, Settings};
use kvant_container::{Checkpoint, Dtype, Durability};
use kvant_forward::forward::Decoder;
use kvant_forward::forward::cpu::Cpu;
use kvant_weights::activation_point::ActivationPoint;
use std::path::Path;
use std::sync::atomic::AtomicBool;

const MEMORY: u64 = 1 << 30;

fn sequences() -> Vec<Vec<u32>> {
    (0..4).map(|sequence| (0..16).map(|at| (at * at * 7 + sequence * 5) % 31).collect()).collect()
}

fn planned(checkpoint: &Checkpoint, settings: &Settings) -> Plan {
    let recipe = Recipe::resolve(settings, &Settings::default()).unwrap().with_calibration(true);
    Plan::new(checkpoint, recipe).unwrap_or_else(|error| panic!("{error}"))
}

fn with_algorithms(settings: Settings, algorithms: &str) -> Settings {
    settings.with_algorithms(&[algorithms.to_owned()]).unwrap()
}

/// Quantizes the blocks of a plan into a started output.
fn run_blocks(plan: &Plan, checkpoint: &Checkpoint, output: &Output, target: &Path) -> BlockResults {
    let decoder = Decoder::open(checkpoint).unwrap();
    let (cpu, sequences) = (Cpu::default(), sequences());
    let sources =
        Sources { plan, checkpoint, decoder: &decoder, ops: &cpu, sequences: &sequences, held_out: &[], output };
    let settings = blockwise::Settings { target, key: "key", memory: MEMORY, propagate: Propagate::default() };
    blockwise::run(&sources, settings, &AtomicBool::new(false), &|_| {}, &|_| {}).unwrap_or_else(|e| panic!("{e}"))
}

/// A checkpoint quantized with algorithms, and the statistics of its activations.
fn quantized_by_blocks(source: &Path, target: &Path, settings: &Settings) -> Statistics {
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
