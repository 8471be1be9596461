//! Equalization keeps what a net computes, and makes the ranges of channels alike.

use std::ops::ControlFlow;

use kvant_container::onnx::NodeProto;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use crate::algorithm_settings::ClipRule;
use crate::data::Array;
use crate::graph::{node, set_attribute};
use crate::runtime::{RuntimeChoice, RuntimeOptions, open};
use crate::solution::values;
use crate::test_models::{floats, integers, model, typed};

fn chain() -> ModelProto {
    let mut depthwise = node("Conv", "dw", &["r", "w1", "b1"], &["d"]);
    set_attribute(&mut depthwise, "group", 2i64);
    let nodes = vec![
        node("Conv", "c", &["x", "w0", "b0"], &["a"]),
        node("Relu", "relu", &["a"], &["r"]),
        depthwise,
        node("GlobalAveragePool", "gap", &["d"], &["p"]),
        node("Flatten", "flatten", &["p"], &["f"]),
        node("Gemm", "fc", &["f", "w2"], &["y"]),
    ];
    let weights = vec![
        floats("w0", &[2, 1, 1, 1], &[100.0, 0.01]),
        floats("b0", &[2], &[1.0, 0.001]),
        floats("w1", &[2, 1, 1, 1], &[0.5, 20.0]),
        floats("b1", &[2], &[0.0, 0.0]),
        floats("w2", &[2, 1], &[3.0, 0.2]),
    ];
    model(17, nodes, weights, &["x"], &["y"])
}

fn weight(model: &ModelProto, name: &str) -> Vec<f32> {
    values(model.graph.initializer.iter().find(|t| t.name() == name).unwrap()).unwrap()
}

#[test]
fn equalization_balances_channels_and_keeps_products() {
    let (before, mut after) = (chain(), chain());
    let pairs = equalize(&mut after, Equalization::DEFAULTS, None).unwrap();
    assert_eq!(pairs.len(), 2);
    assert!(pairs[0].spread_before > 9000.0 && pairs[0].spread_after < 200.0, "{pairs:?}");
    for channel in 0..2 {
        let product =
            |m: &ModelProto| ["w0", "w1", "w2"].map(|w| f64::from(weight(m, w)[channel])).iter().product::<f64>();
        assert!((product(&after) / product(&before) - 1.0).abs() < 1e-5);
    }
}

#[test]
fn unsuitable_pairs_are_not_equalized() {
    let mut clipped = chain();
    clipped.graph.as_mut().unwrap().node[1].op_type = Some("Clip".to_owned());
    // Without bounds, Clip cuts nothing below zero: it is no Relu.
    assert_eq!(equalize(&mut clipped, Equalization::DEFAULTS, None).unwrap().len(), 1);
    let keep = Equalization { clip: ClipRule::Keep, ..Equalization::DEFAULTS };
    assert_eq!(equalize(&mut clipped, keep, None).unwrap().len(), 1);
}

/// What stands between two layers of a made net.
const BETWEEN: &[&str] = &["Relu", "LeakyRelu", "PRelu", "Clip", "Pad", "MaxPool", "AveragePool", "Identity"];

/// A net of convolutions, each with something behind it, and a head of products.
struct Net {
    nodes: Vec<NodeProto>,
    weights: Vec<kvant_container::onnx::TensorProto>,
    tensor: String,
    seed: u64,
}

