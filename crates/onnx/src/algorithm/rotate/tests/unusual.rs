//! Streams that are made and read in less usual ways: Gemm with factors, convolutions, tied embeddings, caches, 16-bit sources.

use std::ops::ControlFlow;

use half::f16;
use kvant_container::onnx::{DataType, ModelProto, TensorProto, tensor};

use super::net::{INPUTS, Net, SPELLINGS, Spelling, TOKENS, change, peak};
use super::*;
use crate::data::Array;
use crate::preset::Preset;
use crate::quantize::prepare;
use crate::runtime::{RuntimeChoice, RuntimeOptions, open};
use crate::shape::{Dim, ValueType};

const WIDTH: usize = 16;

/// The attributes of a Gemm.
#[derive(Debug, Clone, Copy)]
struct Factors {
    alpha: f32,
    beta: f32,
    transposed: bool,
    bias: bool,
}

impl Net {
    fn gemm(&mut self, x: &str, inputs: usize, outputs: usize, factors: Factors) -> String {
        let dims = if factors.transposed { [outputs, inputs] } else { [inputs, outputs] };
        let weight = self.constant(&dims, |_, v| v / (inputs as f64).sqrt());
        let bias = self.constant(&[outputs], |i, v| if i == 1 { 4.0 } else { v });
        let inputs = if factors.bias { vec![x, &weight, &bias] } else { vec![x, &weight] };
        self.op_with("Gemm", &inputs, |node| {
            set_attribute(node, "alpha", factors.alpha);
            set_attribute(node, "beta", factors.beta);
            set_attribute(node, "transB", i64::from(factors.transposed));
        })
    }

    fn made(self, inputs: &[(&str, &[usize])], outputs: &[&str]) -> ModelProto {
        let mut made = model(17, self.nodes, self.weights, &[], outputs);
        made.graph.as_mut().unwrap().input = inputs.iter().map(|(name, dims)| typed(name, dims)).collect();
        made
    }

    /// The stream to an output: normalized, its mean over the tokens taken, and a layer.
    fn head(&mut self, stream: &str) -> String {
        let normed = self.norm(stream);
        let pooled = self.op_with("ReduceMean", &[&normed], |node| set_attribute(node, "axes", &[1i64][..]));
        self.layer(&pooled, WIDTH, 4)
    }
}

/// A network of Gemm alone, the last of which has the factor `beta` and perhaps a bias.
fn gemms(spelling: Spelling, beta: f32, bias: bool) -> ModelProto {
    let mut net = Net::new(WIDTH, 2, spelling, true, 5);
    let factors = |alpha, beta, transposed, bias| Factors { alpha, beta, transposed, bias };
    let stream = net.gemm("x", INPUTS, WIDTH, factors(0.5, 2.0, true, true));
    let normed = net.norm(&stream);
    let up = net.gemm(&normed, WIDTH, 2 * WIDTH, factors(2.0, 0.5, false, true));
    let up = net.op("Relu", &[&up]);
    let down = net.gemm(&up, 2 * WIDTH, WIDTH, factors(3.0, 0.25, true, false));
    let sum = net.op("Add", &[&stream, &down]);
    let normed = net.norm(&sum);
    let output = net.gemm(&normed, WIDTH, 4, factors(0.75, beta, false, bias));
    net.made(&[("x", &[TOKENS, INPUTS])], &[&output])
}

