//! Every pass, alone and with all others, leaves what the model computes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use kvant_container::onnx::{ModelProto, ValueInfoProto};
use kvant_onnx::data::{Array, Values};
use kvant_onnx::graph::{check, node};
use kvant_onnx::pass::{ALL, Context, Selection, simplify, upgrade_opset};
use kvant_onnx::runtime::{RuntimeChoice, RuntimeOptions, open};

use crate::model::{floats, model};

/// All outputs of a model on one input, by name; integers as floats.
fn outputs(model: &ModelProto) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let options = RuntimeOptions { choice: RuntimeChoice::Rten, threads: Some(1), ..RuntimeOptions::default() };
    let wanted: Vec<String> = model.graph.output.iter().map(|output| output.name().to_owned()).collect();
    let values: Vec<f32> = (0..2 * 3 * 8 * 8).map(|i| (i as f32 * 0.7).sin()).collect();
    let x = Array::new(vec![2, 3, 8, 8], Values::F32(values.into())).unwrap();
    let mut made = BTreeMap::new();
    let mut keep = |name: &str, array: &Array<'_>| {
        made.insert(name.to_owned(), (array.shape().to_vec(), array.to_f32s().into_owned()));
        ControlFlow::Continue(())
    };
    open(model, &wanted, &options).unwrap().run(&[("x", x)], &wanted, &mut keep).unwrap();
    made
}

fn assert_same(before: &ModelProto, after: &ModelProto, what: &str) {
    assert_eq!(check(after), Ok(()), "{what}");
    let (before, after) = (outputs(before), outputs(after));
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>(), "{what}");
    for (name, (shape, values)) in &before {
        let (new_shape, new_values) = &after[name];
        assert_eq!(shape, new_shape, "{what}: {name}");
        let scale = values.iter().fold(1e-6f32, |most, v| most.max(v.abs()));
        let near = values.iter().zip(new_values).all(|(a, b)| (a - b).abs() <= 1e-5 * scale);
        assert!(near, "{what}: {name} was {values:?} and is {new_values:?}");
    }
}

/// Passes that change what goes in and comes out, and are tested where they are written.
const OF_THE_ENDS: [&str; 2] = ["nhwc-inputs", "float-ends"];

#[test]
fn each_pass_alone_keeps_the_outputs() {
    for pass in ALL.iter().filter(|pass| !OF_THE_ENDS.contains(&pass.name)) {
        let mut changed = model();
        simplify(&mut changed, &Selection::none().with(pass.name).unwrap(), &Context::default()).unwrap();
        assert_same(&model(), &changed, pass.name);
    }
}

/// What a pass has named anew.
fn new_names(before: &ModelProto, after: &ModelProto) -> Vec<String> {
    let names = |model: &ModelProto| -> BTreeSet<String> {
        let constants = model.graph.initializer.iter().map(|tensor| tensor.name().to_owned());
        constants.chain(model.graph.node.iter().flat_map(|node| node.output.clone())).collect()
    };
    names(after).difference(&names(before)).cloned().collect()
}

/// The model with constants of these names, each of which makes an output of its own.
fn with_taken(names: &[String]) -> ModelProto {
    let mut taken = model();
    let graph = taken.graph.as_mut().unwrap();
    for (i, name) in names.iter().enumerate() {
        let output = format!("taken{i}");
        graph.initializer.push(floats(name, &[2 + i]));
        graph.node.push(node("Neg", &output, &[name], &[&output]));
        graph.output.push(ValueInfoProto { name: Some(output), ..graph.output[0].clone() });
    }
    taken
}

#[test]
fn passes_do_not_reuse_existing_names() {
    let mut found = 0;
    for pass in ALL.iter().filter(|pass| !OF_THE_ENDS.contains(&pass.name)) {
        let only = Selection::none().with(pass.name).unwrap();
        let mut changed = model();
        simplify(&mut changed, &only, &Context::default()).unwrap();
        let taken = with_taken(&new_names(&model(), &changed));
        let mut changed = taken.clone();
        simplify(&mut changed, &only, &Context::default()).unwrap();
        assert_same(&taken, &changed, pass.name);
        found += taken.graph.output.len() - model().graph.output.len();
    }
    assert!(found > 5, "only {found} new names were tried");
}

#[test]
fn all_passes_and_a_newer_opset_keep_the_outputs() {
    let mut all = Selection::default();
    ALL.iter().for_each(|pass| all.set(pass.name, !OF_THE_ENDS.contains(&pass.name)).unwrap());
    for opset in [17, 21] {
        for selection in [Selection::default(), all.clone()] {
            let mut changed = model();
            upgrade_opset(&mut changed, opset).unwrap();
            assert_same(&model(), &changed, "opset");
            simplify(&mut changed, &selection, &Context::default()).unwrap();
            assert_same(&model(), &changed, &format!("{selection:?} in opset {opset}"));
        }
    }
}

#[test]
fn every_pass_fires_or_leaves_the_model_unchanged() {
    let mut all = Selection::default();
    ALL.iter().for_each(|pass| all.set(pass.name, true).unwrap());
    let mut simplified = model();
    let counts = simplify(&mut simplified, &all, &Context::default()).unwrap();
    let found: Vec<_> = counts.iter().filter(|(_, n)| *n > 0).map(|(name, _)| *name).collect();
    for name in ["constant-folding", "identity", "batch-norm-folding", "bias-fusion", "split-to-slice", "dead-nodes"] {
        assert!(found.contains(&name), "{name} found nothing: {found:?}");
    }
    let again = simplify(&mut simplified.clone(), &all, &Context::default()).unwrap();
    assert!(again.iter().all(|(_, n)| *n == 0), "{again:?}");
}
