//! Rotations keep what a transformer computes, spread its outliers, and leave alone what they would change.

use std::ops::ControlFlow;

use kvant_container::onnx::{NodeProto, TensorProto};
use kvant_quant::random::SplitMix64;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use crate::data::Array;
use crate::graph::{node, set_attribute};
use crate::runtime::{RuntimeChoice, RuntimeOptions, open};
use crate::solution::values;
use crate::test_models::{floats, integers, model, typed, value};

const TOKENS: usize = 5;
const INPUTS: usize = 3;

/// How a normalization is spelled.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Spelling {
    LayerNorm,
    RmsNorm,
    /// As torch exports one that it has no operator for.
    RmsNormInParts,
    LayerNormInParts,
}

const SPELLINGS: [Spelling; 4] =
    [Spelling::LayerNorm, Spelling::RmsNorm, Spelling::RmsNormInParts, Spelling::LayerNormInParts];

/// A transformer of random numbers, norms before, whose stream has an outlier.
struct Net {
    width: usize,
    heads: usize,
    spelling: Spelling,
    biases: bool,
    nodes: Vec<NodeProto>,
    weights: Vec<TensorProto>,
    random: SplitMix64,
    names: usize,
}

impl Net {
    fn new(width: usize, heads: usize, spelling: Spelling, biases: bool, seed: u64) -> Self {
        let random = SplitMix64::new(seed);
        Self { width, heads, spelling, biases, nodes: Vec::new(), weights: Vec::new(), random, names: 0 }
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("t{}", self.names)
    }

    fn constant(&mut self, dims: &[usize], values: impl Fn(usize, f64) -> f64) -> String {
        let name = self.name();
        let count = dims.iter().product();
        let drawn: Vec<f32> = (0..count).map(|i| values(i, 2.0 * self.random.uniform() - 1.0) as f32).collect();
        self.weights.push(floats(&name, dims, &drawn));
        name
    }

    fn op(&mut self, op_type: &str, inputs: &[&str]) -> String {
        self.op_with(op_type, inputs, |_| {})
    }

    fn op_with(&mut self, op_type: &str, inputs: &[&str], change: impl Fn(&mut NodeProto)) -> String {
        let name = self.name();
        let mut made = node(op_type, &name, inputs, &[&name]);
        change(&mut made);
        self.nodes.push(made);
        name
    }

    fn layer(&mut self, x: &str, inputs: usize, outputs: usize) -> String {
        let size = 1.0 / (inputs as f64).sqrt();
        let weight = self.constant(&[inputs, outputs], |_, v| v * size);
        let product = self.op("MatMul", &[x, &weight]);
        if !self.biases {
            return product;
        }
        let bias = self.constant(&[outputs], |i, v| if i == 1 { 8.0 } else { v });
        self.op("Add", &[&bias, &product])
    }

    fn reduced(&mut self, x: &str) -> String {
        self.op_with("ReduceMean", &[x], |node| set_attribute(node, "axes", &[-1i64][..]))
    }

    fn norm(&mut self, x: &str) -> String {
        let gain = self.constant(&[self.width], |i, v| if i == 2 { 20.0 } else { 1.0 + v / 2.0 });
        let bias = self.constant(&[self.width], |_, v| v);
        let whole = match self.spelling {
            Spelling::LayerNorm => return self.op("LayerNormalization", &[x, &gain, &bias]),
            Spelling::RmsNorm => return self.op("RMSNormalization", &[x, &gain]),
            Spelling::RmsNormInParts => x.to_owned(),
            Spelling::LayerNormInParts => {
                let mean = self.reduced(x);
                self.op("Sub", &[x, &mean])
            }
        };
        let (two, epsilon) = (self.constant(&[], |_, _| 2.0), self.constant(&[], |_, _| 1e-6));
        let square = self.op("Pow", &[&whole, &two]);
        let mean = self.reduced(&square);
        let sum = self.op("Add", &[&mean, &epsilon]);
        let root = self.op("Sqrt", &[&sum]);
        if self.spelling == Spelling::LayerNormInParts {
            let quotient = self.op("Div", &[&whole, &root]);
            let scaled = self.op("Mul", &[&quotient, &gain]);
            return self.op("Add", &[&scaled, &bias]);
        }
        let one = self.constant(&[], |_, _| 1.0);
        let inverse = self.op("Div", &[&one, &root]);
        let quotient = self.op("Mul", &[x, &inverse]);
        self.op("Mul", &[&gain, &quotient])
    }

    fn shaped(&mut self, x: &str, dims: &[i64]) -> String {
        let name = self.name();
        self.weights.push(integers(&name, dims));
        self.op("Reshape", &[x, &name])
    }

    fn turned(&mut self, x: &str, order: &[i64]) -> String {
        self.op_with("Transpose", &[x], |node| set_attribute(node, "perm", order))
    }