/// All outputs of a model for its inputs.
fn outputs(model: &ModelProto, inputs: &[(&str, Array<'_>)]) -> Vec<Vec<f32>> {
    let options = RuntimeOptions { choice: RuntimeChoice::Rten, threads: Some(1), ..RuntimeOptions::default() };
    let names: Vec<String> = model.graph.output.iter().map(|output| output.name().to_owned()).collect();
    let mut session = open(model, &names, &options).unwrap();
    let mut found = vec![Vec::new(); names.len()];
    let run = session.run(inputs, &names, &mut |name, array| {
        let at = names.iter().position(|known| known == name).unwrap();
        found[at] = array.to_f32s().into_owned();
        ControlFlow::Continue(())
    });
    run.unwrap();
    found
}

/// An input of small numbers.
fn numbers(dims: &[usize], seed: usize) -> Array<'static> {
    let count = dims.iter().product();
    let values: Vec<f32> = (0..count).map(|i| ((i * 7919 + seed * 31) % 613) as f32 / 300.0 - 1.0).collect();
    Array::of(dims.to_vec(), values).unwrap()
}

/// Rotates and says how much the outputs have changed, over the largest of each.
fn rotated(before: &ModelProto, inputs: &[(&str, Array<'_>)]) -> (ModelProto, Rotations, f32) {
    let mut after = before.clone();
    let done = rotate(&mut after, RotateSettings::DEFAULTS, None).unwrap();
    crate::graph::check(&after).unwrap();
    let pairs = outputs(before, inputs).into_iter().zip(outputs(&after, inputs));
    let changes = pairs.map(|(a, b)| {
        let differences: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
        assert_eq!(a.len(), b.len());
        peak(&differences) / peak(&a)
    });
    let changed = changes.fold(0f32, f32::max);
    (after, done, changed)
}

#[test]
fn gemm_alpha_and_beta_are_respected() {
    let x = [("x", numbers(&[TOKENS, INPUTS], 1))];
    for (spelling, bias) in SPELLINGS.into_iter().flat_map(|spelling| [(spelling, true), (spelling, false)]) {
        let (_, done, changed) = rotated(&gemms(spelling, 4.0, bias), &x);
        assert_eq!((done.rotated.len(), done.rotated[0].normalizations), (1, 2), "{spelling:?}: {:?}", done.left);
        assert!(changed <= 1e-5, "{spelling:?} {bias}: {changed}");
    }
}

#[test]
fn gemm_bias_with_zero_beta_receives_no_norm_bias() {
    let x = [("x", numbers(&[TOKENS, INPUTS], 1))];
    for (spelling, bias) in SPELLINGS.into_iter().flat_map(|spelling| [(spelling, true), (spelling, false)]) {
        let (_, done, changed) = rotated(&gemms(spelling, 0.0, bias), &x);
        // A LayerNorm's bias would have to go where it is multiplied by nothing.
        let free = matches!(spelling, Spelling::RmsNorm | Spelling::RmsNormInParts);
        assert_eq!(done.rotated.len(), usize::from(free), "{spelling:?} {bias}: {:?}", done.left);
        assert!(changed <= 1e-5, "{spelling:?} {bias}: {changed}");
    }
}

/// Patches of an image as tokens, and a filter over the tokens that reads what is normalized.
#[test]
fn convolutions_write_and_read_streams() {
    for spelling in [Spelling::LayerNorm, Spelling::RmsNormInParts] {
        let mut net = Net::new(WIDTH, 2, spelling, true, 5);
        let filter = net.constant(&[WIDTH, 3, 4, 4], |_, v| v / 7.0);
        let bias = net.constant(&[WIDTH], |i, v| if i == 3 { 12.0 } else { v });
        let patches =
            net.op_with("Conv", &["x", &filter, &bias], |node| set_attribute(node, "strides", &[4i64, 4][..]));
        let patches = net.shaped(&patches, &[1, WIDTH as i64, TOKENS as i64]);
        let stream = net.transposed(&patches, &[0, 2, 1]);
        let stream = net.block(&stream);
        let stream = match spelling {
            Spelling::LayerNorm => stream,
            _ => {
                let normed = net.norm(&stream);
                let transposed = net.transposed(&normed, &[0, 2, 1]);
                let over_tokens = net.constant(&[WIDTH, WIDTH, 3], |_, v| v / 7.0);
                let mixed = net.op_with("Conv", &[&transposed, &over_tokens], |node| {
                    set_attribute(node, "pads", &[1i64, 1][..]);
                });
                let back = net.transposed(&mixed, &[0, 2, 1]);
                net.op("Add", &[&stream, &back])
            }
        };
        let output = net.head(&stream);
        let made = net.made(&[("x", &[1, 3, 4, 4 * TOKENS])], &[&output]);
        let (_, done, changed) = rotated(&made, &[("x", numbers(&[1, 3, 4, 4 * TOKENS], 1))]);
        assert_eq!(done.left, Vec::new());
        assert!(done.rotated[0].makers.contains(&filter), "{:?}", done.rotated[0].makers);
        assert!(changed <= 1e-5, "{spelling:?}: {changed}");
    }
}

/// A filter for each channel needs the channels as they are; so does one behind a border of zeros whose input has a bias.
#[test]
fn channel_dependent_convolutions_block_rotation() {
    for (spelling, groups, reason) in
        [(Spelling::RmsNorm, WIDTH, "(Conv) reads its channels"), (Spelling::LayerNorm, 1, "is not a layer")]
    {
        let mut net = Net::new(WIDTH, 2, spelling, true, 5);
        let stream = net.layer("x", INPUTS, WIDTH);
        let read = if groups == 1 { net.norm(&stream) } else { stream.clone() };
        let transposed = net.transposed(&read, &[0, 2, 1]);
        let filter = net.constant(&[WIDTH, WIDTH / groups, 3], |_, v| v);
        let mixed = net.op_with("Conv", &[&transposed, &filter], |node| {
            set_attribute(node, "group", groups as i64);
            set_attribute(node, "pads", &[1i64, 1][..]);
        });
        let back = net.transposed(&mixed, &[0, 2, 1]);
        let stream = net.op("Add", &[&stream, &back]);
        let output = net.head(&stream);
        let made = net.made(&[("x", &[1, TOKENS, INPUTS])], &[&output]);
        let (after, done, _) = rotated(&made, &[("x", numbers(&[1, TOKENS, INPUTS], 1))]);
        assert!(done.rotated.is_empty() && done.left[0].reason.contains(reason), "{:?}", done.left);
        assert_eq!(after, made);
    }
}

/// A table of embeddings that is the last layer's weight, too: read by a Gemm, or turned first.
fn tied(transposed: bool) -> (ModelProto, String) {
    const WORDS: usize = 11;
    let mut net = Net::new(WIDTH, 2, Spelling::RmsNormInParts, false, 5);
    let table = net.constant(&[WORDS, WIDTH], |i, v| if i % WIDTH == 0 { 20.0 + v } else { v });
    let stream = net.op("Gather", &[&table, "ids"]);
    let stream = net.block(&stream);
    let normed = net.norm(&stream);
    let output = match transposed {
        true => {
            let transposed = net.transposed(&table, &[1, 0]);
            net.op("MatMul", &[&normed, &transposed])
        }
        false => {
            let rows = net.shaped(&normed, &[TOKENS as i64, WIDTH as i64]);
            net.op_with("Gemm", &[&rows, &table], |node| set_attribute(node, "transB", 1i64))
        }
    };
    let mut made = net.made(&[], &[&output]);
    let ids = ValueType::new(DataType::INT64, vec![Dim::Known(1), Dim::Known(TOKENS)]);
    made.graph.as_mut().unwrap().input = vec![ids.to_proto("ids").unwrap()];
    (made, table)
}

#[test]
fn tied_embeddings_become_two_tables() {
    let ids = [("ids", Array::of(vec![1, TOKENS], vec![3i64, 0, 10, 7, 3]).unwrap())];
    let (made, table) = tied(false);
    let (after, done, changed) = rotated(&made, &ids);
    assert_eq!((done.rotated[0].normalizations, &done.left), (3, &Vec::new()));
    assert!(changed <= 1e-5, "{changed}");
    // The gain of the last normalization is in one of them alone.
    let tables = after.graph.initializer.iter().filter(|tensor| tensor.dims == [11, WIDTH as i64]);
    assert_eq!(tables.count(), 2);
    assert!(done.rotated[0].makers.contains(&table) && done.rotated[0].readers.contains(&table));
}

#[test]
fn table_transposed_at_run_time_blocks_rotation() {
    let ids = [("ids", Array::of(vec![1, TOKENS], vec![3i64, 0, 10, 7, 3]).unwrap())];
    let (made, _) = tied(true);
    let mut after = made.clone();
    let residual = RotateSettings { heads: false, ..RotateSettings::DEFAULTS };
    let done = rotate(&mut after, residual, None).unwrap();
    assert!(done.rotated.is_empty() && done.left[0].reason.contains("(MatMul)"), "{:?}", done.left);
    assert_eq!(made, after);
    // The passes before make it a constant.
    let recipe = Preset::resolve("WEIGHTS_INT8_QUAROT").unwrap().unwrap();
    let passes = recipe.passes();
    let prepared = prepare(made.clone(), recipe, &passes, None).unwrap();
    assert_eq!(prepared.rotations.rotated[0].normalizations, 3, "{:?}", prepared.rotations.left);
    let (before, after) = (outputs(&made, &ids).remove(0), outputs(&prepared.model, &ids).remove(0));
    let differences: Vec<f32> = before.iter().zip(&after).map(|(a, b)| a - b).collect();
    assert!(peak(&differences) <= 1e-5 * peak(&before));
}

/// Keys and values of tokens before come as inputs and go as outputs: their heads stay, the residual stream is rotated.
#[test]
fn heads_of_kv_caches_are_not_rotated() {
    const PAST: usize = 3;
    let (heads, size) = (2usize, WIDTH / 2);
    let mut net = Net::new(WIDTH, heads, Spelling::RmsNormInParts, true, 5);
    let stream = net.layer("x", INPUTS, WIDTH);
    let normed = net.norm(&stream);
    let split = [TOKENS as i64, heads as i64, size as i64];
    let [queries, keys, values] = [0, 1, 2].map(|_| {
        let made = net.layer(&normed, WIDTH, WIDTH);
        let made = net.shaped(&made, &[1, split[0], split[1], split[2]]);
        net.transposed(&made, &[0, 2, 1, 3])
    });
    let joined = |net: &mut Net, past: &str, new: &str| {
        net.op_with("Concat", &[past, new], |node| set_attribute(node, "axis", 2i64))
    };
    let (keys, values) = (joined(&mut net, "past_key", &keys), joined(&mut net, "past_value", &values));
    let transposed = net.transposed(&keys, &[0, 1, 3, 2]);
    let scores = net.op("MatMul", &[&queries, &transposed]);
    let shares = net.op_with("Softmax", &[&scores], |node| set_attribute(node, "axis", -1i64));
    let mixed = net.op("MatMul", &[&shares, &values]);
    let mixed = net.transposed(&mixed, &[0, 2, 1, 3]);
    let mixed = net.shaped(&mixed, &[1, TOKENS as i64, WIDTH as i64]);
    let attended = net.layer(&mixed, WIDTH, WIDTH);
    let stream = net.op("Add", &[&stream, &attended]);
    let output = net.head(&stream);
    let cache = [1, heads, PAST, size];
    let inputs: [(&str, &[usize]); 3] = [("x", &[1, TOKENS, INPUTS]), ("past_key", &cache), ("past_value", &cache)];
    let made = net.made(&inputs, &[&output, &keys, &values]);
    let given: Vec<(&str, Array<'_>)> =
        inputs.iter().enumerate().map(|(i, (name, dims))| (*name, numbers(dims, i))).collect();
    let (_, done, changed) = rotated(&made, &given);
    assert_eq!((done.rotated.len(), done.rotated[0].normalizations), (1, 2), "{:?}", done.left);
    assert!(done.left.len() == 1 && done.left[0].channels == size, "{:?}", done.left);
    let reason = &done.left[0].reason;
    assert!(reason.contains("of the model"), "{reason}");
    assert!(changed <= 1e-5, "{changed}");
}

fn narrow(constant: &TensorProto) -> TensorProto {
    if kvant_container::onnx::data_type(constant) != DataType::FLOAT {
        return constant.clone();
    }
    let bytes: Vec<u8> = values(constant).unwrap().iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
    tensor(constant.name(), DataType::FLOAT16, &kvant_container::onnx::shape(constant).unwrap(), bytes)
}

/// Computes in 16 bits between its ends.
fn narrowed(mut model: ModelProto) -> ModelProto {
    let graph = model.graph.as_mut().unwrap();
    graph.initializer = graph.initializer.iter().map(narrow).collect();
    let output = graph.output[0].name().to_owned();
    for node in &mut graph.node {
        node.input.iter_mut().filter(|name| *name == "x").for_each(|name| *name = "x_half".to_owned());
        node.output.iter_mut().filter(|name| **name == output).for_each(|name| *name = "y_half".to_owned());
    }
    graph.node.insert(0, crate::graph::cast_node("first", "x", "x_half", DataType::FLOAT16));
    graph.node.push(crate::graph::cast_node("last", "y_half", &output, DataType::FLOAT));
    model
}

#[test]
fn half_precision_models_are_rotated_like_float() {
    for spelling in [Spelling::LayerNorm, Spelling::RmsNormInParts] {
        let (plain, _) = Net::new(WIDTH, 2, spelling, true, 3).finish();
        let [float, transposed] = ["WEIGHTS_INT8", "WEIGHTS_INT8_QUAROT"].map(|preset| {
            let recipe = Preset::resolve(preset).unwrap().unwrap();
            let passes = recipe.passes();
            prepare(narrowed(plain.clone()), recipe, &passes, None).unwrap()
        });
        assert_eq!((transposed.rotations.rotated.len(), &transposed.rotations.left), (3, &Vec::new()), "{spelling:?}");
        let changed = change(&float.model, &transposed.model);
        assert!(changed <= 1e-5, "{spelling:?}: {changed}");
    }
}
