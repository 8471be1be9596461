//! The activations that reports show: of calibration and of algorithms, whole and resumed, at any number of threads.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use crate::blockwise::{planned, sequences, two_blocks, with_algorithms};
use crate::common::{scheme, write};
use kvant_checkpoint::activation_histograms::{PointHistogram, activation_histograms, input_schemes, shown_points};
use kvant_checkpoint::blockwise::{self, BlockResults, BlockwiseError, Propagate, Sources};
use kvant_checkpoint::calibration::{Statistics, observe, resolve};
use kvant_checkpoint::engine::{Output, Start};
use kvant_checkpoint::plan::Plan;
use kvant_checkpoint::recipe::Settings;
use kvant_container::Checkpoint;
use kvant_forward::forward::Decoder;
use kvant_forward::forward::cpu::Cpu;
use kvant_weights::activation_point::{ActivationPoint, Parameters};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const MEMORY: u64 = 1 << 30;

/// A llama of two blocks in a folder.
fn model() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let (config, tensors) = two_blocks();
    write(&source, &config, &tensors);
    (dir, source)
}

fn settings(text: &str) -> Settings {
    Settings { format: Some("quark".parse().unwrap()), ..scheme(text) }
}

fn observed(checkpoint: &Checkpoint, plan: &Plan, threads: usize) -> Statistics {
    let (decoder, cpu) = (Decoder::open(checkpoint).unwrap(), Cpu::default());
    let none = Statistics::new(plan).unwrap().with_distributions(&shown_points(plan, 64));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let stop = AtomicBool::new(false);
    pool.install(|| observe(&decoder, &cpu, &sequences(), none, MEMORY, &stop, |_, _, _| {})).unwrap()
}

fn histograms(plan: &Plan, statistics: &Statistics) -> Vec<PointHistogram> {
    let parameters = resolve(plan, statistics).unwrap().parameters;
    activation_histograms(plan, statistics, &parameters)
}

#[test]
fn static_inputs_have_histograms_of_all_their_values() {
    let (_dir, source) = model();
    let checkpoint = Checkpoint::open(&source).unwrap();
    let plan = planned(&checkpoint, &settings("int8:tensor+int8:tensor!static"));
    let found = observed(&checkpoint, &plan, 1);
    let shown = histograms(&plan, &found);
    let groups: Vec<Vec<&str>> = shown
        .iter()
        .map(|point| point.layers.iter().filter_map(|layer| Some(layer.rsplit_once('.')?.1)).collect())
        .collect();
    let block = [vec!["q_proj", "k_proj", "v_proj"], vec!["o_proj"], vec!["gate_proj", "up_proj"], vec!["down_proj"]];
    assert_eq!(groups.len(), 8, "{groups:?}");
    for group in &block {
        assert_eq!(groups.iter().filter(|found| *found == group).count(), 2, "{group:?} in {groups:?}");
    }
    for point in &shown {
        let histogram = &point.histogram;
        let columns = plan.layers().iter().find(|layer| layer.name == point.layers[0]).unwrap().columns as u64;
        assert_eq!(histogram.values, 64 * columns, "{point:?}");
        assert_eq!(histogram.counts.iter().sum::<u64>(), histogram.values, "{point:?}");
        let range = histogram.range.unwrap();
        assert!(range.low <= histogram.min && (range.high - histogram.max) / range.high > -0.01, "{point:?}");
        assert_eq!((histogram.clipped, point.timing), (Some(0.0), Some("static")), "min-max clips nothing: {point:?}");
    }
    assert_eq!(found, observed(&checkpoint, &plan, 3), "the number of threads changes nothing");
    let kept: Statistics = serde_json::from_str(&serde_json::to_string(&found).unwrap()).unwrap();
    assert_eq!(kept, found);
}

#[test]
fn percentiles_clip_the_share_that_they_leave_out() {
    let (_dir, source) = model();
    let checkpoint = Checkpoint::open(&source).unwrap();
    let plan = planned(&checkpoint, &settings("int8:tensor+int8:tensor:percentile90!static"));
    for point in histograms(&plan, &observed(&checkpoint, &plan, 2)) {
        let clipped = point.histogram.clipped.unwrap();
        assert!((0.05..0.12).contains(&clipped), "{point:?}");
    }
}

