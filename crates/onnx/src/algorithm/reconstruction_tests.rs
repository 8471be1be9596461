//! Roundings on a graph: model-level options of AdaRound and AdaQuant, and roundings that compensate for the errors of
//! earlier layers, or are learned block by block.

use std::sync::atomic::{AtomicBool, Ordering};

use kvant_container::onnx::ModelProto;
use kvant_container::unfinished::KeptResults;
use kvant_quant::random::SplitMix64;

use crate::algorithm::{Data, LayerGain};
use crate::calibration::observe;
use crate::data::{DataOptions, Distribution, SampleSource, inputs};
use crate::element::Element;
use crate::error::QuantizeError;
use crate::graph::node;
use crate::preset::Preset;
use crate::quantize::prepare;
use crate::report::Report;
use crate::runtime::{RuntimeChoice, RuntimeOptions};
use crate::test_models::{floats, model, typed};

const SIZE: usize = 12;

/// Three products, of which the second is unused.
fn net() -> ModelProto {
    let mut random = SplitMix64::new(3);
    let mut weight = |name: &str| {
        let drawn: Vec<f32> = (0..SIZE * SIZE).map(|_| (2.0 * random.uniform() - 1.0) as f32).collect();
        floats(name, &[SIZE, SIZE], &drawn)
    };
    let constants = vec![weight("u"), weight("v"), weight("w"), floats("zeros", &[SIZE], &[0.0; SIZE])];
    let nodes = vec![
        node("MatMul", "first", &["x", "u"], &["a"]),
        node("Relu", "relu", &["a"], &["b"]),
        node("MatMul", "idle", &["b", "v"], &["c"]),
        node("Mul", "nothing", &["c", "zeros"], &["d"]),
        node("MatMul", "last", &["b", "w"], &["e"]),
        node("Add", "sum", &["d", "e"], &["y"]),
    ];
    let mut made = model(17, nodes, constants, &[], &["y"]);
    made.graph.as_mut().unwrap().input = vec![typed("x", &[1, 20, SIZE])];
    made
}

/// A product, and two more beside a connection around them.
fn residual() -> ModelProto {
    let mut made = net();
    made.graph.as_mut().unwrap().node = vec![
        node("MatMul", "first", &["x", "u"], &["a"]),
        node("Relu", "relu", &["a"], &["b"]),
        node("MatMul", "second", &["b", "v"], &["d"]),
        node("Tanh", "between", &["d"], &["e"]),
        node("MatMul", "third", &["e", "w"], &["f"]),
        node("Add", "sum", &["f", "b"], &["y"]),
    ];
    made
}

/// A run on random samples, which may stop once so many layers are done.
struct Run<'a> {
    float: ModelProto,
    algorithm: &'a str,
    threads: usize,
    kept: Option<&'a KeptResults>,
    stops_after: Option<u64>,
}

