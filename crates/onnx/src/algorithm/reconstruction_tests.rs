//! Roundings on a graph: model-level options of AdaRound and AdaQuant, and roundings that compensate for the errors of
//! earlier layers.

use std::sync::atomic::AtomicBool;

use kvant_container::onnx::ModelProto;
use kvant_quant::random::SplitMix64;

use crate::algorithm::{Data, LayerGain};
use crate::calibration::observe;
use crate::data::{DataOptions, Distribution, SampleSource, inputs};
use crate::element::Element;
use crate::graph::node;
use crate::preset::Preset;
use crate::quantize::prepare;
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

/// The quantized model, and the gain of each layer.
fn quantized(algorithm: &str, threads: usize) -> (ModelProto, Vec<LayerGain>) {
    let mut recipe = Preset::find("A8W8").unwrap().recipe();
    recipe.weight.element = Element::Int4;
    recipe.algorithms = algorithm.parse().unwrap();
    let passes = recipe.passes();
    let prepared = prepare(net(), recipe, &passes, None).unwrap().transformed(None, None).unwrap();
    let mut samples =
        SampleSource::Random(Distribution::Normal).open(&inputs(&net().graph), &DataOptions::default()).unwrap();
    let runtime = RuntimeOptions { choice: RuntimeChoice::Rten, threads: Some(threads), ..RuntimeOptions::default() };
    let (cancelled, mut progress) = (AtomicBool::new(false), |_: u64, _: u64| ());
    let mut observation = prepared.observation();
    observe(&prepared.model, &mut observation, &mut samples, &runtime, &mut |_, _| {}, &cancelled).unwrap();
    let mut data = Data { samples: &mut samples, runtime, cancelled: &cancelled, progress: &mut progress, kept: None };
    let (made, report) = prepared.finish(&observation, Some(&mut data), None).unwrap();
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