    /// Queries, keys and values of one layer.
    fn attention(&mut self, x: &str) -> String {
        let (heads, size) = (self.heads as i64, (self.width / self.heads) as i64);
        let joint = self.layer(x, self.width, 3 * self.width);
        let joint = self.shaped(&joint, &[1, TOKENS as i64, 3, heads, size]);
        let joint = self.turned(&joint, &[2, 0, 3, 1, 4]);
        let [queries, keys, values] = [0, 1, 2].map(|which| {
            let name = self.name();
            self.weights.push(scalar(&name, which));
            self.op_with("Gather", &[&joint, &name], |node| set_attribute(node, "axis", 0i64))
        });
        let keys = self.turned(&keys, &[0, 1, 3, 2]);
        let scores = self.op("MatMul", &[&queries, &keys]);
        let shares = self.op_with("Softmax", &[&scores], |node| set_attribute(node, "axis", -1i64));
        let mixed = self.op("MatMul", &[&shares, &values]);
        let mixed = self.turned(&mixed, &[0, 2, 1, 3]);
        let mixed = self.shaped(&mixed, &[1, TOKENS as i64, self.width as i64]);
        self.layer(&mixed, self.width, self.width)
    }

    fn block(&mut self, x: &str) -> String {
        let normed = self.norm(x);
        let attended = self.attention(&normed);
        let x = self.op("Add", &[x, &attended]);
        let normed = self.norm(&x);
        let up = self.layer(&normed, self.width, 2 * self.width);
        let up = self.op("Relu", &[&up]);
        let down = self.layer(&up, 2 * self.width, self.width);
        self.op("Add", &[&down, &x])
    }

    /// Returns the model and the name of the last tensor of the stream.
    fn finish(mut self) -> (ModelProto, String) {
        let embedded = self.layer("x", INPUTS, self.width);
        let width = self.width;
        let places = self.constant(&[1, TOKENS, width], |i, v| if i % width == 0 { 30.0 + v } else { v });
        let stream = self.op("Add", &[&embedded, &places]);
        let stream = self.block(&stream);
        let stream = self.block(&stream);
        let normed = self.norm(&stream);
        let pooled = self.op_with("ReduceMean", &[&normed], |node| {
            set_attribute(node, "axes", &[1i64][..]);
            set_attribute(node, "keepdims", 0i64);
        });
        let output = self.layer(&pooled, width, 4);
        let mut made = model(17, self.nodes, self.weights, &[], &[&output]);
        made.graph.as_mut().unwrap().input = vec![typed("x", &[1, TOKENS, INPUTS])];
        (made, stream)
    }
}

fn scalar(name: &str, number: i64) -> TensorProto {
    let mut made = integers(name, &[number]);
    made.dims.clear();
    made
}

fn tensor_of(model: &ModelProto, name: &str) -> Vec<f32> {
    let options = RuntimeOptions { choice: RuntimeChoice::Rten, threads: Some(1), ..RuntimeOptions::default() };
    let mut session = open(model, &[name.to_owned()], &options).unwrap();
    let input: Vec<f32> = (0..TOKENS * INPUTS).map(|i| ((i * 7919) % 613) as f32 / 300.0 - 1.0).collect();
    let array = Array::of(vec![1, TOKENS, INPUTS], &input[..]).unwrap();
    let mut made = Vec::new();
    let run = session.run(&[("x", array)], &[name.to_owned()], &mut |_, array| {
        made = array.to_f32s().into_owned();
        ControlFlow::Continue(())
    });
    run.unwrap();
    made
}

fn peak(values: &[f32]) -> f32 {
    values.iter().fold(0f32, |m, v| m.max(v.abs()))
}

/// The largest difference of the outputs, over the largest output.
fn change(before: &ModelProto, after: &ModelProto) -> f32 {
    let name = before.graph.output[0].name().to_owned();
    let (before, after) = (tensor_of(before, &name), tensor_of(after, &name));
    let differences: Vec<f32> = before.iter().zip(&after).map(|(a, b)| a - b).collect();
    peak(&differences) / peak(&before).max(1e-20)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_function_stays(kind in 0usize..4, size in 0usize..4, biases in any::<bool>(), seed in any::<u64>()) {
        let (width, heads) = [(8, 2), (12, 3), (18, 3), (32, 4)][size];
        let (plain, stream) = Net::new(width, heads, SPELLINGS[kind], biases, seed).finish();
        let mut turned = plain.clone();
        let done = rotate(&mut turned, QuarotSettings::USUAL, None).unwrap();
        // The residual stream, and the heads of both blocks.
        prop_assert_eq!((done.rotated.len(), &done.left), (3, &Vec::new()));
        prop_assert_eq!(done.rotated[0].normalizations, 5);
        let changed = change(&plain, &turned);
        prop_assert!(changed <= 1e-5, "{}", changed);
        // Rotating mixes one channel of 30 with others of about 1.
        let (before, after) = (peak(&tensor_of(&plain, &stream)), peak(&tensor_of(&turned, &stream)));
        prop_assert!(before > 25.0 && after < 0.95 * before, "{} {}", before, after);
    }
}

