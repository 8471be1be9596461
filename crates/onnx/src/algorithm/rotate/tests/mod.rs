//! Rotations keep what a transformer computes, spread its outliers, and leave alone what they would change.

mod net;
mod unusual;

use kvant_container::onnx::{NodeProto, TensorProto};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use crate::graph::{node, set_attribute};
use crate::solution::values;
use crate::test_models::{model, typed, value};
use net::{INPUTS, Net, SPELLINGS, Spelling, TOKENS, change, peak, tensor_of};

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rotation_keeps_the_function(kind in 0usize..4, size in 0usize..4, biases in any::<bool>(), seed in any::<u64>()) {
        let (width, heads) = [(8, 2), (12, 3), (18, 3), (32, 4)][size];
        let (plain, stream) = Net::new(width, heads, SPELLINGS[kind], biases, seed).finish();
        let mut turned = plain.clone();
        let done = rotate(&mut turned, RotateSettings::DEFAULTS, None).unwrap();
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
fn norm_gains_and_biases_are_moved_into_layers() {
    for spelling in SPELLINGS {
        let (mut turned, _) = Net::new(16, 2, spelling, true, 3).finish();
        let nodes = turned.graph.node.len();
        rotate(&mut turned, RotateSettings::DEFAULTS, None).unwrap();
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
fn streams_with_other_readers_are_not_rotated() {
    let (plain, stream) = Net::new(16, 2, Spelling::LayerNorm, true, 3).finish();
    let mut shown = plain.clone();
    shown.graph.as_mut().unwrap().output.push(value(&stream));
    let mut scaled = plain.clone();
    let graph = scaled.graph.as_mut().unwrap();
    graph.node.push(node("Sigmoid", "gate", &[&stream], &["gated"]));
    graph.output.push(value("gated"));
    let residual = RotateSettings { heads: false, ..RotateSettings::DEFAULTS };
    for (before, reason) in [(shown, "is an output of the model"), (scaled, "`gate` (Sigmoid) reads its channels")] {
        let mut after = before.clone();
        let done = rotate(&mut after, residual, None).unwrap();
        assert!(done.rotated.is_empty() && done.left.len() == 1 && done.left[0].reason.contains(reason), "{done:?}");
        assert!(done.notice().unwrap().starts_with("no residual stream of the model can be rotated: "));
        assert_eq!(before, after);
    }
}

#[test]
fn shape_readers_do_not_block_rotation() {
    for spelling in [Spelling::LayerNorm, Spelling::RmsNormInParts] {
        let (mut plain, stream) = Net::new(16, 2, spelling, true, 3).finish();
        let graph = plain.graph.as_mut().unwrap();
        // As torch exports a Reshape to sizes that are open.
        graph.node.push(node("Shape", "shape", &[&stream], &["sizes"]));
        graph.node.push(node("Size", "size", &[&stream], &["count"]));
        graph.output.extend([value("sizes"), value("count")]);
        let mut turned = plain.clone();
        let done = rotate(&mut turned, RotateSettings::DEFAULTS, None).unwrap();
        assert_eq!((done.rotated[0].normalizations, &done.left), (5, &Vec::new()), "{spelling:?}");
    }
}

#[test]
fn norms_after_the_sums_are_not_rotated() {
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
    let done = rotate(&mut made, RotateSettings::DEFAULTS, None).unwrap();
    assert!(done.left[0].reason.contains("reads normalized values, but is not a layer"), "{:?}", done.left);
    assert_eq!(made, before);
}

#[test]
fn shared_constants_are_copied() {
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
    rotate(&mut shared, RotateSettings::DEFAULTS, None).unwrap();
    assert!(change(&before, &shared) <= 1e-5);
    let copies = shared.graph.initializer.iter().filter(|t| t.name().starts_with(&format!("{first}_rotated")));
    // Each block has its own rotation of the heads.
    assert_eq!(copies.count(), 2);
    assert!(!shared.graph.initializer.iter().any(|t| t.name() == first));
}

#[test]
fn models_without_a_stream_give_a_notice() {
    let mut made = model(17, vec![node("Relu", "", &["x"], &["y"])], Vec::new(), &["x"], &["y"]);
    let done = rotate(&mut made, RotateSettings::DEFAULTS, None).unwrap();
    assert!(done.notice().unwrap().ends_with("nothing is normalized"));
}