#[test]
fn points_that_are_not_asked_for_have_no_histogram() {
    let (_dir, source) = model();
    let checkpoint = Checkpoint::open(&source).unwrap();
    let plan = planned(&checkpoint, &settings("int8:tensor+int8:tensor!static"));
    assert_eq!(shown_points(&plan, 3).len(), 3);
    assert_eq!(shown_points(&plan, 0), []);
    let dynamic = planned(&checkpoint, &settings("int8:channel+int8:channel!dynamic"));
    assert_eq!((shown_points(&dynamic, 64), input_schemes(&dynamic).len()), (Vec::new(), 1));
    assert_eq!((input_schemes(&dynamic)[0].timing, input_schemes(&dynamic)[0].layers), ("dynamic", 14));
}

/// Runs the blocks of a plan; `stop` is asked after each step whether the run ends there.
fn by_blocks(
    source: &Path,
    target: &Path,
    settings: &Settings,
    stop: impl Fn(usize) -> bool + Sync,
) -> Result<(BlockResults, Plan), BlockwiseError> {
    let checkpoint = Checkpoint::open(source).unwrap();
    let plan = planned(&checkpoint, settings);
    let shown = shown_points(&plan, 64);
    let on_data = planned(&checkpoint, settings).on_data("data");
    let Start::Working(output) = Output::begin(&on_data, source, target, false).unwrap() else { panic!("finished") };
    let (decoder, cpu, sequences) = (Decoder::open(&checkpoint).unwrap(), Cpu::default(), sequences());
    let sources = Sources {
        plan: &on_data,
        checkpoint: &checkpoint,
        decoder: &decoder,
        ops: &cpu,
        sequences: &sequences,
        held_out: &[],
        output: &output,
    };
    let run =
        blockwise::Settings { target, key: "key", memory: MEMORY, propagate: Propagate::default(), shown: &shown };
    let cancelled = AtomicBool::new(false);
    let watch = |at: blockwise::BlockProgress| {
        cancelled.fetch_or(stop(at.block), Ordering::Relaxed);
    };
    let found = blockwise::run(&sources, run, &cancelled, &watch, &|_| {})?;
    Ok((found, plan))
}

#[test]
fn inputs_that_algorithms_read_have_histograms_that_survive_interruptions() {
    for (text, algorithm, with_range) in [
        ("int4:g32", "gptq", false),
        ("int4:g32", "awq", false),
        ("int4:g32", "qronos", false),
        ("int8:tensor+int8:tensor!static", "smoothquant,gptq", true),
    ] {
        let (dir, source) = model();
        let settings = with_algorithms(settings(text), algorithm);
        let (whole, plan) = by_blocks(&source, &dir.path().join("whole"), &settings, |_| false).unwrap();
        let parameters = match with_range {
            true => resolve(&plan, &whole.statistics).unwrap().parameters,
            false => Parameters::default(),
        };
        let shown = activation_histograms(&plan, &whole.statistics, &parameters);
        assert_eq!(shown.len(), 8, "{algorithm}: {:?}", shown.iter().map(|point| &point.point).collect::<Vec<_>>());
        for point in &shown {
            assert_eq!(point.histogram.range.is_some(), with_range, "{algorithm}: {point:?}");
            assert_eq!(point.histogram.counts.iter().sum::<u64>(), point.histogram.values, "{algorithm}: {point:?}");
            assert!(point.histogram.values > 0, "{algorithm}: {point:?}");
        }
        let target = dir.path().join("resumed");
        let stopped = by_blocks(&source, &target, &settings, |block| block == 1);
        assert!(stopped.is_err(), "{algorithm}");
        let (resumed, _) = by_blocks(&source, &target, &settings, |_| false).unwrap();
        assert_eq!(resumed.statistics, whole.statistics, "{algorithm}");
    }
}

#[test]
fn layers_that_read_the_same_are_one_point() {
    let (_dir, source) = model();
    let checkpoint = Checkpoint::open(&source).unwrap();
    let plan = planned(&checkpoint, &with_algorithms(settings("int4:g32"), "gptq"));
    let points = shown_points(&plan, 64);
    let is_input = |layer: &str| {
        let ends =
            |point: &&ActivationPoint| matches!(point, ActivationPoint::Input(module) if module.ends_with(layer));
        points.iter().filter(ends).count()
    };
    assert_eq!(["q_proj", "k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"].map(is_input), [2, 0, 2, 2, 0, 2]);
}
