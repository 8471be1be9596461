//! A transformer of random numbers for tests, norms before, and what models compute.

use std::ops::ControlFlow;

use kvant_container::onnx::{ModelProto, NodeProto, TensorProto};
use kvant_quant::random::SplitMix64;

use crate::data::Array;
use crate::graph::{node, set_attribute};
use crate::runtime::{RuntimeChoice, RuntimeOptions, open};
use crate::test_models::{floats, integers, model, typed};

pub(super) const TOKENS: usize = 5;
pub(super) const INPUTS: usize = 3;

/// How a normalization is spelled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Spelling {
    LayerNorm,
    RmsNorm,
    /// As torch exports one that it has no operator for.
    RmsNormInParts,
    LayerNormInParts,
}

pub(super) const SPELLINGS: [Spelling; 4] =
    [Spelling::LayerNorm, Spelling::RmsNorm, Spelling::RmsNormInParts, Spelling::LayerNormInParts];

/// A transformer of random numbers, norms before, whose stream has an outlier.
pub(super) struct Net {
    width: usize,
    heads: usize,
    spelling: Spelling,
    biases: bool,
    pub(super) nodes: Vec<NodeProto>,
    pub(super) weights: Vec<TensorProto>,
    random: SplitMix64,
    names: usize,
}

impl Net {
    pub(super) fn new(width: usize, heads: usize, spelling: Spelling, biases: bool, seed: u64) -> Self {
        let random = SplitMix64::new(seed);
        Self { width, heads, spelling, biases, nodes: Vec::new(), weights: Vec::new(), random, names: 0 }
    }

    pub(super) fn name(&mut self) -> String {
        self.names += 1;
        format!("t{}", self.names)
    }

    pub(super) fn constant(&mut self, dims: &[usize], values: impl Fn(usize, f64) -> f64) -> String {
        let name = self.name();
        let count = dims.iter().product();
        let drawn: Vec<f32> = (0..count).map(|i| values(i, 2.0 * self.random.uniform() - 1.0) as f32).collect();
        self.weights.push(floats(&name, dims, &drawn));
        name
    }

    pub(super) fn op(&mut self, op_type: &str, inputs: &[&str]) -> String {
        self.op_with(op_type, inputs, |_| {})
    }

    pub(super) fn op_with(&mut self, op_type: &str, inputs: &[&str], change: impl Fn(&mut NodeProto)) -> String {
        let name = self.name();
        let mut made = node(op_type, &name, inputs, &[&name]);
        change(&mut made);
        self.nodes.push(made);
        name
    }

    pub(super) fn layer(&mut self, x: &str, inputs: usize, outputs: usize) -> String {
        let size = 1.0 / (inputs as f64).sqrt();
        let weight = self.constant(&[inputs, outputs], |_, v| v * size);
        let product = self.op("MatMul", &[x, &weight]);
        if !self.biases {
            return product;
        }
        let bias = self.constant(&[outputs], |i, v| if i == 1 { 8.0 } else { v });
        self.op("Add", &[&bias, &product])
    }

    pub(super) fn reduced(&mut self, x: &str) -> String {
        self.op_with("ReduceMean", &[x], |node| set_attribute(node, "axes", &[-1i64][..]))
    }

    pub(super) fn norm(&mut self, x: &str) -> String {
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

    pub(super) fn shaped(&mut self, x: &str, dims: &[i64]) -> String {
        let name = self.name();
        self.weights.push(integers(&name, dims));
        self.op("Reshape", &[x, &name])
    }

    pub(super) fn transposed(&mut self, x: &str, order: &[i64]) -> String {
        self.op_with("Transpose", &[x], |node| set_attribute(node, "perm", order))
    }

    /// Queries, keys and values of one layer.
    pub(super) fn attention(&mut self, x: &str) -> String {
        let (heads, size) = (self.heads as i64, (self.width / self.heads) as i64);
        let joint = self.layer(x, self.width, 3 * self.width);
        let joint = self.shaped(&joint, &[1, TOKENS as i64, 3, heads, size]);
        let joint = self.transposed(&joint, &[2, 0, 3, 1, 4]);
        let [queries, keys, values] = [0, 1, 2].map(|which| {
            let name = self.name();
            self.weights.push(scalar(&name, which));
            self.op_with("Gather", &[&joint, &name], |node| set_attribute(node, "axis", 0i64))
        });
        let keys = self.transposed(&keys, &[0, 1, 3, 2]);
        let scores = self.op("MatMul", &[&queries, &keys]);
        let shares = self.op_with("Softmax", &[&scores], |node| set_attribute(node, "axis", -1i64));
        let mixed = self.op("MatMul", &[&shares, &values]);
        let mixed = self.transposed(&mixed, &[0, 2, 1, 3]);
        let mixed = self.shaped(&mixed, &[1, TOKENS as i64, self.width as i64]);
        self.layer(&mixed, self.width, self.width)
    }

    pub(super) fn block(&mut self, x: &str) -> String {
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
    pub(super) fn finish(mut self) -> (ModelProto, String) {
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

pub(super) fn scalar(name: &str, number: i64) -> TensorProto {
    let mut made = integers(name, &[number]);
    made.dims.clear();
    made
}

pub(super) fn tensor_of(model: &ModelProto, name: &str) -> Vec<f32> {
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

pub(super) fn peak(values: &[f32]) -> f32 {
    values.iter().fold(0f32, |m, v| m.max(v.abs()))
}

/// The largest difference of the outputs, over the largest output.
pub(super) fn change(before: &ModelProto, after: &ModelProto) -> f32 {
    let name = before.graph.output[0].name().to_owned();
    let (before, after) = (tensor_of(before, &name), tensor_of(after, &name));
    let differences: Vec<f32> = before.iter().zip(&after).map(|(a, b)| a - b).collect();
    peak(&differences) / peak(&before).max(1e-20)
}