impl<'a> Run<'a> {
    fn new(float: ModelProto, algorithm: &'a str) -> Run<'a> {
        Run { float, algorithm, threads: 1, kept: None, stops_after: None }
    }

    fn finish(self) -> Result<(ModelProto, Report), QuantizeError> {
        let mut recipe = Preset::find("A8W8").unwrap().recipe();
        recipe.weight.element = Element::Int4;
        recipe.algorithms = self.algorithm.parse().unwrap();
        let passes = recipe.passes();
        let data_inputs = inputs(&self.float.graph);
        let prepared = prepare(self.float, recipe, &passes, None).unwrap().transformed(None, None).unwrap();
        let mut samples =
            SampleSource::Random(Distribution::Normal).open(&data_inputs, &DataOptions::default()).unwrap();
        let threads = Some(self.threads);
        let runtime = RuntimeOptions { choice: RuntimeChoice::Rten, threads, ..RuntimeOptions::default() };
        let cancelled = AtomicBool::new(false);
        let mut observation = prepared.observation();
        observe(&prepared.model, &mut observation, &mut samples, &runtime, &mut |_, _| {}, &cancelled).unwrap();
        let mut progress = |done: u64, _: u64| {
            let stops = self.stops_after.is_some_and(|layers| done >= layers);
            cancelled.store(stops, Ordering::Relaxed);
        };
        let (samples, kept) = (&mut samples, self.kept);
        let mut data = Data { samples, runtime, cancelled: &cancelled, progress: &mut progress, kept };
        prepared.finish(&observation, Some(&mut data), None)
    }
}

/// The quantized model, and the gain of each layer.
fn quantized(algorithm: &str, threads: usize) -> (ModelProto, Vec<LayerGain>) {
    let (made, report) = Run { threads, ..Run::new(net(), algorithm) }.finish().unwrap();
    (made, report.gains)
}

fn has_gained(gains: &[LayerGain], layer: &str) -> bool {
    let gain = gains.iter().find(|gain| gain.layer == layer).unwrap();
    assert!(gain.loss_after <= gain.loss_before);
    gain.loss_after < gain.loss_before
}

#[test]
fn selective_update_keeps_layers_only_where_the_model_gains() {
    for algorithm in ["adaround:num_iterations=200", "adaquant:num_iterations=200:learning_rate=0.001"] {
        let (_, all) = quantized(algorithm, 1);
        assert!(["idle", "last"].iter().all(|layer| has_gained(&all, layer)), "{all:?}");
        let (made, chosen) = quantized(&format!("{algorithm}:selective_update=on"), 1);
        assert!(!has_gained(&chosen, "idle") && has_gained(&chosen, "last"), "{chosen:?}");
        assert!(made == quantized(&format!("{algorithm}:selective_update=on"), 3).0);
    }
}

#[test]
fn float_inputs_are_mixed_in_by_ratio_and_seed() {
    let with = |ratio: &str, threads| quantized(&format!("adaround:num_iterations=60:drop_ratio={ratio}"), threads).0;
    let (whole, half) = (with("1", 1), with("0.5", 1));
    assert!(whole == quantized("adaround:num_iterations=60", 1).0);
    assert!(whole != half && half != with("0", 1));
    assert!(half == with("0.5", 3));
    let other = quantized("adaround:num_iterations=60:drop_ratio=0.5:seed=9", 1).0;
    assert!(half != other);
}

#[test]
fn codes_compensate_errors_of_earlier_layers() {
    let loss = |algorithm: &str| {
        let (_, gains) = quantized(algorithm, 1);
        gains.iter().find(|gain| gain.layer == "last").unwrap().loss_after
    };
    let plain = quantized("gptq", 1).0;
    for algorithm in ["gptaq", "qronos"] {
        let (made, gains) = quantized(algorithm, 1);
        assert!(has_gained(&gains, "first") && has_gained(&gains, "last"), "{algorithm}: {gains:?}");
        assert!(made != plain, "{algorithm}");
        assert!(made == quantized(algorithm, 3).0, "{algorithm}: threads");
    }
    // Without a share of the mismatch GPTAQ is GPTQ.
    assert!(quantized("gptaq:alpha=0", 1).0 == plain);
    assert!(loss("qronos") < loss("gptq"));
}

#[test]
fn learned_blocks_bring_their_outputs_nearer_from_any_codes() {
    for codes in ["", "gptq,", "qronos,", "adaround:num_iterations=50,"] {
        let algorithm = format!("{codes}autoround:iterations=60");
        let (made, report) = Run::new(residual(), &algorithm).finish().unwrap();
        let [first, second] = &report.learned_blocks[..] else { panic!("{:?}", report.learned_blocks) };
        assert_eq!((first.layers.len(), second.layers.len(), report.not_learned.len()), (1, 2, 0), "{codes}");
        // What the nearest codes leave to gain, other codes have gained for the most part.
        let most = if codes.is_empty() { 0.9 } else { 1.0 };
        assert!(first.loss_after <= first.loss_before, "{codes}: {first:?}");
        assert!(second.loss_after <= most * second.loss_before, "{codes}: {second:?}");
        assert_eq!(report.gains.len(), 3);
        let threads = Run { threads: 3, ..Run::new(residual(), &algorithm) }.finish().unwrap().0;
        assert!(made == threads, "{codes}");
    }
    let with = |settings: &str| Run::new(residual(), &format!("autoround:iterations=20{settings}")).finish().unwrap().0;
    assert!(with("") != with(":seed=7"));
    assert!(with("") != with(":scales=0"));
}

#[test]
fn layers_are_learned_alone_where_an_operator_of_their_block_has_no_gradient() {
    let mut net = residual();
    let between = net.graph.as_mut().unwrap().node.iter_mut().find(|node| node.name() == "between");
    *between.unwrap() = node("Sin", "between", &["d"], &["e"]);
    let (_, report) = Run::new(net, "autoround:iterations=60").finish().unwrap();
    let [left] = &report.not_learned[..] else { panic!("{:?}", report.not_learned) };
    assert_eq!(left.layers, ["second", "third"]);
    assert!(left.reason.contains("Sin of `between`") && left.reason.contains("one by one"), "{}", left.reason);
    assert!(report.learned_blocks.iter().all(|block| block.layers.len() == 1 && block.loss_after < block.loss_before));
    assert_eq!(report.learned_blocks.len(), 3);
}

#[test]
fn learned_blocks_resume_to_the_same_codes_and_report() {
    let algorithm = "gptq,autoround:iterations=20,bias-correction";
    let (whole, report) = Run::new(residual(), algorithm).finish().unwrap();
    // Three layers in two blocks: stopped in the first, behind it, and killed while the layers of the second were kept.
    for layers in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let kept = KeptResults::new(dir.path(), "plan");
        let stopped = Run { kept: Some(&kept), stops_after: Some(layers), ..Run::new(residual(), algorithm) };
        assert_eq!(stopped.finish().is_err(), layers < 2);
        let last = dir.path().join("layer.2");
        assert_eq!(last.exists(), layers == 2);
        if last.exists() {
            std::fs::remove_file(last).unwrap();
        }
        let (resumed, again) = Run { kept: Some(&kept), ..Run::new(residual(), algorithm) }.finish().unwrap();
        assert!(resumed == whole, "{layers}");
        assert_eq!((&again.learned_blocks, &again.gains), (&report.learned_blocks, &report.gains), "{layers}");
    }
}