#[test]
fn gains_and_biases_of_normalizations_are_in_the_layers() {
    for spelling in SPELLINGS {
        let (mut turned, _) = Net::new(16, 2, spelling, true, 3).finish();
        let nodes = turned.graph.node.len();
        rotate(&mut turned, QuarotSettings::USUAL, None).unwrap();
        let graph = &turned.graph;
        let whole = graph.node.iter().filter(|node| node.op_type().ends_with("Normalization"));
        for norm in whole {
            let gain = graph.initializer.iter().find(|t| t.name() == norm.input[1]).unwrap();
            assert_eq!((values(gain).unwrap(), norm.input.len()), (vec![1.0; 16], 2));
        }
        let gone = match spelling {
            Spelling::LayerNorm | Spelling::RmsNorm => 0,
            Spelling::RmsNormInParts => 5,
            Spelling::LayerNormInParts => 10,
        };
        assert_eq!(nodes - graph.node.len(), gone, "{spelling:?}");
        crate::graph::check(&turned).unwrap();
    }
}

#[test]
fn what_else_is_read_keeps_a_stream_as_it_is() {
    let (plain, stream) = Net::new(16, 2, Spelling::LayerNorm, true, 3).finish();
    let mut shown = plain.clone();
    shown.graph.as_mut().unwrap().output.push(value(&stream));
    let mut scaled = plain.clone();
    let graph = scaled.graph.as_mut().unwrap();
    graph.node.push(node("Sigmoid", "gate", &[&stream], &["gated"]));
    graph.output.push(value("gated"));
    let residual = QuarotSettings { heads: false, ..QuarotSettings::USUAL };
    for (before, reason) in [(shown, "is an output of the model"), (scaled, "`gate` (Sigmoid) reads its channels")] {
        let mut after = before.clone();
        let done = rotate(&mut after, residual, None).unwrap();
        assert!(done.rotated.is_empty() && done.left.len() == 1 && done.left[0].reason.contains(reason), "{done:?}");
        assert!(done.notice().unwrap().starts_with("no residual stream of the model can be rotated: "));
        assert_eq!(before, after);
    }
}

#[test]
fn shapes_do_not_see_channels() {
    for spelling in [Spelling::LayerNorm, Spelling::RmsNormInParts] {
        let (mut plain, stream) = Net::new(16, 2, spelling, true, 3).finish();
        let graph = plain.graph.as_mut().unwrap();
        // As torch exports a Reshape to sizes that are open.
        graph.node.push(node("Shape", "shape", &[&stream], &["sizes"]));
        graph.node.push(node("Size", "size", &[&stream], &["count"]));
        graph.output.extend([value("sizes"), value("count")]);
        let mut turned = plain.clone();
        let done = rotate(&mut turned, QuarotSettings::USUAL, None).unwrap();
        assert_eq!((done.rotated[0].normalizations, &done.left), (5, &Vec::new()), "{spelling:?}");
    }
}

#[test]
fn norms_behind_the_sums_are_left() {
    let mut net = Net::new(16, 2, Spelling::LayerNorm, true, 3);
    let x = net.layer("x", INPUTS, 16);
    let normed = net.norm(&x);
    let layer = net.layer(&normed, 16, 16);
    let sum = net.op("Add", &[&normed, &layer]);
    let normed = net.norm(&sum);
    let output = net.layer(&normed, 16, 4);
    let mut made = model(17, net.nodes, net.weights, &[], &[&output]);
    made.graph.as_mut().unwrap().input = vec![typed("x", &[1, TOKENS, INPUTS])];
    let before = made.clone();
    let done = rotate(&mut made, QuarotSettings::USUAL, None).unwrap();
    assert!(done.left[0].reason.contains("reads what is normalized, and is no layer"), "{:?}", done.left);
    assert_eq!(made, before);
}

#[test]
fn a_constant_that_others_read_is_copied() {
    let (plain, _) = Net::new(16, 2, Spelling::RmsNorm, false, 3).finish();
    let mut shared = plain.clone();
    let graph = shared.graph.as_mut().unwrap();
    // The layer behind the attention of the second block reads the weight of the first.
    let square = |node: &&mut NodeProto| node.op_type() == "MatMul" && node.input[1].starts_with('t');
    let is_square =
        |name: &str, weights: &[TensorProto]| weights.iter().any(|t| t.name() == name && t.dims == [16, 16]);
    let weights = graph.initializer.clone();
    let mut layers: Vec<&mut NodeProto> =
        graph.node.iter_mut().filter(square).filter(|node| is_square(&node.input[1], &weights)).collect();
    let first = layers[0].input[1].clone();
    layers[1].input[1] = first.clone();
    let before = shared.clone();
    rotate(&mut shared, QuarotSettings::USUAL, None).unwrap();
    assert!(change(&before, &shared) <= 1e-5);
    let copies = shared.graph.initializer.iter().filter(|t| t.name().starts_with(&format!("{first}_rotated")));
    // Each block has its own rotation of the heads.
    assert_eq!(copies.count(), 2);
    assert!(!shared.graph.initializer.iter().any(|t| t.name() == first));
}

#[test]
fn models_without_a_stream_say_so() {
    let mut made = model(17, vec![node("Relu", "", &["x"], &["y"])], Vec::new(), &["x"], &["y"]);
    let done = rotate(&mut made, QuarotSettings::USUAL, None).unwrap();
    assert!(done.notice().unwrap().ends_with("nothing is normalized"));
}