impl Net {
    /// Values whose size differs from channel to channel by up to a thousand.
    fn random(&mut self, count: usize, channels: usize) -> Vec<f32> {
        (0..count)
            .map(|i| {
                self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let value = (self.seed >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
                value * 10f32.powi((i / (count / channels).max(1) % 4) as i32 - 2)
            })
            .collect()
    }

    fn add(&mut self, op_type: &str, shape: &[usize], bias: usize, change: impl Fn(&mut NodeProto)) {
        let n = self.nodes.len();
        let (w, b, y) = (format!("w{n}"), format!("b{n}"), format!("t{n}"));
        let values = self.random(shape.iter().product(), shape[0]);
        self.weights.push(floats(&w, shape, &values));
        let values = self.random(bias, bias.max(1));
        self.weights.push(floats(&b, &[bias], &values));
        let inputs: &[&str] = if bias > 0 { &[&self.tensor, &w, &b] } else { &[&self.tensor, &w] };
        let mut made = node(op_type, &y, inputs, &[&y]);
        change(&mut made);
        self.nodes.push(made);
        self.tensor = y;
    }

    fn between(&mut self, op_type: &str, channels: usize) {
        let n = self.nodes.len();
        let y = format!("t{n}");
        let x = self.tensor.clone();
        let extra = format!("e{n}");
        let bound = format!("m{n}");
        let mut made = match op_type {
            "PRelu" => {
                let slopes: Vec<f32> = (0..channels).map(|c| c as f32 * 0.3 - 0.2).collect();
                self.weights.push(floats(&extra, &[channels, 1, 1], &slopes));
                node("PRelu", &y, &[&x, &extra], &[&y])
            }
            "Clip" => {
                self.weights.push(floats(&extra, &[], &[0.0]));
                self.weights.push(floats(&bound, &[], &[0.3]));
                node("Clip", &y, &[&x, &extra, &bound], &[&y])
            }
            "Pad" => {
                self.weights.push(integers(&extra, &[0, 0, 1, 1, 0, 0, 1, 1]));
                node("Pad", &y, &[&x, &extra], &[&y])
            }
            _ => node(op_type, &y, &[&x], &[&y]),
        };
        if op_type.ends_with("Pool") {
            set_attribute(&mut made, "kernel_shape", &[2i64, 2][..]);
        }
        self.nodes.push(made);
        self.tensor = y;
    }

    fn finish(mut self) -> ModelProto {
        self.nodes.push(node("GlobalAveragePool", "gap", &[&self.tensor], &["gap"]));
        self.nodes.push(node("Flatten", "flat", &["gap"], &["flat"]));
        self.tensor = "flat".to_owned();
        self.add("Gemm", &[4, 6], 6, |_| {});
        self.between("Relu", 6);
        self.add("MatMul", &[6, 5], 0, |_| {});
        let output = self.tensor.clone();
        let mut made = model(17, self.nodes, self.weights, &[], &[&output]);
        made.graph.as_mut().unwrap().input = vec![typed("x", &[1, 4, 9, 9])];
        made
    }
}

fn net(layers: &[(u8, u8)], seed: u64) -> ModelProto {
    let mut net = Net { nodes: Vec::new(), weights: Vec::new(), tensor: "x".to_owned(), seed };
    for &(layer, between) in layers {
        match layer % 4 {
            0 => net.add("Conv", &[4, 4, 1, 1], 4, |_| {}),
            1 => net.add("Conv", &[4, 1, 1, 1], 4, |node| set_attribute(node, "group", 4i64)),
            2 => net.add("Conv", &[4, 2, 1, 1], 0, |node| set_attribute(node, "group", 2i64)),
            _ => net.add("ConvTranspose", &[4, 4, 1, 1], 4, |_| {}),
        }
        net.between(BETWEEN[between as usize % BETWEEN.len()], 4);
    }
    net.finish()
}

fn output(model: &ModelProto, input: &[f32]) -> Vec<f32> {
    let name = model.graph.output[0].name().to_owned();
    let options = RuntimeOptions { choice: RuntimeChoice::Rten, threads: Some(1), ..RuntimeOptions::default() };
    let mut session = open(model, std::slice::from_ref(&name), &options).unwrap();
    let array = Array::of(vec![1, 4, 9, 9], input).unwrap();
    let mut made = Vec::new();
    let run = session.run(&[("x", array)], &[name], &mut |_, array| {
        made = array.to_f32s().into_owned();
        ControlFlow::Continue(())
    });
    run.unwrap();
    made
}

proptest! {
    // The same nets each time: how much a random one cancels is chance.
    #![proptest_config(ProptestConfig { cases: 64, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn equalization_keeps_the_function(layers in prop::collection::vec((any::<u8>(), any::<u8>()), 1..6), seed in any::<u64>()) {
        let plain = net(&layers, seed);
        let mut scaled = net(&layers, seed);
        let pairs = equalize(&mut scaled, Equalization::DEFAULTS, None).unwrap();
        // Each layer and the one behind it, the Gemm and the MatMul.
        prop_assert_eq!(pairs.len(), layers.len() + 1);
        let input: Vec<f32> = (0..324).map(|i| ((i * 7919) % 613) as f32 / 300.0 - 1.0).collect();
        let (before, after) = (output(&plain, &input), output(&scaled, &input));
        let largest = before.iter().fold(0f32, |m, v| m.max(v.abs())).max(1e-20);
        // Nets of random numbers cancel: what scaling rounds, at 6e-8 each, comes to more than in nets that were trained.
        for (b, a) in before.iter().zip(&after) {
            prop_assert!((a - b).abs() <= 1e-4 * largest, "{before:?} {after:?}");
        }
    }
}
